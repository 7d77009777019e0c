/* One clock for everything: CLOCK_MONOTONIC, equal on all processes of a machine. */
#ifndef LS_BASE_CLOCK_H
#define LS_BASE_CLOCK_H

#include "base/error.h"
#include <stdint.h>

LS_SHARED uint64_t ls__now_ns(void);

/* The moment `seconds` from now; a negative or huge value saturates. */
LS_SHARED uint64_t ls__deadline_ns(double seconds);
/* The same from `begin_ns` on. */
LS_SHARED uint64_t ls__deadline_after(uint64_t begin_ns, double seconds);

/* Which clock that is: equal for processes that read the same one; that of another machine, of another start of
 * it or of a time namespace differs. */
LS_SHARED uint64_t ls__clock_identity(void);

#endif
