/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/sweep.h"

#include "cli/distill/kept.h"
#include "cli/distill/making.h"
#include "cli/distill/measure.h"
#include "cli/distill/speed.h"
#include "cli/distill/turns.h"
#include "cli/training/text.h"

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
    const course *course; /* the caller's, or `own` */
    course own;           /* of an encoder */
    cells *cells;
    char state[EXPERIMENT_PATH];
    turns turns; /* of processes that share the directory */
    lm_session session;
    ridge_plan plan, far; /* far: of longer windows, none where cells->far is 0 */
    trial trial, beyond;  /* of these */
    distillation from;
    making making;
    double step, window;    /* seconds of one, as measured when it begins */
    double begun, expected; /* when, and seconds that what was then left should take */
} sweep;

/* ---- what is known */

static const char MEASURED[] = "measured", STATE[] = "state", SPEED[] = "speed";

/* The name of a cell's turn. */
static void name_cell(const cell *one, char name[CELL_LABEL + 32])
{
    char label[CELL_LABEL];
    snprintf(name, CELL_LABEL + 32, "%s, %" PRId64, cell_label(one, label), one->seed);
}

/* What other processes have found since comes to what this one knows. */
static int look(const sweep *s, io_error *error) { return kept_load(s->cells, s->state, error); }

/* What this one has found comes to what others know. */
static int keep(void *to, io_error *error)
{
    const sweep *s = to;
    if (!turns_wait(&s->turns, STATE, INFINITY)) return 0;
    int status = look(s, error);
    if (!status) status = kept_save(s->cells, s->state, error);
    turns_leave(&s->turns, STATE);
    return status;
}

static int discard(const char *path, io_error *error)
{
    if (unlink(path) == 0 || errno == ENOENT) return 0;
    return io_fail(error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
}

/* Checkpoints of cells: all of them, or, of a run that was killed between the two, those that are done. */
static int discard_checkpoints(const sweep *s, bool all, io_error *error)
{
    int status = all ? making_discard_measured(&s->making, error) : 0;
    for (int i = 0; !status && i < s->cells->count; i++) {
        const cell *one = &s->cells->list[i];
        if (one->loss >= 0 && (all || cell_done(one))) status = making_discard(&s->making, one, error);
    }
    return status;
}

/* ---- opening */

/* The machine last: a report may be made on another one. */
static void describe(const sweep *s)
{
    char own[COURSE_LINE], read[RIDGE_LINE], name[MACHINE_NAME];
    cells *const c = s->cells;
    course_describe(s->course, own);
    ridge_describe(&s->plan, read);
    text_add(c->line, CELL_LINE, "loam %s; %s of %" PRId64 " bytes, %s; %s; %s; ", loam_version(), c->model,
             lm_files_bytes(s->session.files), lm_files_type(s->session.files), own, read);
    if (s->with->report) c->bound = strlen(c->line);
    text_add(c->line, CELL_LINE, "%s, %s", loam_cpu_features(), machine_name(&s->session.on, name));
}

/* Windows of four times the calibration's length, or as long as the model reads. */
static int open_far(sweep *s, int64_t *windows, io_error *error)
{
    const int64_t most = lm_model_config(s->session.model)->context, want = 4 * s->course->context,
                  length = want < most ? want : most;
    const ridge_choice choice = { .context = length, .tokens = s->course->tokens };
    *windows = 0;
    if (length <= s->course->context || s->cells->encoder) return 0;
    const int status = ridge_plan_open(&s->far, &choice, s->session.model, s->session.tokens,
                                       s->course->texts, error);
    if (!status) *windows = s->far.window_count, s->cells->length = length;
    return status;
}

static void count_tokens(sweep *s)
{
    cells *const c = s->cells;
    for (int64_t n = 0; n < c->windows; n++)
        c->tokens[n] = s->plan.windows[n].at.scored, c->text[n] = s->plan.windows[n].text;
    for (int64_t n = 0; n < c->far; n++)
        for (int64_t i = 0; i < s->far.windows[n].at.scored; i++)
            c->places[n * TRIAL_PLACES + trial_place(&s->far, n, i)]++;
}

static int open_cells(sweep *s, io_error *error)
{
    cells *const c = s->cells;
    int64_t far;
    int status = open_far(s, &far, error);
    if (!status)
        status = cells_open(c, lm_model_config(s->session.model)->layers, s->plan.window_count, far, error);
    if (status) return status;
    count_tokens(s), describe(s);
    if (!c->encoder) speed_plan(c, s->course, &s->session);
    status = cells_choose(c, s->course, error);
    if (!status && s->with->restart) status = discard(s->state, error);
    if (!status && s->with->restart) status = discard_checkpoints(s, true, error);
    if (!status) status = look(s, error);
    return status ? status : discard_checkpoints(s, false, error);
}

/* Features of an encoder are trained on the CPU, whatever the others are. */
static int open_session(sweep *s, io_error *error)
{
    const char *const path = s->with->model;
    lm_words words = *s->with->words;
    int status = lm_session_open(&s->session, path, &words, error);
    if (status || lm_model_config(s->session.model)->architecture != LM_BERT) return status;
    s->cells->encoder = true;
    s->own = course_of_encoder(s->course, lm_model_config(s->session.model)->head_dim);
    s->course = s->making.course = &s->own;
    if (!s->session.on.gpu) return 0;
    lm_session_close(&s->session);
    words.backend = NULL, words.device = -1;
    return lm_session_open(&s->session, path, &words, error);
}

static int open_model(sweep *s, io_error *error)
{
    const char *const path = s->with->model;
    int status = open_session(s, error);
    if (!status) status = distillation_check(&s->session, path, error);
    if (!status) status = dof_budget_check(&s->course->budget, error);
    const ridge_choice choice = { .context = s->course->context, .tokens = s->course->tokens };
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
    if (!status && s->cells->far > 0) status = trial_open(&s->beyond, &s->far, s->session.model, error);
    if (!status) status = distillation_open(&s->from, &s->session, &choice, error);
    if (status) return status;
    if (s->cells->checksum && s->cells->checksum != s->from.checksum)
        return io_fail(error, EXIT_INPUT, "%s is of a run with another calibration: --restart discards it",
                       s->state);
    s->cells->checksum = s->from.checksum;
    status = keep(s, error);
    /* Vectors of lines are compared with the first that were read. */
    return status || !s->cells->encoder
               ? status
               : measure_arm_of(&s->from, &s->trial, distill_arm_at(0), NULL, -1, 0, error);
}

/* ---- cells */

/* Longer windows are read by softmax, the window and what is trained, of the first seed. */
static bool goes_far(const sweep *s, const cell *one)
{
    const arm_form form = distill_arm_at(one->arm)->form;
    return s->cells->far > 0 && (form == FORM_SOFTMAX || form == FORM_WINDOW ||
                                 (one->loss >= 0 && one->seed == s->course->seeds.items[0]));
}

/* -log p by window, and of longer windows by place. */
static int measure(sweep *s, const cell *one, const student *of, double *far, io_error *error)
{
    const distill_arm *const arm = distill_arm_at(one->arm);
    const int64_t window = making_window(&s->making, arm);
    int status = measure_arm_of(&s->from, &s->trial, arm, of, -1, window, error);
    if (status || !goes_far(s, one)) return status;
    s->beyond.places = far;
    status = measure_arm_of(&s->from, &s->beyond, arm, of, -1, window, error);
    if (!status) trial_drop(&s->beyond);
    return status;
}

/* Its numbers count from the moment that the first loss is there. */
static int finish(sweep *s, cell *one, const student *of, const double *far, double seconds, io_error *error)
{
    cells *const c = s->cells;
    for (int64_t i = 0; of->layer && i < c->layers; i++)
        one->features[i] = (double)of->layer[i].features;
    if (goes_far(s, one)) memcpy(one->far, far, (size_t)(c->far * TRIAL_PLACES) * sizeof *far);
    *one->seconds = seconds;
    memcpy(one->nll, s->trial.sums[s->trial.count - 1], (size_t)c->windows * sizeof *one->nll);
    trial_drop(&s->trial);
    const int status = keep(s, error);
    return !status && one->loss >= 0 ? making_discard(&s->making, one, error) : status;
}

static int run_cell(sweep *s, cell *one, io_error *error)
{
    const double begun = lm_seconds();
    const bool has = one->strategy >= 0;
    double *const far = calloc((size_t)(s->cells->far * TRIAL_PLACES + 1), sizeof *far);
    student of = { 0 };
    int status = far ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for longer windows");
    if (!status && has) status = making_student(&s->making, one, &of, error);
    if (!status && !s->making.over) status = measure(s, one, has ? &of : NULL, far, error);
    if (!status && !s->making.over) status = finish(s, one, &of, far, lm_seconds() - begun, error);
    student_close(&of);
    free(far);
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
    int status = making_share(&s->making, 0, error);
    few.options.steps = PROBE_STEPS;
    if (!status)
        status = distillation_begin(&s->from, &of, trained, s->making.by[0].features, NULL, 1, error);
    for (int i = 0; !status && i < 2; i++) {
        const double begun = lm_seconds();
        status = fit_run(&s->from, &of, &few, &whole, error);
        s->step = (lm_seconds() - begun) / PROBE_STEPS;
    }
    student_close(&of);
    return status;
}

static bool is_measured(const cell *one)
{
    return one->strategy >= 0 && strcmp(strategy_name(one->strategy), "measured") == 0;
}

/* Of the strategy that measures, what it has not yet. */
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

/* Seconds, of all that is left. */
static double cost_left(const sweep *s)
{
    double cost = 0;
    bool measured = false;
    for (int i = 0; i < s->cells->count; i++) {
        const cell *one = &s->cells->list[i];
        if (!one->chosen || cell_done(one)) continue;
        cost += s->window * (double)s->cells->windows * (goes_far(s, one) ? 2 : 1);
        cost += one->loss < 0 ? 0 : s->step * (double)s->course->training.steps;
        measured |= is_measured(one);
    }
    return measured ? cost + cost_of_measuring(s) : cost;
}

static void tell_plan(sweep *s)
{
    const cells *c = s->cells;
    int64_t predicted = 0;
    int trained = 0;
    for (int64_t n = 0; n < c->windows; n++)
        predicted += c->tokens[n];
    for (int i = 0; i < c->count; i++)
        trained += c->list[i].chosen && !cell_done(&c->list[i]) && c->list[i].loss >= 0;
    s->expected = cost_left(s);
    printf("%s: %d cell%s, of which %d train %" PRId64 " steps; %" PRId64 " windows of %" PRId64
           " tokens calibrate, %" PRId64 " %s. About %.1f minutes.\n%-26s %10s %10s %9s\n",
           c->model, cells_left(c), cells_left(c) == 1 ? "" : "s", trained, s->course->training.steps,
           s->from.of.windows, s->course->context, predicted,
           c->encoder ? "lines are compared" : "tokens are predicted", s->expected / 60, "attention", "seed",
           cells_measure(c), "minutes");
    fflush(stdout);
}

static void tell(const sweep *s, const cell *one)
{
    char label[CELL_LABEL], seed[24] = "";
    double nll = 0, predicted = 0;
    for (int64_t n = 0; n < s->cells->windows; n++)
        nll += one->nll[n], predicted += (double)s->cells->tokens[n];
    if (one->seed > 0) snprintf(seed, sizeof seed, "%" PRId64, one->seed);
    printf("%-26s %10s %10.4f %9.1f", cell_label(one, label), seed, nll / predicted, *one->seconds / 60);
    const double left = cost_left(s);
    if (left > 0 && left < s->expected)
        printf("   about %.1f left", left * (lm_seconds() - s->begun) / (s->expected - left) / 60);
    putchar('\n');
    fflush(stdout);
}

/* ---- turns */

static bool measures(const sweep *s, const cell *one)
{
    return is_measured(one) && !s->making.by[one->strategy].features;
}

/* Has this process the cell, and, where it takes them, the measurements, and is it still to be done? */
static int take(const sweep *s, const cell *one, bool *taken, io_error *error)
{
    char name[CELL_LABEL + 32];
    name_cell(one, name);
    *taken = turns_take(&s->turns, name);
    if (*taken && measures(s, one) && !turns_take(&s->turns, MEASURED))
        *taken = false, turns_leave(&s->turns, name);
    if (!*taken) return 0;
    const int status = look(s, error);
    if (status || !cell_done(one)) return status;
    *taken = false;
    turns_leave(&s->turns, name), turns_leave(&s->turns, MEASURED);
    return 0;
}

static void leave(const sweep *s, const cell *one)
{
    char name[CELL_LABEL + 32];
    name_cell(one, name);
    turns_leave(&s->turns, name), turns_leave(&s->turns, MEASURED);
}

/* *next: the first cell that nobody else has; NULL: all are done, or others have them. */
static int choose(sweep *s, cell **next, io_error *error)
{
    int status = look(s, error);
    *next = NULL;
    for (int i = 0; !status && !*next && i < s->cells->count; i++) {
        cell *const one = &s->cells->list[i];
        bool taken = false;
        if (one->chosen && !cell_done(one)) status = take(s, one, &taken, error);
        if (taken) *next = one;
    }
    return status;
}

/* Others have all that is left: until one of these is done, or nobody has it any more. */
static int wait(sweep *s, io_error *error)
{
    char name[CELL_LABEL + 32];
    for (int i = 0; i < s->cells->count; i++) {
        const cell *one = &s->cells->list[i];
        if (!one->chosen || cell_done(one)) continue;
        name_cell(one, name);
        s->making.over = !turns_wait(&s->turns, name, s->with->end) ||
                         (measures(s, one) && !turns_wait(&s->turns, MEASURED, s->with->end));
        leave(s, one);
        break;
    }
    return look(s, error);
}

/* ---- all */

/* Softmax, by which all is measured, and whose time is that of windows. */
static int run_softmax(sweep *s, bool *ran, io_error *error)
{
    cell *const softmax = &s->cells->list[0];
    bool taken = false;
    int status = 0;
    *ran = false;
    while (!status && !s->making.over && !cell_done(softmax)) {
        status = take(s, softmax, &taken, error);
        if (!status && taken) status = run_cell(s, softmax, error), *ran = true, leave(s, softmax);
        if (!status && !taken) status = wait(s, error);
    }
    return status;
}

/* And a few steps, whose students are thrown away. */
static int begin(sweep *s, io_error *error)
{
    const cell *const softmax = &s->cells->list[0];
    bool trains = false, ran;
    int status = run_softmax(s, &ran, error);
    if (status || s->making.over) return status;
    s->window = *softmax->seconds / (double)s->cells->windows / (goes_far(s, softmax) ? 2 : 1);
    for (int i = 0; i < s->cells->count; i++)
        trains |= s->cells->list[i].chosen && s->cells->list[i].loss >= 0 && !cell_done(&s->cells->list[i]);
    if (trains) status = probe(s, error);
    if (!status) tell_plan(s);
    if (!status && ran) tell(s, softmax);
    s->begun = lm_seconds();
    return status;
}

/* What a token takes, where nobody measures it yet. */
static int run_speed(sweep *s, io_error *error)
{
    int status = look(s, error);
    if (status || speed_known(s->cells) || !turns_wait(&s->turns, SPEED, s->with->end)) return status;
    status = look(s, error);
    if (!status && !speed_known(s->cells)) {
        status = speed_measure(s->cells, &s->from, error);
        if (!status) status = keep(s, error);
    }
    turns_leave(&s->turns, SPEED);
    return status;
}

static int run_all(sweep *s, io_error *error)
{
    int status = begin(s, error);
    while (!status && !s->making.over && cells_left(s->cells) > 0) {
        cell *one;
        s->making.over = lm_seconds() >= s->with->end;
        if (!s->making.over) status = choose(s, &one, error);
        if (status || s->making.over) break;
        if (!one) {
            status = wait(s, error);
            continue;
        }
        status = run_cell(s, one, error);
        leave(s, one);
        if (!status && !s->making.over) tell(s, one);
    }
    return status || s->making.over ? status : run_speed(s, error);
}

static bool is_whole(const sweep *s) { return cells_left(s->cells) == 0 && speed_known(s->cells); }

static void close_all(sweep *s)
{
    trial_close(&s->trial);
    trial_close(&s->beyond);
    making_close(&s->making);
    distillation_close(&s->from);
    ridge_plan_close(&s->plan);
    ridge_plan_close(&s->far);
    lm_session_close(&s->session);
    turns_close(&s->turns);
}

int distill_sweep_run(const distill_sweep_options *with, cells *c, bool *whole, io_error *error)
{
    char path[EXPERIMENT_PATH];
    sweep *const s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory");
    *s = (sweep){ .with = with, .course = with->course, .cells = c, .turns = { -1 } };
    s->making = (making){ .course = with->course,
                          .directory = with->directory,
                          .number = with->number,
                          .interval = with->interval,
                          .end = with->end,
                          .from = &s->from,
                          .cells = c,
                          .keep = keep,
                          .to = s };
    snprintf(s->state, sizeof s->state, "%s/state-%d", with->directory, with->number);
    snprintf(path, sizeof path, "%s/turns-%d", with->directory, with->number);
    int status = open_model(s, error);
    if (with->report && !status) {
        cells_end(c);
        *whole = true;
        close_all(s);
        free(s);
        return 0;
    }
    const bool left = !status && !is_whole(s);
    if (left) status = turns_open(&s->turns, path, error);
    if (left && !status) status = open_calibration(s, error);
    if (left && !status) status = run_all(s, error);
    *whole = !status && is_whole(s);
    if (*whole) unlink(path);
    close_all(s);
    free(s);
    return status;
}
