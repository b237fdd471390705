/* SPDX-License-Identifier: MIT
 *
 * Scores that decay (FoX, Lin et al. 2025). With g_t <= 0 the log decays of a head and G their running sum
 * (inclusive), the score of a query at position a and key j gains
 *
 *     sum_{t = j+1 .. a} g_t = G_a - G_j
 *
 * G is computed in float64, once per call and before the kernels, which read it through args.log_decay:
 * [batch, heads_q, len_kv] pairs of floats hi + lo = G. The reference computes its own.
 * (hi_a - hi_j) + (lo_a - lo_j) is as exact as a sum of g over j + 1 .. a, whatever the length: the gates
 * before j cost no digits.
 *
 * The row sums of ds = d loss / d score are 0, so the gradient needs only column sums,
 * d g_t = sum_{j < t} sum_i ds_ij. The rounding error of each row sum is subtracted, because it would add up
 * over the rows before t.
 */
#ifndef LOAM_LOCAL_DECAY_H
#define LOAM_LOCAL_DECAY_H

#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gates are clamped to at least this, so that sums are finite. exp of it is 0 in float64: no
 * score outweighs it. */
#define LOCAL_LEAST_DECAY (-16384.0)

typedef struct local_decay_pair {
    float hi, lo;
} local_decay_pair;

/* G_query - G_key, in the domain of G. */
LOAM_INLINE double local_decay_between(local_decay_pair query, local_decay_pair key)
{
    return ((double)query.hi - (double)key.hi) + ((double)query.lo - (double)key.lo);
}

/* Entries of G allocated beyond the last key: kernels load whole tiles of keys, which may
 * extend beyond it. */
enum { LOCAL_DECAY_SPARE = 256 };

/* Bytes of G, the first part of the workspace; 0 without a decay and for the reference. */
size_t local_decay_work(const loam_problem *problem);

/* Computes G. *ready: args with log_decay = G and the workspace after G; without a decay and for the
 * reference, args themselves. CUDA: launches the kernel for the sums, and G is in the log2 domain. */
loam_status local_decay_begin(const loam_problem *problem, const loam_args *args, loam_args *ready,
                              loam_error *error);

/* Replaces the column sums of ds in grad_log_decay by the gradient. rows: the row sums of ds,
 * indexed by local_row. */
void local_decay_gradient(const loam_problem *problem, const loam_args *args, const double *rows);

/* The same on GPUs: local/cuda/decay.cu. */
loam_status local_decay_sums_cuda(const loam_problem *problem, const loam_args *args,
                                  const loam_const_view *sums, loam_error *error);
loam_status local_decay_gradient_cuda(const loam_problem *problem, const loam_args *args, const double *rows,
                                      loam_error *error);

/* Keys of one head over the whole batch. */
LOAM_INLINE int64_t local_keys(const loam_problem *p)
{
    return sequence_packed(p) ? p->total_kv : p->batch * p->len_kv;
}

/* The position of query i among the keys, at least 0 (a query at a negative position sees no key). */
LOAM_INLINE int64_t local_position(const local_seq *s, int64_t i)
{
    const int64_t at = i + s->nk - s->nq;
    return at > 0 ? at : 0;
}

#ifdef __cplusplus
}
#endif

#endif
