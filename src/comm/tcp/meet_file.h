/* The rendezvous file (LOCKSTEP_RENDEZVOUS_FILE of ranks, --rendezvous-file of launchers): where they meet, and a secret made
 * for it. On a file system that all machines see it replaces an address that everybody has to know beforehand, and
 * LOCKSTEP_TOKEN. Two lines:
 *
 *     10.0.0.1:41233
 *     3f6c...            empty where LOCKSTEP_TOKEN is used */
#ifndef LS_COMM_TCP_MEET_FILE_H
#define LS_COMM_TCP_MEET_FILE_H

#include "base/error.h"
#include <stddef.h>

enum { LS__MEET_TOKEN_BYTES = 1024 };

/* Whether ls__meet_file_write may write there: LS_OK where nothing is, or such a file of this user's, as one that was killed
 * leaves. LS_ERR_IO for anything else, also a link, which then is neither replaced nor removed. */
LS_SHARED ls_status ls__meet_file_check_target(const char *path);
/* With mode 0600; checks that first. */
LS_SHARED ls_status ls__meet_file_write(const char *path, const char *where, const char *token);
/* Unless something else has come in its place. Leaves the error text alone. */
LS_SHARED void ls__meet_file_remove(const char *path, const char *where, const char *token);
/* LS_ERR_TIMEOUT: it is not there yet. LS_ERR_AUTH: a secret in it is open to others than this user. */
LS_SHARED ls_status ls__meet_file_read(const char *path, char *where, size_t bytes,
                                       char token[LS__MEET_TOKEN_BYTES]);

#endif
