/* SPDX-License-Identifier: MIT */
#include "distill/student.h"

#include "distill/balance.h"
#include "dof/draw.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 2048 };

static const double no_weight = -1e4; /* a log alpha */

static bool take(student *s, const int64_t *features)
{
    const size_t heads = (size_t)s->heads, d = (size_t)s->channels;
    s->layer = calloc((size_t)s->layers, sizeof *s->layer);
    bool there = s->layer != NULL;
    for (int64_t i = 0; there && i < s->layers; i++) {
        student_layer *const l = &s->layer[i];
        const size_t rows = heads * (size_t)features[i];
        l->features = features[i];
        l->used = calloc(heads, sizeof *l->used);
        l->z = calloc(rows, d * sizeof *l->z);
        l->log_alpha = calloc(rows, sizeof *l->log_alpha);
        l->shift = calloc(heads, d * sizeof *l->shift);
        l->balance = calloc(heads, d * d * sizeof *l->balance);
        l->balance_keys = calloc(heads, d * d * sizeof *l->balance_keys);
        l->gain = calloc(heads * (size_t)s->queries, sizeof *l->gain);
        there = l->used && l->z && l->log_alpha && l->shift && l->balance && l->balance_keys && l->gain;
        for (size_t h = 0; there && h < heads; h++)
            l->used[h] = features[i];
        for (size_t e = 0; there && e < heads * d; e++)
            l->balance[e * d + e % d] = l->balance_keys[e * d + e % d] = 1;
    }
    return there;
}

int student_open(student *s, const activations *a, const int64_t *features, bool shared, io_error *error)
{
    *s = (student){ .layers = a->layers,
                    .channels = a->channels,
                    .heads = shared ? a->heads_kv : a->heads_q,
                    .queries = shared ? a->heads_q / a->heads_kv : 1 };
    for (int64_t i = 0; i < a->layers; i++)
        if (features[i] < 1 || features[i] > LOAM_MAX_DIM)
            return io_fail(error, EXIT_USAGE, "%" PRId64 " features in layer %" PRId64 ": expected 1 to %d",
                           features[i], i, LOAM_MAX_DIM);
    /* Heads are shared out here, so that bits do not depend on threads. */
    openblas_set_num_threads(1);
    if (take(s, features)) return 0;
    student_close(s);
    return io_fail(error, EXIT_INTERNAL, "out of memory for features");
}

void student_close(student *s)
{
    for (int64_t i = 0; s->layer && i < s->layers; i++) {
        free(s->layer[i].used);
        free(s->layer[i].z);
        free(s->layer[i].z_keys);
        free(s->layer[i].log_alpha);
        free(s->layer[i].shift);
        free(s->layer[i].balance);
        free(s->layer[i].balance_keys);
        free(s->layer[i].gain);
    }
    free(s->layer);
    *s = (student){ 0 };
}

void student_use(student *s, const int64_t *used)
{
    for (int64_t i = 0; i < s->layers; i++)
        memcpy(s->layer[i].used, used + i * s->heads, (size_t)s->heads * sizeof *used);
}

void student_beside(student *s, int64_t sinks, int64_t window) { s->sinks = sinks, s->window = window; }

/* ---- all heads, side by side */

typedef struct work {
    student *s;
    const activations *a;
    bool balance;
    uint64_t seed;
} work;

typedef int of_head(const work *w, int64_t layer, int64_t head, io_error *error);

/* The error of the first head that has one, whatever the number of threads. */
static int each_head(const work *w, of_head *what, int threads, io_error *error)
{
    const int64_t heads = w->s->layers * w->s->heads;
    int64_t first = heads;
    int status = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t n = 0; n < heads; n++) {
        io_error its;
        const int failed = what(w, n / w->s->heads, n % w->s->heads, &its);
#pragma omp critical
        if (failed && n < first) {
            first = n, status = failed;
            if (error) *error = its;
        }
    }
    return status;
}

/* ---- calibration */

static int calibrate_head(const work *w, int64_t layer, int64_t head, io_error *error)
{
    const student *s = w->s;
    const student_layer *l = &s->layer[layer];
    const int64_t d = s->channels;
    const double factor = sqrt(w->a->scale[layer]);
    balance_sums x = { 0 }, y = { 0 };
    int status = balance_open(&x, d, error);
    if (!status) status = balance_open(&y, d, error);
    for (int64_t window = 0; !status && window < w->a->windows; window++)
        for (int64_t n = 0; n < s->queries; n++) {
            const dof_text t = activations_text(w->a, layer, head * s->queries + n, window);
            balance_add(&x, t.q, t.q_row, t.count, factor);
            if (n == 0) balance_add(&y, t.k, t.k_row, t.count, factor);
        }
    if (!status) balance_shift(&x, &y, factor, l->shift + head * d);
    if (!status && w->balance)
        status = balance_matrices(&x, &y, factor, l->shift + head * d, l->balance + head * d * d,
                                  l->balance_keys + head * d * d, error);
    balance_close(&x);
    balance_close(&y);
    return status;
}

int student_calibrate(student *s, const activations *a, bool balance, int threads, io_error *error)
{
    const work w = { .s = s, .a = a, .balance = balance };
    return each_head(&w, calibrate_head, threads, error);
}

/* ---- rows */

/* out = factor (rows - shift) m^T. */
static void map(const float *rows, int64_t row, int64_t count, int64_t d, double factor, const double *shift,
                const double *m, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        double from[LOAM_MAX_DIM];
        for (int64_t c = 0; c < d; c++)
            from[c] = factor * ((double)rows[i * row + c] - (shift ? shift[c] : 0));
        cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)d, (int)d, 1, m, (int)d, from, 1, 0, out + i * d, 1);
    }
}

void student_rows(const student *s, const activations *a, int64_t layer, int64_t head, int64_t n,
                  int64_t window, double *x, double *y)
{
    const student_layer *l = &s->layer[layer];
    const int64_t d = s->channels;
    const dof_text t = activations_text(a, layer, head * s->queries + n, window);
    map(t.q, t.q_row, t.count, d, sqrt(t.scale), NULL, l->balance + head * d * d, x);
    if (y)
        map(t.k, t.k_row, t.count, d, sqrt(t.scale), l->shift + head * d, l->balance_keys + head * d * d, y);
}

static void put(float *out, const double *from, int64_t d)
{
    for (int64_t c = 0; c < d; c++)
        out[c] = (float)from[c];
}

void student_wide_row(const student *s, int64_t layer, student_array which, int64_t row, float *out)
{
    const student_layer *l = &s->layer[layer];
    const int64_t d = s->channels, head = row / (2 * d), i = row % (2 * d);
    memset(out, 0, 2 * (size_t)d * sizeof *out);
    switch (which) {
    case STUDENT_Z:
        put(out, l->z + row * d, d);
        put(out + d, l->z_keys + row * d, d);
        break;
    case STUDENT_SHIFT: put(out + d, l->shift + row * d, d); break;
    case STUDENT_BALANCE:
        if (i < d) put(out, l->balance + (head * d + i) * d, d);
        break;
    case STUDENT_BALANCE_KEYS:
        if (i >= d) put(out + d, l->balance_keys + (head * d + i - d) * d, d);
        break;
    }
}

/* ---- beginnings */

const char *student_start_name(int start)
{
    static const char *const names[] = { "pairs", "normal", "orthogonal", "dct", "uniform" };
    return start >= 0 && start < STUDENT_STARTS ? names[start] : NULL;
}

/* Room for a text as pairs are drawn from: float32 rows, and what they are rounded from. */
typedef struct drawing {
    double *rows; /* x, y */
    float *q, *k;
    draw_pairs all;
} drawing;

static int open_drawing(drawing *g, const work *w, io_error *error)
{
    const size_t d = (size_t)w->s->channels, tokens = (size_t)w->a->tokens;
    *g = (drawing){ .all = { .count = PAIRS, .dim = w->s->channels } };
    g->rows = calloc(2 * tokens, d * sizeof *g->rows);
    g->q = calloc(tokens, d * sizeof *g->q);
    g->k = calloc(tokens, d * sizeof *g->k);
    g->all.sums = calloc(PAIRS, d * sizeof *g->all.sums);
    g->all.squares = calloc(PAIRS, sizeof *g->all.squares);
    if (g->rows && g->q && g->k && g->all.sums && g->all.squares) return 0;
    return io_fail(error, EXIT_INTERNAL, "out of memory for pairs of queries and keys");
}

static void close_drawing(drawing *g)
{
    draw_pairs_close(&g->all);
    free(g->rows);
    free(g->q);
    free(g->k);
}

/* Pairs first .. end - 1 are those of one text. */
static int draw_text(drawing *g, const work *w, int64_t layer, int64_t head, int64_t text, random_stream from,
                     int64_t first, int64_t end, io_error *error)
{
    const int64_t d = w->s->channels,
                  count = w->a->begins[text / w->s->queries + 1] - w->a->begins[text / w->s->queries];
    double *const x = g->rows, *const y = x + count * d;
    draw_pairs some;
    if (first == end) return 0;
    student_rows(w->s, w->a, layer, head, text % w->s->queries, text / w->s->queries, x, y);
    for (int64_t e = 0; e < count * d; e++)
        g->q[e] = (float)x[e], g->k[e] = (float)y[e];
    /* Key t - window of row t, and those before it, are keys 0 .. t' of row t' = t - sinks - window. */
    const int64_t skip = w->s->window > 0 && w->s->sinks + w->s->window < count ? w->s->sinks + w->s->window
                                                                                : 0;
    const dof_text rows = { g->q + skip * d, g->k + (skip > 0 ? w->s->sinks : 0) * d, d, d, count - skip, 1,
                            w->a->causal };
    const int status = draw_pairs_open(&some, &rows, d, 0, end - first, from, error);
    if (status) return status;
    memcpy(g->all.sums + first * d, some.sums, (size_t)((end - first) * d) * sizeof *some.sums);
    memcpy(g->all.squares + first, some.squares, (size_t)(end - first) * sizeof *some.squares);
    draw_pairs_close(&some);
    return 0;
}

static int pairs_of_head(const work *w, int64_t layer, int64_t head, io_error *error)
{
    const student_layer *l = &w->s->layer[layer];
    const int64_t M = l->features, texts = w->a->windows * w->s->queries;
    double *const z = l->z + head * M * w->s->channels, *const log_alpha = l->log_alpha + head * M;
    const random_stream from = { w->seed, (uint64_t)(layer * w->s->heads + head) << 32 };
    drawing g;
    int status = open_drawing(&g, w, error);
    for (int64_t n = 0; !status && n < texts; n++)
        status = draw_text(&g, w, layer, head, n, (random_stream){ from.seed, from.stream + 2 + (uint64_t)n },
                           PAIRS * n / texts, PAIRS * (n + 1) / texts, error);
    if (!status) draw_features(&g.all, l->used[head], from, z, log_alpha);
    close_drawing(&g);
    return status;
}

static int project(student *s, loam_projection how, uint64_t seed, io_error *error)
{
    int status = 0;
    for (int64_t i = 0; !status && i < s->layers; i++) {
        student_layer *const l = &s->layer[i];
        const loam_view z = loam_dense_out(l->z, s->heads, l->features, s->channels);
        loam_error reason;
        memset(l->log_alpha, 0, (size_t)(s->heads * l->features) * sizeof *l->log_alpha);
        if (loam_projection_draw(how, (seed << 16) + (uint64_t)i, s->heads, l->features, s->channels,
                                 LOAM_F64, &z, &reason))
            status = io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    }
    return status;
}

static void forget_all(student *s)
{
    const size_t square = (size_t)(s->channels * s->channels);
    for (int64_t i = 0; i < s->layers; i++) {
        const student_layer *l = &s->layer[i];
        memset(l->z, 0, (size_t)(s->heads * l->features * s->channels) * sizeof *l->z);
        memset(l->log_alpha, 0, (size_t)(s->heads * l->features) * sizeof *l->log_alpha);
        memset(l->balance, 0, (size_t)s->heads * square * sizeof *l->balance);
        memset(l->balance_keys, 0, (size_t)s->heads * square * sizeof *l->balance_keys);
    }
}

/* Features that a head does not use. */
static void forget_unused(student *s)
{
    const int64_t d = s->channels;
    for (int64_t i = 0; i < s->layers * s->heads; i++) {
        const student_layer *l = &s->layer[i / s->heads];
        const int64_t head = i % s->heads, M = l->features;
        for (int64_t m = l->used[head]; m < M; m++) {
            memset(l->z + (head * M + m) * d, 0, (size_t)d * sizeof *l->z);
            l->log_alpha[head * M + m] = no_weight;
        }
    }
}

int student_untie(student *s, io_error *error)
{
    for (int64_t i = 0; i < s->layers; i++) {
        student_layer *const l = &s->layer[i];
        const size_t bytes = (size_t)(s->heads * l->features * s->channels) * sizeof *l->z;
        l->z_keys = malloc(bytes);
        if (!l->z_keys) return io_fail(error, EXIT_INTERNAL, "out of memory for features of keys");
        memcpy(l->z_keys, l->z, bytes);
    }
    return 0;
}

int student_begin(student *s, const activations *a, student_start start, uint64_t seed, int threads,
                  io_error *error)
{
    const work w = { .s = s, .a = a, .seed = seed };
    int status = 0;
    switch (start) {
    case STUDENT_PAIRS: status = each_head(&w, pairs_of_head, threads, error); break;
    case STUDENT_NORMAL: status = project(s, LOAM_PROJECTION_NORMAL, seed, error); break;
    case STUDENT_ORTHOGONAL: status = project(s, LOAM_PROJECTION_ORTHOGONAL, seed, error); break;
    case STUDENT_DCT: status = project(s, LOAM_PROJECTION_DCT, seed, error); break;
    default: forget_all(s); return 0;
    }
    if (!status) forget_unused(s);
    return status;
}
