/* SPDX-License-Identifier: MIT
 * Backward on CPUs in one pass, for softmax: a thread has all heads that share keys, and sums dq as it goes
 * over blocks of keys: five products a pair, where two passes remake scores and do . v and so do seven. The
 * bits are those of two passes, so which of the two is taken may depend on the number of threads.
 */
#ifndef LOAM_LOCAL_CPU_BACKWARD_GROUP_H
#define LOAM_LOCAL_CPU_BACKWARD_GROUP_H

#include "src/local/cpu/backward_keys.h"
#include "src/local/cpu/backward_rows.h"

/* The records of the rows of a head, and zeros in its sums. */
static inline void begin_head_sums(block *blk, const row_arrays *rows)
{
    const row_totals none = { .inner = { 0 } };
    panel_fill(blk->head_sums, (int64_t)(head_sums_size(blk->hd.p) / LANES), 0);
    for (int64_t i = 0; i < blk->hd.s.nq; i += LANES) {
        load_lanes(blk, i);
        put_rows(blk, rows, &none);
    }
}

static inline void put_head_sums(block *blk)
{
    const loam_problem *p = blk->hd.p;
    const row_totals none = { .inner = { 0 } };
    panel_fill(blk->y, p->dim_qk, 0);
    for (int64_t i = 0; i < blk->hd.s.nq; i += LANES) {
        const float *sum = blk->head_sums + (size_t)(i / LANES) * block_sums_size(p);
        panel_copy(blk->grad, sum, p->dim_qk);
        subtract_common(blk->grad, &blk->hd, sum + p->dim_qk * LANES);
        blk->l.i0 = i, blk->l.count = blk->hd.s.nq - i < LANES ? blk->hd.s.nq - i : LANES;
        put_query_gradient(blk, &none);
    }
}

/* The heads that share the keys of head h_kv. */
static inline void backward_group(block *blk, const loam_problem *p, const loam_args *a,
                                  const row_arrays *rows, const local_seq *s, int64_t h_kv)
{
    const int64_t group = p->heads_q / p->heads_kv, stored = local_stored_keys(p, s);
    for (int64_t n = 0; n < group; n++) {
        block_begin(blk, p, a, s, h_kv * group + n);
        blk->head_sums = blk->group_sums + (size_t)n * head_sums_size(p);
        begin_head_sums(blk, rows);
    }
    for (int64_t j0 = 0; j0 < stored; j0 += LANES)
        backward_keys(blk, rows, h_kv, j0, stored);
    for (int64_t n = 0; n < group; n++) {
        block_begin(blk, p, a, s, h_kv * group + n);
        blk->head_sums = blk->group_sums + (size_t)n * head_sums_size(p);
        put_head_sums(blk);
    }
}

#endif
