/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/graft/run.h"

#include "cli/lm/lm.h"
#include "cli/progress.h"
#include "lm/pretrained.h"
#include "train/checkpoint.h"
#include "train/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a window: a step passes over it three times, forward, and backward by twice as much work. */
enum { PASSES = 3, TOLD_AFTER = 3 };

typedef struct runner {
    const graft_runner *with;
    graft_results *results;
    progress bar;
    double begun, end;
    int64_t steps; /* since it began */
    bool told, over;
    io_error *error;
} runner;

static int failed(const loam_error *from, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "%s", from->text);
}

/* ---- losses */

/* Windows first .. first + count - 1 of those held out: sums over their tokens. */
static int score_batch(trainer *t, int64_t first, int64_t count, double *nll, io_error *error)
{
    const matrix each = model_results(t->net);
    const int64_t length = source_length(&t->options.shape.from);
    loam_error reason;
    for (int64_t i = 0; i < t->options.shape.batch; i++)
        t->examples[i] = (int32_t)(first + (i < count ? i : count - 1));
    batch_fill(&t->data, 0, &t->options.shape.from, t->each->seed, TRAIN_SPLIT_TEST, t->examples);
    batch_send(&t->data);
    loam_status status = model_test(t->net, &t->data, &reason);
    const size_t bytes = (size_t)(matrix_elements(each) * matrix_bytes_each(each));
    if (!status) status = machine_download(t->on, t->host, each.data, bytes, &reason);
    for (int64_t i = 0; i < count && !status; i++) {
        nll[i] = 0;
        for (int64_t row = i * length; row < (i + 1) * length; row++)
            nll[i] += (double)((const float *)t->host)[row * each.width];
    }
    return status ? failed(&reason, error) : 0;
}

static int score_all(runner *run, trainer *t, double *nll)
{
    const int64_t windows = run->results->plan->windows, batch = t->options.shape.batch;
    int status = 0;
    for (int64_t first = 0; first < windows && !status; first += batch) {
        const int64_t count = windows - first < batch ? windows - first : batch;
        status = score_batch(t, first, count, nll + first, run->error);
        progress_add(&run->bar, count);
    }
    return status;
}

/* How far the first windows of a model that was not trained are from those of the model as it is. */
static int find_away(runner *run, trainer *t, double *away)
{
    const graft_plan *p = run->results->plan;
    const double *as_it_is = graft_result_of(run->results, 0).nll;
    const int64_t batch = t->options.shape.batch, count = p->windows < batch ? p->windows : batch;
    double *nll = calloc((size_t)count, sizeof *nll);
    int status = nll ? score_batch(t, 0, count, nll, run->error)
                     : io_fail(run->error, EXIT_INTERNAL, "out of memory for losses");
    *away = 0;
    for (int64_t i = 0; i < count && !status; i++)
        *away = fmax(*away, fabs(nll[i] - as_it_is[i]) / (double)p->choice.context);
    free(nll);
    return status;
}

/* ---- what was learned */

/* Of each layer the numbers of its heads, from the array that ends so. */
static int take_values(const trainer *t, const char *ending, double *value, io_error *error)
{
    const int64_t heads = t->options.shape.heads;
    int count, status = 0;
    const parameter *list = model_parameters(t->net, &count);
    float *x = malloc((size_t)heads * sizeof *x);
    loam_error reason;
    if (!x) return io_fail(error, EXIT_INTERNAL, "out of memory for what was learned");
    for (int i = 0; i < count && !status; i++) {
        const char *dot = strchr(list[i].name, '.');
        if (!dot || strcmp(dot, ending) != 0) continue;
        if (machine_download(t->on, x, list[i].x.data, (size_t)heads * sizeof *x, &reason))
            status = failed(&reason, error);
        for (int64_t head = 0; head < heads && !status; head++)
            *value++ = (double)x[head];
    }
    free(x);
    return status;
}

static int take_learned(const runner *run, const trainer *t, int kind, const graft_result *to)
{
    const lm_config *c = run->results->plan->config;
    const int64_t all = c->layers * c->heads_q;
    int status = 0;
    if (graft_has_ridges(kind)) status = take_values(t, ".s", to->ridge, run->error);
    if (!status && graft_has_temperatures(kind)) status = take_values(t, ".t", to->temperature, run->error);
    for (int64_t i = 0; i < all; i++)
        to->ridge[i] = 1 / log1p(exp(to->ridge[i])), to->temperature[i] += 1;
    for (int64_t layer = 0; layer < c->layers && kind == GRAFT_PARALLAX && !status; layer++) {
        probe_rows rows;
        loam_error reason;
        if (probe_measure(t->net, 0, layer, &rows, &reason)) status = failed(&reason, run->error);
        if (!status) to->negative[layer] = rows.negative;
    }
    return status;
}

static void take_curve(const graft_results *r, const trainer *t, const graft_result *to)
{
    const double step_tokens = (double)(t->options.batches * t->options.shape.batch *
                                        source_length(&t->options.shape.from));
    double ns = 0;
    for (int64_t i = 0; i < r->tests; i++) {
        const train_record *record = trainer_record(t, 0, i);
        double *at = to->curve + i * GRAFT_CURVE;
        at[GRAFT_STEP] = record->step, at[GRAFT_TRAIN] = record->train_loss;
        at[GRAFT_TEST] = record->test_loss, at[GRAFT_LENGTH] = record->gradient;
        ns += t->times[i];
    }
    *to->seconds = 1e-9 * ns / (double)r->tests * step_tokens;
}

static double count_moved(const trainer *t)
{
    int count;
    int64_t sum = 0;
    const parameter *list = model_parameters(t->net, &count);
    for (int i = 0; i < count; i++)
        if (!list[i].frozen) sum += matrix_elements(list[i].x);
    return (double)sum;
}

/* ---- a run */

/* Where standard error is no terminal that shows it, an estimate after the first steps. */
static void watch(void *with, const trainer *t, bool tested)
{
    runner *run = with;
    (void)tested;
    progress_add(&run->bar, PASSES * t->options.batches * t->options.shape.batch);
    if (run->told || ++run->steps < TOLD_AFTER) return;
    run->told = true;
    const double left = (double)(run->bar.total - run->bar.done);
    printf("About %.1f minutes left.\n", (lm_seconds() - run->begun) / 60 * left / (double)run->bar.done);
    fflush(stdout);
}

static void path_of(const runner *run, int64_t number, char path[EXPERIMENT_PATH])
{
    const int64_t seed = run->results->plan->choice.seeds.items[graft_run_seed(number)];
    snprintf(path, EXPERIMENT_PATH, "%s/state-%s-%" PRId64 ".safetensors", run->with->directory,
             graft_name(graft_run_kind(number)), seed);
}

static void tell(const graft_results *r, int64_t number)
{
    const graft_plan *p = r->plan;
    const double all = (double)(p->windows * p->choice.context);
    double nll = 0;
    for (int64_t i = 0; i < p->windows; i++)
        nll += graft_result_of(r, number).nll[i];
    if (number == 0)
        printf("%-14s %8s %12.5f\n", "as it is", "", nll / all);
    else
        printf("%-14s %8" PRId64 " %12.5f\n", graft_name(graft_run_kind(number)),
               p->choice.seeds.items[graft_run_seed(number)], nll / all);
    fflush(stdout);
}

/* What a finished run leaves; its numbers count from the moment that the first loss is there. */
static int finish(runner *run, trainer *t, int64_t number)
{
    const graft_result to = graft_result_of(run->results, number);
    const int kind = graft_run_kind(number);
    const int64_t windows = run->results->plan->windows;
    double *nll = calloc((size_t)windows, sizeof *nll);
    int status = nll ? score_all(run, t, nll)
                     : io_fail(run->error, EXIT_INTERNAL, "out of memory for losses");
    if (!status) status = take_learned(run, t, kind, &to);
    if (!status) {
        if (kind != GRAFT_NONE) take_curve(run->results, t, &to);
        *to.moved = count_moved(t);
        memcpy(to.nll, nll, (size_t)windows * sizeof *nll);
        status = graft_results_save(run->results, run->with->state, run->error);
    }
    free(nll);
    return status;
}

static int train(runner *run, trainer *t, int64_t number)
{
    char path[EXPERIMENT_PATH];
    int status = find_away(run, t, graft_result_of(run->results, number).away);
    path_of(run, number, path);
    if (run->with->restart && unlink(path) && errno != ENOENT)
        return io_fail(run->error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
    t->watch = watch, t->with = run;
    if (!status) status = checkpoint_run(t, path, run->with->interval, run->end - lm_seconds(), run->error);
    run->over = !status && !trainer_finished(t);
    if (status || run->over) return status;
    status = finish(run, t, number);
    if (!status) unlink(path);
    return status;
}

static int run_one(runner *run, int64_t number)
{
    const graft_plan *p = run->results->plan;
    const int kind = graft_run_kind(number);
    const uint64_t seed = (uint64_t)p->choice.seeds.items[graft_run_seed(number)];
    const trainee one = graft_trainee(p, kind, seed);
    trainer_options options;
    trainer t;
    loam_error reason;
    int status = graft_options(p, kind, run->with->from, &options, run->error);
    if (status) return status;
    if (trainer_open(&t, run->with->on, &options, &one, 1, &reason)) return failed(&reason, run->error);
    status = lm_pretrained_fill(t.net, run->with->on, run->with->files, run->error);
    if (!status) status = kind == GRAFT_NONE ? finish(run, &t, number) : train(run, &t, number);
    trainer_close(&t);
    if (!status && !run->over) tell(run->results, number);
    return status;
}

static int64_t cost_of(const graft_plan *p, int64_t number)
{
    return p->windows + (number > 0 ? PASSES * p->choice.steps * p->choice.batch : 0);
}

int graft_run(const graft_runner *with, graft_results *r, bool *whole, io_error *error)
{
    runner run = { .with = with, .results = r, .begun = lm_seconds(), .error = error };
    int64_t cost = 0, left = 0;
    int status = 0;
    run.end = run.begun + with->seconds;
    for (int64_t number = 0; number < graft_runs(r->plan); number++)
        if (graft_run_chosen(r->plan, number) && !graft_finished(r, number))
            cost += cost_of(r->plan, number), left++;
    if (left > 0) printf("%" PRId64 " runs\n%-14s %8s %12s\n", left, "what moves", "seed", "NLL held out");
    progress_begin(&run.bar, "experiment", cost);
    for (int64_t number = 0; number < graft_runs(r->plan) && !status && !run.over; number++) {
        if (!graft_run_chosen(r->plan, number) || graft_finished(r, number)) continue;
        run.over = lm_seconds() >= run.end;
        if (!run.over) status = run_one(&run, number);
        if (!status && !run.over) left--;
    }
    progress_end(&run.bar);
    *whole = !status && left == 0;
    return status;
}
