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

/* Sets the thread's error text (one line, cut at 1 KiB) and returns `status`. A macro, so that the
 * compiler sees that what is returned is not LS_OK. */
#define ls__fail(status, ...) (ls__error_set(__VA_ARGS__), ls__status(status))
/* As above, and appends ": " and the text of `error_number` (errno). */
#define ls__fail_errno(status, error_number, ...)                                                  \
    (ls__error_set_errno(error_number, __VA_ARGS__), ls__status(status))
/* Puts "context: " in front of the thread's text: where the caller knows more than the callee. */
#define ls__fail_context(status, ...) (ls__error_add_context(__VA_ARGS__), ls__status(status))

static inline ls_status ls__status(ls_status status) {
    return status; /* a plain (status) warns where the result is not used */
}

LS_SHARED void ls__error_set(const char *format, ...) LS_PRINTF(1, 2);
LS_SHARED void ls__error_set_errno(int error_number, const char *format, ...) LS_PRINTF(2, 3);
LS_SHARED void ls__error_add_context(const char *format, ...) LS_PRINTF(1, 2);

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
