/* Losses, accuracy and embedding. */
#include "device_support.h"

static const size_t SHAPES[][2] = {{1, 1}, {3, 2}, {7, 33}, {64, 65}, {130, 519}};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

static int32_t *random_indices(fixture *f, size_t count, size_t below) {
    float *values = uniform(f, count, 0, 1);
    int32_t *indices = array(f, count * sizeof *indices);
    for (size_t i = 0; i < count; i++)
        indices[i] = (int32_t)(values[i] * (float)below);
    return indices;
}

static void check_cross_entropy(fixture *f, size_t rows, size_t columns, bool accumulate) {
    size_t count = rows * columns;
    float *x = uniform(f, count, 80, 100), *start = destination(f, count, accumulate);
    int32_t *targets = random_indices(f, rows, columns);
    for (size_t r = 1; r < rows; r += 3)
        targets[r] = -1;
    double *probs = reference(f, NULL, count, false), loss = 0;
    double *want_dx = reference(f, start, count, accumulate);
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t j = 0; j < columns; j++)
            sum += exp((double)x[r * columns + j] - 90);
        for (size_t j = 0; j < columns; j++)
            probs[r * columns + j] = exp((double)x[r * columns + j] - 90) / sum;
        if (targets[r] < 0)
            continue;
        loss -= log(probs[r * columns + (size_t)targets[r]]);
        for (size_t j = 0; j < columns; j++)
            want_dx[r * columns + j] += 1.5 * (probs[r * columns + j] - (j == (size_t)targets[r]));
    }
    float got[3], *p[2], *dx[2];
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        const ls__device_table *t = device->table;
        p[i] = destination(f, count, false);
        dx[i] = copy_of(f, start, count);
        assert_int_equal(
            t->cross_entropy_forward(device, LS_F32, rows, columns, x, targets, &got[i], p[i]),
            LS_OK);
        expect_close(&got[i], &loss, 1, 1e-6, "cross_entropy");
        expect_close(p[i], probs, count, 2e-6, "cross_entropy probabilities");
        assert_int_equal(t->cross_entropy_backward(device, LS_F32, rows, columns, p[i], targets,
                                                   1.5F, dx[i], accumulate),
                         LS_OK);
        expect_close(dx[i], want_dx, count, 5e-6, "cross_entropy backward");
    }
    f->one->table->cross_entropy_forward(f->one, LS_F32, rows, columns, x, targets, &got[2], NULL);
    expect_equal_bits(&got[0], &got[1], sizeof *got, "cross_entropy, threads");
    expect_equal_bits(&got[0], &got[2], sizeof *got, "cross_entropy without probabilities");
    expect_equal_bits(p[0], p[1], count * sizeof(float), "probabilities, threads");
    expect_equal_bits(dx[0], dx[1], count * sizeof(float), "cross_entropy backward, threads");
}

static void test_cross_entropy(void **state) {
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        check_cross_entropy(*state, SHAPES[i][0], SHAPES[i][1], false);
        check_cross_entropy(*state, SHAPES[i][0], SHAPES[i][1], true);
    }
}

static void test_targets_out_of_range(void **state) {
    fixture *f = *state;
    const ls__device_table *t = f->one->table;
    float *x = uniform(f, 30, -1, 1), loss;
    int32_t targets[] = {0, 9, 10}, negative[] = {-1, -2, 0};
    size_t correct;
    assert_int_equal(t->cross_entropy_forward(f->one, LS_F32, 3, 10, x, targets, &loss, NULL),
                     LS_ERR_RANGE);
    assert_non_null(strstr(ls_error_text(), "target 10 in row 2"));
    assert_int_equal(t->cross_entropy_forward(f->one, LS_F32, 3, 10, x, negative, &loss, NULL),
                     LS_ERR_RANGE);
    assert_non_null(strstr(ls_error_text(), "target -2 in row 1"));
    assert_int_equal(t->count_correct(f->one, LS_F32, 3, 10, x, targets, &correct), LS_ERR_RANGE);
}

static void test_squared_error(void **state) {
    fixture *f = *state;
    static const size_t counts[] = {0, 1, 7, 4095, 4096, 4097, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        float *a = uniform(f, counts[i], -1, 1), *b = uniform(f, counts[i], -1, 1), got[2];
        double want = 0;
        for (size_t j = 0; j < counts[i]; j++) {
            want += ((double)a[j] - (double)b[j]) * ((double)a[j] - (double)b[j]);
        }
        for (int k = 0; k < 2; k++) {
            ls_device *device = k ? f->two : f->one;
            assert_int_equal(device->table->squared_error(device, LS_F32, counts[i], a, b, &got[k]),
                             LS_OK);
            expect_close(&got[k], &want, 1, 1e-7, "squared_error");
        }
        expect_equal_bits(&got[0], &got[1], sizeof *got, "squared_error, threads");
    }
}

static void test_count_correct(void **state) {
    fixture *f = *state;
    /* hit; first of equals, hit; second of equals, miss; padding; miss */
    float x[] = {0, 3, 1, 2, 2, 1, 2, 2, 1, 9, 0, 0, 1, 2, 3};
    int32_t targets[] = {1, 0, 1, -1, 0};
    size_t correct = 99;
    assert_int_equal(f->one->table->count_correct(f->one, LS_F32, 5, 3, x, targets, &correct),
                     LS_OK);
    assert_int_equal(correct, 2);
}

/* --- embedding --- */

static void check_embedding(fixture *f, size_t rows, size_t columns, size_t count,
                            bool accumulate) {
    float *table = uniform(f, rows * columns, -1, 1), *dy = uniform(f, count * columns, -1, 1);
    float *start = destination(f, rows * columns, accumulate), *dtable[2];
    int32_t *indices = random_indices(f, count, rows);
    double *want = reference(f, NULL, count * columns, false);
    double *want_dtable = reference(f, start, rows * columns, accumulate);
    for (size_t i = 0; i < count * columns; i++) {
        size_t from = (size_t)indices[i / columns] * columns + i % columns;
        want[i] = (double)table[from];
        want_dtable[from] += (double)dy[i];
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        float *y = destination(f, count * columns, false);
        dtable[i] = copy_of(f, start, rows * columns);
        assert_int_equal(device->table->embedding_forward(device, LS_F32, rows, columns, table,
                                                          indices, count, y),
                         LS_OK);
        expect_close(y, want, count * columns, 0, "embedding");
        assert_int_equal(device->table->embedding_backward(device, LS_F32, rows, columns, indices,
                                                           count, dy, dtable[i], accumulate),
                         LS_OK);
        expect_close(dtable[i], want_dtable, rows * columns, 1e-5, "embedding backward");
    }
    expect_equal_bits(dtable[0], dtable[1], rows * columns * sizeof(float), "embedding, threads");
}

static void test_embedding(void **state) {
    static const size_t cases[][3] = {{1, 1, 1}, {5, 3, 40}, {65, 128, 300}, {300, 67, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_embedding(*state, cases[i][0], cases[i][1], cases[i][2], false);
        check_embedding(*state, cases[i][0], cases[i][1], cases[i][2], true);
    }
}

static void test_embedding_out_of_range(void **state) {
    fixture *f = *state;
    float *table = uniform(f, 20, -1, 1), *y = filled(f, 6, 0);
    int32_t high[] = {0, 1, 10}, low[] = {0, -1, 2};
    const ls__device_table *t = f->one->table;
    assert_int_equal(t->embedding_forward(f->one, LS_F32, 10, 2, table, high, 3, y), LS_ERR_RANGE);
    assert_non_null(strstr(ls_error_text(), "index 10 at position 2"));
    assert_int_equal(t->embedding_forward(f->one, LS_F32, 10, 2, table, low, 3, y), LS_ERR_RANGE);
    assert_non_null(strstr(ls_error_text(), "index -1 at position 1"));
    assert_int_equal(t->embedding_backward(f->one, LS_F32, 10, 2, high, 3, y, table, true),
                     LS_ERR_RANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_cross_entropy), kernel_test(test_targets_out_of_range),
        kernel_test(test_squared_error), kernel_test(test_count_correct),
        kernel_test(test_embedding),     kernel_test(test_embedding_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
