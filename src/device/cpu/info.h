/* What the CPU device is built on, in words: for lockstep doctor. */
#ifndef LS_DEVICE_CPU_INFO_H
#define LS_DEVICE_CPU_INFO_H

#include <stddef.h>

/* "2.6.3 (OpenMP threads)" */
void ls__cpu_library_version(char *text, size_t bytes);
/* The instruction set oneDNN's kernels use on this processor: "AVX-512 core with AMX". */
const char *ls__cpu_library_isa(void);
/* What bf16 computation would need and is not here ("a processor with AVX512_BF16"); NULL: nothing. */
const char *ls__cpu_missing_for_bf16(void);

#endif
