/* ls_group_alloc: memory that all ranks map. A region is a range of the segment behind the control
 * area: one slice a rank, and every rank maps all of it, so that peers' slices are within reach.
 *
 * Nobody decides where a region lies: all ranks allocate and free in the same order, so all find the
 * same first gap. */
#include "base/error.h"
#include "comm/memory.h"
#include "comm/shm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint64_t NO_REGION = UINT64_MAX; /* published for memory that is not ours to free */

static size_t region_bytes(const ls__shm *shm, const ls__shm_region *region) {
    return region->slice * (size_t)shm->base.size;
}

/* The lowest free range of `bytes`; *link is where the region goes into the list. */
static uint64_t find_gap(ls__shm *shm, size_t bytes, ls__shm_region ***link) {
    uint64_t offset = shm->mapped;
    *link = &shm->regions;
    while (**link && (**link)->offset - offset < bytes) {
        offset = (**link)->offset + region_bytes(shm, **link);
        *link = &(**link)->next;
    }
    return offset;
}

static off_t my_offset(const ls__shm *shm, const ls__shm_region *region) {
    return (off_t)(region->offset + region->slice * (uint64_t)shm->base.rank);
}

/* This rank's share of making a region: its slice is reserved, so that writing to it cannot fault. */
static ls_status make_region(const ls__shm *shm, ls__shm_region *region, uint64_t available) {
    size_t bytes = region_bytes(shm, region);
    if (bytes > available)
        return ls__fail(LS_ERR_MEMORY, "%zu bytes for each of %d ranks, %llu bytes are available",
                        region->slice, shm->base.size, (unsigned long long)available);
    int error = posix_fallocate(shm->fd, my_offset(shm, region), (off_t)region->slice);
    if (error)
        return ls__fail_errno(LS_ERR_MEMORY, error, "cannot reserve %zu bytes of shared memory",
                              region->slice);
    void *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shm->fd, (off_t)region->offset);
    if (base == MAP_FAILED)
        return ls__fail_errno(LS_ERR_MEMORY, errno, "cannot map %zu bytes of shared memory", bytes);
    region->base = base;
    return LS_OK;
}

/* Gives the slice's pages back; zeroes them for the next one who gets the range. */
static void unmake_region(const ls__shm *shm, const ls__shm_region *region) {
    if (region->base)
        munmap(region->base, region_bytes(shm, region));
    fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, my_offset(shm, region),
              (off_t)region->slice);
}

/* All ranks or none: each says how its share went. */
static ls_status agree(ls__shm *shm, ls__operation *operation, ls_status mine) {
    char text[512];
    strncpy(text, mine == LS_OK ? "" : ls_error_text(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ls__shm_next_notice(shm)->status = mine;
    LS_TRY(ls__shm_meet(shm, operation));
    if (mine != LS_OK)
        return ls__operation_fail(mine, operation, ls__own_name(&shm->base), "%s", text);
    for (int r = 0; r < shm->base.size; r++) {
        ls_status status = (ls_status)ls__shm_notice_of(shm, r)->status;
        if (status != LS_OK)
            return ls__operation_fail(status, operation, ls__own_name(&shm->base),
                                      "rank %d could not get its part of %zu bytes (%s)",
                                      ls__name_of(&shm->base, r), operation->bytes,
                                      ls_status_text(status));
    }
    return LS_OK;
}

ls_status ls__shm_alloc(ls__shm *shm, ls__operation *operation) {
    /* Asked before the first meeting: after it, others may have reserved their slices already. */
    uint64_t available = ls__memory_available();
    LS_TRY(ls__shm_meet(shm, operation));
    ls__shm_region *region = calloc(1, sizeof *region), **link = NULL;
    ls_status mine = region ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory");
    size_t slice = ls__memory_pages(operation->bytes), bytes = 0;
    if (mine == LS_OK &&
        (slice == 0 || slice > INT64_MAX / 4 ||
         __builtin_mul_overflow(slice, (size_t)shm->base.size, &bytes) || bytes > INT64_MAX / 4))
        mine = ls__fail(LS_ERR_MEMORY, "%zu bytes is more than any machine has", operation->bytes);
    bool placed = mine == LS_OK;
    if (placed) {
        region->slice = slice;
        region->offset = find_gap(shm, bytes, &link);
        mine = make_region(shm, region, available);
    }
    ls_status status = agree(shm, operation, mine);
    if (status != LS_OK || !placed) { /* not placed: agree has failed */
        if (placed)
            unmake_region(shm, region);
        free(region);
        return status;
    }
    region->id = ++shm->last_region;
    region->next = *link;
    *link = region;
    *operation->memory = region->base + region->slice * (size_t)shm->base.rank;
    return LS_OK;
}

ls_status ls__shm_free(ls__shm *shm, ls__operation *operation) {
    char *memory = *operation->memory;
    ls__shm_region **link = &shm->regions;
    while (memory && *link && (*link)->base + (*link)->slice * (size_t)shm->base.rank != memory)
        link = &(*link)->next;
    ls__shm_region *region = memory ? *link : NULL;
    ls__shm_place place = {.region = region ? region->id : memory ? NO_REGION : 0};
    ls__shm_next_notice(shm)->send = place;
    LS_TRY(ls__shm_meet(shm, operation));
    if (place.region == NO_REGION)
        return ls__operation_fail(LS_ERR_ARGUMENT, operation, ls__own_name(&shm->base),
                                  "%p was not given by ls_group_alloc", (void *)memory);
    for (int r = 0; r < shm->base.size; r++)
        if (ls__shm_notice_of(shm, r)->send.region != place.region)
            return ls__operation_fail(LS_ERR_MISMATCH, operation, ls__own_name(&shm->base),
                                      "rank %d frees another block than this rank",
                                      ls__name_of(&shm->base, r));
    if (!region)
        return LS_OK;
    *link = region->next;
    unmake_region(shm, region);
    free(region);
    return LS_OK;
}

void ls__shm_unmap_regions(ls__shm *shm) {
    while (shm->regions) {
        ls__shm_region *region = shm->regions;
        shm->regions = region->next;
        munmap(region->base, region_bytes(shm, region));
        free(region);
    }
}

ls__shm_place ls__shm_locate(const ls__shm *shm, const void *buffer, size_t bytes) {
    const char *p = buffer;
    for (const ls__shm_region *region = shm->regions; region; region = region->next) {
        const char *mine = region->base + region->slice * (size_t)shm->base.rank;
        if (p >= mine && p < mine + region->slice && bytes <= (size_t)(mine + region->slice - p))
            return (ls__shm_place){.region = region->id, .offset = (uint64_t)(p - region->base)};
    }
    return (ls__shm_place){0};
}

char *ls__shm_reach(const ls__shm *shm, ls__shm_place place) {
    for (const ls__shm_region *region = shm->regions; region; region = region->next)
        if (region->id == place.region)
            return region->base + place.offset;
    return NULL;
}
