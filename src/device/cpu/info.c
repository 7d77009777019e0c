#include "device/cpu/info.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>

void ls__cpu_library_version(char *text, size_t bytes) {
    const dnnl_version_t *version = dnnl_version();
    const char *threads = version->cpu_runtime == DNNL_RUNTIME_OMP   ? "OpenMP threads"
                          : version->cpu_runtime == DNNL_RUNTIME_TBB ? "TBB threads"
                          : version->cpu_runtime == DNNL_RUNTIME_SEQ ? "one thread"
                                                                     : "another thread pool";
    snprintf(text, bytes, "%d.%d.%d (%s)", version->major, version->minor, version->patch, threads);
}

const char *ls__cpu_library_isa(void) {
    switch ((int)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
        return "SSE4.1";
    case dnnl_cpu_isa_avx:
        return "AVX";
    case dnnl_cpu_isa_avx2:
        return "AVX2";
    case dnnl_cpu_isa_avx512_core:
        return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "AVX-512 with VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "AVX-512 with bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "AVX-512 with AMX";
    default:
        return "not named by this version";
    }
}

const char *ls__cpu_missing_for_bf16(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return "a processor with AVX512_BF16";
    /* Each instruction set's number has the bits of those it contains. */
    unsigned used = (unsigned)dnnl_get_effective_cpu_isa(), needed = dnnl_cpu_isa_avx512_core_bf16;
    return (used & needed) == needed
               ? NULL
               : "oneDNN's AVX512_BF16 kernels, which ONEDNN_MAX_CPU_ISA forbids";
#else
    return "a processor with AVX512_BF16";
#endif
}
