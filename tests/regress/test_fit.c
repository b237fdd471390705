/* SPDX-License-Identifier: MIT
 * The fits against weighted least squares from the definition, and what must hold without a reference. */
#define _POSIX_C_SOURCE 200809L
#include "regress/fit.h"
#include "tests/regress/brute.h"
#include "tests/regress/fit_at.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 60, COLUMNS = 5, POINTS = 11 };
static const char *const names[] = { "a", "b", "c", "d", "e", "f" };

typedef struct fixture {
    double x[COLUMNS * ROWS], y[ROWS], points[COLUMNS * POINTS];
    regress_table table;
    regress_fit fits[REGRESS_ESTIMATORS][POINTS];
    double bandwidths[COLUMNS];
} fixture;

static void make_table(fixture *f, int columns)
{
    const char *all[COLUMNS + 1];
    for (int c = 0; c < columns; c++)
        all[c] = names[c];
    all[columns] = "y";
    io_error error;
    assert_int_equal(regress_table_make(&f->table, f->x, f->y, ROWS, columns, all, &error), EXIT_OK);
}

/* Points between the rows, the last one at row 0. */
static void make_fixture(fixture *f, int columns, double bandwidth, uint64_t seed)
{
    brute_table(seed, ROWS, columns, f->x, f->y);
    make_table(f, columns);
    for (int c = 0; c < columns; c++) {
        f->bandwidths[c] = bandwidth * brute_deviation(f->x + c * ROWS, ROWS);
        for (int i = 0; i < POINTS; i++)
            f->points[c * POINTS + i] = i == POINTS - 1 ? f->x[c * ROWS]
                                                        : 0.5 * (f->x[c * ROWS + i] +
                                                                 f->x[c * ROWS + (7 * i + c) % ROWS]);
    }
}

static void fit_points(fixture *f, regress_smoother with)
{
    double standard[COLUMNS * POINTS];
    for (int i = 0; i < f->table.rows.columns * POINTS; i++)
        standard[i] = regress_standardise(&f->table, i / POINTS, f->points[i]);
    regress_fit *fits[] = { f->fits[0], f->fits[1] };
    fit_at(&f->table, with, standard, POINTS, fits);
}

static brute_problem brute_of(const fixture *f, double ridge, int estimator)
{
    return (brute_problem){ .x = f->x,
                            .y = f->y,
                            .rows = ROWS,
                            .columns = f->table.rows.columns,
                            .bandwidths = f->bandwidths,
                            .ridge = ridge,
                            .linear = estimator == REGRESS_LINEAR };
}

static void get_point(const fixture *f, int i, double *point)
{
    for (int c = 0; c < f->table.rows.columns; c++)
        point[c] = f->points[c * POINTS + i];
}

static void compare_points(const fixture *f, double ridge, uint64_t seed)
{
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        const brute_problem brute = brute_of(f, ridge, e);
        for (int i = 0; i < POINTS; i++) {
            double point[COLUMNS], l[ROWS], squares = 0;
            get_point(f, i, point);
            brute_weights(&brute, point, -1, l);
            for (int j = 0; j < ROWS; j++)
                squares += l[j] * l[j];
            const regress_fit *fit = &f->fits[e][i];
            assert_false(fit->singular);
            brute_close(fit->value, brute_fit(&brute, point, -1), 1e-9, "value", seed);
            brute_close(fit->norm2, squares, 1e-9, "norm2", seed);
            if (i == POINTS - 1) brute_close(fit->own, l[0], 1e-9, "own", seed);
        }
    }
}

static void test_least_squares(void **state)
{
    (void)state;
    const double ridges[] = { 0, 1e-3, 0.5 };
    for (int columns = 1; columns <= COLUMNS; columns++) {
        for (int r = 0; r < 3; r++) {
            const uint64_t seed = (uint64_t)(100 * columns + r);
            const double bandwidth = columns < 3 ? 0.3 : 0.9;
            fixture f;
            make_fixture(&f, columns, bandwidth, seed);
            fit_points(&f, (regress_smoother){ bandwidth, ridges[r], 1, NULL });
            compare_points(&f, ridges[r], seed);
            regress_table_free(&f.table);
        }
    }
}

/* Also with a ridge, where the short cut by the diagonal of the hat matrix would be wrong. */
static void test_left_out(void **state)
{
    (void)state;
    for (int columns = 1; columns <= COLUMNS; columns++) {
        const uint64_t seed = (uint64_t)(7 * columns);
        const double bandwidth = columns < 3 ? 0.35 : 0.9, ridge = columns % 2 ? 0.2 : 0;
        fixture f;
        make_fixture(&f, columns, bandwidth, seed);
        int64_t rows[ROWS];
        regress_fit fits[REGRESS_ESTIMATORS][ROWS], *wanted[] = { fits[0], fits[1] };
        for (int j = 0; j < ROWS; j++)
            rows[j] = j;
        fit_others(&f.table, (regress_smoother){ bandwidth, ridge, 1, NULL }, rows, ROWS, wanted);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
            const brute_problem brute = brute_of(&f, ridge, e);
            for (int j = 0; j < ROWS; j++) {
                double point[COLUMNS];
                for (int c = 0; c < columns; c++)
                    point[c] = f.x[c * ROWS + j];
                if (!fits[e][j].singular && !fits[e][j].far)
                    brute_close(fits[e][j].value, brute_fit(&brute, point, j), 1e-7, "left out", seed);
            }
        }
        regress_table_free(&f.table);
    }
}

/* Affine y comes back at any bandwidth, on any origin, and far off unless one row has all weight. */
static void test_affine(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 3, 0.5, 3);
    regress_table_free(&f.table);
    for (int j = 0; j < ROWS; j++)
        f.y[j] = 1e6 + 2 * f.x[j] - 0.5 * f.x[ROWS + j] + 0.01 * f.x[2 * ROWS + j];
    make_table(&f, 3);
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 3; c++)
            f.points[c * POINTS + i] = f.table.mean[c] + f.table.deviation[c] * (i % 2 ? -1 : 1) * pow(10, i);
    for (double bandwidth = 0.5; bandwidth < 100; bandwidth *= 4) {
        fit_points(&f, (regress_smoother){ bandwidth, 0, 1, NULL });
        for (int i = 0; i < POINTS; i++) {
            double p[COLUMNS];
            get_point(&f, i, p);
            if (f.fits[REGRESS_LINEAR][i].singular && f.fits[REGRESS_LINEAR][i].far) continue;
            assert_false(f.fits[REGRESS_LINEAR][i].singular);
            const double expected = 1e6 + 2 * p[0] - 0.5 * p[1] + 0.01 * p[2];
            brute_close(f.fits[REGRESS_LINEAR][i].value, expected, i < 4 ? 1e-8 : 1e-11, "affine", 3);
        }
    }
    regress_table_free(&f.table);
}

/* The constant keeps a constant y, a huge ridge makes the line a constant. */
static void test_limits(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 2, 0.5, 5);
    fit_points(&f, (regress_smoother){ 0.5, 1e12, 1, NULL });
    for (int i = 0; i < POINTS; i++)
        brute_close(f.fits[REGRESS_LINEAR][i].value, f.fits[REGRESS_CONSTANT][i].value, 1e-9, "huge ridge",
                    5);
    regress_table_free(&f.table);
    for (int j = 0; j < ROWS; j++)
        f.y[j] = -3.25;
    make_table(&f, 2);
    fit_points(&f, (regress_smoother){ 0.5, 0, 1, NULL });
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        for (int i = 0; i < POINTS; i++)
            assert_true(f.fits[e][i].value == -3.25);
    regress_table_free(&f.table);
}

/* Far from all rows the constant is the nearest row's y, and says that it is far. */
static void test_far(void **state)
{
    (void)state;
    const double distances[] = { 10, 1e3, 1e6, 1e12, 1e100, 1e300 };
    const double x[] = { 0, 1, 2, 3, 4, 5 }, y[] = { 7, 1, 4, 2, 9, 3 };
    regress_table table;
    assert_int_equal(regress_table_make(&table, x, y, 6, 1, names, NULL), EXIT_OK);
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
        const double point = -distances[i];
        regress_fit fits[2], *wanted[] = { &fits[0], &fits[1] };
        fit_at(&table, (regress_smoother){ 0.05, 0, 1, NULL }, &point, 1, wanted);
        assert_true(fits[0].far && fits[1].far);
        assert_true(isfinite(fits[0].value) && isfinite(fits[1].value));
        assert_true(isfinite(fits[0].norm2) && isfinite(fits[1].norm2));
        if (distances[i] < 1e7) brute_close(fits[0].value, 7, 1e-12, "nearest", 0);
    }
    regress_table_free(&table);
}

/* Weights relative to the nearest row are the same weights: where both can be had, they agree. */
static void test_far_is_near(void **state)
{
    (void)state;
    fixture f;
    const uint64_t seed = 11;
    make_fixture(&f, 2, 0.4, seed);
    for (int i = 0; i < POINTS; i++)
        f.points[i] = f.table.mean[0] + f.table.deviation[0] * (3 + 0.3 * i);
    fit_points(&f, (regress_smoother){ 0.4, 0.01, 1, NULL });
    int far = 0;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        const brute_problem brute = brute_of(&f, 0.01, e);
        for (int i = 0; i < POINTS; i++) {
            double point[COLUMNS];
            get_point(&f, i, point);
            far += f.fits[e][i].far;
            brute_close(f.fits[e][i].value, brute_fit(&brute, point, -1), 1e-7, "far value", seed);
        }
    }
    assert_in_range(far, 2, 2 * POINTS - 2);
    regress_table_free(&f.table);
}

/* One x has all the weight, or all rows in reach lie on a line: the constant, and a word of it. */
static void test_singular(void **state)
{
    (void)state;
    const double x[] = { 1, 1, 1, 9, 9, 5, 0, 10, 20, 0, 10, 50 }, y[] = { 1, 2, 6, 4, 8, 3 };
    regress_table table;
    assert_int_equal(regress_table_make(&table, x, y, 6, 1, names, NULL), EXIT_OK);
    const double point = regress_standardise(&table, 0, 1);
    regress_fit fits[2], *wanted[] = { &fits[0], &fits[1] };
    fit_at(&table, (regress_smoother){ 1e-3, 0, 1, NULL }, &point, 1, wanted);
    assert_true(fits[1].singular && !fits[0].singular && !fits[0].far);
    brute_close(fits[1].value, 3, 1e-14, "mean of equal x", 0);
    brute_close(fits[1].norm2, 1.0 / 3, 1e-14, "norm of equal x", 0);
    fit_at(&table, (regress_smoother){ 1e-3, 1e-6, 1, NULL }, &point, 1, wanted);
    assert_false(fits[1].singular);
    brute_close(fits[1].value, 3, 1e-14, "mean of equal x with a ridge", 0);
    regress_table_free(&table);

    const double line[] = { 1, 2, 3, 4, 2, 4, 6, 8 };
    assert_int_equal(regress_table_make(&table, line, y, 4, 2, names, NULL), EXIT_OK);
    const double both[] = { 0.1, 0.1 };
    fit_at(&table, (regress_smoother){ 1, 0, 1, NULL }, both, 1, wanted);
    assert_true(fits[1].singular);
    assert_true(fits[1].value == fits[0].value);
    regress_table_free(&table);
}

/* A row alone in reach of itself is left out: the others are far, and that is defined too. */
static void test_left_out_alone(void **state)
{
    (void)state;
    const double x[] = { 0, 100, 103 }, y[] = { 5, 1, 2 };
    regress_table table;
    assert_int_equal(regress_table_make(&table, x, y, 3, 1, names, NULL), EXIT_OK);
    const int64_t rows[] = { 0, 1, 2 };
    regress_fit constant[3], *wanted[] = { constant, NULL };
    fit_others(&table, (regress_smoother){ 1e-4, 0, 1, NULL }, rows, 3, wanted);
    const double expected[] = { 1, 2, 1 };
    for (int j = 0; j < 3; j++) {
        assert_true(constant[j].far);
        brute_close(constant[j].value, expected[j], 1e-12, "nearest other", 0);
    }
    regress_table_free(&table);
}

/* ---- the same for all instruction sets, the same bits for any number of threads */

enum { MANY = 1500, MANY_POINTS = 203 };

static regress_fit *fit_many(int columns, int threads)
{
    static double x[4 * MANY], y[MANY], points[4 * MANY_POINTS];
    brute_table(21, MANY, columns, x, y);
    regress_table table;
    const char *all[] = { "a", "b", "c", "d", "y" };
    assert_int_equal(regress_table_make(&table, x, y, MANY, columns, all, NULL), EXIT_OK);
    for (int i = 0; i < columns * MANY_POINTS; i++)
        points[i] = regress_standardise(&table, i / MANY_POINTS,
                                        x[i / MANY_POINTS * MANY + i % MANY_POINTS] * (i % 50 ? 1 : 30));
    regress_fit *fits = calloc(4 * MANY, sizeof *fits), *wanted[] = { fits, fits + MANY };
    assert_non_null(fits);
    fit_at(&table, (regress_smoother){ 0.4, 0, threads, NULL }, points, MANY_POINTS, wanted);
    int64_t rows[MANY];
    for (int j = 0; j < MANY; j++)
        rows[j] = MANY - 1 - j;
    regress_fit *others[] = { fits + 2 * MANY, fits + 3 * MANY };
    fit_others(&table, (regress_smoother){ 0.4, 0, threads, NULL }, rows, MANY / 3, others);
    regress_table_free(&table);
    return fits;
}

static void test_threads(void **state)
{
    (void)state;
    for (int columns = 1; columns <= 4; columns++) {
        regress_fit *one = fit_many(columns, 1);
        for (int threads = 2; threads <= 5; threads++) {
            regress_fit *more = fit_many(columns, threads);
            for (int i = 0; i < 4 * MANY; i++) {
                assert_memory_equal(&one[i].value, &more[i].value, sizeof(double));
                assert_memory_equal(&one[i].norm2, &more[i].norm2, sizeof(double));
                assert_memory_equal(&one[i].own, &more[i].own, sizeof(double));
            }
            free(more);
        }
        free(one);
    }
}

static void test_instruction_sets(void **state)
{
    (void)state;
    static const char *const sets[] = { "avx2", "avx512" };
    for (int columns = 1; columns <= 4; columns++) {
        assert_int_equal(setenv("LOAM_ISA", "portable", 1), 0);
        regress_fit *portable = fit_many(columns, 2);
        for (int s = 0; s < 2; s++) {
            assert_int_equal(setenv("LOAM_ISA", sets[s], 1), 0);
            regress_fit *fast = fit_many(columns, 2);
            for (int i = 0; i < 4 * MANY; i++) {
                assert_int_equal(portable[i].singular, fast[i].singular);
                if (portable[i].far) continue; /* extrapolation magnifies rounding */
                brute_close(fast[i].value, portable[i].value, 1e-8, sets[s], 21);
                brute_close(fast[i].norm2, portable[i].norm2, 1e-8, sets[s], 21);
            }
            free(fast);
        }
        free(portable);
        unsetenv("LOAM_ISA");
    }
}

/* A point's result does not depend on where it stands among the points. */
static void test_place(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 3, 0.5, 9);
    fit_points(&f, (regress_smoother){ 0.5, 0, 1, NULL });
    const double first = f.fits[REGRESS_LINEAR][0].value, last = f.fits[REGRESS_LINEAR][POINTS - 1].value;
    for (int c = 0; c < 3; c++) {
        const double keep = f.points[c * POINTS];
        f.points[c * POINTS] = f.points[c * POINTS + POINTS - 1];
        f.points[c * POINTS + POINTS - 1] = keep;
    }
    fit_points(&f, (regress_smoother){ 0.5, 0, 1, NULL });
    assert_true(f.fits[REGRESS_LINEAR][0].value == last && f.fits[REGRESS_LINEAR][POINTS - 1].value == first);
    regress_table_free(&f.table);
}

/* ---- tables that have no fit */

static void expect_refused(const double *x, int64_t rows, const char *words)
{
    const double y[] = { 1, 2, 3 };
    regress_table table;
    io_error error = { 0 };
    assert_int_equal(regress_table_make(&table, x, y, rows, 1, names, &error), EXIT_INPUT);
    if (!strstr(error.text, words)) fail_msg("'%s' lacks '%s'", error.text, words);
    assert_null(table.x);
}

static void test_refused(void **state)
{
    (void)state;
    expect_refused((const double[]){ 4, 4, 4 }, 3, "column 'a' is constant: every value is 4");
    expect_refused((const double[]){ 4 }, 1, "at least 2 rows, not 1");
    expect_refused((const double[]){ -1e308, 1e308, 0 }, 3, "no standard deviation");
    expect_refused((const double[]){ 0, 1e-200, 0 }, 3, "no standard deviation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_squares), cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_affine),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_far),           cmocka_unit_test(test_far_is_near),
        cmocka_unit_test(test_singular),      cmocka_unit_test(test_left_out_alone),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_place),         cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
