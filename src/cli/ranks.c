/* How many ranks to start and how they meet, as the user says it. */
#include "cli/options.h"

#include "comm/started_by.h"
#include "comm/transport.h"
#include "comm/variables.h"
#include "launch/binding.h"
#include "launch/launch.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool ls__ranks_parse(const char *text, int64_t *ranks, const char **why) {
    if (strcmp(text, "auto") == 0) {
        *ranks = ls__launch_cores();
        return true;
    }
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || text[0] == ' ') {
        *why = "is no number of ranks, want 1 to 4096 or auto";
        return false;
    }
    if (errno || number < 1 || number > LS__LAUNCH_MOST_RANKS) {
        *why = "is out of range, want 1 to 4096 or auto";
        return false;
    }
    *ranks = number;
    return true;
}

bool ls__is_rank(void) {
    return ls__variable("RANK") || ls__variable("LOCKSTEP_MPI") || ls__mpi_launcher() ||
           ls__started_by_slurm();
}

bool ls__transport_choose(const ls__command *command, bool given, int *transport) {
    const char *variable = ls__variable("LOCKSTEP_TRANSPORT");
    if (given || !variable || ls__is_rank())
        return true;
    bool tcp = strcmp(variable, "tcp") == 0;
    if (!tcp && strcmp(variable, "shm") != 0) {
        ls__usage_error(command, "LOCKSTEP_TRANSPORT: '%.40s' is none of shm|tcp%s", variable,
                        strcmp(variable, "mpi") == 0 ? "; mpi is for ranks that mpirun starts"
                                                     : "");
        return false;
    }
    *transport = tcp ? LS__LAUNCH_TCP : LS__LAUNCH_SHM;
    return true;
}
