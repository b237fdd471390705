/* SPDX-License-Identifier: MIT
 * Of a row, with near and far the sums of e^{x.y} over both kinds of keys, and k the estimate of far,
 *
 *     share = far / (near + far),   u = log k - log near
 *
 * the gain g gives what is far sigmoid(u + g), and its best one has sum sigmoid(u + g) = sum share, which
 * rises with g: it is found by halving. */
#include "distill/gains.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

enum { HALVINGS = 60 };

static const double most = 1e4; /* of |u|: no weight beside any other */

/* Of a thread: rows, logarithms of features and scores of a window; u and share of the rows of a head. */
typedef struct work {
    double *x, *y;     /* [T, d] */
    double *b, *a;     /* [T, M] */
    double *sum;       /* [M]: log sum of e^a over the keys that are far */
    double *score;     /* [T] */
    double *u, *share; /* [windows T] */
    int64_t rows;
} work;

static bool work_open(work *w, const student *s, const activations *a)
{
    size_t features = 0;
    const size_t T = (size_t)a->tokens, d = (size_t)s->channels, rows = T * (size_t)a->windows;
    for (int64_t i = 0; i < s->layers; i++)
        if ((size_t)s->layer[i].features > features) features = (size_t)s->layer[i].features;
    *w = (work){ .x = calloc(T, d * sizeof *w->x), .y = calloc(T, d * sizeof *w->y) };
    w->b = calloc(T, features * sizeof *w->b);
    w->a = calloc(T, features * sizeof *w->a);
    w->sum = calloc(features, sizeof *w->sum);
    w->score = calloc(T, sizeof *w->score);
    w->u = calloc(rows, sizeof *w->u);
    w->share = calloc(rows, sizeof *w->share);
    return w->x && w->y && w->b && w->a && w->sum && w->score && w->u && w->share;
}

static void work_close(work *w)
{
    double *const all[] = { w->x, w->y, w->b, w->a, w->sum, w->score, w->u, w->share };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double log_add(double x, double y)
{
    const double top = fmax(x, y);
    return isinf(top) ? top : top + log(exp(x - top) + exp(y - top));
}

static double half_norm(const double *x, int64_t d) { return cblas_ddot((int)d, x, 1, x, 1) / 2; }

/* Logarithms of the features of rows, those of keys with all that they have. */
static void map(const student_layer *l, int64_t head, const double *rows, int64_t T, int64_t d, bool keys,
                double *out)
{
    const int64_t M = l->features;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)M, (int)d, 1, rows, (int)d,
                l->z + head * M * d, (int)d, 0, out, (int)M);
    for (int64_t t = 0; keys && t < T; t++)
        for (int64_t m = 0; m < M; m++)
            out[t * M + m] += l->log_alpha[head * M + m] - half_norm(rows + t * d, d);
}

/* u and share of row t, with keys sinks .. end - 1 far. */
static void add_row(work *w, int64_t t, int64_t sinks, int64_t end, int64_t d, int64_t M)
{
    double near = -HUGE_VAL, far = -HUGE_VAL, k = -HUGE_VAL;
    cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)t + 1, (int)d, 1, w->y, (int)d, w->x + t * d, 1, 0,
                w->score, 1);
    for (int64_t j = 0; j <= t; j++) {
        double *const its = j >= sinks && j < end ? &far : &near;
        *its = log_add(*its, w->score[j]);
    }
    for (int64_t m = 0; m < M; m++)
        k = log_add(k, w->b[t * M + m] + w->sum[m]);
    k -= half_norm(w->x + t * d, d) + log((double)M);
    w->u[w->rows] = fmin(fmax(k - near, -most), most);
    w->share[w->rows++] = 1 / (1 + exp(near - far));
}

static void add_window(work *w, const student *s, const activations *a, int64_t layer, int64_t head,
                       int64_t n, int64_t window, int64_t sinks, int64_t exact)
{
    const student_layer *l = &s->layer[layer];
    const int64_t T = a->tokens, d = s->channels, M = l->features;
    student_rows(s, a, layer, head, n, window, w->x, w->y);
    map(l, head, w->x, T, d, false, w->b);
    map(l, head, w->y, T, d, true, w->a);
    for (int64_t m = 0; m < M; m++)
        w->sum[m] = -HUGE_VAL;
    for (int64_t t = sinks + exact; t < T; t++) {
        for (int64_t m = 0; m < M; m++)
            w->sum[m] = log_add(w->sum[m], w->a[(t - exact) * M + m]);
        add_row(w, t, sinks, t - exact + 1, d, M);
    }
}

static double best_gain(const work *w)
{
    double from = -2 * most, to = 2 * most, wanted = 0;
    for (int64_t i = 0; i < w->rows; i++)
        wanted += w->share[i];
    for (int i = 0; i < HALVINGS && w->rows > 0; i++) {
        const double middle = (from + to) / 2;
        double sum = 0;
        for (int64_t r = 0; r < w->rows; r++)
            sum += 1 / (1 + exp(-w->u[r] - middle));
        if (sum < wanted)
            from = middle;
        else
            to = middle;
    }
    return (from + to) / 2;
}

static int head_gains(student *s, const activations *a, int64_t place, int64_t sinks, int64_t window)
{
    const int64_t layer = place / s->heads, head = place % s->heads;
    work w;
    const bool there = work_open(&w, s, a);
    for (int64_t n = 0; there && n < s->queries; n++) {
        w.rows = 0;
        for (int64_t i = 0; i < a->windows; i++)
            add_window(&w, s, a, layer, head, n, i, sinks, window);
        s->layer[layer].gain[head * s->queries + n] = best_gain(&w);
    }
    work_close(&w);
    return there ? 0 : 1;
}

int student_gains(student *s, const activations *a, int64_t sinks, int64_t window, int threads,
                  io_error *error)
{
    int short_of = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(+ : short_of)
    for (int64_t place = 0; place < s->layers * s->heads; place++)
        short_of += head_gains(s, a, place, sinks, window);
    return short_of == 0 ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for gains");
}

double student_gain_of_used(const student *s, int64_t layer, int64_t head, int64_t n)
{
    const student_layer *l = &s->layer[layer];
    return l->gain[head * s->queries + n] + log((double)l->used[head] / (double)l->features);
}
