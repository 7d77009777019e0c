/* Where the launchers of all machines meet: it knows the nodes, asks the state machine (rounds.h) what is to be done, and
 * tells them. It lives in one launcher, which is node 0; where there is one machine it has no sockets. */
#ifndef LS_LAUNCH_MEETING_H
#define LS_LAUNCH_MEETING_H

#include "launch/job.h"
#include "launch/rendezvous.h"

typedef struct ls__meeting ls__meeting;

/* `rendezvous` NULL: one machine. */
ls_status ls__meeting_open(ls__launch_job *job, ls__rendezvous *rendezvous);
void ls__meeting_close(ls__launch_job *job);

/* What happens on this machine. */
void ls__meeting_signal(ls__launch_job *job, int signal_number);
/* The user has asked twice: all ranks everywhere, at once. */
void ls__meeting_kill(ls__launch_job *job);
void ls__meeting_failed(ls__launch_job *job);
void ls__meeting_ended(ls__launch_job *job);

/* Does what is to be done; milliseconds until it wants to be asked again, 0: not before something happens. */
int ls__meeting_look(ls__launch_job *job);

#endif
