/* SPDX-License-Identifier: MIT
 * The choice of the bandwidth, the sample of rows it looks at, and the variance of the noise. */
#include "regress/bandwidth.h"
#include "tests/regress/brute.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 80 };
static const bool both[REGRESS_ESTIMATORS] = { true, true };

typedef struct fixture {
    double x[2 * ROWS], y[ROWS];
    regress_table table;
    regress_sample sample;
} fixture;

static void make_table(fixture *f, int columns)
{
    static const char *const one[] = { "a", "y" }, *const two[] = { "a", "b", "y" };
    io_error error;
    assert_int_equal(
        regress_table_make(&f->table, f->x, f->y, ROWS, columns, columns == 1 ? one : two, &error), EXIT_OK);
    assert_int_equal(regress_sample_make(&f->sample, &f->table, 1, &error), EXIT_OK);
}

static void free_fixture(fixture *f)
{
    regress_table_free(&f->table);
    regress_sample_free(&f->sample);
}

static brute_problem brute_of(const fixture *f, double *bandwidths, regress_smoother with, int estimator)
{
    for (int c = 0; c < f->table.rows.columns; c++)
        bandwidths[c] = with.bandwidth * brute_deviation(f->x + c * ROWS, ROWS);
    return (brute_problem){ .x = f->x,
                            .y = f->y,
                            .rows = ROWS,
                            .columns = f->table.rows.columns,
                            .bandwidths = bandwidths,
                            .ridge = with.ridge,
                            .linear = estimator == REGRESS_LINEAR };
}

/* Mean squared residual of explicit refits without each row. */
static double brute_score(const fixture *f, regress_smoother with, int estimator)
{
    double bandwidths[2], sum = 0;
    const brute_problem brute = brute_of(f, bandwidths, with, estimator);
    for (int j = 0; j < ROWS; j++) {
        const double point[] = { f->x[j], f->x[ROWS + j] };
        sum += pow(f->y[j] - brute_fit(&brute, point, j), 2);
    }
    return sum / ROWS;
}

/* The score told is that of refits, and no bandwidth of a fine scan is better by more than a hair. */
static void test_choice(void **state)
{
    (void)state;
    for (int columns = 1; columns <= 2; columns++) {
        const uint64_t seed = (uint64_t)(40 + columns);
        fixture f;
        brute_table(seed, ROWS, columns, f.x, f.y);
        make_table(&f, columns);
        regress_smoother with = { 1, 0.01, 2, NULL };
        regress_choice choices[REGRESS_ESTIMATORS];
        assert_int_equal(regress_choose_bandwidth(&f.table, with, &f.sample, both, choices, NULL), EXIT_OK);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
            with.bandwidth = choices[e].bandwidth;
            assert_false(choices[e].smallest || choices[e].largest);
            brute_close(choices[e].score, brute_score(&f, with, e), 1e-8, "score", seed);
            for (with.bandwidth = 0.05; with.bandwidth < 4; with.bandwidth *= 1.15)
                if (brute_score(&f, with, e) < 0.999 * choices[e].score)
                    fail_msg("bandwidth %g of estimator %d is beaten by %g (seed %d)", choices[e].bandwidth,
                             e, with.bandwidth, (int)seed);
        }
        free_fixture(&f);
    }
}

/* The line needs no locality for affine y, and exactly equal scores must not choose a tiny one. */
static void test_affine_choice(void **state)
{
    (void)state;
    fixture f;
    brute_table(50, ROWS, 2, f.x, f.y);
    for (int j = 0; j < ROWS; j++)
        f.y[j] = 3 - f.x[j] + 0.1 * f.x[ROWS + j];
    make_table(&f, 2);
    regress_choice choices[REGRESS_ESTIMATORS];
    assert_int_equal(regress_choose_bandwidth(&f.table, (regress_smoother){ 1, 0, 1, NULL }, &f.sample, both,
                                              choices, NULL),
                     EXIT_OK);
    assert_true(choices[REGRESS_LINEAR].largest && choices[REGRESS_LINEAR].bandwidth > 4);
    assert_true(choices[REGRESS_CONSTANT].bandwidth < 0.6);
    free_fixture(&f);
}

static void test_threads(void **state)
{
    (void)state;
    fixture f;
    brute_table(51, ROWS, 2, f.x, f.y);
    make_table(&f, 2);
    regress_choice one[REGRESS_ESTIMATORS], more[REGRESS_ESTIMATORS];
    assert_int_equal(
        regress_choose_bandwidth(&f.table, (regress_smoother){ 1, 0, 1, NULL }, &f.sample, both, one, NULL),
        0);
    for (int threads = 2; threads <= 4; threads++) {
        const regress_smoother with = { 1, 0, threads, NULL };
        assert_int_equal(regress_choose_bandwidth(&f.table, with, &f.sample, both, more, NULL), 0);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            assert_true(one[e].bandwidth == more[e].bandwidth && one[e].score == more[e].score);
    }
    free_fixture(&f);
}

/* sum r^2 / tr((I - L)^T (I - L)) with L written out. */
static void test_noise(void **state)
{
    (void)state;
    const uint64_t seed = 60;
    fixture f;
    brute_table(seed, ROWS, 2, f.x, f.y);
    make_table(&f, 2);
    const regress_smoother with = { 0.5, 0.1, 2, NULL };
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        double bandwidths[2], squares = 0, freedom = 0, trace = 0;
        const brute_problem brute = brute_of(&f, bandwidths, with, e);
        for (int i = 0; i < ROWS; i++) {
            const double point[] = { f.x[i], f.x[ROWS + i] };
            double l[ROWS], residual = f.y[i];
            brute_weights(&brute, point, -1, l);
            trace += l[i];
            for (int j = 0; j < ROWS; j++) {
                residual -= l[j] * f.y[j];
                freedom += pow((i == j) - l[j], 2);
            }
            squares += residual * residual;
        }
        regress_noise noise;
        assert_int_equal(
            regress_estimate_noise(&f.table, with, &f.sample, (regress_estimator)e, &noise, NULL), 0);
        brute_close(noise.variance, squares / freedom, 1e-9, "variance", seed);
        brute_close(noise.parameters, trace, 1e-9, "parameters", seed);
        brute_close(noise.score, brute_score(&f, with, e), 1e-8, "score", seed);
    }
    free_fixture(&f);
}

/* Fits through all rows leave nothing to estimate a variance from, and say so. */
static void test_no_noise(void **state)
{
    (void)state;
    fixture f;
    brute_table(61, ROWS, 1, f.x, f.y);
    for (int j = 0; j < ROWS; j++)
        f.x[j] = j;
    make_table(&f, 1);
    regress_noise noise;
    assert_int_equal(regress_estimate_noise(&f.table, (regress_smoother){ 1e-5, 0, 1, NULL }, &f.sample,
                                            REGRESS_CONSTANT, &noise, NULL),
                     0);
    assert_true(noise.variance == -1);
    brute_close(noise.parameters, ROWS, 1e-12, "parameters", 61);
    free_fixture(&f);
}

static regress_sample sample_of(int64_t rows, int bins, uint64_t seed)
{
    const regress_table table = { .rows.rows = rows, .bins = bins };
    regress_sample sample;
    assert_int_equal(regress_sample_make(&sample, &table, seed, NULL), EXIT_OK);
    return sample;
}

static void test_sample(void **state)
{
    (void)state;
    regress_sample all = sample_of(20000, 0, 1), some = sample_of(1000000, 0, 1),
                   again = sample_of(1000000, 0, 1), other = sample_of(1000000, 0, 2),
                   binned = sample_of(1000000, 4, 1);
    assert_int_equal(all.count, 20000);
    assert_int_equal(some.count, 400);
    assert_int_equal(binned.count, 4000);
    assert_memory_equal(some.rows, again.rows, 400 * sizeof *some.rows);
    assert_memory_not_equal(some.rows, other.rows, 400 * sizeof *some.rows);
    double mean = 0;
    for (int i = 0; i < 400; i++) {
        assert_in_range(some.rows[i], i ? some.rows[i - 1] + 1 : 0, 999999);
        mean += (double)some.rows[i] / 400;
    }
    assert_true(fabs(mean - 5e5) < 4 * 1e6 / sqrt(12 * 400));
    regress_sample *samples[] = { &all, &some, &again, &other, &binned };
    for (int i = 0; i < 5; i++)
        regress_sample_free(samples[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice), cmocka_unit_test(test_affine_choice), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_noise),  cmocka_unit_test(test_no_noise),      cmocka_unit_test(test_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
