/* SPDX-License-Identifier: MIT
 * The experiment on rates: the data are what they claim to be, errors are those of direct sums, bandwidths
 * are the best ones, and slopes those of the errors. */
#include "cli/experiment/rates_report.h"
#include "tests/experiment/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rates_engine engine = { LOAM_BACKEND_REFERENCE, 2, 1e-8 };

static rates_task task_of(rates_setting setting, int64_t dim, int64_t pairs, int64_t queries)
{
    return (rates_task){ setting, dim, pairs, setting == RATES_ORDERED ? pairs : queries, 0.5, 3 };
}

static rates_sample draw(const rates_task *task, int64_t repetition)
{
    io_error error;
    rates_sample sample;
    expect_ok(rates_sample_make(&sample, task, repetition, &error), &error);
    return sample;
}

/* ---- data */

static void test_function(void **state)
{
    (void)state;
    const double point[] = { 0.25, 0.75 };
    assert_true(fabs(rates_function(point, 1) - (0.75 + 0.7)) < 1e-12);
    assert_true(fabs(rates_function(point, 2) - (0.75 + 0.7 + 2.25 - 0.7)) < 1e-12);
}

/* Uniform in [0, 1]: mean 1/2, variance 1/12, to five standard errors; the values are f plus the noise. */
static void test_cube(void **state)
{
    (void)state;
    const rates_task task = task_of(RATES_CUBE, 2, 4000, 3000);
    rates_sample sample = draw(&task, 0);
    const double count = 2.0 * 4000, noises = 4000.0 * RATES_DRAWS;
    double mean = 0, square = 0, noise = 0;
    for (int64_t i = 0; i < 8000; i++) {
        assert_true(sample.keys[i] >= 0 && sample.keys[i] <= 1);
        mean += sample.keys[i] / count;
        square += (sample.keys[i] - 0.5) * (sample.keys[i] - 0.5) / count;
    }
    for (int64_t i = 0; i < 4000; i++)
        for (int v = 0; v < RATES_DRAWS; v++) {
            const double away = sample.values[i * RATES_DRAWS + v] - rates_function(sample.keys + 2 * i, 2);
            noise += away * away / noises;
        }
    assert_true(fabs(mean - 0.5) < 5 * sqrt(1 / 12.0 / count));
    assert_true(fabs(square - 1 / 12.0) < 5 * sqrt(1 / 180.0 / count));
    assert_true(fabs(noise - 0.25) < 5 * 0.25 * sqrt(2 / noises));
    int64_t inside = 0;
    for (int64_t i = 0; i < 3000; i++) {
        const double *x = sample.asked + 2 * i;
        assert_true(fabs(sample.truth[i] - rates_function(x, 2)) < 1e-12);
        assert_true(sample.inside[RATES_WHOLE][i]);
        assert_int_equal(sample.inside[RATES_INTERIOR][i], fmax(fabs(x[0] - 0.5), fabs(x[1] - 0.5)) <= 0.2);
        inside += sample.inside[RATES_INTERIOR][i];
    }
    assert_true(fabs((double)inside / 3000 - 0.16) < 5 * sqrt(0.16 * 0.84 / 3000));
    rates_sample_free(&sample);
}

/* Repetitions differ; fewer pairs are the first ones of more. */
static void test_repetitions(void **state)
{
    (void)state;
    const rates_task few = task_of(RATES_CUBE, 1, 100, 50), many = task_of(RATES_CUBE, 1, 200, 50);
    rates_sample a = draw(&few, 0), b = draw(&many, 0), c = draw(&few, 1);
    assert_memory_equal(a.keys, b.keys, 100 * sizeof *a.keys);
    assert_memory_equal(a.values, b.values, 100 * RATES_DRAWS * sizeof *a.values);
    assert_memory_equal(a.asked, b.asked, 50 * sizeof *a.asked);
    assert_memory_not_equal(a.keys, c.keys, 100 * sizeof *a.keys);
    assert_memory_not_equal(a.asked, c.asked, 50 * sizeof *a.asked);
    rates_sample_free(&a), rates_sample_free(&b), rates_sample_free(&c);
}

/* By the first coordinate, which counts from 0.3; the region is that of the others. */
static void test_ordered(void **state)
{
    (void)state;
    const rates_task task = task_of(RATES_ORDERED, 2, 300, 0);
    rates_sample sample = draw(&task, 0);
    assert_memory_equal(sample.keys, sample.asked, 600 * sizeof *sample.keys);
    for (int64_t i = 0; i < 300; i++) {
        const double *x = sample.keys + 2 * i;
        assert_true(i == 0 || x[0] >= x[-2]);
        assert_int_equal(sample.inside[RATES_WHOLE][i], x[0] >= 0.3);
        assert_int_equal(sample.inside[RATES_INTERIOR][i], x[0] >= 0.3 && fabs(x[1] - 0.5) <= 0.2);
    }
    rates_sample_free(&sample);
}

static double distance(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t c = 0; c < count; c++)
        sum += (a[c] - b[c]) * (a[c] - b[c]);
    return sqrt(sum);
}

/* Length 1, no channel idle, and distances those of the points, in units that the sample names: chords are
 * shorter than arcs of a quarter by at most a 1/384. */
static void test_sphere(void **state)
{
    (void)state;
    const rates_task flat = task_of(RATES_CUBE, 2, 50, 20), round = task_of(RATES_SPHERE, 2, 50, 20);
    rates_sample points = draw(&flat, 0), keys = draw(&round, 0);
    const double zero[RATES_CHANNELS] = { 0 };
    double least = INFINITY;
    for (int64_t i = 0; i < 50; i++) {
        const double *key = keys.keys + i * RATES_CHANNELS;
        assert_true(fabs(distance(key, zero, RATES_CHANNELS) - 1) < 1e-12);
        for (int64_t j = 0; j < i; j++) {
            const double flat_distance = distance(points.keys + 2 * i, points.keys + 2 * j, 2);
            const double chord = distance(key, keys.keys + j * RATES_CHANNELS, RATES_CHANNELS) / keys.unit;
            assert_true(chord <= flat_distance * (1 + 1e-9) && chord > flat_distance * (1 - 1.0 / 380));
        }
    }
    for (int c = 0; c < RATES_CHANNELS; c++)
        least = fmin(least, fabs(keys.keys[c] - keys.keys[RATES_CHANNELS + c]));
    assert_true(least > 0);
    assert_memory_equal(points.values, keys.values, 50 * RATES_DRAWS * sizeof *points.values);
    rates_sample_free(&points), rates_sample_free(&keys);
}

/* ---- errors */

/* NW and LL of one draw at x from the first `seen` pairs but those from .. to - 1, d = 1, ridge 1e-8 h^2. */
static double direct(rates_estimator which, const rates_sample *s, int64_t seen, int64_t from, int64_t to,
                     double h, double x, int draw_index)
{
    double s0 = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0;
    for (int64_t j = 0; j < seen; j++) {
        if (j >= from && j < to) continue;
        const double z = s->keys[j] - x, w = exp(-z * z / (2 * h * h)),
                     y = s->values[j * RATES_DRAWS + draw_index];
        s0 += w, s1 += w * z, s2 += w * z * z, t0 += w * y, t1 += w * z * y;
    }
    if (which == RATES_CONSTANT) return t0 / s0;
    const double mean = s1 / s0, slope = (t1 / s0 - mean * t0 / s0) / (s2 / s0 - mean * mean + 1e-8 * h * h);
    return t0 / s0 - slope * mean;
}

static void expect_errors(rates_estimator which, bool ordered)
{
    const double h = 0.1;
    const rates_task task = task_of(ordered ? RATES_ORDERED : RATES_CUBE, 1, 80, 60);
    rates_sample sample = draw(&task, 2);
    rates_draws got;
    io_error error;
    expect_ok(rates_errors(&engine, which, &sample, ordered, h, got, &error), &error);
    for (int region = 0; region < RATES_REGIONS; region++)
        for (int v = 0; v < RATES_DRAWS; v += 21) {
            double sum = 0, count = 0;
            for (int64_t i = 0; i < sample.queries; i++) {
                if (!sample.inside[region][i]) continue;
                const double fit = direct(which, &sample, ordered ? i : sample.pairs, 0, 0, h,
                                          sample.asked[i], v);
                sum += (fit - sample.truth[i]) * (fit - sample.truth[i]), count++;
            }
            assert_true(count > 5);
            if (!(fabs(got[region][v] - sum / count) <= 1e-6 * sum / count))
                fail_msg("%d %d region %d draw %d: %g, expected %g", which, ordered, region, v,
                         got[region][v], sum / count);
        }
    rates_sample_free(&sample);
}

static void test_errors(void **state)
{
    (void)state;
    for (rates_estimator which = RATES_CONSTANT; which <= RATES_LINEAR; which++) {
        expect_errors(which, false);
        expect_errors(which, true);
    }
}

/* Affine data: the global line and LL find them, NW does not. In float32 as well. */
static void test_affine(void **state)
{
    (void)state;
    const rates_task task = task_of(RATES_SPHERE, 2, 200, 50);
    rates_sample sample = draw(&task, 0);
    for (int64_t j = 0; j < 200; j++)
        for (int v = 0; v < RATES_DRAWS; v++)
            sample.values[j * RATES_DRAWS + v] = v + 3 * sample.keys[j * RATES_CHANNELS + 1];
    rates_draws errors;
    io_error error;
    for (int backend = 0; backend < 2; backend++) {
        const rates_engine with = { backend ? LOAM_BACKEND_CPU : LOAM_BACKEND_REFERENCE, 2, 1e-8 };
        const double bound = backend ? 1e-6 : 1e-12; /* squares, of values up to 60 */
        for (rates_estimator which = RATES_GLOBAL; which < RATES_ESTIMATORS; which++)
            for (int v = 0; v < RATES_DRAWS; v += 63) {
                for (int64_t i = 0; i < 50; i++)
                    sample.truth[i] = v + 3 * sample.asked[i * RATES_CHANNELS + 1];
                expect_ok(rates_errors(&with, which, &sample, false, 0.3, errors, &error), &error);
                if (which == RATES_CONSTANT)
                    assert_true(errors[RATES_WHOLE][v] > 1e-5);
                else if (!(errors[RATES_WHOLE][v] < bound))
                    fail_msg("estimator %d: %g", which, errors[RATES_WHOLE][v]);
            }
    }
    rates_sample_free(&sample);
}

/* Folds are left out in turn. */
static void test_validation(void **state)
{
    (void)state;
    const rates_task task = task_of(RATES_CUBE, 1, 84, 10);
    rates_sample sample = draw(&task, 0);
    double scores[RATES_DRAWS];
    io_error error;
    for (rates_estimator which = RATES_CONSTANT; which <= RATES_LINEAR; which++) {
        expect_ok(rates_cross_validate(&engine, which, &sample, 0.1, scores, &error), &error);
        double sum = 0;
        for (int64_t f = 0; f < RATES_FOLDS; f++)
            for (int64_t i = 84 * f / RATES_FOLDS; i < 84 * (f + 1) / RATES_FOLDS; i++) {
                const double fit = direct(which, &sample, 84, 84 * f / RATES_FOLDS,
                                          84 * (f + 1) / RATES_FOLDS, 0.1, sample.keys[i], 5);
                const double away = fit - sample.values[i * RATES_DRAWS + 5];
                sum += away * away;
            }
        assert_true(fabs(scores[5] - sum) < 1e-6 * sum);
    }
    rates_sample_free(&sample);
}

/* ---- choices and slopes */

/* Each draw has its least error of those tried, the best mean has all its neighbours, and cross-validation
 * the errors of some of the steps. */
static void test_choice(void **state)
{
    (void)state;
    enum { REPETITIONS = 2 };
    rates_cell cell = { .task = task_of(RATES_CUBE, 1, 100, 200), .most = 4 };
    progress bar = { .total = 1 };
    io_error error;
    expect_ok(rates_cell_fill(&cell, &engine, RATES_CONSTANT, REPETITIONS, &bar, &error), &error);
    expect_ok(rates_cell_validate(&cell, &engine, RATES_ORACLES, REPETITIONS, &bar, &error), &error);
    const rates_curve *curve = &cell.curves[RATES_CONSTANT];
    for (int region = 0; region < RATES_REGIONS; region++) {
        double best_mean = INFINITY;
        int best = -1;
        for (int64_t r = 0; r < REPETITIONS; r++) {
            double sum = 0;
            for (int v = 0; v < RATES_DRAWS; v++) {
                double least = INFINITY;
                for (int step = 0; step < RATES_STEPS; step++)
                    if (curve->done[step]) least = fmin(least, curve->at[step][r][region][v]);
                sum += least / RATES_DRAWS;
            }
            assert_true(fabs(cell.errors[RATES_CONSTANT][r][region] - sum) < 1e-12 * sum);
            assert_true(cell.errors[RATES_ORACLES][r][region] >= sum);
            assert_true(cell.errors[RATES_ORACLES][r][region] < 3 * sum);
        }
        for (int step = 0; step < RATES_STEPS; step++) {
            double mean = 0;
            for (int64_t r = 0; r < REPETITIONS && curve->done[step]; r++)
                for (int v = 0; v < RATES_DRAWS; v++)
                    mean += curve->at[step][r][region][v];
            if (curve->done[step] && mean < best_mean) best = step, best_mean = mean;
        }
        for (int step = best - 4; step <= best + 4; step++)
            assert_int_equal(curve->done[step], REPETITIONS);
        const double bandwidth = cell.bandwidth[RATES_CONSTANT][region];
        assert_true(bandwidth > rates_bandwidth(&cell.task, best - 4));
        assert_true(bandwidth < rates_bandwidth(&cell.task, best + 4));
    }
    rates_cell_free(&cell);
}

/* Errors that are powers of n, the same or not for all repetitions. */
static void make_errors(rates_sweep *s, const double slopes[RATES_ORACLES], double spread)
{
    *s = (rates_sweep){ .cell_count = 3, .repetitions = 4 };
    for (int i = 0; i < 3; i++) {
        s->cells[i].task = task_of(RATES_CUBE, 1, 100 << i, 10);
        for (int line = 0; line < RATES_ORACLES; line++) {
            s->cells[i].errors[line] = calloc(4, sizeof *s->cells[i].errors[line]);
            assert_non_null(s->cells[i].errors[line]);
            for (int r = 0; r < 4; r++)
                s->cells[i].errors[line][r][RATES_WHOLE] = pow(100 << i, slopes[line]) *
                                                           (1 + (i == 2) * spread * (r - 1.5));
        }
    }
}

static void test_slopes(void **state)
{
    (void)state;
    rates_sweep s;
    make_errors(&s, (const double[]){ 0, -0.75, -0.8 }, 0);
    assert_true(fabs(rates_slope_of(&s, RATES_CONSTANT, RATES_WHOLE).value + 0.75) < 1e-12);
    assert_true(rates_slope_of(&s, RATES_CONSTANT, RATES_WHOLE).deviation < 1e-12);
    assert_true(fabs(rates_lead_of(&s).value + 0.05) < 1e-12);
    rates_sweep_free(&s);
    /* The last of three points has weight 1 / (2 log 2); its mean's relative error is that of four
     * repetitions, spread sqrt(5/4) apart. To first order: the spread is small. */
    make_errors(&s, (const double[]){ 0, -0.75, -0.8 }, 1e-4);
    const double expected = 1e-4 * sqrt(5.0 / 3 / 4) / (2 * log(2));
    assert_true(fabs(rates_slope_of(&s, RATES_LINEAR, RATES_WHOLE).deviation / expected - 1) < 1e-3);
    const rates_value error = rates_error_of(&s, 2, RATES_LINEAR, RATES_WHOLE);
    assert_true(fabs(error.deviation / error.value / (1e-4 * sqrt(5.0 / 3 / 4)) - 1) < 1e-3);
    rates_sweep_free(&s);
}

static void test_theory(void **state)
{
    (void)state;
    rates_task task = task_of(RATES_CUBE, 1, 100, 10);
    assert_true(fabs(rates_theory(&task, RATES_CONSTANT, RATES_WHOLE) + 0.75) < 1e-12);
    assert_true(fabs(rates_theory(&task, RATES_CONSTANT, RATES_INTERIOR) + 0.8) < 1e-12);
    task.dim = 2;
    assert_true(fabs(rates_theory(&task, RATES_LINEAR, RATES_WHOLE) + 4.0 / 6) < 1e-12);
    assert_true(rates_theory(&task, RATES_GLOBAL, RATES_WHOLE) == 0);
    task.setting = RATES_ORDERED;
    assert_true(fabs(rates_theory(&task, RATES_CONSTANT, RATES_WHOLE) + 0.5) < 1e-12);
    assert_string_equal(rates_judgement(-0.7, -0.75), "agrees");
    assert_string_equal(rates_judgement(-0.69, -0.75), "flatter");
    assert_string_equal(rates_judgement(-0.81, -0.75), "steeper");
}

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        double slopes[RATES_ORACLES];
        rates_verdict expected;
    } cases[] = {
        { { 0, -0.75, -0.8 }, { true, true, true, true, true } },
        { { -0.2, -0.75, -0.8 }, { false, true, true, true, true } },
        { { 0, -0.6, -0.8 }, { true, false, false, true, true } },
        { { 0, -0.82, -0.85 }, { true, true, false, true, true } },
        { { 0, -0.73, -0.7 }, { true, true, true, false, false } },
        { { 0, -0.79, -0.78 }, { true, true, true, true, false } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rates_sweep s;
        make_errors(&s, cases[i].slopes, 1e-4);
        const rates_verdict got = rates_judge(&s);
        assert_memory_equal(&got, &cases[i].expected, sizeof got);
        rates_sweep_free(&s);
    }
}

/* More repetitions until slopes are as certain as is asked for, or there are as many as may be. */
static void test_rounds(void **state)
{
    (void)state;
    io_error error;
    for (int strict = 0; strict < 2; strict++) {
        rates_sweep *s = calloc(1, sizeof *s);
        assert_non_null(s);
        *s = (rates_sweep){
            .engine = engine, .least = 2, .most = 5, .tolerance = strict ? 1e-6 : 10, .cell_count = 2
        };
        s->engine.backend = LOAM_BACKEND_CPU, s->engine.ridge = 1e-4;
        s->cells[0].task = task_of(RATES_CUBE, 1, 64, 100);
        s->cells[1].task = task_of(RATES_CUBE, 1, 128, 100);
        expect_ok(rates_sweep_run(s, &error), &error);
        assert_int_equal(s->repetitions, strict ? 5 : 2);
        assert_true(s->ridge_effect > 0 && s->ridge_effect < 0.01);
        rates_sweep_free(s);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_function),    cmocka_unit_test(test_cube),
        cmocka_unit_test(test_repetitions), cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_sphere),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_affine),      cmocka_unit_test(test_validation),
        cmocka_unit_test(test_choice),      cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_theory),      cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
