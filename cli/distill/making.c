/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/making.h"

#include "cli/distill/beside.h"
#include "cli/distill/direct.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void making_close(making *m)
{
    for (int i = 0; i < COURSE_STRATEGIES; i++)
        shares_close(&m->by[i]);
}

static void count_one(void *bar) { progress_add(bar, 1); }

int64_t making_window(const making *m, const distill_arm *arm)
{
    const lm_config *c = lm_model_config(m->from->session->model);
    return distillation_window(c, &m->from->choice) * arm->eighths / 8;
}

/* ---- files */

enum { CELL_PATH = EXPERIMENT_PATH + 64, HELD = 16384 };

static const char *word_of(const distill_arm *arm, const cell *one, char word[16])
{
    switch (arm->form) {
    case FORM_HYBRID: snprintf(word, 16, "hybrid%d", arm->eighths); return word;
    case FORM_CASCADE:
    case FORM_DIRECT: return arm->name;
    default: return strategy_name(one->strategy);
    }
}

/* "training-1-fix-l2-3": of its checkpoint without an ending, or of each layer's without its number. */
static void path_of(const making *m, const cell *one, char path[EXPERIMENT_PATH])
{
    char word[16];
    snprintf(path, EXPERIMENT_PATH, "%s/training-%d-%s-%s-%" PRId64, m->directory, m->number,
             word_of(distill_arm_at(one->arm), one, word), course_loss(one->loss), one->seed);
}

static void whole_path(const making *m, const cell *one, char path[CELL_PATH])
{
    char name[EXPERIMENT_PATH];
    path_of(m, one, name);
    snprintf(path, CELL_PATH, "%s.safetensors", name);
}

static void measured_path(const making *m, char path[EXPERIMENT_PATH])
{
    snprintf(path, EXPERIMENT_PATH, "%s/measured-%d", m->directory, m->number);
}

static int discard(const char *path, io_error *error)
{
    if (unlink(path) == 0 || errno == ENOENT) return 0;
    return io_fail(error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
}

int making_discard(const making *m, const cell *one, io_error *error)
{
    const arm_form form = distill_arm_at(one->arm)->form;
    char name[EXPERIMENT_PATH], path[CELL_PATH];
    whole_path(m, one, path), path_of(m, one, name);
    int status = discard(path, error);
    for (int64_t i = 0; !status && form == FORM_CASCADE && i < m->cells->layers; i++) {
        snprintf(path, sizeof path, "%s-%" PRId64 ".safetensors", name, i);
        status = discard(path, error);
    }
    return !status && form == FORM_DIRECT ? direct_discard(name, error) : status;
}

int making_discard_measured(const making *m, io_error *error)
{
    char name[EXPERIMENT_PATH], path[CELL_PATH];
    int status = 0;
    measured_path(m, name);
    for (int64_t n = m->course->budget.unit; !status && n <= m->course->budget.most; n *= 2) {
        snprintf(path, sizeof path, "%s-%" PRId64 ".safetensors", name, n);
        status = discard(path, error);
    }
    return status;
}

/* ---- numbers of features */

int making_share(making *m, int how, io_error *error)
{
    const course *c = m->course;
    char path[EXPERIMENT_PATH];
    bool whole;
    measured_path(m, path);
    strategy_problem p = {
        .how = strategy_at(how),
        .budget = c->budget,
        .from = m->from,
        .seed = (uint64_t)c->seeds.items[0],
        .measured = { .windows = c->measured_windows,
                      .fit = { .options = c->training, .path = path, .interval = m->interval, .end = m->end },
                      .rises = m->cells->rises,
                      .keep = m->keep,
                      .to = m->to }
    };
    p.measured.fit.options.steps = c->measured_steps;
    if (m->by[how].features) return 0;
    const int status = strategy_share(&p, &m->by[how], &whole, error);
    m->over = !status && !whole;
    return status;
}

/* ---- students */

/* Trained side by side, or, of a cascade, one layer after the other. */
static int train(making *m, const cell *one, student *of, const fit *by, io_error *error)
{
    bool whole;
    const int status = distill_arm_at(one->arm)->form == FORM_CASCADE
                           ? fit_cascade(m->from, of, by, &whole, error)
                           : fit_run(m->from, of, by, &whole, error);
    m->over = !status && !whole;
    return status;
}

static int train_beside(making *m, const cell *one, student *of, const fit *by, io_error *error)
{
    const int64_t window = making_window(m, distill_arm_at(one->arm));
    bool whole;
    const int status = beside_begin(m->from, of, BESIDE_TRAINED, window, by, (uint64_t)one->seed, &whole,
                                    error);
    m->over = !status && !whole;
    return status;
}

static int go_through(making *m, const cell *one, student *of, io_error *error)
{
    char directory[EXPERIMENT_PATH];
    bool whole;
    path_of(m, one, directory);
    const direct how = { .steps = m->course->direct_steps,
                         .batch = m->course->training.batch,
                         .held = m->course->tokens < HELD ? m->course->tokens : HELD,
                         .seed = one->seed,
                         .directory = directory,
                         .interval = m->interval,
                         .end = m->end };
    const int status = direct_run(m->from, of, &how, &whole, error);
    m->over = !status && !whole;
    return status;
}

static int begin(making *m, const cell *one, student *of, io_error *error)
{
    const int status = making_share(m, one->strategy, error);
    const shares *const by = &m->by[one->strategy];
    return status || m->over ? status
                             : distillation_begin(m->from, of, distill_arm_at(one->arm), by->features,
                                                  by->used, (uint64_t)one->seed, error);
}

/* Of the cells that are trained. */
static fit fit_of(making *m, const cell *one, const char *path)
{
    fit by = { m->course->training, path, m->interval, m->end, count_one, &m->bar };
    by.options.loss = (feature_loss_kind)one->loss, by.options.seed = (uint64_t)one->seed;
    return by;
}

int making_student(making *m, const cell *one, student *of, io_error *error)
{
    const arm_form form = distill_arm_at(one->arm)->form;
    const int64_t layers = form == FORM_CASCADE ? m->cells->layers : 1;
    char path[CELL_PATH], name[EXPERIMENT_PATH], label[CELL_LABEL];
    whole_path(m, one, path), path_of(m, one, name);
    const fit by = fit_of(m, one, form == FORM_CASCADE ? name : path);
    int status = form == FORM_HYBRID ? 0 : begin(m, one, of, error);
    if (status || m->over || one->loss < 0) return status;
    progress_begin(&m->bar, cell_label(one, label), layers * by.options.steps);
    status = form == FORM_HYBRID ? train_beside(m, one, of, &by, error) : train(m, one, of, &by, error);
    if (!status && !m->over && form == FORM_DIRECT) status = go_through(m, one, of, error);
    progress_end(&m->bar);
    return status;
}
