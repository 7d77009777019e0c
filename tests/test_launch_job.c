/* The launcher as a library room: this program starts itself as ranks that use the collectives, and
 * fails in several ways. `lockstep run` as a user sees it is tests/test_cli_run.sh. */
#include "launch/launch.h"

#include "base/clock.h"
#include <fcntl.h>
#include <lockstep/group.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, OUTPUT_BYTES = 16384 };

/* --- what the ranks do ----------------------------------------------------------------------------- */

/* All-reduces without end; rank 2 does `fault` in the middle. */
static int rank_reduces(int rank, const char *fault) {
    ls_job *job;
    float value[1000] = {1};
    if (ls_job_init(&job, NULL) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_text());
        return 1;
    }
    for (int i = 0;; i++) {
        if (strcmp(fault, "none") == 0 && i == 50)
            break;
        if (rank == 2 && i == 50 && strcmp(fault, "kill") == 0)
            raise(SIGKILL);
        if (rank == 2 && i == 50 && strcmp(fault, "exit") == 0)
            _exit(9);
        if (ls_all_reduce(ls_job_world(job), value, value, 1000, LS_F32, LS_MAX) != LS_OK) {
            fprintf(stderr, "survivor %d: %s\n", rank, ls_error_text());
            ls_job_finish(job);
            return 4;
        }
    }
    ls_job_finish(job);
    return 0;
}

static int rank_main(const char *role) {
    int rank = (int)strtol(getenv("RANK"), NULL, 10);
    if (strcmp(role, "speak") == 0) {
        if (rank == 1)
            fputs("a warning\n", stderr);
        fputs(rank == 0 ? "50 %\r100 %\rdone\n" : "quiet\n", stdout);
        return 0;
    }
    if (strcmp(role, "speak and fail") == 0) {
        fputs(rank == 0 ? "\rstep 7" : "a reason\n", stderr);
        return rank == 0 ? 0 : 5;
    }
    if (strcmp(role, "mistake") == 0) {
        fputs("data.gz: truncated\n", stderr);
        return 3;
    }
    if (strcmp(role, "mistake of 1") == 0) {
        if (rank == 1) {
            fputs("shard 1: truncated\n", stderr);
            return 3;
        }
        sleep(60);
        return 0;
    }
    return rank_reduces(rank, role);
}

/* --- starting them --------------------------------------------------------------------------------- */

typedef struct outcome {
    int code;
    double seconds;
    char out[OUTPUT_BYTES], err[OUTPUT_BYTES];
} outcome;

static void read_back(FILE *file, char *text) {
    rewind(file);
    text[fread(text, 1, OUTPUT_BYTES - 1, file)] = '\0';
    fclose(file);
}

/* Launches this program in `role`, in a process of its own, and collects what it did. */
static outcome launch(const char *role, ls__launch_options options) {
    outcome result = {.code = -1};
    FILE *out = tmpfile(), *err = tmpfile();
    assert_non_null(out);
    assert_non_null(err);
    uint64_t begin = ls__now_ns();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *arguments[] = {"ranks", (char *)role, NULL};
        int code;
        alarm(30);
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        options.argv = arguments;
        options.program = "/proc/self/exe";
        if (options.ranks == 0)
            options.ranks = RANKS;
        if (ls__launch(&options, &code) != LS_OK)
            fprintf(stderr, "not started: %s\n", ls_error_text());
        fflush(stdout);
        _exit(code);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    result.seconds = (double)(ls__now_ns() - begin) * 1e-9;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    read_back(out, result.out);
    read_back(err, result.err);
    return result;
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("'%s' lacks '%s'", text, part);
}

/* --- tests ----------------------------------------------------------------------------------------- */

static void test_ranks_meet(void **state) {
    (void)state;
    outcome shm = launch("none", (ls__launch_options){0});
    assert_string_equal(shm.err, "");
    assert_int_equal(shm.code, 0);
#ifdef LOCKSTEP_WITH_TCP
    outcome tcp = launch("none", (ls__launch_options){.transport = LS__LAUNCH_TCP});
    assert_string_equal(tcp.err, "");
    assert_int_equal(tcp.code, 0);
#endif
}

/* Survivors notice by themselves, name the rank, and the report names the first cause. */
static void check_fault(const char *fault, ls__launch_transport transport, int code,
                        const char *how) {
    outcome result =
        launch(fault, (ls__launch_options){.transport = transport, .fail_grace_s = 0.8});
    char first[100];
    assert_int_equal(result.code, code);
    assert_true(result.seconds < 3);
    has(result.err, "lockstep run: rank 2 (host ");
    snprintf(first, sizeof first, "failed first: it %s", how);
    has(result.err, first);
    has(result.err, "survivor 0: ");
    has(result.err, "survivor 1: ");
    has(result.err, "survivor 3: ");
    has(strstr(result.err, "survivor 0: "), "rank 2");
}

static void test_killed_in_a_collective(void **state) {
    (void)state;
    check_fault("kill", LS__LAUNCH_SHM, 128 + SIGKILL, "was killed by signal 9 (SIGKILL)");
    check_fault("exit", LS__LAUNCH_SHM, 9, "exited with code 9");
#ifdef LOCKSTEP_WITH_TCP
    check_fault("kill", LS__LAUNCH_TCP, 128 + SIGKILL, "was killed by signal 9 (SIGKILL)");
#endif
}

static void test_rank_0_speaks_for_all(void **state) {
    (void)state;
    outcome result = launch("speak", (ls__launch_options){.rank0_speaks = true});
    assert_int_equal(result.code, 0);
    assert_string_equal(result.out, "50 %\r100 %\rdone\n");
    assert_string_equal(result.err, "[rank 1] a warning\n");
    result = launch("speak and fail", (ls__launch_options){.rank0_speaks = true, .ranks = 2});
    assert_int_equal(result.code, 5);
    has(result.err, "\rstep 7\nlockstep run: rank 1 (pid ");
    has(result.err, "\n    a reason\n");
}

static void test_a_mistake_is_told_once(void **state) {
    (void)state;
    outcome result = launch("mistake", (ls__launch_options){.rank0_speaks = true});
    assert_int_equal(result.code, 3);
    assert_string_equal(result.err, "data.gz: truncated\n");
    result = launch("mistake of 1", (ls__launch_options){.rank0_speaks = true});
    assert_int_equal(result.code, 3);
    assert_string_equal(result.err, "shard 1: truncated\n");
    /* where every rank speaks, so does the launcher */
    result = launch("mistake", (ls__launch_options){.command = "mine"});
    assert_int_equal(result.code, 3);
    has(result.err, "mine: rank ");
}

static void test_impossible_numbers_of_ranks(void **state) {
    (void)state;
    outcome result = launch("none", (ls__launch_options){.ranks = -1});
    assert_int_equal(result.code, 1);
    has(result.err, "not started: launch: -1 ranks");
    result = launch("none", (ls__launch_options){.ranks = LS__LAUNCH_MOST_RANKS});
    assert_int_equal(result.code, 1);
    has(result.err, "not started: ");
    has(result.err, "ranks");
}

int main(int argc, char **argv) {
    if (argc > 1)
        return rank_main(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_meet),
        cmocka_unit_test(test_killed_in_a_collective),
        cmocka_unit_test(test_rank_0_speaks_for_all),
        cmocka_unit_test(test_a_mistake_is_told_once),
        cmocka_unit_test(test_impossible_numbers_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
