/* SPDX-License-Identifier: MIT
 * What a problem costs on paper: visible pairs, operations, bytes that must move.
 *
 * Operations per visible pair of a query and a key, a multiply-add counted as two, d = dim_qk = dim_v:
 *
 *                forward     backward    decode
 *     softmax    4 d         10 d        4 d
 *     parallax   8 d         14 d        8 d
 *     lla        10 d + S    20 d + S    d (d + 1) + 2 d^2 + 6 d
 *
 * The scores and every other product are counted once, whatever a kernel computes again. S is the solver of the
 * row, from its loam_row_info: 4 d for each iteration of conjugate gradients; d (d + 1) for the Gram matrix of
 * its float64 solver; n d for that of the dual form, n the keys the row sees. Factorisations add d^3 / 3 or n^3 / 3
 * a row. The adjoint solve of backward is counted as the forward solve of the same row. */
#ifndef LOAM_CLI_BENCH_COUNT_H
#define LOAM_CLI_BENCH_COUNT_H

#include "loam.h"

/* Keys lo .. hi - 1 that query i sees; lo == hi where it sees none. */
void bench_visible(const loam_problem *problem, int64_t i, int64_t *lo, int64_t *hi);
/* Visible pairs over the whole batch and all query heads. */
double bench_pairs(const loam_problem *problem);
/* Operations; info is [batch, heads_q, len_q], dense, and read for LLA only (not for decode). */
double bench_flop(const loam_problem *problem, const loam_row_info *info);
/* Each input that some query sees read once, each output written once. */
double bench_bytes(const loam_problem *problem);
/* Mean iterations of conjugate gradients over the rows of an LLA problem. */
double bench_iterations(const loam_problem *problem, const loam_row_info *info);

int64_t bench_dtype_bytes(loam_dtype dtype);
/* Of lse, info and what is saved: 4, or 8 where dtype is LOAM_F64. */
int64_t bench_real_bytes(loam_dtype dtype);

#endif
