/* Starts a program as N ranks on this machine, watches them, and leaves nothing behind.
 *
 * Each rank is this program executed again with LS__LAUNCH_SHIM as its first argument (main must hand
 * that to ls__launch_shim); the shim ties the rank's life to the launcher's, binds it to its cores
 * and becomes the program. Each rank leads a session and process group of its own, so that signals
 * reach its children too. A watcher process (watcher.c) ends all of them when the launcher is killed
 * so hard that it cannot.
 *
 * A rank finds in its environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
 * MASTER_ADDR, MASTER_PORT as torchrun sets them, OMP_NUM_THREADS=1 unless set, LOCKSTEP_TOKEN,
 * LOCKSTEP_SHM_FD (the inherited segment) or LOCKSTEP_TRANSPORT=tcp, LOCKSTEP_BOARD_FD (the inherited board), and LOCKSTEP_TERMINAL (columns)
 * when the launcher's stderr is a terminal. */
#ifndef LS_LAUNCH_LAUNCH_H
#define LS_LAUNCH_LAUNCH_H

#include <lockstep/status.h>
#include <stdbool.h>

#define LS__LAUNCH_SHIM "__rank"
enum { LS__LAUNCH_MOST_RANKS = 4096 };

typedef enum ls__launch_transport {
    LS__LAUNCH_SHM, /* shared memory, handed down as a descriptor */
    LS__LAUNCH_TCP, /* over loopback */
} ls__launch_transport;

typedef enum ls__launch_prefix {
    LS__LAUNCH_PREFIX_AUTO, /* when there is more than one rank */
    LS__LAUNCH_PREFIX_ALWAYS,
    LS__LAUNCH_PREFIX_NEVER,
} ls__launch_prefix;

/* Zero-initialise; zero means the default. */
typedef struct ls__launch_options {
    const char *command; /* whose name messages carry; default "lockstep run" */
    int ranks;
    char *const *argv; /* program and arguments, NULL ends; the program is searched on PATH */
    const char
        *program; /* what to execute where it is not argv[0], for example ls__launch_self() */
    ls__launch_transport transport;
    ls__launch_prefix prefix;
    /* Rank 0 speaks for the job: its output passes as it is, at once (progress lines that are written
     * over, too); the output of the others is shown only where it tells of a failure, their last lines
     * on stderr also after success. When the first failure is exit code 2 or 3 (a mistake of the user,
     * told by the rank) there is no report beside the rank's own line. */
    bool rank0_speaks;
    bool unbound;   /* leave the ranks on all cores; else cores are divided where they suffice */
    double grace_s; /* a rank failed: time for the others to end by themselves; default 0.5 */
    double stop_grace_s; /* a signal was forwarded: time until SIGKILL; default 5 */
    const char *flight; /* a folder for the ranks' flight records; NULL: LOCKSTEP_FLIGHT, or none */
    bool json;          /* the report as one JSON object on stdout, also after success */
} ls__launch_options;

/* Runs the job to its end; *exit_code is what the command should return: 0, the code of the first
 * rank that failed (128 + signal where it was killed), 128 + signal where the launcher was stopped,
 * 127 or 126 where the program cannot be found or executed. The report of a failure was printed on
 * stderr. An error status means that the job could not be started. Uses the process's signal
 * handlers, stdin, stdout and stderr: one launch at a time, from the main thread. */
ls_status ls__launch(const ls__launch_options *options, int *exit_code);

/* The path of this program. */
const char *ls__launch_self(void);

/* The program of a rank before it becomes what the user wants to run: argv[0] is LS__LAUNCH_SHIM.
 * Returns only when it cannot, with an exit code. */
int ls__launch_shim(int argc, char **argv);

#endif
