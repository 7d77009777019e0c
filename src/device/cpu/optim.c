/* Fused optimizer updates, one pass over the memory; formulas as torch.optim.SGD, Adam, AdamW. */
#include <math.h>

#include "device/cpu/cpu.h"

struct sgd_arguments {
    ls__sgd o;
    float *weight, *momentum;
    const float *gradient;
};

LS_INLINE void sgd_piece(const struct sgd_arguments *g, size_t begin, size_t end) {
    const ls__sgd o = g->o;
    float *restrict weight = g->weight, *restrict momentum = g->momentum;
    const float *restrict gradient = g->gradient;
    if (!momentum) {
        for (size_t i = begin; i < end; i++) {
            float d = gradient[i] * o.grad_scale + o.weight_decay * weight[i];
            weight[i] -= o.rate * d;
        }
        return;
    }
    if (o.first)
        for (size_t i = begin; i < end; i++)
            momentum[i] = gradient[i] * o.grad_scale + o.weight_decay * weight[i];
    else
        for (size_t i = begin; i < end; i++)
            momentum[i] = o.momentum * momentum[i] +
                          (gradient[i] * o.grad_scale + o.weight_decay * weight[i]);
    if (o.nesterov)
        for (size_t i = begin; i < end; i++) {
            float d = gradient[i] * o.grad_scale + o.weight_decay * weight[i];
            weight[i] -= o.rate * (d + o.momentum * momentum[i]);
        }
    else
        for (size_t i = begin; i < end; i++)
            weight[i] -= o.rate * momentum[i];
}

/* In pieces, so that the second loop finds the first one's data in the cache. */
LS_KERNEL(sgd_body) {
    enum { PIECE = 1024 };
    for (size_t i = begin; i < end; i += PIECE)
        sgd_piece(arguments, i, ls__min_size(i + PIECE, end));
}

ls_status ls__cpu_sgd(ls_device *device, size_t count, const ls__sgd *o, float *weight,
                      const float *gradient, float *momentum) {
    struct sgd_arguments g = {.o = *o,
                              .weight = weight,
                              .momentum = o->momentum != 0 ? momentum : NULL,
                              .gradient = gradient};
    ls__cpu_parallel(device, count, 2, sgd_body, &g);
    return LS_OK;
}

struct adam_arguments {
    ls__adam o;
    float *weight, *first, *second;
    const float *gradient;
};

LS_KERNEL(adam_body) {
    const struct adam_arguments *g = arguments;
    const ls__adam o = g->o;
    float *restrict weight = g->weight, *restrict first = g->first, *restrict second = g->second;
    const float *restrict gradient = g->gradient;
    float keep = o.decoupled ? 1.0F - o.rate * o.weight_decay : 1.0F;
    float decay = o.decoupled ? 0.0F : o.weight_decay;
    float step = o.rate / o.correction1, root = sqrtf(o.correction2);
    for (size_t i = begin; i < end; i++) {
        float w = weight[i] * keep;
        float d = gradient[i] * o.grad_scale + decay * w;
        float m = o.beta1 * first[i] + (1.0F - o.beta1) * d;
        float v = o.beta2 * second[i] + (1.0F - o.beta2) * (d * d);
        first[i] = m;
        second[i] = v;
        weight[i] = w - step * m / (sqrtf(v) / root + o.epsilon);
    }
}

ls_status ls__cpu_adam(ls_device *device, size_t count, const ls__adam *o, float *weight,
                       const float *gradient, float *first, float *second) {
    struct adam_arguments g = {
        .o = *o, .weight = weight, .first = first, .second = second, .gradient = gradient};
    ls__cpu_parallel(device, count, 4, adam_body, &g);
    return LS_OK;
}
