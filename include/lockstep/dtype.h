/* Element types. Part of liblockstep-comm. */
#ifndef LOCKSTEP_DTYPE_H
#define LOCKSTEP_DTYPE_H

#include <lockstep/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, bytes, name as in safetensors). The numbers are part of the wire format. */
#define LS_DTYPE_LIST(X)                                                                           \
    X(F32, 4, "F32")                                                                               \
    X(F64, 8, "F64")                                                                               \
    X(F16, 2, "F16")                                                                               \
    X(BF16, 2, "BF16")                                                                             \
    X(I8, 1, "I8")                                                                                 \
    X(U8, 1, "U8")                                                                                 \
    X(I32, 4, "I32")                                                                               \
    X(I64, 8, "I64")

typedef enum ls_dtype {
#define LS_DTYPE_ENUM(name, bytes, text) LS_##name,
    LS_DTYPE_LIST(LS_DTYPE_ENUM)
#undef LS_DTYPE_ENUM
        LS_DTYPE_COUNT
} ls_dtype;

/* Bytes of one element; 0 for a value that is no dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);
/* "F32", ...; "?" for a value that is no dtype. */
LS_API const char *ls_dtype_name(ls_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
