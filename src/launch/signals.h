/* The signals that a launcher takes. They are held from its first moment, before any handler is there, to its last:
 * one that comes while it begins ends the job as a later one does, and one that comes when all is over changes
 * nothing. */
#ifndef LS_LAUNCH_SIGNALS_H
#define LS_LAUNCH_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <uv.h>

enum { LS__SIGNALS = 6 };

typedef struct ls__signals {
    uv_signal_t handle[LS__SIGNALS];
} ls__signals;

/* Blocks them; *before becomes the mask of the caller. */
void ls__signals_hold(sigset_t *before);
/* Handlers in `loop`, which is given `data` with each, and the signals are let through. */
void ls__signals_open(ls__signals *signals, uv_loop_t *loop, uv_signal_cb handler, void *data);
/* Blocks them again; the handles are closing. */
void ls__signals_close(ls__signals *signals);
/* As it was before the hold. `forget`: what has come since they were closed is dropped. */
void ls__signals_release(const sigset_t *before, bool forget);

#endif
