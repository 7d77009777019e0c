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

/* How much of k one sgemm should take. It packs columns of a matrix; where the rows lie half a page or a page apart they
 * fall into few sets of the caches and push each other out before the packing has used what it got. One core of an
 * Intel Xeon, GFLOP/s whole and in such parts: 384 x 1536 from 2048 rows 139 and 159, 1536 x 384 129 and 160; 1024 x 1024
 * with 32 rows 115 and 133, with 64 119 and 165, with 96 114 and 150. With less than 16 rows or more than 128 parts lose. */
enum { HALF_PAGE = 2048 / sizeof(float), PAGE = 2 * HALF_PAGE };

static size_t part_of_k(bool ta, bool tb, size_t m, size_t k, size_t lda, size_t ldb) {
    if (ta && !tb && k >= 2048 && (lda % HALF_PAGE == 0 || ldb % HALF_PAGE == 0))
        return 256;
    if (!ta && !tb && m >= 16 && m <= 128 && ldb % PAGE == 0)
        return 128;
    return k;
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
    dnnl_status_t result = dnnl_success;
    const size_t part = part_of_k(ta, tb, m, k, lda, ldb);
    for (size_t i = 0; i < k && result == dnnl_success; i += part) {
        const float *of_a = (const float *)a + (ta ? i * lda : i);
        const float *of_b = (const float *)b + (tb ? i : i * ldb);
        result = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n,
                            (dnnl_dim_t)ls__min_size(part, k - i), alpha, of_a, (dnnl_dim_t)lda,
                            of_b, (dnnl_dim_t)ldb, i == 0 ? beta : 1, c, (dnnl_dim_t)ldc);
    }
    ls__onednn_leave(device, before);
    return ls__onednn_check(result, "gemm");
}
