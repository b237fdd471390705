/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_cell.h"

#include <math.h>
#include <stdlib.h>

const rates_line rates_lines[RATES_LINES] = { { RATES_GLOBAL, false },
                                              { RATES_CONSTANT, false },
                                              { RATES_LINEAR, false },
                                              { RATES_CONSTANT, true },
                                              { RATES_LINEAR, true } };

/* Where the search for the least mean error begins, and how far from it single draws may have theirs. */
enum { START = 12, REACH = 4 };

double rates_bandwidth(const rates_task *task, int step)
{
    return 0.02 * pow(1.2, step) * pow((double)task->pairs, -1 / ((double)task->dim + 3.5));
}

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory"); }

/* ---- errors by bandwidth */

static int make_step(rates_cell *cell, rates_estimator which, int step, io_error *error)
{
    rates_curve *curve = &cell->curves[which];
    if (!curve->at[step]) curve->at[step] = calloc((size_t)cell->most, sizeof *curve->at[step]);
    return curve->at[step] ? EXIT_OK : no_memory(error);
}

/* One repetition at those of the steps that lack it. */
static int fill_repetition(rates_cell *cell, const rates_engine *engine, rates_estimator which, int first,
                           int last, int64_t repetition, progress *bar, io_error *error)
{
    rates_curve *curve = &cell->curves[which];
    rates_sample sample;
    int status = rates_sample_make(&sample, &cell->task, repetition, error);
    for (int step = first; step <= last && status == EXIT_OK; step++) {
        if (curve->done[step] != repetition) continue;
        status = rates_errors(engine, which, &sample, cell->task.setting == RATES_ORDERED,
                              rates_bandwidth(&cell->task, step), curve->at[step][repetition], error);
        curve->done[step]++;
        progress_add(bar, cell->task.pairs);
    }
    rates_sample_free(&sample);
    return status;
}

/* Steps beyond the grid are passed over. */
static int fill_steps(rates_cell *cell, const rates_engine *engine, rates_estimator which, int first,
                      int last, int64_t repetitions, progress *bar, io_error *error)
{
    if (first < 0) first = 0;
    if (last >= RATES_STEPS) last = RATES_STEPS - 1;
    int status = EXIT_OK;
    int64_t begun = repetitions;
    for (int step = first; step <= last && status == EXIT_OK; step++) {
        status = make_step(cell, which, step, error);
        if (cell->curves[which].done[step] < begun) begun = cell->curves[which].done[step];
    }
    for (int64_t r = begun; r < repetitions && status == EXIT_OK; r++)
        status = fill_repetition(cell, engine, which, first, last, r, bar, error);
    return status;
}

static double mean_draw(const double draws[RATES_DRAWS])
{
    double sum = 0;
    for (int v = 0; v < RATES_DRAWS; v++)
        sum += draws[v];
    return sum / RATES_DRAWS;
}

/* The least mean error, of the steps that have all repetitions. */
static int best_step(const rates_curve *curve, rates_region region, int64_t repetitions)
{
    int best = -1;
    double least = INFINITY;
    for (int step = 0; step < RATES_STEPS; step++) {
        double mean = 0;
        if (curve->done[step] < repetitions) continue;
        for (int64_t r = 0; r < repetitions; r++)
            mean += mean_draw(curve->at[step][r][region]) / (double)repetitions;
        if (best < 0 || mean < least) best = step, least = mean;
    }
    return best;
}

/* Until the best step has all its neighbours in reach. */
static int fill_region(rates_cell *cell, const rates_engine *engine, rates_estimator which,
                       rates_region region, int64_t repetitions, progress *bar, io_error *error)
{
    int status = EXIT_OK, centre = START, before = -1;
    while (status == EXIT_OK && centre != before) {
        status = fill_steps(cell, engine, which, centre - REACH, centre + REACH, repetitions, bar, error);
        before = centre;
        if (status == EXIT_OK) centre = best_step(&cell->curves[which], region, repetitions);
    }
    return status;
}

/* ---- what is chosen */

/* Each draw has the step that has its own least error in the region. */
static void choose_best(rates_cell *cell, int line, int64_t repetitions)
{
    const rates_estimator which = rates_lines[line].estimator;
    const rates_curve *curve = &cell->curves[which];
    for (int region = 0; region < RATES_REGIONS; region++) {
        double logs = 0;
        for (int64_t r = 0; r < repetitions; r++) {
            double sum = 0;
            for (int v = 0; v < RATES_DRAWS; v++) {
                int best = -1;
                for (int step = 0; step < RATES_STEPS; step++)
                    if (curve->done[step] >= repetitions &&
                        (best < 0 || curve->at[step][r][region][v] < curve->at[best][r][region][v]))
                        best = step;
                sum += curve->at[best][r][region][v];
                logs += log(rates_bandwidth(&cell->task, best));
            }
            cell->errors[line][r][region] = sum / RATES_DRAWS;
        }
        cell->bandwidth[line][region] = which == RATES_GLOBAL
                                            ? NAN
                                            : exp(logs / (double)(repetitions * RATES_DRAWS));
    }
}

static int make_errors(rates_cell *cell, int line, io_error *error)
{
    if (!cell->errors[line]) cell->errors[line] = calloc((size_t)cell->most, sizeof *cell->errors[line]);
    return cell->errors[line] ? EXIT_OK : no_memory(error);
}

int rates_cell_fill(rates_cell *cell, const rates_engine *engine, int line, int64_t repetitions,
                    progress *bar, io_error *error)
{
    const rates_estimator which = rates_lines[line].estimator;
    int status = make_errors(cell, line, error);
    if (status == EXIT_OK && which == RATES_GLOBAL)
        status = fill_steps(cell, engine, which, 0, 0, repetitions, bar, error);
    for (int r = 0; r < RATES_REGIONS && status == EXIT_OK && which != RATES_GLOBAL; r++)
        status = fill_region(cell, engine, which, (rates_region)r, repetitions, bar, error);
    if (status == EXIT_OK) choose_best(cell, line, repetitions);
    return status;
}

/* ---- cross-validation */

/* The step that has the least score for each draw, of those that the oracle has. */
static int choose_steps(const rates_cell *cell, const rates_engine *engine, rates_estimator which,
                        const rates_sample *sample, int64_t repetitions, int chosen[RATES_DRAWS],
                        io_error *error)
{
    double least[RATES_DRAWS], scores[RATES_DRAWS];
    for (int v = 0; v < RATES_DRAWS; v++)
        least[v] = INFINITY;
    for (int step = 0; step < RATES_STEPS; step++) {
        if (cell->curves[which].done[step] < repetitions) continue;
        const int status = rates_cross_validate(engine, which, sample, rates_bandwidth(&cell->task, step),
                                                scores, error);
        if (status != EXIT_OK) return status;
        for (int v = 0; v < RATES_DRAWS; v++)
            if (scores[v] <= least[v]) chosen[v] = step, least[v] = scores[v];
    }
    return EXIT_OK;
}

static int validate_repetition(rates_cell *cell, const rates_engine *engine, int line, int64_t repetitions,
                               int64_t repetition, double *logs, io_error *error)
{
    const rates_estimator which = rates_lines[line].estimator;
    rates_sample sample;
    int chosen[RATES_DRAWS] = { 0 };
    int status = rates_sample_make(&sample, &cell->task, repetition, error);
    if (status == EXIT_OK) status = choose_steps(cell, engine, which, &sample, repetitions, chosen, error);
    rates_sample_free(&sample);
    for (int region = 0; region < RATES_REGIONS && status == EXIT_OK; region++) {
        double draws[RATES_DRAWS];
        for (int v = 0; v < RATES_DRAWS; v++)
            draws[v] = cell->curves[which].at[chosen[v]][repetition][region][v];
        cell->errors[line][repetition][region] = mean_draw(draws);
    }
    for (int v = 0; v < RATES_DRAWS; v++)
        *logs += log(rates_bandwidth(&cell->task, chosen[v]));
    return status;
}

int rates_cell_validate(rates_cell *cell, const rates_engine *engine, int line, int64_t repetitions,
                        progress *bar, io_error *error)
{
    double logs = 0;
    int status = make_errors(cell, line, error);
    for (int64_t r = 0; r < repetitions && status == EXIT_OK; r++) {
        status = validate_repetition(cell, engine, line, repetitions, r, &logs, error);
        progress_add(bar, cell->task.pairs * RATES_EVALUATIONS);
    }
    for (int region = 0; region < RATES_REGIONS; region++)
        cell->bandwidth[line][region] = exp(logs / (double)(repetitions * RATES_DRAWS));
    return status;
}

void rates_cell_free(rates_cell *cell)
{
    for (int which = 0; which < RATES_ESTIMATORS; which++)
        for (int step = 0; step < RATES_STEPS; step++)
            free(cell->curves[which].at[step]);
    for (int line = 0; line < RATES_LINES; line++)
        free(cell->errors[line]);
}
