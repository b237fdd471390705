/* SPDX-License-Identifier: MIT
 * loam experiment context, recall, swaps: small models are trained, and held against the paper. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/plot.h"
#include "cli/training/claims.h"
#include "cli/training/page.h"
#include "cli/training/pictures.h"
#include "cli/training/preset.h"
#include "cli/training/report.h"
#include "cli/training/request.h"
#include "cli/training/run.h"
#include "cli/training/state.h"
#include "cli/training/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DESCRIPTION = 2048, LEFT_OUT = 256 };

/* ---- the line that results depend on */

static void add_cells(char *text, const plan *p)
{
    text_add(text, DESCRIPTION, "; cells");
    for (int cell = 0; cell < p->cell_count; cell++)
        for (int part = 0; part < plan_parts(p, &p->cells[cell]); part++)
            text_add(text, DESCRIPTION, " L %" PRId64 " %s %" PRId64, p->cells[cell].length,
                     p->task == TRAIN_REGRESSION ? "S" : "N", plan_size(p, &p->cells[cell], part));
}

static void add_switches(char *text, const plan *p)
{
    static const char *const places[] = { "learned", "rope", "none" };
    const mixer_options *m = &p->options.mixing;
    text_add(text, DESCRIPTION, "; positions %s", places[m->positions]);
    text_add(text, DESCRIPTION, "; %s", m->layer_norm ? "LayerNorm" : "RMSNorm");
    text_add(text, DESCRIPTION, "; %" PRId64 " layers%s", p->options.shape.layers, m->mlp ? " with MLP" : "");
    if (p->task == TRAIN_REGRESSION)
        text_add(text, DESCRIPTION, "; %s queries", m->blind ? "blind" : "plain");
    if (p->task == TRAIN_RECALL) text_add(text, DESCRIPTION, "; fill %d", p->cells[0].from.recall.fill);
    text_add(text, DESCRIPTION, "; ridge %s", m->ridge_unit == LOAM_RIDGE_MAX ? "max" : "normalised");
    text_add(text, DESCRIPTION, "%s%s%s%s", m->qk_norm ? "; qk-norm" : "", m->no_silu ? "; no silu" : "",
             m->short_filter ? "; short filter" : "", m->published_dims ? "; published dims" : "");
    if (p->options.stop > 0) text_add(text, DESCRIPTION, "; stop at %g", p->options.stop);
}

static void describe(const plan *p, char text[DESCRIPTION])
{
    static const char *const presets[] = { "tiny", "reduced", "paper" };
    *text = '\0';
    text_add(text, DESCRIPTION, "loam %s, %s, %s; mechanisms", loam_version(), p->name, presets[p->preset]);
    for (int i = 0; i < p->mechanism_count; i++)
        text_add(text, DESCRIPTION, " %s (%" PRId64 " steps)", p->mechanisms[i].row->name,
                 p->mechanisms[i].steps);
    add_cells(text, p);
    text_add(text, DESCRIPTION, "; rates");
    for (int i = 0; i < p->rate_count; i++)
        text_add(text, DESCRIPTION, " %g", p->rates[i]);
    text_add(text, DESCRIPTION, "; seeds");
    for (int i = 0; i < p->seed_count; i++)
        text_add(text, DESCRIPTION, " %" PRIu64, p->seeds[i]);
    add_switches(text, p);
    text_add(text, DESCRIPTION, "; %" PRId64 " tests; width %" PRId64 "; batch %" PRId64, p->tests,
             p->options.shape.width, p->options.shape.batch);
}

/* ---- a run */

typedef struct session {
    plan plan;
    machine host, on; /* of lines, and of training */
    runner runner;
    pace pace;
    results results;
    plan_lines lines;
    int drops;
    char description[DESCRIPTION], left_out[LEFT_OUT], state[EXPERIMENT_PATH];
} session;

static bool drop(session *s)
{
    const char *text = preset_drop(&s->plan);
    if (text) text_add(s->left_out, LEFT_OUT, "%s%s", *s->left_out ? ", " : "", text);
    return text != NULL;
}

/* Measures, and with --fit makes the plan smaller until it fits. */
static int size_plan(session *s, const request *r, bool found, io_error *error)
{
    double left;
    int status = EXIT_OK;
    while (r->fit > 0 && !found && status == EXIT_OK) {
        status = runner_plan(&s->runner, &s->plan, &s->pace, &left, false, error);
        if (status != EXIT_OK || left <= 60 * r->fit || !drop(s)) break;
        s->drops++;
    }
    if (status == EXIT_OK) status = runner_plan(&s->runner, &s->plan, &s->pace, &left, true, error);
    if (status == EXIT_OK && *s->left_out) printf("Left out to save time: %s.\n", s->left_out);
    return status;
}

/* There is nothing left to train. */
static bool is_trained(const session *s)
{
    bool all = true;
    for (int64_t first = 0; first < plan_runs(&s->plan) && all;) {
        const plan_stack stack = plan_stack_at(&s->plan, first);
        all = training_state_has(s->state, &s->plan, stack);
        first += stack.count;
    }
    return all;
}

/* Without what an earlier run left, where that is asked for. */
static int begin(session *s, const request *r, io_error *error)
{
    bool found;
    if (r->restart) training_state_remove(s->state);
    int status = training_state_open(s->state, s->description, &found, &s->drops, error);
    if (status == EXIT_OK && r->resume && !found)
        status = io_fail(error, EXIT_INPUT, "--resume: %s holds no run to continue", s->state);
    for (int i = 0; i < s->drops && status == EXIT_OK; i++)
        drop(s);
    /* What a GPU has trained is drawn on machines without one. */
    if (status == EXIT_OK && !(found && is_trained(s)))
        status = backend_open(r->where, (int)r->threads, &s->on, error);
    if (status == EXIT_OK) status = experiment_make_directories(s->state, error);
    if (status == EXIT_OK) status = size_plan(s, r, found, error);
    if (status == EXIT_OK && !found) status = training_state_begin(s->state, s->description, s->drops, error);
    return status;
}

/* Pictures where `drawn`. */
static int write_all(session *s, const char *out, bool drawn, io_error *error)
{
    typedef int report(const results *r, const char *path, io_error *error);
    static const struct {
        const char *name;
        report *write;
    } files[] = { { "runs.csv", training_report_runs },
                  { "best.csv", training_report_best },
                  { "times.csv", training_report_times } };
    char path[EXPERIMENT_PATH];
    claim claims[CLAIMS];
    int status = lines_of_plan(&s->host, &s->plan, &s->lines, error);
    for (size_t i = 0; i < sizeof files / sizeof *files && status == EXIT_OK; i++) {
        snprintf(path, sizeof path, "%s/%s", out, files[i].name);
        status = files[i].write(&s->results, path, error);
    }
    if (status == EXIT_OK && drawn) status = pictures_write(&s->results, &s->lines, out, error);
    const int count = status == EXIT_OK ? claims_judge(&s->results, &s->lines, claims) : 0;
    snprintf(path, sizeof path, "%s/index.html", out);
    if (status == EXIT_OK)
        status = page_write(&s->results, claims, count, s->description, s->left_out, drawn, path, error);
    if (status == EXIT_OK) status = training_report_table(&s->results, claims, count, error);
    return status;
}

static int run(session *s, const request *r, const char **out, io_error *error)
{
    io_error missing;
    const bool drawn = plot_check("figure.svg", &missing) == EXIT_OK;
    bool whole = false;
    int status = begin(s, r, error);
    if (status == EXIT_OK) status = results_open(&s->results, &s->plan, error);
    if (status == EXIT_OK) status = runner_run(&s->runner, &s->pace, &s->results, &whole, error);
    if (status == EXIT_OK && !whole) printf("The time is over; the same command goes on.\n");
    if (status == EXIT_OK && whole) status = write_all(s, r->out, drawn, error);
    if (status == EXIT_OK && whole) *out = r->out;
    if (status == EXIT_OK && whole && drawn) training_state_remove(s->state);
    if (status == EXIT_OK && whole && !drawn)
        printf("\nThere is no gnuplot here, so no pictures: the same command draws them where it is.\n");
    results_close(&s->results);
    return status;
}

/* What names it all. */
static void session_open(session *s, const request *r)
{
    s->plan = r->plan;
    s->host = machine_cpu(LOAM_F32, (int)r->threads);
    s->runner = (runner){ .on = &s->on,
                          .directory = s->state,
                          .interval = r->interval,
                          .seconds = r->minutes > 0 ? 60 * r->minutes : INFINITY,
                          .begun = trainer_clock() };
    describe(&s->plan, s->description);
    text_add(s->description, DESCRIPTION, "; %s", backend_text(r->where));
    snprintf(s->state, sizeof s->state, "%s/state", r->out);
}

static int train(train_task task, int argc, char **argv, const char **out, io_error *error)
{
    request *r = calloc(1, sizeof *r);
    session *s = calloc(1, sizeof *s);
    bool help = false;
    int status = r && s ? request_read(r, task, argc, argv, &help, error)
                        : io_fail(error, EXIT_INTERNAL, "out of memory");
    if (status == EXIT_OK && !help) {
        session_open(s, r);
        status = run(s, r, out, error);
        if (status != EXIT_OK)
            rmdir(s->state), rmdir(r->out); /* They stay where there is something in them. */
        machine_close(&s->on);
    }
    free(s);
    free(r);
    return status;
}

int experiment_context(int argc, char **argv, const char **out, io_error *error)
{
    return train(TRAIN_REGRESSION, argc, argv, out, error);
}

int experiment_recall(int argc, char **argv, const char **out, io_error *error)
{
    return train(TRAIN_RECALL, argc, argv, out, error);
}

int experiment_swaps(int argc, char **argv, const char **out, io_error *error)
{
    return train(TRAIN_SWAPS, argc, argv, out, error);
}
