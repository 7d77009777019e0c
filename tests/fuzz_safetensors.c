/* libFuzzer target: any bytes as a safetensors file. Built with -DLOCKSTEP_FUZZ=ON and clang. */
#include "checkpoint/safetensors.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

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
    ls_safetensors_close(file);
    if (total > size || sum > 255 * size)
        abort();
    return 0;
}
