/* lockstep doctor: software, processor, memory, limits. */
#include "cli/doctor.h"

#include "base/level.h"
#include "data/dataset.h"
#include "device/cpu/info.h"
#include "launch/binding.h"
#include <hwloc.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <uv.h>
#include <xxhash.h>
#ifdef LOCKSTEP_WITH_TCP
#include <sodium.h>
#endif
#ifdef LOCKSTEP_WITH_ZLIB
#include <zlib.h>
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

void ls__doctor_software(ls__findings *findings) {
    char text[100];
    unsigned hwloc = hwloc_get_api_version();
    unsigned xxhash = XXH_versionNumber();
    findings->section = "Software";
    ls__findings_add(findings, "lockstep", "%s", LOCKSTEP_VERSION);
    ls__findings_add(findings, "compiler", "%s", COMPILER);
    ls__cpu_library_version(text, sizeof text);
    ls__findings_add(findings, "oneDNN", "%s", text);
    ls__findings_add(findings, "libuv", "%s", uv_version_string());
    ls__findings_add(findings, "hwloc", "API %u.%u.%u", hwloc >> 16, hwloc >> 8 & 255, hwloc & 255);
    ls__findings_add(findings, "jansson", "%s", jansson_version_str());
    ls__findings_add(findings, "xxhash", "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100,
                     xxhash % 100);
#ifdef LOCKSTEP_WITH_TCP
    ls__findings_add(findings, "libsodium", "%s", sodium_version_string());
#else
    ls__findings_fault(findings, LS__FINDING_MISSING,
                       "install libsodium-dev and build again to run ranks over a network",
                       "libsodium", "not built in");
#endif
#ifdef LOCKSTEP_WITH_ZLIB
    ls__findings_add(findings, "zlib", "%s", zlibVersion());
#else
    ls__findings_fault(findings, LS__FINDING_MISSING,
                       "install zlib1g-dev and build again to read .gz data", "zlib",
                       "not built in");
#endif
    findings->section = "Data";
    if (access(LS__FASHION_MNIST, R_OK) == 0)
        ls__findings_add(findings, "fashion-mnist", "%s", LS__FASHION_MNIST);
    else
        ls__findings_fault(findings, LS__FINDING_MISSING, "apt-get install dataset-fashion-mnist",
                           "fashion-mnist", "not installed");
}

/* The first line of a file that begins with `key`, without it; false when there is none. */
static bool read_line(const char *path, const char *key, char *text, size_t bytes) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (file && !found && getline(&line, &room, file) >= 0) {
        size_t n = strlen(key);
        found = strncmp(line, key, n) == 0;
        if (found) {
            const char *value = line + n + strspn(line + n, " \t:");
            snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        }
    }
    free(line);
    if (file)
        fclose(file);
    return found;
}

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n) {
        bool begins = at == words || at[-1] == ' ';
        if (begins && (at[n] == ' ' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* What the kernels can make use of, from the flags of the first processor. */
static void find_instructions(ls__findings *findings) {
    static const char *const wanted[] = {"avx2",        "fma",      "avx512f",  "avx512_vnni",
                                         "avx512_bf16", "amx_tile", "amx_bf16", "asimd",
                                         "sve",         "bf16"};
    char flags[8192], found[160] = "";
    if (!read_line("/proc/cpuinfo", "flags", flags, sizeof flags) &&
        !read_line("/proc/cpuinfo", "Features", flags, sizeof flags))
        return;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (has_word(flags, wanted[i])) {
            size_t used = strlen(found);
            snprintf(found + used, sizeof found - used, "%s%s", used ? " " : "", wanted[i]);
        }
    }
    ls__findings_add(findings, "instruction sets", "%s", found[0] ? found : "none of note");
    ls__findings_add(findings, "oneDNN uses", "%s", ls__cpu_library_isa());
}

/* The level of Lockstep's own kernels. */
static void find_level(ls__findings *findings) {
    ls__cpu_level level;
    const char *wanted = getenv("LOCKSTEP_CPU");
    if (ls__cpu_level_choose(wanted, &level) != LS_OK)
        ls__findings_fault(findings, LS__FINDING_BROKEN, "unset LOCKSTEP_CPU", "own kernels use",
                           "%s", ls_error_text());
    else
        ls__findings_add(findings, "own kernels use", "%s%s", ls__cpu_level_name(level),
                         wanted && *wanted ? " (LOCKSTEP_CPU)" : "");
}

static const char *cache_size(hwloc_topology_t topology, hwloc_obj_type_t type, char text[32]) {
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    if (!cache || !cache->attr || cache->attr->cache.size == 0)
        return "?";
    snprintf(text, 32, "%" PRIu64 " KiB", (uint64_t)(cache->attr->cache.size >> 10));
    return text;
}

static void find_topology(ls__findings *findings) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return;
    if (hwloc_topology_load(topology) == 0) {
        char first[32], second[32], third[32];
        int packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
        int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        int usable = ls__launch_cores();
        ls__findings_add(findings, "cores", "%d of %d may be used; %d hardware threads", usable,
                         hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE),
                         hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU));
        ls__findings_add(findings, "packages", "%d, with %d NUMA node%s", packages, nodes,
                         nodes == 1 ? "" : "s");
        ls__findings_add(findings, "caches", "L1 %s, L2 %s, L3 %s",
                         cache_size(topology, HWLOC_OBJ_L1CACHE, first),
                         cache_size(topology, HWLOC_OBJ_L2CACHE, second),
                         cache_size(topology, HWLOC_OBJ_L3CACHE, third));
    }
    hwloc_topology_destroy(topology);
}

void ls__doctor_machine(ls__findings *findings) {
    char text[200];
    struct utsname system;
    findings->section = "Machine";
    if (uname(&system) == 0)
        ls__findings_add(findings, "system", "%s %s %s", system.sysname, system.release,
                         system.machine);
    if (read_line("/proc/cpuinfo", "model name", text, sizeof text))
        ls__findings_add(findings, "processor", "%s", text);
    find_topology(findings);
    find_instructions(findings);
    find_level(findings);
    char total[60], available[60];
    if (read_line("/proc/meminfo", "MemTotal", total, sizeof total) &&
        read_line("/proc/meminfo", "MemAvailable", available, sizeof available))
        ls__findings_add(findings, "memory", "%.1f GiB, of which %.1f GiB are available",
                         strtod(total, NULL) / (1 << 20), strtod(available, NULL) / (1 << 20));
    if (read_line("/sys/fs/cgroup/memory.max", "", text, sizeof text) && strcmp(text, "max") != 0)
        ls__findings_add(findings, "memory limit", "%.1f GiB for this group of processes",
                         strtod(text, NULL) / (1 << 30));
    double quota, period;
    if (read_line("/sys/fs/cgroup/cpu.max", "", text, sizeof text) &&
        sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0)
        ls__findings_add(findings, "processor limit", "%.2f cores for this group of processes",
                         quota / period);
}

static void find_limit(ls__findings *findings, const char *name, __rlimit_resource_t resource,
                       rlim_t least, const char *advice) {
    struct rlimit limit;
    char text[40] = "unlimited";
    if (getrlimit(resource, &limit) != 0)
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, sizeof text, "%" PRIu64, (uint64_t)limit.rlim_cur);
    if (limit.rlim_cur < least)
        ls__findings_fault(findings, LS__FINDING_MISSING, advice, name, "%s", text);
    else
        ls__findings_add(findings, name, "%s", text);
}

void ls__doctor_limits(ls__findings *findings) {
    char text[40];
    const char *threads = getenv("OMP_NUM_THREADS");
    findings->section = "Limits";
    find_limit(findings, "open files", RLIMIT_NOFILE, 256,
               "every rank costs the launcher two: ulimit -n 1024");
    find_limit(findings, "processes", RLIMIT_NPROC, 256,
               "ranks and their threads count: raise ulimit -u");
    find_limit(findings, "locked bytes", RLIMIT_MEMLOCK, 0, NULL);
    if (read_line("/proc/sys/kernel/threads-max", "", text, sizeof text))
        ls__findings_add(findings, "threads", "%s in the whole system", text);
    ls__findings_add(findings, "OMP_NUM_THREADS", "%s",
                     threads ? threads : "not set; lockstep run gives ranks 1");
}
