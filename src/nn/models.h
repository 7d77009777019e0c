/* The models, one file each: they build a tree of modules under a root, whose forward is the
 * model's. The root's forward may rely on what ls_model_forward has checked. */
#ifndef LS_NN_MODELS_H
#define LS_NN_MODELS_H

#include "nn/layers.h"
#include "nn/spec.h"

/* *root is set as soon as there is one, also when building fails later: the caller destroys it. */
ls_status ls__mlp_create(ls__module **root, const ls__builder *builder, const ls__spec *spec);
ls_status ls__cnn_create(ls__module **root, const ls__builder *builder, const ls__spec *spec);
ls_status ls__gpt_create(ls__module **root, const ls__builder *builder, const ls__spec *spec);

ls_status ls__resnet_create(ls__module **root, const ls__builder *builder, const ls__spec *spec);

/* Cross-entropy of the gpt's logits, which are not formed as a whole; see ls_model_loss. */
ls_tensor *ls__gpt_loss(ls_step *step, ls__module *root, ls_tensor *tokens, ls_tensor *targets,
                        size_t *correct);

enum { LS__CNN_SIDE = 28, LS__CNN_CLASSES = 10 };
enum { LS__RESNET_SIDE = 32, LS__RESNET_BLOCKS = 8 };

#endif
