/* SPDX-License-Identifier: MIT
 *
 * The reference backward in float64. It fits every row again and reads nothing of `saved`. With
 * g_ij = do_i . v_j and gbar_i = sum_j p_ij g_ij, and the rest as in local/reference/row.h:
 *
 *     drho_i = -sum_j p (g - gbar) k,        y_i = (Cov_i + Lambda_i)^-1 drho_i (solved probe; else 0)
 *     t_ij = y_i . kappa_ij,                 E_ij = g_ij - gbar_i + t_ij
 *     e_i = -rho_i . drho_i (given probe),   -y_i . Lambda_i rho_i (solved)
 *     ds_ij = p [(1 - u) E + e]              (the unit of the ridge adds the terms in pair_gradient)
 *     dq_i = sum_j ds x'_q - y_i,            dk_j = sum_i ds x'_k - p E rho_i + p (1 - u) y_i
 *     dv_j = sum_i p (1 - u) do_i,           dridge_ic = -unit y_ic rho_ic
 *
 * A first sweep over rows stores lse, kbar, rho, y and a few scalars of each; a second sweep over keys sums
 * over rows. PaTH: each dk_j is the gradient of the key as row i sees it; a key sums these from the last row
 * back to its own position and applies M_t^T at each position between.
 */
#include "src/local/reference/row.h"

#include "src/exact/cholesky.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Of each row, what the sweep over keys needs: scalars of one query head, and the vectors kbar, rho, y. */
typedef struct ref_record {
    double lse, gbar, e;
    double spread, trace; /* trace unit of the ridge: d loss / d unit, and trace / dim */
    int64_t peak;
    double *kbar, *rho, *y;
} ref_record;

typedef struct records {
    ref_record *row;
    double *vectors;
} records;

static records records_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = (size_t)local_rows(p);
    records r;
    r.row = arena_take(pool, rows, sizeof(ref_record));
    r.vectors = arena_take(pool, size_mul(rows, 3 * (size_t)p->dim_qk), sizeof(double));
    return r;
}

typedef struct pair {
    double weight, kept; /* p E and p (1 - u) */
    double ds, spread;   /* d loss / d s_ij; 2/dim x p: times kappa, the direct part of the trace in dk */
    ref_score score;
} pair;

static pair pair_gradient(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                          int64_t j, const double *key, const ref_record *r)
{
    const int64_t d = p->dim_qk;
    pair out = { .score = ref_row_score(p, a, s, h, i, j, j, key) };
    const double w = exp(out.score.s - r->lse);
    double u = 0, t = 0, g = 0, distance2 = 0;
    for (int64_t c = 0; p->mechanism != LOAM_SOFTMAX && c < d; c++) {
        const double kappa = key[c] - r->kbar[c];
        u += r->rho[c] * kappa;
        t += r->y[c] * kappa;
        distance2 += kappa * kappa;
    }
    for (int64_t c = 0; c < p->dim_v; c++)
        g += ref_grad_o(p, a, s, h, i, c) * ref_v(p, a, s, h, j, c);
    const double miss = g - r->gbar + t;
    out.weight = w * miss;
    out.kept = w * (1 - u);
    out.ds = out.kept * miss;
    if (p->mechanism == LOAM_LLA && p->ridge_unit == LOAM_RIDGE_MAX)
        out.ds += j == r->peak ? r->e : 0; /* unit = p of the peak: the e p terms of its derivative cancel */
    else
        out.ds += w * r->e;
    if (p->mechanism == LOAM_LLA && p->ridge_unit == LOAM_RIDGE_TRACE) {
        out.ds += w * r->spread * (distance2 / (double)d - r->trace);
        out.spread = 2 / (double)d * w * r->spread;
    }
    return out;
}

/* r->y += drho */
static void probe_gradient(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           const ref_row *row, const double *g, ref_record *r)
{
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double *key = ref_row_key(p, a, s, h, j, row);
        for (int64_t c = 0; c < p->dim_qk; c++)
            r->y[c] -= row->p[j - row->lo] * (g[j - row->lo] - r->gbar) * (key[c] - row->kbar[c]);
    }
}

/* y, e and the gradient of the ridge of a solved row, from drho in r->y. Returns the sum of the
 * latter over channels. */
static double adjoint(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                      const ref_row *row, ref_record *r)
{
    const int64_t d = p->dim_qk;
    const bool singular = row->info.code != LOAM_ROW_SOLVED;
    double sum = 0;
    if (!singular) exact_solve(row->matrix, d, r->y);
    for (int64_t c = 0; c < d; c++) {
        r->y[c] = singular ? 0 : r->y[c];
        r->e -= r->y[c] * row->lambda[c] * row->rho[c];
        const double part = -row->unit * r->y[c] * row->rho[c];
        sum += part;
        if (p->ridge_axes == LOAM_RIDGE_CHANNEL && a->grad_ridge.data) {
            element_store(a->grad_ridge.data, dtype_real(p->dtype),
                          LOCAL_AT(a->grad_ridge, s->b, h, s->q0 + i) + c, part);
        }
    }
    r->spread = r->e / row->unit;
    r->trace = row->unit - LOCAL_TRACE_FLOOR;
    return sum;
}

/* The record of a row and its part of the gradients of sink, ridge and probe. g: scratch over keys. */
static void row_backward(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                         ref_row *row, double *g, ref_record *r, local_row_sums *sums)
{
    const int64_t d = p->dim_qk, token = s->q0 + i, at = local_row(p, s, h, i);
    ref_row_fit(p, a, s, h, i, row);
    *r = (ref_record){ .lse = row->lse, .peak = row->peak, .kbar = r->kbar, .rho = r->rho, .y = r->y };
    for (int64_t j = row->lo; j < row->hi; j++) {
        g[j - row->lo] = 0;
        for (int64_t c = 0; c < p->dim_v; c++)
            g[j - row->lo] += ref_grad_o(p, a, s, h, i, c) * ref_v(p, a, s, h, j, c);
        r->gbar += row->p[j - row->lo] * g[j - row->lo];
    }
    for (int64_t c = 0; c < d; c++) {
        r->kbar[c] = row->kbar[c];
        r->rho[c] = row->rho[c];
        r->y[c] = 0;
    }
    double ridge = 0;
    if (p->mechanism != LOAM_SOFTMAX) probe_gradient(p, a, s, h, row, g, r);
    if (p->mechanism == LOAM_LLA) {
        ridge = adjoint(p, a, s, h, i, row, r);
        sums->ridge[at] = ridge;
    } else if (p->mechanism == LOAM_PARALLAX) {
        for (int64_t c = 0; c < d; c++) {
            r->e -= r->rho[c] * r->y[c];
            if (a->grad_probe.data) {
                element_store(a->grad_probe.data, p->dtype, LOCAL_AT(a->grad_probe, s->b, h, token) + c,
                              r->y[c]);
            }
            r->y[c] = 0;
        }
    }
    if (p->sink) sums->sink[at] = -exp(element_load(a->sink, dtype_real(p->dtype), h) - r->lse) * r->gbar;
}

static void row_query(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                      ref_row *row, const ref_record *r, local_row_sums *sums)
{
    const int64_t d = p->dim_qk, at = local_row(p, s, h, i);
    double *dq = row->key, scale = 0, slope = 0, total = 0;
    for (int64_t c = 0; c < d; c++)
        dq[c] = -r->y[c];
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double *key = ref_row_key(p, a, s, h, j, row);
        const pair x = pair_gradient(p, a, s, h, i, j, key, r);
        const double inner = x.ds * x.score.slope;
        for (int64_t c = 0; c < d; c++)
            dq[c] += p->scale * inner * (p->score == LOAM_DOT ? key[c] : key[c] - row->q[c]);
        scale += inner * x.score.x;
        slope -= x.ds * fabs((double)(i + s->nk - s->nq - j));
        total += x.ds;
    }
    sums->scale[at] = scale;
    if (p->slope) sums->slope[at] = slope;
    if (p->decay) sums->inner[at] = total;
    for (int64_t c = 0; a->grad_q.data && c < d; c++)
        element_store(a->grad_q.data, p->dtype, LOCAL_AT(a->grad_q, s->b, h, s->q0 + i) + c, dq[c]);
}

/* Adds the contribution of row i to dk and dv of key j, which row i sees as `key`. Returns
 * d loss / d s_ij. */
static double key_from_row(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t i, int64_t j, const double *key, const ref_record *r, double *dk,
                           double *dv)
{
    const pair x = pair_gradient(p, a, s, h, i, j, key, r);
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double q = ref_q(p, a, s, h, i, c);
        dk[c] += p->scale * x.ds * x.score.slope * (p->score == LOAM_DOT ? q : q - key[c]) -
                 x.weight * r->rho[c] + x.kept * r->y[c] + x.spread * (key[c] - r->kbar[c]);
    }
    for (int64_t c = 0; c < p->dim_v; c++)
        dv[c] += x.kept * ref_grad_o(p, a, s, h, i, c);
    return x.ds;
}

static void put_column_sum(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t j, double bias)
{
    if (p->key_bias && a->grad_key_bias.data) {
        element_store(a->grad_key_bias.data, dtype_real(p->dtype),
                      LOCAL_AT(a->grad_key_bias, s->b, h, s->k0 + j), bias);
    }
    if (p->decay && a->grad_log_decay.data) {
        element_store(a->grad_log_decay.data, dtype_real(p->dtype),
                      LOCAL_AT(a->grad_log_decay, s->b, h, s->k0 + j), bias);
    }
}

/* The contributions of all rows of one query head to key j. */
static void key_from_head(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t j,
                          const records *rec, const double *key, double *dk, double *dv)
{
    double bias = 0;
    for (int64_t i = 0; i < s->nq; i++) {
        int64_t lo, hi;
        const ref_record *r = &rec->row[local_row(p, s, h, i)];
        local_visible(p, s, i, &lo, &hi);
        if (lo <= j && j < hi && r->lse > -INFINITY) bias += key_from_row(p, a, s, h, i, j, key, r, dk, dv);
    }
    put_column_sum(p, a, s, h, j, bias);
}

static void put_key(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv, int64_t j,
                    const double *dk, const double *dv)
{
    for (int64_t c = 0; a->grad_k.data && c < p->dim_qk; c++)
        element_store(a->grad_k.data, p->dtype, LOCAL_AT(a->grad_k, s->b, h_kv, s->k0 + j) + c, dk[c]);
    for (int64_t c = 0; a->grad_v.data && c < p->dim_v; c++)
        element_store(a->grad_v.data, p->dtype, LOCAL_AT(a->grad_v, s->b, h_kv, s->k0 + j) + c, dv[c]);
}

static void clear_doubles(double *x, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        x[e] = 0;
}

static void key_backward(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv,
                         int64_t j, const records *rec, double *key, double *dk, double *dv)
{
    const int64_t group = p->heads_q / p->heads_kv;
    clear_doubles(dk, p->dim_qk);
    clear_doubles(dv, p->dim_v);
    for (int64_t h = h_kv * group; j < s->nk && h < (h_kv + 1) * group; h++) {
        ref_load_key(p, a, s, h, j, key);
        key_from_head(p, a, s, h, j, rec, key, dk, dv);
    }
    put_key(p, a, s, h_kv, j, dk, dv);
}

/* PaTH: scratch of a thread for the keys of one head. */
typedef struct reflections {
    double *trail;      /* [len_kv][dim_qk]: the key as each position sees it */
    double *dw, *dbeta; /* [len_kv][dim_qk], [len_kv] */
    double *ds;         /* [heads_q / heads_kv]: the column sums of the key */
} reflections;

static reflections reflections_carve(const loam_problem *p, arena *pool)
{
    const size_t keys = p->path ? (size_t)p->len_kv : 0, wide = size_mul(keys, (size_t)p->dim_qk);
    reflections x;
    x.trail = arena_take(pool, wide, sizeof(double));
    x.dw = arena_take(pool, wide, sizeof(double));
    x.dbeta = arena_take(pool, keys, sizeof(double));
    x.ds = arena_take(pool, (size_t)(p->heads_q / p->heads_kv), sizeof(double));
    return x;
}

/* The adjoint of k' = k - beta w (w . k) at position t: dk <- dk from dk', and its parts of dw and dbeta. */
static void reflect_back(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t t,
                         const double *key, double *dk, const reflections *x)
{
    double key_along = 0, dk_along = 0;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        key_along += ref_w(p, a, s, h, t, c) * key[c];
        dk_along += ref_w(p, a, s, h, t, c) * dk[c];
    }
    x->dbeta[t] -= key_along * dk_along;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        x->dw[t * p->dim_qk + c] -= ref_beta(p, a, s, h, t) * (key_along * dk[c] + dk_along * key[c]);
        dk[c] -= ref_beta(p, a, s, h, t) * dk_along * ref_w(p, a, s, h, t, c);
    }
}

/* Key j forward through all positions after it, then the gradient back from the last position to its own. */
static void key_backward_path(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv,
                              int64_t j, const records *rec, const reflections *x, double *dk, double *dv)
{
    const int64_t d = p->dim_qk, group = p->heads_q / p->heads_kv, h0 = h_kv * group;
    clear_doubles(dk, d);
    clear_doubles(dv, p->dim_v);
    clear_doubles(x->ds, group);
    for (int64_t t = j; t < s->nk; t++) {
        double *key = x->trail + t * d;
        if (t == j) {
            ref_load_key(p, a, s, h0, j, key);
        } else {
            memcpy(key, key - d, (size_t)d * sizeof *key);
            ref_reflect(p, a, s, h0, t, key);
        }
    }
    for (int64_t t = s->nk - 1; t >= j; t--) {
        const int64_t i = t - s->nk + s->nq;
        for (int64_t h = h0; i >= 0 && h < h0 + group; h++) {
            const ref_record *r = &rec->row[local_row(p, s, h, i)];
            x->ds[h - h0] += key_from_row(p, a, s, h, i, j, x->trail + t * d, r, dk, dv);
        }
        if (t > j) reflect_back(p, a, s, h0, t, x->trail + (t - 1) * d, dk, x);
    }
    for (int64_t h = h0; h < h0 + group; h++)
        put_column_sum(p, a, s, h, j, x->ds[h - h0]);
    put_key(p, a, s, h_kv, j, dk, dv);
}

static void head_backward_path(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv,
                               const records *rec, const reflections *x, double *dk, double *dv)
{
    const int64_t d = p->dim_qk, stored = local_stored_keys(p, s);
    clear_doubles(x->dw, stored * d);
    clear_doubles(x->dbeta, stored);
    for (int64_t j = 0; j < stored; j++)
        key_backward_path(p, a, s, h_kv, j, rec, x, dk, dv);
    for (int64_t t = 0; t < stored; t++) {
        for (int64_t c = 0; a->grad_w.data && c < d; c++) {
            element_store(a->grad_w.data, p->dtype, LOCAL_AT(a->grad_w, s->b, h_kv, s->k0 + t) + c,
                          x->dw[t * d + c]);
        }
        if (a->grad_beta.data) {
            element_store(a->grad_beta.data, dtype_real(p->dtype),
                          LOCAL_AT(a->grad_beta, s->b, h_kv, s->k0 + t), x->dbeta[t]);
        }
    }
}

typedef struct scratch {
    ref_row row;
    double *g, *dk, *dv;
    reflections reflections;
} scratch;

static scratch scratch_carve(const loam_problem *p, arena *pool)
{
    scratch x = { .row = ref_row_carve(p, pool) };
    x.g = arena_take(pool, (size_t)p->len_kv, sizeof(double));
    x.dk = arena_take(pool, (size_t)p->dim_qk, sizeof(double));
    x.dv = arena_take(pool, (size_t)p->dim_v, sizeof(double));
    x.reflections = reflections_carve(p, pool);
    return x;
}

static size_t scratch_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    scratch_carve(p, &pool);
    return pool.used;
}

size_t local_backward_ref_work(const loam_problem *p)
{
    arena pool = { 0 };
    ref_decay_carve(p, &pool);
    records_carve(p, &pool);
    local_row_sums_carve(p, &pool);
    return size_add(pool.used, size_mul(scratch_bytes(p), (size_t)p->threads));
}

loam_status local_backward_ref(const loam_problem *p, const loam_args *args, loam_error *error)
{
    arena shared = { args->work, 0 };
    const loam_args summed = ref_decay_sums(p, args, ref_decay_carve(p, &shared)), *a = &summed;
    const records rec = records_carve(p, &shared);
    local_row_sums sums = local_row_sums_carve(p, &shared);
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
#pragma omp parallel num_threads(p->threads)
        {
            arena pool = { (char *)a->work + shared.used + scratch_bytes(p) * (size_t)omp_get_thread_num(),
                           0 };
            scratch x = scratch_carve(p, &pool);
#pragma omp for collapse(2) schedule(dynamic, 8)
            for (int64_t h = 0; h < p->heads_q; h++) {
                for (int64_t i = 0; i < s.nq; i++) {
                    const int64_t at = local_row(p, &s, h, i);
                    ref_record *r = &rec.row[at];
                    r->kbar = rec.vectors + 3 * p->dim_qk * at;
                    r->rho = r->kbar + p->dim_qk;
                    r->y = r->rho + p->dim_qk;
                    row_backward(p, a, &s, h, i, &x.row, x.g, r, &sums);
                    row_query(p, a, &s, h, i, &x.row, r, &sums);
                }
            }
#pragma omp for collapse(2) schedule(dynamic, 8)
            for (int64_t h = 0; h < p->heads_kv; h++)
                for (int64_t j = 0; j < (p->path ? 0 : local_stored_keys(p, &s)); j++)
                    key_backward(p, a, &s, h, j, &rec, x.row.key, x.dk, x.dv);
#pragma omp for schedule(dynamic, 1)
            for (int64_t h = 0; h < (p->path ? p->heads_kv : 0); h++)
                head_backward_path(p, a, &s, h, &rec, &x.reflections, x.dk, x.dv);
        }
    }
    local_clear_bias_tail(p, a);
    local_row_sums_reduce(p, a, &sums);
    return loam_succeed(error);
}
