/* SPDX-License-Identifier: MIT */
#include "cli/distill/strategy.h"

#include "cli/distill/trial.h"
#include "cli/experiment/options.h"
#include "cli/progress.h"
#include "distill/needs.h"
#include "distill/reading.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct strategy {
    const char *name;
    int (*share)(const strategy_problem *p, shares *s, bool *whole, io_error *error);
    dof_mode mode;
    bool heads;   /* each head its own */
    bool clipped; /* at most as many as a head has channels: spends less */
};

static int share_alike(const strategy_problem *p, shares *s, bool *whole, io_error *error);
static int share_by_needs(const strategy_problem *p, shares *s, bool *whole, io_error *error);
static int share_by_measurement(const strategy_problem *p, shares *s, bool *whole, io_error *error);

/* Degrees of freedom of a layer are those of its largest head. */
static const strategy strategies[] = {
    { "fix", share_alike, DOF_ATTN, false, false },
    { "rel", share_by_needs, DOF_REL, false, false },
    { "attn", share_by_needs, DOF_ATTN, false, false },
    { "head", share_by_needs, DOF_ATTN, true, false },
    { "clip", share_by_needs, DOF_ATTN, false, true },
    { "measured", share_by_measurement, DOF_ATTN, false, false },
};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

const strategy *strategy_at(int index)
{
    return index >= 0 && index < STRATEGIES ? &strategies[index] : NULL;
}
const char *strategy_name(int index) { return strategy_at(index) ? strategies[index].name : NULL; }

static int share_alike(const strategy_problem *p, shares *s, bool *whole, io_error *error)
{
    (void)error;
    for (int64_t i = 0; i < p->from->of.layers; i++)
        s->features[i] = p->budget.mean;
    s->alike = *whole = true;
    return 0;
}

/* ---- degrees of freedom */

static int share_by_needs(const strategy_problem *p, shares *s, bool *whole, io_error *error)
{
    const activations *a = &p->from->of;
    const int64_t heads = a->layers * s->heads;
    const double *needs;
    double *const groups = calloc((size_t)heads, sizeof *groups);
    int status = groups ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for degrees of freedom");
    if (!status) status = distillation_needs(p->from, p->how->mode, p->seed, &needs, error);
    if (!status && s->used) {
        needs_largest(needs, heads, a->heads_q / s->heads, groups);
        dof_budget_share(&p->budget, groups, heads, s->used);
    } else if (!status) {
        needs_largest(needs, a->layers, a->heads_q, groups);
        dof_budget_share(&p->budget, groups, a->layers, s->features);
    }
    for (int64_t i = 0; !status && s->used && i < heads; i++)
        if (s->used[i] > s->features[i / s->heads]) s->features[i / s->heads] = s->used[i];
    if (!status && p->how->clipped) dof_budget_clip(&p->budget, a->channels, a->layers, s->features);
    free(groups);
    *whole = !status;
    return status;
}

/* ---- measured */

typedef struct measuring {
    const strategy_problem *p;
    ridge_plan plan;
    trial trial; /* of windows of the calibration */
    progress bar;
    int64_t points, features[STRATEGY_POINTS];
    double *rises; /* [layers][STRATEGY_POINTS]: the caller's, where it keeps them */
    bool over;     /* the time is */
} measuring;

static bool is_known(const measuring *m, int64_t point)
{
    bool known = true;
    for (int64_t layer = 0; layer < m->p->from->of.layers; layer++)
        known = known && !isnan(m->rises[layer * STRATEGY_POINTS + point]);
    return known;
}

static int keep(measuring *m, io_error *error)
{
    const strategy_measured *by = &m->p->measured;
    return by->keep ? by->keep(by->to, error) : 0;
}

/* Each point has a checkpoint of its own, since it has other features. */
static const char *path_of(const measuring *m, int64_t point, char path[EXPERIMENT_PATH])
{
    const char *const all = m->p->measured.fit.path;
    if (!all) return NULL;
    snprintf(path, EXPERIMENT_PATH, "%s-%" PRId64 ".safetensors", all, m->features[point]);
    return path;
}

/* Students of one point, trained side by side. */
static int train_point(measuring *m, student *s, int64_t point, const int64_t *features, io_error *error)
{
    const strategy_problem *p = m->p;
    char path[EXPERIMENT_PATH];
    fit by = p->measured.fit;
    bool whole = true;
    by.path = path_of(m, point, path);
    const distill_arm *const trained = distill_arm_at(distill_arm_find("trained"));
    by.options.seed = p->seed;
    int status = distillation_begin(p->from, s, trained, features, NULL, p->seed, error);
    if (!status && by.options.steps > 0) status = fit_run(p->from, s, &by, &whole, error);
    m->over = !status && !whole;
    return status;
}

static int measure_layer(measuring *m, const lm_features *features, int64_t layer, double *rise,
                         io_error *error)
{
    lm_options options = lm_options_default();
    options.features = features, options.only = layer;
    const int status = trial_run(&m->trial, "a layer", &options, NULL, NULL, error);
    if (status) return status;
    *rise = trial_value_of(&m->trial, 1).more;
    trial_drop(&m->trial);
    m->over = lm_seconds() >= m->p->measured.fit.end;
    return 0;
}

static int measure_layers(measuring *m, const student *s, int64_t point, io_error *error)
{
    double saved = lm_seconds();
    reading r;
    int status = reading_open(&r, s, &m->p->from->session->on, error);
    for (int64_t layer = 0; !status && !m->over && layer < s->layers; layer++) {
        double *const rise = &m->rises[layer * STRATEGY_POINTS + point];
        progress_add(&m->bar, 1);
        if (!isnan(*rise)) continue;
        status = measure_layer(m, r.layers, layer, rise, error);
        if (status || lm_seconds() - saved < m->p->measured.fit.interval) continue;
        status = keep(m, error);
        saved = lm_seconds();
    }
    reading_close(&r);
    return status ? status : keep(m, error);
}

static int measure_point(measuring *m, int64_t point, int64_t *features, io_error *error)
{
    const int64_t layers = m->p->from->of.layers;
    char path[EXPERIMENT_PATH];
    student s = { 0 };
    int status = 0;
    for (int64_t i = 0; i < layers; i++)
        features[i] = m->features[point];
    if (is_known(m, point)) {
        progress_add(&m->bar, layers);
    } else {
        status = train_point(m, &s, point, features, error);
        if (!status && !m->over) status = measure_layers(m, &s, point, error);
    }
    if (!status && is_known(m, point) && path_of(m, point, path)) remove(path);
    student_close(&s);
    return status;
}

static int open_measuring(measuring *m, const strategy_problem *p, io_error *error)
{
    const distillation *d = p->from;
    const int64_t context = d->choice.context, count = d->of.layers * STRATEGY_POINTS;
    const ridge_choice choice = { .tokens = p->measured.windows * context, .context = context };
    const lm_options softmax = lm_options_default();
    *m = (measuring){ .p = p };
    for (int64_t n = p->budget.unit; m->points < STRATEGY_POINTS && n <= p->budget.most; n *= 2)
        m->features[m->points++] = n;
    m->rises = p->measured.rises ? p->measured.rises : calloc((size_t)count, sizeof *m->rises);
    if (!m->rises) return io_fail(error, EXIT_INTERNAL, "out of memory for what layers lose");
    for (int64_t i = 0; !p->measured.rises && i < count; i++)
        m->rises[i] = NAN;
    int status = ridge_plan_open(&m->plan, &choice, d->session->model, d->session->tokens,
                                 d->choice.calibration, error);
    if (!status) status = trial_open(&m->trial, &m->plan, d->session->model, error);
    return status ? status : trial_run(&m->trial, "softmax", &softmax, NULL, NULL, error);
}

/* By the points that there are. */
static int share_rises(const measuring *m, shares *s, io_error *error)
{
    const int64_t layers = m->p->from->of.layers;
    double *const rises = calloc((size_t)(layers * m->points), sizeof *rises);
    if (!rises) return io_fail(error, EXIT_INTERNAL, "out of memory for what layers lose");
    for (int64_t i = 0; i < layers * m->points; i++)
        rises[i] = m->rises[i / m->points * STRATEGY_POINTS + i % m->points];
    s->rise = dof_budget_measured(&m->p->budget, m->features, m->points, rises, layers, s->features);
    free(rises);
    return 0;
}

static int share_by_measurement(const strategy_problem *p, shares *s, bool *whole, io_error *error)
{
    measuring m;
    int status = open_measuring(&m, p, error);
    progress_begin(&m.bar, "measuring layers", m.points * p->from->of.layers);
    for (int64_t point = 0; !status && !m.over && point < m.points; point++)
        status = measure_point(&m, point, s->features, error);
    progress_end(&m.bar);
    *whole = !status;
    for (int64_t point = 0; point < m.points; point++)
        *whole = *whole && is_known(&m, point);
    if (*whole) status = share_rises(&m, s, error);
    if (status) *whole = false;
    trial_close(&m.trial);
    ridge_plan_close(&m.plan);
    if (!p->measured.rises) free(m.rises);
    return status;
}

/* ---- all */

int strategy_share(const strategy_problem *p, shares *s, bool *whole, io_error *error)
{
    const size_t layers = (size_t)p->from->of.layers;
    *s = (shares){ .heads = distillation_heads(p->from), .rise = NAN };
    *whole = false;
    s->features = calloc(layers, sizeof *s->features);
    if (p->how->heads) s->used = calloc(layers * (size_t)s->heads, sizeof *s->used);
    const int status = s->features && (s->used || !p->how->heads)
                           ? p->how->share(p, s, whole, error)
                           : io_fail(error, EXIT_INTERNAL, "out of memory for numbers of features");
    if (!*whole) shares_close(s);
    return status;
}

void shares_close(shares *s)
{
    free(s->features);
    free(s->used);
    *s = (shares){ 0 };
}

void shares_print(const shares *s, int64_t layers)
{
    const int64_t each = s->used ? s->heads : layers, count = s->used ? layers * s->heads : each;
    const int64_t *const from = s->used ? s->used : s->features;
    for (int64_t i = 0; !s->alike && i < count; i++) {
        if (i % each == 0 && s->used) printf("features of layer %" PRId64 ":", i / each);
        if (i % each == 0 && !s->used) printf("features by layer:");
        printf(" %" PRId64 "%s", from[i], (i + 1) % each ? "" : "\n");
    }
    if (!isnan(s->rise))
        printf("one layer at a time loses, all layers together, %.4f of the calibration\n", s->rise);
}
