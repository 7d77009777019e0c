/* Parameters and models. Part of liblockstep. */
#ifndef LOCKSTEP_MODEL_H
#define LOCKSTEP_MODEL_H

#include <lockstep/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_parameter ls_parameter; /* opaque: a named tensor that outlives steps */
typedef struct ls_model ls_model;         /* opaque */

/* What a parameter is to the training step. */
typedef enum ls_role {
    LS_WEIGHT,    /* has a gradient; the optimizer updates it */
    LS_FROZEN,    /* no gradient */
    LS_STATISTIC, /* a running average; what is reduced is its value for this batch */
} ls_role;

/* Unique in its model, "conv1.weight"; the name in checkpoints. */
LS_API const char *ls_parameter_name(const ls_parameter *parameter);
LS_API ls_role ls_parameter_role(const ls_parameter *parameter);
/* The value as a tensor that any step may use. Owned by the parameter. */
LS_API ls_tensor *ls_parameter_value(ls_parameter *parameter);
/* The gradient's storage, f32, as many elements as the value. NULL before there is one. Ask again after
 * each ls_ddp_wait: a division by the job's weight that only the optimizer needed is made up for here. */
LS_API float *ls_parameter_gradient(ls_parameter *parameter);

/* Builds a model from a spec and initialises it from `seed` (equal on all ranks):
 *   "mlp:784,1024,1024,10"   linear layers with relu between; input is flattened
 *   "cnn"                    the network of PyTorch's MNIST example, (B, 1, 28, 28) -> (B, 10); dropout
 *                            0.25 and 0.5, or what "cnn:dropout=" says for both; "cnn:norm=batch" or
 *                            "norm=sync": a batch norm behind each convolution
 *   "resnet18"               ResNet-18 for images up to 32 x 32: 3 x 3 first layer, no max pooling.
 *                            "resnet18:channels=3,side=32,classes=10,width=64" are its defaults; with
 *                            channels=1 side is 28. Smaller images count as centred on a black one.
 *                            norm=batch (the default): batch norm takes the statistics of each shard;
 *                            norm=sync: of the whole batch of all ranks (PyTorch's SyncBatchNorm), which
 *                            a ddp allows with one shard a rank
 *   "gpt:layers=,heads=,width=,context=,vocab="   GPT-2's architecture, tied embedding; optional dropout=
 *                            of the embedding and at the end of each residual branch; there is none on
 *                            the attention probabilities
 *   "gpt2-124m"              layers 12, heads 12, width 768, context 1024, vocab 50257
 * A bad spec is LS_ERR_ARGUMENT and the text names the part. `default_vocab` is taken where a gpt spec
 * has no vocab; 0 means the spec must give it. */
typedef struct ls_model_options {
    ls_device *device; /* required */
    uint64_t seed;
    size_t default_vocab;
} ls_model_options;
LS_API ls_status ls_model_create(ls_model **model, const char *spec,
                                 const ls_model_options *options);
LS_API void ls_model_destroy(ls_model *model);

/* Inputs: images f32 (B, C, H, W) or tokens I32 (B, T). Returns logits (B, classes) or (B, T, vocab). */
LS_API ls_tensor *ls_model_forward(ls_step *step, ls_model *model, ls_tensor *input);

/* The loss of the model's output, ls_cross_entropy with `targets` (B) or (B, T); of a token model without
 * logits of the whole batch in memory. *correct (may be NULL) as from ls_count_correct. */
LS_API ls_tensor *ls_model_loss(ls_step *step, ls_model *model, ls_tensor *input,
                                ls_tensor *targets, size_t *correct);

/* The spec with everything filled in, e.g. "gpt:layers=4,heads=4,width=128,context=64,vocab=65". */
LS_API const char *ls_model_spec(const ls_model *model);
/* Parameters in the order of their registration, statistics included. */
LS_API size_t ls_model_parameter_count(const ls_model *model);
LS_API ls_parameter *ls_model_parameter(ls_model *model, size_t i);
/* Elements of all weights, statistics not included. */
LS_API size_t ls_model_element_count(const ls_model *model);
/* For token models: the context length; 0 for others. */
LS_API size_t ls_model_context(const ls_model *model);
/* Vocabulary or number of classes: the last dimension of the output. */
LS_API size_t ls_model_classes(const ls_model *model);
/* Elements one image sample must have, e.g. 784; 0 for token models. */
LS_API size_t ls_model_input_elements(const ls_model *model);
/* Freezes or unfreezes, between steps, the weight `part` ("fc1.weight"), all below it ("fc1", "h.0"), or all
 * ("" ). A frozen weight has no gradient and does not change; its optimizer state waits for it. Statistics
 * of batch norms are no weights. LS_ERR_ARGUMENT where nothing has that name, LS_ERR_STATE where a ddp
 * trains the model: there ls_ddp_set_trainable is the call. */
LS_API ls_status ls_model_set_trainable(ls_model *model, const char *part, bool trainable);
/* xxh64 over name, shape and bytes of all parameters in name order (docs/determinism.md). */
LS_API uint64_t ls_model_hash(const ls_model *model);

/* Runs the tape backwards from the scalar `loss`. Gradients of parameters are written to their storage:
 * the first contribution overwrites, later ones add. `ready` (may be NULL) is called once for each
 * weight or statistic the forward used, when its last contribution is in. LS_ERR_STATE when not in
 * training mode or called twice. */
typedef ls_status (*ls_gradient_ready_fn)(void *context, ls_parameter *parameter);
LS_API ls_status ls_backward(ls_step *step, ls_tensor *loss, ls_gradient_ready_fn ready,
                             void *context);

#ifdef __cplusplus
}
#endif
#endif
