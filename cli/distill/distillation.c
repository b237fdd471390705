/* SPDX-License-Identifier: MIT */
#include "cli/distill/distillation.h"

#include "cli/progress.h"
#include "cli/ridge/plan.h"
#include "distill/needs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const double lambda = 0x1p-8; /* of degrees of freedom, that of loam dof */

int distillation_check(const lm_session *s, const char *path, io_error *error)
{
    const lm_config *c = lm_model_config(s->model);
    if (c->mechanism != LOAM_SOFTMAX || c->forgets)
        return io_fail(error, EXIT_USAGE, "%s: its attention is %s; expected softmax", path,
                       lm_config_attention_name(c));
    return 0;
}

/* ---- windows */

static void count_one(void *bar) { progress_add(bar, 1); }

/* What is read: ids one window after another. */
typedef struct taken {
    int32_t *ids;
    int64_t *lengths;
    int64_t count, tokens;
} taken;

static void take(taken *t, const ridge_plan *p, int64_t n)
{
    ridge_inputs(p, &p->windows[n], t->ids + t->tokens);
    t->tokens += t->lengths[t->count++] = p->windows[n].at.inputs;
}

/* Whole windows of the calibration's texts; of an encoder lines, evenly among all, sorted by length. */
static int take_windows(const distillation *d, const ridge_plan *p, taken *t, io_error *error)
{
    const int64_t there = p->window_count, most = d->choice.windows, lines = there < most ? there : most;
    for (int64_t n = 0; p->encoder && n < lines; n++)
        take(t, p, n * there / lines);
    for (int64_t n = 0; !p->encoder && n < there && t->count < most; n++)
        if (p->windows[n].at.inputs == p->choice.context) take(t, p, n);
    if (t->count > 0) return 0;
    return io_fail(error, EXIT_INPUT, "--calibration %s: no window of %" PRId64 " tokens",
                   d->choice.calibration, p->choice.context);
}

/* FNV-1a. */
static uint64_t checksum(const int32_t *ids, int64_t count)
{
    uint64_t sum = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++)
        sum = (sum ^ (uint32_t)ids[i]) * 1099511628211u;
    return sum;
}

/* Each text has whole windows. */
static int64_t tokens_wanted(const distillation_choice *c)
{
    int64_t texts = 1;
    for (const char *at = c->calibration; (at = strchr(at, ',')); at++)
        texts++;
    return (c->windows + texts - 1) / texts * texts * c->context;
}

static int read_windows(distillation *d, io_error *error)
{
    const lm_session *s = d->session;
    const int64_t context = d->choice.context;
    const ridge_choice choice = { .context = context, .tokens = tokens_wanted(&d->choice) };
    const size_t most = (size_t)d->choice.windows;
    ridge_plan p;
    progress bar;
    taken t = { 0 };
    int status = ridge_plan_open(&p, &choice, s->model, s->tokens, d->choice.calibration, error);
    if (status) return status;
    t.ids = calloc(most, (size_t)context * sizeof *t.ids);
    t.lengths = calloc(most, sizeof *t.lengths);
    status = t.ids && t.lengths ? take_windows(d, &p, &t, error)
                                : io_fail(error, EXIT_INTERNAL, "out of memory for windows");
    progress_begin(&bar, "calibration", t.count);
    if (!status)
        status = activations_open_texts(&d->of, s->model, t.ids, t.lengths, t.count, count_one, &bar, error);
    progress_end(&bar);
    if (!status) d->checksum = checksum(t.ids, t.tokens);
    d->ids = t.ids;
    free(t.lengths);
    ridge_plan_close(&p);
    return status;
}

int distillation_open(distillation *d, const lm_session *s, const distillation_choice *choice,
                      io_error *error)
{
    *d = (distillation){ .choice = *choice, .session = s };
    const int status = read_windows(d, error);
    if (status) distillation_close(d);
    return status;
}

void distillation_close(distillation *d)
{
    student_close(&d->calibrated);
    activations_close(&d->of);
    free(d->ids);
    for (size_t i = 0; i < sizeof d->needs / sizeof *d->needs; i++)
        free(d->needs[i]);
    *d = (distillation){ 0 };
}

int64_t distillation_heads(const distillation *d)
{
    return d->choice.shared ? d->of.heads_kv : d->of.heads_q;
}

/* ---- students */

/* Shift and balance depend on nothing but the windows. */
static int calibrate(distillation *d, io_error *error)
{
    int64_t *const one = calloc((size_t)d->of.layers, sizeof *one);
    if (!one) return io_fail(error, EXIT_INTERNAL, "out of memory for features");
    for (int64_t i = 0; i < d->of.layers; i++)
        one[i] = 1;
    int status = student_open(&d->calibrated, &d->of, one, d->choice.shared, error);
    if (!status) status = student_calibrate(&d->calibrated, &d->of, true, d->session->on.threads, error);
    if (status) student_close(&d->calibrated);
    free(one);
    return status;
}

static void copy_calibration(student *to, const student *from)
{
    const size_t shifts = (size_t)(to->heads * to->channels), matrices = shifts * (size_t)to->channels;
    for (int64_t i = 0; i < to->layers; i++) {
        memcpy(to->layer[i].shift, from->layer[i].shift, shifts * sizeof(double));
        memcpy(to->layer[i].balance, from->layer[i].balance, matrices * sizeof(double));
        memcpy(to->layer[i].balance_keys, from->layer[i].balance_keys, matrices * sizeof(double));
    }
}

int distillation_begin(distillation *d, student *s, const distill_arm *arm, const int64_t *features,
                       const int64_t *used, uint64_t seed, io_error *error)
{
    int status = student_open(s, &d->of, features, d->choice.shared, error);
    if (!status && used) student_use(s, used);
    if (!status && arm->balanced && !d->calibrated.layer) status = calibrate(d, error);
    if (!status && arm->balanced) copy_calibration(s, &d->calibrated);
    return status ? status : student_begin(s, &d->of, arm->start, seed, d->session->on.threads, error);
}

int distillation_needs(distillation *d, dof_mode mode, uint64_t seed, const double **needs, io_error *error)
{
    double **const kept = &d->needs[mode == DOF_ATTN];
    int status = 0;
    if (!*kept) {
        *kept = calloc((size_t)(d->of.layers * d->of.heads_q), sizeof **kept);
        status = *kept ? activations_needs(&d->of, mode, lambda, seed, d->session->on.threads, *kept, error)
                       : io_fail(error, EXIT_INTERNAL, "out of memory for degrees of freedom");
    }
    if (status) {
        free(*kept);
        *kept = NULL;
    }
    *needs = *kept;
    return status;
}

/* ---- reading */

int64_t distillation_window(const lm_config *c, const distillation_choice *choice)
{
    const int64_t d = c->head_dim, heads = choice->shared ? c->heads_kv : c->heads_q,
                  window = heads * choice->features * (d + 1) / (2 * d * c->heads_kv);
    return window > 0 ? window : 1;
}

lm_options distillation_options(const distill_arm *arm, const lm_config *c, const distillation_choice *choice,
                                const lm_features *features)
{
    lm_options options = lm_options_default();
    options.features = features;
    options.mechanism = arm->form == FORM_LINEAR ? LOAM_LINEAR : LOAM_SOFTMAX;
    if (arm->form != FORM_WINDOW) return options;
    options.sinks = DISTILL_SINKS, options.window = distillation_window(c, choice);
    return options;
}
