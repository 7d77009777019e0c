/* SIGTERM and SIGUSR1 as a request to stop after the step.
 *
 * A thread of its own takes the signals, and there is no handler: oneDNN's AVX-512 kernels (2.6) move the stack
 * pointer such that the frame of a handler overwrites what they keep, and floats end up in the heap.
 * docs/decisions.md has the measurement. So the signals are blocked in all threads, before any is made. */
#include "base/error.h"
#include "cli/train.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

static pthread_t watcher;
static bool running;
static atomic_int asked;     /* the signal's number */
static atomic_bool training; /* there are steps after which to stop */

static void end_by(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

static void stop_set(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
}

static void *watch(void *argument) {
    sigset_t set;
    int number;
    stop_set(&set);
    while (sigwait(&set, &number) == 0) {
        if (!atomic_load(&training))
            end_by(number);
        int none = 0; /* the same request may come twice: from the launcher and from the cluster */
        atomic_compare_exchange_strong(&asked, &none, number);
    }
    return argument;
}

ls_status ls__stop_watch(void) {
    sigset_t set;
    stop_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    running = pthread_create(&watcher, NULL, watch, NULL) == 0;
    if (running)
        return LS_OK;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return ls__fail(LS_ERR_SYSTEM, "cannot make a thread that waits for SIGTERM");
}

void ls__stop_arm(void) {
    atomic_store(&training, true);
}

int ls__stop_asked(void) {
    return atomic_load(&asked);
}

void ls__stop_end(void) {
    if (!running)
        return;
    running = false;
    pthread_cancel(watcher);
    pthread_join(watcher, NULL);
}
