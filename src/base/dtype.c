#include <lockstep/dtype.h>

static const struct {
    size_t bytes;
    const char *name;
} dtypes[LS_DTYPE_COUNT] = {
#define DTYPE_ROW(name, bytes, text) {bytes, text},
    LS_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

size_t ls_dtype_size(ls_dtype dtype) {
    return (unsigned)dtype < LS_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *ls_dtype_name(ls_dtype dtype) {
    return (unsigned)dtype < LS_DTYPE_COUNT ? dtypes[dtype].name : "?";
}
