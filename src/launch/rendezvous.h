/* How launchers find each other: one listens on the rendezvous address, the others call it. Both sides prove that they
 * know the job's token (comm/tcp/auth.c), which is LOCKSTEP_TOKEN or stands in the file of --rendezvous-file. */
#ifndef LS_LAUNCH_RENDEZVOUS_H
#define LS_LAUNCH_RENDEZVOUS_H

#include "launch/launch.h"
#include "launch/plan.h"
#include <stdatomic.h>
#include <stdint.h>

typedef struct ls__rendezvous ls__rendezvous;

enum { LS__NONCE_BYTES = 65, LS__CALLER_HOST_BYTES = 64 };

typedef struct ls__caller {
    int fd; /* -1: nobody */
    int64_t pid;
    char host[LS__CALLER_HOST_BYTES];
} ls__caller;

/* Whether the options say in one way where the launchers meet, and which of them listens. */
ls_status ls__rendezvous_check(const ls__launch_options *options);
/* Opens what has been checked so. *listens: this launcher is where the others meet, and can be called from now on
 * (and the file says where). */
ls_status ls__rendezvous_open(ls__rendezvous **rendezvous, const ls__launch_options *options,
                              const char *command, bool *listens);
void ls__rendezvous_close(ls__rendezvous *rendezvous);
/* "10.0.0.1:29400", once known; "" before. */
const char *ls__rendezvous_where(const ls__rendezvous *rendezvous);

/* --- where they meet --- */

/* The next who has proved itself; never waits. */
ls_status ls__rendezvous_accept(ls__rendezvous *rendezvous, ls__caller *caller);
/* Somebody is about to prove itself: ask again soon. */
bool ls__rendezvous_is_busy(const ls__rendezvous *rendezvous);
/* Fills address, ports and listener of a plan, for ranks that meet on this machine. */
ls_status ls__rendezvous_hold(const ls__rendezvous *rendezvous, ls__plan *plan);
void ls__rendezvous_nonce(char nonce[LS__NONCE_BYTES]);

/* --- the others --- */

/* Calls until it is let in, `cancel` is set or the time is up; for a thread of its own. `address` becomes the
 * one that was reached. Who has no number tries to listen, too, for what had the port may be gone: *listens, as from
 * ls__rendezvous_open, and there is no `fd`. */
ls_status ls__rendezvous_call(ls__rendezvous *rendezvous, double timeout_s,
                              const atomic_bool *cancel, bool *listens, int *fd,
                              char address[LS__PLAN_ADDRESS_BYTES]);

/* --- both --- */

/* The ranks' own secret, from the job's and a nonce that may be overheard. False: no nonce. */
bool ls__rendezvous_token(const ls__rendezvous *rendezvous, const char *nonce,
                          char token[LS__PLAN_TOKEN_BYTES]);

#endif
