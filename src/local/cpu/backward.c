/* SPDX-License-Identifier: MIT
 *
 * Backward on CPUs, compiled once for each instruction set. The formulas are those of
 * local/reference/backward.c, from the rows that forward saved. Two passes, so that no thread adds to what
 * another thread writes:
 *
 *   rows   lanes are queries: drho, the adjoint solve for y, the row constants, dq
 *   keys   lanes are keys: all queries that see them are streamed past; dk and dv stay in the block
 *
 * For each row the first pass stores y and a row_record, as floats in the workspace, for the second. Softmax
 * may do without the first (local/cpu/backward_group.h).
 */
#include "src/local/cpu/backward_group.h"

#include <omp.h>

size_t LOCAL_JOIN(ISA(local_backward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    row_arrays_carve(p, &pool);
    return size_add(pool.used, size_mul(block_bytes(p), (size_t)p->threads));
}

/* Called by every thread of a parallel region, as one_pass is. */
static void two_passes(block *blk, const loam_problem *p, const loam_args *a, const row_arrays *rows)
{
    const block_queue row_queue = block_queue_of(p, p->len_q, p->heads_q),
                      key_queue = block_queue_of(p, p->len_kv, p->heads_kv);
    /* The longest blocks first: late queries, early keys. */
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < block_queue_length(&row_queue); n++) {
        const block_place at = block_queue_at(&row_queue, n);
        const local_seq s = local_seq_at(p, a, at.b);
        const int64_t i0 = (row_queue.blocks - 1 - at.block) * LANES;
        if (i0 < s.nq) {
            block_begin(blk, p, a, &s, at.h);
            backward_rows(blk, rows, i0);
        }
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < block_queue_length(&key_queue); n++) {
        const block_place at = block_queue_at(&key_queue, n);
        const local_seq s = local_seq_at(p, a, at.b);
        const int64_t j0 = at.block * LANES, stored = local_stored_keys(p, &s);
        if (j0 < stored) {
            block_begin(blk, p, a, &s, at.h * (p->heads_q / p->heads_kv));
            backward_keys(blk, rows, at.h, j0, stored);
        }
    }
}

static void one_pass(block *blk, const loam_problem *p, const loam_args *a, const row_arrays *rows)
{
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < p->batch * p->heads_kv; n++) {
        const local_seq s = local_seq_at(p, a, n / p->heads_kv);
        backward_group(blk, p, a, rows, &s, n % p->heads_kv);
    }
}

static local_row_sums run_blocks(const loam_problem *p, const loam_args *a)
{
    const size_t each = block_bytes(p);
    arena shared = { a->work, 0 };
    const row_arrays rows = row_arrays_carve(p, &shared);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        block blk;
        block_carve(&blk, p, &pool);
        tiles_begin();
        if (fits_one_pass(p) && !a->grad_scale)
            one_pass(&blk, p, a, &rows);
        else
            two_passes(&blk, p, a, &rows);
        tiles_end();
    }
    return rows.sums;
}

loam_status ISA(local_backward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_row_sums sums = run_blocks(p, a);
    local_clear_bias_tail(p, a);
    local_row_sums_reduce(p, a, &sums);
    return loam_succeed(error);
}
