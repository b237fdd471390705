/* SPDX-License-Identifier: MIT */
#include "dof/draw.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 }; /* candidates whose leverage is computed at once */
static const double from_pairs = 0.95;

static random_stream after(random_stream from, uint64_t streams)
{
    from.stream += streams;
    return from;
}

static double uniform(random_stream from, uint64_t n)
{
    double x;
    random_uniforms(from, n, 1, &x);
    return x;
}

/* ---- pairs */

/* A key of row t of the attention, by a uniform number. */
static int64_t draw_key(const dof_text *text, int64_t t, int64_t dim, double u, double *weights)
{
    const int64_t keys = text->causal ? t + 1 : text->count;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        double s = 0;
        for (int64_t c = 0; c < dim; c++)
            s += (double)text->q[t * text->q_row + c] * (double)text->k[j * text->k_row + c];
        weights[j] = text->scale * s, most = fmax(most, weights[j]);
    }
    for (int64_t j = 0; j < keys; j++)
        sum += weights[j] = exp(weights[j] - most);
    int64_t at = 0;
    for (double left = u * sum; at + 1 < keys && left >= weights[at]; at++)
        left -= weights[at];
    return at;
}

static void set_sum(draw_pairs *p, int64_t n, const dof_text *text, int64_t t, int64_t key)
{
    p->squares[n] = 0;
    for (int64_t c = 0; c < p->dim; c++) {
        const double sum = (double)text->q[t * text->q_row + c] + (double)text->k[key * text->k_row + c];
        p->sums[n * p->dim + c] = sqrt(text->scale) * sum;
        p->squares[n] += text->scale * sum * sum;
    }
}

int draw_pairs_open(draw_pairs *p, const dof_text *text, int64_t dim, int64_t first, int64_t count,
                    random_stream from, io_error *error)
{
    double *weights = calloc((size_t)text->count, sizeof *weights);
    *p = (draw_pairs){ .count = count, .dim = dim };
    p->sums = calloc((size_t)count, (size_t)dim * sizeof *p->sums);
    p->squares = calloc((size_t)count, sizeof *p->squares);
    if (!weights || !p->sums || !p->squares) {
        free(weights);
        draw_pairs_close(p);
        return io_fail(error, EXIT_INTERNAL, "out of memory for pairs of queries and keys");
    }
    for (int64_t n = 0; n < count; n++) {
        uint64_t word;
        random_words(from, 2 * (uint64_t)n, 1, &word);
        const int64_t t = first + random_below(word, text->count - first);
        set_sum(p, n, text, t, draw_key(text, t, dim, uniform(from, 2 * (uint64_t)n + 1), weights));
    }
    free(weights);
    return 0;
}

void draw_pairs_close(draw_pairs *p)
{
    free(p->sums);
    free(p->squares);
    *p = (draw_pairs){ 0 };
}

/* N(z; s, I) / N(z; 0, I) = exp(z.s - |s|^2 / 2). */
double draw_log_ratio(const draw_pairs *p, const double *z)
{
    const double own = log(1 - from_pairs), part = log(from_pairs / (double)p->count);
    double most = own, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) sum = exp(own - most);
        for (int64_t n = 0; n < p->count; n++) {
            const double along = cblas_ddot((int)p->dim, z, 1, p->sums + n * p->dim, 1);
            const double term = part + along - p->squares[n] / 2;
            if (pass)
                sum += exp(term - most);
            else
                most = fmax(most, term);
        }
    }
    return most + log(sum);
}

/* Number m of q; of tau where p is NULL. */
static void draw_point(const draw_pairs *p, int64_t dim, int64_t m, random_stream from, double *z)
{
    random_normals(after(from, 1), (uint64_t)(m * dim), dim, z);
    if (!p || uniform(from, 2 * (uint64_t)m) >= from_pairs) return;
    uint64_t word;
    random_words(from, 2 * (uint64_t)m + 1, 1, &word);
    const double *const sum = p->sums + (int64_t)random_below(word, p->count) * dim;
    for (int64_t c = 0; c < dim; c++)
        z[c] += sum[c];
}

void draw_features(const draw_pairs *p, int64_t features, random_stream from, double *z, double *log_alpha)
{
    for (int64_t m = 0; m < features; m++) {
        draw_point(p, p->dim, m, from, z + m * p->dim);
        log_alpha[m] = -draw_log_ratio(p, z + m * p->dim);
    }
}

/* ---- leverage */

/* Candidates with log l, and the log of what they are drawn again by. */
typedef struct candidates {
    dof_room room;
    double *z, *log_score, *log_weight; /* [count][dim], [count], [count] */
    double *h;                          /* [BLOCK][by->count] */
} candidates;

static int open_candidates(candidates *c, const draw_leverage *by, io_error *error)
{
    const size_t count = (size_t)by->candidates;
    *c = (candidates){ 0 };
    c->z = calloc(count, (size_t)by->dim * sizeof *c->z);
    c->log_score = calloc(count, sizeof *c->log_score);
    c->log_weight = calloc(count, sizeof *c->log_weight);
    c->h = calloc(BLOCK, (size_t)by->count * sizeof *c->h);
    if (!c->z || !c->log_score || !c->log_weight || !c->h)
        return io_fail(error, EXIT_INTERNAL, "out of memory for candidates of features");
    return dof_room_open(&c->room, by->count, by->dim, false, error);
}

static void close_candidates(candidates *c)
{
    dof_room_close(&c->room);
    free(c->z);
    free(c->log_score);
    free(c->log_weight);
    free(c->h);
}

/* log l of candidates first .. first + count - 1: |L^-1 h|^2, h divided by its largest number. */
static void score_block(candidates *c, const draw_leverage *by, int64_t first, int64_t count)
{
    for (int64_t b = 0; b < count; b++) {
        const double *const z = c->z + (first + b) * by->dim;
        double *const h = c->h + b * by->count, most = -INFINITY;
        for (int64_t j = 0; j < by->count; j++) {
            h[j] = -c->room.squares[j];
            for (int64_t d = 0; d < by->dim; d++)
                h[j] += z[d] * by->factor * (double)by->x[j * by->dim + d];
            most = fmax(most, h[j]);
        }
        for (int64_t j = 0; j < by->count; j++)
            h[j] = exp(h[j] - most);
        c->log_score[first + b] = 2 * most;
    }
    cblas_dtrmm(CblasColMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (int)by->count, (int)count,
                1, c->room.matrix, (int)c->room.stride, c->h, (int)by->count);
    for (int64_t b = 0; b < count; b++) {
        const double *const u = c->h + b * by->count;
        c->log_score[first + b] += log(cblas_ddot((int)by->count, u, 1, u, 1));
    }
}

/* The running sums of the weights over the largest, in the place of their logarithms. */
static void add_up(candidates *c, int64_t count, double *n, double *effective)
{
    double most = -INFINITY, sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, c->log_weight[i]);
    for (int64_t i = 0; i < count; i++) {
        const double weight = exp(c->log_weight[i] - most);
        sum += weight, squares += weight * weight;
        c->log_weight[i] = sum;
    }
    *n = exp(most + log(sum / (double)count));
    *effective = sum * sum / squares;
}

static int64_t find(const double *running, int64_t count, double at)
{
    int64_t first = 0;
    for (int64_t end = count - 1; first < end;) {
        const int64_t middle = (first + end) / 2;
        if (running[middle] > at)
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}

static int fill(candidates *c, const draw_leverage *by, random_stream from, io_error *error)
{
    double of_sample;
    dof_sample(&c->room, by->x, by->count, by->factor);
    if (!dof_kernel(&c->room, DOF_ABS, by->lambda, by->count, &of_sample, NULL))
        return io_fail(error, EXIT_INPUT, "queries and keys whose kernel is no number");
    for (int64_t i = 0; i < by->candidates; i++)
        draw_point(by->pairs, by->dim, i, from, c->z + i * by->dim);
    for (int64_t first = 0; first < by->candidates; first += BLOCK)
        score_block(c, by, first, by->candidates - first < BLOCK ? by->candidates - first : BLOCK);
    for (int64_t i = 0; i < by->candidates; i++)
        c->log_weight[i] = c->log_score[i] - (by->pairs ? draw_log_ratio(by->pairs, c->z + i * by->dim) : 0);
    return 0;
}

int draw_by_leverage(const draw_leverage *by, int64_t features, random_stream from, double *z,
                     double *log_alpha, double *n, double *effective, io_error *error)
{
    candidates c;
    int status = open_candidates(&c, by, error);
    if (!status) status = fill(&c, by, from, error);
    if (!status) {
        add_up(&c, by->candidates, n, effective);
        const double total = c.log_weight[by->candidates - 1];
        for (int64_t m = 0; m < features; m++) {
            const int64_t at = find(c.log_weight, by->candidates,
                                    uniform(after(from, 2), (uint64_t)m) * total);
            memcpy(z + m * by->dim, c.z + at * by->dim, (size_t)by->dim * sizeof *z);
            log_alpha[m] = log(*n) - c.log_score[at];
        }
    }
    close_candidates(&c);
    return status;
}
