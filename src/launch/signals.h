/* The signals that a launcher takes, also where its caller has blocked them. They are held from its first moment, before
 * any handler is there, to its last: one that comes while it begins ends the job as a later one does, and one that
 * comes when all is over, or after an error, changes nothing as long as ls__launch has not returned; then it does what
 * it did before. Only the main thread takes them: another one is made while they are held, and so never lets them
 * through. */
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
/* As it was before the hold. What has come since they were closed is dropped, but for what the caller holds itself. */
void ls__signals_release(const sigset_t *before);

#endif
