/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/sweep.h"

#include "cli/distill/kept.h"
#include "cli/distill/measure.h"
#include "cli/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBE_STEPS = 4 };

typedef struct sweep {
    const distill_sweep_options *with;
    const course *course;
    cells *cells;
    char state[EXPERIMENT_PATH];
    lm_session session;
    ridge_plan plan;
    trial trial;
    distillation from;
    shares by[COURSE_STRATEGIES]; /* as they are wanted */
    double step, window;          /* seconds of one, as measured when it begins */
    double begun, expected,
        past; /* seconds that cells should take in all, and that those that are done should have */
    progress bar;
    bool over; /* the time is */
} sweep;

static void count_one(void *bar) { progress_add(bar, 1); }

/* ---- files */

static const char *path_of(const sweep *s, const cell *one, char path[EXPERIMENT_PATH])
{
    snprintf(path, EXPERIMENT_PATH, "%s/training-%d-%s-%s-%" PRId64 ".safetensors", s->with->directory,
             s->with->number, strategy_name(one->strategy), course_loss(one->loss), one->seed);
    return path;
}

static int discard(const char *path, io_error *error)
{
    if (unlink(path) == 0 || errno == ENOENT) return 0;
    return io_fail(error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
}

static void measured_path(const sweep *s, char path[EXPERIMENT_PATH])
{
    snprintf(path, EXPERIMENT_PATH, "%s/measured-%d", s->with->directory, s->with->number);
}

/* Checkpoints of cells: all of them, or, of a run that was killed between the two, those that are done. */
static int discard_checkpoints(const sweep *s, bool all, io_error *error)
{
    char path[EXPERIMENT_PATH], point[EXPERIMENT_PATH + 32];
    int status = 0;
    for (int i = 0; !status && i < s->cells->count; i++) {
        const cell *one = &s->cells->list[i];
        if (one->loss >= 0 && (all || cell_done(one))) status = discard(path_of(s, one, path), error);
    }
    measured_path(s, path);
    for (int64_t n = s->course->budget.unit; !status && all && n <= s->course->budget.most; n *= 2) {
        snprintf(point, sizeof point, "%s-%" PRId64 ".safetensors", path, n);
        status = discard(point, error);
    }
    return status;
}

/* ---- opening */

static void describe(const sweep *s)
{
    char own[COURSE_LINE], read[RIDGE_LINE], name[MACHINE_NAME];
    course_describe(s->course, own);
    ridge_describe(&s->plan, read);
    snprintf(s->cells->line, CELL_LINE, "loam %s; %s of %" PRId64 " bytes, %s; %s; %s; %s, %s",
             loam_version(), s->cells->model, lm_files_bytes(s->session.files),
             lm_files_type(s->session.files), own, read, loam_cpu_features(),
             machine_name(&s->session.on, name));
}

static int open_cells(sweep *s, io_error *error)
{
    cells *const c = s->cells;
    int status = cells_open(c, lm_model_config(s->session.model)->layers, s->plan.window_count, error);
    for (int64_t n = 0; !status && n < c->windows; n++)
        c->tokens[n] = s->plan.windows[n].at.scored, c->text[n] = s->plan.windows[n].text;
    if (!status) describe(s);
    if (!status) status = cells_choose(c, s->course, error);
    if (!status && s->with->restart) status = discard(s->state, error);
    if (!status && s->with->restart) status = discard_checkpoints(s, true, error);
    if (!status) status = kept_load(c, s->state, error);
    return status ? status : discard_checkpoints(s, false, error);
}

static int open_model(sweep *s, io_error *error)
{
    const char *const path = s->with->model;
    const ridge_choice choice = { .context = s->course->context, .tokens = s->course->tokens };
    int status = lm_session_open(&s->session, path, s->with->words, error);
    if (!status) status = distillation_check(&s->session, path, error);
    if (!status && lm_model_config(s->session.model)->architecture == LM_BERT)
        status = io_fail(error, EXIT_USAGE, "%s: it is an encoder; expected a model that predicts", path);
    lm_model_name(path, s->cells->model);
    if (!status)
        status = ridge_plan_open(&s->plan, &choice, s->session.model, s->session.tokens, s->course->texts,
                                 error);
    return status ? status : open_cells(s, error);
}

/* What cells take; its tokens are those that the file was made with. */
static int open_calibration(sweep *s, io_error *error)
{
    const course *c = s->course;
    const distillation_choice choice = { c->calibration, c->windows, c->context, c->budget.mean, false };
    int status = trial_open(&s->trial, &s->plan, s->session.model, error);
    if (!status) status = distillation_open(&s->from, &s->session, &choice, error);
    if (status) return status;
    if (s->cells->checksum && s->cells->checksum != s->from.checksum)
        return io_fail(error, EXIT_INPUT, "%s is of a run with another calibration: --restart discards it",
                       s->state);
    s->cells->checksum = s->from.checksum;
    return kept_save(s->cells, s->state, error);
}

/* ---- features */

static int keep_rises(void *to, io_error *error)
{
    const sweep *s = to;
    return kept_save(s->cells, s->state, error);
}

/* The time may be over before. */
static int share(sweep *s, int how, io_error *error)
{
    const course *c = s->course;
    char path[EXPERIMENT_PATH];
    bool whole;
    measured_path(s, path);
    strategy_problem p = { .how = strategy_at(how),
                           .budget = c->budget,
                           .from = &s->from,
                           .seed = (uint64_t)c->seeds.items[0],
                           .measured = { .windows = c->measured_windows,
                                         .fit = { .options = c->training,
                                                  .path = path,
                                                  .interval = s->with->interval,
                                                  .end = s->with->end },
                                         .rises = s->cells->rises,
                                         .keep = keep_rises,
                                         .to = s } };
    p.measured.fit.options.steps = c->measured_steps;
    if (s->by[how].features) return 0;
    const int status = strategy_share(&p, &s->by[how], &whole, error);
    s->over = !status && !whole;
    return status;
}

static int train(sweep *s, const cell *one, student *of, io_error *error)
{
    char path[EXPERIMENT_PATH], label[CELL_LABEL];
    fit by = {
        s->course->training, path_of(s, one, path), s->with->interval, s->with->end, count_one, &s->bar
    };
    bool whole;
    by.options.loss = (feature_loss_kind)one->loss, by.options.seed = (uint64_t)one->seed;
    progress_begin(&s->bar, cell_label(one, label), by.options.steps);
    const int status = fit_run(&s->from, of, &by, &whole, error);
    progress_end(&s->bar);
    s->over = !status && !whole;
    return status;
}

static int make_student(sweep *s, const cell *one, student *of, io_error *error)
{
    const distill_arm *const arm = distill_arm_at(one->arm);
    int status = share(s, one->strategy, error);
    if (status || s->over) return status;
    const shares *const by = &s->by[one->strategy];
    status = distillation_begin(&s->from, of, arm, by->features, by->used, (uint64_t)one->seed, error);
    return !status && one->loss >= 0 ? train(s, one, of, error) : status;
}

/* ---- cells */

/* Its numbers count from the moment that the first loss is there. */
static int finish(sweep *s, cell *one, double seconds, io_error *error)
{
    char path[EXPERIMENT_PATH];
    for (int64_t i = 0; one->strategy >= 0 && i < s->cells->layers; i++)
        one->features[i] = (double)s->by[one->strategy].features[i];
    *one->seconds = seconds;
    memcpy(one->nll, s->trial.sums[s->trial.count - 1], (size_t)s->cells->windows * sizeof *one->nll);
    trial_drop(&s->trial);
    const int status = kept_save(s->cells, s->state, error);
    return !status && one->loss >= 0 ? discard(path_of(s, one, path), error) : status;
}

static int run_cell(sweep *s, cell *one, io_error *error)
{
    const distill_arm *const arm = distill_arm_at(one->arm);
    const double begun = lm_seconds();
    student of = { 0 };
    int status = one->strategy >= 0 ? make_student(s, one, &of, error) : 0;
    if (!status && !s->over)
        status = measure_arm_of(&s->from, &s->trial, arm, one->strategy >= 0 ? &of : NULL, -1, 0, error);
    if (!status && !s->over) status = finish(s, one, lm_seconds() - begun, error);
    student_close(&of);
    return status;
}

/* ---- the plan */

/* Seconds of a step of all heads with as many features each, once what a first step takes is there. */
static int probe(sweep *s, io_error *error)
{
    const course *c = s->course;
    const distill_arm *const trained = distill_arm_at(distill_arm_find("trained"));
    const fit by = { .options = c->training, .end = INFINITY };
    fit few = by;
    student of = { 0 };
    bool whole;
    int status = share(s, 0, error);
    few.options.steps = PROBE_STEPS;
    if (!status) status = distillation_begin(&s->from, &of, trained, s->by[0].features, NULL, 1, error);
    for (int i = 0; !status && i < 2; i++) {
        const double begun = lm_seconds();
        status = fit_run(&s->from, &of, &few, &whole, error);
        s->step = (lm_seconds() - begun) / PROBE_STEPS;
    }
    student_close(&of);
    return status;
}

static double cost_of(const sweep *s, const cell *one)
{
    return (one->loss < 0 ? 0 : s->step * (double)s->course->training.steps) +
           s->window * (double)s->cells->windows;
}

/* The strategy that measures, where it has not yet. */
static double cost_of_measuring(const sweep *s)
{
    double cost = 0;
    int64_t n = s->course->budget.unit;
    for (int64_t point = 0; point < STRATEGY_POINTS && n <= s->course->budget.most; point++, n *= 2) {
        const double part = (double)n / (double)s->course->budget.mean;
        bool trained = true;
        for (int64_t layer = 0; layer < s->cells->layers; layer++) {
            const bool known = !isnan(s->cells->rises[layer * STRATEGY_POINTS + point]);
            if (!known) cost += s->window * (double)s->course->measured_windows;
            trained = trained && known;
        }
        if (!trained) cost += s->step * part * (double)s->course->measured_steps;
    }
    return cost;
}

static void tell_plan(sweep *s)
{
    const cells *c = s->cells;
    int64_t predicted = 0;
    int trained = 0, measured = 0;
    for (int64_t n = 0; n < c->windows; n++)
        predicted += c->tokens[n];
    for (int i = 0; i < c->count; i++) {
        const cell *one = &c->list[i];
        if (!one->chosen || cell_done(one)) continue;
        s->expected += cost_of(s, one);
        trained += one->loss >= 0;
        measured += one->strategy >= 0 && strcmp(strategy_name(one->strategy), "measured") == 0;
    }
    if (measured > 0) s->expected += cost_of_measuring(s);
    printf("%s: %d cell%s, of which %d train %" PRId64 " steps; %" PRId64 " windows of %" PRId64
           " tokens calibrate, %" PRId64 " tokens are predicted. About %.1f minutes.\n%-26s %10s %9s %9s\n",
           c->model, cells_left(c), cells_left(c) == 1 ? "" : "s", trained, s->course->training.steps,
           s->from.of.windows, s->course->context, predicted, s->expected / 60, "attention", "seed", "NLL",
           "minutes");
    fflush(stdout);
}

static void tell(sweep *s, const cell *one)
{
    char label[CELL_LABEL], seed[24] = "";
    double nll = 0, predicted = 0;
    for (int64_t n = 0; n < s->cells->windows; n++)
        nll += one->nll[n], predicted += (double)s->cells->tokens[n];
    if (one->seed > 0) snprintf(seed, sizeof seed, "%" PRId64, one->seed);
    printf("%-26s %10s %9.4f %9.1f", cell_label(one, label), seed, nll / predicted, *one->seconds / 60);
    const double left = s->expected - s->past;
    if (s->past > 0 && cells_left(s->cells) > 0)
        printf("   about %.1f left", fmax(left, 0) * (lm_seconds() - s->begun) / s->past / 60);
    putchar('\n');
    fflush(stdout);
}

/* Its first cell, whose time is that of windows, and a few steps, whose students are thrown away. */
static int begin(sweep *s, io_error *error)
{
    cell *const softmax = &s->cells->list[0];
    bool trains = false;
    const bool known = cell_done(softmax);
    int status = known ? 0 : run_cell(s, softmax, error);
    s->window = *softmax->seconds / (double)s->cells->windows;
    for (int i = 0; i < s->cells->count; i++)
        trains |= s->cells->list[i].chosen && s->cells->list[i].loss >= 0 && !cell_done(&s->cells->list[i]);
    if (!status && trains) status = probe(s, error);
    if (!status) tell_plan(s);
    if (!status && !known) tell(s, softmax);
    s->begun = lm_seconds();
    return status;
}

static int run_all(sweep *s, io_error *error)
{
    int status = begin(s, error);
    for (int i = 0; !status && !s->over && i < s->cells->count; i++) {
        cell *const one = &s->cells->list[i];
        const double measuring = one->strategy >= 0 && !s->by[one->strategy].features &&
                                         strcmp(strategy_name(one->strategy), "measured") == 0
                                     ? cost_of_measuring(s)
                                     : 0;
        if (!one->chosen || cell_done(one)) continue;
        s->over = lm_seconds() >= s->with->end;
        if (!s->over) status = run_cell(s, one, error);
        if (status || s->over) break;
        s->past += cost_of(s, one) + measuring;
        tell(s, one);
    }
    return status;
}

int distill_sweep_run(const distill_sweep_options *with, cells *c, bool *whole, io_error *error)
{
    sweep *const s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory");
    *s = (sweep){ .with = with, .course = with->course, .cells = c };
    snprintf(s->state, sizeof s->state, "%s/state-%d", with->directory, with->number);
    int status = open_model(s, error);
    const bool left = !status && cells_left(c) > 0;
    if (left) status = open_calibration(s, error);
    if (left && !status) status = run_all(s, error);
    *whole = !status && cells_left(c) == 0;
    trial_close(&s->trial);
    distillation_close(&s->from);
    ridge_plan_close(&s->plan);
    lm_session_close(&s->session);
    for (int i = 0; i < COURSE_STRATEGIES; i++)
        shares_close(&s->by[i]);
    free(s);
    return status;
}
