/* SPDX-License-Identifier: MIT
 * Rows of queries and keys of positive random features, 64 tokens of a head at a time in float64: their
 * logarithms are differences of large numbers, which float32 would leave with errors of more than 1e-4. */
#ifndef LOAM_RECURRENT_CPU_POSITIVE_H
#define LOAM_RECURRENT_CPU_POSITIVE_H

#include "src/recurrent/cpu/features.h"
#include "src/recurrent/positive.h"
#include "src/simd/product64.h"

enum { POSITIVE_BLOCK = 64 };

/* Scratch of a thread. Rows are padded to whole vectors of float. */
typedef struct rows {
    const positive *x;
    int64_t d, features;              /* dim_qk and M */
    int64_t width, padded;            /* of rows of d, and of M */
    int64_t head;                     /* of z that is loaded; -1: none */
    double longest, *z, *zt, *alpha;  /* |z_m|, at most; [M, width]; its transpose; log alpha */
    double *given, *at, *matrix;      /* rows as given, and x of them, [64, width]; A or B [d, width] */
    double *logs, *e, *grad, *grad_k; /* [64, padded] twice, [64, width] twice */
    float *row, *c;                   /* one row; c of the block's tokens [64, padded] */
} rows;

static inline int64_t rows_whole(int64_t n) { return (n + VL - 1) / VL * VL; }

static inline rows rows_carve(const positive *x, arena *pool)
{
    rows w = { .x = x, .d = x->p->dim_qk, .features = x->p->features, .head = -1 };
    w.width = rows_whole(w.d), w.padded = rows_whole(w.features);
    const size_t f64 = sizeof(double), d = (size_t)w.d, width = (size_t)w.width, padded = (size_t)w.padded,
                 longest = width > padded ? width : padded;
    w.z = arena_take(pool, (size_t)w.features * width, f64);
    w.zt = arena_take(pool, d * padded, f64);
    w.alpha = arena_take(pool, padded, f64);
    w.given = arena_take(pool, POSITIVE_BLOCK * width, f64);
    w.at = arena_take(pool, POSITIVE_BLOCK * width, f64);
    w.matrix = arena_take(pool, d * width, f64);
    w.logs = arena_take(pool, POSITIVE_BLOCK * padded, f64);
    w.e = arena_take(pool, POSITIVE_BLOCK * padded, f64);
    w.grad = arena_take(pool, POSITIVE_BLOCK * width, f64);
    w.grad_k = arena_take(pool, POSITIVE_BLOCK * width, f64);
    w.row = arena_take(pool, longest, sizeof(float));
    w.c = arena_take(pool, POSITIVE_BLOCK * padded, sizeof(float));
    return w;
}

/* Of the tokens first .. first + count - 1 of a sequence: those of a key head, or of a query head. */
typedef struct block {
    const recurrent_seq *seq;
    int64_t first, count;
} block;

/* The real array at row `row` of head n. */
static inline const float *rows_parameter(const loam_const_view *view, int64_t n, int64_t row)
{
    return (const float *)view->data + n * view->head + row * view->token;
}

static inline void rows_load_head(rows *w, int64_t n)
{
    if (w->head == n) return;
    const loam_args *a = w->x->a;
    const bool backward = w->x->p->pass == LOAM_BACKWARD;
    w->head = n;
    w->longest = 0;
    for (int64_t m = 0; m < w->padded; m++) {
        const float *z = m < w->features ? rows_parameter(&a->z, n, m) : NULL;
        double norm2 = 0;
        for (int64_t c = 0; c < w->d; c++) {
            const double value = z ? (double)z[c] : 0;
            w->zt[c * w->padded + m] = value;
            if (z && backward) w->z[m * w->width + c] = value;
            norm2 += value * value;
        }
        for (int64_t c = w->d; z && backward && c < w->width; c++)
            w->z[m * w->width + c] = 0;
        w->longest = norm2 > w->longest ? norm2 : w->longest;
        w->alpha[m] = z && a->log_alpha.data ? (double)rows_parameter(&a->log_alpha, n, 0)[m] : 0;
    }
    w->longest = sqrt(w->longest);
}

/* w->matrix <- A or B of the head, or its transpose. */
static inline void rows_load_matrix(const rows *w, const loam_const_view *from, bool transposed)
{
    for (int64_t r = 0; r < w->d; r++) {
        const float *row = rows_parameter(from, w->head, r);
        for (int64_t c = 0; c < w->d; c++)
            w->matrix[(transposed ? c : r) * w->width + (transposed ? r : c)] = (double)row[c];
        for (int64_t c = w->d; c < w->width; c++)
            w->matrix[r * w->width + c] = 0;
    }
}

/* w->at <- sqrt(scale) A (row - shift) of the tokens of head h of q or k. */
static inline void rows_load(const rows *w, const block *at, bool key, int64_t h)
{
    const loam_args *a = w->x->a;
    const loam_const_view *from = key ? &a->k : &a->q, *A = key ? &a->balance_keys : &a->balance;
    const float *shift = key && a->shift.data ? rows_parameter(&a->shift, w->head, 0) : NULL;
    const double root = sqrt(w->x->p->scale);
    for (int64_t i = 0; i < at->count; i++) {
        double *to = (A->data ? w->given : w->at) + i * w->width;
        load_floats(w->row, from->data, w->x->p->dtype,
                    RECURRENT_AT(*from, at->seq->b, h, at->seq->first + at->first + i), w->d);
        for (int64_t c = 0; c < w->d; c++)
            to[c] = root * ((double)w->row[c] - (shift ? (double)shift[c] : 0));
        for (int64_t c = w->d; c < w->width; c++)
            to[c] = 0;
    }
    if (A->data) {
        rows_load_matrix(w, A, true);
        product64(w->at, w->width, at->count, (matrix64){ w->given, w->width, 1 }, w->matrix, w->width, w->d,
                  w->width, false);
    }
}

static inline double rows_norm2(const rows *w, int64_t i)
{
    double sum = 0;
    for (int64_t c = 0; c < w->d; c++)
        sum += w->at[i * w->width + c] * w->at[i * w->width + c];
    return sum;
}

/* w->logs <- the logarithms of the features of the rows in w->at, before they are held. */
static inline void rows_logarithms(const rows *w, int64_t count, bool key)
{
    product64(w->logs, w->padded, count, (matrix64){ w->at, w->width, 1 }, w->zt, w->padded, w->d, w->padded,
              false);
    for (int64_t i = 0; key && i < count; i++) {
        const double half = rows_norm2(w, i) / 2;
        for (int64_t m = 0; m < w->padded; m++)
            w->logs[i * w->padded + m] += w->alpha[m] - half;
    }
}

/* Is a logarithm of the rows in w->at held? By a bound on them. */
static inline bool rows_may_be_held(const rows *w, int64_t count, bool key)
{
    double most = 0, alpha = 0;
    for (int64_t i = 0; i < count; i++) {
        const double norm2 = rows_norm2(w, i), size = w->longest * sqrt(norm2) + (key ? norm2 / 2 : 0);
        most = size > most ? size : most;
    }
    for (int64_t m = 0; key && m < w->features; m++)
        alpha = fabs(w->alpha[m]) > alpha ? fabs(w->alpha[m]) : alpha;
    return !(most + alpha < POSITIVE_BOUND);
}

static inline float *rows_features(const rows *w, void *array, const block *at, int64_t n, int64_t i,
                                   int64_t r)
{
    return (float *)array + positive_row(w->x, at->seq, n, at->first + i, r) * w->features;
}

#endif
