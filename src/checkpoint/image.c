#include "checkpoint/image.h"

#include "base/error.h"
#include "nn/model.h"
#include "optim/state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const file_names[LS__IMAGES] = {"model.safetensors", "optimizer.safetensors",
                                                   "state.safetensors", "ranks.safetensors"};

/* Parts end at multiples of this, so that two ranks never write into one page or block. */
static const uint64_t PART_GRAIN = 65536;

/* --- tensors -------------------------------------------------------------------------------------- */

static ls_status take_room(ls__image *image, size_t count) {
    image->entries = calloc(count + 1, sizeof *image->entries);
    image->names = calloc(count + 1, sizeof *image->names);
    return image->entries && image->names
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for a list of %zu tensors", count);
}

static void add(ls__image *image, const char *name, ls_dtype dtype, const size_t *shape,
                size_t dims, const void *data) {
    size_t bytes = ls_dtype_size(dtype);
    for (size_t d = 0; d < dims; d++)
        bytes *= shape[d];
    image->entries[image->count++] = (ls_safetensors_entry){.name = name,
                                                            .dtype = ls_dtype_name(dtype),
                                                            .dims = dims,
                                                            .shape = shape,
                                                            .data = data,
                                                            .bytes = bytes};
}

/* As add, with a name that is made: "conv1.weight" and "exp_avg". */
static ls_status add_named(ls__image *image, const char *first, const char *second, ls_dtype dtype,
                           const size_t *shape, size_t dims, const void *data) {
    char *name;
    if (asprintf(&name, "%s.%s", first, second) < 0)
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the name of a tensor");
    image->names[image->count] = name;
    add(image, name, dtype, shape, dims, data);
    return LS_OK;
}

static ls_status add_model(ls__image *image, const ls_model *model) {
    LS_TRY(take_room(image, model->parameter_count));
    for (size_t i = 0; i < model->parameter_count; i++) {
        const ls_tensor *value = &model->by_name[i]->value;
        add(image, model->by_name[i]->name, value->dtype, value->shape, value->dims, value->data);
    }
    return LS_OK;
}

static ls_status add_optimizer(ls__image *image, ls_optimizer *optimizer) {
    size_t count = ls__optimizer_state_count(optimizer);
    LS_TRY(take_room(image, 3 * count + 1));
    for (size_t i = 0; i < count; i++) {
        ls__optimizer_state s = ls__optimizer_state_get(optimizer, i);
        const ls_tensor *value = &s.parameter->value;
        const char *name = s.parameter->name;
        if (s.first)
            LS_TRY(
                add_named(image, name, s.first_name, LS_F32, value->shape, value->dims, s.first));
        if (s.second)
            LS_TRY(
                add_named(image, name, s.second_name, LS_F32, value->shape, value->dims, s.second));
        LS_TRY(add_named(image, name, "step", LS_I64, NULL, 0, s.steps));
    }
    add(image, "steps", LS_I64, NULL, 0, ls__optimizer_steps(optimizer));
    return LS_OK;
}

static ls_status check_item(const ls_checkpoint_contents *contents, size_t i) {
    const ls_checkpoint_item *item = &contents->items[i];
    if (!item->name || !item->data)
        return ls__fail(LS_ERR_ARGUMENT, "checkpoint: item %zu has no %s", i,
                        item->name ? "data" : "name");
    if (item->dims > LS_MAX_DIMS || (!item->shape && item->dims > 0))
        return ls__fail(LS_ERR_ARGUMENT,
                        "checkpoint: item %s has %zu dimensions and %s shape; want at most %d and "
                        "the extents of each",
                        item->name, item->dims, item->shape ? "a" : "no", LS_MAX_DIMS);
    if (ls_dtype_size(item->dtype) == 0)
        return ls__fail(LS_ERR_ARGUMENT, "checkpoint: item %s: %d is no dtype", item->name,
                        (int)item->dtype);
    if (item->per_rank && item->dtype != LS_F32)
        return ls__fail(LS_ERR_ARGUMENT, "checkpoint: item %s is per rank and %s, want F32",
                        item->name, ls_dtype_name(item->dtype));
    return LS_OK;
}

static ls_status add_items(ls__images *images, const ls_checkpoint_contents *contents, int rank,
                           int ranks) {
    ls__image *common = &images->of[LS__IMAGE_STATE], *own = &images->of[LS__IMAGE_RANKS];
    LS_TRY(take_room(common, contents->item_count));
    LS_TRY(take_room(own, contents->item_count * (size_t)ranks));
    for (size_t i = 0; i < contents->item_count; i++) {
        const ls_checkpoint_item *item = &contents->items[i];
        LS_TRY(check_item(contents, i));
        if (!item->per_rank)
            add(common, item->name, item->dtype, item->shape, item->dims, item->data);
    }
    for (int r = 0; r < ranks; r++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "rank-%d", r);
        for (size_t i = 0; i < contents->item_count; i++) {
            const ls_checkpoint_item *item = &contents->items[i];
            if (item->per_rank)
                LS_TRY(add_named(own, prefix, item->name, item->dtype, item->shape, item->dims,
                                 r == rank ? item->data : NULL));
        }
    }
    return LS_OK;
}

/* --- parts ---------------------------------------------------------------------------------------- */

static void add_part(ls__images *images, size_t image, uint64_t begin, uint64_t end, int rank) {
    if (begin < end)
        images->parts[images->part_count++] =
            (ls__part){.image = image, .offset = begin, .bytes = end - begin, .rank = rank};
}

/* Rank 0 has the header; the data is divided evenly, that of ranks.safetensors by whose it is. */
static void cut_image(ls__images *images, size_t i, int ranks) {
    const ls__image *image = &images->of[i];
    uint64_t data = image->bytes - image->header_bytes, begin = 0;
    add_part(images, i, 0, image->header_bytes, 0);
    for (int r = 0; r < ranks; r++) {
        uint64_t end = data / (uint64_t)ranks * (uint64_t)(r + 1);
        if (i != LS__IMAGE_RANKS)
            end = (end + PART_GRAIN - 1) / PART_GRAIN * PART_GRAIN;
        if (end > data || r + 1 == ranks)
            end = data;
        add_part(images, i, image->header_bytes + begin, image->header_bytes + end, r);
        begin = end;
    }
}

static ls_status finish_image(ls__image *image, const char *spec) {
    const char *keys[] = {"format", "lockstep.model", "lockstep.version"};
    const char *values[] = {"pt", spec, LOCKSTEP_VERSION};
    LS_TRY(ls__safetensors_make_header(image->name, image->entries, image->count, keys, values,
                                       sizeof keys / sizeof *keys, &image->header,
                                       &image->header_bytes));
    image->bytes = image->header_bytes;
    for (size_t i = 0; i < image->count; i++)
        image->bytes += image->entries[i].bytes;
    return LS_OK;
}

ls_status ls__images_create(ls__images *images, const ls_checkpoint_contents *contents, int rank,
                            int ranks) {
    *images = (ls__images){0};
    for (size_t i = 0; i < LS__IMAGES; i++)
        images->of[i].name = file_names[i];
    LS_TRY(add_model(&images->of[LS__IMAGE_MODEL], contents->model));
    if (contents->optimizer)
        LS_TRY(add_optimizer(&images->of[LS__IMAGE_OPTIMIZER], contents->optimizer));
    LS_TRY(add_items(images, contents, rank, ranks));
    images->parts = calloc(LS__IMAGES * ((size_t)ranks + 1), sizeof *images->parts);
    if (!images->parts)
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the parts of %d ranks", ranks);
    for (size_t i = 0; i < LS__IMAGES; i++) {
        if (images->of[i].count == 0)
            continue;
        LS_TRY(finish_image(&images->of[i], ls_model_spec(contents->model)));
        cut_image(images, i, ranks);
        images->bytes += images->of[i].bytes;
    }
    return LS_OK;
}

void ls__images_free(ls__images *images) {
    for (size_t i = 0; i < LS__IMAGES; i++) {
        ls__image *image = &images->of[i];
        for (size_t k = 0; image->names && k < image->count; k++)
            free(image->names[k]);
        free(image->names);
        free(image->entries);
        free(image->header);
    }
    free(images->parts);
    *images = (ls__images){0};
}

/* --- the bytes of a part ---------------------------------------------------------------------------- */

ls_status ls__part_pieces(const ls__images *images, const ls__part *part, ls__piece_fn take,
                          void *context) {
    const ls__image *image = &images->of[part->image];
    uint64_t begin = part->offset, end = begin + part->bytes, at = image->header_bytes;
    if (begin < at)
        LS_TRY(take(context, image->header + begin, (size_t)((end < at ? end : at) - begin)));
    for (size_t i = 0; i < image->count && at < end; i++) {
        const ls_safetensors_entry *e = &image->entries[i];
        uint64_t first = begin > at ? begin - at : 0;
        uint64_t last = end - at < e->bytes ? end - at : e->bytes;
        if (first < last)
            LS_TRY(take(context, (const char *)e->data + first, (size_t)(last - first)));
        at += e->bytes;
    }
    return LS_OK;
}
