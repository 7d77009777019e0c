/* Bump allocation for what lives as long as one step.
 *
 * Memory is taken in chunks, which stay: a step that asks for the same sizes as the one before gets the
 * same addresses, from the second on, and touches no page for the first time. Where steps of several
 * shapes leave more memory touched than any of them needs, a reset replaces the chunks by one. Under
 * AddressSanitizer what is not handed out is poisoned. */
#ifndef LS_TENSOR_ARENA_H
#define LS_TENSOR_ARENA_H

#include "device/device.h"

typedef struct ls__arena ls__arena;

/* Chunks come from the device; from the host where device is NULL. Takes no chunk yet. */
ls_status ls__arena_create(ls__arena **arena, ls_device *device);
void ls__arena_destroy(ls__arena *arena);

/* `bytes` bytes, 64-byte aligned, not zeroed, until the next reset. */
ls_status ls__arena_alloc(ls__arena *arena, size_t bytes, void **memory);

/* Gives one block back before the reset, with the size it was taken with: the next one of the same
 * size gets it. */
void ls__arena_release(ls__arena *arena, void *memory, size_t bytes);

/* Everything taken after the mark is free after the rewind (its chunks stay), and what was released in between but taken
 * before is in use again. Marks nest. */
enum { LS__ARENA_RELEASED = 32 };
typedef struct ls__arena_mark {
    void *chunk;
    size_t chunk_used, used, released_count;
    struct {
        void *memory;
        size_t size;
    } released[LS__ARENA_RELEASED];
} ls__arena_mark;
void ls__arena_get_mark(const ls__arena *arena, ls__arena_mark *mark);
void ls__arena_rewind(ls__arena *arena, const ls__arena_mark *mark);

/* Frees everything handed out. On failure the arena is empty and can be used. */
ls_status ls__arena_reset(ls__arena *arena);

/* The largest number of bytes in use at once so far. */
size_t ls__arena_peak(const ls__arena *arena);
/* The most bytes of chunks that were written at once so far: what the arena costs the machine. */
size_t ls__arena_touched(const ls__arena *arena);

#endif
