/* SPDX-License-Identifier: MIT
 * A row p of softmax gives `far` to keys that are far, as r, and 1 - far to those that are near, as n (both
 * of sum 1). Features estimate r by s, and with the gain g give them f = sigmoid(u + g), u the logarithm of
 * the sum of estimates over the sum of what is near. Then
 *
 *     |f s - far r|^2 + |(1 - f) n - (1 - far) n|^2 = a f^2 - 2 b f + const,
 *     a = |s|^2 + |n|^2,   b = far (s.r + |n|^2)
 *
 * whose sum over rows is least at the gain: where s is unlike r, what is far gets less than in softmax. */
#include "distill/gains.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

/* Windows that are looked at; gains that are tried: steps down and up from 0, then steps that halve. */
enum { WINDOWS = 16, DOWN = 160, UP = 80, HALVINGS = 20 };

static const double step = 0.25, most = 1e4; /* of |u|: no weight beside any other */

typedef struct row_terms {
    double u, a, b;
} row_terms;

/* Of a thread: rows, features and pairs of a window; what the rows of a head come to. */
typedef struct work {
    double *x, *y;             /* [T, d] */
    double *fq, *fk, *top, *c; /* [T, M] twice, relative to [T] and [M] */
    double *score, *kernel;    /* [T, T] */
    row_terms *rows;           /* [windows T] */
    int64_t count;
} work;

static bool work_open(work *w, const student *s, const activations *a)
{
    size_t M = 0;
    const size_t T = (size_t)a->tokens, d = (size_t)s->channels;
    for (int64_t i = 0; i < s->layers; i++)
        if ((size_t)s->layer[i].features > M) M = (size_t)s->layer[i].features;
    *w = (work){ .x = calloc(T, d * sizeof *w->x), .y = calloc(T, d * sizeof *w->y) };
    w->fq = calloc(T, M * sizeof *w->fq);
    w->fk = calloc(T, M * sizeof *w->fk);
    w->top = calloc(T, sizeof *w->top);
    w->c = calloc(M, sizeof *w->c);
    w->score = calloc(T, T * sizeof *w->score);
    w->kernel = calloc(T, T * sizeof *w->kernel);
    w->rows = calloc(T, WINDOWS * sizeof *w->rows);
    return w->x && w->y && w->fq && w->fk && w->top && w->c && w->score && w->kernel && w->rows;
}

static void work_close(work *w)
{
    double *const all[] = { w->x, w->y, w->fq, w->fk, w->top, w->c, w->score, w->kernel };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(w->rows);
}

/* out [n, m] = a b^T, of rows of `depth`. */
static void products(double *out, const double *a, int64_t n, const double *b, int64_t m, int64_t depth)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)m, (int)depth, 1, a, (int)depth, b,
                (int)depth, 0, out, (int)m);
}

static double half_norm(const double *x, int64_t d) { return cblas_ddot((int)d, x, 1, x, 1) / 2; }

/* Features of keys relative to the largest logarithm of each, and those of queries to the largest of a row:
 * the logarithm of k is top plus that of fq . fk. */
static void map(work *w, const student_layer *l, int64_t head, int64_t T, int64_t d)
{
    const int64_t M = l->features;
    const double *z = l->z + head * M * d;
    products(w->fk, w->y, T, z, M, d);
    products(w->fq, w->x, T, z, M, d);
    for (int64_t m = 0; m < M; m++)
        w->c[m] = -HUGE_VAL;
    for (int64_t e = 0; e < T * M; e++) {
        w->fk[e] += l->log_alpha[head * M + e % M] - half_norm(w->y + e / M * d, d);
        w->c[e % M] = fmax(w->c[e % M], w->fk[e]);
    }
    for (int64_t t = 0; t < T; t++) {
        double top = -HUGE_VAL;
        for (int64_t m = 0; m < M; m++)
            top = fmax(top, w->fq[t * M + m] + w->c[m]);
        for (int64_t m = 0; m < M; m++) {
            w->fq[t * M + m] = exp(w->fq[t * M + m] + w->c[m] - top);
            w->fk[t * M + m] = exp(w->fk[t * M + m] - w->c[m]);
        }
        w->top[t] = top - half_norm(w->x + t * d, d) - log((double)M);
    }
}

/* Row t, whose keys first .. end - 1 are far. */
static void add_row(work *w, int64_t t, int64_t first, int64_t end, int64_t T)
{
    const double *score = w->score + t * T, *kernel = w->kernel + t * T;
    double most_score = -HUGE_VAL, near = 0, far = 0, sum = 0, nn = 0, ss = 0, sr = 0;
    for (int64_t j = 0; j <= t; j++)
        most_score = fmax(most_score, score[j]);
    for (int64_t j = 0; j <= t; j++) {
        const double p = exp(score[j] - most_score);
        if (j < first || j >= end) {
            near += p, nn += p * p;
            continue;
        }
        far += p, sum += kernel[j], ss += kernel[j] * kernel[j], sr += kernel[j] * p;
    }
    row_terms *const row = &w->rows[w->count++];
    const double share = far / (near + far), square = nn / near / near;
    if (!(sum > 0 && near > 0)) { /* no feature, or no exact weight, is left in float64 */
        *row = (row_terms){ 0 };
        return;
    }
    row->u = fmin(fmax(w->top[t] + log(sum) - most_score - log(near), -most), most);
    row->a = ss / sum / sum + square;
    row->b = (far > 0 ? sr / sum / far : 0) * share + share * square;
}

static void add_window(work *w, const student *s, const activations *a, int64_t layer, int64_t head,
                       int64_t n, int64_t window, int64_t sinks, int64_t exact)
{
    const student_layer *l = &s->layer[layer];
    const int64_t T = a->tokens, d = s->channels;
    student_rows(s, a, layer, head, n, window, w->x, w->y);
    map(w, l, head, T, d);
    products(w->score, w->x, T, w->y, T, d);
    products(w->kernel, w->fq, T, w->fk, T, l->features);
    for (int64_t t = sinks + exact; t < T; t++)
        add_row(w, t, sinks, t - exact + 1, T);
}

static double squares(const work *w, double gain)
{
    double sum = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const row_terms *r = &w->rows[i];
        const double f = 1 / (1 + exp(-r->u - gain));
        sum += r->a * f * f - 2 * r->b * f;
    }
    return sum;
}

/* Of several minima the least, to the width of the steps. */
static double best_gain(const work *w)
{
    double best = 0, least = squares(w, 0), width = step;
    for (int i = -DOWN; i <= UP && w->count > 0; i++) {
        const double its = squares(w, i * step);
        if (its < least) best = i * step, least = its;
    }
    for (int i = 0; i < HALVINGS && w->count > 0; i++, width /= 2)
        for (int side = -1; side <= 1; side += 2) {
            const double at = best + side * width / 2, its = squares(w, at);
            if (its < least) best = at, least = its;
        }
    return best;
}

static int head_gains(student *s, const activations *a, int64_t place, int64_t sinks, int64_t window)
{
    const int64_t layer = place / s->heads, head = place % s->heads,
                  windows = a->windows < WINDOWS ? a->windows : WINDOWS;
    work w;
    const bool there = work_open(&w, s, a);
    for (int64_t n = 0; there && n < s->queries; n++) {
        w.count = 0;
        for (int64_t i = 0; i < windows; i++)
            add_window(&w, s, a, layer, head, n, i * a->windows / windows, sinks, window);
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
