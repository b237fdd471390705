/* SPDX-License-Identifier: MIT */
#include "cli/dof/study.h"

#include "dof/rank.h"

#include <math.h>
#include <stdlib.h>

static const double growth = 0.2;

static bool take(study *s, study_mode *m)
{
    const size_t layers = (size_t)s->layers, heads = (size_t)s->heads;
    m->needs = calloc(heads, sizeof *m->needs);
    m->layers = calloc(layers, sizeof *m->layers);
    m->by_layer = calloc(layers, sizeof *m->by_layer);
    m->clipped = calloc(layers, sizeof *m->clipped);
    m->by_head = calloc(heads, sizeof *m->by_head);
    return m->needs && m->layers && m->by_layer && m->clipped && m->by_head;
}

static void set_needs(const study *s, study_mode *m, int mode)
{
    /* Of a sample; of a window its tokens. */
    const double of = mode == DOF_ATTN ? (double)s->tokens / (double)s->windows : (double)s->options.samples;
    for (int64_t n = 0; n < s->heads; n++) {
        const dof_value v = m->heads[n];
        double *const layer = &m->layers[n / s->per_layer];
        m->needs[n] = v.whole;
        *layer = fmax(*layer, v.whole);
        m->grows += fabs(v.whole - v.half) > growth * v.whole;
        m->large += v.whole > of / 4;
    }
}

static void share(const study *s, study_mode *m)
{
    dof_budget_share(&s->budget, m->layers, s->layers, m->by_layer);
    for (int64_t i = 0; i < s->layers; i++)
        m->clipped[i] = m->by_layer[i];
    dof_budget_clip(&s->budget, s->config->head_dim, s->layers, m->clipped);
    dof_budget_share(&s->budget, m->needs, s->heads, m->by_head);
}

static int fill_mode(study *s, const dof_heads *h, int mode, double *sorted, io_error *error)
{
    study_mode *const m = &s->modes[mode];
    int status = 0;
    if (!take(s, m)) return io_fail(error, EXIT_INTERNAL, "out of memory for numbers of features");
    m->heads = dof_heads_values(h, (dof_mode)mode);
    set_needs(s, m, mode);
    share(s, m);
    m->least = dof_quantile(m->needs, s->heads, 0, sorted);
    m->median = dof_quantile(m->needs, s->heads, 0.5, sorted);
    m->most = dof_quantile(m->needs, s->heads, 1, sorted);
    for (int other = 0; !status && other < mode; other++) {
        if (!s->options.modes[other]) continue;
        status = dof_rank_correlation(m->needs, s->modes[other].needs, s->heads, &s->rho[mode][other], error);
        s->rho[other][mode] = s->rho[mode][other];
    }
    return status;
}

int study_fill(study *s, const dof_heads *h, io_error *error)
{
    s->layers = s->config->layers, s->per_layer = s->config->heads_q, s->heads = s->layers * s->per_layer;
    s->sampled = s->options.modes[DOF_REL] || s->options.modes[DOF_GAUSS] || s->options.modes[DOF_ABS];
    double *sorted = calloc((size_t)s->heads, sizeof *sorted);
    int status = sorted ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for numbers of features");
    for (int mode = 0; !status && mode < DOF_MODES; mode++)
        if (s->options.modes[mode]) status = fill_mode(s, h, mode, sorted, error);
    for (int q = 0; !status && q < 3; q++)
        s->squares[q] = dof_quantile(dof_heads_squares(h), s->heads, 0.25 * (q + 1), sorted);
    free(sorted);
    return status;
}

void study_close(study *s)
{
    for (int mode = 0; mode < DOF_MODES; mode++) {
        study_mode *const m = &s->modes[mode];
        free(m->needs);
        free(m->layers);
        free(m->by_layer);
        free(m->clipped);
        free(m->by_head);
        *m = (study_mode){ 0 };
    }
}

int64_t study_state(const study *s, const int64_t *of_layers, const int64_t *of_heads)
{
    int64_t features = 0;
    for (int64_t n = 0; n < s->heads; n++)
        features += of_heads ? of_heads[n] : of_layers[n / s->per_layer];
    return features * (s->config->head_dim + 1);
}
