#include "base/level.h"

#include "base/error.h"
#include <string.h>

static const char *const names[LS__CPU_LEVELS] = {"baseline", "avx2", "avx512"};

const char *ls__cpu_level_name(ls__cpu_level level) {
    return names[level];
}

ls__cpu_level ls__cpu_level_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return LS__CPU_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return LS__CPU_AVX2;
#endif
    return LS__CPU_BASELINE;
}

ls_status ls__cpu_level_choose(const char *wanted, ls__cpu_level *level) {
    ls__cpu_level best = ls__cpu_level_best();
    *level = best;
    if (!wanted || !*wanted)
        return LS_OK;
    for (int i = 0; i < LS__CPU_LEVELS; i++) {
        if (strcmp(wanted, names[i]) != 0)
            continue;
        if (i > (int)best)
            return ls__fail(LS_ERR_ARGUMENT,
                            "LOCKSTEP_CPU=%s: this processor has no more than %s; unset it", wanted,
                            names[best]);
        *level = (ls__cpu_level)i;
        return LS_OK;
    }
    return ls__fail(LS_ERR_ARGUMENT, "LOCKSTEP_CPU=%.60s: want baseline, avx2 or avx512", wanted);
}
