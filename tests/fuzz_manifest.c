/* libFuzzer target: any bytes as the manifest of a checkpoint; once as they are, once with the checksum that
 * fits, which nothing would get past otherwise. Built with -DLOCKSTEP_FUZZ=ON and clang. */
#include "checkpoint/manifest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* The text with the right "xxh64", or NULL where it is no JSON object. */
static char *with_checksum(const uint8_t *bytes, size_t size) {
    json_t *root = json_loadb((const char *)bytes, size, JSON_REJECT_DUPLICATES, NULL);
    char *text = NULL, hash[17];
    if (json_is_object(root)) {
        json_object_del(root, "xxh64");
        char *plain = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
        if (plain) {
            snprintf(hash, sizeof hash, "%016llx",
                     (unsigned long long)XXH64(plain, strlen(plain), 0));
            json_object_set_new(root, "xxh64", json_string(hash));
            text = json_dumps(root, JSON_REAL_PRECISION(17));
        }
        free(plain);
    }
    json_decref(root);
    return text;
}

/* What was accepted must make sense: plain names, parts that tile. And it must come back from its own text. */
static void check(const ls__manifest *m) {
    for (size_t i = 0; i < m->file_count; i++) {
        uint64_t at = 0;
        for (size_t p = 0; p < m->files[i].part_count; p++) {
            if (m->files[i].parts[p].offset != at)
                abort();
            at += m->files[i].parts[p].bytes;
        }
        if (at != m->files[i].bytes || strchr(m->files[i].name, '/') || m->files[i].name[0] == '.')
            abort();
    }
    char *text = ls__manifest_text(m);
    ls__manifest again;
    if (!text || ls__manifest_parse(&again, text, strlen(text), "again") != LS_OK ||
        again.progress.step != m->progress.step || again.file_count != m->file_count ||
        again.fact_count != m->fact_count)
        abort();
    ls__manifest_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    ls__manifest m;
    if (ls__manifest_parse(&m, (const char *)bytes, size, "fuzz") == LS_OK)
        ls__manifest_free(&m);
    char *text = with_checksum(bytes, size);
    if (text && ls__manifest_parse(&m, text, strlen(text), "fuzz") == LS_OK) {
        check(&m);
        ls__manifest_free(&m);
    }
    free(text);
    return 0;
}
