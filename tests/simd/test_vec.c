/* SPDX-License-Identifier: MIT
 * src/simd/vec.h: exp and tanh within the units in the last place that the header states, over a sweep of all
 * exponents; the rules for NaN and infinity of the others, in every lane. */
#include "src/base/dtype.h"
#include "src/simd/vec.h"
#include "tests/simd/suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Bit patterns from one argument of a sweep to the next: a prime, so that low bits take all values. */
enum { STEP = 127 };

typedef vec unary(vec x);

static vec apply_exp(vec x) { return v_exp(x); }
static vec apply_exp2(vec x) { return v_exp2(x); }
static vec apply_tanh(vec x) { return v_tanh(x); }

/* The distance from a normal number in places of the binade that it lies in. */
static double places_off(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

/* The worst of all arguments with bit patterns from `low` to `high`, which have one sign. */
static double sweep(unary *f, double (*exact)(double), uint32_t low, uint32_t high, float *where)
{
    double worst = 0;
    for (uint32_t bits = low; bits <= high; bits += (uint32_t)VL * STEP) {
        float x[VL], y[VL];
        for (uint32_t lane = 0; lane < VL; lane++) {
            const uint32_t at = bits + lane * STEP;
            x[lane] = float_from_bits(at < high ? at : high);
        }
        v_store(y, f(v_load(x)));
        for (int lane = 0; lane < VL; lane++) {
            const double off = places_off(y[lane], exact((double)x[lane]));
            if (!(off <= worst)) {
                worst = off;
                *where = x[lane];
            }
        }
    }
    return worst;
}

static void expect_within(const char *name, unary *f, double (*exact)(double), float low, float high,
                          double places)
{
    float where = 0;
    const double worst = sweep(f, exact, bits_from_float(low), bits_from_float(high), &where);
    printf("           %s from %g to %g: at most %.3f places off, at %.9g\n", name, (double)low, (double)high,
           worst, (double)where);
    if (!(worst <= places))
        fail_msg("%s is %.3f places off at %.9g, expected at most %g", name, worst, (double)where, places);
}

/* `x` alone in each lane, among ordinary neighbours whose results must not change. */
static void expect_lane(const char *name, unary *f, float x, float want)
{
    const float other = 0.625f;
    float in[VL], plain[VL], out[VL];
    v_store(plain, f(v_set(other)));
    for (int lane = 0; lane < VL; lane++) {
        v_store(in, v_set(other));
        in[lane] = x;
        v_store(out, f(v_load(in)));
        for (int i = 0; i < VL; i++) {
            const float expected = i == lane ? want : plain[i];
            if (bits_from_float(out[i]) != bits_from_float(expected)) {
                fail_msg("%s(%g) in lane %d gives %g in lane %d, expected %g", name, (double)x, lane,
                         (double)out[i], i, (double)expected);
            }
        }
    }
}

static void exp_is_within_its_bound(void **state)
{
    (void)state;
    expect_within("exp", apply_exp, exp, 0, 88, 1.5);
    expect_within("exp", apply_exp, exp, -0.0f, -87.29f, 1.5);
}

static void exp2_is_within_its_bound(void **state)
{
    (void)state;
    expect_within("exp2", apply_exp2, exp2, 0x1p-126f, 127, 3);
    expect_within("exp2", apply_exp2, exp2, -0x1p-126f, -126, 3);
    expect_lane("exp2", apply_exp2, -INFINITY, 0);
    expect_lane("exp2", apply_exp2, -1e37f, 0);
    expect_lane("exp2", apply_exp2, 0, 0.99999994f);
}

static void tanh_is_within_its_bound(void **state)
{
    (void)state;
    expect_within("tanh", apply_tanh, tanh, 0x1p-126f, 100, 3);
    expect_within("tanh", apply_tanh, tanh, -0x1p-126f, -100, 3);
}

static void exp_has_its_special_values(void **state)
{
    (void)state;
    expect_lane("exp", apply_exp, 0, 1);
    expect_lane("exp", apply_exp, -0.0f, 1);
    expect_lane("exp", apply_exp, 0x1p-149f, 1);
    expect_lane("exp", apply_exp, -87.31f, 0);
    expect_lane("exp", apply_exp, -1e4f, 0);
    expect_lane("exp", apply_exp, -3e38f, 0);
    expect_lane("exp", apply_exp, -INFINITY, 0);
    expect_lane("exp", apply_exp, NAN, 0);
}

static void tanh_has_its_special_values(void **state)
{
    (void)state;
    expect_lane("tanh", apply_tanh, 0, 0);
    expect_lane("tanh", apply_tanh, 0x1p-149f, 0x1p-149f);
    expect_lane("tanh", apply_tanh, -0x1p-149f, -0x1p-149f);
    expect_lane("tanh", apply_tanh, 3e38f, 1);
    expect_lane("tanh", apply_tanh, INFINITY, 1);
    expect_lane("tanh", apply_tanh, -INFINITY, -1);
}

static vec apply_clamp(vec x) { return v_clamp(x, 80); }
static vec apply_abs(vec x) { return v_abs(x); }

static void clamp_has_its_values(void **state)
{
    (void)state;
    static const float cases[][2] = { { 3, 3 },
                                      { -3, -3 },
                                      { 80, 80 },
                                      { -80, -80 },
                                      { 80.5f, 80 },
                                      { -80.5f, -80 },
                                      { 3e38f, 80 },
                                      { -3e38f, -80 },
                                      { INFINITY, 80 },
                                      { -INFINITY, -80 },
                                      { NAN, -80 },
                                      { 0, 0 },
                                      { 0x1p-149f, 0x1p-149f } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_lane("clamp", apply_clamp, cases[i][0], cases[i][1]);
}

static void abs_clears_the_sign(void **state)
{
    (void)state;
    expect_lane("abs", apply_abs, -2.5f, 2.5f);
    expect_lane("abs", apply_abs, 2.5f, 2.5f);
    expect_lane("abs", apply_abs, -0.0f, 0);
    expect_lane("abs", apply_abs, -INFINITY, INFINITY);
}

/* All pairs of these, in all lanes at once by turning one list against the other. */
static const float specials[] = { 0, 1, -1, 0x1p-149f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN };
enum { SPECIALS = sizeof specials / sizeof specials[0] };

static void load_pair(int a, int b, float *x, float *y)
{
    for (int lane = 0; lane < VL; lane++) {
        x[lane] = specials[(a + lane) % SPECIALS];
        y[lane] = specials[(b + 2 * lane) % SPECIALS];
    }
}

static void max_is_the_larger_or_the_second(void **state)
{
    (void)state;
    for (int pair = 0; pair < SPECIALS * SPECIALS; pair++) {
        float x[VL], y[VL], out[VL];
        load_pair(pair / SPECIALS, pair % SPECIALS, x, y);
        v_store(out, v_max(v_load(x), v_load(y)));
        for (int lane = 0; lane < VL; lane++) {
            const float want = x[lane] > y[lane] ? x[lane] : y[lane];
            assert_int_equal(bits_from_float(out[lane]), bits_from_float(want));
        }
    }
}

static void select_takes_bits_as_they_are(void **state)
{
    (void)state;
    for (int pair = 0; pair < SPECIALS * SPECIALS; pair++) {
        float x[VL], y[VL], out[VL], turned[VL];
        int32_t where[VL];
        load_pair(pair / SPECIALS, pair % SPECIALS, x, y);
        for (int lane = 0; lane < VL; lane++)
            where[lane] = (pair + lane) % 3 ? -1 : 0;
        v_store(out, v_select(v_load_int(where), v_load(x), v_load(y)));
        v_store(turned, v_select(v_load(x) < v_load(y), v_load(x), v_load(y)));
        for (int lane = 0; lane < VL; lane++) {
            assert_int_equal(bits_from_float(out[lane]), bits_from_float(where[lane] ? x[lane] : y[lane]));
            assert_int_equal(bits_from_float(turned[lane]),
                             bits_from_float(x[lane] < y[lane] ? x[lane] : y[lane]));
        }
    }
}

static void loads_need_no_alignment(void **state)
{
    (void)state;
    float memory[3 * VL];
    for (int shift = 0; shift < VL; shift++) {
        for (int i = 0; i < 3 * VL; i++)
            memory[i] = (float)i;
        v_store(memory + shift, v_load(memory + shift + 1) + v_set(100));
        for (int i = 0; i < 3 * VL; i++) {
            const int stored = i >= shift && i < shift + VL;
            assert_true(memory[i] == (float)(stored ? i + 101 : i));
        }
    }
}

int suite_vec(void)
{
    const struct CMUnitTest vec_h[] = {
        cmocka_unit_test(exp_is_within_its_bound),       cmocka_unit_test(exp_has_its_special_values),
        cmocka_unit_test(exp2_is_within_its_bound),      cmocka_unit_test(tanh_is_within_its_bound),
        cmocka_unit_test(tanh_has_its_special_values),   cmocka_unit_test(clamp_has_its_values),
        cmocka_unit_test(abs_clears_the_sign),           cmocka_unit_test(max_is_the_larger_or_the_second),
        cmocka_unit_test(select_takes_bits_as_they_are), cmocka_unit_test(loads_need_no_alignment),
    };
    return cmocka_run_group_tests(vec_h, NULL, NULL);
}
