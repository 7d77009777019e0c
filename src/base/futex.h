/* Waiting on a 32-bit word in memory that several processes may map. */
#ifndef LS_BASE_FUTEX_H
#define LS_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleeps while *word == expected, until woken or `deadline_ns` (ls__now_ns clock). May return early
 * for no reason: call it in a loop that tests the word. False once the deadline has passed. */
bool ls__futex_wait(const _Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);

/* Wakes everyone who sleeps on `word`. */
void ls__futex_wake_all(const _Atomic uint32_t *word);

/* A hint to the processor inside a spin loop. */
static inline void ls__cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
