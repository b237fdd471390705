/* SPDX-License-Identifier: MIT
 * The reference of positive random features, float64: the logarithms
 *
 *     b_m = z_m . x,  a_m = z_m . y - |y|^2 / 2 + log alpha_m
 *
 * of each token, from them what the recurrence reads (src/recurrent/positive.h), and back. With da and db the
 * gradients of the logarithms, those of the features times these (c cancels, and has none):
 *
 *     dx = sum_m db_m z_m,   dy = sum_m da_m (z_m - y)
 *     dz_m = sum_t db_m x + da_m y,   dlog alpha_m = sum_t da_m,   dq = sqrt(scale) A^T dx,  dk likewise */
#include "src/recurrent/positive.h"
#include "src/exact/cholesky.h"

#include <math.h>
#include <string.h>

#define LARGEST 1e150 /* of x: its square is finite */

typedef struct scratch {
    double *row, *x, *z, *a, *da, *c, *dx, *dk;
} scratch;

typedef struct sums {
    double *z, *alpha; /* [heads, features, dim_qk], [heads, features] */
} sums;

static scratch scratch_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, features = (size_t)p->features, f64 = sizeof(double);
    scratch s = { .row = arena_take(pool, d, f64), .x = arena_take(pool, d, f64) };
    s.z = arena_take(pool, d, f64);
    s.dx = arena_take(pool, d, f64);
    s.dk = arena_take(pool, d, f64);
    s.a = arena_take(pool, features, f64);
    s.da = arena_take(pool, features, f64);
    s.c = arena_take(pool, features, f64);
    return s;
}

static sums sums_carve(const loam_problem *p, arena *pool)
{
    const size_t features = size_mul((size_t)recurrent_state_heads(p), (size_t)p->features);
    sums s = { .z = arena_take(pool, size_mul(features, (size_t)p->dim_qk), sizeof(double)) };
    s.alpha = arena_take(pool, features, sizeof(double));
    return s;
}

static double parameter(const positive *x, const loam_const_view *view, int64_t n, int64_t row, int64_t c)
{
    return view->data
               ? element_load(view->data, dtype_real(x->p->dtype), n * view->head + row * view->token + c)
               : 0;
}

/* ------------------------------------------------------------------ rows and their logarithms */

/* s->x <- sqrt(scale) A (row - shift), of a query (no shift) or a key. */
static void load_row(const positive *x, bool key, int64_t n, int64_t at, scratch *s)
{
    const loam_const_view *from = key ? &x->a->k : &x->a->q, *A = key ? &x->a->balance_keys : &x->a->balance;
    const int64_t d = x->p->dim_qk;
    for (int64_t c = 0; c < d; c++) {
        s->row[c] = element_load(from->data, x->p->dtype, at + c) -
                    (key ? parameter(x, &x->a->shift, n, 0, c) : 0);
    }
    for (int64_t c = 0; c < d; c++) {
        double sum = A->data ? 0 : s->row[c];
        for (int64_t j = 0; A->data && j < d; j++)
            sum += parameter(x, A, n, c, j) * s->row[j];
        s->x[c] = fmin(fmax(sqrt(x->p->scale) * sum, -LARGEST), LARGEST);
    }
}

static void load_feature(const positive *x, int64_t n, int64_t m, scratch *s)
{
    for (int64_t c = 0; c < x->p->dim_qk; c++)
        s->z[c] = parameter(x, &x->a->z, n, m, c);
}

/* The logarithm of feature m of the row in s->x, before it is held. */
static double logarithm(const positive *x, bool key, int64_t n, int64_t m, scratch *s)
{
    const int64_t d = x->p->dim_qk;
    load_feature(x, n, m, s);
    const double product = exact_dot(s->z, s->x, d);
    return key ? product - exact_dot(s->x, s->x, d) / 2 + parameter(x, &x->a->log_alpha, n, 0, m) : product;
}

static int64_t key_at(const positive *x, const recurrent_seq *s, int64_t n, int64_t t)
{
    return RECURRENT_AT(x->a->k, s->b, positive_key_head(x, n), s->first + t);
}

static int64_t query_at(const positive *x, const recurrent_seq *s, int64_t n, int64_t t, int64_t r)
{
    return RECURRENT_AT(x->a->q, s->b, positive_query_head(x, n, r), s->first + t);
}

static double *features_at(const positive *x, void *array, const recurrent_seq *s, int64_t n, int64_t t,
                           int64_t r)
{
    return (double *)array + positive_row(x, s, n, t, r) * x->p->features;
}

/* ------------------------------------------------------------------ features */

static void map_key(const positive *x, const recurrent_seq *seq, int64_t n, int64_t t, scratch *s)
{
    load_row(x, true, n, key_at(x, seq, n, t), s);
    for (int64_t m = 0; m < x->p->features; m++) {
        const double a = positive_hold(logarithm(x, true, n, m, s)), c = fmax(s->c[m], ceil(a));
        features_at(x, x->k, seq, n, t, 0)[m] = exp(a - c);
        features_at(x, x->gate, seq, n, t, 0)[m] = s->c[m] - c;
        for (int64_t r = 1; r < x->reads; r++) {
            features_at(x, x->k, seq, n, t, r)[m] = 0;
            features_at(x, x->gate, seq, n, t, r)[m] = 0;
        }
        s->c[m] = c;
    }
}

static void map_query(const positive *x, const recurrent_seq *seq, int64_t n, int64_t t, int64_t r,
                      scratch *s)
{
    double top = -HUGE_VAL, *q = features_at(x, x->q, seq, n, t, r);
    load_row(x, false, n, query_at(x, seq, n, t, r), s);
    for (int64_t m = 0; m < x->p->features; m++) {
        s->a[m] = positive_hold(logarithm(x, false, n, m, s)) + s->c[m];
        top = fmax(top, s->a[m]);
    }
    for (int64_t m = 0; m < x->p->features; m++)
        q[m] = exp(s->a[m] - top);
}

static void map(const positive *x, char *work, size_t each)
{
#pragma omp parallel for collapse(2) num_threads(x->p->threads) schedule(static)
    for (int64_t b = 0; b < x->p->batch; b++) {
        for (int64_t n = 0; n < x->heads; n++) {
            arena pool = { work + each * (size_t)(b * x->heads + n), 0 };
            scratch s = scratch_carve(x->p, &pool);
            const recurrent_seq seq = recurrent_seq_at(x->p, x->a, b);
            for (int64_t m = 0; m < x->p->features; m++)
                s.c[m] = positive_start(x, &seq, n, m);
            for (int64_t t = 0; t < seq.len; t++) {
                map_key(x, &seq, n, t, &s);
                for (int64_t r = 0; r < x->reads; r++)
                    map_query(x, &seq, n, t, r, &s);
            }
            for (int64_t m = 0; m < x->p->features && x->p->pass != LOAM_BACKWARD; m++)
                positive_end(x, &seq, n, m, s.c[m]);
        }
    }
}

/* ------------------------------------------------------------------ gradients */

/* s->dx <- the gradient of s->x, of the row whose features are phi with gradient dphi; adds to the sums. */
static void row_gradient(const positive *x, bool key, int64_t n, const double *phi, const double *dphi,
                         const sums *all, scratch *s)
{
    const int64_t d = x->p->dim_qk;
    memset(s->dx, 0, (size_t)d * sizeof *s->dx);
    for (int64_t m = 0; m < x->p->features; m++) {
        const double e = dphi[m] * phi[m];
        if (!(fabs(logarithm(x, key, n, m, s)) < POSITIVE_BOUND)) continue;
        for (int64_t c = 0; c < d; c++) {
            s->dx[c] += e * (s->z[c] - (key ? s->x[c] : 0));
            all->z[(n * x->p->features + m) * d + c] += e * s->x[c];
        }
        all->alpha[n * x->p->features + m] += key ? e : 0;
    }
}

/* to[c] += the gradient of channel c of the row. */
static void add_row(const positive *x, bool key, int64_t n, const double *dx, double *to)
{
    const loam_const_view *A = key ? &x->a->balance_keys : &x->a->balance;
    const int64_t d = x->p->dim_qk;
    for (int64_t c = 0; c < d; c++) {
        double sum = A->data ? 0 : dx[c];
        for (int64_t j = 0; A->data && j < d; j++)
            sum += parameter(x, A, n, j, c) * dx[j];
        to[c] += sqrt(x->p->scale) * sum;
    }
}

static void store_row(const positive *x, const loam_view *to, int64_t at, const double *row)
{
    for (int64_t c = 0; to->data && c < x->p->dim_qk; c++)
        element_store(to->data, x->p->dtype, at + c, row[c]);
}

/* Of token t, key-value head g. */
static void token_gradient(const positive *x, const recurrent_seq *seq, int64_t g, int64_t t, const sums *all,
                           scratch *s)
{
    const size_t bytes = (size_t)x->p->dim_qk * sizeof(double);
    double *dk = s->dk, *dq = s->row;
    memset(dk, 0, bytes);
    for (int64_t n = g * x->sharing; n < (g + 1) * x->sharing; n++) {
        load_row(x, true, n, key_at(x, seq, n, t), s);
        row_gradient(x, true, n, features_at(x, x->k, seq, n, t, 0), features_at(x, x->grad_k, seq, n, t, 0),
                     all, s);
        add_row(x, true, n, s->dx, dk);
        for (int64_t r = 0; r < x->reads; r++) {
            const loam_view *to = &x->a->grad_q;
            load_row(x, false, n, query_at(x, seq, n, t, r), s);
            row_gradient(x, false, n, features_at(x, x->q, seq, n, t, r),
                         features_at(x, x->grad_q, seq, n, t, r), all, s);
            memset(dq, 0, bytes);
            add_row(x, false, n, s->dx, dq);
            store_row(x, to, RECURRENT_AT(*to, seq->b, positive_query_head(x, n, r), seq->first + t), dq);
        }
    }
    store_row(x, &x->a->grad_k, RECURRENT_AT(x->a->grad_k, seq->b, g, seq->first + t), dk);
}

static void store_sums(const positive *x, const sums *all)
{
    const loam_dtype real = dtype_real(x->p->dtype);
    const loam_view *z = &x->a->grad_z, *alpha = &x->a->grad_log_alpha;
    const int64_t d = x->p->dim_qk;
    for (int64_t i = 0; i < x->heads * x->p->features; i++) {
        const int64_t n = i / x->p->features, m = i % x->p->features;
        for (int64_t c = 0; z->data && c < d; c++)
            element_store(z->data, real, n * z->head + m * z->token + c, all->z[i * d + c]);
        if (alpha->data) element_store(alpha->data, real, n * alpha->head + m, all->alpha[i]);
    }
}

static void gradient(const positive *x, const sums *all, char *work, size_t each)
{
    memset(all->z, 0, (size_t)(x->heads * x->p->features * x->p->dim_qk) * sizeof(double));
    memset(all->alpha, 0, (size_t)(x->heads * x->p->features) * sizeof(double));
#pragma omp parallel for num_threads(x->p->threads) schedule(static)
    for (int64_t g = 0; g < x->p->heads_kv; g++) {
        arena pool = { work + each * (size_t)g, 0 };
        scratch s = scratch_carve(x->p, &pool);
        for (int64_t b = 0; b < x->p->batch; b++) {
            const recurrent_seq seq = recurrent_seq_at(x->p, x->a, b);
            for (int64_t t = 0; t < seq.len; t++)
                token_gradient(x, &seq, g, t, all, &s);
        }
    }
    store_sums(x, all);
}

/* ------------------------------------------------------------------ rows of the table */

typedef struct layout {
    positive x;
    sums all;
    size_t each;
    void *work;
} layout;

/* Scratch for each head of each sequence, and the workspace of the recurrence in the same place. */
static layout layout_carve(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence, arena *pool)
{
    layout l = { .x = positive_make(p, a, LOAM_F64, pool), .all = sums_carve(p, pool) };
    arena one = { 0 };
    scratch_carve(p, &one);
    l.each = one.used;
    const loam_problem problem = positive_problem(&l.x);
    const size_t pieces = size_mul((size_t)p->batch + 1, (size_t)p->heads_q), read = recurrence(&problem),
                 map = size_mul(pieces, l.each);
    l.work = arena_take(pool, read > map ? read : map, 1);
    return l;
}

static size_t work_bytes(const loam_problem *p, kernel_work_fn *recurrence)
{
    arena pool = { 0 };
    layout_carve(p, NULL, recurrence, &pool);
    return pool.used;
}

static loam_status run(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence,
                       kernel_run_fn *read, loam_error *error)
{
    arena pool = { a->work, 0 };
    const layout l = layout_carve(p, a, recurrence, &pool);
    positive_stage(&l.x);
    map(&l.x, l.work, l.each);
    positive_read inner = positive_recurrence(&l.x);
    inner.args.work = l.work;
    TRY(read(&inner.problem, &inner.args, error));
    if (p->pass == LOAM_BACKWARD) gradient(&l.x, &l.all, l.work, l.each);
    positive_unstage(&l.x);
    return loam_succeed(error);
}

size_t positive_forward_ref_work(const loam_problem *p) { return work_bytes(p, recurrent_forward_ref_work); }
size_t positive_backward_ref_work(const loam_problem *p)
{
    return work_bytes(p, recurrent_backward_ref_work);
}
size_t positive_decode_ref_work(const loam_problem *p) { return work_bytes(p, recurrent_decode_ref_work); }

loam_status positive_forward_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_forward_ref_work, recurrent_forward_ref, error);
}

loam_status positive_backward_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_backward_ref_work, recurrent_backward_ref, error);
}

loam_status positive_decode_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, recurrent_decode_ref_work, recurrent_decode_ref, error);
}
