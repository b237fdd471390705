/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_sweep.h"

#include "cli/progress.h"

#include <math.h>
#include <stdlib.h>

const rates_line rates_lines[RATES_LINES] = { { RATES_GLOBAL, false },
                                              { RATES_CONSTANT, false },
                                              { RATES_LINEAR, false },
                                              { RATES_CONSTANT, true },
                                              { RATES_LINEAR, true } };

/* Where the search for the best bandwidth begins, and how far from it cross-validation looks. */
enum { START = 12, REACH = 4 };

/* Evaluations of a line in most cells, for the progress bar alone. */
enum { EVALUATIONS = 6 };

double rates_bandwidth(const rates_task *task, int step)
{
    return 0.02 * pow(1.2, step) * pow((double)task->pairs, -1 / ((double)task->dim + 3.5));
}

double rates_theory(const rates_task *task, rates_estimator which, rates_region region)
{
    const double d = (double)task->dim;
    if (which == RATES_GLOBAL) return 0;
    if (which == RATES_LINEAR) return -4 / (d + 4);
    if (task->setting == RATES_ORDERED) return -2 / (d + 2);
    return region == RATES_WHOLE ? -3 / (d + 3) : -4 / (d + 4);
}

int rates_line_count(const rates_sweep *s) { return s->validate ? RATES_LINES : RATES_ORACLES; }

/* ---- means over repetitions */

static double error_of(const rates_curve *curve, int step, rates_region region, int64_t repetition)
{
    double sum = 0;
    for (int v = 0; v < RATES_DRAWS; v++)
        sum += curve->at[step][repetition][region][v];
    return sum / RATES_DRAWS;
}

/* But for repetition `without`; -1: of all. */
static double mean_of(const rates_sweep *s, const rates_curve *curve, int step, rates_region region,
                      int64_t without)
{
    double sum = 0;
    for (int64_t r = 0; r < s->repetitions; r++)
        if (r != without) sum += error_of(curve, step, region, r);
    return sum / (double)(s->repetitions - (without >= 0));
}

/* Of the steps that have all repetitions. */
static int best_step(const rates_sweep *s, const rates_curve *curve, rates_region region, int64_t without)
{
    int best = -1;
    double least = INFINITY;
    for (int step = 0; step < RATES_STEPS; step++) {
        if (curve->done[step] < s->repetitions) continue;
        const double mean = mean_of(s, curve, step, region, without);
        if (best < 0 || mean < least) best = step, least = mean;
    }
    return best;
}

/* ---- filling the curves */

static int make_room(const rates_sweep *s, rates_curve *curve, int step, io_error *error)
{
    if (!curve->at[step]) curve->at[step] = calloc((size_t)s->most, sizeof *curve->at[step]);
    return curve->at[step] ? EXIT_OK : io_fail(error, EXIT_INTERNAL, "out of memory");
}

static int fill_step(const rates_sweep *s, rates_cell *cell, int line, int step, progress *bar,
                     io_error *error)
{
    rates_curve *curve = &cell->curves[line];
    if (step < 0 || step >= RATES_STEPS) return EXIT_OK;
    int status = make_room(s, curve, step, error);
    while (status == EXIT_OK && curve->done[step] < s->repetitions) {
        rates_sample sample;
        status = rates_sample_make(&sample, &cell->task, curve->done[step], error);
        if (status == EXIT_OK)
            status = rates_errors(&s->engine, rates_lines[line].estimator, &sample,
                                  cell->task.setting == RATES_ORDERED, rates_bandwidth(&cell->task, step),
                                  curve->at[step][curve->done[step]], error);
        rates_sample_free(&sample);
        curve->done[step]++;
        progress_add(bar, cell->task.pairs);
    }
    return status;
}

/* Downhill until both neighbours of the best step are worse. */
static int bracket(const rates_sweep *s, rates_cell *cell, int line, rates_region region, progress *bar,
                   io_error *error)
{
    const rates_curve *curve = &cell->curves[line];
    int best = -1, status = EXIT_OK;
    while (status == EXIT_OK && best_step(s, curve, region, -1) != best) {
        best = best_step(s, curve, region, -1);
        status = fill_step(s, cell, line, best - 1, bar, error);
        if (status == EXIT_OK) status = fill_step(s, cell, line, best + 1, bar, error);
    }
    return status;
}

/* Steps of earlier rounds get the repetitions that they lack. */
static int fill_line(const rates_sweep *s, rates_cell *cell, int line, progress *bar, io_error *error)
{
    const bool local = rates_lines[line].estimator != RATES_GLOBAL;
    int status = fill_step(s, cell, line, local ? START : 0, bar, error);
    for (int step = 0; step < RATES_STEPS && status == EXIT_OK; step++)
        if (cell->curves[line].done[step] > 0) status = fill_step(s, cell, line, step, bar, error);
    for (int r = 0; r < RATES_REGIONS && status == EXIT_OK && local; r++)
        status = bracket(s, cell, line, (rates_region)r, bar, error);
    return status;
}

static int fill_oracles(const rates_sweep *s, rates_cell *cell, progress *bar, io_error *error)
{
    int status = EXIT_OK;
    for (int line = 0; line < RATES_ORACLES && status == EXIT_OK; line++)
        status = fill_line(s, cell, line, bar, error);
    return status;
}

/* ---- cross-validation */

static int oracle_of(int line) { return (int)rates_lines[line].estimator; }

/* Each draw takes the step of the window with the least score. */
static int choose_steps(const rates_sweep *s, const rates_cell *cell, int line, const int window[2],
                        const rates_sample *sample, int chosen[RATES_DRAWS], io_error *error)
{
    double least[RATES_DRAWS], scores[RATES_DRAWS];
    for (int step = window[0]; step <= window[1]; step++) {
        const int status = rates_cross_validate(&s->engine, rates_lines[line].estimator, sample,
                                                rates_bandwidth(&cell->task, step), scores, error);
        if (status != EXIT_OK) return status;
        for (int v = 0; v < RATES_DRAWS; v++)
            if (step == window[0] || scores[v] < least[v]) chosen[v] = step, least[v] = scores[v];
    }
    return EXIT_OK;
}

static int validate_repetition(const rates_sweep *s, rates_cell *cell, int line, const int window[2],
                               int64_t repetition, io_error *error)
{
    const rates_curve *oracle = &cell->curves[oracle_of(line)];
    rates_sample sample;
    int chosen[RATES_DRAWS];
    int status = rates_sample_make(&sample, &cell->task, repetition, error);
    if (status == EXIT_OK) status = choose_steps(s, cell, line, window, &sample, chosen, error);
    rates_sample_free(&sample);
    for (int v = 0; v < RATES_DRAWS && status == EXIT_OK; v++) {
        for (int r = 0; r < RATES_REGIONS; r++)
            cell->curves[line].at[0][repetition][r][v] = oracle->at[chosen[v]][repetition][r][v];
        cell->log_bandwidth[line] += log(rates_bandwidth(&cell->task, chosen[v])) /
                                     (double)(s->repetitions * RATES_DRAWS);
    }
    return status;
}

static int validate_line(const rates_sweep *s, rates_cell *cell, int line, progress *bar, io_error *error)
{
    const int best = best_step(s, &cell->curves[oracle_of(line)], RATES_WHOLE, -1);
    const int window[2] = { best > REACH ? best - REACH : 0,
                            best + REACH < RATES_STEPS ? best + REACH : RATES_STEPS - 1 };
    int status = make_room(s, &cell->curves[line], 0, error);
    for (int step = window[0]; step <= window[1] && status == EXIT_OK; step++)
        status = fill_step(s, cell, oracle_of(line), step, bar, error);
    for (int64_t r = 0; r < s->repetitions && status == EXIT_OK; r++) {
        status = validate_repetition(s, cell, line, window, r, error);
        progress_add(bar, cell->task.pairs * (2 * REACH + 1));
    }
    cell->curves[line].done[0] = s->repetitions;
    return status;
}

/* ---- slopes */

/* Of least squares, log error on log n. */
static double slope_without(const rates_sweep *s, int line, rates_region region, int64_t without)
{
    double x_mean = 0, y_mean = 0, xx = 0, xy = 0, x[EXPERIMENT_LIST], y[EXPERIMENT_LIST];
    for (int i = 0; i < s->cell_count; i++) {
        const rates_curve *curve = &s->cells[i].curves[line];
        const int best = best_step(s, curve, region, without);
        x[i] = log((double)s->cells[i].task.pairs);
        y[i] = log(mean_of(s, curve, best, region, without));
        x_mean += x[i] / s->cell_count, y_mean += y[i] / s->cell_count;
    }
    for (int i = 0; i < s->cell_count; i++) {
        xx += (x[i] - x_mean) * (x[i] - x_mean);
        xy += (x[i] - x_mean) * (y[i] - y_mean);
    }
    return xy / xx;
}

/* The jackknife. */
rates_slope rates_slope_of(const rates_sweep *s, int line, rates_region region)
{
    const double count = (double)s->repetitions;
    double mean = 0, spread = 0;
    for (int64_t r = 0; r < s->repetitions; r++) {
        const double slope = slope_without(s, line, region, r), step = slope - mean;
        mean += step / (double)(r + 1);
        spread += step * (slope - mean);
    }
    return (rates_slope){ slope_without(s, line, region, -1), sqrt(spread * (count - 1) / count) };
}

rates_point rates_point_of(const rates_sweep *s, int cell, int line, rates_region region)
{
    const rates_curve *curve = &s->cells[cell].curves[line];
    const int best = best_step(s, curve, region, -1);
    const double mean = mean_of(s, curve, best, region, -1), count = (double)s->repetitions;
    double spread = 0;
    for (int64_t r = 0; r < s->repetitions; r++) {
        const double away = error_of(curve, best, region, r) - mean;
        spread += away * away;
    }
    const double bandwidth = rates_lines[line].estimator == RATES_GLOBAL ? NAN
                             : rates_lines[line].validated ? exp(s->cells[cell].log_bandwidth[line])
                                                           : rates_bandwidth(&s->cells[cell].task, best);
    return (rates_point){ mean, sqrt(spread / (count * (count - 1))), bandwidth };
}

/* ---- the sweep */

static double worst_deviation(const rates_sweep *s)
{
    double worst = 0;
    for (int line = 0; line < RATES_ORACLES; line++)
        worst = fmax(worst, rates_slope_of(s, line, RATES_WHOLE).deviation);
    return worst;
}

/* Standard errors fall with the square root of the repetitions: as many as should do, and some. */
static int64_t more_repetitions(const rates_sweep *s, double deviation)
{
    const double ratio = deviation / s->tolerance, wanted = 1.1 * (double)s->repetitions * ratio * ratio;
    const int64_t more = s->repetitions + s->least / 3 + 1;
    return wanted >= (double)s->most ? s->most
           : wanted > (double)more   ? (int64_t)wanted
           : more < s->most          ? more
                                     : s->most;
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
    int status = EXIT_OK;
    for (s->repetitions = s->least; status == EXIT_OK;) {
        for (int i = 0; i < s->cell_count && status == EXIT_OK; i++)
            status = fill_oracles(s, &s->cells[i], bar, error);
        if (status != EXIT_OK || s->repetitions >= s->most) return status;
        const double deviation = worst_deviation(s);
        if (deviation <= s->tolerance) return EXIT_OK;
        const int64_t before = s->repetitions;
        s->repetitions = more_repetitions(s, deviation);
        bar->total += (s->repetitions - before) * 2 * EVALUATIONS * pairs_of_all(s);
    }
    return status;
}

int rates_sweep_run(rates_sweep *s, io_error *error)
{
    progress bar;
    progress_begin(&bar, "experiment", s->least * 2 * EVALUATIONS * pairs_of_all(s));
    int status = run_rounds(s, &bar, error);
    if (s->validate) bar.total += s->repetitions * 2 * (2 * REACH + 1) * pairs_of_all(s);
    for (int i = 0; i < s->cell_count && status == EXIT_OK; i++)
        for (int line = RATES_ORACLES; line < rates_line_count(s) && status == EXIT_OK; line++)
            status = validate_line(s, &s->cells[i], line, &bar, error);
    progress_end(&bar);
    return status;
}

void rates_sweep_free(rates_sweep *s)
{
    for (int i = 0; i < s->cell_count; i++)
        for (int line = 0; line < RATES_LINES; line++)
            for (int step = 0; step < RATES_STEPS; step++)
                free(s->cells[i].curves[line].at[step]);
    s->cell_count = 0;
}
