/* Memory for ls_group_alloc: asked for before it is touched, so that too much is an error and not
 * the end of the process. */
#ifndef LS_COMM_MEMORY_H
#define LS_COMM_MEMORY_H

#include <lockstep/status.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes this machine, or the control group this process is in, can still give; an estimate. */
uint64_t ls__memory_available(void);

/* `bytes` rounded up to whole pages; 0 where that overflows. */
size_t ls__memory_pages(size_t bytes);

/* Private memory, zeroed, page-aligned, reserved. LS_ERR_MEMORY when there is not as much. bytes > 0. */
ls_status ls__memory_map(void **memory, size_t bytes);
void ls__memory_unmap(void *memory, size_t bytes);

#endif
