/* The file of --rendezvous-file: where the launchers of a job meet, and a secret made for it. On a file system that all
 * machines see it replaces an address that everybody has to know beforehand, and LOCKSTEP_TOKEN. Two lines:
 *
 *     10.0.0.1:41233
 *     3f6c...            empty where LOCKSTEP_TOKEN is used */
#ifndef LS_LAUNCH_RENDEZVOUS_FILE_H
#define LS_LAUNCH_RENDEZVOUS_FILE_H

#include <lockstep/status.h>
#include <stddef.h>

enum { LS__RENDEZVOUS_TOKEN_BYTES = 1024 };

/* Replaces what is there, with mode 0600. */
ls_status ls__rendezvous_file_write(const char *path, const char *where, const char *token);
/* LS_ERR_TIMEOUT: it is not there yet. LS_ERR_AUTH: a secret in it is open to others than this user. */
ls_status ls__rendezvous_file_read(const char *path, char *where, size_t bytes,
                                   char token[LS__RENDEZVOUS_TOKEN_BYTES]);

#endif
