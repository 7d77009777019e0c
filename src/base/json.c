#include "base/json.h"

#include "base/error.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *ls__json_real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ls__json_text(const char *text) {
    json_t *string = json_string(text);
    char *clean = string ? NULL : strdup(text);
    for (char *c = clean; c && *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    if (clean)
        string = json_string(clean);
    free(clean);
    return string;
}

ls_status ls__json_write_line(FILE *file, const char *path, json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(object);
    if (!text)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a line of JSON", path);
    int bad = fputs(text, file) < 0 || fputc('\n', file) < 0 || fflush(file) != 0;
    int error_number = errno;
    free(text);
    if (bad)
        return ls__fail_errno(LS_ERR_IO, error_number, "%s: cannot write", path);
    return LS_OK;
}
