/* SPDX-License-Identifier: MIT
 * 64 queries at a time. Their features and those of the keys that they see are relative to the largest
 * logarithm of each feature over these keys, and of each row, which cancel, so that nothing overflows. */
#include "train/feature_loss.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

enum { ROWS = 64 };

/* fq . fk below this counts as this, and has no gradient: a key of the block that comes later may leave so
 * little. */
#define LEAST 1e-200

/* Rows of queries first .. first + count - 1, which see keys 0 .. keys - 1, the last ones not all of them. */
typedef struct work {
    const feature_loss *l;
    int64_t first, count, keys;
    double *a;                   /* logarithms of all keys [T, M] */
    double *da;                  /* their gradients [T, M] */
    double *c;                   /* [M]: the largest so far */
    double *fk, *dfk;            /* features of the keys relative to c [T, M], and their gradients */
    double *fq, *dfq;            /* those of the rows [ROWS, M] */
    double *factor;              /* [ROWS]: k_tj of an l2 loss is this times fq . fk */
    double *kernel, *exact, *dg; /* fq . fk, x . y and the gradient of the first [ROWS, T] */
} work;

static size_t carve(work *w, const feature_loss *l, double *at)
{
    const int64_t T = l->tokens, M = l->features;
    const struct {
        double **to;
        int64_t count;
    } pieces[] = { { &w->a, T * M },        { &w->da, T * M },    { &w->c, M },
                   { &w->fk, T * M },       { &w->dfk, T * M },   { &w->fq, ROWS * M },
                   { &w->dfq, ROWS * M },   { &w->factor, ROWS }, { &w->kernel, ROWS * T },
                   { &w->exact, ROWS * T }, { &w->dg, ROWS * T } };
    size_t used = 0;
    w->l = l;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        *pieces[i].to = at ? at + used : NULL;
        used += (size_t)pieces[i].count;
    }
    return used;
}

size_t feature_loss_doubles(const feature_loss *l)
{
    work w;
    return carve(&w, l, NULL);
}

/* c [rows, columns] = a b^T (+ c), of rows of `depth`. */
static void products(double *c, int64_t rows, int64_t columns, const double *a, const double *b,
                     int64_t depth)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns, (int)depth, 1, a,
                (int)depth, b, (int)depth, 0, c, (int)columns);
}

static double half_norm(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * x[c] / 2;
    return sum;
}

static int64_t seen(const work *w, int64_t i) { return w->l->causal ? w->first + i + 1 : w->keys; }

/* ------------------------------------------------------------------ features */

static void map_all_keys(const work *w)
{
    const feature_loss *l = w->l;
    products(w->a, l->tokens, l->features, l->y, l->z_keys ? l->z_keys : l->z, l->channels);
    for (int64_t j = 0; j < l->tokens; j++) {
        const double half = half_norm(l->y + j * l->channels, l->channels);
        for (int64_t m = 0; m < l->features; m++)
            w->a[j * l->features + m] += l->log_alpha[m] - half;
    }
}

/* Features of the keys, from key `from` on new to the largest logarithms. */
static void map_keys(const work *w, int64_t from)
{
    const int64_t M = w->l->features;
    for (int64_t e = from * M; e < w->keys * M; e++)
        w->c[e % M] = fmax(w->c[e % M], w->a[e]);
    for (int64_t e = 0; e < w->keys * M; e++)
        w->fk[e] = exp(w->a[e] - w->c[e % M]);
}

static void map_rows(const work *w)
{
    const feature_loss *l = w->l;
    const int64_t M = l->features;
    const double *x = l->x + w->first * l->channels;
    products(w->fq, w->count, M, x, l->z, l->channels);
    for (int64_t i = 0; i < w->count; i++) {
        double *row = w->fq + i * M, top = -HUGE_VAL;
        for (int64_t m = 0; m < M; m++)
            top = fmax(top, row[m] += w->c[m]);
        for (int64_t m = 0; m < M; m++)
            row[m] = exp(row[m] - top);
        w->factor[i] = top - half_norm(x + i * l->channels, l->channels) - log((double)M);
    }
}

/* ------------------------------------------------------------------ losses of a row, and in dg their
 * gradients by kernel */

/* x . y of row i less its log sum over the keys that it sees, which is returned. */
static double normalise(const work *w, int64_t i)
{
    double *row = w->exact + i * w->keys, top = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < seen(w, i); j++)
        top = fmax(top, row[j]);
    for (int64_t j = 0; j < seen(w, i); j++)
        sum += exp(row[j] - top);
    for (int64_t j = 0; j < seen(w, i); j++)
        row[j] -= top + log(sum);
    return top + log(sum);
}

static double row_softmax(const work *w, int64_t i)
{
    const double *kernel = w->kernel + i * w->keys, *log_p = w->exact + i * w->keys;
    double *dg = w->dg + i * w->keys, sum = 0, loss = 0;
    normalise(w, i);
    for (int64_t j = 0; j < seen(w, i); j++)
        sum += fmax(kernel[j], LEAST);
    for (int64_t j = 0; j < seen(w, i); j++) {
        const double p = exp(log_p[j]), k = fmax(kernel[j], LEAST);
        loss -= p * log(k / sum);
        dg[j] = kernel[j] > LEAST ? 1 / sum - p / k : 0;
    }
    return loss;
}

/* The same beside a window. What is near has one weight, e^a in the unit of the kernel. */
static double row_joint(const work *w, int64_t i)
{
    const double *kernel = w->kernel + i * w->keys, *log_p = w->exact + i * w->keys;
    const int64_t first = w->l->sinks, end = seen(w, i) - w->l->window;
    double *dg = w->dg + i * w->keys, near = 0, sum = 0, loss = 0;
    const double all = normalise(w, i);
    for (int64_t j = 0; j < seen(w, i); j++) {
        const bool far = j >= first && j < end;
        dg[j] = 0;
        near += far ? 0 : exp(log_p[j]);
        sum += far ? fmax(kernel[j], LEAST) : 0;
        loss -= far ? 0 : exp(log_p[j]) * log_p[j];
    }
    if (end <= first) return loss;
    near = fmax(near, LEAST);
    const double a = all + log(near) - w->l->gain - w->factor[i], top = fmax(a, log(sum)),
                 total = top + log(exp(a - top) + sum * exp(-top));
    loss += near * (log(near) - a + total);
    for (int64_t j = first; j < end; j++) {
        const double p = exp(log_p[j]), k = fmax(kernel[j], LEAST);
        loss -= p * (log(k) - total);
        dg[j] = kernel[j] > LEAST ? exp(-total) - p / k : 0;
    }
    return loss;
}

static double row_squares(const work *w, int64_t i)
{
    const double *kernel = w->kernel + i * w->keys, *exact = w->exact + i * w->keys;
    const bool by_row = w->l->kind == FEATURE_LOSS_L2ROW;
    const double unit = by_row ? normalise(w, i) : w->l->largest, factor = exp(w->factor[i] - unit);
    double *dg = w->dg + i * w->keys, loss = 0;
    for (int64_t j = 0; j < seen(w, i); j++) {
        const double off = factor * kernel[j] - exp(by_row ? exact[j] : exact[j] - unit);
        loss += off * off;
        dg[j] = 2 * off * factor;
    }
    return loss;
}

/* ------------------------------------------------------------------ a block of rows */

/* The sum of the losses of the rows. */
static double losses(const work *w)
{
    const feature_loss *l = w->l;
    double sum = 0;
    products(w->kernel, w->count, w->keys, w->fq, w->fk, l->features);
    products(w->exact, w->count, w->keys, l->x + w->first * l->channels, l->y, l->channels);
    for (int64_t i = 0; i < w->count; i++) {
        sum += l->kind != FEATURE_LOSS_SOFTMAX ? row_squares(w, i)
               : l->window > 0                 ? row_joint(w, i)
                                               : row_softmax(w, i);
        for (int64_t j = seen(w, i); j < w->keys; j++)
            w->dg[i * w->keys + j] = 0;
    }
    return sum;
}

/* Adds the gradients of the logarithms of keys to da, those of rows, times x, to grad_z. */
static void gradients(const work *w, double part, double *grad_z)
{
    const feature_loss *l = w->l;
    const int M = (int)l->features, d = (int)l->channels, keys = (int)w->keys, count = (int)w->count;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, M, keys, part, w->dg, keys, w->fk, M, 0,
                w->dfq, M);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, M, count, part, w->dg, keys, w->fq, M, 0,
                w->dfk, M);
    for (int64_t e = 0; e < w->keys * M; e++)
        w->da[e] += w->dfk[e] * w->fk[e];
    for (int64_t e = 0; e < w->count * M; e++)
        w->dfq[e] *= w->fq[e];
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, M, d, count, 1, w->dfq, M, l->x + w->first * d, d, 1,
                grad_z, d);
}

static double pairs(const feature_loss *l)
{
    const double T = (double)l->tokens;
    return l->causal ? T * (T + 1) / 2 : T * T;
}

double feature_loss_run(const feature_loss *l, double *grad_z, double *grad_z_keys, double *grad_log_alpha,
                        double *at)
{
    work w;
    const int64_t T = l->tokens, M = l->features;
    const int d = (int)l->channels;
    const double part = T == 0 ? 0 : 1 / (l->kind == FEATURE_LOSS_L2 ? pairs(l) : (double)T);
    double sum = 0;
    if (T == 0) return 0;
    carve(&w, l, at);
    map_all_keys(&w);
    memset(w.da, 0, (size_t)(T * M) * sizeof *w.da);
    for (int64_t m = 0; m < M; m++)
        w.c[m] = -HUGE_VAL;
    for (w.first = 0, w.keys = 0; w.first < T; w.first += ROWS) {
        const int64_t from = w.keys;
        w.count = T - w.first < ROWS ? T - w.first : ROWS;
        w.keys = l->causal ? w.first + w.count : T;
        map_keys(&w, from);
        map_rows(&w);
        sum += losses(&w);
        gradients(&w, part, grad_z);
    }
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)M, d, (int)T, 1, w.da, (int)M, l->y, d, 1,
                l->z_keys ? grad_z_keys : grad_z, d);
    for (int64_t e = 0; e < T * M; e++)
        grad_log_alpha[e % M] += w.da[e];
    return part * sum;
}
