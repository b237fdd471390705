/* SPDX-License-Identifier: MIT */
#include "cli/distill/strategy.h"

#include "cli/distill/trial.h"
#include "cli/progress.h"
#include "distill/needs.h"
#include "distill/reading.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const double lambda = 0x1p-8; /* of degrees of freedom, that of loam dof */

enum { POINTS = 6 }; /* numbers of features that are measured: a unit, and twice as many each time */

const char *strategy_name(int index)
{
    static const char *const names[] = { "fix", "rel", "attn", "head", "clip", "measured" };
    return index >= 0 && index < STRATEGIES ? names[index] : NULL;
}

/* ---- degrees of freedom */

static int share_by_needs(const strategy_problem *p, shares *s, io_error *error)
{
    const activations *a = p->of;
    const int64_t heads = a->layers * s->heads;
    double *const needs = calloc((size_t)(a->layers * a->heads_q), sizeof *needs), *const groups = calloc(
                                                                                       (size_t)heads,
                                                                                       sizeof *groups);
    int status = needs && groups ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for degrees of freedom");
    if (!status)
        status = activations_needs(a, p->how == STRATEGY_REL ? DOF_REL : DOF_ATTN, lambda, p->training.seed,
                                   p->session->on.threads, needs, error);
    if (!status && s->used) {
        needs_largest(needs, heads, a->heads_q / s->heads, groups);
        dof_budget_share(&p->budget, groups, heads, s->used);
    } else if (!status) {
        needs_largest(needs, a->layers, a->heads_q, groups);
        dof_budget_share(&p->budget, groups, a->layers, s->features);
    }
    for (int64_t i = 0; !status && s->used && i < heads; i++)
        if (s->used[i] > s->features[i / s->heads]) s->features[i / s->heads] = s->used[i];
    if (!status && p->how == STRATEGY_CLIP) dof_budget_clip(&p->budget, a->channels, a->layers, s->features);
    free(groups);
    free(needs);
    return status;
}

/* ---- measured */

typedef struct measuring {
    const strategy_problem *p;
    ridge_plan plan;
    trial trial; /* of windows of the calibration */
    progress bar;
    int64_t points, features[POINTS];
    double *rises; /* [layers][points] */
} measuring;

/* Students of one point, trained side by side. */
static int train_point(const measuring *m, student *s, const int64_t *features, io_error *error)
{
    const strategy_problem *p = m->p;
    training_options options = p->training;
    training t = { 0 };
    options.threads = p->session->on.threads, options.steps = p->steps;
    options.gpu = p->session->on.gpu ? &p->session->on : NULL;
    int status = student_open(s, p->of, features, p->shared, error);
    if (!status) status = student_calibrate(s, p->of, true, options.threads, error);
    if (!status) status = student_begin(s, p->of, STUDENT_PAIRS, options.seed, options.threads, error);
    if (status || p->steps == 0) return status;
    status = training_open(&t, s, p->of, &options, error);
    while (!status && training_taken(&t) < options.steps)
        training_step(&t);
    if (!status) status = training_fetch(&t, error);
    training_close(&t);
    return status;
}

static int measure_layers(measuring *m, const student *s, int64_t point, io_error *error)
{
    lm_options options = lm_options_default();
    reading r;
    int status = reading_open(&r, s, &m->p->session->on, error);
    if (status) return status;
    options.features = r.layers;
    for (int64_t layer = 0; !status && layer < m->p->of->layers; layer++) {
        options.only = layer;
        status = trial_run(&m->trial, "a layer", &options, NULL, NULL, error);
        if (status) break;
        m->rises[layer * m->points + point] = trial_value_of(&m->trial, 1).more;
        trial_drop(&m->trial);
        progress_add(&m->bar, 1);
    }
    reading_close(&r);
    return status;
}

static int measure_point(measuring *m, int64_t point, int64_t *features, io_error *error)
{
    student s = { 0 };
    for (int64_t i = 0; i < m->p->of->layers; i++)
        features[i] = m->features[point];
    int status = train_point(m, &s, features, error);
    if (!status) status = measure_layers(m, &s, point, error);
    student_close(&s);
    return status;
}

static int open_measuring(measuring *m, const strategy_problem *p, io_error *error)
{
    const ridge_choice choice = { .tokens = p->windows * p->context, .context = p->context };
    const lm_options softmax = lm_options_default();
    *m = (measuring){ .p = p };
    for (int64_t n = p->budget.unit; m->points < POINTS && n <= p->budget.most; n *= 2)
        m->features[m->points++] = n;
    m->rises = calloc((size_t)(p->of->layers * m->points), sizeof *m->rises);
    int status = m->rises ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for what layers lose");
    if (!status)
        status = ridge_plan_open(&m->plan, &choice, p->session->model, p->session->tokens, p->calibration,
                                 error);
    if (!status) status = trial_open(&m->trial, &m->plan, p->session->model, error);
    return status ? status : trial_run(&m->trial, "softmax", &softmax, NULL, NULL, error);
}

static int share_by_measurement(const strategy_problem *p, shares *s, io_error *error)
{
    measuring m;
    int status = open_measuring(&m, p, error);
    progress_begin(&m.bar, "measuring layers", m.points * p->of->layers);
    for (int64_t point = 0; !status && point < m.points; point++)
        status = measure_point(&m, point, s->features, error);
    progress_end(&m.bar);
    if (!status) dof_budget_measured(&p->budget, m.features, m.points, m.rises, p->of->layers, s->features);
    trial_close(&m.trial);
    ridge_plan_close(&m.plan);
    free(m.rises);
    return status;
}

/* ---- all */

int strategy_share(const strategy_problem *p, shares *s, io_error *error)
{
    const size_t layers = (size_t)p->of->layers;
    *s = (shares){ .how = p->how, .heads = p->shared ? p->of->heads_kv : p->of->heads_q };
    s->features = calloc(layers, sizeof *s->features);
    if (p->how == STRATEGY_HEAD) s->used = calloc(layers * (size_t)s->heads, sizeof *s->used);
    int status = s->features && (s->used || p->how != STRATEGY_HEAD)
                     ? 0
                     : io_fail(error, EXIT_INTERNAL, "out of memory for numbers of features");
    for (size_t i = 0; !status && p->how == STRATEGY_FIX && i < layers; i++)
        s->features[i] = p->budget.mean;
    if (!status && p->how == STRATEGY_MEASURED) status = share_by_measurement(p, s, error);
    if (!status && p->how != STRATEGY_FIX && p->how != STRATEGY_MEASURED)
        status = share_by_needs(p, s, error);
    if (status) shares_close(s);
    return status;
}

void shares_close(shares *s)
{
    free(s->features);
    free(s->used);
    *s = (shares){ 0 };
}

void shares_print(const shares *s, const activations *of)
{
    const int64_t each = s->used ? s->heads : of->layers, count = s->used ? of->layers * s->heads : each;
    const int64_t *const from = s->used ? s->used : s->features;
    for (int64_t i = 0; s->how != STRATEGY_FIX && i < count; i++) {
        if (i % each == 0 && s->used) printf("features of layer %" PRId64 ":", i / each);
        if (i % each == 0 && !s->used) printf("features by layer:");
        printf(" %" PRId64 "%s", from[i], (i + 1) % each ? "" : "\n");
    }
    if (s->how == STRATEGY_MEASURED)
        printf("one layer at a time loses, all layers together, %.4f of the calibration\n", s->rise);
}
