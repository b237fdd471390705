/* SPDX-License-Identifier: MIT */
#include "tests/check/condition.h"

#include "tests/support/compare.h"
#include "tests/support/direct.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>

/* Where N(0, 1) data with ridge 0.1 stand: (1 + 0.1) / 0.1, and scores up to about 32. */
#define USUAL_CONDITION 11.0
#define USUAL_SCORE 32.0
#define TIE 1e-4

static double norm_about(const double *x, const double *centre, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (x[c] - centre[c]) * (x[c] - centre[c]);
    return sqrt(sum);
}

/* (mean eigenvalue of Cov + lambda) / lambda, and the bound 1/sqrt(lambda) on the slope of the fit. */
static double ridge_condition(const values *v, const direct_row *d, int64_t b, int64_t h, int64_t i,
                              double *root)
{
    double least = HUGE_VAL;
    for (int64_t c = 0; c < v->spec.dim_qk; c++)
        least = fmin(least, direct_ridge(d, v, b, h, i, c));
    *root = least > 0 ? 1 / sqrt(least) : 0;
    return least > 0 ? 1 + d->trace / (double)v->spec.dim_qk / least : 1;
}

/* With a sink a shift of all scores is not the same, and what is added up for a score
 * counts: for the RBF score scale/2 (|q| + |k|)^2, where |q| is at most |q - k| + |k|. */
static double score_terms(const spec *s, double score, double key)
{
    const double scale = s->scale != 0 ? fabs(s->scale) : 1 / sqrt((double)s->dim_qk);
    const double both = 2 * key + sqrt(2 * fabs(score) / scale);
    return s->score == LOAM_RBF ? scale / 2 * both * both : fabs(score);
}

static void seen_keys(condition *x, row_condition *row, const values *v, const direct_row *d,
                      const double *rho, int64_t b, int64_t h, int64_t i)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const int64_t kv = h / (s->heads_q / s->heads_kv);
    const double probe = rho ? compare_norm(rho, s->dim_qk) : 0;
    double first = 0, second = 0;
    for (int64_t j = 0; j < d->keys; j++) {
        if (!(d->score[j] > -HUGE_VAL)) continue;
        const double *k = d->key + j * s->dim_qk;
        const double *value_j = slot_at(v, SLOT_V, q.batch, kv, q.k0 + j);
        if (s->sink) row->score = fmax(row->score, score_terms(s, d->score[j], compare_norm(k, s->dim_qk)));
        double u = 0;
        for (int64_t c = 0; rho && c < s->dim_qk; c++)
            u += rho[c] * (k[c] - d->kbar[c]);
        const double kappa = norm_about(k, d->kbar, s->dim_qk), value = compare_norm(value_j, s->dim_v);
        row->mass += d->p[j] * (1 + fabs(u)) * value;
        row->terms += d->p[j] * probe * kappa * value;
        x->raw_value = fmax(x->raw_value, value);
        x->raw_key = fmax(x->raw_key, compare_norm(k, s->dim_qk));
        x->key = fmax(x->key, kappa);
        x->value = fmax(x->value, norm_about(value_j, d->vbar, s->dim_v));
        x->distance = fmax(x->distance, fabs((double)(j - i - q.len_kv + q.len_q)));
        second = fmax(second, fmin(first, d->p[j]));
        first = fmax(first, d->p[j]);
    }
    x->tied |= d->seen > 1 && second > (1 - TIE) * first;
}

static void one_row(condition *x, const values *v, direct_row *d, const double *rho, int64_t b, int64_t h,
                    int64_t i)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const shape a = slot_shape(v, SLOT_LSE);
    const int64_t at = (q.batch * a.heads + h) * a.tokens + q.q0 + i;
    row_condition *row = &x->row[at];
    double ridge = 1;
    direct_weights(d, v, b, h, i);
    rho = rho ? rho + at * s->dim_qk : NULL;
    seen_keys(x, row, v, d, rho, b, h, i);
    if (s->mechanism == LOAM_LLA) ridge = ridge_condition(v, d, b, h, i, &row->root);
    row->score = fmax(row->score, d->steepness) + (s->slope ? v->x[SLOT_SLOPE][h] * x->distance : 0) +
                 (s->key_bias ? 4 : 0);
    row->factor = fmax(1, ridge / USUAL_CONDITION) * fmax(1, row->score / USUAL_SCORE);
    x->worst = fmax(x->worst, row->factor);
    x->slope_of_fit = fmax(x->slope_of_fit, row->root);
    x->probe = fmax(x->probe, rho ? compare_norm(rho, s->dim_qk) : 0);
    const double *query = slot_at(v, SLOT_Q, q.batch, h, q.q0 + i);
    x->query = fmax(x->query, s->score == LOAM_RBF ? norm_about(query, d->kbar, s->dim_qk) + x->key
                                                   : compare_norm(query, s->dim_qk));
    if (v->x[SLOT_GRAD_O])
        x->grad_o = fmax(x->grad_o, compare_norm(slot_at(v, SLOT_GRAD_O, q.batch, h, q.q0 + i), s->dim_v));
}

condition condition_of(const values *v, const double *rho)
{
    condition x = { .worst = 1 };
    const int64_t rows = slot_size(v, SLOT_LSE);
    x.row = memory_zeroed((size_t)rows, sizeof *x.row);
    for (int64_t r = 0; r < rows; r++)
        x.row[r].factor = 1;
    direct_row d = direct_make(v);
    for (int64_t b = 0; b < v->spec.batch; b++) {
        const sequence q = values_sequence(v, b);
        for (int64_t h = 0; h < v->spec.heads_q; h++)
            for (int64_t i = 0; i < q.len_q; i++)
                one_row(&x, v, &d, rho, b, h, i);
    }
    direct_free(&d);
    return x;
}

void condition_free(condition *x)
{
    free(x->row);
    x->row = NULL;
}
