/* What a launch refuses before it begins: it is the same for one that only says what it would do. */
#include "launch/launch.h"

#include "base/error.h"
#include "comm/shm/segment.h"
#include "comm/variables.h"
#include "launch/logs.h"
#include "launch/rendezvous.h"
#include "launch/rounds.h"

static ls_status check_numbers(const ls__launch_options *options) {
    if (options->ranks < 1 || options->ranks > LS__LAUNCH_MOST_RANKS)
        return ls__fail(LS_ERR_ARGUMENT, "launch: %d ranks, want 1 to %d", options->ranks,
                        LS__LAUNCH_MOST_RANKS);
    if (options->max_nodes > LS__ROUNDS_NODES / 2 || options->min_nodes > options->max_nodes)
        return ls__fail(LS_ERR_ARGUMENT, "launch: %d to %d machines, want 1 to %d",
                        options->min_nodes, options->max_nodes, LS__ROUNDS_NODES / 2);
    return LS_OK;
}

ls_status ls__launch_check(const ls__launch_options *options) {
    LS_TRY(ls__variables_check());
    LS_TRY(check_numbers(options));
    LS_TRY(ls__logs_check(options));
    if (ls__launch_meets(options))
        return ls__rendezvous_check(options);
    if (options->transport != LS__LAUNCH_SHM)
        return LS_OK;
    ls_status status = ls__segment_check(options->ranks);
    return status == LS_OK ? LS_OK : ls__fail_context(status, "transport shm (tcp is the other)");
}

bool ls__launch_meets(const ls__launch_options *options) {
    return options->max_nodes > 1 || options->rendezvous || options->rendezvous_file;
}
