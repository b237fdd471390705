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
 * FoX counts as what it is a score of; PaTH adds 2 d^2 / 64 a pair, 6 d^2 / 64 backward, for the transitions
 * of tiles.
 *
 * Recurrences, per token and head of values, C = 64 tokens a chunk, whole C x C tiles, exponentials not
 * counted; dv = dim_v, one more with normalise:
 *
 *                forward                          backward                               decode
 *     additive   2 C (d + dv) + 4 d dv            6 C d + 4 C dv + 10 d dv               4 d dv
 *     delta      4 C (d + dv) + 6 d dv + C^2 / 3  12 C d + 10 C dv + 16 d dv + C^2 / 3   6 d dv
 *     mesa       additive (dv = dv, dv = d) + S   10 C d + 4 C dv + 10 d dv + 6 d^2 + 2 S
 *                                                                                        2 d^2 + 4 d dv + S
 *
 * (decode: d dv more where additive and delta have gates), where S is n (2 d^2 + 4 C d) for n iterations of
 * conjugate gradients (decode: 2 n d^2), 20 d^2 where the row was solved exactly (decode: d^3 / 3 + 2 d^2).
 * The backward makes states and solutions again, and that is counted.
 *
 * M positive features are M channels d of an additive one, and 4 M dim_qk more for their map, 12 backward.
 *
 * The scores and every other product are counted once, whatever a kernel computes again. S is the solver of
 * the row, from its loam_row_info: 4 d for each iteration of conjugate gradients; d (d + 1) for the Gram
 * matrix of its float64 solver; n d for that of the dual form, n the keys the row sees. Factorisations add
 * d^3 / 3 or n^3 / 3 a row. The adjoint solve of backward is counted as the forward solve of the same row. */
#ifndef LOAM_CLI_BENCH_COUNT_H
#define LOAM_CLI_BENCH_COUNT_H

#include "loam.h"

#include <stdbool.h>

/* Keys lo .. hi - 1 that query i sees; lo == hi where it sees none. */
void bench_visible(const loam_problem *problem, int64_t i, int64_t *lo, int64_t *hi);
/* Visible pairs over the whole batch and all query heads; 0 for recurrences, which have none. */
double bench_pairs(const loam_problem *problem);
/* Operations; info is [batch, heads, len_q], dense, and read where rows solve; in decode of the local
 * family it is not. */
double bench_flop(const loam_problem *problem, const loam_row_info *info);
/* Each input that some query sees read once, each output written once; decode of a recurrence: its state
 * too. */
double bench_bytes(const loam_problem *problem);
/* Mean iterations of conjugate gradients over the rows of a problem that solves. */
double bench_iterations(const loam_problem *problem, const loam_row_info *info);
/* Share of these rows whose result a factorisation gave (LOAM_SOLVER_DUAL, LOAM_SOLVER_GRAM), not conjugate
 * gradients. */
double bench_exact(const loam_problem *problem, const loam_row_info *info);

/* Does a row solve a system, for its probe or for what it reads the state with? */
bool bench_solves(const loam_problem *problem);
/* The number of positive features; 0 where there are none. */
int64_t bench_features(const loam_problem *problem);

int64_t bench_dtype_bytes(loam_dtype dtype);
/* Of lse, info and what is saved: 4, or 8 where dtype is LOAM_F64. */
int64_t bench_real_bytes(loam_dtype dtype);

#endif
