/* What the machine offers: the rate of a large matrix product. */
#include "base/clock.h"
#include "base/error.h"
#include "cli/bench.h"
#include "cli/bench_common.h"
#include "device/device.h"
#include <lockstep/random.h>

enum { SIDE = 1024, REPEATS = 5 };

static const ls__packing PACKING = {.dtype = LS_BF16, .k = SIDE, .n = SIDE};

/* Each SIDE x SIDE */
typedef struct matrices {
    void *a, *b, *c;       /* f32 */
    void *narrow, *packed; /* a and b as bf16 products want them; NULL: f32 */
} matrices;

static ls_status create(ls_device *device, ls_dtype dtype, matrices *m) {
    const ls__device_table *table = device->table;
    const size_t elements = (size_t)SIDE * SIDE;
    void **f32[] = {&m->a, &m->b, &m->c};
    for (size_t i = 0; i < 3; i++)
        LS_TRY(table->alloc(device, elements * sizeof(float), f32[i]));
    for (size_t i = 0; i < elements; i += 4) {
        ls_random_uniform4(1, 0, i, (float *)m->a + i);
        ls_random_uniform4(1, 1, i, (float *)m->b + i);
    }
    if (dtype == LS_F32)
        return LS_OK;
    LS_TRY(table->alloc(device, elements * sizeof(uint16_t), &m->narrow));
    LS_TRY(table->alloc(device, table->packed_bytes(device, &PACKING), &m->packed));
    LS_TRY(table->narrow(device, dtype, SIDE, SIDE, m->a, m->narrow, NULL, false));
    return table->pack(device, &PACKING, m->b, m->packed);
}

static ls_status multiply(ls_device *device, const matrices *m) {
    if (m->packed)
        return device->table->product(device, &PACKING, SIDE, m->narrow, m->packed, NULL, m->c,
                                      false);
    return device->table->gemm(device, LS_F32, false, false, SIDE, SIDE, SIDE, 1, m->a, SIDE, m->b,
                               SIDE, 0, m->c, SIDE);
}

static ls_status measure(ls_device *device, const matrices *m, double *gflops) {
    double rates[REPEATS];
    LS_TRY(multiply(device, m)); /* memory that nobody has touched, code that is not there yet */
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin = ls__now_ns();
        LS_TRY(multiply(device, m));
        rates[i] = 2.0 * SIDE * SIDE * SIDE / (double)(ls__now_ns() - begin);
    }
    ls__bench_sort(rates, REPEATS);
    *gflops = ls__bench_median(rates, REPEATS);
    return LS_OK;
}

ls_status ls__bench_peak(ls_device *device, ls_dtype dtype, double *gflops) {
    matrices m = {0};
    ls_status status = create(device, dtype, &m);
    if (status == LS_OK)
        status = measure(device, &m, gflops);
    void *all[] = {m.a, m.b, m.c, m.narrow, m.packed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            device->table->free(device, all[i]);
    return status;
}
