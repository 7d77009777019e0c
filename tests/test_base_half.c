/* 16-bit floats: every value there and back, and every place where rounding decides. */
#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* The value of a finite half from its definition. */
static float half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return (float)(bits & 0x8000 ? -value : value);
}

static float bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_f16(float value) {
    uint16_t bits;
    ls__f32_to_f16(&bits, &value, 1);
    return bits;
}

static uint16_t to_bf16(float value) {
    uint16_t bits;
    ls__f32_to_bf16(&bits, &value, 1);
    return bits;
}

static void test_f16_values(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        float value;
        ls__f16_to_f32(&value, &bits, 1);
        if ((bits & 0x7c00) == 0x7c00 && bits & 1023) {
            assert_true(isnan(value));
            assert_int_equal(to_f16(value), bits | 0x200);
            continue;
        }
        if ((bits & 0x7fff) == 0x7c00)
            assert_true(isinf(value) && (value < 0) == (bits >> 15));
        else
            assert_true(value == half_value(bits) && !signbit(value) == !(bits >> 15));
        assert_int_equal(to_f16(value), bits);
    }
}

/* Between two neighbours: below the middle down, above it up, on it to the even one. */
static void test_f16_rounding(void **state) {
    (void)state;
    for (uint16_t bits = 0; bits < 0x7bff; bits++) {
        float low = half_value(bits), high = half_value((uint16_t)(bits + 1));
        float middle = (low + high) / 2;
        assert_int_equal(to_f16(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(to_f16(nextafterf(middle, 0)), bits);
        assert_int_equal(to_f16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(to_f16(-middle), 0x8000 | (bits & 1 ? bits + 1 : bits));
    }
    assert_int_equal(to_f16(65519.99f), 0x7bff);
    assert_int_equal(to_f16(65520.0f), 0x7c00);
    assert_int_equal(to_f16(3e38f), 0x7c00);
    assert_int_equal(to_f16(-1e-30f), 0x8000);
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        float value;
        ls__bf16_to_f32(&value, &bits, 1);
        if (isnan(value))
            assert_true((to_bf16(value) & 0x7fc0) == 0x7fc0);
        else
            assert_int_equal(to_bf16(value), bits);
    }
    for (uint16_t bits = 1; bits < 0x7f7f; bits = (uint16_t)(bits + 7)) {
        double middle = ((double)bf16_value(bits) + (double)bf16_value((uint16_t)(bits + 1))) / 2;
        assert_int_equal(to_bf16((float)middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(to_bf16(nextafterf((float)middle, 0)), bits);
        assert_int_equal(to_bf16(nextafterf((float)middle, INFINITY)), bits + 1);
    }
    assert_int_equal(to_bf16(3.4028235e38f), 0x7f80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_values),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
