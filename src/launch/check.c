/* What a launch refuses before it begins: it is the same for one that only says what it would do. */
#include "launch/launch.h"

#include "base/error.h"
#include "comm/shm/segment.h"
#include "comm/variables.h"
#include "launch/logs.h"
#include "launch/rendezvous.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static ls_status check_numbers(const ls__launch_options *options) {
    if (options->ranks < 1 || options->ranks > LS__LAUNCH_MOST_RANKS)
        return ls__fail(LS_ERR_ARGUMENT, "launch: %d ranks, want 1 to %d", options->ranks,
                        LS__LAUNCH_MOST_RANKS);
    if (options->max_nodes > LS__LAUNCH_MOST_NODES || options->min_nodes > options->max_nodes)
        return ls__fail(LS_ERR_ARGUMENT, "launch: %d to %d machines, want 1 to %d",
                        options->min_nodes, options->max_nodes, LS__LAUNCH_MOST_NODES);
    return LS_OK;
}

/* Every rank costs two descriptors here; the loop, the watcher, the segment and a start under way some
 * more, without which libuv aborts. So all of them are tried before anything begins. */
static ls_status reserve_files(const ls__launch_options *options) {
    int ranks = options->ranks;
    enum { OWN = 24, LOBBY = 64 };
    struct rlimit limit = {0};
    size_t wanted = (size_t)ranks * LS__STREAMS * (options->log_dir ? 2 : 1) + OWN, got = 0;
    if (options->max_nodes > 1)
        wanted += LOBBY + (size_t)options->max_nodes;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted + 64) {
        limit.rlim_cur = limit.rlim_max < wanted + 64 ? limit.rlim_max : wanted + 64;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int *fds = calloc(wanted, sizeof *fds), error_number = 0;
    if (!fds)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", ranks);
    for (; got < wanted; got++) {
        fds[got] = got ? dup(fds[0]) : open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fds[got] < 0) {
            error_number = errno;
            break;
        }
    }
    for (size_t i = 0; i < got; i++)
        close(fds[i]);
    free(fds);
    if (got == wanted)
        return LS_OK;
    return ls__fail_errno(
        LS_ERR_SYSTEM, error_number,
        "%d ranks want %zu more open files of the launcher, got %zu (ulimit -n is "
        "%llu)",
        ranks, wanted, got, (unsigned long long)limit.rlim_cur);
}

static ls_status check_segment(const ls__launch_options *options) {
    if (options->transport != LS__LAUNCH_SHM)
        return LS_OK;
    ls_status status = ls__segment_check(options->ranks);
    return status == LS_OK ? LS_OK : ls__fail_context(status, "transport shm (tcp is the other)");
}

ls_status ls__launch_check(const ls__launch_options *options) {
    LS_TRY(ls__variables_check());
    LS_TRY(check_numbers(options));
    LS_TRY(ls__logs_check(options));
    LS_TRY(ls__launch_meets(options) ? ls__rendezvous_check(options) : check_segment(options));
    return reserve_files(options);
}

bool ls__launch_meets(const ls__launch_options *options) {
    return options->max_nodes > 1 || options->rendezvous || options->rendezvous_file;
}
