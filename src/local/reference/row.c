/* SPDX-License-Identifier: MIT */
#include "src/local/reference/row.h"

#include "src/exact/cholesky.h"

#include <math.h>

ref_row ref_row_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, keys = (size_t)p->len_kv, f64 = sizeof(double);
    ref_row row = { 0 };
    row.q = arena_take(pool, d, f64);
    row.kbar = arena_take(pool, d, f64);
    row.vbar = arena_take(pool, (size_t)p->dim_v, f64);
    row.rho = arena_take(pool, d, f64);
    row.lambda = arena_take(pool, d, f64);
    row.p = arena_take(pool, keys, f64);
    row.u = arena_take(pool, keys, f64);
    row.seen = arena_take(pool, p->path ? size_mul(keys, d) : d, f64);
    row.reflected_h = row.reflected_to = -1;
    row.key = arena_take(pool, d, f64);
    row.matrix = arena_take(pool, d * d, f64);
    return row;
}

/* A gate below this counts as this: sums are finite then, and exp of it is 0. */
#define REF_LEAST_DECAY (-16384.0)

static int64_t stored_keys(const loam_problem *p) { return sequence_packed(p) ? p->total_kv : p->len_kv; }

double *ref_decay_carve(const loam_problem *p, arena *pool)
{
    const size_t sequences = sequence_packed(p) ? 1 : (size_t)p->batch;
    const size_t keys = size_mul(size_mul(sequences, (size_t)p->heads_q), (size_t)stored_keys(p));
    return arena_take(pool, p->decay ? keys : 0, sizeof(double));
}

loam_args ref_decay_sums(const loam_problem *p, const loam_args *a, double *sums)
{
    loam_args out = *a;
    const loam_const_view *gates = &a->log_decay;
    if (!p->decay) return out;
    out.log_decay = (loam_const_view){ sums, p->heads_q * stored_keys(p), stored_keys(p), 1 };
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            double sum = 0;
            for (int64_t t = s.k0; t < s.k0 + s.nk; t++) {
                sum += fmax(element_load(gates->data, dtype_real(p->dtype), LOCAL_AT(*gates, s.b, h, t)),
                            REF_LEAST_DECAY);
                sums[LOCAL_AT(out.log_decay, s.b, h, t)] = sum;
            }
        }
    }
    return out;
}

/* r->s, a scaled score, is mapped; r->slope becomes the derivative of the map there. */
static void map_score(const loam_problem *p, ref_score *r)
{
    if (p->soft_cap > 0) {
        const double t = tanh(r->s / p->soft_cap);
        r->slope = 1 - t * t;
        r->s = p->soft_cap * t;
    }
}

ref_score ref_row_score(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                        int64_t j, int64_t k_row, const double *key)
{
    const loam_dtype real = dtype_real(p->dtype);
    ref_score r = { 0, 1, 0 };
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double q = ref_q(p, a, s, h, i, c);
        r.x += p->score == LOAM_DOT ? q * key[c] : -0.5 * (q - key[c]) * (q - key[c]);
    }
    r.s = p->scale * r.x;
    map_score(p, &r);
    if (p->slope) r.s -= element_load(a->slope, real, h) * fabs((double)(i + s->nk - s->nq - j));
    if (p->key_bias)
        r.s += element_load(a->key_bias.data, real, LOCAL_AT(a->key_bias, s->b, h, s->k0 + k_row));
    if (p->decay) {
        const double *sum = (const double *)a->log_decay.data + LOCAL_AT(a->log_decay, s->b, h, s->k0);
        const int64_t at = i + s->nk - s->nq;
        r.s += sum[at > 0 ? at : 0] - sum[j];
    }
    return r;
}

/* PaTH: the keys of the position before, transformed by M_t, and the position's own key appended. */
static void reflect_keys(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                         ref_row *row)
{
    const int64_t d = p->dim_qk, at = i + s->nk - s->nq;
    if (row->reflected_h != h || row->reflected_to > at) row->reflected_h = h, row->reflected_to = -1;
    while (row->reflected_to < at) {
        const int64_t t = ++row->reflected_to;
        for (int64_t j = 0; j < t; j++)
            ref_reflect(p, a, s, h, t, row->seen + j * d);
        ref_load_key(p, a, s, h, t, row->seen + t * d);
    }
}

const double *ref_row_key(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t j,
                          const ref_row *row)
{
    if (p->path) return row->seen + j * p->dim_qk;
    ref_load_key(p, a, s, h, j, row->seen);
    return row->seen;
}

static void fit_weights(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                        ref_row *row)
{
    double m = p->sink ? element_load(a->sink, dtype_real(p->dtype), h) : -INFINITY, best = -INFINITY;
    row->peak = row->lo;
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double score = ref_row_score(p, a, s, h, i, j, j, ref_row_key(p, a, s, h, j, row)).s;
        row->p[j - row->lo] = score;
        if (score > best) {
            best = score;
            row->peak = j;
        }
    }
    m = fmax(m, best);
    /* Biases of -inf hide every key. */
    if (m == -INFINITY) row->hi = row->lo;
    double omega = p->sink ? exp(element_load(a->sink, dtype_real(p->dtype), h) - m) : 0;
    for (int64_t j = row->lo; j < row->hi; j++)
        omega += exp(row->p[j - row->lo] - m);
    row->lse = omega > 0 ? m + log(omega) : -INFINITY;
    for (int64_t j = row->lo; j < row->hi; j++)
        row->p[j - row->lo] = exp(row->p[j - row->lo] - row->lse);
}

static void fit_means(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, ref_row *row)
{
    for (int64_t c = 0; c < p->dim_qk; c++)
        row->kbar[c] = 0;
    for (int64_t c = 0; c < p->dim_v; c++)
        row->vbar[c] = 0;
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double w = row->p[j - row->lo], *key = ref_row_key(p, a, s, h, j, row);
        for (int64_t c = 0; c < p->dim_qk; c++)
            row->kbar[c] += w * key[c];
        for (int64_t c = 0; c < p->dim_v; c++)
            row->vbar[c] += w * ref_v(p, a, s, h, j, c);
    }
}

/* matrix <- lower triangle of Cov. */
static void fit_covariance(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           ref_row *row)
{
    const int64_t d = p->dim_qk;
    for (int64_t e = 0; e < d * d; e++)
        row->matrix[e] = 0;
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double *key = ref_row_key(p, a, s, h, j, row);
        for (int64_t c = 0; c < d; c++)
            row->key[c] = key[c] - row->kbar[c];
        for (int64_t r = 0; r < d; r++) {
            const double x = row->p[j - row->lo] * row->key[r];
            for (int64_t c = 0; c <= r; c++)
                row->matrix[r * d + c] += x * row->key[c];
        }
    }
}

static double ridge_unit(const loam_problem *p, const ref_row *row)
{
    const int64_t d = p->dim_qk;
    double trace = 0;
    switch (p->ridge_unit) {
    case LOAM_RIDGE_MAX: return row->p[row->peak - row->lo];
    case LOAM_RIDGE_TRACE:
        for (int64_t c = 0; c < d; c++)
            trace += row->matrix[c * d + c];
        return trace / (double)d + LOCAL_TRACE_FLOOR;
    default: return 1;
    }
}

/* Writes the Cholesky factor to matrix and the probe to rho. */
static void fit_probe(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                      ref_row *row)
{
    const int64_t d = p->dim_qk;
    double largest = 0, mean2 = 0;
    fit_covariance(p, a, s, h, row);
    row->unit = ridge_unit(p, row);
    for (int64_t c = 0; c < d; c++) {
        row->lambda[c] = row->unit * local_ridge(p, a, s, h, i, c);
        row->matrix[c * d + c] += row->lambda[c];
        row->rho[c] = row->kbar[c] - row->q[c];
        largest = fmax(largest, row->matrix[c * d + c]);
        mean2 = fmax(mean2, row->kbar[c] * row->kbar[c]);
    }
    row->info.solver = LOAM_SOLVER_GRAM;
    if (exact_factor(row->matrix, d, local_least_pivot(largest, mean2))) {
        row->info.code = LOAM_ROW_SINGULAR;
        for (int64_t c = 0; c < d; c++)
            row->rho[c] = 0;
        return;
    }
    exact_solve(row->matrix, d, row->rho);
}

/* |(Cov + Lambda) rho - (kbar - q)| / |kbar - q|, computed from u: Cov rho = sum p u kappa. left: scratch. */
static float probe_residual(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                            const ref_row *row, double *left)
{
    double error2 = 0, size2 = 0;
    for (int64_t c = 0; c < p->dim_qk; c++)
        left[c] = row->lambda[c] * row->rho[c];
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double *key = ref_row_key(p, a, s, h, j, row);
        for (int64_t c = 0; c < p->dim_qk; c++)
            left[c] += row->p[j - row->lo] * row->u[j - row->lo] * (key[c] - row->kbar[c]);
    }
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double rhs = row->kbar[c] - row->q[c];
        error2 += (left[c] - rhs) * (left[c] - rhs);
        size2 += rhs * rhs;
    }
    return size2 > 0 ? (float)sqrt(error2 / size2) : 0;
}

void ref_row_fit(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                 ref_row *row)
{
    const int64_t d = p->dim_qk;
    double mean = 0;
    local_visible(p, s, i, &row->lo, &row->hi);
    row->info = (loam_row_info){ LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
    row->unit = 1;
    for (int64_t c = 0; c < d; c++) {
        row->q[c] = ref_q(p, a, s, h, i, c);
        row->rho[c] = row->lambda[c] = 0;
    }
    if (p->path) reflect_keys(p, a, s, h, i, row);
    fit_weights(p, a, s, h, i, row);
    fit_means(p, a, s, h, row);
    if (row->lo >= row->hi)
        row->info.code = LOAM_ROW_EMPTY;
    else if (p->mechanism == LOAM_PARALLAX)
        for (int64_t c = 0; c < d; c++)
            row->rho[c] = element_load(a->probe.data, p->dtype, LOCAL_AT(a->probe, s->b, h, s->q0 + i) + c);
    else if (p->mechanism == LOAM_LLA)
        fit_probe(p, a, s, h, i, row);
    for (int64_t j = row->lo; j < row->hi; j++) {
        const double *key = ref_row_key(p, a, s, h, j, row);
        double u = 0;
        for (int64_t c = 0; p->mechanism != LOAM_SOFTMAX && c < d; c++)
            u += row->rho[c] * (key[c] - row->kbar[c]);
        row->u[j - row->lo] = u;
        mean += row->p[j - row->lo] * u;
    }
    /* In exact arithmetic sum_j p_j u_j = 0; where rho is huge its rounding error matters. */
    for (int64_t j = row->lo; j < row->hi; j++)
        row->u[j - row->lo] -= mean;
    if (row->info.solver == LOAM_SOLVER_GRAM && row->info.code == LOAM_ROW_SOLVED && a->info.data)
        row->info.residual = probe_residual(p, a, s, h, row, row->key);
}
