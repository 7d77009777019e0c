/* What the machine offers: the rate of a large matrix product. */
#include "base/clock.h"
#include "base/error.h"
#include "cli/bench.h"
#include "device/device.h"
#include <lockstep/random.h>

enum { SIDE = 1024, REPEATS = 6 };

static ls_status measure(ls_device *device, float *memory, double *gflops) {
    const size_t elements = (size_t)SIDE * SIDE;
    float *a = memory, *b = a + elements, *c = b + elements;
    for (size_t i = 0; i < 2 * elements; i += 4)
        ls_random_uniform4(1, 0, i, memory + i);
    *gflops = 0;
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin = ls__now_ns();
        LS_TRY(device->table->gemm(device, LS_F32, false, false, SIDE, SIDE, SIDE, 1, a, SIDE, b,
                                   SIDE, 0, c, SIDE));
        double rate = 2.0 * SIDE * SIDE * SIDE / (double)(ls__now_ns() - begin);
        if (rate > *gflops)
            *gflops = rate;
    }
    return LS_OK;
}

ls_status ls__bench_peak(ls_device *device, double *gflops) {
    void *memory;
    LS_TRY(device->table->alloc(device, 3 * sizeof(float) * SIDE * SIDE, &memory));
    ls_status status = measure(device, memory, gflops);
    device->table->free(device, memory);
    return status;
}
