/* Finding the program that the ranks are, and becoming it. */
#ifndef LS_LAUNCH_PROGRAM_H
#define LS_LAUNCH_PROGRAM_H

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

/* Finds the program as a shell does. Returns its path (free it), or NULL with *exit_code 127 (not
 * found) or 126 (not executable) and ls_error_text(). */
char *ls__program_find(const char *program, int *exit_code);

enum { LS__SPAWN_FDS = 5 };

/* Everything a rank's process needs before it is the program, made beforehand: its first steps run in memory that it
 * shares with the launcher (vfork). */
typedef struct ls__spawn {
    const char *path;
    char *const
        *argv; /* argv[0] is left to a shell where the file is a script without a first line */
    char *const *environment;
    int fd
        [LS__SPAWN_FDS]; /* what becomes descriptor 0, 1, ...; -1: /dev/null for 0, nothing for the others */
    const cpu_set_t *cores; /* NULL: all */
    size_t cores_bytes;
    const sigset_t *mask; /* the signals that it finds blocked */
} ls__spawn;

/* A process in a session and group of its own, which the kernel ends when the launcher dies, with the signals as a
 * shell would give them. What cannot be executed says so on its descriptor 2 and ends with 127 or 126.
 * Returns its pid, or -1 with errno. */
pid_t ls__program_spawn(const ls__spawn *spawn);

#endif
