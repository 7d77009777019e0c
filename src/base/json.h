/* JSON glue over jansson: one-line objects for machines. Not in liblockstep-comm. */
#ifndef LS_BASE_JSON_H
#define LS_BASE_JSON_H

#include <jansson.h>
#include <lockstep/status.h>

/* Writes `object` as one compact line with newline and drops the reference. Numbers keep 17 digits.
 * NaN and infinities, which JSON lacks, must be given as null: see ls__json_real. */
ls_status ls__json_write_line(FILE *file, const char *path, json_t *object);

/* A string. Paths and what other processes wrote need not be UTF-8, which JSON's strings are: then every byte beyond
 * ASCII is a '?'. NULL: no memory. */
json_t *ls__json_text(const char *text);

/* A real, or null where JSON has no such number. */
json_t *ls__json_real(double value);

#endif
