/* Philox4x32-10 against the known answers of the Random123 distribution, and what is built on it. */
#include <lockstep/random.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Counter words 0, 1 are `counter`, 2, 3 are `stream`; the key is the seed; low words first. */
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t want[4];
    } answers[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        uint32_t out[4];
        ls_random_u32x4(answers[i].seed, answers[i].stream, answers[i].counter, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(out[k], answers[i].want[k]);
    }
}

static void test_uniform(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    enum { N = 20000 };
    for (uint64_t i = 0; i < N; i++) {
        float out[4];
        ls_random_uniform4(1, 2, i, out);
        for (int k = 0; k < 4; k++) {
            assert_true(out[k] >= 0 && out[k] < 1);
            sum += (double)out[k];
            squares += (double)out[k] * (double)out[k];
        }
    }
    double mean = sum / (4 * N);
    assert_true(fabs(mean - 0.5) < 0.005);
    assert_true(fabs(squares / (4 * N) - mean * mean - 1.0 / 12) < 0.005);
}

static void test_normal(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    enum { N = 20000 };
    for (uint64_t i = 0; i < N; i++) {
        float out[4];
        ls_random_normal4(1, 2, i, out);
        for (int k = 0; k < 4; k++) {
            assert_true(isfinite(out[k]));
            sum += (double)out[k];
            squares += (double)out[k] * (double)out[k];
        }
    }
    assert_true(fabs(sum / (4 * N)) < 0.02);
    assert_true(fabs(squares / (4 * N) - 1) < 0.03);
}

static void test_streams(void **state) {
    (void)state;
    assert_true(ls_random_stream("") == 0xcbf29ce484222325);
    assert_true(ls_random_stream("a") == 0xaf63dc4c8601ec8c);
    assert_true(ls_random_stream("init/fc1.weight") != ls_random_stream("init/fc2.weight"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
