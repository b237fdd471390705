/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_sweep.h"

#include <math.h>

double rates_theory(const rates_task *task, rates_estimator which, rates_region region)
{
    const double d = (double)task->dim;
    if (which == RATES_GLOBAL) return 0;
    if (which == RATES_LINEAR) return -4 / (d + 4);
    /* At the edge of what was seen the bias is of the order of h everywhere, not just near the boundary. */
    if (task->setting == RATES_ORDERED) return -2 / (d + 2);
    return region == RATES_WHOLE ? -3 / (d + 3) : -4 / (d + 4);
}

int rates_line_count(const rates_sweep *s) { return s->validate ? RATES_LINES : RATES_ORACLES; }

/* ---- errors and slopes */

/* Over all repetitions but `without`; -1: over all. */
static double mean_without(const rates_sweep *s, int cell, int line, rates_region region, int64_t without)
{
    double sum = 0;
    for (int64_t r = 0; r < s->repetitions; r++)
        if (r != without) sum += s->cells[cell].errors[line][r][region];
    return sum / (double)(s->repetitions - (without >= 0));
}

rates_value rates_error_of(const rates_sweep *s, int cell, int line, rates_region region)
{
    const double mean = mean_without(s, cell, line, region, -1), count = (double)s->repetitions;
    double spread = 0;
    for (int64_t r = 0; r < s->repetitions; r++) {
        const double away = s->cells[cell].errors[line][r][region] - mean;
        spread += away * away;
    }
    return (rates_value){ mean, sqrt(spread / (count * (count - 1))) };
}

static double slope_without(const rates_sweep *s, int line, rates_region region, int64_t without)
{
    double x_mean = 0, y_mean = 0, xx = 0, xy = 0, x[EXPERIMENT_LIST], y[EXPERIMENT_LIST];
    for (int i = 0; i < s->cell_count; i++) {
        x[i] = log((double)s->cells[i].task.pairs);
        y[i] = log(mean_without(s, i, line, region, without));
        x_mean += x[i] / s->cell_count, y_mean += y[i] / s->cell_count;
    }
    for (int i = 0; i < s->cell_count; i++) {
        xx += (x[i] - x_mean) * (x[i] - x_mean);
        xy += (x[i] - x_mean) * (y[i] - y_mean);
    }
    return xy / xx;
}

/* Of one line, or of its difference from another one. */
static double contrast_without(const rates_sweep *s, int line, int from, rates_region region, int64_t without)
{
    return slope_without(s, line, region, without) - (from < 0 ? 0 : slope_without(s, from, region, without));
}

/* The jackknife: pairs of a repetition are shared by all n, and by the lines. */
static rates_value contrast_of(const rates_sweep *s, int line, int from, rates_region region)
{
    const double count = (double)s->repetitions;
    double mean = 0, spread = 0;
    for (int64_t r = 0; r < s->repetitions; r++) {
        const double value = contrast_without(s, line, from, region, r), step = value - mean;
        mean += step / (double)(r + 1);
        spread += step * (value - mean);
    }
    return (rates_value){ contrast_without(s, line, from, region, -1), sqrt(spread * (count - 1) / count) };
}

rates_value rates_slope_of(const rates_sweep *s, int line, rates_region region)
{
    return contrast_of(s, line, -1, region);
}

rates_value rates_lead_of(const rates_sweep *s)
{
    return contrast_of(s, RATES_LINEAR, RATES_CONSTANT, RATES_WHOLE);
}

/* ---- the sweep */

static double worst_deviation(const rates_sweep *s)
{
    double worst = 0;
    for (int line = 0; line < RATES_ORACLES; line++)
        worst = fmax(worst, rates_slope_of(s, line, RATES_WHOLE).deviation);
    return worst;
}

/* Standard errors fall with the square root of the repetitions: as many as should do, and at least a third
 * more. */
static int64_t more_repetitions(const rates_sweep *s, double deviation)
{
    const double ratio = deviation / s->tolerance, count = (double)s->repetitions;
    return (int64_t)fmin((double)s->most, ceil(count * fmax(1.1 * ratio * ratio, 4.0 / 3)));
}

static int64_t pairs_of_all(const rates_sweep *s)
{
    int64_t pairs = 0;
    for (int i = 0; i < s->cell_count; i++)
        pairs += s->cells[i].task.pairs;
    return pairs;
}

static int run_rounds(rates_sweep *s, progress *bar, io_error *error)
{
    for (s->repetitions = s->least;;) {
        for (int i = 0; i < s->cell_count; i++)
            for (int line = 0; line < RATES_ORACLES; line++) {
                const int status = rates_cell_fill(&s->cells[i], &s->engine, line, s->repetitions, bar,
                                                   error);
                if (status != EXIT_OK) return status;
            }
        const double deviation = worst_deviation(s);
        if (deviation <= s->tolerance || s->repetitions >= s->most) return EXIT_OK;
        const int64_t before = s->repetitions;
        s->repetitions = more_repetitions(s, deviation);
        bar->total += (s->repetitions - before) * 2 * RATES_EVALUATIONS * pairs_of_all(s);
    }
}

static int validate_all(rates_sweep *s, progress *bar, io_error *error)
{
    int status = EXIT_OK;
    bar->total += s->repetitions * 2 * RATES_EVALUATIONS * pairs_of_all(s);
    for (int i = 0; i < s->cell_count && status == EXIT_OK; i++)
        for (int line = RATES_ORACLES; line < RATES_LINES && status == EXIT_OK; line++)
            status = rates_cell_validate(&s->cells[i], &s->engine, line, s->repetitions, bar, error);
    return status;
}

/* On the first repetition, at the bandwidth that was best on average. */
static int try_ridge(const rates_sweep *s, const rates_cell *cell, double *effect, io_error *error)
{
    rates_engine smaller = s->engine;
    rates_sample sample;
    rates_draws errors[2] = { { { 0 } } };
    const double bandwidth = cell->bandwidth[RATES_LINEAR][RATES_WHOLE];
    const bool ordered = cell->task.setting == RATES_ORDERED;
    smaller.ridge /= 100;
    int status = rates_sample_make(&sample, &cell->task, 0, error);
    if (status == EXIT_OK)
        status = rates_errors(&s->engine, RATES_LINEAR, &sample, ordered, bandwidth, errors[0], error);
    if (status == EXIT_OK)
        status = rates_errors(&smaller, RATES_LINEAR, &sample, ordered, bandwidth, errors[1], error);
    rates_sample_free(&sample);
    for (int v = 0; v < RATES_DRAWS && status == EXIT_OK; v++)
        *effect = fmax(*effect, fabs(errors[1][RATES_WHOLE][v] / errors[0][RATES_WHOLE][v] - 1));
    return status;
}

int rates_sweep_run(rates_sweep *s, io_error *error)
{
    progress bar;
    progress_begin(&bar, "experiment", s->least * 2 * RATES_EVALUATIONS * pairs_of_all(s));
    for (int i = 0; i < s->cell_count; i++)
        s->cells[i].most = s->most;
    int status = run_rounds(s, &bar, error);
    if (status == EXIT_OK && s->validate) status = validate_all(s, &bar, error);
    s->ridge_effect = 0;
    for (int i = 0; i < s->cell_count && status == EXIT_OK; i++)
        status = try_ridge(s, &s->cells[i], &s->ridge_effect, error);
    progress_end(&bar);
    return status;
}

void rates_sweep_free(rates_sweep *s)
{
    for (int i = 0; i < s->cell_count; i++)
        rates_cell_free(&s->cells[i]);
    s->cell_count = 0;
}
