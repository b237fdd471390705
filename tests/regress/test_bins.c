/* SPDX-License-Identifier: MIT
 * Fits through bins against fits from the rows themselves, over tables of many
 * shapes. Differences are in units of the standard error that the fit has anyway. */
#define _POSIX_C_SOURCE 200809L
#include "random/random.h"
#include "regress/bandwidth.h"
#include "tests/regress/brute.h"
#include "tests/regress/fit_at.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3000, POINTS = 150 };

/* Of the fits, relative to their standard error; of sums of squares and criteria, relative. */

typedef struct table_shape {
    const char *name;
    double (*x)(double normal, int64_t row);
    double steepness, noise;
} table_shape;

static double normal_x(double normal, int64_t row) { return (void)row, normal; }
static double uniform_x(double normal, int64_t row)
{
    return (void)normal, (double)(row * 7919 % ROWS) / ROWS;
}
static double heavy_x(double normal, int64_t row)
{
    return normal / fmax(fabs(sin((double)row + 0.5)), 1e-6); /* tails as of 1/u */
}
static double clustered_x(double normal, int64_t row) { return (double)(row % 5 * row % 3) + 1e-3 * normal; }
static double tied_x(double normal, int64_t row) { return (void)row, floor(4 * normal); }
static double outlier_x(double normal, int64_t row) { return row ? normal : 1e4; }

static const table_shape shapes[] = {
    { "normal", normal_x, 1, 0.3 },      { "uniform", uniform_x, 1, 0.3 },
    { "heavy-tailed", heavy_x, 1, 0.3 }, { "clustered", clustered_x, 1, 0.3 },
    { "tied", tied_x, 1, 0.3 },          { "an outlier", outlier_x, 1, 0.3 },
    { "steep", normal_x, 1000, 1e-3 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct fixture {
    const table_shape *shape;
    double x[ROWS], y[ROWS];
    regress_table exact, binned;
} fixture;

static void make_fixture(fixture *f, const table_shape *shape, int bins)
{
    static const char *const names[] = { "x", "y" };
    f->shape = shape;
    random_normals((random_stream){ 80, 0 }, 0, ROWS, f->x);
    random_normals((random_stream){ 80, 1 }, 0, ROWS, f->y);
    for (int64_t j = 0; j < ROWS; j++) {
        f->x[j] = shape->x(f->x[j], j);
        f->y[j] = shape->steepness * (f->x[j] + sin(3 * f->x[j])) + shape->noise * f->y[j];
    }
    assert_int_equal(regress_table_make(&f->exact, f->x, f->y, ROWS, 1, names, NULL), 0);
    assert_int_equal(regress_table_make(&f->binned, f->x, f->y, ROWS, 1, names, NULL), 0);
    assert_int_equal(regress_table_bin(&f->binned, bins, NULL), 0);
}

static void free_fixture(fixture *f)
{
    regress_table_free(&f->exact);
    regress_table_free(&f->binned);
}

typedef struct answers {
    regress_fit fits[REGRESS_ESTIMATORS][POINTS], others[REGRESS_ESTIMATORS][POINTS];
    double slopes[POINTS];
} answers;

/* At some rows, between rows and beyond them; every fourth point is a row. */
static void fit_all(const fixture *f, const regress_table *table, double bandwidth, int threads, answers *a)
{
    double points[POINTS];
    int64_t rows[POINTS];
    const regress_smoother with = { bandwidth, 0, threads, NULL };
    for (int i = 0; i < POINTS; i++) {
        rows[i] = i * (ROWS / POINTS);
        const double share = (i - 20.0) / (POINTS - 40);
        const double spread = f->exact.least[0] + share * (f->exact.most[0] - f->exact.least[0]);
        points[i] = regress_standardise(table, 0, i % 2 ? spread : f->x[rows[i]] + i % 4 * 1e-3);
    }
    const regress_wish wish = { .fits = { a->fits[0], a->fits[1] }, .slopes = a->slopes, .squares = true };
    regress_fit *others[] = { a->others[0], a->others[1] };
    assert_int_equal(regress_fit_points(table, with, points, POINTS, &wish, NULL), 0);
    fit_others(table, with, rows, POINTS, others);
}

typedef struct worst {
    double fit, norm2, own, slope, others;
} worst;

static void keep_worst(double *most, double error) { *most = fmax(*most, error); }

static void compare_point(const fixture *f, const answers *exact, const answers *binned, int e, int i,
                          worst *w)
{
    const regress_fit *a = &exact->fits[e][i], *b = &binned->fits[e][i];
    if (a->far != b->far || a->singular != b->singular)
        fail_msg("%s, point %d: far %d and %d, singular %d and %d", f->shape->name, i, a->far, b->far,
                 a->singular, b->singular);
    const double error = f->shape->noise * sqrt(fmax(a->norm2, exact->fits[REGRESS_CONSTANT][i].norm2));
    keep_worst(&w->fit, fabs(a->value - b->value) / error);
    if (a->norm2 > 0) keep_worst(&w->norm2, fabs(a->norm2 - b->norm2) / a->norm2);
    if (i % 4 == 0) keep_worst(&w->own, fabs(a->own - b->own));
    keep_worst(&w->others, fabs(exact->others[e][i].value - binned->others[e][i].value) / f->shape->noise);
}

static worst compare(const fixture *f, const answers *exact, const answers *binned, double bandwidth)
{
    worst w = { 0 };
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        for (int i = 0; i < POINTS; i++)
            compare_point(f, exact, binned, e, i, &w);
    for (int i = 0; i < POINTS; i++) {
        const regress_fit *line = &exact->fits[REGRESS_LINEAR][i];
        if (isnan(exact->slopes[i]) != isnan(binned->slopes[i]) || isnan(exact->slopes[i]) != line->singular)
            fail_msg("%s, point %d: slope %g, binned %g", f->shape->name, i, exact->slopes[i],
                     binned->slopes[i]);
        if (line->singular || line->far) continue;
        const double error = f->shape->noise * sqrt(line->norm2) / bandwidth;
        keep_worst(&w.slope, fabs(exact->slopes[i] - binned->slopes[i]) / (error + fabs(exact->slopes[i])));
    }
    return w;
}

static worst compare_shape(const table_shape *kind, int bins, double bandwidth)
{
    fixture f;
    static answers exact, binned;
    make_fixture(&f, kind, bins);
    fit_all(&f, &f.exact, bandwidth, 1, &exact);
    fit_all(&f, &f.binned, bandwidth, 1, &binned);
    free_fixture(&f);
    return compare(&f, &exact, &binned, bandwidth);
}

static void expect_below(const table_shape *kind, double bandwidth, const char *what, double error,
                         double most)
{
    if (!(error <= most))
        fail_msg("%s, bandwidth %g: %s is off by %.2g, expected at most %.2g", kind->name, bandwidth, what,
                 error, most);
}

/* What docs/regress.md states. For the steep table, whose x alone moves y by 1e6 standard deviations of its
 * noise, errors of that unit are a thousand times what they are for the others. */
static void test_shapes(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++) {
        const table_shape *kind = &shapes[s];
        const double unit = kind->steepness > 1 ? 1e3 : 1;
        for (double bandwidth = 0.003; bandwidth < 5; bandwidth *= 4) {
            const worst w = compare_shape(kind, REGRESS_BINS_DEFAULT, bandwidth);
            expect_below(kind, bandwidth, "a fit, in standard errors,", w.fit, 1e-6 * unit);
            expect_below(kind, bandwidth, "a left-out fit, in deviations of the noise,", w.others,
                         1e-6 * unit);
            expect_below(kind, bandwidth, "a squared standard error", w.norm2, 2e-4);
            expect_below(kind, bandwidth, "a row's own share", w.own, 1e-9);
            expect_below(kind, bandwidth, "a slope", w.slope, 1e-5);
        }
    }
}

static void expect_relative(double got, double want, double tolerance, const char *what, const char *name)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s of '%s': %.15g through bins, %.15g without", what, name, got, want);
}

/* The slope at a heap of equal x is told by its neighbours
 * on both sides, one of which is out of the bins' reach. */
static void test_neighbours(void **state)
{
    (void)state;
    static const char *const names[] = { "x", "y" };
    static const double places[] = { 0, 1, 2.02 }, heights[] = { 1, 2, 5 };
    double x[300], y[300], slopes[2];
    for (int j = 0; j < 300; j++)
        x[j] = places[j % 3], y[j] = heights[j % 3];
    for (int bins = 0; bins <= 4; bins += 4) {
        regress_table table;
        regress_fit line;
        assert_int_equal(regress_table_make(&table, x, y, 300, 1, names, NULL), 0);
        if (bins) assert_int_equal(regress_table_bin(&table, bins, NULL), 0);
        const double point = regress_standardise(&table, 0, 1), bandwidth = 1.01 / 9 / table.unit[0];
        const regress_wish wish = { .fits = { NULL, &line }, .slopes = &slopes[bins > 0] };
        assert_int_equal(
            regress_fit_points(&table, (regress_smoother){ bandwidth, 0, 1, NULL }, &point, 1, &wish, NULL),
            0);
        regress_table_free(&table);
    }
    expect_relative(slopes[1], slopes[0], 1e-9, "slope", "neighbours");
}

/* The error is the expansion's: it falls by 2^10 where bins are half as wide. */
static void test_more_bins(void **state)
{
    (void)state;
    double errors[3];
    for (int i = 0; i < 3; i++)
        errors[i] = compare_shape(&shapes[1], 1 << i, 0.2).fit;
    assert_true(errors[0] > 500 * errors[1] && errors[1] > 500 * errors[2]);
    assert_true(errors[0] < 0.1);
}

/* The same bandwidths, criteria, variances and traces. */
static void test_choice(void **state)
{
    (void)state;
    const bool both[] = { true, true };
    for (int s = 0; s < SHAPES; s++) {
        fixture f;
        make_fixture(&f, &shapes[s], REGRESS_BINS_DEFAULT);
        regress_sample sample;
        assert_int_equal(regress_sample_make(&sample, &(regress_table){ .rows.rows = ROWS * 20 }, 1, NULL),
                         0);
        while (sample.rows[sample.count - 1] >= ROWS)
            sample.count--;
        regress_choice a[REGRESS_ESTIMATORS], b[REGRESS_ESTIMATORS];
        regress_smoother with = { 1, 0, 2, NULL };
        assert_int_equal(regress_choose_bandwidth(&f.exact, with, &sample, both, a, NULL), 0);
        assert_int_equal(regress_choose_bandwidth(&f.binned, with, &sample, both, b, NULL), 0);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
            regress_noise p, q;
            expect_relative(b[e].bandwidth, a[e].bandwidth, 1e-12, "bandwidth", shapes[s].name);
            expect_relative(b[e].score, a[e].score, 1e-6, "criterion", shapes[s].name);
            with.bandwidth = a[e].bandwidth;
            assert_int_equal(regress_estimate_noise(&f.exact, with, &sample, (regress_estimator)e, &p, NULL),
                             0);
            assert_int_equal(regress_estimate_noise(&f.binned, with, &sample, (regress_estimator)e, &q, NULL),
                             0);
            expect_relative(q.variance, p.variance, 1e-6, "variance", shapes[s].name);
            expect_relative(q.parameters, p.parameters, 1e-6, "parameters", shapes[s].name);
        }
        regress_sample_free(&sample);
        free_fixture(&f);
    }
}

static void expect_same(const answers *a, const answers *b)
{
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        for (int i = 0; i < POINTS; i++) {
            assert_memory_equal(&a->fits[e][i].value, &b->fits[e][i].value, sizeof(double));
            assert_memory_equal(&a->fits[e][i].norm2, &b->fits[e][i].norm2, sizeof(double));
            assert_memory_equal(&a->others[e][i].value, &b->others[e][i].value, sizeof(double));
        }
    }
    assert_memory_equal(a->slopes, b->slopes, sizeof a->slopes);
}

static void test_threads(void **state)
{
    (void)state;
    static answers one, more;
    fixture f;
    make_fixture(&f, &shapes[2], REGRESS_BINS_DEFAULT);
    fit_all(&f, &f.binned, 0.05, 1, &one);
    for (int threads = 2; threads <= 4; threads++) {
        fit_all(&f, &f.binned, 0.05, threads, &more);
        expect_same(&one, &more);
    }
    free_fixture(&f);
}

static void test_instruction_sets(void **state)
{
    (void)state;
    static answers portable, fast;
    static const char *const sets[] = { "avx2", "avx512" };
    fixture f;
    make_fixture(&f, &shapes[0], REGRESS_BINS_DEFAULT);
    assert_int_equal(setenv("LOAM_ISA", "portable", 1), 0);
    fit_all(&f, &f.binned, 0.1, 1, &portable);
    for (int s = 0; s < 2; s++) {
        assert_int_equal(setenv("LOAM_ISA", sets[s], 1), 0);
        fit_all(&f, &f.binned, 0.1, 1, &fast);
        expect_below(&shapes[0], 0.1, sets[s], compare(&f, &portable, &fast, 0.1).fit, 1e-9);
    }
    unsetenv("LOAM_ISA");
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),    cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_more_bins), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_instruction_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
