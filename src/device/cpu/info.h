/* What the CPU device is built on, in words: for lockstep doctor. */
#ifndef LS_DEVICE_CPU_INFO_H
#define LS_DEVICE_CPU_INFO_H

#include <stddef.h>

/* "2.6.3 (OpenMP threads)" */
void ls__cpu_library_version(char *text, size_t bytes);
/* The instruction set its kernels use on this processor: "AVX-512 core with AMX". */
const char *ls__cpu_library_isa(void);

#endif
