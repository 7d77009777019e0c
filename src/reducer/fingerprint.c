/* Cost when all agree: a broadcast of 16 bytes and an all-reduce of 16 bytes, whatever the model.
 * Descriptions are exchanged only to name a difference. */
#include "reducer/fingerprint.h"
#include "base/error.h"
#include "reducer/agree.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ls_status ls__description_create(ls__description *description, const ls_reducer_param *params,
                                 size_t count, size_t first_bucket_bytes, size_t bucket_bytes,
                                 const ls_reducer_hook *hook) {
    *description = (ls__description){0};
    FILE *out = open_memstream(&description->text, &description->length);
    if (out == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory to describe the parameters");
    fprintf(out, "first_bucket_bytes %zu and bucket_bytes %zu%c", first_bucket_bytes, bucket_bytes,
            '\0');
    fprintf(out, "%s%s%c", hook ? "hook " : "no hook", hook ? hook->name : "", '\0');
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s %s [", params[i].name, ls_dtype_name(params[i].dtype));
        for (size_t d = 0; d < params[i].dims; d++)
            fprintf(out, "%s%zu", d ? ", " : "", params[i].shape[d]);
        fprintf(out, "]%s%c", params[i].frozen ? " frozen" : "", '\0');
    }
    int failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory to describe %zu parameters",
                        count);
    return LS_OK;
}

enum { BUCKETS, HOOK, PARAMS }; /* strings of a description: what it begins with */

/* String number n of a description; NULL past the last. */
static const char *entry(const ls__description *description, size_t n) {
    const char *at = description->text, *end = at + description->length;
    for (; n > 0 && at < end; n--)
        at += strlen(at) + 1;
    return at < end ? at : NULL;
}

const char *ls__description_param(const ls__description *description, size_t i) {
    return entry(description, PARAMS + i);
}

/* FNV-1a, 64 bits */
static uint64_t hash(const ls__description *description) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < description->length; i++)
        h = (h ^ (unsigned char)description->text[i]) * 0x100000001b3u;
    return h;
}

/* Two descriptions that differ; `other` is the one of rank `rank`. */
static ls_status name_difference(const ls__description *zero, const ls__description *other,
                                 int rank) {
    for (size_t n = 0;; n++) {
        const char *a = entry(zero, n), *b = entry(other, n);
        if (a != NULL && b != NULL && strcmp(a, b) == 0)
            continue;
        if (a == NULL && b == NULL) /* equal after all: hashes of different lengths only */
            return ls__fail(LS_ERR_MISMATCH,
                            "ls_reducer_create: parameters of rank 0 and rank %d differ", rank);
        if (n < PARAMS)
            return ls__fail(LS_ERR_MISMATCH,
                            "ls_reducer_create: %s differ: rank 0 has %.300s, rank %d has %.300s; "
                            "give all ranks the same options",
                            n == BUCKETS ? "bucket sizes" : "hooks", a, rank, b);
        if (a != NULL && b != NULL)
            return ls__fail(LS_ERR_MISMATCH,
                            "ls_reducer_create: parameter %zu differs: rank 0 has %.300s, rank %d "
                            "has %.300s; build the same model on all ranks",
                            n - PARAMS, a, rank, b);
        return ls__fail(
            LS_ERR_MISMATCH,
            "ls_reducer_create: rank %d has no parameter %zu, rank %d has %.300s; build "
            "the same model on all ranks",
            a ? rank : 0, n - PARAMS, a ? 0 : rank, a ? a : b);
    }
}

/* Of a description that is sent: a length from another rank is not believed beyond it. */
static const int64_t length_max = (int64_t)1 << 28;

/* Copies the description of `root` to all ranks; the caller frees it. */
static ls_status share_description(ls_group *group, const ls__description *mine, int root,
                                   ls__description *shared) {
    int64_t length = (int64_t)mine->length;
    LS_TRY(ls_broadcast(group, &length, 1, LS_I64, root));
    if (length < 0 || length > length_max)
        return ls__fail(LS_ERR_MISMATCH,
                        "ls_reducer_create: ranks have different parameters; the list of rank %d, "
                        "%" PRId64 " bytes, is too long to say which",
                        root, length);
    /* One byte more than came: a string always ends. */
    shared->text = calloc((size_t)length + 1, 1);
    if (shared->text == NULL)
        return ls__fail(LS_ERR_MEMORY,
                        "ls_reducer_create: ranks have different parameters, and no memory for "
                        "%" PRId64 " bytes to say which",
                        length);
    shared->length = (size_t)length;
    if (ls_group_rank(group) == root)
        memcpy(shared->text, mine->text, mine->length);
    return ls_broadcast(group, shared->text, shared->length, LS_U8, root);
}

ls_status ls__fingerprint_compare(ls_group *group, ls_status local,
                                  const ls__description *description) {
    int rank = ls_group_rank(group), size = ls_group_size(group);
    char text[LS__FAILURE_TEXT] = "";
    if (local != LS_OK)
        snprintf(text, sizeof text, "%s", ls_error_text());

    const int64_t mine[2] = {local == LS_OK ? (int64_t)description->length : 0,
                             local == LS_OK ? (int64_t)hash(description) : 0};
    int64_t zero[2] = {mine[0], mine[1]};
    LS_TRY(ls_broadcast(group, zero, 2, LS_I64, 0));
    bool differs = zero[0] != mine[0] || zero[1] != mine[1];
    /* The first rank that failed, and the first unlike rank 0; `size` where there is none. */
    int64_t first[2] = {local != LS_OK ? rank : size, differs ? rank : size};
    LS_TRY(ls_all_reduce(group, first, first, 2, LS_I64, LS_MIN));
    if (first[0] < size)
        return ls__share_failure(group, (int)first[0], local, text);
    if (first[1] == size)
        return LS_OK;

    ls__description a = {0}, b = {0};
    ls_status status = LS_OK;
    LS_TRY_OUT(share_description(group, description, 0, &a));
    LS_TRY_OUT(share_description(group, description, (int)first[1], &b));
    status = name_difference(&a, &b, (int)first[1]);
out:
    free(a.text);
    free(b.text);
    return status;
}
