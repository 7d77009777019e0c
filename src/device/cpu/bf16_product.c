/* Products of bf16 factors with sums in f32, by oneDNN.
 *
 * One core of a Zen 4 EPYC, GFLOP/s, where f32 makes 113 at best; rows 256 to 2048, k and n 384 to 3072:
 *   matmul with packed weights 205 to 230, plain weights 182 to 210, inner product 190 to 230;
 *   gradient of weights: inner product in plain layouts 196 to 225, in its own 157 to 214, matmul with a
 *   transposed first factor 160 to 222.
 * So forward and gradients of x are matmuls with packed weights, gradients of weights inner products
 * in plain layout, which write f32 where it belongs. */
#include "device/cpu/cpu.h"
#include "device/cpu/info.h"
#include "device/cpu/onednn.h"

const char *ls__cpu_lacks(const ls_device *device, ls_dtype dtype) {
    if (dtype == LS_F32)
        return NULL;
    if (dtype != LS_BF16)
        return "an implementation";
    if (((const ls__cpu *)device)->level < LS__CPU_AVX512)
        return "AVX-512, which LOCKSTEP_CPU or the processor does not allow";
    return ls__cpu_missing_for_bf16();
}

typedef struct layouts {
    ls__dnnl_layout a, b, bias, c;
} layouts;

static void free_layouts(layouts *l) {
    ls__dnnl_layout_free(&l->a);
    ls__dnnl_layout_free(&l->b);
    ls__dnnl_layout_free(&l->bias);
    ls__dnnl_layout_free(&l->c);
}

static bool adds(const ls__plan_key *key) {
    return key->kind == LS__PLAN_PRODUCT_ADD_BF16 || key->kind == LS__PLAN_OUTER_ADD_BF16;
}

static bool is_outer(const ls__plan_key *key) {
    return key->kind == LS__PLAN_OUTER_BF16 || key->kind == LS__PLAN_OUTER_ADD_BF16;
}

/* product: a (rows, in), b packed (in, out), c (rows, out).
 * outer: c (in, out); added, it is a matmul of a^T (in, rows) and b (rows, out); else an inner product's
 * gradient of weights with dy = a (rows, in), x = b (rows, out). */
static dnnl_status_t init_layouts(layouts *l, const ls__plan_key *key) {
    const dnnl_dim_t rows = (dnnl_dim_t)key->rows, in = (dnnl_dim_t)key->in,
                     out = (dnnl_dim_t)key->out;
    const dnnl_dims_t rows_in = {rows, in}, rows_out = {rows, out}, in_out = {in, out},
                      in_rows = {in, rows}, bias = {1, out};
    bool outer = is_outer(key), added = adds(key);
    dnnl_status_t result = outer && added
                               ? ls__dnnl_layout_of(&l->a, dnnl_bf16, 2, in_rows, dnnl_ba)
                               : ls__dnnl_layout_of(&l->a, dnnl_bf16, 2, rows_in, dnnl_ab);
    if (result == dnnl_success)
        result = outer ? ls__dnnl_layout_of(&l->b, dnnl_bf16, 2, rows_out, dnnl_ab)
                       : ls__dnnl_layout_of(&l->b, dnnl_bf16, 2, in_out, dnnl_BA16a64b2a);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->bias, 2, bias, dnnl_ab);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->c, 2, outer ? in_out : rows_out, dnnl_ab);
    return result;
}

static ls_status describe(ls_device *device, const ls__plan_key *key, const layouts *l,
                          dnnl_primitive_desc_t *description) {
    dnnl_engine_t engine = ls__onednn_engine(device);
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    ls_status status;
    LS_TRY_OUT(ls__plan_attributes(&attributes));
    if (adds(key)) {
        dnnl_status_t result = dnnl_post_ops_create(&after);
        if (result == dnnl_success)
            result = ls__dnnl_append_sum(after);
        if (result == dnnl_success)
            result = dnnl_primitive_attr_set_post_ops(attributes, after);
        LS_TRY_OUT(ls__onednn_check(result, "bf16 product"));
    }
    LS_TRY_OUT(ls__onednn_check(
        key->kind == LS__PLAN_OUTER_BF16
            ? ls__dnnl_inner_product_weights(description, engine, &l->b, &l->c, &l->a, attributes)
            : ls__dnnl_matmul(description, engine, &l->a, &l->b, key->flags ? &l->bias : NULL,
                              &l->c, attributes),
        "bf16 product"));
out:
    if (after)
        dnnl_post_ops_destroy(after);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}

static ls_status build(ls_device *device, ls__plan *plan, const void *context) {
    (void)context;
    layouts l = {0};
    dnnl_primitive_desc_t description = NULL;
    bool gradient = plan->key.kind == LS__PLAN_OUTER_BF16;
    ls_status status;
    LS_TRY_OUT(ls__onednn_check(init_layouts(&l, &plan->key), "bf16 product"));
    LS_TRY_OUT(describe(device, &plan->key, &l, &description));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, description));
    ls__dnnl_layout_ref a = ls__dnnl_layout_get(&l.a), b = ls__dnnl_layout_get(&l.b),
                        c = ls__dnnl_layout_get(&l.c), bias = ls__dnnl_layout_get(&l.bias);
    LS_TRY_OUT(ls__plan_add(device, plan, gradient ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC,
                            LS__PLAN_READ, a, a));
    LS_TRY_OUT(ls__plan_add(device, plan, gradient ? DNNL_ARG_SRC : DNNL_ARG_WEIGHTS, LS__PLAN_READ,
                            b, b));
    LS_TRY_OUT(ls__plan_add(device, plan, gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_DST,
                            LS__PLAN_WRITE, c, c));
    if (plan->key.flags)
        LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_BIAS, LS__PLAN_READ, bias, bias));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    free_layouts(&l);
    return status;
}

static ls_status run(ls_device *device, const ls__plan_key *key, const void *a, const void *b,
                     float *c, const float *bias) {
    return ls__plan_do(device, key, build, NULL, (void *[]){(void *)a, (void *)b, c, (void *)bias},
                       "bf16 product");
}

static ls_status require(const ls_device *device, ls_dtype dtype, const char *kernel) {
    const char *lacks = dtype == LS_BF16 ? ls__cpu_lacks(device, dtype) : "BF16 factors";
    return lacks ? ls__fail(LS_ERR_UNSUPPORTED, "%s in %s: needs %s", kernel, ls_dtype_name(dtype),
                            lacks)
                 : LS_OK;
}

ls_status ls__cpu_product(ls_device *device, const ls__packing *packing, size_t rows, const void *a,
                          const void *packed, const float *bias, float *c, bool accumulate) {
    LS_TRY(require(device, packing->dtype, "product"));
    const ls__plan_key key = {
        .kind = accumulate ? LS__PLAN_PRODUCT_ADD_BF16 : LS__PLAN_PRODUCT_BF16,
        .flags = bias != NULL,
        .rows = rows,
        .in = packing->k,
        .out = packing->n,
    };
    return run(device, &key, a, packed, c, bias);
}

ls_status ls__cpu_outer_product(ls_device *device, ls_dtype dtype, size_t rows, size_t m, size_t n,
                                const void *a, const void *b, float *c, bool accumulate) {
    LS_TRY(require(device, dtype, "outer product"));
    const ls__plan_key key = {
        .kind = accumulate ? LS__PLAN_OUTER_ADD_BF16 : LS__PLAN_OUTER_BF16,
        .rows = rows,
        .in = m,
        .out = n,
    };
    return run(device, &key, a, b, c, NULL);
}
