/* Instruction sets that the own kernels are compiled for, and which of them is used. */
#ifndef LS_BASE_LEVEL_H
#define LS_BASE_LEVEL_H

#include "base/error.h"
#include <stddef.h>

typedef enum ls__cpu_level {
    LS__CPU_BASELINE, /* any x86-64; on other processors the only one: generic C */
    LS__CPU_AVX2,
    LS__CPU_AVX512, /* F, BW, CD, DQ, VL */
} ls__cpu_level;
enum { LS__CPU_LEVELS = 3 };

/* One part [begin, end) of a kernel's items. */
typedef void ls__cpu_body(const void *arguments, size_t begin, size_t end);

/* So that code of a kernel that is shared between kernels is compiled as part of each. */
#define LS_INLINE static inline __attribute__((always_inline))

/* Defines a kernel: an array of the same body compiled once a level, which ls__cpu_parallel takes.
 *
 *     LS_KERNEL(scale_body) {
 *         const struct scale_arguments *g = arguments;
 *         for (size_t i = begin; i < end; i++) ...
 *     }
 *
 * What the body calls must be LS_INLINE to be compiled for its level. Bits of a kernel do not
 * differ between levels: without contraction to FMA each element is computed by the same IEEE operations, and sums
 * have their partial sums written out (vector.h). */
#if defined(__x86_64__)
#define LS__TARGET_AVX2 __attribute__((target("avx2")))
#define LS__TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))
#else
#define LS__TARGET_AVX2
#define LS__TARGET_AVX512
#endif
#define LS_KERNEL(name)                                                                            \
    LS_INLINE void name##_code(const void *arguments, size_t begin, size_t end);                   \
    static void name##_baseline(const void *arguments, size_t begin, size_t end) {                 \
        name##_code(arguments, begin, end);                                                        \
    }                                                                                              \
    LS__TARGET_AVX2 static void name##_avx2(const void *arguments, size_t begin, size_t end) {     \
        name##_code(arguments, begin, end);                                                        \
    }                                                                                              \
    LS__TARGET_AVX512 static void name##_avx512(const void *arguments, size_t begin, size_t end) { \
        name##_code(arguments, begin, end);                                                        \
    }                                                                                              \
    static ls__cpu_body *const name[LS__CPU_LEVELS] = {name##_baseline, name##_avx2,               \
                                                       name##_avx512};                             \
    LS_INLINE void name##_code(const void *arguments, size_t begin, size_t end)

/* "baseline", "avx2", "avx512" */
LS_SHARED const char *ls__cpu_level_name(ls__cpu_level level);

/* The highest this processor has. */
LS_SHARED ls__cpu_level ls__cpu_level_best(void);

/* What `wanted` (LOCKSTEP_CPU) asks for; NULL or empty: the best. LS_ERR_ARGUMENT names variable and
 * value when it is unknown or more than the processor has. */
LS_SHARED ls_status ls__cpu_level_choose(const char *wanted, ls__cpu_level *level);

#endif
