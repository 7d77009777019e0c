/* What runs in a rank's process before the program itself does. */
#ifndef LS_LAUNCH_SHIM_H
#define LS_LAUNCH_SHIM_H

/* Arguments of the shim: LS__LAUNCH_SHIM, launcher's pid, last descriptor to keep, processors to bind to
 * ("-": none), path of the program, then the program's argv. */
enum { LS__SHIM_PARENT = 1, LS__SHIM_LAST_FD, LS__SHIM_CORES, LS__SHIM_PATH, LS__SHIM_ARGV };

/* Finds the program as a shell does. Returns its path (free it), or NULL with *exit_code 127 (not
 * found) or 126 (not executable) and ls_error_text(). */
char *ls__program_find(const char *program, int *exit_code);

#endif
