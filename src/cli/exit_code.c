#include "cli/commands.h"

int ls__cli_exit_code(ls_status status) {
    switch (status) {
    case LS_OK:
        return LS__EXIT_OK;
    case LS_ERR_ARGUMENT:
    case LS_ERR_UNSUPPORTED:
        return LS__EXIT_USAGE;
    case LS_ERR_IO:
    case LS_ERR_FORMAT:
    case LS_ERR_RANGE:
        return LS__EXIT_INPUT;
    case LS_ERR_TIMEOUT:
    case LS_ERR_PEER:
    case LS_ERR_MISMATCH:
    case LS_ERR_AUTH:
        return LS__EXIT_RANKS;
    case LS_ERR_STATE:
    case LS_ERR_MEMORY:
    case LS_ERR_SYSTEM:
    case LS_ERR_NOT_REDUCED:
        break;
    }
    return LS__EXIT_FAILURE;
}
