/* A connection between two launchers, in the event loop: JSON objects, one a line, and a beat a second so that each
 * side sees when the other one has gone without a word. Both have proved that they know the token before it is
 * made (rendezvous.c); lines are bounded all the same. */
#ifndef LS_LAUNCH_LINK_H
#define LS_LAUNCH_LINK_H

#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* Silence that counts as gone. Ranks have a longer one: their launchers know first. */
#define LS__LINK_SILENCE_S 4.0

typedef struct ls__link ls__link;

typedef struct ls__link_calls {
    void (*message)(void *context, const json_t *message);
    /* The other side is gone; the link closes itself. */
    void (*gone)(void *context, const char *why);
} ls__link_calls;

/* Takes `fd`, also where it fails. NULL: no memory, or no connection that can be watched. */
ls__link *ls__link_open(uv_loop_t *loop, int fd, const ls__link_calls *calls, void *context);
/* Drops the reference to `message`. Nothing happens where the link is closing. Without memory for it the link is lost:
 * the next ls__link_look says so, for the other side must not wait for what it will never hear. */
void ls__link_send(ls__link *link, json_t *message);
/* Sends a beat when one is due, and ends a link that is silent or lost: call it a few times a second. */
void ls__link_look(ls__link *link);
/* Something has come since `ns` of ls__now_ns. */
bool ls__link_is_heard_since(const ls__link *link, uint64_t ns);
/* Nothing is called back any more. `deliver`: what was sent still leaves, for a second at most. */
void ls__link_close(ls__link *link, bool deliver);

#endif
