/* Status codes and the text of the last error. Part of liblockstep-comm.
 *
 * What holds for every header, unless a declaration says otherwise:
 *   - a function that can fail returns ls_status (operations on tensors: NULL) and sets ls_error_text;
 *     a mistake of the caller is LS_ERR_ARGUMENT, a call at the wrong time LS_ERR_STATE;
 *   - a handle belongs to the caller, who gives it to the _destroy, _close or _finish of its noun, which
 *     take NULL as well; where making one fails, the handle is NULL;
 *   - what a handle was made from (a group for a reducer, a device for a model) must outlive it;
 *   - pointers that a getter returns belong to the handle;
 *   - a handle, and what it was made from, is used by one thread at a time;
 *   - counts are elements, not bytes; options are zero-initialised, and zero means the default. */
#ifndef LOCKSTEP_STATUS_H
#define LOCKSTEP_STATUS_H

#if defined(__GNUC__)
#define LS_API __attribute__((visibility("default")))
#define LS_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define LS_API
#define LS_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One list gives the codes, their names and their texts: X(name, text). */
#define LS_STATUS_LIST(X)                                                                          \
    X(OK, "success")                                                                               \
    X(ERR_ARGUMENT, "invalid argument")                                                            \
    X(ERR_STATE, "call not allowed in this state")                                                 \
    X(ERR_MEMORY, "out of memory")                                                                 \
    X(ERR_SYSTEM, "a system call failed")                                                          \
    X(ERR_IO, "a file could not be read or written")                                               \
    X(ERR_FORMAT, "malformed file or message")                                                     \
    X(ERR_RANGE, "value out of range")                                                             \
    X(ERR_UNSUPPORTED, "not supported here")                                                       \
    X(ERR_TIMEOUT, "timed out")                                                                    \
    X(ERR_PEER, "another rank failed or left")                                                     \
    X(ERR_MISMATCH, "ranks disagree")                                                              \
    X(ERR_AUTH, "authentication failed")                                                           \
    X(ERR_NOT_REDUCED, "gradients were not reduced")

typedef enum ls_status {
#define LS_STATUS_ENUM(name, text) LS_##name,
    LS_STATUS_LIST(LS_STATUS_ENUM)
#undef LS_STATUS_ENUM
} ls_status;

/* "LS_ERR_TIMEOUT" and "timed out"; never NULL, also for values that are no status. */
LS_API const char *ls_status_name(ls_status status);
LS_API const char *ls_status_text(ls_status status);

/* The calling thread's last error message: one line, no newline, never NULL. It stays valid until
 * the next failing call on the same thread. Work that failed on another thread (ls_work) hands its
 * message to the thread that waits for it. */
LS_API const char *ls_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
