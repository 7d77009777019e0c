/* The launcher's view of a running job; shared by the files of this folder only.
 *
 *   launch.c   opens and closes it: event loop, output
 *   signals.c  which signals it takes, and from when to when
 *   member.c   this machine's part: rounds begin and end as the meeting says
 *   meeting*.c where the launchers of all machines meet; exists on one of them, also where there is only one
 *   ranks.c    starts the ranks of a round and reads what they write
 *   ending.c   ends them
 *   stopped.c  does not wait without end for one that is stopped
 *   orphans.c  ends what ranks left behind
 *   logs.c     what ranks write, into --log-dir
 *   check.c    what is refused before there is a job */
#ifndef LS_LAUNCH_JOB_H
#define LS_LAUNCH_JOB_H

#include "comm/board.h"
#include "launch/launch.h"
#include "launch/lines.h"
#include "launch/orphans.h"
#include "launch/outcome.h"
#include "launch/plan.h"
#include "launch/signals.h"
#include "launch/watcher.h"
#include <stdint.h>
#include <uv.h>

/* When a rank has ended, its children get this long to write their last words before they are killed,
 * and then whoever still holds the rank's pipes is not waited for. */
#define LS__LEFTOVER_S 0.3
#define LS__CUT_S 0.6

enum { LS__STDOUT, LS__STDERR, LS__STREAMS };

typedef struct ls__launch_job ls__launch_job;

typedef struct ls__stream {
    uv_pipe_t pipe;
    bool open;
    ls__lines lines;
    ls__sink file; /* of --log-dir; fd -1: none */
    struct ls__rank *rank;
} ls__stream;

typedef struct ls__rank {
    ls__launch_job *job;
    int number; /* in the job */
    int local;  /* on this machine */
    pid_t pid;  /* and process group; 0: not started */
    bool exited;
    bool group_left; /* the process is gone, children of it may live */
    int exit_code, signal;
    int signal_sent; /* the last one that the launcher sent */
    uint64_t exited_ns;
    bool stopped;         /* by a signal, and has not gone on */
    uint64_t leftover_ns; /* when what is left of the group is killed */
    uint64_t cut_ns;      /* when its pipes are closed although somebody holds them */
    ls__stream streams[LS__STREAMS];
} ls__rank;

struct ls__launch_job {
    const ls__launch_options *options;
    const char *command, *path;
    uv_loop_t loop;
    ls__signals signals;
    const sigset_t *rank_mask; /* the signals that ranks find blocked: those of the caller */
    uv_timer_t tick;
    int tick_ms; /* 0: it does not run */
    bool paused, closing;
    bool settling, unsettled;
    ls__sink sinks[LS__STREAMS];
    ls__sink *error_sink; /* where stderr goes: the sink of stdout when both are the same file */
    ls__watcher watcher;
    ls__orphans orphans;
    int signal;      /* the launcher was told to stop; SIGPIPE: nobody reads stdout any more */
    int write_error; /* errno: output could not be written */
    bool over;       /* nothing more will begin: `code` is what the command returns */
    int code;
    ls_status status; /* why the job could not be started, with `error` */
    char error[1024];
    double stopped_s;            /* stopped.h */
    struct ls__meeting *meeting; /* NULL: it is on another machine */
    struct ls__member *member;

    /* the round under way */
    bool in_round;
    ls__plan plan;
    int segment_fd; /* -1: none */
    int board_fd;
    ls__board board; /* where the ranks show what they do */
    ls__rank *ranks; /* (plan.ranks) */
    int started, running;
    int first_failure; /* local rank, -1: none */
    bool ending; /* its ranks have been told to end, or to leave: no end is a failure any more */
    uint64_t
        stuck_ns; /* since when it waits for stopped ranks only, on all machines: stopped.h; 0: no */
    uint64_t started_ns;
    uint64_t terminate_ns, kill_ns; /* 0: not planned */
    uint64_t monitor_ns;            /* the next table */
    bool lost_lines; /* a file of --log-dir could not be written, and that was said */
};

/* launch.c: called after everything that happened */
void ls__job_settle(ls__launch_job *job);

/* ranks.c. On failure what was started is killed; the round is over when all of it has ended. */
ls_status ls__job_start_ranks(ls__launch_job *job);
/* Sees which of them have ended. */
void ls__job_reap(ls__launch_job *job);
void ls__job_free_ranks(ls__launch_job *job);
void ls__stream_finish(ls__stream *stream);
void ls__job_pause_reading(ls__launch_job *job, bool pause);

/* ending.c: how a round ends early. */
void ls__job_rank_exited(ls__rank *rank);
/* The ranks are to finish and leave: the signal, and after the grace SIGKILL. */
void ls__job_stop_ranks(ls__launch_job *job, int signal_number);
/* What the ranks get where the launcher got `signal_number`: a terminal that closes is as good a reason to save and
 * leave as SIGTERM is, and they know that one. */
int ls__job_signal_for_ranks(int signal_number);
/* One that means something to the ranks and nothing to the launcher. */
void ls__job_forward(ls__launch_job *job, int signal_number);
/* They are to end now: others, whom they wait for, are gone. */
void ls__job_end_ranks(ls__launch_job *job);
/* The user asks again: at once, and without the rest of their output. */
void ls__job_kill_ranks(ls__launch_job *job);
/* Seconds that ranks may take to end in either way. */
double ls__job_longest_grace(const ls__launch_options *options);
/* Sends to every rank's process group. */
void ls__job_signal_all(ls__launch_job *job, int signal_number);
/* Looks at the clock; true while some deadline is still to come. */
bool ls__job_meet_deadlines(ls__launch_job *job);

/* flight.c: what rank `rank` showed on the board as of its end, and into the folder that was asked for. */
void ls__job_flight_read(const ls__rank *rank, ls__flight_record *record);
void ls__job_flight_write(const ls__launch_job *job);
/* Before the ranks start: says on stderr when that folder cannot be written. Makes nothing: of a program that does
 * not use Lockstep there are no records. */
void ls__job_flight_check(const ls__launch_job *job);

/* monitor.c: the table of --monitor, when it is due. */
void ls__job_monitor(ls__launch_job *job);

/* member.c */
ls_status ls__member_open(ls__launch_job *job);
void ls__member_close(ls__launch_job *job);
void ls__member_signal(ls__launch_job *job, int signal_number);
/* A first failure among the ranks; all of them have ended. */
void ls__member_failed(ls__launch_job *job);
void ls__member_round_over(ls__launch_job *job);
/* What meeting.c and the messages from it ask for. */
void ls__member_start(ls__launch_job *job, const ls__plan *plan);
void ls__member_over(ls__launch_job *job, int code);
/* Milliseconds until it wants ls__member_look; 0: never. */
int ls__member_look(ls__launch_job *job);

#endif
