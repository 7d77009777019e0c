/* Who runs an operation: the first in the queue is run by whoever comes first among the thread that
 * waits for it and, for a started one, the group's own thread. So a blocking call on an idle group
 * costs no change of thread, and a wait on a started one that has not begun takes it over. */
#include "comm/work.h"

#include "comm/split.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/heartbeat.h"
#include "comm/hold.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- running one operation ------------------------------------------------------------------- */

/* It failed: `text` becomes the reason, and everybody who should know is told. */
static void spread_failure(ls_group *group, const ls__operation *operation, ls_status status,
                           char text[LS__TEXT_BYTES]) {
    ls__transport *transport = group->transport;
    if (group != group->world && !strstr(ls_error_text(), group->name))
        ls__error_add_context("group %s", group->name);
    snprintf(text, LS__TEXT_BYTES, "%s", ls_error_text());
    if (status == LS_ERR_ARGUMENT)
        return;
    ls__board_fail(group->board, text);
    ls__heartbeat_fail(transport->heartbeat, operation->header.group, status, text);
    /* Peers are in the middle of something with this rank: tell them, so they need not time out. */
    transport->table->abort(transport, status, text);
}

/* Called without the lock, with group->running set. `text` is written where it fails. */
static ls_status run_operation(ls_group *group, ls__operation *operation,
                               char text[LS__TEXT_BYTES]) {
    ls__transport *transport = group->transport;
    if (!operation->times.begin_ns) /* else it was submitted this very moment */
        operation->times.begin_ns = ls__now_ns();
    operation->times.last_rank = -1;
    operation->deadline = ls__deadline_after(operation->times.begin_ns, operation->timeout_s);
    operation->paused_ns = ls__heartbeat_paused_ns(transport->heartbeat);
    ls__flight *flight = ls__board_flight(group->board);
    uint64_t note = ls__flight_begin(flight, operation);
    ls_status status = operation->split ? ls__split_run(transport, operation)
                                        : transport->table->run(transport, operation);
    if (operation->times.end_ns == 0)
        operation->times.end_ns = ls__now_ns();
    if (operation->times.ready_ns == 0)
        operation->times.ready_ns = operation->times.begin_ns;
    ls__flight_end(flight, note, operation, status);
    if (status != LS_OK)
        spread_failure(group, operation, status, text);
    return status;
}

/* Called with the lock, after an operation: a failed one ends the group. */
static void conclude(ls_group *group, ls_status status, const char text[LS__TEXT_BYTES]) {
    group->running = false;
    if (status != LS_OK && status != LS_ERR_ARGUMENT) {
        group->broken = status;
        memcpy(group->broken_text, text, sizeof group->broken_text);
    }
}

/* Called with the lock. The group's own thread sleeps on, also through any number of blocking calls, unless one
 * is for it. */
static void wake_others(ls_group *group) {
    if (group->waiting > 0 || (group->first && !group->first->blocking))
        pthread_cond_broadcast(&group->changed);
}

/* Takes the first of the queue and runs it. Called with the lock, which is open meanwhile. */
static void run_first(ls_group *group) {
    ls_work *work = group->first;
    group->first = work->next;
    if (!group->first)
        group->last = NULL;
    if (group->broken != LS_OK) {
        work->status = group->broken;
        memcpy(work->text, group->broken_text, sizeof work->text);
    } else {
        group->running = true;
        pthread_mutex_unlock(&group->lock);
        work->status = run_operation(group, &work->operation, work->text);
        pthread_mutex_lock(&group->lock);
        conclude(group, work->status, work->text);
    }
    /* After this store the waiting thread may free the work. */
    atomic_store_explicit(&work->done, true, memory_order_release);
    wake_others(group);
}

static void *progress(void *argument) {
    ls_group *group = argument;
    pthread_mutex_lock(&group->lock);
    while (!group->stop || group->first) {
        if (group->first && !group->running && !group->first->blocking) {
            group->first->operation.beside = true;
            run_first(group);
        } else {
            pthread_cond_wait(&group->changed, &group->lock);
        }
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* Called with the lock. The thread takes no signals: those belong to the program's own threads. */
static ls_status ensure_thread(ls_group *group) {
    if (group->has_thread)
        return LS_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&group->thread, NULL, progress, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot create the group's thread");
    group->has_thread = true;
    return LS_OK;
}

/* --- submitting and waiting ------------------------------------------------------------------ */

static void number(ls_group *group, ls__operation *operation) {
    ls__header *header = &operation->header;
    header->group = group->id;
    operation->label = &group->label;
    if (header->kind == LS__SEND)
        header->sequence = ++group->sent[operation->root];
    else if (header->kind == LS__RECV)
        header->sequence = ++group->received[operation->root];
    else if (header->kind == LS__SENDRECV) {
        header->sequence = ++group->sent[operation->root];
        operation->recv_sequence = ++group->received[operation->from];
    } else
        header->sequence = ++group->collectives;
}

/* A fork must not wait for a lock, either: another thread may have held it. */
static ls_status check_home(const ls_group *group) {
    if (*group->at_home)
        return LS_OK;
    return ls__fail(LS_ERR_STATE,
                    "this process was forked from rank %d and is no rank itself; only the parent "
                    "may use the group",
                    ls__own_name(group->transport));
}

/* Called with the lock: the operation is the next of its group. */
static void enter(ls_group *group, ls__operation *operation) {
    number(group, operation);
    operation->times.queued_ns = ls__now_ns();
    operation->timeout_s = group->timeout_s;
}

/* Called with the lock. */
static ls_status submit(ls_group *group, ls_work *work) {
    if (group->broken != LS_OK)
        return ls__fail(group->broken, "%s", group->broken_text);
    if (!work->blocking)
        LS_TRY(ensure_thread(group));
    enter(group, &work->operation);
    if (group->last)
        group->last->next = work;
    else
        group->first = work;
    group->last = work;
    group->holders += !work->blocking;
    return LS_OK;
}

/* Called with the lock. */
static ls_status wait_for(ls_group *group, ls_work *work) {
    while (!atomic_load_explicit(&work->done, memory_order_relaxed)) {
        if (group->first == work && !group->running) {
            run_first(group);
        } else {
            group->waiting++;
            pthread_cond_wait(&group->changed, &group->lock);
            group->waiting--;
        }
    }
    return work->status == LS_OK ? LS_OK : ls__fail(work->status, "%s", work->text);
}

/* Nobody is before it, so it needs no place in the queue and no copy. Called with the lock, which is open
 * meanwhile. */
static ls_status run_at_once(ls_group *group, ls__operation *operation) {
    char text[LS__TEXT_BYTES]; /* as it is: only a failure writes and reads it */
    enter(group, operation);
    operation->times.begin_ns = operation->times.queued_ns;
    group->running = true;
    pthread_mutex_unlock(&group->lock);
    ls_status status = run_operation(group, operation, text);
    pthread_mutex_lock(&group->lock);
    conclude(group, status, text);
    wake_others(group);
    return status == LS_OK ? LS_OK : ls__fail(status, "%s", text);
}

/* Called with the lock. */
static ls_status run_in_turn(ls_group *group, const ls__operation *operation) {
    ls_work *work = calloc(1, sizeof *work);
    if (!work)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a place in the queue",
                        ls__kind_name(operation->header.kind));
    work->operation = *operation;
    work->group = group;
    work->blocking = true;
    ls_status status = submit(group, work);
    if (status == LS_OK)
        status = wait_for(group, work);
    free(work);
    return status;
}

ls_status ls__work_run(ls_group *group, ls__operation *operation) {
    LS_TRY(check_home(group));
    operation->untimed = true;
    pthread_mutex_lock(&group->lock);
    const bool at_once = !group->running && !group->first && group->broken == LS_OK;
    ls_status status = at_once ? run_at_once(group, operation) : run_in_turn(group, operation);
    pthread_mutex_unlock(&group->lock);
    return status;
}

ls_status ls__work_start(ls_group *group, const ls__operation *operation, ls_work **work) {
    LS_TRY(check_home(group));
    ls_work *new_work = calloc(1, sizeof *new_work);
    if (!new_work)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a work handle",
                        ls__kind_name(operation->header.kind));
    new_work->operation = *operation;
    new_work->group = group;
    pthread_mutex_lock(&group->lock);
    ls_status status = submit(group, new_work);
    if (status == LS_OK)
        pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    if (status == LS_OK)
        *work = new_work;
    else
        free(new_work);
    return status;
}

ls_status ls_work_wait(ls_work *work, ls_work_times *times) {
    if (!work)
        return ls__fail(LS_ERR_ARGUMENT, "work_wait: work is NULL");
    ls_group *group = work->group;
    LS_TRY(check_home(group));
    pthread_mutex_lock(&group->lock);
    ls_status status = wait_for(group, work);
    pthread_mutex_unlock(&group->lock);
    ls__group_release(group);
    if (times)
        *times = work->operation.times;
    free(work);
    return status;
}

int ls_work_done(const ls_work *work) {
    return work ? atomic_load_explicit(&work->done, memory_order_acquire) : 0;
}

ls_status ls_group_set_timeout(ls_group *group, double seconds) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "group_set_timeout: group is NULL");
    if (!(seconds > 0))
        return ls__fail(LS_ERR_ARGUMENT, "group_set_timeout: %g, want seconds above 0", seconds);
    pthread_mutex_lock(&group->lock);
    group->timeout_s = seconds;
    pthread_mutex_unlock(&group->lock);
    return LS_OK;
}

double ls_group_timeout(ls_group *group) {
    if (!group)
        return 0;
    pthread_mutex_lock(&group->lock);
    double seconds = group->timeout_s;
    pthread_mutex_unlock(&group->lock);
    return seconds;
}

/* --- the group's life ------------------------------------------------------------------------ */

/* A page of our own with a 1 in it. Kernels before 4.14 cannot wipe it: there a child goes unnoticed. */
static const uint32_t *make_home(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *home = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (home == MAP_FAILED)
        return NULL;
    (void)madvise(home, page, MADV_WIPEONFORK);
    *home = 1;
    return home;
}

static void free_home(const uint32_t *home) {
    if (home)
        munmap((void *)home, (size_t)sysconf(_SC_PAGESIZE));
}

ls_status ls__group_create(ls_group **group, ls__transport *transport, double timeout_s,
                           ls__board *board) {
    ls_group *g = calloc(1, sizeof *g);
    uint64_t *counters = calloc(2 * (size_t)transport->size, sizeof *counters);
    const uint32_t *home = make_home();
    if (!g || !counters || !home) {
        free_home(home);
        free(g);
        free(counters);
        transport->table->close(transport);
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", transport->size);
    }
    g->transport = transport;
    g->id = 1;
    g->world = g;
    snprintf(g->name, sizeof g->name, "world");
    g->label = (ls__group_label){.name = g->name, .rank = transport->rank, .size = transport->size};
    g->at_home = home;
    g->board = board;
    g->timeout_s = timeout_s;
    g->sent = counters;
    g->received = counters + transport->size;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    *group = g;
    return LS_OK;
}

void ls__group_adopt(const ls_group *parent, ls_group *group, uint64_t id, const char *name,
                     int *names) {
    ls_group *world = parent->world;
    group->id = id;
    group->names = names;
    group->label.names = names;
    group->world = world;
    snprintf(group->name, sizeof group->name, "%s", name);
    ls__flight_name_group(ls__board_flight(group->board), id, group->transport->size, name);
    pthread_mutex_lock(&world->lock);
    group->next = world->next;
    world->next = group;
    pthread_mutex_unlock(&world->lock);
}

uint64_t ls__group_count_split(ls_group *group) {
    pthread_mutex_lock(&group->lock);
    uint64_t number = ++group->splits;
    pthread_mutex_unlock(&group->lock);
    return number;
}

static void disown(ls_group *group) {
    ls_group *world = group->world;
    pthread_mutex_lock(&world->lock);
    ls_group **link = &world->next;
    while (*link && *link != group)
        link = &(*link)->next;
    if (*link)
        *link = group->next;
    pthread_mutex_unlock(&world->lock);
    ls__flight_forget_group(ls__board_flight(group->board), group->id);
}

static void free_group(ls_group *group) {
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
    free_home(group->at_home);
    free(group->names);
    free(group->sent);
    free(group);
}

/* Waits for what was started, and for a thread of a reducer or checkpointer that is inside of an operation; what any of
 * them does next fails. */
static void stop(ls_group *group) {
    pthread_mutex_lock(&group->lock);
    group->stop = true;
    group->waiting++;
    bool has_thread = group->has_thread;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    if (has_thread)
        pthread_join(group->thread, NULL);
    pthread_mutex_lock(&group->lock);
    while (group->running || group->first)
        pthread_cond_wait(&group->changed, &group->lock);
    group->waiting--;
    if (group->broken == LS_OK) {
        group->broken = LS_ERR_STATE;
        snprintf(
            group->broken_text, sizeof group->broken_text,
            "group %s has ended, by ls_job_finish or ls_group_destroy; what was made of it can "
            "only be destroyed",
            group->name);
    }
    pthread_mutex_unlock(&group->lock);
}

void ls__group_destroy(ls_group *group) {
    /* A child's copy ends with the child. */
    if (!group || group->ended || !*group->at_home)
        return;
    while (group == group->world && group->next)
        /* It takes itself out of the list: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        ls__group_destroy(group->next);
    if (group != group->world)
        disown(group);
    stop(group);
    group->transport->table->close(group->transport);
    group->transport = NULL;
    pthread_mutex_lock(&group->lock);
    group->ended = true;
    bool held = group->holders > 0;
    pthread_mutex_unlock(&group->lock);
    if (!held)
        free_group(group);
}

/* --- what outlives it ------------------------------------------------------------------------------ */

void ls__group_hold(ls_group *group) {
    if (!group || !*group->at_home)
        return;
    pthread_mutex_lock(&group->lock);
    group->holders++;
    pthread_mutex_unlock(&group->lock);
}

void ls__group_release(ls_group *group) {
    if (!group || !*group->at_home)
        return;
    pthread_mutex_lock(&group->lock);
    bool last = --group->holders == 0 && group->ended;
    pthread_mutex_unlock(&group->lock);
    if (last)
        free_group(group);
}

ls_status ls__group_check_alive(const ls_group *group) {
    return group->ended ? ls__fail(group->broken, "%s", group->broken_text) : LS_OK;
}
