/* The public reductions. */
#include "comm/call.h"

#include <math.h>

static bool is_float(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_F16 || dtype == LS_BF16;
}

static ls_status check_all_reduce(const char *name, const ls_group *group, const void *send,
                                  const void *recv, size_t count, ls_dtype dtype) {
    LS_TRY(ls__check_common(name, group, count, 1, dtype));
    LS_TRY(ls__check_buffer(name, "send", send, count));
    LS_TRY(ls__check_buffer(name, "recv", recv, count));
    size_t bytes = count * ls_dtype_size(dtype);
    return ls__check_overlap(name, send, bytes, recv, bytes, send == recv);
}

static ls_status all_reduce(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(check_all_reduce("all_reduce", group, send, recv, count, dtype));
    LS_TRY(ls__check_op("all_reduce", op));
    ls__operation operation;
    ls__describe(&operation, LS__ALL_REDUCE, send, recv, count, dtype);
    operation.op = op;
    operation.header.op = (uint8_t)op;
    return ls__submit(group, &operation, work);
}

ls_status ls_all_reduce(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                        ls_op op) {
    return all_reduce(group, send, recv, count, dtype, op, NULL);
}

ls_status ls_all_reduce_start(ls_group *group, const void *send, void *recv, size_t count,
                              ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(ls__check_work("all_reduce_start", work));
    return all_reduce(group, send, recv, count, dtype, op, work);
}

static ls_status all_reduce_weighted(ls_group *group, const void *send, void *recv, size_t count,
                                     ls_dtype dtype, double weight, double *total, ls_work **work) {
    LS_TRY(check_all_reduce("all_reduce_weighted", group, send, recv, count, dtype));
    if (!is_float(dtype))
        return ls__fail(LS_ERR_ARGUMENT, "all_reduce_weighted: dtype is %s, want a float",
                        ls_dtype_name(dtype));
    if (!isfinite(weight) || weight < 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "all_reduce_weighted: weight is %g, want a finite number, 0 or more",
                        weight);
    ls__operation operation;
    ls__describe(&operation, LS__ALL_REDUCE, send, recv, count, dtype);
    operation.op = LS_SUM;
    operation.weighted = true;
    operation.total = total;
    operation.header.op = LS_SUM | LS__OP_WEIGHTED;
    operation.header.weight = weight;
    return ls__submit(group, &operation, work);
}

ls_status ls_all_reduce_weighted(ls_group *group, const void *send, void *recv, size_t count,
                                 ls_dtype dtype, double weight, double *total) {
    return all_reduce_weighted(group, send, recv, count, dtype, weight, total, NULL);
}

ls_status ls_all_reduce_weighted_start(ls_group *group, const void *send, void *recv, size_t count,
                                       ls_dtype dtype, double weight, double *total,
                                       ls_work **work) {
    LS_TRY(ls__check_work("all_reduce_weighted_start", work));
    return all_reduce_weighted(group, send, recv, count, dtype, weight, total, work);
}

/* --- reduce, reduce_scatter ------------------------------------------------------------------- */

static ls_status reduce(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                        ls_op op, int root, ls_work **work) {
    const char *name = "reduce";
    LS_TRY(ls__check_common(name, group, count, 1, dtype));
    LS_TRY(ls__check_op(name, op));
    LS_TRY(ls__check_rank(name, "root", group, root));
    LS_TRY(ls__check_buffer(name, "send", send, count));
    if (root == ls_group_rank(group)) {
        size_t bytes = count * ls_dtype_size(dtype);
        LS_TRY(ls__check_buffer(name, "recv", recv, count));
        LS_TRY(ls__check_overlap(name, send, bytes, recv, bytes, send == recv));
    }
    ls__operation operation;
    ls__describe(&operation, LS__REDUCE, send, recv, count, dtype);
    operation.op = op;
    operation.header.op = (uint8_t)op;
    operation.root = root;
    operation.header.root = (uint32_t)root;
    return ls__submit(group, &operation, work);
}

ls_status ls_reduce(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                    ls_op op, int root) {
    return reduce(group, send, recv, count, dtype, op, root, NULL);
}

ls_status ls_reduce_start(ls_group *group, const void *send, void *recv, size_t count,
                          ls_dtype dtype, ls_op op, int root, ls_work **work) {
    LS_TRY(ls__check_work("reduce_start", work));
    return reduce(group, send, recv, count, dtype, op, root, work);
}

static ls__blocks_call reduce_scatter(const void *send, void *recv, ls_dtype dtype, ls_op op) {
    return (ls__blocks_call){.kind = LS__REDUCE_SCATTER,
                             .name = "reduce_scatter",
                             .send = send,
                             .recv = recv,
                             .dtype = dtype,
                             .op = op,

                             .sends_all = true};
}

ls_status ls_reduce_scatter(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_op op) {
    return ls__submit_even(group, reduce_scatter(send, recv, dtype, op), count, NULL);
}

ls_status ls_reduce_scatter_start(ls_group *group, const void *send, void *recv, size_t count,
                                  ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(ls__check_work("reduce_scatter_start", work));
    return ls__submit_even(group, reduce_scatter(send, recv, dtype, op), count, work);
}

ls_status ls_reduce_scatter_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                              ls_dtype dtype, ls_op op) {
    return ls__submit_uneven(group, reduce_scatter(send, recv, dtype, op), counts, NULL);
}

ls_status ls_reduce_scatter_v_start(ls_group *group, const void *send, void *recv,
                                    const size_t *counts, ls_dtype dtype, ls_op op,
                                    ls_work **work) {
    LS_TRY(ls__check_work("reduce_scatter_v_start", work));
    return ls__submit_uneven(group, reduce_scatter(send, recv, dtype, op), counts, work);
}
