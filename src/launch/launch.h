/* Starts a program as ranks, on this machine or together with the launchers of others, watches them, and leaves
 * nothing behind: neither ranks nor what they have started (orphans.c). Children that the process of the launcher has
 * besides are not touched.
 *
 * Each rank leads a session and process group of its own, so that signals reach its children too; the kernel ends
 * it when the launcher dies. A watcher process (watcher.c) ends all of them when the launcher is killed
 * so hard that it cannot.
 *
 * On several machines each runs a launcher. They meet at the one that owns the rendezvous address, prove that they
 * know LOCKSTEP_TOKEN, and do together what the state machine there (rounds.h) says: begin, stop, begin again, end.
 * What a rank finds in its environment: environment.c, docs/environment.md. */
#ifndef LS_LAUNCH_LAUNCH_H
#define LS_LAUNCH_LAUNCH_H

#include <lockstep/status.h>
#include <stdbool.h>

/* On a machine, and machines. */
enum { LS__LAUNCH_MOST_RANKS = 4096, LS__LAUNCH_MOST_NODES = 512 };

/* Defaults of the options below that are seconds. */
#define LS__LAUNCH_GRACE_S 25
#define LS__LAUNCH_FAIL_GRACE_S 0.5
#define LS__LAUNCH_JOIN_TIMEOUT_S 300

typedef enum ls__launch_transport {
    LS__LAUNCH_SHM, /* shared memory, handed down as a descriptor */
    LS__LAUNCH_TCP, /* over loopback */
} ls__launch_transport;

typedef enum ls__launch_bind_to {
    LS__LAUNCH_BIND_CORES, /* cores are divided where they suffice */
    LS__LAUNCH_BIND_NUMA,  /* ranks stay beside one memory */
    LS__LAUNCH_BIND_NONE,
} ls__launch_bind_to;

typedef enum ls__launch_prefix {
    LS__LAUNCH_PREFIX_AUTO, /* when there is more than one rank */
    LS__LAUNCH_PREFIX_ALWAYS,
    LS__LAUNCH_PREFIX_NEVER,
} ls__launch_prefix;

/* Zero-initialise; zero means the default. */
typedef struct ls__launch_options {
    const char *command; /* whose name messages carry; default "lockstep run" */
    int ranks;           /* on this machine */
    char *const *argv;   /* program and arguments, NULL ends; the program is searched on PATH */
    const char
        *program; /* what to execute where it is not argv[0], for example ls__launch_self() */
    ls__launch_transport transport;
    ls__launch_prefix prefix;
    /* Rank 0 speaks for the job: its output passes as it is, at once (progress lines that are written
     * over, too); the output of the others is shown only where it tells of a failure, their last lines
     * on stderr also after success. When the first failure is exit code 2 or 3 (a mistake of the user,
     * told by the rank) there is no report beside the rank's own line. */
    bool rank0_speaks;
    ls__launch_bind_to bind;
    double fail_grace_s; /* a rank failed: time for the others to end by themselves */
    double grace_s;      /* a signal was forwarded: time to finish and save until SIGKILL */
    const char *flight; /* a folder for the ranks' flight records; NULL: LOCKSTEP_FLIGHT, or none */
    bool json;          /* the report as one JSON object on stdout, also after success */
    const char *log_dir, *redirect, *tee; /* logs.h; NULL: none */
    double monitor_s;                     /* a table of the ranks on stderr, so often; 0: never */

    int min_nodes,
        max_nodes;    /* machines; default 1. Fewer than max: the job goes on with what there is */
    int max_restarts; /* after failures */
    /* "host:port" where the launchers meet; port 0: any, which is printed. NULL: one machine, or rendezvous_file */
    const char *rendezvous;
    const char *rendezvous_file; /* the one that listens says there where; made with mode 0600 */
    bool has_node_rank;
    int node_rank; /* 0 listens. Without: whoever can listen does, and numbers follow arrival */
    double join_timeout_s; /* for nodes to come, at the start and when one is lost */
} ls__launch_options;

/* This launcher meets others, or would. */
bool ls__launch_meets(const ls__launch_options *options);

/* Runs the job to its end; *exit_code is what the command should return: 0, the code of the first
 * rank that failed (128 + signal where it was killed), 128 + signal where the launcher was stopped (0 where
 * that was SIGTERM or SIGHUP and all ranks left with 0), 4 where machines are missing, 3 where stdout or a file of
 * log_dir could not be written, 127 or 126 where the program cannot be found or executed. The report of a failure was printed on
 * stderr. An error status means that the job could not be started. Uses the process's signal
 * handlers, stdin, stdout and stderr: one launch at a time, from the main thread. */
ls_status ls__launch(const ls__launch_options *options, int *exit_code);

/* What ls__launch refuses before it begins. LS_ERR_ARGUMENT: settings in the environment and numbers that cannot be,
 * options that contradict each other or mean nothing; LS_ERR_UNSUPPORTED: this build cannot; LS_ERR_SYSTEM: too few files
 * may be open for so many ranks; LS_ERR_MEMORY. Changes one thing of the process: where its limit of open files
 * (RLIMIT_NOFILE) is too low for them, the soft one is raised as far as the hard one lets it, and stays so. Ranks
 * inherit it. */
ls_status ls__launch_check(const ls__launch_options *options);

/* Prints the ranks of this machine and what they would find in their environment, for people; starts nothing. */
ls_status ls__launch_dry_run(const ls__launch_options *options, int *exit_code);

/* The path of this program. */
const char *ls__launch_self(void);

#endif
