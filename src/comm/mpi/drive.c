/* Moves all peers at once until the operation under way wants nothing any more. MPI has no way to sleep on
 * its messages with a bound, so it is asked again and again: for 20 us without a pause, then letting other
 * threads of this core go first, then with pauses, in which ranks that compute have the core. */
#include "comm/mpi/mpi.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { EAGER_NS = 20 * 1000, POLITE_NS = 100 * 1000, PAUSE_NS = 20 * 1000, NAMED = 3 };

static const uint64_t LOOK_NS = 100 * UINT64_C(1000000);
static const uint64_t GRACE_NS =
    500 * UINT64_C(1000000); /* what one who left has sent still comes */

static ls_status timed_out(const ls__mpi *mpi, const ls__operation *operation,
                           const bool *pending) {
    char details[600] = "";
    size_t used = 0;
    int named = 0, missing = 0;
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        char name[LS__MESH_NAME_BYTES];
        if (!pending[rank] || missing++ >= NAMED)
            continue;
        mpi->mesh.table->name(&mpi->mesh, rank, name);
        used += (size_t)snprintf(
            details + used, sizeof details - used, "%s%s %s", named++ ? ", " : "", name,
            ls__mpi_peer_of(mpi, rank)->awaited ? "did not arrive at it" : "stopped in its middle");
    }
    if (missing > NAMED)
        snprintf(details + used, sizeof details - used, " and %d more", missing - NAMED);
    return ls__operation_fail(LS_ERR_TIMEOUT, operation, ls__own_name(&mpi->mesh.base),
                              "timed out after %.1f s: %s",
                              (double)(ls__now_ns() - mpi->started_ns) * 1e-9, details);
}

static ls_status gave_up(ls__mpi *mpi, const ls__operation *operation) {
    pthread_mutex_lock(&mpi->reason_lock);
    ls_status status = ls__operation_fail(LS_ERR_STATE, operation, ls__own_name(&mpi->mesh.base),
                                          "this rank gave up: %s", mpi->reason);
    pthread_mutex_unlock(&mpi->reason_lock);
    return status;
}

/* One look at every peer. `pending` (size) tells whom something is left to do with. */
static ls_status look(ls__mpi *mpi, ls__operation *operation, bool *pending, int *left,
                      bool *moved) {
    *left = 0;
    *moved = false;
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        pending[rank] = false;
        if (peer->base.self)
            continue;
        LS_TRY(ls__mpi_step(mpi, operation, peer, &pending[rank], moved));
        *left += pending[rank];
        if (pending[rank] && peer->left_ns && ls__now_ns() - peer->left_ns > GRACE_NS)
            return ls__mpi_peer_error(mpi, operation, peer, LS_ERR_PEER,
                                      "has left the job before this operation");
    }
    return LS_OK;
}

/* Those who are waited for and beat no more. */
static ls_status look_at_heartbeats(const ls__mpi *mpi, const ls__operation *operation,
                                    const bool *pending) {
    char how[300], name[LS__MESH_NAME_BYTES];
    const ls__transport *transport = &mpi->mesh.base;
    for (int rank = 0; rank < transport->size; rank++) {
        if (!pending[rank] || !ls__heartbeat_stopped(transport->heartbeat,
                                                     ls__name_of(transport, rank), how, sizeof how))
            continue;
        mpi->mesh.table->name(&mpi->mesh, rank, name);
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(transport), "%s %s", name,
                                  how);
    }
    return LS_OK;
}

static void pause_after(uint64_t idle_ns) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    if (idle_ns > POLITE_NS)
        nanosleep(&pause, NULL);
    else if (idle_ns > EAGER_NS)
        sched_yield();
}

ls_status ls__mpi_drive(ls__mpi *mpi, ls__operation *operation) {
    bool *pending = mpi->pending;
    uint64_t moved_ns = mpi->started_ns, looked_ns = moved_ns;
    for (;;) {
        int left;
        bool moved;
        LS_TRY(look(mpi, operation, pending, &left, &moved));
        if (left == 0)
            return LS_OK;
        LS_TRY(ls__mpi_listen(mpi, operation));
        LS_TRY(ls__mpi_tell(mpi, operation));
        if (atomic_load(&mpi->aborted))
            return gave_up(mpi, operation);
        const uint64_t now = ls__now_ns();
        if (now >= ls__operation_deadline(mpi->mesh.base.heartbeat, operation))
            return timed_out(mpi, operation, pending);
        if (now - looked_ns >= LOOK_NS) {
            looked_ns = now;
            LS_TRY(look_at_heartbeats(mpi, operation, pending));
        }
        if (moved)
            moved_ns = now;
        mpi->has_waited = true;
        pause_after(now - moved_ns);
    }
}
