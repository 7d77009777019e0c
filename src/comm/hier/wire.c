/* The thread that runs what goes between machines. A few operations may wait in its queue, so that the next
 * one begins without anybody waking up in between. */
#include "comm/hier/hier.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Called with the lock, which is open meanwhile; nobody else is running one. */
static void run_next(ls__hier_wire *wire) {
    wire->running = true;
    ls__operation *operation = &wire->queue[wire->done % LS__HIER_QUEUE];
    const bool works = wire->status == LS_OK;
    pthread_mutex_unlock(&wire->lock);
    ls_status status = LS_OK;
    if (works) {
        operation->times = (ls_work_times){.begin_ns = ls__now_ns(), .last_rank = -1};
        status = wire->transport->table->run(wire->transport, operation);
    }
    pthread_mutex_lock(&wire->lock);
    if (status != LS_OK && wire->status == LS_OK) {
        wire->status = status;
        snprintf(wire->text, sizeof wire->text, "%s", ls_error_text());
    }
    wire->running = false;
    wire->done++;
    pthread_cond_broadcast(&wire->changed);
}

static void *serve(void *argument) {
    ls__hier_wire *wire = argument;
    pthread_mutex_lock(&wire->lock);
    while (!wire->stop || wire->done < wire->given) {
        if (wire->done < wire->given && !wire->running)
            run_next(wire);
        else
            pthread_cond_wait(&wire->changed, &wire->lock);
    }
    pthread_mutex_unlock(&wire->lock);
    return NULL;
}

ls_status ls__hier_wire_open(ls__hier_wire *wire, ls__transport *transport, bool has_thread) {
    *wire = (ls__hier_wire){.transport = transport};
    pthread_mutex_init(&wire->lock, NULL);
    pthread_cond_init(&wire->changed, NULL);
    if (!has_thread)
        return LS_OK;
    sigset_t all, before;
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&wire->thread, NULL, serve, wire);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    wire->has_thread = error == 0;
    if (error) {
        ls__hier_wire_close(wire);
        return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot create a thread for the network");
    }
    return LS_OK;
}

void ls__hier_wire_close(ls__hier_wire *wire) {
    if (!wire->transport)
        return;
    pthread_mutex_lock(&wire->lock);
    wire->stop = true;
    pthread_cond_broadcast(&wire->changed);
    pthread_mutex_unlock(&wire->lock);
    if (wire->has_thread)
        pthread_join(wire->thread, NULL);
    wire->transport->table->close(wire->transport);
    wire->transport = NULL;
    pthread_mutex_destroy(&wire->lock);
    pthread_cond_destroy(&wire->changed);
}

uint64_t ls__hier_wire_start(ls__hier_wire *wire, const ls__operation *operation, bool alone) {
    pthread_mutex_lock(&wire->lock);
    while (wire->given - wire->done == LS__HIER_QUEUE)
        pthread_cond_wait(&wire->changed, &wire->lock);
    wire->queue[wire->given % LS__HIER_QUEUE] = *operation;
    const uint64_t number = ++wire->given;
    if (!wire->has_thread || (alone && wire->given == wire->done + 1))
        run_next(wire);
    else
        pthread_cond_broadcast(&wire->changed);
    pthread_mutex_unlock(&wire->lock);
    return number;
}

ls_status ls__hier_wire_wait(ls__hier_wire *wire, uint64_t number, ls_work_times *times) {
    pthread_mutex_lock(&wire->lock);
    while (wire->done < number)
        pthread_cond_wait(&wire->changed, &wire->lock);
    const ls_status status = wire->status;
    if (times && wire->given - number < LS__HIER_QUEUE)
        *times = wire->queue[(number - 1) % LS__HIER_QUEUE].times;
    if (status != LS_OK)
        ls__error_set("%s", wire->text);
    pthread_mutex_unlock(&wire->lock);
    return status;
}
