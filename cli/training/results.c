/* SPDX-License-Identifier: MIT */
#include "cli/training/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t most_of(const plan *p)
{
    int64_t most = 0;
    for (int64_t run = 0; run < plan_runs(p);) {
        const plan_stack stack = plan_stack_at(p, run);
        const trainer_options options = plan_options(p, stack);
        const int64_t tests = (options.steps + options.test_every - 1) / options.test_every;
        if (tests > most) most = tests;
        run += stack.count;
    }
    return most;
}

int results_open(results *r, const plan *p, io_error *error)
{
    const size_t runs = (size_t)plan_runs(p);
    *r = (results){ .plan = p, .most = most_of(p) };
    const size_t all = runs * (size_t)r->most;
    r->counts = calloc(runs, sizeof *r->counts);
    r->records = calloc(all, sizeof *r->records);
    r->times = calloc(all, sizeof *r->times);
    if (r->counts && r->records && r->times) return EXIT_OK;
    results_close(r);
    return io_fail(error, EXIT_INTERNAL, "out of memory for the results of %zu runs", runs);
}

void results_close(results *r)
{
    free(r->counts);
    free(r->records);
    free(r->times);
    *r = (results){ 0 };
}

train_record *results_record(const results *r, int64_t run, int64_t test)
{
    return &r->records[run * r->most + test];
}

bool results_are_errors(const plan *p) { return p->task == TRAIN_REGRESSION; }

bool results_better(const plan *p, double a, double b) { return results_are_errors(p) ? a < b : a > b; }

static int64_t run_of(const results *r, int mechanism, int cell, int rate, int seed)
{
    return plan_run_number(r->plan, (plan_run){ mechanism, cell, rate, seed });
}

/* Of a run that stopped: what it came to. */
static const train_record *record_at(const results *r, int64_t run, int64_t test)
{
    return results_record(r, run, test < r->counts[run] ? test : r->counts[run] - 1);
}

static double mean_of_parts(const results *r, int cell, const train_record *record)
{
    const int parts = plan_parts(r->plan, &r->plan->cells[cell]);
    double sum = 0;
    for (int part = 0; part < parts; part++)
        sum += record->part[part];
    return sum / parts;
}

/* Over seeds. */
static double mean_at(const results *r, int mechanism, int cell, int rate, int64_t test)
{
    double sum = 0;
    for (int seed = 0; seed < r->plan->seed_count; seed++)
        sum += mean_of_parts(r, cell, record_at(r, run_of(r, mechanism, cell, rate, seed), test));
    return sum / r->plan->seed_count;
}

int results_rate(const results *r, int mechanism, int cell)
{
    int best = 0;
    for (int rate = 1; rate < r->plan->rate_count; rate++)
        if (results_better(r->plan, mean_at(r, mechanism, cell, rate, r->most),
                           mean_at(r, mechanism, cell, best, r->most)))
            best = rate;
    return best;
}

/* Of the seeds' last values, of which each alone has its standard error over test examples. */
static result_value over_seeds(const double *values, const double *errors, int seeds)
{
    double mean = 0, spread = 0;
    for (int i = 0; i < seeds; i++)
        mean += values[i] / seeds;
    for (int i = 0; i < seeds; i++)
        spread += (values[i] - mean) * (values[i] - mean);
    return (result_value){ mean, seeds > 1 ? sqrt(spread / (seeds * (seeds - 1.0))) : errors[0] };
}

result_value results_part(const results *r, int mechanism, int cell, int part)
{
    const int rate = results_rate(r, mechanism, cell);
    double values[PLAN_SEEDS], errors[PLAN_SEEDS];
    for (int seed = 0; seed < r->plan->seed_count; seed++) {
        const train_record *last = record_at(r, run_of(r, mechanism, cell, rate, seed), r->most);
        values[seed] = last->part[part];
        errors[seed] = last->error[part];
    }
    return over_seeds(values, errors, r->plan->seed_count);
}

result_value results_mean(const results *r, int mechanism, int cell)
{
    const int rate = results_rate(r, mechanism, cell), parts = plan_parts(r->plan, &r->plan->cells[cell]);
    double values[PLAN_SEEDS], errors[PLAN_SEEDS];
    for (int seed = 0; seed < r->plan->seed_count; seed++) {
        const train_record *last = record_at(r, run_of(r, mechanism, cell, rate, seed), r->most);
        double squares = 0;
        for (int part = 0; part < parts; part++)
            squares += last->error[part] * last->error[part];
        values[seed] = mean_of_parts(r, cell, last);
        errors[seed] = sqrt(squares) / parts;
    }
    return over_seeds(values, errors, r->plan->seed_count);
}

int64_t results_tests(const results *r, int mechanism, int cell)
{
    const int rate = results_rate(r, mechanism, cell);
    int64_t most = 0;
    for (int seed = 0; seed < r->plan->seed_count; seed++) {
        const int64_t count = r->counts[run_of(r, mechanism, cell, rate, seed)];
        if (count > most) most = count;
    }
    return most;
}

double results_at(const results *r, int mechanism, int cell, int64_t test, double *step)
{
    const int rate = results_rate(r, mechanism, cell);
    *step = 0;
    for (int seed = 0; seed < r->plan->seed_count; seed++)
        *step = fmax(*step, record_at(r, run_of(r, mechanism, cell, rate, seed), test)->step);
    return mean_at(r, mechanism, cell, rate, test);
}

int64_t results_best_test(const results *r, int mechanism, int cell)
{
    const int rate = results_rate(r, mechanism, cell);
    int64_t best = 0;
    for (int64_t test = 1; test < results_tests(r, mechanism, cell); test++)
        if (results_better(r->plan, mean_at(r, mechanism, cell, rate, test),
                           mean_at(r, mechanism, cell, rate, best)))
            best = test;
    return best;
}

bool results_on_plateau(const results *r, int mechanism, int cell, int part)
{
    const double guess = 1 / (double)plan_size(r->plan, &r->plan->cells[cell], part);
    return !results_are_errors(r->plan) && results_part(r, mechanism, cell, part).mean < 2 * guess;
}

int results_find(const plan *p, const char *mechanism)
{
    for (int i = 0; i < p->mechanism_count; i++)
        if (strcmp(p->mechanisms[i].row->name, mechanism) == 0) return i;
    return -1;
}
