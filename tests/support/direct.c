/* SPDX-License-Identifier: MIT */
#include "tests/support/direct.h"

#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

direct_row direct_make(const values *v)
{
    direct_row r = { 0 };
    r.score = memory_zeroed((size_t)v->spec.len_kv, sizeof(double));
    r.p = memory_zeroed((size_t)v->spec.len_kv, sizeof(double));
    r.key = memory_zeroed((size_t)(v->spec.len_kv * v->spec.dim_qk), sizeof(double));
    r.kbar = memory_zeroed((size_t)v->spec.dim_qk, sizeof(double));
    r.vbar = memory_zeroed((size_t)v->spec.dim_v, sizeof(double));
    return r;
}

void direct_free(direct_row *r)
{
    free(r->score);
    free(r->p);
    free(r->key);
    free(r->kbar);
    free(r->vbar);
    memset(r, 0, sizeof *r);
}

static const double *key_at(const values *v, slot which, int64_t b, int64_t h, int64_t j)
{
    const sequence q = values_sequence(v, b);
    return slot_at(v, which, q.batch, h / (v->spec.heads_q / v->spec.heads_kv), q.k0 + j);
}

/* Key j turns by the reflection of position t: k <- k - beta_t (w_t . k) w_t. */
static void turn(double *key, const values *v, int64_t b, int64_t h, int64_t t)
{
    const double *w = key_at(v, SLOT_W, b, h, t), beta = *key_at(v, SLOT_BETA, b, h, t);
    double along = 0;
    for (int64_t c = 0; c < v->spec.dim_qk; c++)
        along += w[c] * key[c];
    for (int64_t c = 0; c < v->spec.dim_qk; c++)
        key[c] -= beta * along * w[c];
}

/* The keys as query i sees them; PaTH goes on from an earlier query of the same head. */
static void see_keys(direct_row *r, const values *v, int64_t b, int64_t h, int64_t i)
{
    const sequence q = values_sequence(v, b);
    const int64_t d = v->spec.dim_qk, at = i + q.len_kv - q.len_q;
    if (!v->spec.path || r->turned_b != b + 1 || r->turned_h != h || r->turned_to > at) {
        r->turned_b = b + 1, r->turned_h = h, r->turned_to = -1;
        for (int64_t j = 0; j < q.len_kv; j++)
            memcpy(r->key + j * d, key_at(v, SLOT_K, b, h, j), (size_t)d * sizeof(double));
    }
    for (int64_t t = r->turned_to + 1; v->spec.path && t <= at; t++) {
        for (int64_t j = 0; j < t; j++)
            turn(r->key + j * d, v, b, h, t);
        r->turned_to = t;
    }
}

static double mapped(const spec *s, double z)
{
#define MAP(name, member, formula) \
    if (s->member > 0) { \
        const double c = s->member; \
        z = formula; \
    }
    SPEC_MAPS(MAP)
    return z;
}

static double raw_score(const spec *s, const double *q, const double *k)
{
    double dot = 0, distance2 = 0;
    for (int64_t c = 0; c < s->dim_qk; c++) {
        dot += q[c] * k[c];
        distance2 += (q[c] - k[c]) * (q[c] - k[c]);
    }
    const double scale = s->scale != 0 ? s->scale : 1 / sqrt((double)s->dim_qk);
    return mapped(s, s->score == LOAM_RBF ? -scale / 2 * distance2 : scale * dot);
}

static int sees(const spec *s, int64_t ahead)
{
    return !(s->causal && ahead > 0) && !(s->window > 0 && llabs((long long)ahead) >= s->window);
}

static void scores(direct_row *r, const values *v, int64_t b, int64_t h, int64_t i)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const double *query = slot_at(v, SLOT_Q, q.batch, h, q.q0 + i);
    r->keys = q.len_kv;
    r->seen = 0;
    for (int64_t j = 0; j < q.len_kv; j++) {
        const int64_t ahead = j - (i + q.len_kv - q.len_q);
        r->score[j] = -HUGE_VAL;
        if (!sees(s, ahead)) continue;
        r->seen++;
        r->score[j] = raw_score(s, query, r->key + j * s->dim_qk);
        if (s->slope) r->score[j] -= v->x[SLOT_SLOPE][h] * fabs((double)ahead);
        if (s->key_bias) r->score[j] += *slot_at(v, SLOT_KEY_BIAS, q.batch, h, q.k0 + j);
        for (int64_t t = j + 1; s->decay && t <= j - ahead; t++)
            r->score[j] += fmax(*slot_at(v, SLOT_LOG_DECAY, q.batch, h, q.k0 + t), -16384);
    }
}

static void normalise(direct_row *r, const values *v, int64_t h)
{
    double largest = v->spec.sink ? v->x[SLOT_SINK][h] : -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < r->keys; j++)
        largest = fmax(largest, r->score[j]);
    for (int64_t j = 0; j < r->keys; j++)
        sum += r->seen ? exp(r->score[j] - largest) : 0;
    sum += v->spec.sink ? exp(v->x[SLOT_SINK][h] - largest) : 0;
    r->lse = sum > 0 ? largest + log(sum) : -HUGE_VAL;
    r->largest_p = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        r->p[j] = r->seen ? exp(r->score[j] - r->lse) : 0;
        r->largest_p = fmax(r->largest_p, r->p[j]);
    }
}

static void means(direct_row *r, const values *v, int64_t b, int64_t h)
{
    const spec *s = &v->spec;
    memset(r->kbar, 0, (size_t)s->dim_qk * sizeof(double));
    memset(r->vbar, 0, (size_t)s->dim_v * sizeof(double));
    for (int64_t j = 0; j < r->keys; j++) {
        const double *k = r->key + j * s->dim_qk, *value = key_at(v, SLOT_V, b, h, j);
        for (int64_t c = 0; c < s->dim_qk; c++)
            r->kbar[c] += r->p[j] * k[c];
        for (int64_t c = 0; c < s->dim_v; c++)
            r->vbar[c] += r->p[j] * value[c];
    }
}

static void spread(direct_row *r, const values *v, int64_t b, int64_t h, int64_t i)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const double *query = slot_at(v, SLOT_Q, q.batch, h, q.q0 + i);
    const double scale = s->scale != 0 ? fabs(s->scale) : 1 / sqrt((double)s->dim_qk);
    double query2 = 0, far2 = 0;
    r->trace = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        const double *k = r->key + j * s->dim_qk;
        double sum = 0;
        for (int64_t c = 0; c < s->dim_qk; c++)
            sum += (k[c] - r->kbar[c]) * (k[c] - r->kbar[c]);
        r->trace += r->p[j] * sum;
        far2 = r->score[j] > -HUGE_VAL ? fmax(far2, sum) : far2;
    }
    for (int64_t c = 0; c < s->dim_qk; c++) {
        const double x = s->score == LOAM_RBF ? query[c] - r->kbar[c] : query[c];
        query2 += x * x;
    }
    r->steepness = scale * sqrt(query2 * far2) + (s->score == LOAM_RBF ? scale / 2 * far2 : 0);
}

void direct_weights(direct_row *r, const values *v, int64_t b, int64_t h, int64_t i)
{
    see_keys(r, v, b, h, i);
    scores(r, v, b, h, i);
    normalise(r, v, h);
    means(r, v, b, h);
    spread(r, v, b, h, i);
}

double direct_ridge(const direct_row *r, const values *v, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    double ridge = s->ridge;
    switch ((loam_ridge_axes)s->ridge_axes) {
    case LOAM_RIDGE_NUMBER: ridge = s->ridge_array ? v->x[SLOT_RIDGE][0] : ridge; break;
    case LOAM_RIDGE_HEAD: ridge = v->x[SLOT_RIDGE][h]; break;
    case LOAM_RIDGE_TOKEN: ridge = *slot_at(v, SLOT_RIDGE, q.batch, h, q.q0 + i); break;
    case LOAM_RIDGE_HEAD_CHANNEL: break; /* of the recurrent family */
    case LOAM_RIDGE_CHANNEL: ridge = slot_at(v, SLOT_RIDGE, q.batch, h, q.q0 + i)[c]; break;
    }
    return ridge * (s->ridge_unit == LOAM_RIDGE_MAX     ? r->largest_p
                    : s->ridge_unit == LOAM_RIDGE_TRACE ? r->trace / (double)s->dim_qk + 1e-3
                                                        : 1);
}

void direct_output(const direct_row *r, const values *v, int64_t b, int64_t h, const double *probe, double *o)
{
    const spec *s = &v->spec;
    memset(o, 0, (size_t)s->dim_v * sizeof(double));
    for (int64_t j = 0; j < r->keys; j++) {
        const double *k = r->key + j * s->dim_qk, *value = key_at(v, SLOT_V, b, h, j);
        double u = 0;
        for (int64_t c = 0; probe && c < s->dim_qk; c++)
            u += probe[c] * (k[c] - r->kbar[c]);
        for (int64_t c = 0; c < s->dim_v; c++)
            o[c] += r->p[j] * (1 - u) * value[c];
    }
}
