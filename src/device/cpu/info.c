#include "device/cpu/info.h"

#include <oneapi/dnnl/dnnl.h>
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
