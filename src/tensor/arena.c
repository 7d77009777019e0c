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
    struct chunk *next;
    char *memory;
    size_t bytes, used;
    size_t touched; /* the most that was used of it: beyond, no page was ever written */
};

struct ls__arena {
    ls_device *device;          /* NULL: host memory */
    struct chunk *first, *last; /* of all chunks, in the order in which they are filled */
    struct chunk
        *current; /* the one that is being filled; those after it are empty. NULL: none is yet */
    size_t held;  /* bytes of all chunks */
    size_t used, peak;
    size_t touched; /* the most of all chunks together, of those that were given back */
    ls__arena_mark
        state; /* of it only the list of released blocks; beyond its room they are lost */
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

/* Appends a chunk. */
static ls_status add_chunk(ls__arena *arena, size_t bytes) {
    struct chunk *chunk = malloc(sizeof *chunk);
    if (!chunk)
        return ls__fail(LS_ERR_MEMORY, "arena: no memory for a chunk's %zu bytes", sizeof *chunk);
    *chunk = (struct chunk){.bytes = bytes};
    ls_status status = take(arena, bytes, &chunk->memory);
    if (status != LS_OK) {
        free(chunk);
        return status;
    }
    POISON(chunk->memory, bytes);
    *(arena->last ? &arena->last->next : &arena->first) = chunk;
    arena->last = chunk;
    arena->held += bytes;
    return LS_OK;
}

static void free_chunks(ls__arena *arena) {
    for (struct chunk *chunk = arena->first, *next; chunk; chunk = next) {
        next = chunk->next;
        UNPOISON(chunk->memory, chunk->bytes);
        give_back(arena, chunk->memory);
        free(chunk);
    }
    arena->first = arena->last = arena->current = NULL;
    arena->held = 0;
}

void ls__arena_destroy(ls__arena *arena) {
    if (!arena)
        return;
    free_chunks(arena);
    free(arena);
}

static size_t rounded(size_t bytes) {
    return (bytes + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* A released block of exactly this size, the latest first; NULL: there is none. */
static void *take_released(ls__arena *arena, size_t size) {
    ls__arena_mark *list = &arena->state;
    for (size_t i = list->released_count; i-- > 0;) {
        if (list->released[i].size != size)
            continue;
        void *memory = list->released[i].memory;
        list->released[i] = list->released[--list->released_count];
        return memory;
    }
    return NULL;
}

static bool has_room(const struct chunk *chunk, size_t size) {
    return chunk && chunk->bytes - chunk->used >= size;
}

/* Makes one with room for `size` the current chunk: the first that has it of those not begun, else a
 * new one. A step like the one before is led to the same chunks by the same sizes. */
static ls_status next_chunk(ls__arena *arena, size_t size) {
    struct chunk *chunk = arena->current ? arena->current->next : arena->first;
    while (chunk && !has_room(chunk, size))
        chunk = chunk->next;
    if (!chunk) {
        size_t want = arena->held < LARGEST_GROWTH ? arena->held : LARGEST_GROWTH;
        if (want < SMALLEST_CHUNK)
            want = SMALLEST_CHUNK;
        if (want < size)
            want = size;
        LS_TRY(add_chunk(arena, want));
        chunk = arena->last;
    }
    arena->current = chunk;
    return LS_OK;
}

ls_status ls__arena_alloc(ls__arena *arena, size_t bytes, void **memory) {
    if (bytes > SIZE_MAX / 4)
        return ls__fail(LS_ERR_MEMORY, "arena: %zu bytes are more than there can be", bytes);
    size_t size = rounded(bytes);
    *memory = take_released(arena, size);
    if (*memory) {
        UNPOISON(*memory, bytes);
        return LS_OK;
    }
    if (!has_room(arena->current, size))
        LS_TRY(next_chunk(arena, size));
    struct chunk *chunk = arena->current;
    *memory = chunk->memory + chunk->used;
    UNPOISON(*memory, bytes);
    chunk->used += size;
    if (chunk->touched < chunk->used)
        chunk->touched = chunk->used;
    arena->used += size;
    if (arena->peak < arena->used)
        arena->peak = arena->used;
    return LS_OK;
}

void ls__arena_release(ls__arena *arena, void *memory, size_t bytes) {
    ls__arena_mark *list = &arena->state;
    POISON(memory, bytes);
    if (list->released_count == LS__ARENA_RELEASED)
        return;
    list->released[list->released_count].memory = memory;
    list->released[list->released_count++].size = rounded(bytes);
}

void ls__arena_get_mark(const ls__arena *arena, ls__arena_mark *mark) {
    *mark = arena->state;
    mark->chunk = arena->current;
    mark->chunk_used = arena->current ? arena->current->used : 0;
    mark->used = arena->used;
}

/* Chunks after `kept` (NULL: all) are empty, `kept` is as full as it was. */
static void empty_after(ls__arena *arena, struct chunk *kept, size_t kept_used) {
    if (kept) {
        POISON(kept->memory + kept_used, kept->used - kept_used);
        kept->used = kept_used;
    }
    for (struct chunk *chunk = kept ? kept->next : arena->first; chunk; chunk = chunk->next) {
        POISON(chunk->memory, chunk->used);
        chunk->used = 0;
    }
    arena->current = kept;
}

void ls__arena_rewind(ls__arena *arena, const ls__arena_mark *mark) {
    empty_after(arena, mark->chunk, mark->chunk_used);
    arena->used = mark->used;
    arena->state = *mark;
    for (size_t i = 0; i < mark->released_count; i++)
        POISON(mark->released[i].memory, mark->released[i].size);
}

static size_t touched_now(const ls__arena *arena) {
    size_t touched = 0;
    for (const struct chunk *chunk = arena->first; chunk; chunk = chunk->next)
        touched += chunk->touched;
    return touched;
}

size_t ls__arena_touched(const ls__arena *arena) {
    size_t now = touched_now(arena);
    return now > arena->touched ? now : arena->touched;
}

/* Pages were written for more than a quarter above what was ever in use at once: steps whose sizes do
 * not fit the chunks that others left. */
static bool wastes(const ls__arena *arena) {
    size_t touched = touched_now(arena);
    return touched > SMALLEST_CHUNK && touched - touched / 5 > arena->peak;
}

ls_status ls__arena_reset(ls__arena *arena) {
    arena->used = 0;
    arena->state.released_count = 0;
    if (arena->first != arena->last && wastes(arena)) {
        arena->touched = ls__arena_touched(arena);
        free_chunks(arena);
        return add_chunk(arena, arena->peak);
    }
    empty_after(arena, NULL, 0);
    return LS_OK;
}

size_t ls__arena_peak(const ls__arena *arena) {
    return arena->peak;
}
