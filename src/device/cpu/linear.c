/* y = x W + b for a layer's weights, which are either (in, out) or (out, in).
 *
 * With AVX2, oneDNN's 1x1 convolution over (1, in, rows, 1) in channels-last layout is the same
 * product. It wants the weights in blocks of 8 x 8, which one reorder a call gives it, but takes x
 * and y as they lie, adds the bias on the way, and needs no packing of x. Measured on one core of
 * an EPYC 7003, reorder included, in GFLOP/s against sgemm: 256 rows, 768 -> 3072: 74 against 44;
 * 64 rows, 1024 -> 1024: 61 against 43; 2048 rows, 384 -> 1152: 2 % more, and the pass for the bias
 * saved. With AVX-512 sgemm makes 95 % and more of what is possible in all cases but one, which is
 * linear_dot.c's. */

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"

/* The blocked weights stay in the scratch memory: there they must not outgrow everything else. */
enum { FEWEST_ROWS = 32, CHANNEL_BLOCK = 8, MOST_WEIGHTS = 16 << 20 };

static bool fits_convolution(size_t rows, size_t in, size_t out, bool accumulate) {
    return !accumulate && rows >= FEWEST_ROWS && in % CHANNEL_BLOCK == 0 &&
           out % CHANNEL_BLOCK == 0 && out <= MOST_WEIGHTS / in &&
           dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx2;
}

/* Layouts of the convolution: x (1, in, rows, 1), w (out, in, 1, 1), y (1, out, rows, 1). */
static dnnl_status_t init_layouts(ls__convolution_layouts *l, const ls__plan_key *key) {
    const dnnl_dim_t rows = (dnnl_dim_t)key->rows, in = (dnnl_dim_t)key->in,
                     out = (dnnl_dim_t)key->out;
    const dnnl_dims_t x = {1, in, rows, 1}, w = {out, in, 1, 1}, y = {1, out, rows, 1};
    const dnnl_dims_t in_out = {1, out, in * out, in * out}, out_in = {in, 1, in * out, in * out};
    bool out_first = key->kind == LS__PLAN_LINEAR_OUT_IN;
    dnnl_status_t result = ls__convolution_layouts_init(l, x, w, y);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_strides(&l->w, 4, w, out_first ? out_in : in_out);
    return result;
}

static ls_status build(ls_device *device, ls__plan *plan, const void *context) {
    (void)context;
    ls__convolution_layouts l = {0};
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY_OUT(ls__onednn_check(init_layouts(&l, &plan->key), "linear"));
    ls__dnnl_layout_ref x = ls__dnnl_layout_get(&l.x), w = ls__dnnl_layout_get(&l.w),
                        bias = ls__dnnl_layout_get(&l.bias), y = ls__dnnl_layout_get(&l.y);
    LS_TRY_OUT(ls__convolution_describe(device, LS__DNNL_FORWARD, &l, plan->key.flags, 1, 0, NULL,
                                        "linear", &description));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, description));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_SRC, LS__PLAN_READ, x, x));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_WEIGHTS, LS__PLAN_READ, w,
                            dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DST, LS__PLAN_WRITE, y, y));
    if (plan->key.flags)
        LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_BIAS, LS__PLAN_READ, bias, bias));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    ls__convolution_layouts_free(&l);
    return status;
}

static ls_status as_convolution(ls_device *device, size_t rows, size_t in, size_t out,
                                const void *x, const void *w, bool out_first, const void *bias,
                                void *y) {
    const ls__plan_key key = {
        .kind = out_first ? LS__PLAN_LINEAR_OUT_IN : LS__PLAN_LINEAR_IN_OUT,
        .flags = bias != NULL,
        .rows = rows,
        .in = in,
        .out = out,
    };
    return ls__plan_do(device, &key, build, NULL, (void *[]){(void *)x, (void *)w, y, (void *)bias},
                       "linear");
}

ls_status ls__cpu_linear(ls_device *device, ls_dtype dtype, size_t rows, size_t in, size_t out,
                         const void *x, const void *w, bool out_first, const void *bias, void *y,
                         bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "linear"));
    if (ls__cpu_linear_dot_fits(device, rows, in, out_first))
        return ls__cpu_linear_dot(device, rows, in, out, x, w, bias, y, accumulate);
    if (fits_convolution(rows, in, out, accumulate))
        return as_convolution(device, rows, in, out, x, w, out_first, bias, y);
    if (bias)
        LS_TRY(ls__cpu_repeat(device, dtype, 1, rows, out, 1.0F, bias, y, accumulate));
    return ls__cpu_gemm(device, dtype, false, out_first, rows, out, in, 1.0F, x, in, w,
                        out_first ? in : out, bias || accumulate ? 1.0F : 0.0F, y, out);
}
