#include "comm/memory.h"

#include "base/error.h"
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The number in a one-number file; false where there is none ("max", no file). */
static bool read_number(const char *path, uint64_t *number) {
    FILE *file = fopen(path, "re");
    unsigned long long value = 0;
    bool found = file && fscanf(file, "%llu", &value) == 1;
    if (file)
        fclose(file);
    *number = value;
    return found;
}

/* Takes what the control group at `folder` still allows into account. The folder is the one a
 * container sees as its own root; limits of groups further up are not visible from inside. */
static uint64_t limit_by_group(uint64_t available, const char *limit_path, const char *used_path) {
    uint64_t limit, used;
    if (!read_number(limit_path, &limit) || !read_number(used_path, &used))
        return available;
    uint64_t left = limit > used ? limit - used : 0;
    return left < available ? left : available;
}

uint64_t ls__memory_available(void) {
    uint64_t available = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file) {
        char line[128];
        unsigned long long kib, total = 0;
        while (fgets(line, sizeof line, file))
            if (sscanf(line, "MemAvailable: %llu", &kib) == 1 ||
                sscanf(line, "SwapFree: %llu", &kib) == 1)
                total += kib * 1024;
        fclose(file);
        if (total > 0)
            available = total;
    }
    available =
        limit_by_group(available, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    return limit_by_group(available, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                          "/sys/fs/cgroup/memory/memory.usage_in_bytes");
}

size_t ls__memory_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

/* All pages of a private mapping, written once; large ones where the system has them. */
static void *map_pages(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return p;
    madvise(p, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    madvise(p, bytes, MADV_POPULATE_WRITE);
#endif
    return p;
}

ls_status ls__memory_map(void **memory, size_t bytes) {
    uint64_t available = ls__memory_available();
    size_t rounded = ls__memory_pages(bytes);
    void *p = MAP_FAILED;
    if (rounded > 0 && rounded <= available)
        p = map_pages(rounded);
    if (p == MAP_FAILED)
        return ls__fail(LS_ERR_MEMORY, "no memory for %zu bytes, %llu are available", bytes,
                        (unsigned long long)available);
    *memory = p;
    return LS_OK;
}

void ls__memory_unmap(void *memory, size_t bytes) {
    munmap(memory, ls__memory_pages(bytes));
}
