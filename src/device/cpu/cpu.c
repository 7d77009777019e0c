/* The CPU's table, its memory and its threads. */
#include "device/cpu/cpu.h"
#include "device/cpu/info.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/cpu/onednn.h"

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20, MAX_THREADS = 4096 };

static ls__cpu *cpu_of(ls_device *device) {
    return (ls__cpu *)device;
}

void ls__cpu_parallel(ls_device *device, size_t count, size_t cost, ls__cpu_body *const kernel[],
                      const void *arguments) {
    ls__cpu_body *body = kernel[cpu_of(device)->level];
    size_t most = cost >= LS__CPU_GRAIN ? count : (count * cost) / LS__CPU_GRAIN;
    size_t parts = ls__min_size(ls__min_size((size_t)device->threads, count), most);
    if (parts <= 1) {
        if (count > 0)
            body(arguments, 0, count);
        return;
    }
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (size_t part = 0; part < parts; part++)
        body(arguments, count / parts * part + ls__min_size(part, count % parts),
             count / parts * (part + 1) + ls__min_size(part + 1, count % parts));
}

/* Large blocks begin at a huge page and ask for such pages, all but what would only partly fill one:
 * 512 times fewer faults when they are first written, and fewer misses of the translation cache where
 * a matrix product walks along columns. A request that the system may decline. */
static void *alloc_large(size_t bytes) {
    void *memory; /* not aligned_alloc: it wants `bytes` to be a multiple, too */
    if (posix_memalign(&memory, HUGE_PAGE, bytes))
        return NULL;
    madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return memory;
}

static ls_status cpu_alloc(ls_device *device, size_t bytes, void **memory) {
    (void)device;
    if (bytes > SIZE_MAX >> 8) /* no processor addresses 56 bits of one program */
        return ls__fail(LS_ERR_MEMORY, "cpu: %zu bytes are more than can be addressed", bytes);
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *memory = rounded >= HUGE_PAGE ? alloc_large(rounded)
                                   : aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT);
    if (!*memory)
        return ls__fail(LS_ERR_MEMORY, "cpu: no memory for %zu bytes", bytes);
    return LS_OK;
}

static void cpu_free(ls_device *device, void *memory) {
    (void)device;
    free(memory);
}

ls_status ls__cpu_scratch(ls_device *device, size_t bytes, void **memory) {
    ls__cpu *cpu = cpu_of(device);
    if (bytes > cpu->scratch_bytes) {
        void *larger;
        LS_TRY(cpu_alloc(device, bytes, &larger));
        free(cpu->scratch);
        cpu->scratch = larger;
        cpu->scratch_bytes = bytes;
    }
    *memory = cpu->scratch;
    return LS_OK;
}

ls_status ls__cpu_require_f32(ls_dtype dtype, const char *kernel) {
    if (dtype == LS_F32)
        return LS_OK;
    return ls__fail(LS_ERR_UNSUPPORTED, "%s: the cpu device computes in F32, not in %s", kernel,
                    ls_dtype_name(dtype));
}

struct bytes_arguments {
    char *to;
    const char *from; /* NULL: zeros */
    size_t bytes;
};

/* Items are cache lines, so that two threads never write the same one. */
LS_KERNEL(bytes_body) {
    const struct bytes_arguments *a = arguments;
    size_t first = begin * ALIGNMENT, last = ls__min_size(end * ALIGNMENT, a->bytes);
    if (a->from)
        memcpy(a->to + first, a->from + first, last - first);
    else
        memset(a->to + first, 0, last - first);
}

static ls_status cpu_zero(ls_device *device, void *memory, size_t bytes) {
    struct bytes_arguments a = {.to = memory, .bytes = bytes};
    ls__cpu_parallel(device, bytes / ALIGNMENT + (bytes % ALIGNMENT != 0), 8, bytes_body, &a);
    return LS_OK;
}

static ls_status cpu_copy(ls_device *device, void *to, const void *from, size_t bytes) {
    struct bytes_arguments a = {.to = to, .from = from, .bytes = bytes};
    ls__cpu_parallel(device, bytes / ALIGNMENT + (bytes % ALIGNMENT != 0), 8, bytes_body, &a);
    return LS_OK;
}

static void cpu_destroy(ls_device *device) {
    ls__cpu *cpu = cpu_of(device);
    ls__attention_plans_destroy(cpu->attention);
    ls__onednn_destroy(cpu->onednn);
    free(cpu->scratch);
    free(cpu);
}

static void describe(const ls_device *device, char *text, size_t bytes) {
    char version[64];
    ls__cpu_library_version(version, sizeof version);
    /* Of the own kernels only those for AVX-512 alone (linear_dot.c) have bits that the others do not. */
    snprintf(text, bytes, "oneDNN %s on %s%s, %d thread%s", version, ls__cpu_library_isa(),
             cpu_of((ls_device *)device)->level == LS__CPU_AVX512 ? ", own kernels on AVX-512" : "",
             device->threads, device->threads == 1 ? "" : "s");
}

static const ls__device_table CPU_TABLE = {
    .name = "cpu",
    .describe = describe,
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .gemm = ls__cpu_gemm,
    .linear = ls__cpu_linear,
    .lacks = ls__cpu_lacks,
    .packed_bytes = ls__cpu_packed_bytes,
    .pack = ls__cpu_pack,
    .product = ls__cpu_product,
    .outer_product = ls__cpu_outer_product,
    .narrow = ls__cpu_narrow,
    .conv2d_forward = ls__cpu_conv2d_forward,
    .conv2d_backward = ls__cpu_conv2d_backward,
    .pool2d_forward = ls__cpu_pool2d_forward,
    .pool2d_backward = ls__cpu_pool2d_backward,
    .layer_norm_forward = ls__cpu_layer_norm_forward,
    .layer_norm_backward = ls__cpu_layer_norm_backward,
    .residual_sum = ls__cpu_residual_sum,
    .residual_norm_forward = ls__cpu_residual_norm_forward,
    .batch_norm_forward = ls__cpu_batch_norm_forward,
    .batch_norm_backward = ls__cpu_batch_norm_backward,
    .unary_forward = ls__cpu_unary_forward,
    .unary_backward = ls__cpu_unary_backward,
    .bias_gelu_forward = ls__cpu_bias_gelu_forward,
    .bias_gelu_backward = ls__cpu_bias_gelu_backward,
    .binary_forward = ls__cpu_binary_forward,
    .binary_backward = ls__cpu_binary_backward,
    .affine = ls__cpu_affine,
    .dropout = ls__cpu_dropout,
    .softmax_forward = ls__cpu_softmax_forward,
    .softmax_backward = ls__cpu_softmax_backward,
    .sum = ls__cpu_sum,
    .repeat = ls__cpu_repeat,
    .max = ls__cpu_max,
    .max_backward = ls__cpu_max_backward,
    .permute = ls__cpu_permute,
    .copy_rows = ls__cpu_copy_rows,
    .embedding_forward = ls__cpu_embedding_forward,
    .embedding_backward = ls__cpu_embedding_backward,
    .attention_saved_bytes = ls__cpu_attention_saved_bytes,
    .attention_forward = ls__cpu_attention_forward,
    .attention_backward = ls__cpu_attention_backward,
    .cross_entropy_forward = ls__cpu_cross_entropy_forward,
    .cross_entropy_backward = ls__cpu_cross_entropy_backward,
    .class_block = ls__cpu_class_block,
    .class_blocks_end = ls__cpu_class_blocks_end,
    .class_block_backward = ls__cpu_class_block_backward,
    .class_powers = ls__cpu_class_powers,
    .class_powers_backward = ls__cpu_class_powers_backward,
    .squared_error = ls__cpu_squared_error,
    .count_correct = ls__cpu_count_correct,
    .sgd = ls__cpu_sgd,
    .adam = ls__cpu_adam,
    .squares = ls__cpu_squares,
};

ls_status ls_device_cpu(ls_device **device, int threads) {
    if (!device)
        return ls__fail(LS_ERR_ARGUMENT, "ls_device_cpu: device is NULL");
    *device = NULL;
    if (threads < 0 || threads > MAX_THREADS)
        return ls__fail(LS_ERR_ARGUMENT, "ls_device_cpu: %d threads, want 0 (one) to %d", threads,
                        MAX_THREADS);
    ls__cpu_level level;
    LS_TRY(ls__cpu_level_choose(getenv("LOCKSTEP_CPU"), &level));
    ls__cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return ls__fail(LS_ERR_MEMORY, "ls_device_cpu: no memory for the device");
    cpu->base.table = &CPU_TABLE;
    cpu->base.threads = threads ? threads : 1;
    cpu->level = level;
    ls_status status = ls__onednn_create(&cpu->onednn);
    if (status != LS_OK) {
        free(cpu);
        return status;
    }
    *device = &cpu->base;
    return LS_OK;
}
