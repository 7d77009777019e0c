/* Reading environment variables. One that is set but empty counts as not set, as in a shell script's VAR= . */
#ifndef LS_COMM_VARIABLES_H
#define LS_COMM_VARIABLES_H

#include "base/error.h"

/* NULL: not set. */
const char *ls__variable(const char *name);
ls_status ls__variable_integer(const char *name, int lowest, int highest, int *number);
/* Seconds above 0: `option`, told as `option_name`, where that is not 0, else the variable where it is set, else
 * *seconds stays. */
ls_status ls__variable_seconds(const char *name, const char *option_name, double option,
                               double *seconds);

/* LS_ERR_ARGUMENT at a setting that cannot be read, also where nothing would read it here: a mistyped one is found
 * when it is made, and not in the first job on several machines. What names a rank's place (RANK, MASTER_PORT, the
 * descriptors) is read where it counts: a launcher replaces it. */
LS_SHARED ls_status ls__variables_check(void);

#endif
