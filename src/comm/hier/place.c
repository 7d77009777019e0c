/* Who is on which machine. Two ranks share one when boot id, process space and network space are equal: then
 * they can see whether the other lives, and a socket without a name in the file system joins them. What
 * looks equal and is not (a copied virtual machine) fails at that socket, and the job stays flat. */
#include "comm/hier/hier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static void read_boot_id(char *text, size_t bytes) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    text[0] = '\0';
    if (!file)
        return;
    if (!fgets(text, (int)bytes, file))
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

static uint64_t space_of(const char *path) {
    struct stat about;
    return stat(path, &about) ? 0 : (uint64_t)about.st_ino;
}

ls_status ls__hier_card_make(ls__hier_card *card, const ls__job_place *place) {
    const char *host = getenv("LOCKSTEP_HOST_ID");
    memset(card, 0, sizeof *card);
    if (host && *host)
        snprintf(card->host, sizeof card->host, "%s", host);
    else
        read_boot_id(card->host, sizeof card->host);
    card->pid_space = space_of("/proc/self/ns/pid");
    card->net_space = space_of("/proc/self/ns/net");
    card->pid = (int32_t)getpid();
    card->streams = place->streams;
    card->streams_given = place->streams_given;
    if (getrandom(card->secret, sizeof card->secret, 0) != (ssize_t)sizeof card->secret)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "no random numbers");
    return LS_OK;
}

/* Whoever does not know its host is alone. */
static bool share_machine(const ls__hier_card *a, const ls__hier_card *b) {
    return a->host[0] && memcmp(a->host, b->host, sizeof a->host) == 0 && a->pid_space &&
           a->pid_space == b->pid_space && a->net_space == b->net_space;
}

static bool is_regular(const ls__hier_map *map, int world) {
    if (map->machines * map->local != world || (map->local & (map->local - 1)))
        return false;
    for (int rank = 0; rank < world; rank++)
        if (map->machine[rank] != rank / map->local)
            return false;
    return true;
}

ls_status ls__hier_map_make(ls__hier_map *map, const ls__hier_card *cards, int world, int rank) {
    *map = (ls__hier_map){.leader = -1};
    map->machine = calloc((size_t)world, sizeof *map->machine);
    if (!map->machine)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", world);
    for (int r = 0; r < world; r++) {
        int other = 0;
        while (other < r && !share_machine(&cards[other], &cards[r]))
            other++;
        map->machine[r] = other < r ? map->machine[other] : map->machines++;
    }
    map->here = map->machine[rank];
    for (int r = 0; r < world; r++) {
        if (map->machine[r] != map->here)
            continue;
        if (map->leader < 0)
            map->leader = r;
        map->index += r < rank;
        map->local++;
    }
    map->regular = is_regular(map, world);
    return LS_OK;
}
