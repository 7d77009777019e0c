/* libFuzzer target: any bytes as a safetensors file. Built with -DLOCKSTEP_FUZZ=ON and clang. */
#include "checkpoint/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* What was accepted can be written again, and means the same then. */
static void write_again(const ls_safetensors *file) {
    size_t count = ls_safetensors_count(file), header_size = 0, total = 0;
    ls_safetensors_entry *entries = calloc(count + 1, sizeof *entries);
    char *header = NULL;
    for (size_t i = 0; i < count; i++) {
        entries[i] = *ls_safetensors_get(file, i);
        total += entries[i].bytes;
    }
    if (ls__safetensors_make_header("again", entries, count, NULL, NULL, 0, &header,
                                    &header_size) != LS_OK)
        abort();
    unsigned char *image = malloc(header_size + total + 1);
    size_t at = header_size;
    memcpy(image, header, header_size);
    for (size_t i = 0; i < count; at += entries[i++].bytes)
        if (entries[i].bytes > 0)
            memcpy(image + at, entries[i].data, entries[i].bytes);
    ls_safetensors *again;
    if (ls__safetensors_parse(&again, image, at, "again") != LS_OK ||
        ls_safetensors_count(again) != count)
        abort();
    for (size_t i = 0; i < count; i++) {
        const ls_safetensors_entry *e = ls_safetensors_find(again, entries[i].name);
        if (!e || e->bytes != entries[i].bytes || e->dims != entries[i].dims ||
            (e->bytes > 0 && memcmp(e->data, entries[i].data, e->bytes) != 0))
            abort();
    }
    ls_safetensors_close(again);
    free(image);
    free(header);
    free(entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    ls_safetensors *file;
    if (ls__safetensors_parse(&file, bytes, size, "fuzz") != LS_OK)
        return 0;
    /* What was accepted must tile the data: touch every byte, count them, find every name. */
    size_t total = 0;
    unsigned sum = 0;
    for (size_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_get(file, i);
        for (size_t j = 0; j < entry->bytes; j++)
            sum += ((const uint8_t *)entry->data)[j];
        total += entry->bytes;
        if (ls_safetensors_find(file, entry->name) != entry)
            abort();
    }
    write_again(file);
    ls_safetensors_close(file);
    if (total > size || sum > 255 * size)
        abort();
    return 0;
}
