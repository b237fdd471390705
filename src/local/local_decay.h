/* SPDX-License-Identifier: MIT
 *
 * Scores that decay (FoX, Lin et al. 2025): with G the running sums of the log decays of a head, the score of a query at
 * position a and key j gains
 *
 *     sum_{t = j+1 .. a} g_t = G_a - G_j
 *
 * G is found once for each call, in float64, ahead of the kernels, which find it where args.log_decay was: [batch, heads_q,
 * len_kv] doubles for the reference, else pairs of floats hi + lo = G. (hi_a - hi_j) + (lo_a - lo_j) is then as exact as a sum of
 * the gates between, whatever the length: no digits are lost to what lies before j.
 *
 * Row sums of ds = d loss / d score are 0, so the gradient needs column sums alone: d g_t = sum_{j < t} sum_i ds_ij. What rounding
 * leaves of the row sums is taken out, for it would add up over the rows before t.
 */
#ifndef LOAM_LOCAL_LOCAL_DECAY_H
#define LOAM_LOCAL_LOCAL_DECAY_H

#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gates below this count as this, so that sums are finite. e to it is 0 in float64: no score outweighs it. */
#define LOCAL_LEAST_DECAY (-16384.0)

typedef struct local_decay_pair {
    float hi, lo;
} local_decay_pair;

/* Tiles of keys reach this far beyond the last one of all. */
enum { LOCAL_DECAY_SPARE = 256 };

/* Bytes of G, at the beginning of the workspace; 0 where nothing decays. */
size_t local_decay_work(const loam_problem *problem);

/* *ready: args with G as log_decay and the workspace behind it, or args themselves where nothing decays. CUDA: the sums are
 * launched, and G is to base 2. */
loam_status local_decay_begin(const loam_problem *problem, const loam_args *args, loam_args *ready,
                              loam_error *error);

/* grad_log_decay holds the column sums of ds; they become the gradient. rows: the row sums, indexed by local_row. */
void local_decay_gradient(const loam_problem *problem, const loam_args *args, const double *rows);

/* The same on GPUs: local_decay_cuda.cu. */
loam_status local_decay_sums_cuda(const loam_problem *problem, const loam_args *args,
                                  const loam_const_view *sums, loam_error *error);
loam_status local_decay_gradient_cuda(const loam_problem *problem, const loam_args *args, const double *rows,
                                      loam_error *error);

/* Keys of one head over the whole batch. */
LOAM_INLINE int64_t local_keys(const loam_problem *p)
{
    return local_packed(p) ? p->total_kv : p->batch * p->len_kv;
}

/* The position among the keys of query i; no key is visible where it is negative. */
LOAM_INLINE int64_t local_position(const local_seq *s, int64_t i)
{
    const int64_t at = i + s->nk - s->nq;
    return at > 0 ? at : 0;
}

#ifdef __cplusplus
}
#endif

#endif
