/* SPDX-License-Identifier: MIT
 *
 * Backward on CPUs, compiled once for each instruction set. The formulas are those of
 * local/reference/backward.c, from the rows that forward saved. Two passes, so that no thread adds to what
 * another thread writes:
 *
 *   rows   lanes are queries: drho, the adjoint solve for y, the row constants, dq
 *   keys   lanes are keys: all queries that see them are streamed past; dk and dv stay in the block
 *
 * For each row the first pass stores y and a row_record, as floats in the workspace, for the second.
 */
#include "src/local/cpu/backward_keys.h"
#include "src/local/cpu/backward_rows.h"

#include <omp.h>

size_t LOCAL_JOIN(ISA(local_backward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    row_arrays_carve(p, &pool);
    return size_add(pool.used, size_mul(block_bytes(p), (size_t)p->threads));
}

static local_row_sums run_blocks(const loam_problem *p, const loam_args *a)
{
    const int64_t row_blocks = (p->len_q + LANES - 1) / LANES, key_blocks = (p->len_kv + LANES - 1) / LANES;
    const size_t each = block_bytes(p);
    arena shared = { a->work, 0 };
    const row_arrays rows = row_arrays_carve(p, &shared);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        block blk;
        block_carve(&blk, p, &pool);
        /* The longest blocks first: late queries, early keys. */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t back = 0; back < row_blocks; back++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_q; h++) {
                    const local_seq s = local_seq_at(p, a, b);
                    const int64_t i0 = (row_blocks - 1 - back) * LANES;
                    if (i0 < s.nq) {
                        block_begin(&blk, p, a, &s, h);
                        backward_rows(&blk, &rows, i0);
                    }
                }
            }
        }
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t n = 0; n < key_blocks; n++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_kv; h++) {
                    const local_seq s = local_seq_at(p, a, b);
                    if (n * LANES < local_stored_keys(p, &s)) {
                        block_begin(&blk, p, a, &s, h * (p->heads_q / p->heads_kv));
                        backward_keys(&blk, &rows, h, n * LANES, local_stored_keys(p, &s));
                    }
                }
            }
        }
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
