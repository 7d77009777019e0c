#include "nn/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "parent.name", or just "name" below the root; NULL when out of memory. */
static char *join(const char *parent, const char *name) {
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", parent, *parent ? "." : "", name) < 0)
        return NULL;
    return path;
}

static ls_status adopt(ls__module *parent, ls__module *child) {
    ls__module **children =
        reallocarray(parent->children, parent->child_count + 1, sizeof(ls__module *));
    if (!children)
        return ls__fail(LS_ERR_MEMORY, "module %s: out of memory", child->name);
    parent->children = children;
    children[parent->child_count++] = child;
    return LS_OK;
}

ls_status ls__module_create(ls__module **module, ls__module *parent, const char *name, size_t bytes,
                            ls__forward_fn forward) {
    ls__module *m = calloc(1, bytes);
    if (!m || !(m->name = join(parent ? parent->name : "", name))) {
        free(m);
        return ls__fail(LS_ERR_MEMORY, "module %s: out of memory", name);
    }
    m->forward = forward;
    if (parent) {
        ls_status status = adopt(parent, m);
        if (status != LS_OK) {
            ls__module_destroy(m);
            return status;
        }
    }
    *module = m;
    return LS_OK;
}

void ls__module_destroy(ls__module *module) {
    if (!module)
        return;
    for (size_t i = 0; i < module->child_count; i++)
        ls__module_destroy(module->children[i]);
    for (size_t i = 0; i < module->parameter_count; i++)
        ls__parameter_destroy(module->parameters[i]);
    free(module->children);
    free(module->name);
    free(module);
}

ls_status ls__module_add(ls__module *module, const ls__builder *builder, const char *name,
                         ls_role role, const size_t *shape, size_t dims, ls__init init) {
    if (module->parameter_count == LS__MODULE_PARAMETERS)
        return ls__fail(LS_ERR_STATE, "module %s has %d parameters already: no room for %s",
                        module->name, LS__MODULE_PARAMETERS, name);
    char *path = join(module->name, name);
    if (!path)
        return ls__fail(LS_ERR_MEMORY, "module %s: out of memory", module->name);
    ls_status status =
        ls__parameter_create(&module->parameters[module->parameter_count], builder->device, path,
                             role, shape, dims, builder->seed, init);
    free(path);
    if (status == LS_OK)
        module->parameter_count++;
    return status;
}

ls_tensor *ls__module_forward(ls_step *step, ls__module *module, ls_tensor *input) {
    return module->forward(step, module, input);
}

size_t ls__module_collect(const ls__module *module, ls_parameter **list, size_t count) {
    for (size_t i = 0; i < module->parameter_count; i++, count++)
        if (list)
            list[count] = module->parameters[i];
    for (size_t i = 0; i < module->child_count; i++)
        count = ls__module_collect(module->children[i], list, count);
    return count;
}
