/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011). A number is a pure function of (seed, stream, counter), so any rank
 * and any thread can compute the n-th number of any stream without the ones before it. */
#ifndef LOCKSTEP_RANDOM_H
#define LOCKSTEP_RANDOM_H

#include <lockstep/status.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Four 32-bit words of stream `stream` at position `counter`. Any thread. */
LS_API void ls_random_u32x4(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);

/* Four floats in [0, 1), 24 random bits each. Any thread. */
LS_API void ls_random_uniform4(uint64_t seed, uint64_t stream, uint64_t counter, float out[4]);

/* Four floats of the standard normal distribution (Box-Muller, computed in double). Any thread. */
LS_API void ls_random_normal4(uint64_t seed, uint64_t stream, uint64_t counter, float out[4]);

/* A stream number out of a text, for streams named by purpose ("init/fc1.weight"). FNV-1a. */
LS_API uint64_t ls_random_stream(const char *name);

#ifdef __cplusplus
}
#endif
#endif
