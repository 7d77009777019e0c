#include "launch/orphans.h"

#include "base/clock.h"
#include "base/error.h"
#include "launch/job.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Beyond LS__LEFTOVER_S. Who is killed is gone at once, unless it waits for a disk or is another user's. */
static const double GIVE_UP_S = 2;

/* --- who are the children ---------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    char state;
    char name[32];
} child;

typedef void (*seer)(void *context, const child *child);

/* Reads /proc/PID/stat; false: it is no child of this process. */
static bool read_child(pid_t pid, child *c) {
    char path[64], text[512];
    int parent = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    const char *open = strchr(text, '('), *close = strrchr(text, ')'); /* a name may hold both */
    *c = (child){.pid = pid};
    if (!open || !close || sscanf(close + 1, " %c %d", &c->state, &parent) != 2)
        return false;
    snprintf(c->name, sizeof c->name, "%.*s", (int)(close - open - 1), open + 1);
    return parent == getpid();
}

/* Where the kernel lists the children (CONFIG_PROC_CHILDREN); orphans come to the first thread. */
static bool see_list(seer see, void *context) {
    char path[64];
    int pid;
    child c;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (fscanf(file, "%d", &pid) == 1) {
        if (read_child((pid_t)pid, &c))
            see(context, &c);
    }
    fclose(file);
    return true;
}

static void see_children(seer see, void *context) {
    child c;
    if (see_list(see, context))
        return;
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (isdigit((unsigned char)entry->d_name[0]) &&
            read_child((pid_t)strtol(entry->d_name, NULL, 10), &c))
            see(context, &c);
    }
    if (folder)
        closedir(folder);
}

/* --- which of them are the ranks' --------------------------------------------------------------------- */

static bool is_foreign(const ls__launch_job *job, pid_t pid) {
    for (size_t i = 0; i < job->orphans.foreign_count; i++) {
        if (job->orphans.foreign[i] == pid)
            return true;
    }
    return pid == job->watcher.pid;
}

static bool is_rank(const ls__launch_job *job, pid_t pid) {
    for (int i = 0; i < job->started; i++) {
        if (job->ranks[i].pid == pid)
            return true;
    }
    return false;
}

/* It was started with this job's token in its environment. */
static bool has_token(const ls__launch_job *job, pid_t pid) {
    char path[64], want[sizeof "LOCKSTEP_TOKEN=" + LS__PLAN_TOKEN_BYTES], *entry = NULL;
    size_t capacity = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    snprintf(want, sizeof want, "LOCKSTEP_TOKEN=%s", job->plan.token);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&entry, &capacity, '\0', file) > 0)
        found = strcmp(entry, want) == 0;
    free(entry);
    if (file)
        fclose(file);
    return found;
}

void ls__orphans_reap(ls__launch_job *job) {
    siginfo_t ended = {0};
    /* One that has ended came here only because orphans do, whosever it was: nobody else will reap it. Before a child
     * of the program's own that waits for that the rest is found when the round ends. */
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid) {
        if (is_foreign(job, ended.si_pid) || is_rank(job, ended.si_pid))
            return;
        (void)waitpid(ended.si_pid, NULL, WNOHANG);
        ended.si_pid = 0;
    }
}

/* --- ending them --------------------------------------------------------------------------------------- */

typedef struct look {
    ls__launch_job *job;
    bool kill, give_up;
    int living;
} look;

static void meet_child(void *context, const child *c) {
    look *l = context;
    ls__launch_job *job = l->job;
    if (is_foreign(job, c->pid))
        return;
    if (c->state == 'Z') {
        (void)waitpid(c->pid, NULL, WNOHANG);
        return;
    }
    if (job->orphans.shared && !has_token(job, c->pid))
        return;
    l->living++;
    if (l->kill)
        kill(c->pid, SIGKILL);
    if (l->give_up)
        fprintf(stderr, "%s: process %d (%s), which a rank has started, cannot be ended\n",
                job->command, (int)c->pid, c->name);
}

void ls__orphans_begin(ls__orphans *orphans) {
    orphans->seen_ns = 0;
    orphans->given_up = false;
}

bool ls__orphans_meet(ls__launch_job *job, uint64_t now) {
    ls__orphans *o = &job->orphans;
    if (!job->started || o->given_up)
        return false;
    if (!o->seen_ns || job->paused) /* nobody reads what they write: they have time */
        o->seen_ns = now;
    uint64_t end = ls__deadline_after(o->seen_ns, LS__LEFTOVER_S);
    look l = {.job = job, .kill = now >= end, .give_up = now >= ls__deadline_after(end, GIVE_UP_S)};
    see_children(meet_child, &l);
    if (!l.living) /* one that ends while the list is read may hide the next: proc(5) */
        see_children(meet_child, &l);
    o->given_up = l.give_up;
    return l.living && !l.give_up;
}

/* --- opening and closing ------------------------------------------------------------------------------- */

static void note_child(void *context, const child *c) {
    ls__orphans *o = context;
    pid_t *grown = reallocarray(o->foreign, o->foreign_count + 1, sizeof *grown);
    o->failed |= !grown;
    if (!grown)
        return;
    o->foreign = grown;
    o->foreign[o->foreign_count++] = c->pid;
}

ls_status ls__orphans_open(ls__orphans *orphans) {
    *orphans = (ls__orphans){0};
    prctl(PR_GET_CHILD_SUBREAPER, &orphans->reaper_before, 0, 0, 0);
    see_children(note_child, orphans);
    if (orphans->failed)
        return ls__fail(LS_ERR_MEMORY, "no memory for the processes that are here already");
    orphans->shared = orphans->foreign_count || orphans->reaper_before || getpid() == 1;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return LS_OK;
}

void ls__orphans_close(ls__orphans *orphans) {
    prctl(PR_SET_CHILD_SUBREAPER, orphans->reaper_before, 0, 0, 0);
    free(orphans->foreign);
    *orphans = (ls__orphans){0};
}
