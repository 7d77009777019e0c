#include "launch/signals.h"

#include <time.h>

static const int numbers[LS__SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};

static void fill(sigset_t *set) {
    sigemptyset(set);
    for (int i = 0; i < LS__SIGNALS; i++)
        sigaddset(set, numbers[i]);
}

void ls__signals_hold(sigset_t *before) {
    sigset_t set;
    fill(&set);
    sigprocmask(SIG_BLOCK, &set, before);
}

/* nohup stays nohup. A shell that puts a command into the background ignores SIGINT for it, which is no wish of the
 * user's. */
static bool stays_ignored(int number) {
    struct sigaction now;
    return (number == SIGHUP || number == SIGUSR1 || number == SIGUSR2) &&
           sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void ls__signals_open(ls__signals *signals, uv_loop_t *loop, uv_signal_cb handler, void *data) {
    sigset_t set;
    fill(&set);
    for (int i = 0; i < LS__SIGNALS; i++) {
        uv_signal_init(loop, &signals->handle[i]);
        signals->handle[i].data = data;
        if (!stays_ignored(numbers[i]))
            uv_signal_start(&signals->handle[i], handler, numbers[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void ls__signals_close(ls__signals *signals) {
    sigset_t set;
    fill(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < LS__SIGNALS; i++)
        uv_close((uv_handle_t *)&signals->handle[i], NULL);
}

void ls__signals_release(const sigset_t *before) {
    sigset_t set;
    fill(&set);
    for (int i = 0; i < LS__SIGNALS; i++) {
        if (sigismember(before, numbers[i]) == 1)
            sigdelset(&set, numbers[i]);
    }
    while (sigtimedwait(&set, NULL, &(struct timespec){0}) > 0)
        continue;
    sigprocmask(SIG_SETMASK, before, NULL);
}
