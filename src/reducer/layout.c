#include "reducer/layout.h"
#include "base/error.h"
#include <stdlib.h>

/* Bytes of the gradient and of its whole place; false on overflow. */
static bool place_size(ls__place *place, const ls_reducer_param *param) {
    size_t elements = 1, extent = 0, element = ls_dtype_size(param->dtype);
    for (size_t d = 0; d < param->dims; d++)
        if (__builtin_mul_overflow(elements, param->shape[d], &elements))
            return false;
    if (__builtin_mul_overflow(elements, element, &place->bytes) ||
        __builtin_add_overflow(place->bytes, element + LS__GRADIENT_ALIGN - 1, &extent))
        return false;
    place->extent = extent / LS__GRADIENT_ALIGN * LS__GRADIENT_ALIGN;
    return true;
}

ls_status ls__layout_create(ls__layout *layout, const ls_reducer_param *params, size_t count,
                            size_t first_cap, size_t cap, const ls_reducer_hook *hook) {
    *layout = (ls__layout){.count = count,
                           .first_cap = first_cap / LS__GRADIENT_ALIGN * LS__GRADIENT_ALIGN,
                           .cap = cap / LS__GRADIENT_ALIGN * LS__GRADIENT_ALIGN,
                           .hooked = hook != NULL,
                           .whole = hook != NULL && hook->whole_tensors};
    layout->place = calloc(count ? count : 1, sizeof *layout->place);
    if (layout->place == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for %zu parameters", count);
    size_t trainable = 0;
    for (size_t i = 0; i < count; i++) {
        ls__place *place = &layout->place[i];
        place->dtype = params[i].dtype;
        place->full = hook == NULL || params[i].exact || params[i].dtype != LS_F32;
        if (params[i].frozen)
            continue;
        trainable++;
        if (!place_size(place, &params[i]) ||
            __builtin_add_overflow(layout->bytes, place->extent, &layout->bytes))
            return ls__fail(LS_ERR_RANGE,
                            "ls_reducer_create: with parameter %zu (%s) the gradients have more "
                            "bytes than an address can name",
                            i, params[i].name);
    }
    if (layout->bytes == 0)
        layout->bytes = LS__GRADIENT_ALIGN;
    /* A bucket ends because it is full, because of the gradient that comes next, or because it is the last. */
    size_t smallest = layout->first_cap < layout->cap ? layout->first_cap : layout->cap;
    layout->bucket_limit = layout->bytes / smallest + trainable + 1;
    layout->bucket = calloc(layout->bucket_limit, sizeof *layout->bucket);
    if (layout->bucket == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for %zu buckets",
                        layout->bucket_limit);
    return LS_OK;
}

/* No cut goes through it. */
static bool stays_whole(const ls__layout *layout, const ls__place *place) {
    return layout->whole && !place->full;
}

/* The bucket that takes the next bytes of `place`: the last one, or a new one. */
static ls__bucket *open_bucket(ls__layout *layout, size_t offset, const ls__place *place) {
    size_t n = layout->bucket_count;
    if (n > 0) {
        ls__bucket *last = &layout->bucket[n - 1];
        size_t cap = n == 1 ? layout->first_cap : layout->cap;
        size_t least = stays_whole(layout, place) ? place->extent : 1;
        if (last->dtype == place->dtype && last->full == place->full && last->bytes < cap &&
            least <= cap - last->bytes)
            return last;
    }
    layout->bucket[n] = (ls__bucket){.offset = offset, .dtype = place->dtype, .full = place->full};
    layout->bucket_count++;
    return &layout->bucket[n];
}

void ls__layout_arrange(ls__layout *layout, const size_t *order) {
    size_t offset = 0;
    layout->bucket_count = 0;
    for (size_t position = 0; position < layout->count; position++) {
        ls__place *place = &layout->place[order[position]];
        if (place->extent == 0)
            continue;
        place->offset = offset;
        for (size_t left = place->extent; left > 0;) {
            ls__bucket *bucket = open_bucket(layout, offset, place);
            size_t number = layout->bucket_count - 1;
            size_t cap = number == 0 ? layout->first_cap : layout->cap;
            bool fits = stays_whole(layout, place) || left <= cap - bucket->bytes;
            size_t take = fits ? left : cap - bucket->bytes;
            if (left == place->extent)
                place->first_bucket = number;
            place->last_bucket = number;
            bucket->members++;
            bucket->bytes += take;
            offset += take;
            left -= take;
        }
    }
    if (layout->bucket_count == 0)
        open_bucket(layout, 0, &(ls__place){.dtype = LS_F32, .full = true})->bytes =
            LS__GRADIENT_ALIGN;
}

void ls__layout_free(ls__layout *layout) {
    free(layout->place);
    free(layout->bucket);
    *layout = (ls__layout){0};
}
