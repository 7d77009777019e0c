/* libFuzzer target: any bytes as a flight record's file, and any record to the diagnosis. Built with
 * -DLOCKSTEP_FUZZ=ON and clang. */
#include "launch/diagnosis.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { RANKS = 3 };

static void diagnose(const ls__flight_record *record) {
    ls__diagnosis *d;
    if (ls__diagnosis_make(&d, record, RANKS) != LS_OK)
        return;
    json_decref(ls__diagnosis_json(d));
    for (int i = 0; i < d->stall_count; i++) {
        if (strlen(d->stall[i].text) >= sizeof d->stall[i].text)
            abort();
    }
    ls__diagnosis_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static ls__flight_record record[RANKS];
    static ls__flight flight;
    for (int r = 0; r < RANKS; r++) {
        if (ls__flight_parse((const char *)bytes, size, "fuzz", &record[r]) != LS_OK)
            record[r].entry_count = record[r].group_count = 0;
    }
    diagnose(record);
    /* the same bytes as the memory of ranks */
    memcpy(&flight, bytes, size < sizeof flight ? size : sizeof flight);
    for (int r = 0; r < RANKS; r++) {
        record[r] = (ls__flight_record){.rank = r, .world_size = RANKS, .pid = r};
        ls__flight_read(&flight, &record[r]);
    }
    diagnose(record);
    return 0;
}
