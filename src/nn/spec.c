#include "nn/spec.h"

#include "base/error.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPT_WANTED "gpt:layers=,heads=,width=,context=,vocab= (and dropout= if wanted)"
#define KNOWN "mlp:IN,...,OUT, cnn, resnet18, " GPT_WANTED ", gpt2-124m"

enum { SHOWN = 100 }; /* characters of the user's text that messages repeat */

/* One part of the spec: the text between separators. */
typedef struct piece {
    const char *text;
    size_t length;
} piece;

#define PIECE(p) (int)((p).length < SHOWN ? (p).length : SHOWN), (p).text

/* A key of the form key=value: a word of ls__norm where `norm` is set; else whole numbers in 1..limit, or
 * with limit 0 a probability. */
typedef struct key {
    const char *name;
    size_t limit;
    size_t *number;
    double *probability;
    ls__norm *norm;
    bool given;
    piece value;
} key;

static piece split(const char **rest, char separator) {
    const char *end = strchrnul(*rest, separator);
    piece p = {.text = *rest, .length = (size_t)(end - *rest)};
    *rest = *end ? end + 1 : NULL;
    return p;
}

static bool equal(piece p, const char *text) {
    return strlen(text) == p.length && memcmp(p.text, text, p.length) == 0;
}

/* Decimal digits only, 1..limit. */
static bool parse_number(piece p, size_t limit, size_t *number) {
    size_t n = 0;
    if (p.length == 0)
        return false;
    for (size_t i = 0; i < p.length; i++) {
        if (p.text[i] < '0' || p.text[i] > '9')
            return false;
        n = n * 10 + (size_t)(p.text[i] - '0');
        if (n > limit)
            return false;
    }
    *number = n;
    return n >= 1;
}

/* Decimal digits with at most one dot, below 1: "0", "0.25", ".1". Does not depend on the locale. */
static bool parse_probability(piece p, double *probability) {
    double digits = 0, scale = 1;
    bool dot = false, any = false;
    if (p.length > 15)
        return false;
    for (size_t i = 0; i < p.length; i++) {
        char c = p.text[i];
        if (c == '.' && !dot) {
            dot = true;
            continue;
        }
        if (c < '0' || c > '9')
            return false;
        any = true;
        digits = digits * 10 + (c - '0');
        scale *= dot ? 10 : 1;
    }
    *probability = digits / scale;
    return any && (float)*probability < 1; /* the operation takes it as f32 */
}

static ls_status fail_unknown_key(const char *spec, piece name, const key *keys, size_t count) {
    char known[128] = "";
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", keys[i].name);
    }
    return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": unknown key \"%.*s\"; known are %s", SHOWN,
                    spec, PIECE(name), known);
}

static const char *const norms[] = {"none", "batch", "sync"};

/* `none` is a choice only where there need be no batch norm. */
static ls_status parse_norm(const char *spec, const key *k) {
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (equal(k->value, norms[i]) && (i != LS__NORM_NONE || *k->norm == LS__NORM_NONE)) {
            *k->norm = (ls__norm)i;
            return LS_OK;
        }
    return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": norm is \"%.*s\", want %sbatch or sync",
                    SHOWN, spec, PIECE(k->value), *k->norm == LS__NORM_NONE ? "none, " : "");
}

static ls_status parse_value(const char *spec, const key *k) {
    if (k->norm)
        return parse_norm(spec, k);
    if (k->limit && !parse_number(k->value, k->limit, k->number))
        return ls__fail(LS_ERR_ARGUMENT,
                        "model \"%.*s\": %s is \"%.*s\", want a whole number from 1 to %zu", SHOWN,
                        spec, k->name, PIECE(k->value), k->limit);
    if (!k->limit && !parse_probability(k->value, k->probability))
        return ls__fail(LS_ERR_ARGUMENT,
                        "model \"%.*s\": %s is \"%.*s\", want a decimal number from 0 to below 1",
                        SHOWN, spec, k->name, PIECE(k->value));
    return LS_OK;
}

/* Fills the keys from "a=1,b=2"; rest NULL: there are none. */
static ls_status parse_keys(const char *spec, const char *rest, key *keys, size_t count) {
    while (rest) {
        piece part = split(&rest, ',');
        piece name = {.text = part.text, .length = part.length};
        const char *equals = memchr(part.text, '=', part.length);
        if (!equals)
            return ls__fail(LS_ERR_ARGUMENT,
                            "model \"%.*s\": \"%.*s\" is not of the form key=value", SHOWN, spec,
                            PIECE(part));
        name.length = (size_t)(equals - part.text);
        size_t i = 0;
        while (i < count && !equal(name, keys[i].name))
            i++;
        if (i == count)
            return fail_unknown_key(spec, name, keys, count);
        if (keys[i].given)
            return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": %s is given twice", SHOWN, spec,
                            keys[i].name);
        keys[i].given = true;
        keys[i].value = (piece){.text = equals + 1, .length = part.length - name.length - 1};
        LS_TRY(parse_value(spec, &keys[i]));
    }
    return LS_OK;
}

static ls_status parse_mlp(ls__spec *spec, const char *text, const char *rest) {
    const size_t limit = 1 << 24;
    size_t used = (size_t)snprintf(spec->text, sizeof spec->text, "mlp:");
    while (rest) {
        piece part = split(&rest, ',');
        if (spec->width_count == LS__SPEC_WIDTHS)
            return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": more than %d widths", SHOWN, text,
                            LS__SPEC_WIDTHS);
        if (!parse_number(part, limit, &spec->widths[spec->width_count]))
            return ls__fail(LS_ERR_ARGUMENT,
                            "model \"%.*s\": width %zu is \"%.*s\", want a whole number from 1 to "
                            "%zu",
                            SHOWN, text, spec->width_count + 1, PIECE(part), limit);
        used += (size_t)snprintf(spec->text + used, sizeof spec->text - used, "%s%zu",
                                 spec->width_count ? "," : "", spec->widths[spec->width_count]);
        spec->width_count++;
    }
    if (spec->width_count < 2)
        return ls__fail(LS_ERR_ARGUMENT,
                        "model \"%.*s\": %zu widths, want at least 2, as in mlp:784,128,10", SHOWN,
                        text, spec->width_count);
    return LS_OK;
}

static ls_status parse_cnn(ls__spec *spec, const char *text, const char *rest) {
    key keys[] = {{.name = "dropout", .probability = &spec->dropout},
                  {.name = "norm", .norm = &spec->norm}};
    LS_TRY(parse_keys(text, rest, keys, 2));
    spec->dropout_given = keys[0].given;
    size_t used =
        (size_t)snprintf(spec->text, sizeof spec->text, keys[0].given ? "cnn:dropout=%.*s" : "cnn",
                         PIECE(keys[0].value));
    if (spec->norm != LS__NORM_NONE)
        snprintf(spec->text + used, sizeof spec->text - used, "%snorm=%s",
                 keys[0].given ? "," : ":", norms[spec->norm]);
    return LS_OK;
}

static ls_status parse_resnet(ls__spec *spec, const char *text, const char *rest) {
    enum { CHANNELS, SIDE, CLASSES, WIDTH, NORM, KEYS, LARGEST_SIDE = 32 };
    key keys[KEYS] = {
        {.name = "channels", .limit = 1 << 10, .number = &spec->channels},
        {.name = "side", .limit = LARGEST_SIDE, .number = &spec->side},
        {.name = "classes", .limit = 1 << 20, .number = &spec->classes},
        {.name = "width", .limit = 1 << 12, .number = &spec->width},
        {.name = "norm", .norm = &spec->norm},
    };
    spec->norm = LS__NORM_BATCH;
    spec->channels = 3;
    spec->classes = 10;
    spec->width = 64;
    LS_TRY(parse_keys(text, rest, keys, KEYS));
    if (!keys[SIDE].given) /* grey images come from the MNIST family */
        spec->side = spec->channels == 1 ? 28 : LARGEST_SIDE;
    if (spec->side % 2 != 0)
        return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": side %zu is odd, want an even number",
                        SHOWN, text, spec->side);
    snprintf(spec->text, sizeof spec->text,
             "resnet18:channels=%zu,side=%zu,classes=%zu,width=%zu%s", spec->channels, spec->side,
             spec->classes, spec->width, spec->norm == LS__NORM_SYNC ? ",norm=sync" : "");
    return LS_OK;
}

static ls_status parse_gpt(ls__spec *spec, const char *text, const char *rest,
                           size_t default_vocab) {
    enum { VOCAB = 4, REQUIRED = 5, DROPOUT = 5, KEYS = 6 };
    key keys[KEYS] = {
        {.name = "layers", .limit = 4096, .number = &spec->layers},
        {.name = "heads", .limit = 1 << 16, .number = &spec->heads},
        {.name = "width", .limit = 1 << 20, .number = &spec->width},
        {.name = "context", .limit = 1 << 24, .number = &spec->context},
        {.name = "vocab", .limit = 1 << 24, .number = &spec->vocab},
        {.name = "dropout", .probability = &spec->dropout},
    };
    LS_TRY(parse_keys(text, rest, keys, KEYS));
    if (!keys[VOCAB].given && default_vocab != 0) {
        if (default_vocab > keys[VOCAB].limit)
            return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": the data's vocab %zu is above %zu",
                            SHOWN, text, default_vocab, keys[VOCAB].limit);
        spec->vocab = default_vocab;
        keys[VOCAB].given = true;
    }
    for (size_t i = 0; i < REQUIRED; i++)
        if (!keys[i].given)
            return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": %s is missing, want " GPT_WANTED,
                            SHOWN, text, keys[i].name);
    if (spec->width % spec->heads != 0)
        return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": width %zu is not a multiple of heads %zu",
                        SHOWN, text, spec->width, spec->heads);
    size_t used = (size_t)snprintf(
        spec->text, sizeof spec->text, "gpt:layers=%zu,heads=%zu,width=%zu,context=%zu,vocab=%zu",
        spec->layers, spec->heads, spec->width, spec->context, spec->vocab);
    if (spec->dropout > 0)
        snprintf(spec->text + used, sizeof spec->text - used, ",dropout=%.*s",
                 PIECE(keys[DROPOUT].value));
    return LS_OK;
}

ls_status ls__spec_parse(ls__spec *spec, const char *text, size_t default_vocab) {
    *spec = (ls__spec){0};
    if (!text)
        return ls__fail(LS_ERR_ARGUMENT, "model: no spec given; known are " KNOWN);
    const char *rest = text;
    piece kind = split(&rest, ':');
    if (equal(kind, "mlp")) {
        spec->kind = LS__MLP;
        return parse_mlp(spec, text, rest);
    }
    if (equal(kind, "cnn")) {
        spec->kind = LS__CNN;
        return parse_cnn(spec, text, rest);
    }
    if (equal(kind, "resnet18")) {
        spec->kind = LS__RESNET;
        return parse_resnet(spec, text, rest);
    }
    spec->kind = LS__GPT;
    if (equal(kind, "gpt"))
        return parse_gpt(spec, text, rest, default_vocab);
    if (strcmp(text, "gpt2-124m") == 0)
        return parse_gpt(spec, text, "layers=12,heads=12,width=768,context=1024,vocab=50257", 0);
    return ls__fail(LS_ERR_ARGUMENT, "model \"%.*s\": unknown; known are " KNOWN, SHOWN, text);
}
