/* A rank that does one operation after another until something happens to it, for the scripts that kill ranks:
 * `program_faults OPERATION COUNT` (see operations.h; "any": all in turn). Says "running" once, prints the error and
 * exits with 4 when one fails. */
#include "operations.h"

#include <stdbool.h>
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc < 3) {
        fputs("usage: program_faults OPERATION COUNT\n", stderr);
        return 2;
    }
    size_t count = strtoul(argv[2], NULL, 10);
    bool any = strcmp(argv[1], "any") == 0;
    ls_job *job;
    void *memory;
    ls_status status = ls_job_init(&job, NULL);
    if (status == LS_OK)
        status = ls_group_alloc(ls_job_world(job), OPERATIONS_COUNT * sizeof(float), &memory);
    for (int i = 0; status == LS_OK; i++) {
        if (i == 5)
            puts("running");
        fflush(stdout);
        status = operations_run(ls_job_world(job), any ? operations[i % OPERATIONS] : argv[1],
                                memory, count);
    }
    fprintf(stderr, "%s\n", ls_error_text());
    return 4; /* without ls_job_finish, as after an exception */
}
