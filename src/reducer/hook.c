/* Hooks by their texts: "kind" or "kind:key=value,key=value". */
#include "base/error.h"
#include "reducer/hooks.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 2 };

/* What a kind takes: `least` to `most`, whole numbers where `whole`. */
typedef struct setting {
    const char *name;
    bool whole, needed, given;
    double least, most, value;
} setting;

static ls_status bad(const char *text, const char *why) {
    return ls__fail(LS_ERR_ARGUMENT,
                    "hook %.100s: %s; want none, bf16, f16, powersgd:rank=4[,start=N] or "
                    "topk:ratio=0.01",
                    text, why);
}

/* A number from `text` up to a comma or the end. */
static bool read_number(const char *text, setting *key, const char **end) {
    char *stop;
    errno = 0;
    double value = strtod(text, &stop);
    if (errno || stop == text || (*stop && *stop != ','))
        return false;
    if (!(value >= key->least && value <= key->most))
        return false;
    if (key->whole && value != (double)(int64_t)value)
        return false;
    key->value = value;
    *end = stop;
    return true;
}

/* "key=value,key=value" behind the colon; "": nothing there. */
static ls_status read_keys(const char *text, const char *at, setting keys[KEYS]) {
    while (*at) {
        setting *found = NULL;
        for (int i = 0; i < KEYS && keys[i].name; i++) {
            size_t length = strlen(keys[i].name);
            if (strncmp(at, keys[i].name, length) == 0 && at[length] == '=') {
                found = &keys[i];
                at += length + 1;
                break;
            }
        }
        char why[160];
        if (!found)
            return bad(text, "unknown setting");
        snprintf(why, sizeof why, "%s is given twice", found->name);
        if (found->given)
            return bad(text, why);
        found->given = true;
        snprintf(why, sizeof why, "%s wants %s from %g to %g", found->name,
                 found->whole ? "a whole number" : "a number", found->least, found->most);
        if (!read_number(at, found, &at))
            return bad(text, why);
        if (*at == ',' && *++at == '\0')
            return bad(text, "ends with a comma");
    }
    for (int i = 0; i < KEYS && keys[i].name; i++)
        if (keys[i].needed && !keys[i].given) {
            char why[80];
            snprintf(why, sizeof why, "%s is missing", keys[i].name);
            return bad(text, why);
        }
    return LS_OK;
}

ls_status ls_hook_create(ls_reducer_hook **hook, const char *text) {
    if (!hook || !text)
        return ls__fail(LS_ERR_ARGUMENT, "ls_hook_create: %s is NULL", hook ? "text" : "hook");
    *hook = NULL;
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    const char *settings = colon ? colon + 1 : "";
    if (colon && !*settings)
        return bad(text, "nothing behind the colon");
    bool plain = !colon;
    if (plain && strcmp(text, "none") == 0)
        return LS_OK;
    if (plain && strcmp(text, "bf16") == 0)
        return ls__hook_half_create(hook, LS_BF16);
    if (plain && strcmp(text, "f16") == 0)
        return ls__hook_half_create(hook, LS_F16);
    if (length == 4 && strncmp(text, "topk", 4) == 0) {
        setting keys[KEYS] = {{.name = "ratio", .needed = true, .least = 1e-9, .most = 1}};
        LS_TRY(read_keys(text, settings, keys));
        return ls__hook_topk_create(hook, keys[0].value);
    }
    if (length == 8 && strncmp(text, "powersgd", 8) == 0) {
        setting keys[KEYS] = {
            {.name = "rank", .whole = true, .needed = true, .least = 1, .most = LS__POWERSGD_RANK},
            {.name = "start", .whole = true, .least = 0, .most = 1e15}};
        LS_TRY(read_keys(text, settings, keys));
        return ls__hook_powersgd_create(hook, (size_t)keys[0].value, (uint64_t)keys[1].value);
    }
    return bad(text, "unknown kind");
}

void ls_hook_destroy(ls_reducer_hook *hook) {
    if (hook && hook->destroy)
        hook->destroy(hook->context);
}

size_t ls__hook_elements(const ls_reducer_param *param) {
    if (param->frozen || param->exact || param->dtype != LS_F32)
        return 0;
    size_t elements = 1;
    for (size_t d = 0; d < param->dims; d++)
        elements *= param->shape[d]; /* the layout has looked whether it overflows */
    return elements;
}
