/* The last message of a rank to everyone: that it leaves in peace, or gives up and why. Every rank always
 * has a receive open for the next one. */
#include "comm/mpi/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t PATIENCE_NS = 20 * UINT64_C(1000000);

/* The first one who gives up is the one to be told of. */
static ls_status take_goodbye(ls__mpi *mpi, const ls__operation *operation, int from) {
    ls__mpi_peer *peer = ls__mpi_peer_of(mpi, from);
    mpi->heard.reason[sizeof mpi->heard.reason - 1] = '\0';
    peer->left_ns = ls__now_ns();
    if (mpi->heard.status != LS_OK && !mpi->told_by) {
        mpi->told_by = peer;
        mpi->told = mpi->heard;
    }
    return ls__mpi_recv_start(mpi, operation, &mpi->hearing, -1, LS__MPI_GOODBYE, &mpi->heard,
                              sizeof mpi->heard);
}

/* Who gives up in a later operation has done its part in this one, and nothing orders its words with what
 * the others have sent before: a moment's patience for that. */
ls_status ls__mpi_tell(const ls__mpi *mpi, const ls__operation *operation) {
    char what[LS__MPI_REASON_BYTES + 16];
    if (!mpi->told_by || ls__now_ns() - mpi->told_by->left_ns < PATIENCE_NS)
        return LS_OK;
    snprintf(what, sizeof what, "gave up: %s", mpi->told.reason);
    return ls__mpi_peer_error(mpi, operation, mpi->told_by,
                              mpi->told.status == LS_ERR_MISMATCH ? LS_ERR_MISMATCH : LS_ERR_PEER,
                              what);
}

ls_status ls__mpi_listen(ls__mpi *mpi, const ls__operation *operation) {
    char text[LS__MPI_TEXT_BYTES];
    for (;;) {
        bool done = false;
        int from = -1;
        if (!mpi->hearing.active)
            return LS_OK;
        int failed = mpi->engine->test(&mpi->hearing.request, &done, &from, text);
        mpi->hearing.active = !done;
        if (failed)
            return ls__mpi_failed(mpi, operation, -1, text);
        if (!done || from < 0)
            return LS_OK;
        LS_TRY(take_goodbye(mpi, operation, from));
    }
}

void ls__mpi_say_goodbye(ls__mpi *mpi, ls_status status, const char *reason) {
    char text[LS__MPI_TEXT_BYTES];
    if (mpi->has_said)
        return;
    mpi->has_said = true;
    mpi->said.status = (int32_t)status;
    snprintf(mpi->said.reason, sizeof mpi->said.reason, "%.*s", (int)sizeof mpi->said.reason - 1,
             reason);
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        if (ls__mpi_peer_of(mpi, rank)->base.self)
            continue;
        mpi->saying[rank].active =
            mpi->engine->send(mpi->comm, rank, LS__MPI_GOODBYE, &mpi->said, sizeof mpi->said,
                              &mpi->saying[rank].request, text) == 0;
    }
}

static bool has_everyone_left(const ls__mpi *mpi) {
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        const ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        if (!peer->base.self && !peer->left_ns)
            return false;
    }
    return true;
}

bool ls__mpi_hear_farewells(ls__mpi *mpi, double seconds) {
    const struct timespec pause = {.tv_nsec = 100 * 1000};
    const ls__operation leaving = {.header = {.kind = LS__BARRIER}};
    const uint64_t deadline = ls__deadline_ns(seconds);
    while (mpi->hearing.active && !has_everyone_left(mpi) && ls__now_ns() < deadline) {
        (void)ls__mpi_listen(mpi, &leaving); /* well or not: they leave */
        nanosleep(&pause, NULL);
    }
    return has_everyone_left(mpi);
}

/* --- what is under way --- */

/* Counts a slot that is still busy after one look. */
static int poll_slot(ls__mpi *mpi, ls__mpi_slot *slot) {
    char text[LS__MPI_TEXT_BYTES];
    bool done = false;
    if (!slot->active)
        return 0;
    (void)mpi->engine->test(&slot->request, &done, NULL, text);
    slot->active = !done;
    return slot->active;
}

static int poll_window(ls__mpi *mpi, ls__mpi_window *window) {
    int busy = 0;
    for (int k = 0; k < LS__MPI_WINDOW; k++)
        busy += poll_slot(mpi, &window->slot[k]);
    return busy;
}

static void cancel_slot(ls__mpi *mpi, ls__mpi_slot *slot) {
    if (slot->active)
        mpi->engine->cancel(&slot->request);
}

void ls__mpi_reap_letters(ls__mpi *mpi) {
    for (ls__mpi_letter **link = &mpi->letters; *link;) {
        ls__mpi_letter *letter = *link;
        if (poll_slot(mpi, &letter->header_slot) + poll_slot(mpi, &letter->payload_slot[0]) +
                poll_slot(mpi, &letter->payload_slot[1]) >
            0) {
            link = &letter->next;
            continue;
        }
        *link = letter->next;
        free(letter);
    }
}

void ls__mpi_free_letters(ls__mpi *mpi) {
    while (mpi->letters) {
        ls__mpi_letter *letter = mpi->letters;
        mpi->letters = letter->next;
        free(letter);
    }
}

static int poll_all(ls__mpi *mpi, bool leaving) {
    int busy = leaving ? poll_slot(mpi, &mpi->hearing) : 0;
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        busy += poll_slot(mpi, &mpi->saying[rank]) + poll_slot(mpi, &peer->header_out) +
                poll_slot(mpi, &peer->header_in);
        for (int i = 0; i < 2; i++)
            busy += poll_window(mpi, &peer->out[i]) + poll_window(mpi, &peer->in[i]);
    }
    ls__mpi_reap_letters(mpi);
    return busy + (mpi->letters != NULL);
}

bool ls__mpi_settle(ls__mpi *mpi, bool leaving, double seconds) {
    const struct timespec pause = {.tv_nsec = 100 * 1000};
    const uint64_t deadline = ls__deadline_ns(seconds);
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        cancel_slot(mpi, &peer->header_in);
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < LS__MPI_WINDOW; k++)
                cancel_slot(mpi, &peer->in[i].slot[k]);
    }
    if (leaving)
        cancel_slot(mpi, &mpi->hearing);
    while (poll_all(mpi, leaving) > 0) {
        if (ls__now_ns() >= deadline)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}
