/* SPDX-License-Identifier: MIT
 * The task at its defaults against figures that an independent NumPy implementation got from 24 other
 * sequences (PCG64, seeds 1000 to 1023): own pair visible, L = 1024. Two means of 24 sequences differ by a
 * few times sqrt(2) standard errors at most. */
#include "tests/experiment/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct row {
    int64_t dim, segment;
    double noise;
    loam_score score;
    double lla, softmax, mesa, linear, random; /* 0: no figure */
} row;

static const row rows[] = {
    { 8, 64, 0, LOAM_DOT, 28.39, 47.01, 54.67, 78.38, 70.9 },
    { 8, 256, 0, LOAM_DOT, 19.17, 38.25, 44.44, 59.66, 70.38 },
    { 8, 512, 0, LOAM_DOT, 11.19, 32.67, 30.86, 42.71, 71.04 },
    { 16, 64, 0, LOAM_DOT, 62.83, 170.4, 220.4, 404.8, 272.3 },
    { 16, 256, 0, LOAM_DOT, 47.27, 148.9, 177.9, 373.4, 271.6 },
    { 16, 512, 0, LOAM_DOT, 30.01, 130.5, 123.5, 310.3, 272 },
    { 8, 256, 0.1, LOAM_DOT, 19.23, 38.31, 44.52, 59.71, 70.46 },
    { 16, 256, 0, LOAM_RBF, 42.53, 171.9, 177.9, 0, 0 },
    { 32, 256, 0, LOAM_DOT, 32.29, 391.7, 686.9, 2824, 1056 },
    { 64, 256, 0, LOAM_DOT, 1.646, 365.7, 2519, 3.014e4, 4165 },
};

static void check_row(const row *r)
{
    sweep_cell cell = { .task = { r->dim, r->segment, 1024, r->noise, 1 } };
    char directory[64];
    io_error error;
    fixture_directory(directory);
    sweep s = { fixture_setup(), 24, SWEEP_CONTINUE, directory, &cell, 1 };
    s.setup.score = r->score;
    /* The reference where it is quick, and what a user gets by default. */
    if (r->dim > 16) s.setup.backend = LOAM_BACKEND_CPU;
    expect_ok(sweep_run(&s, &error), &error);
    const double want[ESTIMATORS] = { [ESTIMATOR_LLA] = r->lla,
                                      [ESTIMATOR_SOFTMAX] = r->softmax,
                                      [ESTIMATOR_MESA] = r->mesa,
                                      [ESTIMATOR_LINEAR] = r->linear,
                                      [ESTIMATOR_RANDOM] = r->random };
    for (int e = 0; e < ESTIMATORS; e++) {
        const mean_error got = moments_total(&cell.sums, (estimator)e);
        const double distance = (got.mean - want[e]) / (sqrt(2) * got.error);
        if (want[e] > 0) {
            printf("d %3d S %4d %-8s %9.4g +- %-9.2g figure %-9.4g %+.2f\n", (int)r->dim, (int)r->segment,
                   estimator_names[e], got.mean, got.error, want[e], distance);
            /* Linear attention has the heavy tails of its first positions. */
            assert_true(fabs(distance) < (e == ESTIMATOR_LINEAR ? 6 : 4));
        }
    }
    moments_destroy(&cell.sums);
    fixture_remove(directory);
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_table) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
