/* What attention in f32 and in bf16 share: rows of probabilities and their gradients. */
#ifndef LS_DEVICE_CPU_ATTENTION_H
#define LS_DEVICE_CPU_ATTENTION_H

#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"
#include "device/cpu/vector.h"

/* Rows of queries that are worked on together. */
enum { LS__ATTENTION_BLOCK = 64 };

/* Probability = exp(score - most) * scale */
typedef struct ls__attention_row {
    float most, scale;
} ls__attention_row;

/* Softmax of rows [begin, end) over their first t + 1 entries, times `factor`; the rest, up to
 * `width`, becomes zero as exp(-inf): rows of one length, a multiple of the vector width mostly, are
 * faster than short ones. `known`: rows of forward are read, and give the same bits again; else they
 * are written, unless NULL. */
LS_INLINE void ls__attention_softmax(size_t begin, size_t end, size_t width, float factor,
                                     float *scores, ls__attention_row *rows, bool known) {
    const ls__attention_row *before = known ? rows : NULL;
    for (size_t t = begin; t < end; t++) {
        float *row = scores + (t - begin) * width;
        for (size_t j = 0; j <= t; j++)
            row[j] *= factor;
        for (size_t j = t + 1; j < width; j++)
            row[j] = -INFINITY;
        float most = before ? before[t].most : ls__largest(row, width);
        for (size_t j = 0; j < width; j++)
            row[j] = ls__exp(row[j] - most);
        float scale = before ? before[t].scale : 1.0F / ls__sum_values(row, row, 0, width);
        for (size_t j = 0; j < width; j++)
            row[j] *= scale;
        if (rows && !before)
            rows[t] = (ls__attention_row){most, scale};
    }
}

/* dp = p * (dp - sum(dp * p)) * factor for rows [begin, end). p is zero above the diagonal, so dp is
 * too. */
LS_INLINE void ls__attention_slopes(size_t begin, size_t end, size_t width, float factor,
                                    const float *probs, float *dprobs) {
    for (size_t t = begin; t < end; t++) {
        const float *p = probs + (t - begin) * width;
        float *dp = dprobs + (t - begin) * width;
        float sum = ls__sum_products(dp, p, 0, width);
        for (size_t j = 0; j < width; j++)
            dp[j] = p[j] * (dp[j] - sum) * factor;
    }
}

/* Attention with factors of products rounded to bf16; arguments as in device.h. */
ls_status ls__attention_bf16_forward(ls_device *device, const ls__attention *shape,
                                     const float *qkv, float *y, ls__attention_row *rows);
ls_status ls__attention_bf16_backward(ls_device *device, const ls__attention *shape,
                                      const float *qkv, const ls__attention_row *rows,
                                      const float *dy, float *dqkv, bool accumulate);

#endif
