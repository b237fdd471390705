/* SPDX-License-Identifier: MIT */
#include "tests/experiment/fixture.h"

#include "random/random.h"

#include <math.h>
#include <stdlib.h>

enum { LENGTH = 256, SEQUENCES = 9 };

/* errors[e][s][i], not centred at zero so that variances could cancel. */
static double errors[ESTIMATORS][SEQUENCES][LENGTH];

static void fill(moments *m)
{
    io_error error;
    expect_ok(moments_create(m, LENGTH, &error), &error);
    for (int e = 0; e < ESTIMATORS; e++)
        random_normals((random_stream){ 4, (uint64_t)e }, 0, SEQUENCES * LENGTH, &errors[e][0][0]);
    for (int s = 0; s < SEQUENCES; s++) {
        const double *rows[ESTIMATORS];
        for (int e = 0; e < ESTIMATORS; e++) {
            for (int i = 0; i < LENGTH; i++)
                errors[e][s][i] = 50 * (e + 1) + (s % 3) + errors[e][s][i];
            rows[e] = errors[e][s];
        }
        moments_add(m, rows);
    }
}

static double mean_of(const double *x, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += x[i];
    return sum / count;
}

static void expect_mean_error(const char *what, mean_error got, const double x[SEQUENCES])
{
    const double mean = mean_of(x, SEQUENCES);
    double spread = 0;
    for (int s = 0; s < SEQUENCES; s++)
        spread += (x[s] - mean) * (x[s] - mean);
    const double want[2] = { mean, sqrt(spread / (SEQUENCES - 1) / SEQUENCES) };
    expect_close(what, &got.mean, &want[0], 1, 1e-13);
    expect_close(what, &got.error, &want[1], 1, 1e-10);
}

static void test_means(void **state)
{
    (void)state;
    moments m;
    fill(&m);
    assert_int_equal(m.sequences, SEQUENCES);
    assert_int_equal(m.window * m.windows, LENGTH);
    for (int e = 0; e < ESTIMATORS; e++) {
        double x[SEQUENCES];
        for (int i = 0; i < LENGTH; i += 51) {
            for (int s = 0; s < SEQUENCES; s++)
                x[s] = errors[e][s][i];
            expect_mean_error("position", moments_position(&m, (estimator)e, i), x);
        }
        for (int w = 0; w < m.windows; w += 17) {
            for (int s = 0; s < SEQUENCES; s++)
                x[s] = mean_of(errors[e][s] + w * m.window, (int)m.window);
            expect_mean_error("window", moments_window(&m, (estimator)e, w), x);
        }
        for (int s = 0; s < SEQUENCES; s++)
            x[s] = mean_of(errors[e][s], LENGTH);
        expect_mean_error("total", moments_total(&m, (estimator)e), x);
        const double part = moments_range(&m, (estimator)e, 10, 30);
        for (int s = 0; s < SEQUENCES; s++)
            x[s] = mean_of(errors[e][s] + 10, 20);
        const double want = mean_of(x, SEQUENCES);
        expect_close("range", &part, &want, 1, 1e-13);
    }
    moments_destroy(&m);
}

/* The delta method is the standard error of a_s - ratio b_s, over the mean of b. */
static void test_ratio(void **state)
{
    (void)state;
    moments m;
    fill(&m);
    double a[SEQUENCES], b[SEQUENCES], spread = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        a[s] = mean_of(errors[2][s], LENGTH);
        b[s] = mean_of(errors[0][s], LENGTH);
    }
    const double ratio = mean_of(a, SEQUENCES) / mean_of(b, SEQUENCES);
    for (int s = 0; s < SEQUENCES; s++)
        spread += (a[s] - ratio * b[s]) * (a[s] - ratio * b[s]);
    const double want = sqrt(spread / (SEQUENCES - 1) / SEQUENCES) / mean_of(b, SEQUENCES);
    const mean_error got = moments_ratio(&m, (estimator)2, (estimator)0);
    expect_close("ratio", &got.mean, &ratio, 1, 1e-13);
    expect_close("error of ratio", &got.error, &want, 1, 1e-9);
    assert_true(moments_ratio(&m, ESTIMATOR_LLA, ESTIMATOR_LLA).error < 1e-9);
    moments_destroy(&m);
}

/* Percentage points of Student's t from tables. */
static void test_reach(void **state)
{
    (void)state;
    static const struct {
        int sequences;
        double t, tolerance;
    } cases[] = { { 2, 12.7062, 1e-4 },     { 3, 4.30265, 1e-5 },   { 4, 3.18245, 5e-3 },
                  { 7, 2.44691, 2e-4 },     { 10, 2.262157, 2e-5 }, { 24, 2.068658, 1e-6 },
                  { 10000, 1.960201, 1e-6 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(fabs(moments_reach(cases[i].sequences) - cases[i].t) < cases[i].tolerance);
    assert_true(isnan(moments_reach(1)));
}

/* A 95 % band misses the truth 5 % of the time: windows of 1 position of 5 normals, many times over. */
static void test_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 16384, FEW = 5 };
    io_error error;
    moments m;
    expect_ok(moments_create(&m, TRIALS, &error), &error);
    double *x = fixture_doubles(TRIALS);
    for (uint64_t s = 0; s < FEW; s++) {
        random_normals((random_stream){ 21, s }, 0, TRIALS, x);
        const double *rows[ESTIMATORS];
        for (int e = 0; e < ESTIMATORS; e++)
            rows[e] = x;
        moments_add(&m, rows);
    }
    int missed = 0;
    for (int i = 0; i < TRIALS; i++) {
        const mean_error at = moments_position(&m, ESTIMATOR_LLA, i);
        missed += fabs(at.mean) > moments_reach(FEW) * at.error;
    }
    assert_true(fabs(missed / (double)TRIALS - 0.05) < 5 * sqrt(0.05 * 0.95 / TRIALS));
    free(x);
    moments_destroy(&m);
}

static void test_one_sequence(void **state)
{
    (void)state;
    io_error error;
    moments m;
    expect_ok(moments_create(&m, 3, &error), &error);
    const double x[3] = { 1, 2, 3 };
    const double *rows[ESTIMATORS];
    for (int e = 0; e < ESTIMATORS; e++)
        rows[e] = x;
    moments_add(&m, rows);
    assert_true(moments_total(&m, ESTIMATOR_MESA).mean == 2);
    assert_true(isnan(moments_total(&m, ESTIMATOR_MESA).error));
    moments_destroy(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),    cmocka_unit_test(test_ratio),        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_coverage), cmocka_unit_test(test_one_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
