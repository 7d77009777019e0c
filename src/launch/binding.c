#include "launch/binding.h"

#include "base/error.h"
#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* Topology without devices, and in `allowed` the processors that both the system and this process's
 * own binding (taskset, a container) leave us. */
static ls_status look(hwloc_topology_t *topology, hwloc_bitmap_t *allowed) {
    *allowed = NULL;
    if (hwloc_topology_init(topology) != 0)
        return ls__fail(LS_ERR_SYSTEM, "hwloc: cannot start");
    hwloc_topology_set_io_types_filter(*topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (!mine || hwloc_topology_load(*topology) != 0) {
        hwloc_bitmap_free(mine);
        hwloc_topology_destroy(*topology);
        return ls__fail(LS_ERR_SYSTEM, "hwloc: cannot read the machine's topology");
    }
    if (hwloc_get_cpubind(*topology, mine, HWLOC_CPUBIND_THREAD) != 0)
        hwloc_bitmap_fill(mine);
    hwloc_bitmap_and(mine, mine, hwloc_topology_get_allowed_cpuset(*topology));
    *allowed = mine;
    return LS_OK;
}

/* The next core after `core` with an allowed processor. */
static hwloc_obj_t next_core(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
                             hwloc_obj_t core) {
    do
        core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core);
    while (core && !hwloc_bitmap_intersects(core->cpuset, allowed));
    return core;
}

static int count_cores(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
    int count = 0;
    for (hwloc_obj_t core = NULL; (core = next_core(topology, allowed, core));)
        count++;
    return count;
}

/* Reading the topology takes milliseconds; how many processors there are at most, microseconds. */
static int count_processors(void) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return online > 0 ? (int)online : 1; /* more than the set can hold */
}

int ls__launch_threads(int ranks) {
    int each = ranks < count_processors() ? ls__launch_cores() / ranks : 1;
    return each > 1 ? each : 1;
}

int ls__launch_cores(void) {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    int count = 0;
    if (look(&topology, &allowed) == LS_OK) {
        count = count_cores(topology, allowed);
        hwloc_bitmap_free(allowed);
        hwloc_topology_destroy(topology);
    }
    if (count < 1) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        count = online > 0 ? (int)online : 1;
    }
    return count;
}

static ls_status divide(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int cores,
                        char **lists, int ranks) {
    hwloc_obj_t core = NULL;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (int rank = 0; set && rank < ranks; rank++) {
        /* rank r owns cores [r*cores/ranks, (r+1)*cores/ranks) */
        int begin = (int)((int64_t)rank * cores / ranks);
        int end = (int)((int64_t)(rank + 1) * cores / ranks);
        hwloc_bitmap_zero(set);
        for (int i = begin; i < end && (core = next_core(topology, allowed, core)); i++)
            hwloc_bitmap_or(set, set, core->cpuset);
        hwloc_bitmap_and(set, set, allowed);
        if (hwloc_bitmap_list_asprintf(&lists[rank], set) < 0)
            lists[rank] = NULL;
    }
    hwloc_bitmap_free(set);
    return set ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory to divide the cores");
}

/* Memory of the machine has as many places (NUMA nodes) with processors that we may use. */
static hwloc_obj_t next_place(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
                              hwloc_obj_t place) {
    do
        place = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, place);
    while (place && !hwloc_bitmap_intersects(place->cpuset, allowed));
    return place;
}

/* Rank r gets all processors of place r * places / ranks. */
static ls_status divide_places(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
                               char **lists, int ranks) {
    int places = 0, at = 0;
    for (hwloc_obj_t place = NULL; (place = next_place(topology, allowed, place));)
        places++;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    hwloc_obj_t place = next_place(topology, allowed, NULL);
    for (int rank = 0; set && place && rank < ranks; rank++) {
        for (int want = (int)((int64_t)rank * places / ranks); at < want; at++)
            place = next_place(topology, allowed, place);
        hwloc_bitmap_and(set, place->cpuset, allowed);
        if (hwloc_bitmap_list_asprintf(&lists[rank], set) < 0)
            lists[rank] = NULL;
    }
    hwloc_bitmap_free(set);
    return set ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory to divide the processors");
}

ls_status ls__launch_divide(char **lists, int ranks, bool by_place) {
    for (int rank = 0; rank < ranks; rank++)
        lists[rank] = NULL;
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    if (!by_place && ranks > count_processors())
        return LS_OK;
    LS_TRY(look(&topology, &allowed));
    int cores = count_cores(topology, allowed);
    ls_status status = LS_OK;
    if (by_place)
        status = divide_places(topology, allowed, lists, ranks);
    else if (cores >= ranks)
        status = divide(topology, allowed, cores, lists, ranks);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return status;
}

cpu_set_t *ls__launch_parse_cores(const char *list, size_t *bytes) {
    enum { MOST = 1 << 16 };
    cpu_set_t *set = CPU_ALLOC(MOST);
    *bytes = CPU_ALLOC_SIZE(MOST);
    if (!set)
        return NULL;
    CPU_ZERO_S(*bytes, set);
    const char *at = list;
    while (*at) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i >= 0 && i <= last && i < MOST; i++)
            CPU_SET_S((size_t)i, *bytes, set);
        if (*end != ',')
            break;
        at = end + 1;
    }
    return set;
}
