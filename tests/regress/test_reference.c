/* SPDX-License-Identifier: MIT
 * Real data against locfit and KernSmooth: figures stored by make_reference.R. */
#include "io/csv.h"
#include "regress/bandwidth.h"
#include "tests/regress/brute.h"
#include "tests/regress/fit_at.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct real_data {
    const char *data, *figures;
    int columns;
    const char *names[3]; /* x, then y */
    double bandwidth;
    double tolerance; /* for locfit, which itself has only 8 digits right with two columns */
} real_data;

static const real_data mcycle = {
    DATA_DIR "/mcycle.csv", REFERENCE_DIR "/reference_mcycle.csv", 1, { "times", "accel" }, 0.15, 1e-12
};
static const real_data quakes = {
    DATA_DIR "/quakes.csv", REFERENCE_DIR "/reference_quakes.csv", 2, { "lat", "long", "depth" }, 0.4, 1e-7
};

static void read_csv(csv_table *table, const char *path, const char *const *names, int count)
{
    io_error error = { 0 };
    const csv_request request = { .columns = names, .column_count = count };
    if (csv_read(table, path, &request, &error)) fail_msg("%s", error.text);
}

static void make_table(const real_data *real, regress_table *table)
{
    csv_table csv;
    io_error error = { 0 };
    read_csv(&csv, real->data, real->names, real->columns + 1);
    if (regress_table_make(table, csv.values, csv.values + real->columns * csv.rows, csv.rows, real->columns,
                           real->names, &error))
        fail_msg("%s", error.text);
    csv_table_free(&csv);
}

/* The fits at the x of the figures' rows; free with free(fits[0]). */
static void fit_figures(const real_data *real, const regress_table *table, const csv_table *figures,
                        regress_fit *fits[REGRESS_ESTIMATORS])
{
    const int64_t count = figures->rows;
    double *points = malloc((size_t)(count * real->columns) * sizeof *points);
    fits[0] = calloc((size_t)count * 2, sizeof **fits);
    assert_true(points && fits[0]);
    fits[1] = fits[0] + count;
    for (int64_t i = 0; i < count * real->columns; i++)
        points[i] = regress_standardise(table, (int)(i / count), figures->values[i]);
    fit_at(table, (regress_smoother){ real->bandwidth, 0, 2, NULL }, points, count, fits);
    free(points);
}

/* locfit's fits and standard errors, and R's weighted least squares. */
static void compare_figures(const real_data *real)
{
    regress_table table;
    make_table(real, &table);
    regress_sample sample;
    assert_int_equal(regress_sample_make(&sample, &table, 1, NULL), EXIT_OK);
    static const char *const figure_names[] = { "constant", "constant_se", "constant_qr",
                                                "linear",   "linear_se",   "linear_qr" };
    const char *names[8] = { real->names[0], real->names[1] };
    for (int i = 0; i < 6; i++)
        names[real->columns + i] = figure_names[i];
    csv_table figures;
    read_csv(&figures, real->figures, names, real->columns + 6);
    assert_true(figures.rows >= 100);
    regress_fit *fits[REGRESS_ESTIMATORS];
    fit_figures(real, &table, &figures, fits);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        const double *values = figures.values + (real->columns + 3 * e) * figures.rows;
        regress_noise noise;
        assert_int_equal(regress_estimate_noise(&table, (regress_smoother){ real->bandwidth, 0, 2, NULL },
                                                &sample, (regress_estimator)e, &noise, NULL),
                         EXIT_OK);
        for (int64_t i = 0; i < figures.rows; i++) {
            brute_close(fits[e][i].value, values[i], real->tolerance, regress_names[e], 0);
            brute_close(fits[e][i].value, values[2 * figures.rows + i], 1e-12, regress_names[e], 0);
            brute_close(sqrt(noise.variance * fits[e][i].norm2), values[figures.rows + i], real->tolerance,
                        "se", 0);
        }
    }
    free(fits[0]);
    csv_table_free(&figures);
    regress_sample_free(&sample);
    regress_table_free(&table);
}

static void test_mcycle(void **state)
{
    (void)state;
    compare_figures(&mcycle);
}

static void test_quakes(void **state)
{
    (void)state;
    compare_figures(&quakes);
}

/* KernSmooth shares the rows out to a grid first; y spans 200. */
static void test_binned(void **state)
{
    (void)state;
    static const char *const names[] = { "times", "binned_constant", "binned_linear" };
    regress_table table;
    make_table(&mcycle, &table);
    csv_table figures;
    read_csv(&figures, mcycle.figures, names, 3);
    regress_fit *fits[REGRESS_ESTIMATORS];
    fit_figures(&mcycle, &table, &figures, fits);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        for (int64_t i = 0; i < figures.rows; i++)
            if (fabs(fits[e][i].value - figures.values[(1 + e) * figures.rows + i]) > 0.05)
                fail_msg("at %g: %g against %g", figures.values[i], fits[e][i].value,
                         figures.values[(1 + e) * figures.rows + i]);
    free(fits[0]);
    csv_table_free(&figures);
    regress_table_free(&table);
}

/* locfit's variance and trace, and refits by R's lm without each row. */
static void test_totals(void **state)
{
    (void)state;
    static const char *const names[] = { "columns",  "degree",     "bandwidth",
                                         "variance", "parameters", "left_out" };
    csv_table totals;
    read_csv(&totals, REFERENCE_DIR "/reference_totals.csv", names, 6);
    assert_int_equal(totals.rows, 4);
    for (int64_t i = 0; i < totals.rows; i++) {
        double line[6];
        for (int c = 0; c < 6; c++)
            line[c] = totals.values[c * totals.rows + i];
        regress_table table;
        regress_sample sample;
        regress_noise noise;
        make_table(line[0] < 2 ? &mcycle : &quakes, &table);
        assert_int_equal(regress_sample_make(&sample, &table, 1, NULL), EXIT_OK);
        assert_int_equal(regress_estimate_noise(&table, (regress_smoother){ line[2], 0, 2, NULL }, &sample,
                                                (regress_estimator)line[1], &noise, NULL),
                         EXIT_OK);
        brute_close(noise.variance, line[3], 1e-8, "variance", 0);
        brute_close(noise.parameters, line[4], 1e-8, "parameters", 0);
        brute_close(noise.score, line[5], 1e-9, "left out", 0);
        regress_sample_free(&sample);
        regress_table_free(&table);
    }
    csv_table_free(&totals);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_mcycle), cmocka_unit_test(test_quakes),
                                        cmocka_unit_test(test_binned), cmocka_unit_test(test_totals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
