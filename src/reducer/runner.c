#include "reducer/runner.h"

#include "base/error.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct ls__runner {
    ls_status (*run)(void *context, size_t job);
    void *context;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    size_t posted, done;
    bool stop;
    ls_status status; /* of the first job that failed since the restart, and its text */
    char text[1024];
};

/* Called with the lock, which is open while the job runs. */
static void run_next(ls__runner *r) {
    size_t job = r->done;
    if (r->status == LS_OK) {
        pthread_mutex_unlock(&r->lock);
        ls_status status = r->run(r->context, job);
        pthread_mutex_lock(&r->lock);
        r->status = status;
        if (status != LS_OK)
            snprintf(r->text, sizeof r->text, "%s", ls_error_text());
    }
    r->done++;
    pthread_cond_broadcast(&r->changed);
}

static void *work(void *argument) {
    ls__runner *r = argument;
    pthread_mutex_lock(&r->lock);
    while (!r->stop || r->done < r->posted) {
        if (r->done < r->posted)
            run_next(r);
        else
            pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

ls_status ls__runner_create(ls__runner **runner, ls_status (*run)(void *context, size_t job),
                            void *context) {
    ls__runner *r = calloc(1, sizeof *r);
    if (!r)
        return ls__fail(LS_ERR_MEMORY, "no memory for a thread");
    r->run = run;
    r->context = context;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&r->thread, NULL, work, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        pthread_mutex_destroy(&r->lock);
        pthread_cond_destroy(&r->changed);
        free(r);
        return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot create the reducer's thread");
    }
    *runner = r;
    return LS_OK;
}

void ls__runner_restart(ls__runner *r) {
    pthread_mutex_lock(&r->lock);
    r->posted = r->done = 0;
    r->status = LS_OK;
    pthread_mutex_unlock(&r->lock);
}

void ls__runner_post(ls__runner *r) {
    pthread_mutex_lock(&r->lock);
    r->posted++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

ls_status ls__runner_wait(ls__runner *r) {
    pthread_mutex_lock(&r->lock);
    while (r->done < r->posted)
        pthread_cond_wait(&r->changed, &r->lock);
    ls_status status = r->status;
    pthread_mutex_unlock(&r->lock);
    return status == LS_OK ? LS_OK : ls__fail(status, "%s", r->text);
}

void ls__runner_destroy(ls__runner *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r);
}
