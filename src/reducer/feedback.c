#include "reducer/feedback.h"

#include "base/error.h"
#include <stdlib.h>
#include <string.h>

ls_status ls__feedback_start(ls__feedback_table *table, size_t params) {
    size_t room = params ? params : 1;
    ls__feedback_free(table);
    table->row = calloc(room, sizeof *table->row);
    table->of_param = calloc(room, sizeof *table->of_param);
    table->params = params;
    return table->row && table->of_param
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "no memory for %zu tensors", params);
}

ls_status ls__feedback_add(ls__feedback_table *table, size_t param, const char *name,
                           size_t count) {
    ls__feedback *row = &table->row[table->rows++];
    *row = (ls__feedback){.param = param,
                          .name = strdup(name),
                          .count = count,
                          .error = calloc(count, sizeof *row->error)};
    table->of_param[param] = row;
    return row->name && row->error
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "no memory for the error of %zu elements", count);
}

void ls__feedback_free(ls__feedback_table *table) {
    for (size_t i = 0; i < table->rows; i++) {
        free(table->row[i].name);
        free(table->row[i].error);
    }
    free(table->row);
    free(table->of_param);
    *table = (ls__feedback_table){0};
}

void ls__feedback_apply(const ls__feedback *feedback, float *gradient) {
    for (size_t i = 0; i < feedback->count; i++)
        gradient[i] += feedback->error[i];
}
