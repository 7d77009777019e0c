#include "launch/shim.h"

#include "base/error.h"
#include "launch/binding.h"
#include "launch/exit_code.h"
#include "launch/launch.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

int ls__launch_shim(int argc, char **argv) {
    if (argc <= LS__SHIM_ARGV) {
        fprintf(stderr, "lockstep: %s is for the launcher; use lockstep run\n", LS__LAUNCH_SHIM);
        return LS__EXIT_USAGE;
    }
    /* The kernel ends this rank when its launcher dies. It may have died before the request. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)strtol(argv[LS__SHIM_PARENT], NULL, 10))
        return LS__EXIT_FAILURE;
    if (strcmp(argv[LS__SHIM_CORES], "-") != 0 && ls__launch_bind(argv[LS__SHIM_CORES]) != LS_OK)
        fprintf(stderr, "lockstep: %s; running unbound\n", ls_error_text());
    /* Whatever else the user's shell had open stays out of the ranks. */
    close_range((unsigned)strtoul(argv[LS__SHIM_LAST_FD], NULL, 10) + 1, ~0U, 0);
    const char *path = argv[LS__SHIM_PATH];
    execvp(path, argv + LS__SHIM_ARGV);
    int error_number = errno;
    fprintf(stderr, "lockstep: cannot execute %s: %s\n", path, strerror(error_number));
    return error_number == ENOENT ? LS__EXIT_NOT_FOUND : LS__EXIT_NOT_EXECUTABLE;
}

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
        free(path);
        if (error == EACCES)
            error_number = EACCES;
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
