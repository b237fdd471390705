/* SPDX-License-Identifier: MIT */
#include "cli/ridge/law.h"

#include <math.h>
#include <stdlib.h>

const double law_ridges[LAW_RIDGES] = { 1e4, 1e3, 300 };

enum { ROWS = 512 };

/* weights: p_ij; kbar, vbar are their means. */
static void means_of(const float *q, const float *k, const float *v, int64_t n, int64_t stride, int64_t dim,
                     double scale, double *weights, double *kbar, double *vbar)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        double s = 0;
        for (int64_t c = 0; c < dim; c++)
            s += (double)q[c] * (double)k[j * stride + c];
        weights[j] = scale * s, most = fmax(most, weights[j]);
    }
    for (int64_t j = 0; j < n; j++)
        sum += weights[j] = exp(weights[j] - most);
    for (int64_t c = 0; c < dim; c++)
        kbar[c] = vbar[c] = 0;
    for (int64_t j = 0; j < n; j++) {
        weights[j] /= sum;
        for (int64_t c = 0; c < dim; c++) {
            kbar[c] += weights[j] * (double)k[j * stride + c];
            vbar[c] += weights[j] * (double)v[j * stride + c];
        }
    }
}

void law_row(const float *q, const float *k, const float *v, int64_t n, int64_t stride, int64_t dim,
             double scale, double *weights, double *vbar, double *first)
{
    double kbar[LOAM_MAX_DIM];
    means_of(q, k, v, n, stride, dim, scale, weights, kbar, vbar);
    for (int64_t c = 0; c < dim; c++)
        first[c] = 0;
    for (int64_t j = 0; j < n; j++) {
        double along = 0;
        for (int64_t c = 0; c < dim; c++)
            along += ((double)k[j * stride + c] - kbar[c]) * ((double)q[c] - kbar[c]);
        for (int64_t c = 0; c < dim; c++)
            first[c] += weights[j] * along * ((double)v[j * stride + c] - vbar[c]);
    }
}

/* What is compared of a layer: for each row of each head vbar and X (q - kbar), [rows][heads][dim]. */
typedef struct law_rows {
    const ridge_plan *plan;
    const lm_config *config;
    int64_t rows;
    float *q, *k, *v, *o;           /* rows of all heads, in host memory */
    double *vbar, *first, *weights; /* weights: [rows of a thread's own][rows] */
} law_rows;

static void fill_rows(law_rows *r, int64_t layer)
{
    const int64_t dim = r->config->head_dim, heads = r->config->heads_q, kv = r->config->heads_kv * dim;
    const int64_t group = heads / r->config->heads_kv;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t place = (i * heads + h) * dim, from = h / group * dim;
            law_row(r->q + place, r->k + from, r->v + from, r->plan->encoder ? r->rows : i + 1, kv, dim,
                    lm_config_scale(r->config, layer), r->weights + i * r->rows, r->vbar + place,
                    r->first + place);
        }
}

/* Adds the squares of what is left and of what is said. */
static void compare(const law_rows *r, double ridge, double sums[2])
{
    const int64_t width = r->config->heads_q * r->config->head_dim;
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t c = 0; c < width; c++) {
            const double said = r->first[i * width + c];
            const double got = (double)r->o[i * width + c] - r->vbar[i * width + c];
            sums[0] += pow(ridge * got - said, 2);
            sums[1] += said * said;
        }
}

static int measure_layer(engine *e, law_rows *r, int64_t layer, double sums[LAW_RIDGES][2], io_error *error)
{
    lm_heads of;
    const lm_model *const m = engine_model(e);
    int status = engine_heads(e, layer, INFINITY, r->rows, &of, error);
    if (!status) status = lm_model_fetch(m, r->q, of.q, error);
    if (!status) status = lm_model_fetch(m, r->k, of.k, error);
    if (!status) status = lm_model_fetch(m, r->v, of.v, error);
    if (!status) fill_rows(r, layer);
    for (int n = 0; !status && n < LAW_RIDGES; n++) {
        status = engine_heads(e, layer, law_ridges[n], r->rows, &of, error);
        if (!status) status = lm_model_fetch(m, r->o, of.o, error);
        if (!status) compare(r, law_ridges[n], sums[n]);
    }
    return status;
}

static int measure_layers(engine *e, law_rows *r, double (*ratios)[LAW_RIDGES], io_error *error)
{
    double whole[LAW_RIDGES][2] = { { 0 } };
    int status = 0;
    for (int64_t layer = 0; !status && layer < r->plan->layers; layer++) {
        double sums[LAW_RIDGES][2] = { { 0 } };
        status = measure_layer(e, r, layer, sums, error);
        for (int n = 0; n < LAW_RIDGES; n++) {
            ratios[layer][n] = sqrt(sums[n][0] / sums[n][1]);
            whole[n][0] += sums[n][0], whole[n][1] += sums[n][1];
        }
    }
    for (int n = 0; n < LAW_RIDGES; n++)
        ratios[r->plan->layers][n] = sqrt(whole[n][0] / whole[n][1]);
    return status;
}

int law_measure(engine *e, const ridge_plan *p, double (*ratios)[LAW_RIDGES], io_error *error)
{
    const int64_t inputs = p->windows[0].at.inputs;
    law_rows r = { .plan = p,
                   .config = lm_model_config(engine_model(e)),
                   .rows = inputs < ROWS ? inputs : ROWS };
    const size_t places = (size_t)(r.rows * p->heads * p->head_dim);
    r.vbar = calloc(places, sizeof *r.vbar), r.first = calloc(places, sizeof *r.first);
    r.weights = calloc((size_t)(r.rows * r.rows), sizeof *r.weights);
    r.q = calloc(places, sizeof *r.q), r.k = calloc(places, sizeof *r.k);
    r.v = calloc(places, sizeof *r.v), r.o = calloc(places, sizeof *r.o);
    const bool there = r.vbar && r.first && r.weights && r.q && r.k && r.v && r.o;
    int status = there ? engine_begin(e, 0, 1, error)
                       : io_fail(error, EXIT_INTERNAL, "out of memory for the law");
    if (!status) status = measure_layers(e, &r, ratios, error);
    free(r.vbar);
    free(r.first);
    free(r.weights);
    free(r.q);
    free(r.k);
    free(r.v);
    free(r.o);
    return status;
}
