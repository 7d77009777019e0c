/* The identity of a header stands for the whole comparison: equal where ls__header_compare finds no
 * difference, different where it does. */
#include "comm/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const ls__header example = {
    .magic = LS__HEADER_MAGIC,
    .kind = LS__ALL_REDUCE,
    .dtype = LS_F32,
    .op = LS_SUM,
    .group = 1,
    .sequence = 17,
    .count = 1000,
    .root = 0,
};

static void expect_equal(const ls__header *a, const ls__header *b) {
    assert_int_equal(ls__header_compare(a, 0, b, 1), LS_OK);
    assert_true(ls__header_identity(a) == ls__header_identity(b));
}

static void expect_different(const ls__header *a, const ls__header *b) {
    assert_int_equal(ls__header_compare(a, 0, b, 1), LS_ERR_MISMATCH);
    assert_true(ls__header_identity(a) != ls__header_identity(b));
}

static void test_equal(void **state) {
    (void)state;
    ls__header other = example;
    other.weight = 3; /* each rank's own */
    expect_equal(&example, &other);
    ls__header send = example, recv = example;
    send.kind = LS__SEND;
    recv.kind = LS__RECV;
    expect_equal(&recv, &send);
}

static void test_every_field(void **state) {
    (void)state;
    for (uint64_t delta = 1; delta; delta <<= 1) {
        ls__header other = example;
        other.group ^= delta;
        expect_different(&example, &other);
        other = example;
        other.sequence ^= delta;
        expect_different(&example, &other);
        other = example;
        other.count ^= delta;
        expect_different(&example, &other);
    }
    for (int bit = 0; bit < 32; bit++) {
        ls__header other = example;
        other.root ^= 1u << bit;
        expect_different(&example, &other);
        other = example;
        other.counts ^= 1u << bit;
        expect_different(&example, &other);
        other = example;
        other.magic ^= 1u << bit;
        expect_different(&example, &other);
    }
    for (int bit = 0; bit < 8; bit++) {
        ls__header other = example;
        other.dtype = (uint8_t)(other.dtype ^ 1u << bit);
        expect_different(&example, &other);
        other = example;
        other.op = (uint8_t)(other.op ^ 1u << bit);
        expect_different(&example, &other);
        other = example;
        other.kind = (uint16_t)(other.kind ^ 1u << bit);
        expect_different(&example, &other);
    }
}

/* Two fields at once, by amounts that programs differ in: nothing cancels out. */
static void test_pairs(void **state) {
    (void)state;
    for (uint64_t a = 1; a < 300; a++)
        for (uint64_t b = 1; b < 300; b++) {
            ls__header other = example;
            other.sequence += a;
            other.count -= b;
            assert_true(ls__header_identity(&example) != ls__header_identity(&other));
            other = example;
            other.count += a * 1024;
            other.root = (uint32_t)b;
            assert_true(ls__header_identity(&example) != ls__header_identity(&other));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
