/* What lockstep doctor finds; shared by its files only. */
#ifndef LS_CLI_DOCTOR_H
#define LS_CLI_DOCTOR_H

#include <stddef.h>

typedef enum ls__finding_state {
    LS__FINDING_OK,      /* works, or just a fact */
    LS__FINDING_MISSING, /* something optional is not there */
    LS__FINDING_BROKEN,  /* something required does not work: exit code 1 */
} ls__finding_state;

typedef struct ls__finding {
    const char *section, *name;
    ls__finding_state state;
    char value[200];
    const char *advice; /* what to do about it; NULL when all is well */
} ls__finding;

typedef struct ls__findings {
    ls__finding rows[64];
    size_t count;
    const char *section; /* of the rows to come */
} ls__findings;

void ls__findings_add(ls__findings *findings, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As above for what is missing or broken, and what to do. */
void ls__findings_fault(ls__findings *findings, ls__finding_state state, const char *advice,
                        const char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

void ls__doctor_software(ls__findings *findings);
void ls__doctor_machine(ls__findings *findings);
void ls__doctor_transports(ls__findings *findings);
void ls__doctor_limits(ls__findings *findings);

#endif
