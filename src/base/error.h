/* How a function of the library reports an error: set the thread's text, return the code.
 *
 *     if (count == 0)
 *         return ls__fail(LS_ERR_ARGUMENT, "all_reduce: count is 0, want at least 1");
 */
#ifndef LS_BASE_ERROR_H
#define LS_BASE_ERROR_H

#include <lockstep/status.h>

/* Exported for liblockstep, but no part of the public interface. */
#define LS_SHARED LS_API

/* Sets the thread's error text (one line, cut at 1 KiB) and returns `status`. */
LS_SHARED ls_status ls__fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);
/* As above, and appends ": " and the text of `error_number` (errno). */
LS_SHARED ls_status ls__fail_errno(ls_status status, int error_number, const char *format, ...)
    LS_PRINTF(3, 4);
/* Puts "context: " in front of the thread's text: where the caller knows more than the callee. */
LS_SHARED ls_status ls__fail_context(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* Returns from the calling function when `call` fails. */
#define LS_TRY(call)                                                                               \
    do {                                                                                           \
        ls_status try_status_ = (call);                                                            \
        if (try_status_ != LS_OK)                                                                  \
            return try_status_;                                                                    \
    } while (0)

/* Jumps to `out:` when `call` fails; wants a local `ls_status status`. */
#define LS_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != LS_OK)                                                                       \
            goto out;                                                                              \
    } while (0)

#endif
