/* SPDX-License-Identifier: MIT
 * Lines that need no training, against an independent implementation in NumPy (the same examples), and
 * against what that found on a thousand of them. */
#include "cli/training/lines.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { THREADS = 2 };

static void expect_near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%s is %.12g, expected %.12g", what, got, want);
}

/* Sums of up to 512 products: 1e-9 is far above their rounding; errors of noiseless fits are differences of
 * numbers near 1, hence an absolute tolerance. */
static void same_examples(void **state)
{
    (void)state;
    static const struct {
        regression_shape shape;
        int64_t examples;
        regression_lines want;
    } rows[] = {
        { { 32, 8, 4, 4, 8, 0.1 },
          8,
          { 0.787236394413, 0.634912889677, 0.472410745396, 0.661913220483, 0.00104829321832 } },
        { { 64, 16, 32, 32, 16, 0.1 },
          2,
          { 1.05942583599, 0.928667853471, 0.851019288953, 0.942841752653, 0.480203186037 } },
        { { 32, 32, 4, 4, 8, 0.1 },
          8,
          { 1.19100671639, 0.307039920852, 1.4360077032e-05, 1.65081924259e-11, 2.63121648275e-06 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int threads = 1; threads <= THREADS; threads++) {
            const machine on = machine_cpu(LOAM_F32, threads);
            regression_lines got;
            io_error error;
            if (lines_regression(&on, &rows[i].shape, 11, rows[i].examples, &got, &error) != EXIT_OK)
                fail_msg("%s", error.text);
            expect_near("saying 0", got.zero, rows[i].want.zero, 1e-9);
            expect_near("softmax", got.softmax, rows[i].want.softmax, 1e-9);
            expect_near("LLA", got.lla, rows[i].want.lla, 1e-9);
            expect_near("one map", got.map, rows[i].want.map, 1e-9);
            expect_near("the own segment", got.own, rows[i].want.own, 1e-9);
        }
}

/* 512 queries at L = 64, within 5 %, twice the standard error there. */
static void known_errors(void **state)
{
    (void)state;
    static const struct {
        int64_t segment;
        double softmax, map, lla, own;
    } rows[] = { { 8, 0.95, 0.97, 0.94, 0.72 },
                 { 32, 0.82, 0.71, 0.53, 0.058 },
                 { 64, 0.57, 0, 1e-4, 2e-4 } };
    const machine on = machine_cpu(LOAM_F32, THREADS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const regression_shape shape = { 64, rows[i].segment, 32, 32, 16, 0.1 };
        regression_lines got;
        io_error error;
        assert_int_equal(lines_regression(&on, &shape, 11, 32, &got, &error), EXIT_OK);
        expect_near("softmax", got.softmax, rows[i].softmax, 0.006);
        expect_near("LLA", got.lla, rows[i].lla, 0.006);
        expect_near("one map", got.map, rows[i].map, 0.006);
        expect_near("the own segment", got.own, rows[i].own, 0.006);
    }
}

static void followed_swaps(void **state)
{
    (void)state;
    static const struct {
        int64_t places, examples;
        double right[LINES_HOPS], tolerance;
    } rows[] = {
        { 16, 100, { 0.595, 0.92, 0.9925, 1 }, 0 },
        { 24, 100, { 0.58875, 0.8925, 0.985, 0.9975 }, 0 },
        /* Of other examples, to three digits: their standard error is 0.006, of the difference 0.009. */
        { 16, 1000, { 0.599, 0.919, 0.993, 1 }, 0.02 },
        { 96, 1000, { 0.604, 0.905, 0.987, 0.998 }, 0.02 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const swaps_shape shape = { rows[i].places, 8192 };
        double right[LINES_HOPS];
        io_error error;
        assert_int_equal(lines_swaps(&shape, 7, rows[i].examples, right, &error), EXIT_OK);
        for (int hops = 0; hops < LINES_HOPS; hops++)
            expect_near("the share", right[hops], rows[i].right[hops], rows[i].tolerance + 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_examples),
        cmocka_unit_test(known_errors),
        cmocka_unit_test(followed_swaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
