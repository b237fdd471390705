/* SPDX-License-Identifier: MIT
 * The parts of the backward pass on GPUs, and what they hand on in the workspace. */
#ifndef LOAM_LOCAL_LOCAL_BACKWARD_CUDA_H
#define LOAM_LOCAL_LOCAL_BACKWARD_CUDA_H

#include "src/local/local.h"

/* A row for the second pass, as in local_backward_block.h; 16 words. */
typedef struct row_record {
    float lse;
    float gbar, gbar_rest;
    float rho_kbar, rho_rest;
    float y_kbar, y_rest;
    float e;
    float spread, trace, unit; /* unit: of the ridge */
    float kbar2;
    float x0; /* the query's part of x, where a soft cap must see it */
    int32_t peak, lo, hi;
} row_record;

/* How far the rows of a block have come before query_kernel: rho and y have one bf16 part each, or more, and all is done; or all that
 * query_kernel does is left. */
enum { ROWS_CHEAP, ROWS_FINE, ROWS_LEFT };

/* Arrays over rows, in device memory. */
typedef struct row_arrays {
    row_record *record;
    float *y; /* [rows][dim_qk], LLA: drho, then y */
    local_row_sums sums;
    double *head_sums; /* [2][heads_q]: of scale and ridge */
    int32_t *state;    /* LLA, of each 64 rows as row_block_at counts them; NULL: all ROWS_LEFT */
} row_arrays;

#ifdef __cplusplus
extern "C" {
#endif

row_arrays local_row_arrays_carve(const loam_problem *problem, arena *pool);

typedef loam_status local_rows_fn(const loam_problem *problem, const loam_args *args, const row_arrays *rows,
                                  loam_error *error);

/* drho, and what the solve needs; Parallax: grad_probe. */
local_rows_fn local_probe_gradient_cuda;
/* y by conjugate gradients; the rows that these leave, in float64. memory: local_adjoint_cuda_work bytes of
 * the workspace. */
typedef loam_status local_adjoint_fn(const loam_problem *problem, const loam_args *args,
                                     const row_arrays *rows, void *memory, loam_error *error);
local_adjoint_fn local_adjoint_cuda, local_adjoint64_cuda;
local_work_fn local_adjoint_cuda_work;
/* y of all rows in float64. memory: local_all64_cuda_work bytes. */
local_adjoint_fn local_adjoint_all64_cuda;
/* dq. */
local_rows_fn local_query_gradient_narrow_cuda, local_query_gradient_wide_cuda;
/* dk and dv. */
local_rows_fn local_key_gradient_narrow_cuda, local_key_gradient_wide_cuda;
/* Gradients that are sums over rows, and that of the decay. */
local_rows_fn local_row_sums_cuda;

/* The two passes: y, records and dq; dk and dv. */
local_adjoint_fn local_rows_cuda;
local_rows_fn local_keys_cuda;
/* The same on Hopper, for arrays that bulk copies can read: rows of LLA, rows of softmax and Parallax, keys. */
local_adjoint_fn local_rows_solved_sm90;
local_rows_fn local_rows_given_sm90;
local_adjoint_fn local_keys_sm90;
local_work_fn local_rows_solved_sm90_work, local_keys_sm90_work;

#ifdef __cplusplus
}
#endif

#endif
