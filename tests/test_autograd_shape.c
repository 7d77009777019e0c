/* reshape, permute, transpose, slice, concat, alone and in chains. */
#include "autograd_check.h"

static ls_tensor *build_reshape(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *y = ls_reshape(step, in[0], c->out.shape, c->out.dims);
    if (y)
        assert_ptr_equal(y->data, in[0]->data); /* a view */
    return y;
}

static void same(const struct check *c, const double *const *in, double *y) {
    memcpy(y, in[0], check_count(c->out.shape, c->out.dims) * sizeof *y);
}

static void test_reshape(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"reshape", build_reshape, same, 1, {{3, {2, 3, 4}}}, {2, {6, 4}}},
        {"reshape flat", build_reshape, same, 1, {{4, {2, 3, 2, 2}}}, {2, {2, 12}}},
        {"reshape scalar", build_reshape, same, 1, {{2, {1, 1}}}, {0, {0}}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_permute(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_permute(step, in[0], c->n);
}

/* n: for each dimension of y, which one of x */
static void permute(const struct check *c, const double *const *in, double *y) {
    size_t dims = c->out.dims, index[LS_MAX_DIMS] = {0};
    for (size_t i = 0; i < check_count(c->out.shape, dims); i++) {
        size_t from[LS_MAX_DIMS], rest = i, offset = 0;
        for (size_t d = dims; d-- > 0; rest /= c->out.shape[d])
            index[d] = rest % c->out.shape[d];
        for (size_t d = 0; d < dims; d++)
            from[c->n[d]] = index[d];
        for (size_t d = 0; d < dims; d++)
            offset = offset * c->in[0].shape[d] + from[d];
        y[i] = in[0][offset];
    }
}

static ls_tensor *build_transpose(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_transpose(step, in[0], c->n[4], c->n[5]);
}

static void test_permute(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"permute 2d", build_permute, permute, 1, {{2, {5, 7}}}, {2, {7, 5}}, {1, 0}},
        {"permute 3d", build_permute, permute, 1, {{3, {2, 3, 4}}}, {3, {4, 2, 3}}, {2, 0, 1}},
        {"permute 4d",
         build_permute,
         permute,
         1,
         {{4, {2, 3, 4, 5}}},
         {4, {2, 4, 3, 5}},
         {0, 2, 1, 3}},
        {"permute 6d",
         build_permute,
         permute,
         1,
         {{6, {2, 1, 3, 2, 1, 2}}},
         {6, {3, 2, 2, 1, 2, 1}},
         {2, 5, 0, 1, 3, 4}},
        {"transpose",
         build_transpose,
         permute,
         1,
         {{3, {2, 3, 4}}},
         {3, {4, 3, 2}},
         {2, 1, 0, 0, 0, 2}},
        {"transpose none",
         build_transpose,
         permute,
         1,
         {{2, {2, 3}}},
         {2, {2, 3}},
         {0, 1, 0, 0, 1, 1}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_slice(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_slice(step, in[0], c->n[0], c->n[1], c->n[2]);
}

/* n: dim, begin, end */
static void slice(const struct check *c, const double *const *in, double *y) {
    const size_t *x = c->in[0].shape;
    size_t outer = check_count(x, c->n[0]), n = x[c->n[0]];
    size_t inner = check_count(x + c->n[0] + 1, c->in[0].dims - c->n[0] - 1);
    for (size_t o = 0; o < outer; o++)
        for (size_t k = c->n[1]; k < c->n[2]; k++)
            for (size_t i = 0; i < inner; i++)
                *y++ = in[0][(o * n + k) * inner + i];
}

static void test_slice(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"slice rows", build_slice, slice, 1, {{2, {5, 7}}}, {2, {2, 7}}, {0, 1, 3}},
        {"slice columns", build_slice, slice, 1, {{2, {5, 7}}}, {2, {5, 3}}, {1, 4, 7}},
        {"slice middle", build_slice, slice, 1, {{3, {2, 5, 3}}}, {3, {2, 1, 3}}, {1, 2, 3}},
        {"slice all", build_slice, slice, 1, {{1, {4}}}, {1, {4}}, {0, 0, 4}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_concat(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_concat(step, in, c->inputs, c->n[0]);
}

/* n: dim */
static void concat(const struct check *c, const double *const *in, double *y) {
    size_t outer = check_count(c->out.shape, c->n[0]);
    for (size_t o = 0; o < outer; o++)
        for (size_t k = 0; k < c->inputs; k++) {
            size_t columns = check_count(c->in[k].shape, c->in[k].dims) / outer;
            memcpy(y, in[k] + o * columns, columns * sizeof *y);
            y += columns;
        }
}

static void test_concat(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"concat rows", build_concat, concat, 2, {{2, {2, 3}}, {2, {4, 3}}}, {2, {6, 3}}, {0}},
        {"concat columns",
         build_concat,
         concat,
         4,
         {{2, {2, 3}}, {2, {2, 1}}, {2, {2, 5}}, {2, {2, 2}}},
         {2, {2, 11}},
         {1}},
        {"concat middle",
         build_concat,
         concat,
         3,
         {{3, {2, 1, 3}}, {3, {2, 2, 3}}, {3, {2, 1, 3}}},
         {3, {2, 4, 3}},
         {1}},
        {"concat one", build_concat, concat, 1, {{1, {4}}}, {1, {4}}, {0}},
    };
    CHECK_ALL(checks);
}

/* x (2, 12) -> (2, 3, 4) -> (3, 2, 4) -> both halves of the last dimension, exchanged and scaled ->
 * (3, 8); and x itself once more. */
static ls_tensor *build_chain(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    ls_tensor *cube = ls_reshape(step, in[0], (size_t[]){2, 3, 4}, 3);
    ls_tensor *turned = ls_permute(step, cube, (size_t[]){1, 0, 2});
    ls_tensor *halves[] = {ls_slice(step, turned, 2, 2, 4),
                           ls_scale(step, ls_slice(step, turned, 2, 0, 2), 3)};
    ls_tensor *joined = ls_reshape(step, ls_concat(step, halves, 2, 2), (size_t[]){3, 8}, 2);
    return ls_add(step, joined, ls_reshape(step, in[0], (size_t[]){3, 8}, 2));
}

static void chain(const struct check *c, const double *const *in, double *y) {
    (void)c;
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 2; j++)
            for (size_t k = 0; k < 4; k++) {
                size_t e = (i * 2 + j) * 4 + k;
                y[e] = in[0][e] + in[0][(j * 3 + i) * 4 + (k + 2) % 4] * (k < 2 ? 1 : 3);
            }
}

static void test_chain(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"chain", build_chain, chain, 1, {{2, {2, 12}}}, {2, {3, 8}}}};
    CHECK_ALL(checks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reshape), cmocka_unit_test(test_permute),
        cmocka_unit_test(test_slice),   cmocka_unit_test(test_concat),
        cmocka_unit_test(test_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
