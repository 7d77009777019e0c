/* --local-sgd: the steps of `lockstep train` in which ranks train by themselves. */
#include "base/error.h"
#include "cli/train.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool read_count(const char *text, const char **end, uint64_t *count) {
    char *stop;
    errno = 0;
    *count = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0 && *text >= '0' && *text <= '9' && *count <= INT64_MAX / 2;
}

bool ls__train_local_parse(const char *text, uint64_t *every, uint64_t *start) {
    static const char word[] = ",start=";
    const char *end;
    *start = 0;
    if (!read_count(text, &end, every) || *every == 0)
        return false;
    if (strncmp(end, word, sizeof word - 1) == 0)
        return read_count(end + sizeof word - 1, &end, start) && *end == '\0';
    return *end == '\0';
}

ls_status ls__train_local_open(ls__train *train, const ls_ddp_options *ddp) {
    ls_local_sgd_options options = {.done = train->first_step, .ddp = *ddp};
    ls__train_local_parse(train->settings->local_sgd, &options.every, &options.start);
    LS_TRY(ls_local_sgd_create(&train->local, train->model, train->world, &options));
    train->ddp = ls_local_sgd_ddp(train->local);
    return LS_OK;
}

/* What all ranks did since the last average is known with the next one. */
static void take(ls__step_record *record, const ls_local_sgd_sync *sync) {
    record->averaged = sync->averaged;
    record->samples = sync->weight;
    record->stop = sync->stop;
    if (sync->averaged)
        record->loss = sync->loss;
}

ls_status ls__train_local_step(ls__train *train, double weight, ls__step_record *record) {
    if (!train->local)
        return LS_OK;
    record->local = ls_local_sgd_is_local(train->local);
    ls_local_sgd_sync sync;
    LS_TRY(ls_local_sgd_step(train->local, weight, record->loss, &sync));
    train->ddp = ls_local_sgd_ddp(train->local);
    if (record->local)
        take(record, &sync);
    return LS_OK;
}

ls_status ls__train_local_settle(ls__train *train, ls__step_record *record) {
    ls_local_sgd_sync sync;
    if (!train->local)
        return LS_OK;
    LS_TRY(ls_local_sgd_average(train->local, &sync));
    if (sync.averaged)
        take(record, &sync);
    return LS_OK;
}
