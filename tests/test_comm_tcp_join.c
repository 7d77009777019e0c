/* How ranks find each other over tcp, and everything that can be wrong with it: missing, double and
 * differing ranks, wrong tokens, strangers, ports in use. */
#include "ranks.h"

#include "comm/tcp/meet_file.h"
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

static char log_lines[8192];

static void keep_line(void *context, ls_log_level level, const char *line) {
    (void)context;
    (void)level;
    size_t used = strlen(log_lines);
    snprintf(log_lines + used, sizeof log_lines - used, "%s\n", line);
}

static ls_status join(ls_job **job) {
    const ls_job_options options = {.log = keep_line};
    ls_status status = ls_job_init(job, &options);
    ranks_note(status);
    return status;
}

static ls_status join_and_leave(void) {
    ls_job *job;
    ls_status status = join(&job);
    if (status == LS_OK)
        CHECK_OK(ls_barrier(ls_job_world(job)));
    ls_job_finish(job);
    return status;
}

static void run(int size, ranks_body body, void *context, const char *timeout) {
    ranks r = {.size = size, .transport = "tcp", .body = body, .context = context};
    r.no_job = true;
    r.timeout = timeout;
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

#define CHECK_TEXT(text) CHECK(strstr(ls_error_text(), text))

/* --- who is there ------------------------------------------------------------------------------ */

/* Rank 0 comes last, the others retry. */
static void late_root(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    if (rank == 0)
        usleep(400000);
    CHECK_OK(join_and_leave());
}

static void at_address(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)job;
    setenv("MASTER_ADDR", context, 1);
    CHECK_OK(join_and_leave());
}

static void two_missing(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 2 || rank == 3)
        return;
    uint64_t begin = ls__now_ns();
    CHECK(join(&job) == LS_ERR_TIMEOUT);
    CHECK(job == NULL);
    CHECK_TEXT("ranks 2, 3 of 4"); /* on rank 1 as well: rank 0 tells it */
    CHECK(ls__now_ns() - begin < 5000000000u);
}

static void root_missing(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 0)
        return;
    CHECK(join(&job) == LS_ERR_TIMEOUT);
    CHECK_TEXT("waiting for rank 0: 127.0.0.1:");
    CHECK_TEXT("refused");
}

static int connect_to(int port);

/* Waiting ranks say for whom every few seconds; in the end all are there. A silent stranger is shown
 * the door meanwhile. */
static void waiting_is_logged(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    int stranger = rank == 2 ? connect_to(atoi(getenv("MASTER_PORT"))) : -1;
    if (rank == 1)
        usleep(5800000);
    CHECK_OK(join_and_leave());
    CHECK(rank != 0 || strstr(log_lines, "rank 0: waiting for rank"));
    CHECK(rank != 0 || strstr(log_lines, "did not finish the handshake in time"));
    if (stranger >= 0)
        close(stranger);
}

static void other_world(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 2) {
        usleep(100000);
        setenv("WORLD_SIZE", "4", 1);
        setenv("LOCAL_WORLD_SIZE", "4", 1);
    }
    CHECK(join(&job) == LS_ERR_MISMATCH);
    CHECK_TEXT("WORLD_SIZE=3");
    CHECK_TEXT("WORLD_SIZE=4");
    CHECK_TEXT("rank 2");
}

static void double_rank(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 2) {
        usleep(100000);
        setenv("RANK", "1", 1);
    }
    CHECK(join(&job) == LS_ERR_MISMATCH);
    CHECK_TEXT("rank 1 is there twice");
    CHECK_TEXT("pid ");
}

/* A rank that died while the others were awaited may be started again. */
static void comes_back(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    if (rank == 2)
        usleep(700000);
    if (rank == 1) {
        pid_t first = fork();
        if (first == 0) {
            join_and_leave();
            _exit(0);
        }
        usleep(300000);
        kill(first, SIGKILL);
        CHECK(waitpid(first, NULL, 0) == first);
    }
    CHECK_OK(join_and_leave());
}

static void test_who(void **state) {
    (void)state;
    run(3, late_root, NULL, NULL);
    run(2, at_address, "localhost", NULL);
    run(3, at_address, "127.0.0.2", NULL);
    run(4, two_missing, NULL, "2");
    run(2, root_missing, NULL, "0.5");
    run(3, other_world, NULL, NULL);
    run(3, double_rank, NULL, NULL);
    run(3, comes_back, NULL, NULL);
    run(3, waiting_is_logged, NULL, NULL);
}

static void test_ipv6(void **state) {
    (void)state;
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bound = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&address, sizeof address);
    close(fd);
    if (bound != 0)
        skip();
    run(3, at_address, "::1", NULL);
}

/* --- addresses and ports ----------------------------------------------------------------------- */

static void port_in_use(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    char where[64];
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(getenv("MASTER_PORT"))),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (rank != 0)
        return;
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
    snprintf(where, sizeof where, "127.0.0.1:%s: the port is in use", getenv("MASTER_PORT"));
    CHECK(join(&job) == LS_ERR_SYSTEM);
    CHECK_TEXT(where);
    CHECK_TEXT("MASTER_PORT");
    close(fd);
}

static void no_token(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    setenv("MASTER_ADDR", "192.0.2.1", 1);
    CHECK(join(&job) == LS_ERR_AUTH);
    CHECK_TEXT("LOCKSTEP_TOKEN");
}

static void not_my_address(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank != 0)
        return;
    setenv("MASTER_ADDR", "192.0.2.1", 1);
    setenv("LOCKSTEP_TOKEN", "secret", 1);
    CHECK(join(&job) == LS_ERR_SYSTEM);
    CHECK_TEXT("192.0.2.1");
    CHECK_TEXT("no address of this machine");
}

/* Something else listens there and talks. */
static void other_service(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 0) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)atoi(getenv("MASTER_PORT"))),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        char hello[100] = "HTTP/1.1 400 Bad Request";
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
        int guest = accept(fd, NULL, NULL);
        CHECK(send(guest, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
        CHECK(recv(guest, hello, 64, MSG_WAITALL) == 64);
        usleep(100000);
        close(guest);
        close(fd);
        return;
    }
    CHECK(join(&job) == LS_ERR_FORMAT);
    CHECK_TEXT("no rank of Lockstep");
}

static void test_addresses(void **state) {
    (void)state;
    run(2, port_in_use, NULL, NULL);
    run(2, no_token, NULL, NULL);
    run(2, not_my_address, NULL, NULL);
    run(2, other_service, NULL, NULL);
}

/* --- tokens and strangers ---------------------------------------------------------------------- */

static void right_token(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)job;
    (void)context;
    setenv("LOCKSTEP_TOKEN", "secret", 1);
    CHECK_OK(join_and_leave());
}

/* A rank with a wrong token fails; the job goes on without noticing but in the log. */
static void wrong_token(int rank, ls_job *job, void *context) {
    const char *wrong = context;
    setenv("LOCKSTEP_TOKEN", "secret", 1);
    if (rank == 3) { /* a fourth process that says it is rank 1 */
        setenv("RANK", "1", 1);
        setenv("LOCAL_RANK", "1", 1);
        setenv("LOCKSTEP_TOKEN", wrong, 1);
    }
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "3", 1);
    if (rank == 1)
        usleep(400000);
    if (rank == 3) {
        CHECK(join(&job) == LS_ERR_AUTH);
        CHECK_TEXT("LOCKSTEP_TOKEN");
        return;
    }
    CHECK_OK(join_and_leave());
    CHECK(rank != 0 || strstr(log_lines, "token is wrong"));
}

static void test_tokens(void **state) {
    (void)state;
    run(3, right_token, NULL, NULL);
    run(4, wrong_token, "Secret", NULL);
    run(4, wrong_token, "", NULL);
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 2000; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        usleep(1000);
    }
    return -1;
}

/* Silent, garbled, half a greeting, a greeting with a forged proof, one that resets. */
static void be_strange(int port, int *fds) {
    char noise[5000], forged[400] = "LOCKSTEP";
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 37 + 11);
    const uint32_t fields[] = {0x01020304, 1, 1, 1, 3, 0};
    memcpy(forged + 8, fields, sizeof fields);
    for (int i = 0; i < 8; i++) {
        fds[i] = connect_to(port);
        CHECK(fds[i] >= 0);
    }
    CHECK(send(fds[1], noise, sizeof noise, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[2], forged, 30, MSG_NOSIGNAL) == 30);
    CHECK(send(fds[3], forged, sizeof forged, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[4], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    const struct linger reset = {.l_onoff = 1};
    setsockopt(fds[5], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fds[5]);
    fds[5] = -1;
    CHECK(send(fds[6], forged, 64, MSG_NOSIGNAL) == 64);
    close(fds[6]);
    fds[6] = -1;
}

/* Strangers stay connected from before the ranks come until after. */
static void strangers_at_rendezvous(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    int fds[8];
    uint64_t begin = ls__now_ns();
    if (rank == 2)
        be_strange(atoi(getenv("MASTER_PORT")), fds);
    CHECK_OK(join_and_leave());
    CHECK(ls__now_ns() - begin < 4000000000u);
    for (int i = 0; rank == 2 && i < 8; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    CHECK(rank != 0 || strstr(log_lines, "no rank of Lockstep"));
}

/* The port on which process `pid` listens, from /proc. */
static bool owns_socket(pid_t pid, unsigned long inode) {
    char path[300], want[64], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, e->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        found = strcmp(link, want) == 0;
    }
    if (dir)
        closedir(dir);
    return found;
}

static int listening_port(pid_t pid) {
    char line[512];
    int port = 0;
    FILE *file = fopen("/proc/net/tcp", "r");
    while (file && port == 0 && fgets(line, sizeof line, file)) {
        unsigned at, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*8x:%x %*8x:%*x %x %*s %*s %*s %*s %*s %lu", &at, &state,
                   &inode) == 3 &&
            state == 0x0a && owns_socket(pid, inode))
            port = (int)at;
    }
    if (file)
        fclose(file);
    return port;
}

/* Rank 1's own listener is open while rank 2 is awaited. */
static void late_third(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    if (rank == 2)
        usleep(1500000);
    CHECK_OK(join_and_leave());
    CHECK(rank != 1 || strstr(log_lines, "no rank of Lockstep"));
}

static void test_strangers(void **state) {
    (void)state;
    run(3, strangers_at_rendezvous, NULL, NULL);
    ranks r = {.size = 3, .transport = "tcp", .body = late_third, .no_job = true};
    int port = 0, fds[8];
    ranks_start(&r);
    for (int i = 0; i < 1000 && port == 0; i++) {
        usleep(1000);
        port = listening_port(r.pid[1]);
    }
    assert_true(port > 0);
    be_strange(port, fds);
    assert_int_equal(ranks_wait(&r), 0);
    for (int i = 0; i < 8; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    ranks_free(&r);
}

/* --- the file that ranks meet by ---------------------------------------------------------------------- */

static void test_meeting_file_replaces_no_pipe(void **state) {
    (void)state;
    char folder[] = "/tmp/lockstep-meet.XXXXXX", path[100];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/meet", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ls__meet_file_write(path, "127.0.0.1:1", ""), LS_ERR_IO);
    assert_non_null(strstr(ls_error_text(), "meet: is a pipe or device, want a regular file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who),       cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_addresses), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_meeting_file_replaces_no_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
