/* The layers models are made of: one file each. Create functions hang the layer into `parent`. */
#ifndef LS_NN_LAYERS_H
#define LS_NN_LAYERS_H

#include "nn/module.h"
#include <lockstep/ops.h>

/* weight (out, in) as PyTorch, or (in, out) as GPT-2's files; bias (out) */
typedef struct ls__linear_options {
    size_t in, out;
    bool in_out;     /* weight is (in, out) */
    bool bias_later; /* forward leaves the bias to what comes next */
    ls__init weight, bias;
} ls__linear_options;
ls_status ls__linear_create(ls__module **module, ls__module *parent, const char *name,
                            const ls__builder *builder, const ls__linear_options *options);
/* PyTorch's default start for `fan_in` inputs: uniform within 1/sqrt(fan_in). */
ls__init ls__init_fan_in(size_t fan_in);

/* weight (out, in, kernel, kernel), bias (out) unless no_bias; PyTorch's default start */
typedef struct ls__conv2d_layer_options {
    size_t in, out, kernel;
    ls_conv2d_options geometry;
    bool no_bias;
    ls__init init; /* of weight, where its scale is not 0 */
} ls__conv2d_layer_options;
ls_status ls__conv2d_create(ls__module **module, ls__module *parent, const char *name,
                            const ls__builder *builder, const ls__conv2d_layer_options *options);

/* weight, bias, and the statistics running_mean, running_var: all (channels). relu: follows. */
ls_status ls__batch_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t channels, bool relu);
/* What the next forward adds before its relu, which the layer must have. */
void ls__batch_norm_add(ls__module *module, ls_tensor *residual);

/* weight and bias (width); epsilon 1e-5 */
ls_status ls__layer_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t width);

/* What the next forward adds to its input before it takes the norm: branch + bias, which is (width) or
 * NULL. `sum` is what that forward left: the input with the branch. */
void ls__layer_norm_add(ls__module *module, ls_tensor *branch, ls_tensor *bias);
ls_tensor *ls__layer_norm_sum(const ls__module *module);

/* weight (rows, width) */
ls_status ls__embedding_create(ls__module **module, ls__module *parent, const char *name,
                               const ls__builder *builder, size_t rows, size_t width,
                               ls__init init);

/* No parameters; the purpose of its random numbers is its name. Probability 0 does nothing. */
ls_status ls__dropout_create(ls__module **module, ls__module *parent, const char *name,
                             double probability);

#endif
