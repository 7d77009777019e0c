/* Modules: named pieces of a model with their parameters and the pieces they are made of.
 *
 * A layer or model is a file with a struct that begins with ls__module, a forward and a create
 * function. A new module hangs in its parent at once, so whatever fails during building, destroying
 * the root frees all there is. Every forward of every module passes through ls__module_forward:
 * what has to happen before or after a module runs has its place there. */
#ifndef LS_NN_MODULE_H
#define LS_NN_MODULE_H

#include "nn/parameter.h"
#include "nn/sync.h"

enum { LS__MODULE_PARAMETERS = 4 };

typedef struct ls__module ls__module;
typedef ls_tensor *(*ls__forward_fn)(ls_step *step, ls__module *module, ls_tensor *input);
struct ls__module {
    char *name; /* dotted path, "h.0.attn"; "" for the root */
    ls__forward_fn forward;
    ls_parameter *parameters[LS__MODULE_PARAMETERS]; /* its own, not those of its children */
    size_t parameter_count;
    ls__module **children;
    size_t child_count;
};

/* What building needs to know. */
typedef struct ls__builder {
    ls_device *device;
    uint64_t seed;
    ls__sync *sync; /* batch norms take the statistics of the whole batch; NULL: of the shard */
} ls__builder;

/* A module of `bytes` (its file's struct), zeroed, named `name` under the parent's path; parent
 * NULL makes a root. */
ls_status ls__module_create(ls__module **module, ls__module *parent, const char *name, size_t bytes,
                            ls__forward_fn forward);
void ls__module_destroy(ls__module *module); /* with parameters and children; NULL is allowed */

/* Adds the parameter "<path>.<name>". */
ls_status ls__module_add(ls__module *module, const ls__builder *builder, const char *name,
                         ls_role role, const size_t *shape, size_t dims, ls__init init);

ls_tensor *ls__module_forward(ls_step *step, ls__module *module, ls_tensor *input);

/* Appends the parameters of the tree in order of creation (a module's own, then its children's);
 * `list` may be NULL to count. Returns the new count. */
size_t ls__module_collect(const ls__module *module, ls_parameter **list, size_t count);

#endif
