/* SPDX-License-Identifier: MIT
 * src/simd/convert.h: all numbers of 16 bits, and float32 of every exponent, against the tests' own rounding
 * (tests/support/element.h); runs of any length at any place, and nothing beside them. */
#include "src/simd/convert.h"
#include "tests/simd/suites.h"
#include "tests/support/element.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ALL = 1 << 16, LONGEST = 41 };
static const loam_dtype halves[] = { LOAM_BF16, LOAM_F16 };

/* Called through these, as kernels call them with a type that is known only when they run: a compiler
 * that sees which type an array here is made for warns of what the other branches would do with it. */
static void (*volatile load)(float *restrict, const void *restrict, loam_dtype, int64_t,
                             int64_t) = load_floats;
static void (*volatile store)(void *restrict, loam_dtype, int64_t, const float *restrict,
                              int64_t) = store_floats;

static void all_halves_are_read(void **state)
{
    (void)state;
    uint16_t *from = malloc(ALL * sizeof *from);
    float *to = malloc(ALL * sizeof *to);
    assert_true(from && to);
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < ALL; i++)
            from[i] = (uint16_t)i;
        load(to, from, halves[which], 0, ALL);
        for (int i = 0; i < ALL; i++) {
            const double want = element_get(from, halves[which], i);
            assert_true(isnan(want) ? isnan(to[i])
                                    : (double)to[i] == want && !signbit(to[i]) == !signbit(want));
        }
    }
    free(from);
    free(to);
}

/* What a 16-bit number becomes as float32 becomes the same number again; NaN stays NaN. */
static void all_halves_return(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < ALL; i++) {
            const uint16_t from = (uint16_t)i;
            uint16_t back = 0;
            float x;
            load(&x, &from, halves[which], 0, 1);
            store(&back, halves[which], 0, &x, 1);
            float again;
            load(&again, &back, halves[which], 0, 1);
            assert_true(isnan(x) ? isnan(again) : back == from);
        }
    }
}

/* float32 of all exponents, near numbers of 16 bits and halfway between them. */
static void floats_are_rounded(void **state)
{
    (void)state;
    static const uint32_t low[] = { 0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff };
    enum { LOWS = sizeof low / sizeof low[0] };
    for (int which = 0; which < 2; which++) {
        for (uint32_t high = 0; high < ALL; high++) {
            float x[LOWS];
            uint16_t got[LOWS], want;
            for (int i = 0; i < LOWS; i++)
                x[i] = float_from_bits(high << 16 | low[i]);
            store(got, halves[which], 0, x, LOWS);
            for (int i = 0; i < LOWS; i++) {
                element_set(&want, halves[which], 0, (double)x[i]);
                if (isnan(x[i]) ? !isnan(element_get(&got[i], halves[which], 0)) : got[i] != want)
                    fail_msg("%a is stored as %#x, expected %#x", (double)x[i], got[i], want);
            }
        }
    }
}

static void runs_of_any_length(void **state)
{
    (void)state;
    static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    enum { AT = 3 };
    for (int which = 0; which < 3; which++) {
        for (int64_t n = 0; n <= LONGEST; n++) {
            float x[LONGEST + 2 * AT], y[LONGEST + 1];
            double memory[LONGEST + 2 * AT];
            uint64_t counter = (uint64_t)n;
            for (int i = 0; i < LONGEST + 2 * AT; i++) {
                x[i] = (float)(int)(100 * next_number(&counter));
                element_set(memory, dtypes[which], i, 7);
            }
            store(memory, dtypes[which], AT, x, n);
            for (int i = 0; i < LONGEST + 2 * AT; i++) {
                const double want = i >= AT && i < AT + n ? (double)x[i - AT] : 7;
                assert_true(element_get(memory, dtypes[which], i) == want);
            }
            y[n] = 55;
            load(y, memory, dtypes[which], AT, n);
            assert_memory_equal(y, x, (size_t)n * sizeof(float));
            assert_true(y[n] == 55);
        }
    }
}

int suite_convert(void)
{
    const struct CMUnitTest convert_h[] = {
        cmocka_unit_test(all_halves_are_read),
        cmocka_unit_test(all_halves_return),
        cmocka_unit_test(floats_are_rounded),
        cmocka_unit_test(runs_of_any_length),
    };
    return cmocka_run_group_tests(convert_h, NULL, NULL);
}
