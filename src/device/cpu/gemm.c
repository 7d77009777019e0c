/* Matrix products. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"

/* c = beta * c, where there is nothing to multiply */
static void scale_rows(size_t m, size_t n, float beta, float *c, size_t ldc) {
    for (size_t i = 0; i < m; i++) {
        if (beta == 0)
            memset(c + i * ldc, 0, n * sizeof *c);
        else
            for (size_t j = 0; j < n; j++)
                c[i * ldc + j] *= beta;
    }
}

ls_status ls__cpu_gemm(ls_device *device, ls_dtype dtype, bool ta, bool tb, size_t m, size_t n,
                       size_t k, float alpha, const void *a, size_t lda, const void *b, size_t ldb,
                       float beta, void *c, size_t ldc) {
    LS_TRY(ls__cpu_require_f32(dtype, "gemm"));
    if (m == 0 || n == 0)
        return LS_OK;
    if (k == 0) {
        scale_rows(m, n, beta, c, ldc);
        return LS_OK;
    }
    int before = ls__onednn_enter(device);
    dnnl_status_t result =
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k,
                   alpha, a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
    ls__onednn_leave(device, before);
    return ls__onednn_check(result, "gemm");
}
