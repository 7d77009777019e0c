/* GPT-2 (Radford et al. 2019), with the parameter names, shapes and start of its published files:
 * weights (in, out), N(0, 0.02), those that end a residual branch N(0, 0.02 / sqrt(2 * layers));
 * the output layer is the token embedding. Dropout, where asked for, acts on the embedding and at
 * the end of each residual branch; there is none on the attention probabilities.
 * B batch, T time, C width, V vocab.
 *
 * Biases that end a product are added by what reads it next, in the same pass: by gelu, and, where no
 * dropout lies between, by the sum of the residual branch. */
#include "nn/models.h"

#include "autograd/checkpoint.h"

#include <math.h>
#include <stdio.h>

/* Self-attention and feed-forward both are: in, something, out, dropout. */
typedef struct branch {
    ls__module base;
    ls__module *in, *out, *dropout;
    ls_tensor
        *bias;    /* (C): of `out`, left to whoever adds the branch up; NULL: it is in the result */
    size_t heads; /* attention only */
} branch;

typedef struct block {
    ls__module base;
    ls__module *ln_1, *attn, *ln_2, *mlp;
} block;

typedef struct gpt {
    ls__module base;
    ls__module *wte, *wpe, *dropout, *ln_f;
    size_t layers;
} gpt;

enum { FIRST_BLOCK = 3 }; /* among the children: wte, wpe, dropout, h.0, h.1, ..., ln_f */

static const double DEVIATION = 0.02;

/* (B, T, C) -> (B, T, C) */
static ls_tensor *attention_forward(ls_step *step, ls__module *module, ls_tensor *x) {
    branch *m = (branch *)module;
    x = ls__module_forward(step, m->in, x);     /* (B, T, 3C) */
    x = ls_causal_attention(step, x, m->heads); /* (B, T, C) */
    x = ls__module_forward(step, m->out, x);
    return ls__module_forward(step, m->dropout, x);
}

/* (B, T, C) -> (B, T, C) */
static ls_tensor *feed_forward(ls_step *step, ls__module *module, ls_tensor *x) {
    branch *m = (branch *)module;
    x = ls__module_forward(step, m->in, x); /* (B, T, 4C) */
    x = ls_bias_gelu_tanh(step, x, &m->in->parameters[1]->value);
    x = ls__module_forward(step, m->out, x);
    return ls__module_forward(step, m->dropout, x);
}

/* (B, T, C) -> (B, T, C) */
static ls_tensor *block_forward(ls_step *step, ls__module *module, ls_tensor *x) {
    block *m = (block *)module;
    ls_tensor *y = ls__module_forward(step, m->ln_1, x);
    y = ls__module_forward(step, m->attn, y);
    ls__layer_norm_add(m->ln_2, y, ((branch *)m->attn)->bias);
    y = ls__module_forward(step, m->ln_2, x);
    x = ls__layer_norm_sum(m->ln_2);
    y = ls__module_forward(step, m->mlp, y);
    return ls_residual_add(step, x, y, ((branch *)m->mlp)->bias);
}

enum { BLOCK_PARAMETERS = 12 };

static ls_tensor *run_block(ls_step *step, void *module, ls_tensor *x) {
    return ls__module_forward(step, module, x);
}

/* block_forward, of which only the input is kept for backward. */
static ls_tensor *recomputed_block(ls_step *step, ls__module *module, ls_tensor *x) {
    ls_parameter *parameters[BLOCK_PARAMETERS];
    ls_tensor *weights[BLOCK_PARAMETERS];
    size_t count = ls__module_collect(module, parameters, 0);
    for (size_t i = 0; i < count; i++) /* backward finishes the last first */
        weights[i] = &parameters[count - 1 - i]->value;
    return ls__checkpoint(step, run_block, module, x, weights, count);
}

/* tokens (B, T) -> (B, T, C): all but the output layer */
static ls_tensor *body(ls_step *step, gpt *m, ls_tensor *tokens) {
    ls_tensor *positions = &m->wpe->parameters[0]->value; /* (context, C) */
    ls_tensor *x = ls__module_forward(step, m->wte, tokens);
    x = ls_add(step, x, ls_slice(step, positions, 0, 0, tokens->shape[1]));
    x = ls__module_forward(step, m->dropout, x);
    for (size_t i = 0; i < m->layers; i++) {
        ls__module *layer = m->base.children[FIRST_BLOCK + i];
        x = step->recompute ? recomputed_block(step, layer, x) : run_block(step, layer, x);
    }
    return ls__module_forward(step, m->ln_f, x);
}

/* (V, C) */
static ls_tensor *output_weight(gpt *m) {
    return &m->wte->parameters[0]->value;
}

/* tokens (B, T) -> logits (B, T, V) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *tokens) {
    gpt *m = (gpt *)module;
    return ls_linear(step, body(step, m, tokens), output_weight(m), NULL);
}

ls_tensor *ls__gpt_loss(ls_step *step, ls__module *root, ls_tensor *tokens, ls_tensor *targets,
                        size_t *correct) {
    gpt *m = (gpt *)root;
    return ls_linear_cross_entropy(step, body(step, m, tokens), output_weight(m), targets, correct);
}

typedef struct branch_options {
    const char *name, *first; /* "attn", "c_attn" */
    size_t first_out, inner;  /* C -> first_out; inner -> C */
    bool bias_later;          /* of the first */
    ls__forward_fn forward;
} branch_options;

static ls_status create_branch(ls__module **module, ls__module *parent, const ls__builder *builder,
                               const ls__spec *spec, const branch_options *options) {
    double last = DEVIATION / sqrt(2 * (double)spec->layers);
    ls__linear_options in = {
        .in = spec->width,
        .out = options->first_out,
        .in_out = true,
        .bias_later = options->bias_later,
        .weight = {.kind = LS__NORMAL, .scale = DEVIATION},
    };
    ls__linear_options out = {
        .in = options->inner,
        .out = spec->width,
        .in_out = true,
        .bias_later = spec->dropout == 0,
        .weight = {.kind = LS__NORMAL, .scale = last},
    };
    LS_TRY(ls__module_create(module, parent, options->name, sizeof(branch), options->forward));
    branch *m = (branch *)*module;
    m->heads = spec->heads;
    LS_TRY(ls__linear_create(&m->in, *module, options->first, builder, &in));
    LS_TRY(ls__linear_create(&m->out, *module, "c_proj", builder, &out));
    m->bias = out.bias_later ? &m->out->parameters[1]->value : NULL;
    return ls__dropout_create(&m->dropout, *module, "dropout", spec->dropout);
}

static ls_status create_block(ls__module *root, const char *name, const ls__builder *builder,
                              const ls__spec *spec) {
    ls__module *module;
    size_t c = spec->width;
    const branch_options attn = {"attn", "c_attn", 3 * c, c, false, attention_forward};
    const branch_options mlp = {"mlp", "c_fc", 4 * c, 4 * c, true, feed_forward};
    LS_TRY(ls__module_create(&module, root, name, sizeof(block), block_forward));
    block *m = (block *)module;
    LS_TRY(ls__layer_norm_create(&m->ln_1, module, "ln_1", builder, c));
    LS_TRY(create_branch(&m->attn, module, builder, spec, &attn));
    LS_TRY(ls__layer_norm_create(&m->ln_2, module, "ln_2", builder, c));
    return create_branch(&m->mlp, module, builder, spec, &mlp);
}

ls_status ls__gpt_create(ls__module **root, const ls__builder *builder, const ls__spec *spec) {
    ls__init normal = {.kind = LS__NORMAL, .scale = DEVIATION};
    LS_TRY(ls__module_create(root, NULL, "", sizeof(gpt), forward));
    gpt *m = (gpt *)*root;
    m->layers = spec->layers;
    LS_TRY(ls__embedding_create(&m->wte, *root, "wte", builder, spec->vocab, spec->width, normal));
    LS_TRY(
        ls__embedding_create(&m->wpe, *root, "wpe", builder, spec->context, spec->width, normal));
    LS_TRY(ls__dropout_create(&m->dropout, *root, "dropout", spec->dropout));
    for (size_t i = 0; i < spec->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%zu", i);
        LS_TRY(create_block(*root, name, builder, spec));
    }
    return ls__layer_norm_create(&m->ln_f, *root, "ln_f", builder, spec->width);
}
