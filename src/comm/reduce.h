/* The arithmetic of reductions: one pass over all sources in tree order. */
#ifndef LS_COMM_REDUCE_H
#define LS_COMM_REDUCE_H

#include "base/level.h"
#include <lockstep/group.h>
#include <stdbool.h>

/* dst[i] = scale * tree(op, sources[0][i], ..., sources[sources-1][i]) for `elements` elements, in the
 * tree order of group.h. dst may be one of the sources; sources may be equal pointers. 16-bit floats:
 * in f32, rounded to nearest even once. scale == 1 multiplies nothing; it is rounded to f32 for all
 * dtypes but F64. Integers: scale is not used, LS_AVG divides by `sources`. No failure. */
void ls__reduce(void *dst, const void *const *source, int sources, size_t elements, ls_dtype dtype,
                ls_op op, double scale);

/* The same into `dsts` destinations at once, at most LS__REDUCE_SOURCES_MOST sources: dst[0] may be one of
 * the sources, so may the others. Nobody else may read dst[0] meanwhile. `around` asks for stores that
 * leave the caches alone, right for results that no cache would hold. Equal bits at every level. */
enum { LS__REDUCE_SOURCES_MOST = 256 };
void ls__reduce_to(ls__cpu_level level, void *const *dst, int dsts, const void *const *source,
                   int sources, size_t elements, ls_dtype dtype, ls_op op, double scale,
                   bool around);

/* a op= b for one pair, same arithmetic: the step of a tree that is walked one node at a time. */
void ls__reduce_pair(void *a, const void *b, size_t elements, ls_dtype dtype, ls_op op);

/* The `scale` of ls__reduce: 1 / size for LS_AVG, 1 / total for weighted, else 1. A total of 0 means
 * zeros for everyone, which no factor gives (0 * inf): the caller writes them. */
double ls__reduce_scale(ls_op op, int size, bool weighted, double total);

/* Sum of the ranks' weights, in tree order. */
double ls__reduce_weights(const double *weight, int size);

#endif
