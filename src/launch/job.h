/* The launcher's view of a running job; shared by the files of this folder only. */
#ifndef LS_LAUNCH_JOB_H
#define LS_LAUNCH_JOB_H

#include "comm/board.h"
#include "launch/launch.h"
#include "launch/lines.h"
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
    struct ls__rank *rank;
} ls__stream;

typedef struct ls__rank {
    ls__launch_job *job;
    int number;
    uv_process_t process;
    pid_t pid; /* and process group; 0: not started */
    bool exited;
    bool group_left; /* the process is gone, children of it may live */
    int exit_code, signal;
    int signal_sent; /* the last one that the launcher sent */
    uint64_t exited_ns;
    uint64_t leftover_ns; /* when what is left of the group is killed */
    uint64_t cut_ns;      /* when its pipes are closed although somebody holds them */
    ls__stream streams[LS__STREAMS];
} ls__rank;

struct ls__launch_job {
    const ls__launch_options *options;
    const char *command;
    uv_loop_t loop;
    uv_signal_t signals[3];
    uv_timer_t tick;
    bool ticking, paused, closing;
    ls__sink sinks[LS__STREAMS];
    ls__sink *error_sink; /* where stderr goes: the sink of stdout when both are the same file */
    ls__watcher watcher;
    int segment_fd; /* -1: none */
    int board_fd;
    ls__board board; /* where the ranks show what they do */
    ls__rank *ranks;
    int started, running;
    int first_failure; /* rank, -1: none */
    int stop_signal;   /* the launcher was told to stop; SIGPIPE: nobody reads stdout any more */
    int write_error;   /* errno: output could not be written */
    uint64_t started_ns;
    uint64_t terminate_ns, kill_ns; /* 0: not planned */
};

/* ending.c: how a job ends early. */
void ls__job_rank_exited(ls__rank *rank);
void ls__job_stop(ls__launch_job *job, int signal_number);
/* Sends to every rank's process group. */
void ls__job_signal_all(ls__launch_job *job, int signal_number);
/* Looks at the clock; true while some deadline is still to come. */
bool ls__job_meet_deadlines(ls__launch_job *job);

/* flight.c: what the ranks showed on the board, `record` by rank as of their end (free it); NULL: nothing */
ls__flight_record *ls__job_flight_records(const ls__launch_job *job);
/* Into the folder that was asked for, if one was. */
void ls__job_flight_write(const ls__launch_job *job, const ls__flight_record *record);

/* report.c */
const char *ls__signal_name(int signal_number); /* "SIGKILL" */
/* "was killed by signal 9 (SIGKILL)", "exited with code 7" */
void ls__rank_describe(const ls__rank *rank, char *text, size_t bytes);
int ls__job_exit_code(const ls__launch_job *job);
ls_status ls__job_report(const ls__launch_job *job);

#endif
