/* A thread that does numbered jobs one after the other, beside the thread that asks for them. */
#ifndef LS_REDUCER_RUNNER_H
#define LS_REDUCER_RUNNER_H

#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct ls__runner ls__runner;

/* `run` gets `context` and 0, 1, 2, ... */
ls_status ls__runner_create(ls__runner **runner, ls_status (*run)(void *context, size_t job),
                            void *context);
/* Numbers begin at 0 again; nothing is under way. */
void ls__runner_restart(ls__runner *runner);
/* One job more. */
void ls__runner_post(ls__runner *runner);
/* All that were posted are done, or left out after one that failed, whose error this is. */
ls_status ls__runner_wait(ls__runner *runner);
/* Waits for what is under way. NULL is allowed. */
void ls__runner_destroy(ls__runner *runner);

#endif
