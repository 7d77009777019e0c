/* The layout of gradients and buckets, without any group. */
#include "reducer/layout.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PARAMS = 64 };

typedef struct model {
    ls_reducer_param params[MAX_PARAMS];
    size_t shapes[MAX_PARAMS];
    size_t order[MAX_PARAMS];
    size_t count;
} model;

static void add(model *m, ls_dtype dtype, size_t elements, bool frozen) {
    size_t i = m->count++;
    m->shapes[i] = elements;
    m->order[i] = i;
    m->params[i] = (ls_reducer_param){
        .name = "p", .dtype = dtype, .shape = &m->shapes[i], .dims = 1, .frozen = frozen};
}

static ls__layout arranged(const model *m, size_t first_cap, size_t cap) {
    ls__layout layout;
    assert_int_equal(ls__layout_create(&layout, m->params, m->count, first_cap, cap, NULL), LS_OK);
    ls__layout_arrange(&layout, m->order);
    return layout;
}

/* What must hold for every model, order and cap. */
static void check_promises(const model *m, const ls__layout *layout, size_t first_cap, size_t cap) {
    size_t at = 0;
    assert_true(layout->bucket_count >= 1);
    assert_true(layout->bucket_count <= layout->bucket_limit);
    for (size_t k = 0; k < layout->bucket_count; k++) { /* buckets cover the memory without gaps */
        const ls__bucket *b = &layout->bucket[k];
        assert_int_equal(b->offset, at);
        assert_true(b->bytes > 0 && b->bytes % LS__GRADIENT_ALIGN == 0);
        assert_true(b->bytes <= (k == 0 ? first_cap : cap));
        at += b->bytes;
    }
    assert_int_equal(at, layout->bytes);

    size_t end = 0;
    size_t *members = calloc(layout->bucket_limit + 1, sizeof *members);
    assert_non_null(members);
    for (size_t position = 0; position < m->count; position++) {
        size_t i = m->order[position];
        const ls__place *p = &layout->place[i];
        if (m->params[i].frozen) {
            assert_int_equal(p->extent, 0);
            continue;
        }
        size_t element = ls_dtype_size(m->params[i].dtype);
        assert_int_equal(p->offset, end); /* in ready order, no gaps */
        assert_int_equal(p->offset % LS__GRADIENT_ALIGN, 0);
        assert_int_equal(p->bytes, m->shapes[i] * element);
        assert_true(p->extent >= p->bytes + element); /* room for the used mark */
        assert_true(p->extent < p->bytes + element + LS__GRADIENT_ALIGN);
        end += p->extent;
        const ls__bucket *first = &layout->bucket[p->first_bucket];
        const ls__bucket *last = &layout->bucket[p->last_bucket];
        assert_true(p->first_bucket <= p->last_bucket);
        assert_true(first->offset <= p->offset && p->offset < first->offset + first->bytes);
        assert_true(last->offset < end && end <= last->offset + last->bytes);
        for (size_t k = p->first_bucket; k <= p->last_bucket; k++) {
            assert_int_equal(layout->bucket[k].dtype, m->params[i].dtype);
            members[k]++;
        }
    }
    for (size_t k = 0; k < layout->bucket_count; k++)
        assert_int_equal(members[k], layout->bucket[k].members);
    free(members);
}

static void test_one_bucket(void **state) {
    (void)state;
    model m = {0};
    add(&m, LS_F32, 16, false); /* 64 bytes and a mark: 128 */
    add(&m, LS_F32, 15, false); /* 60 bytes and a mark: 64 */
    ls__layout layout = arranged(&m, 1 << 20, 1 << 20);
    assert_int_equal(layout.bucket_count, 1);
    assert_int_equal(layout.bytes, 192);
    assert_int_equal(layout.place[1].offset, 128);
    check_promises(&m, &layout, 1 << 20, 1 << 20);
    ls__layout_free(&layout);
}

static void test_huge_tensor_is_split(void **state) {
    (void)state;
    model m = {0};
    add(&m, LS_F32, 10, false);
    add(&m, LS_F32, 100000, false); /* 400 KB */
    add(&m, LS_F32, 10, false);
    ls__layout layout = arranged(&m, 1024, 65536);
    check_promises(&m, &layout, 1024, 65536);
    assert_int_equal(layout.bucket[0].bytes, 1024); /* the first cap is its own */
    assert_int_equal(layout.bucket[1].bytes, 65536);
    assert_int_equal(layout.place[1].first_bucket, 0);
    assert_int_equal(layout.place[1].last_bucket, 7);
    assert_int_equal(layout.bucket_count, 8);
    ls__layout_free(&layout);
}

static void test_tiny_caps_make_hundreds(void **state) {
    (void)state;
    model m = {0};
    for (size_t i = 0; i < 50; i++)
        add(&m, LS_F32, 1 + i * 13, false);
    ls__layout layout = arranged(&m, 256, 256);
    check_promises(&m, &layout, 256, 256);
    assert_true(layout.bucket_count > 200);
    ls__layout_free(&layout);
}

static void test_caps_are_rounded_down(void **state) {
    (void)state;
    model m = {0};
    add(&m, LS_F64, 1000, false);
    ls__layout layout = arranged(&m, 127, 255);
    assert_int_equal(layout.bucket[0].bytes, 64);
    assert_int_equal(layout.bucket[1].bytes, 192);
    check_promises(&m, &layout, 127, 255);
    ls__layout_free(&layout);
}

static void test_mark_may_begin_a_bucket(void **state) {
    (void)state;
    model m = {0};
    add(&m, LS_F32, 64, false); /* 256 bytes: exactly a bucket; its mark is in the next */
    ls__layout layout = arranged(&m, 256, 256);
    assert_int_equal(layout.bucket_count, 2);
    assert_int_equal(layout.bucket[1].bytes, 64);
    assert_int_equal(layout.place[0].last_bucket, 1);
    check_promises(&m, &layout, 256, 256);
    ls__layout_free(&layout);
}

static void test_dtype_change_closes_bucket(void **state) {
    (void)state;
    model m = {0};
    add(&m, LS_F32, 4, false);
    add(&m, LS_F32, 4, false);
    add(&m, LS_BF16, 4, false);
    add(&m, LS_F32, 4, false);
    ls__layout layout = arranged(&m, 1 << 20, 1 << 20);
    assert_int_equal(layout.bucket_count, 3);
    assert_int_equal(layout.bucket[0].members, 2);
    assert_int_equal(layout.bucket[1].dtype, LS_BF16);
    check_promises(&m, &layout, 1 << 20, 1 << 20);
    ls__layout_free(&layout);
}

static void test_random_models_and_orders(void **state) {
    (void)state;
    static const ls_dtype dtypes[] = {LS_F32, LS_F32, LS_F64, LS_F16, LS_BF16};
    srand(1);
    for (int round = 0; round < 300; round++) {
        model m = {0};
        size_t count = (size_t)rand() % MAX_PARAMS;
        for (size_t i = 0; i < count; i++)
            add(&m, dtypes[rand() % 5], (size_t)rand() % 300, rand() % 8 == 0);
        size_t first_cap = 64 + (size_t)rand() % 2000, cap = 64 + (size_t)rand() % 2000;
        ls__layout layout = arranged(&m, first_cap, cap);
        size_t bytes = layout.bytes;
        for (int shuffle = 0; shuffle < 3; shuffle++) {
            check_promises(&m, &layout, first_cap, cap);
            for (size_t i = count; i > 1; i--) {
                size_t j = (size_t)rand() % i, keep = m.order[i - 1];
                m.order[i - 1] = m.order[j];
                m.order[j] = keep;
            }
            ls__layout_arrange(&layout, m.order);
            assert_int_equal(layout.bytes, bytes); /* the order does not change the size */
        }
        ls__layout_free(&layout);
    }
}

static void test_nothing_trainable(void **state) {
    (void)state;
    model m = {0};
    ls__layout layout = arranged(&m, 64, 64);
    assert_int_equal(layout.bucket_count, 1);
    check_promises(&m, &layout, 64, 64);
    ls__layout_free(&layout);
    add(&m, LS_F32, 100, true);
    layout = arranged(&m, 64, 64);
    assert_int_equal(layout.bucket_count, 1);
    assert_int_equal(layout.bytes, 64);
    ls__layout_free(&layout);
}

static void test_overflow_is_refused(void **state) {
    (void)state;
    size_t shape[2] = {SIZE_MAX / 4, 3};
    ls_reducer_param params[3] = {{.name = "a", .dtype = LS_F32, .shape = shape, .dims = 2}};
    ls__layout layout;
    assert_int_equal(ls__layout_create(&layout, params, 1, 64, 64, NULL), LS_ERR_RANGE);
    ls__layout_free(&layout);
    shape[1] = 1; /* the elements fit, bytes do not once the mark is added, nor a sum of them */
    assert_int_equal(ls__layout_create(&layout, params, 1, 64, 64, NULL), LS_ERR_RANGE);
    ls__layout_free(&layout);
    shape[0] = SIZE_MAX / 8;
    params[1] = params[2] = params[0];
    assert_int_equal(ls__layout_create(&layout, params, 3, 1 << 20, 1 << 20, NULL), LS_ERR_RANGE);
    ls__layout_free(&layout);
    params[0].frozen = params[1].frozen = params[2].frozen = true; /* takes no memory */
    assert_int_equal(ls__layout_create(&layout, params, 3, 1 << 20, 1 << 20, NULL), LS_OK);
    ls__layout_free(&layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_bucket),
        cmocka_unit_test(test_huge_tensor_is_split),
        cmocka_unit_test(test_tiny_caps_make_hundreds),
        cmocka_unit_test(test_caps_are_rounded_down),
        cmocka_unit_test(test_mark_may_begin_a_bucket),
        cmocka_unit_test(test_dtype_change_closes_bucket),
        cmocka_unit_test(test_random_models_and_orders),
        cmocka_unit_test(test_nothing_trainable),
        cmocka_unit_test(test_overflow_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
