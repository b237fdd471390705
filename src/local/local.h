/* SPDX-License-Identifier: MIT
 *
 * The local family: what its kernels share. A kernel gets a checked problem with all defaults filled in and
 * checked arguments; it sees no plan.
 *
 * Names: b batch, h head, i query, j key, c channel; lo .. hi the keys that a query sees; a "row" is one
 * query of one head.
 */
#ifndef LOAM_LOCAL_LOCAL_H
#define LOAM_LOCAL_LOCAL_H

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/kernel.h"
#include "src/base/sequence.h"
#include "src/base/size.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL(machine, ...) KERNEL_DECLARE_##machine(__VA_ARGS__)
#include "src/local/kernels.def"
#undef KERNEL
kernel_fits_fn local_cuda_fits, local_hopper_fits, local_path_cuda_fits, local_path_batch_cuda_fits;

/* The members of loam_problem that map a scaled score, and their words: c > 0 is the constant of the map, 0
 * is none. Of what is mapped no part that all keys of a row share can be left out. */
#define LOCAL_MAPS(X) X(soft_cap, "a soft cap")
#define LOCAL_MAP_GIVEN(member, ...) || p->member > 0
LOAM_INLINE bool local_mapped(const loam_problem *p) { return false LOCAL_MAPS(LOCAL_MAP_GIVEN); }

/* The trace unit of the ridge is trace / dim + this, so that Lambda > 0 where one key has all the weight. */
#define LOCAL_TRACE_FLOOR 1e-3

/* ------------------------------------------------------------------ sequences and rows */

/* Where one sequence lies: token t of it is row `q0 + t` (`k0 + t`) of the token axis at batch index b. */
typedef struct local_seq {
    int64_t b, q0, nq, k0, nk;
} local_seq;

LOAM_INLINE local_seq local_seq_at(const loam_problem *p, const loam_args *a, int64_t b)
{
    if (sequence_packed(p)) {
        /* Not by sequence_span_at: the machine code of the GPU kernels follows the order of these reads. */
        const int64_t q0 = sequence_clamp(a->cu_q[b], 0, p->total_q),
                      k0 = sequence_clamp(a->cu_kv[b], 0, p->total_kv);
        const int64_t q1 = sequence_clamp(a->cu_q[b + 1], q0, p->total_q);
        const int64_t k1 = sequence_clamp(a->cu_kv[b + 1], k0, p->total_kv);
        return (local_seq){ 0, q0, sequence_clamp(q1 - q0, 0, p->len_q), k0,
                            sequence_clamp(k1 - k0, 0, p->len_kv) };
    }
    return (local_seq){ b, 0, p->len_q, 0,
                        a->lens_kv ? sequence_clamp(a->lens_kv[b], 0, p->len_kv) : p->len_kv };
}

/* Query tokens of one head over the whole batch, and rows in all: the index space of `saved` and of row
 * arrays in the workspace. */
LOAM_INLINE int64_t local_tokens(const loam_problem *p)
{
    return sequence_packed(p) ? p->total_q : p->batch * p->len_q;
}
LOAM_INLINE int64_t local_rows(const loam_problem *p) { return local_tokens(p) * p->heads_q; }

LOAM_INLINE int64_t local_row(const loam_problem *p, const local_seq *s, int64_t h, int64_t i)
{
    return sequence_packed(p) ? h * p->total_q + s->q0 + i : (s->b * p->heads_q + h) * p->len_q + i;
}

/* Keys of a sequence that k has room for. Those beyond lens_kv belong to no query: their gradients are 0. */
LOAM_INLINE int64_t local_stored_keys(const loam_problem *p, const local_seq *s)
{
    return sequence_packed(p) ? s->nk : p->len_kv;
}

LOAM_INLINE int64_t local_kv_head(const loam_problem *p, int64_t h) { return h / (p->heads_q / p->heads_kv); }

/* Keys lo .. hi - 1 that query i of a sequence sees (lo >= hi: none). */
LOAM_INLINE void local_visible(const loam_problem *p, const local_seq *s, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t at = i + s->nk - s->nq;
    int64_t first = 0, last = s->nk - 1;
    if (p->causal && last > at) last = at;
    if (p->window > 0) {
        /* The comparison before the addition keeps huge windows from overflowing. */
        last = p->window - 1 < last - at ? at + p->window - 1 : last;
        first = p->window - 1 < at ? at - p->window + 1 : 0;
    }
    *lo = first;
    *hi = last + 1 > first ? last + 1 : first;
}

/* Element offset of token t of head h in a view. */
#define LOCAL_AT(view, seq_b, h, t) ((seq_b) * (view).batch + (h) * (view).head + (t) * (view).token)

/* ------------------------------------------------------------------ the ridge */

/* Lambda of channel c of a row, before its unit. */
LOAM_INLINE double local_ridge(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                               int64_t i, int64_t c)
{
    const loam_dtype real = dtype_real(p->dtype);
    switch (p->ridge_axes) {
    case LOAM_RIDGE_NUMBER: return a->ridge.data ? element_load(a->ridge.data, real, 0) : p->ridge;
    case LOAM_RIDGE_HEAD: return element_load(a->ridge.data, real, h * a->ridge.head);
    case LOAM_RIDGE_TOKEN: return element_load(a->ridge.data, real, LOCAL_AT(a->ridge, s->b, h, s->q0 + i));
    case LOAM_RIDGE_CHANNEL:
        return element_load(a->ridge.data, real, LOCAL_AT(a->ridge, s->b, h, s->q0 + i) + c);
    case LOAM_RIDGE_HEAD_CHANNEL: break; /* of the recurrent family */
    }
    return 0;
}

/* A pivot of Cov + Lambda at or below this is zero: `largest` is the largest diagonal entry, `mean2` the
 * largest squared coordinate of the mean key (whose rounding is the floor of Cov). Every solver uses it, so
 * that all agree on which rows are singular. */
LOAM_INLINE double local_least_pivot(double largest, double mean2) { return 1e-11 * largest + 1e-29 * mean2; }

/* ------------------------------------------------------------------ saved for backward */

/* Dense arrays over rows, of type real. Keys are relative to the first key of the row's sequence, as in the
 * kernels: a common shift of all keys then costs no precision. Where scores are not mapped, lse likewise
 * lacks scale x_i0, the score of that key before biases. */
typedef struct local_saved {
    void *lse, *vbar;  /* [rows], [rows, dim_v] */
    void *tbar;        /* Parallax: probe . kbar as the sum of two, a centre and the rest, [rows, 2] */
    void *value_shift; /* Parallax: vbar - o before its rounding, [rows, dim_v] */
    void *kbar, *rho;  /* LLA: [rows, dim_qk] */
} local_saved;

LOAM_INLINE local_saved local_saved_carve(const loam_problem *p, void *saved, size_t *bytes)
{
    arena pool = { (char *)saved, 0 };
    const size_t rows = (size_t)local_rows(p), real = dtype_bytes(dtype_real(p->dtype));
    const size_t values = size_mul(rows, (size_t)p->dim_v);
    const size_t solved = p->mechanism == LOAM_LLA ? size_mul(rows, (size_t)p->dim_qk) : 0;
    const bool given = p->mechanism == LOAM_PARALLAX;
    local_saved s;
    s.lse = arena_take(&pool, rows, real);
    s.vbar = arena_take(&pool, values, real);
    s.tbar = arena_take(&pool, given ? size_mul(rows, 2) : 0, real);
    s.value_shift = arena_take(&pool, given ? values : 0, real);
    s.kbar = arena_take(&pool, solved, real);
    s.rho = arena_take(&pool, solved, real);
    if (bytes) *bytes = pool.used;
    return s;
}

/* ------------------------------------------------------------------ partial states, src/local/state.c */

size_t local_state_doubles(const loam_problem *problem);
void local_state_clear(const loam_problem *problem, double *state);
/* into += from; see loam.h for the layout. */
void local_state_merge(const loam_problem *problem, double *__restrict into, const double *__restrict from);
/* rho <- 0, the given probe or the solution; scratch has local_state_scratch(problem) doubles. LLA reads only
 * means and second moments of the keys: a state with dim_v = 0 is enough. */
loam_row_info local_state_probe(const loam_problem *problem, const loam_args *args, const local_seq *seq,
                                int64_t h, int64_t i, const double *state, double *scratch, double *rho);
/* The least pivot of the system that local_state_probe left factored in scratch. */
double local_state_least_pivot(const loam_problem *problem, const double *scratch);
/* Writes o, lse, rho and info of one row. */
void local_state_put(const loam_problem *problem, const loam_args *args, const local_seq *seq, int64_t h,
                     int64_t i, const double *state, const double *rho, loam_row_info info);
/* Both, one after the other. */
void local_state_finish(const loam_problem *problem, const loam_args *args, const local_seq *seq, int64_t h,
                        int64_t i, const double *state, double *scratch);
size_t local_state_scratch(const loam_problem *problem);

/* ------------------------------------------------------------------ gradients of shared parameters */

/* Each row's part of the gradients that are sums over rows, float64, indexed by local_row. */
typedef struct local_row_sums {
    double *scale, *slope, *sink, *ridge;
    double *inner; /* sum_j ds_ij, which rounding alone leaves of 0; where scores decay */
} local_row_sums;

local_row_sums local_row_sums_carve(const loam_problem *problem, arena *pool);
/* Writes grad_scale, grad_slope, grad_sink and, for axes without channels, grad_ridge: sums in row order.
 * Turns the column sums of ds in grad_log_decay into its gradient. */
void local_row_sums_reduce(const loam_problem *problem, const loam_args *args, const local_row_sums *sums);

/* grad_key_bias of the keys beyond lens_kv. */
void local_clear_bias_tail(const loam_problem *problem, const loam_args *args);

/* Writes info where it is wanted. */
void local_put_info(const loam_args *args, const local_seq *seq, int64_t h, int64_t i, loam_row_info info);

#ifdef __cplusplus
}
#endif

#endif
