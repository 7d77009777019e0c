/* Model specs: the text that says which model, and its parsed form. */
#ifndef LS_NN_SPEC_H
#define LS_NN_SPEC_H

#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>

enum { LS__SPEC_WIDTHS = 64, LS__SPEC_TEXT = 1024 };

typedef enum ls__model_kind { LS__MLP, LS__CNN, LS__RESNET, LS__GPT } ls__model_kind;

/* Whose statistics a batch norm takes: there is none; of the shard; of the whole batch. */
typedef enum ls__norm { LS__NORM_NONE, LS__NORM_BATCH, LS__NORM_SYNC } ls__norm;

typedef struct ls__spec {
    ls__model_kind kind;
    size_t widths[LS__SPEC_WIDTHS]; /* mlp: input, hidden..., output */
    size_t width_count;
    size_t layers, heads, width, context, vocab; /* gpt */
    size_t channels, side, classes; /* resnet18, whose width is that of its first layer */
    double dropout;                 /* cnn (when given), gpt */
    bool dropout_given;
    ls__norm norm;            /* cnn, resnet18 */
    char text[LS__SPEC_TEXT]; /* the same spec with everything filled in */
} ls__spec;

/* LS_ERR_ARGUMENT names the part that is wrong, the value seen and what is wanted.
 * default_vocab as in ls_model_options. The limits on every number are such that no product of them
 * that makes up a parameter or a count of elements overflows 63 bits. */
ls_status ls__spec_parse(ls__spec *spec, const char *text, size_t default_vocab);

#endif
