#include "tensor/arena.h"

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_POISONS 1
#endif
#endif

#ifdef ARENA_POISONS
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define UNPOISON(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
enum { GAP = 64 }; /* never handed out, between neighbours: running over the end is seen */
#else
#define POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
enum { GAP = 0 };
#endif

enum {
    ALIGNMENT = 64,
    SMALLEST_CHUNK = 256 << 10,
    LARGEST_GROWTH = 256 << 20, /* chunks double what is held up to this size */
};

struct chunk {
    struct chunk *previous;
    char *memory;
    size_t bytes, used;
};

struct ls__arena {
    ls_device *device;  /* NULL: host memory */
    struct chunk *last; /* the one that is being filled */
    size_t held;        /* bytes of all chunks */
    size_t used, peak;
};

ls_status ls__arena_create(ls__arena **arena, ls_device *device) {
    *arena = calloc(1, sizeof **arena);
    if (!*arena)
        return ls__fail(LS_ERR_MEMORY, "arena: no memory for its %zu bytes", sizeof **arena);
    (*arena)->device = device;
    return LS_OK;
}

static ls_status take(ls__arena *arena, size_t bytes, char **memory) {
    if (arena->device) {
        void *taken = NULL;
        LS_TRY(arena->device->table->alloc(arena->device, bytes, &taken));
        *memory = taken;
        return LS_OK;
    }
    *memory = aligned_alloc(ALIGNMENT, bytes);
    return *memory ? LS_OK : ls__fail(LS_ERR_MEMORY, "arena: no memory for %zu bytes", bytes);
}

static void give_back(ls__arena *arena, char *memory) {
    if (arena->device)
        arena->device->table->free(arena->device, memory);
    else
        free(memory);
}

static ls_status add_chunk(ls__arena *arena, size_t bytes) {
    struct chunk *chunk = malloc(sizeof *chunk);
    if (!chunk)
        return ls__fail(LS_ERR_MEMORY, "arena: no memory for a chunk's %zu bytes", sizeof *chunk);
    *chunk = (struct chunk){.previous = arena->last, .bytes = bytes};
    ls_status status = take(arena, bytes, &chunk->memory);
    if (status != LS_OK) {
        free(chunk);
        return status;
    }
    POISON(chunk->memory, bytes);
    arena->last = chunk;
    arena->held += bytes;
    return LS_OK;
}

static void free_chunks(ls__arena *arena) {
    while (arena->last) {
        struct chunk *chunk = arena->last;
        arena->last = chunk->previous;
        UNPOISON(chunk->memory, chunk->bytes);
        give_back(arena, chunk->memory);
        free(chunk);
    }
    arena->held = 0;
}

void ls__arena_destroy(ls__arena *arena) {
    if (!arena)
        return;
    free_chunks(arena);
    free(arena);
}

ls_status ls__arena_alloc(ls__arena *arena, size_t bytes, void **memory) {
    if (bytes > SIZE_MAX / 4)
        return ls__fail(LS_ERR_MEMORY, "arena: %zu bytes are more than there can be", bytes);
    size_t size = (bytes + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct chunk *chunk = arena->last;
    if (!chunk || chunk->bytes - chunk->used < size) {
        size_t want = arena->held < LARGEST_GROWTH ? arena->held : LARGEST_GROWTH;
        if (want < SMALLEST_CHUNK)
            want = SMALLEST_CHUNK;
        if (want < size)
            want = size;
        LS_TRY(add_chunk(arena, want));
        chunk = arena->last;
    }
    *memory = chunk->memory + chunk->used;
    UNPOISON(*memory, bytes);
    chunk->used += size;
    arena->used += size;
    if (arena->peak < arena->used)
        arena->peak = arena->used;
    return LS_OK;
}

ls_status ls__arena_reset(ls__arena *arena) {
    arena->used = 0;
    if (!arena->last)
        return LS_OK;
    if (arena->last->previous) {
        free_chunks(arena);
        return add_chunk(arena, arena->peak);
    }
    POISON(arena->last->memory, arena->last->bytes);
    arena->last->used = 0;
    return LS_OK;
}

size_t ls__arena_peak(const ls__arena *arena) {
    return arena->peak;
}
