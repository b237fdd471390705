/* SPDX-License-Identifier: MIT
 * Numbers of features of one total: what must hold of any needs. */
#include "dof/budget.h"

#include "random/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300 };

static void expect_shares(const dof_budget *b, const double *needs, int64_t count)
{
    const int64_t cap = b->most - b->most % b->unit;
    int64_t out[MOST], total = 0;
    dof_budget_share(b, needs, count, out);
    for (int64_t i = 0; i < count; i++) {
        assert_true(out[i] >= b->unit && out[i] <= cap && out[i] % b->unit == 0);
        total += out[i];
        for (int64_t j = 0; j < i; j++) {
            if (needs[i] > needs[j]) assert_true(out[i] >= out[j]);
            if (needs[i] < needs[j]) assert_true(out[i] <= out[j]);
        }
    }
    assert_int_equal(total, count * b->mean);
}

/* Of many sizes, and with some equal, some 0, some far larger than all others. */
static void test_any_needs(void **state)
{
    double needs[MOST];
    uint64_t words[6];
    (void)state;
    for (uint64_t draw = 0; draw < 3000; draw++) {
        const random_stream from = { 11, draw };
        random_words(from, 0, 6, words);
        const int64_t unit = 1 + random_below(words[0], 16),
                      count = 1 + random_below(words[1], draw % 50 ? 40 : MOST);
        const int64_t parts = 1 + random_below(words[2], 20), more = random_below(words[3], 40);
        const dof_budget b = { .mean = unit * parts, .unit = unit, .most = unit * (parts + more) + unit / 2 };
        random_uniforms(from, 6, count, needs);
        for (int64_t i = 0; i < count; i++) {
            if (words[4] % 3 == 0) needs[i] = exp(40 * (needs[i] - 0.5));
            if (words[4] % 5 == 0) needs[i] = floor(4 * needs[i]);
        }
        expect_shares(&b, needs, count);
    }
}

static void expect(const dof_budget *b, const double *needs, const int64_t *expected, int64_t count)
{
    int64_t out[MOST];
    dof_budget_share(b, needs, count, out);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(out[i], expected[i]);
}

static void test_known(void **state)
{
    const dof_budget b = { .mean = 64, .unit = 8, .most = 512 },
                     tight = { .mean = 64, .unit = 8, .most = 100 };
    int64_t equal[3] = { 64, 64, 64 }, clipped[] = { 8, 130, 64, 60 };
    const int64_t cut[] = { 8, 56, 56, 56 }, small[] = { 8, 8, 8, 8 };
    (void)state;
    expect(&b, (double[]){ 1, 1, 1 }, equal, 3);
    expect(&b, (double[]){ 0, 0, 0 }, equal, 3);
    /* Of 24 units 13.3, 8 and 2.7: the largest remainder is that of the last. */
    expect(&b, (double[]){ 5, 3, 1 }, (int64_t[]){ 13 * 8, 8 * 8, 3 * 8 }, 3);
    expect(&b, (double[]){ 5e-200, 3e-200, 1e-200 }, (int64_t[]){ 13 * 8, 8 * 8, 3 * 8 }, 3);
    expect(&b, (double[]){ 5e200, 3e200, 1e200 }, (int64_t[]){ 13 * 8, 8 * 8, 3 * 8 }, 3);
    expect(&b, (double[]){ 1e9, 1, 1 }, (int64_t[]){ 22 * 8, 8, 8 }, 3);
    /* The cap is 12 units, and what it leaves goes to the others in proportion: 12 of 2 to 1. */
    expect(&tight, (double[]){ 100, 2, 1 }, (int64_t[]){ 96, 64, 32 }, 3);
    expect(&tight, (double[]){ 100, 0, 0 }, (int64_t[]){ 96, 48, 48 }, 3);
    dof_budget_clip(&b, 60, 4, clipped);
    assert_memory_equal(clipped, cut, sizeof cut);
    dof_budget_clip(&b, 5, 4, clipped);
    assert_memory_equal(clipped, small, sizeof small);
}

static void test_refused(void **state)
{
    static const dof_budget bad[] = { { 60, 8, 512 }, { 4, 8, 512 }, { 520, 8, 512 }, { 0, 8, 512 } };
    io_error error;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dof_budget_check(&bad[i], &error), EXIT_USAGE);
        assert_non_null(strstr(error.text, "--unit 8, at most 512"));
    }
    assert_int_equal(dof_budget_check(&(dof_budget){ 512, 8, 512 }, &error), 0);
}

/* Linear between points, and as at the last beyond it. */
static double between(const int64_t *features, const double *rises, int64_t m, int points)
{
    for (int p = 1; p < points; p++)
        if (m <= features[p]) {
            const double width = (double)(features[p] - features[p - 1]);
            return ((double)(features[p] - m) * rises[p - 1] + (double)(m - features[p - 1]) * rises[p]) /
                   width;
        }
    return rises[points - 1];
}

/* Against all ways to share twelve units: none loses less. Noise, plateaus before a fall, layers that lose
 * nothing. */
static void test_measured(void **state)
{
    enum { GROUPS = 3, POINTS = 4 };
    static const int64_t features[POINTS] = { 8, 16, 32, 64 };
    const dof_budget b = { .mean = 32, .unit = 8, .most = 512 };
    (void)state;
    for (uint64_t draw = 0; draw < 200; draw++) {
        double rises[GROUPS * POINTS], best = HUGE_VAL, got = 0;
        uint64_t words[GROUPS * POINTS];
        int64_t out[GROUPS], total = 0;
        random_words((random_stream){ 3, draw }, 0, GROUPS * POINTS, words);
        for (int i = 0; i < GROUPS * POINTS; i++)
            rises[i] = draw % 5 == 0 && i < POINTS ? 0 : (double)random_below(words[i], 1000);
        const double told = dof_budget_measured(&b, features, POINTS, rises, GROUPS, out);
        for (int i = 0; i < GROUPS; i++) {
            assert_true(out[i] >= 8 && out[i] % 8 == 0);
            total += out[i];
            got += between(features, rises + i * POINTS, out[i], POINTS);
        }
        assert_int_equal(total, GROUPS * 32);
        assert_true(fabs(told - got) < 1e-9 * (1 + got));
        for (int64_t x = 8; x <= 80; x += 8)
            for (int64_t y = 8; y <= 88 - x; y += 8)
                best = fmin(best, between(features, rises, x, POINTS) +
                                      between(features, rises + POINTS, y, POINTS) +
                                      between(features, rises + 2 * POINTS, 96 - x - y, POINTS));
        assert_true(fabs(got - best) < 1e-9 * (1 + best));
    }
}

/* The hull of a plateau before a fall is a line, of a rise the least before; equals get the same. */
static void test_hull(void **state)
{
    static const int64_t features[] = { 8, 16, 32 };
    const dof_budget b = { .mean = 16, .unit = 8, .most = 512 };
    double rises[] = { 9, 9, 3, 5, 4, 7 }, same[] = { 9, 6, 3, 9, 6, 3 };
    int64_t out[2];
    (void)state;
    dof_budget_measured(&b, features, 3, rises, 2, out);
    const double want[] = { 9, 7, 3, 5, 4, 4 };
    for (int i = 0; i < 6; i++)
        assert_true(fabs(rises[i] - want[i]) < 1e-12);
    assert_int_equal(out[0], 24);
    assert_int_equal(out[1], 8);
    dof_budget_measured(&b, features, 3, same, 2, out);
    assert_int_equal(out[0], 16);
    assert_int_equal(out[1], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_needs), cmocka_unit_test(test_known),   cmocka_unit_test(test_measured),
        cmocka_unit_test(test_hull),      cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
