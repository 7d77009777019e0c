#include "launch/program.h"

#include "base/error.h"
#include "launch/exit_code.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- becoming the program -------------------------------------------------------------------------- */

/* Only calls that are safe between vfork and exec stand below: nothing allocates, nothing takes a lock, and what is
 * written on the way is this function's own. */

static void say(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void give_descriptors(const ls__spawn *spawn) {
    int high[LS__SPAWN_FDS], last = STDERR_FILENO;
    for (int i = 0; i < LS__SPAWN_FDS;
         i++) /* out of the way first: a source may be another one's target */
        high[i] = spawn->fd[i] >= 0 ? fcntl(spawn->fd[i], F_DUPFD, 16) : -1;
    if (high[0] < 0)
        high[0] = open("/dev/null", O_RDONLY);
    for (int i = 0; i < LS__SPAWN_FDS; i++) {
        if (high[i] >= 0)
            dup2(high[i], i);
        else if (i > STDERR_FILENO)
            close(i);
        if (high[i] >= 0 && i > last)
            last = i;
    }
    /* Whatever else the launcher or the user's shell had open stays out of the ranks. */
    close_range((unsigned)last + 1, ~0U, 0);
}

/* As execvp does it: a file without a known head is for the shell. */
static void execute(const ls__spawn *spawn, char **script) {
    execve(spawn->path, spawn->argv, spawn->environment);
    if (errno != ENOEXEC)
        return;
    execve("/bin/sh", script, spawn->environment);
    errno = ENOEXEC;
}

static _Noreturn void become(const ls__spawn *spawn, pid_t launcher, char **script) {
    setsid();
    /* The kernel ends this process when its launcher dies. It may have died before the request. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(LS__EXIT_FAILURE);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    give_descriptors(spawn);
    if (spawn->cores && sched_setaffinity(0, spawn->cores_bytes, spawn->cores) != 0)
        say("lockstep: cannot bind this rank to its processors; running unbound\n");
    sigprocmask(SIG_SETMASK, spawn->mask, NULL);
    execute(spawn, script);
    int error_number = errno;
    const char *why = strerrordesc_np(error_number);
    say("lockstep: cannot execute ");
    say(spawn->path);
    say(": ");
    say(why ? why : "?");
    say("\n");
    _exit(error_number == ENOENT ? LS__EXIT_NOT_FOUND : LS__EXIT_NOT_EXECUTABLE);
}

/* A fork would copy the page tables of all the launcher's libraries for every rank. */
static pid_t start(const ls__spawn *spawn, pid_t launcher, char **script) {
    pid_t pid = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (pid == 0)
        become(spawn, launcher, script);
    return pid;
}

pid_t ls__program_spawn(const ls__spawn *spawn) {
    size_t count = 0;
    while (spawn->argv[count])
        count++;
    char **script = calloc(count + 3, sizeof *script);
    sigset_t all, before;
    if (!script)
        return -1;
    script[0] = "sh";
    script[1] = (char *)spawn->path;
    for (size_t i = 1; i < count; i++)
        script[i + 1] = spawn->argv[i];
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before); /* no handler of the launcher's runs in the child */
    pid_t pid = start(spawn, getpid(), script);
    int error_number = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(script);
    errno = error_number;
    return pid;
}

/* --- finding it ------------------------------------------------------------------------------------ */

static int try_file(const char *path) {
    struct stat file;
    if (stat(path, &file) != 0)
        return errno == ENOTDIR ? ENOENT : errno;
    if (S_ISDIR(file.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : errno;
}

/* Goes through PATH; returns 0 and the path, or the most telling error. */
static int search(const char *program, char **found) {
    const char *folders = getenv("PATH");
    if (!folders || !*folders)
        folders = "/usr/local/bin:/usr/bin:/bin";
    int error_number = ENOENT;
    for (const char *folder = folders;; folder++) {
        size_t n = strcspn(folder, ":");
        char *path;
        /* an empty entry is the current folder; "./" keeps execvp from searching again */
        if (asprintf(&path, "%.*s/%s", n ? (int)n : 1, n ? folder : ".", program) < 0)
            return ENOMEM;
        int error = try_file(path);
        if (error == 0) {
            *found = path;
            return 0;
        }
        if (error == EACCES &&
            access(path, F_OK) == 0) /* not only a folder that may not be searched */
            error_number = EACCES;
        free(path);
        folder += n;
        if (!*folder)
            return error_number;
    }
}

char *ls__program_find(const char *program, int *exit_code) {
    char *path = NULL;
    bool on_path = !strchr(program, '/');
    int error = on_path ? search(program, &path) : try_file(program);
    if (error == 0 && !on_path)
        path = strdup(program);
    if (path)
        return path;
    *exit_code = error == ENOENT ? LS__EXIT_NOT_FOUND : LS__EXIT_NOT_EXECUTABLE;
    if (error == ENOENT && on_path)
        ls__fail(LS_ERR_ARGUMENT, "program '%s' not found on PATH; for one in this folder say ./%s",
                 program, program);
    else if (error == ENOENT)
        ls__fail(LS_ERR_ARGUMENT, "program '%s' not found", program);
    else
        ls__fail_errno(LS_ERR_ARGUMENT, error ? error : ENOMEM, "cannot execute '%s'", program);
    return NULL;
}
