#include "autograd/profile.h"

#include "base/clock.h"
#include <string.h>

void ls__profile_mark(ls__profile *profile) {
    if (profile)
        profile->mark_ns = ls__now_ns();
}

static ls__profile_row *find_row(ls__profile *profile, const char *name, ls__pass pass) {
    for (size_t i = 0; i < profile->count; i++)
        if (profile->rows[i].pass == pass && strcmp(profile->rows[i].name, name) == 0)
            return &profile->rows[i];
    if (profile->count == LS__PROFILE_ROWS)
        return NULL;
    ls__profile_row *row = &profile->rows[profile->count++];
    *row = (ls__profile_row){.name = name, .pass = pass};
    return row;
}

void ls__profile_add(ls__profile *profile, const char *name, ls__pass pass, double flops,
                     double bytes) {
    if (!profile)
        return;
    uint64_t now = ls__now_ns();
    ls__profile_row *row = find_row(profile, name, pass);
    if (row) {
        row->calls++;
        row->time_ns += now - profile->mark_ns;
        row->flops += flops;
        row->bytes += bytes;
    }
    profile->mark_ns = ls__now_ns();
}

static double bytes_of(const ls_tensor *tensor) {
    return tensor ? (double)tensor->count * (double)ls_dtype_size(tensor->dtype) : 0;
}

/* Operations of the forward pass where matrix products are what it consists of; else 0. */
static double forward_flops(const ls__node *node) {
    const ls_tensor *x = node->inputs[0], *y = node->output;
    const ls_tensor *weight = node->input_count > 1 ? node->inputs[1] : NULL;
    const char *name = node->name;
    if (!x || x->dims == 0)
        return 0;
    double inner = (double)x->shape[x->dims - 1];
    if (strcmp(name, "causal_attention") == 0) /* y (B, T, C); both products, the whole square */
        return y->dims == 3 ? 4 * (double)y->count * (double)y->shape[1] : 0;
    if (!weight || weight->dims == 0)
        return 0;
    if (strcmp(name, "linear") == 0 || strcmp(name, "linear_io") == 0 ||
        strcmp(name, "matmul") == 0)
        return 2 * (double)y->count * inner;
    if (strcmp(name, "conv2d") == 0) /* weight (out, in, kh, kw) */
        return 2 * (double)y->count * (double)weight->count / (double)weight->shape[0];
    return 0;
}

/* Backward: one product for each input that wants a gradient. */
static double flops_of(const ls__node *node, ls__pass pass) {
    double forward = node->input_count ? forward_flops(node) : 0;
    if (pass == LS__PASS_FORWARD)
        return forward;
    const ls_tensor *x = node->input_count ? node->inputs[0] : NULL;
    bool to_x = x && (x->need_grad || x->parameter);
    return node->input_count > 1 && !to_x ? forward : 2 * forward;
}

void ls__profile_add_node(ls__profile *profile, const ls__node *node, ls__pass pass) {
    if (!profile)
        return;
    double bytes = bytes_of(node->output);
    if (node->input_count && node->inputs[0] && node->inputs[0]->data == node->output->data)
        bytes = 0; /* a view */
    /* forward reads the inputs; backward does, and writes their gradients */
    for (size_t i = 0; bytes > 0 && i < node->input_count; i++)
        bytes += (pass == LS__PASS_FORWARD ? 1 : 2) * bytes_of(node->inputs[i]);
    ls__profile_add(profile, node->name, pass, flops_of(node, pass), bytes);
}
