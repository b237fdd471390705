/* SPDX-License-Identifier: MIT
 * The parts of the backward pass on GPUs, and the arrays in the workspace by which they pass on results. */
#ifndef LOAM_LOCAL_CUDA_BACKWARD_H
#define LOAM_LOCAL_CUDA_BACKWARD_H

#include "src/local/local.h"

/* Constants of a row for the pass over keys, as in local/cpu/backward_block.h; 16 words.
 * rho . kbar = rho_kbar + rho_rest, likewise for y; gbar = do . vbar; gbar_rest = sum p (g - gbar), 0 but for
 * rounding; spread = e / unit; peak: the first key with the highest score; keys lo .. hi - 1 are seen. */
typedef struct row_scalars {
    float lse;
    float gbar, gbar_rest;
    float rho_kbar, rho_rest;
    float y_kbar, y_rest;
    float e;
    float spread, trace, unit; /* unit: of the ridge */
    float kbar2;
    float x0; /* the query's part of x, for scores that are mapped */
    int32_t peak, lo, hi;
} row_scalars;

/* State of a block of 64 rows before query_kernel: finished, with rho and y in one bf16 part (ONE_PART) or in
 * two (TWO_PARTS); or PENDING, all the work of query_kernel still to be done. */
enum { ROWS_ONE_PART, ROWS_TWO_PARTS, ROWS_PENDING };

/* Arrays over rows, in device memory. */
typedef struct row_arrays {
    row_scalars *record;
    float *y; /* [rows][dim_qk], LLA: drho, then y */
    local_row_sums sums;
    double *head_sums; /* [2][heads_q]: of scale and ridge */
    int32_t *state;    /* LLA: for each 64 rows, in the order of row_block_at; NULL: all ROWS_PENDING */
} row_arrays;

/* Powers of two of a key-value head in the pass over keys of LLA in float16 on Hopper: factors of do and y,
 * of rho, and of weights p (1 - u). tame: with them float16 holds all operands; else the head is for
 * query_kernel and key_kernel. */
typedef struct key_scale {
    float grad, probe, fold;
    int32_t tame;
} key_scale;

/* Those, [batch][heads_kv], lie behind the states of the rows; NULL where there are none. */
LOAM_INLINE size_t local_row_states(const loam_problem *p)
{
    return ((size_t)p->len_q + 63) / 64 * (size_t)(p->batch * p->heads_q);
}
LOAM_INLINE key_scale *local_key_scales(const loam_problem *p, int32_t *state)
{
    return state ? (key_scale *)(state + (local_row_states(p) + 3) / 4 * 4) : NULL;
}

#ifdef __cplusplus
extern "C" {
#endif

row_arrays local_row_arrays_carve(const loam_problem *problem, arena *pool);

typedef loam_status local_rows_fn(const loam_problem *problem, const loam_args *args, const row_arrays *rows,
                                  loam_error *error);

/* Parallax: grad_probe and e. LLA: drho, the unit of the ridge, and the mean variance of the keys. */
local_rows_fn local_probe_gradient_cuda;
/* y by conjugate gradients, then the rows that these did not solve, in float64. memory:
 * local_adjoint_cuda_work bytes of the workspace. */
typedef loam_status local_adjoint_fn(const loam_problem *problem, const loam_args *args,
                                     const row_arrays *rows, void *memory, loam_error *error);
local_adjoint_fn local_adjoint_cuda, local_adjoint_double_cuda;
kernel_work_fn local_adjoint_cuda_work;
/* y of all rows in float64. memory: local_all64_cuda_work bytes of the workspace. */
local_adjoint_fn local_adjoint_all64_cuda;
/* dq, and the records for the pass over keys. */
local_rows_fn local_query_gradient_narrow_cuda, local_query_gradient_wide_cuda;
/* dk and dv. */
local_rows_fn local_key_gradient_narrow_cuda, local_key_gradient_wide_cuda;
/* Gradients that are sums over rows, and those of the log decays. */
local_rows_fn local_row_sums_cuda;

/* The two passes. Over rows: y, records and dq. Over keys: dk and dv. */
local_adjoint_fn local_rows_cuda;
local_rows_fn local_keys_cuda;
/* The same on Hopper, for arrays that bulk copies can read: rows of LLA, and the same for float16; rows of
 * softmax and Parallax, and the same for float16; keys to 128 channels, of softmax and Parallax the same for
 * float16, and keys to 256. */
local_adjoint_fn local_rows_solved_hopper, local_rows_solved_half_hopper;
local_rows_fn local_rows_given_hopper, local_rows_given_half_hopper;
local_adjoint_fn local_keys_hopper, local_keys_solved_wide_hopper;
local_rows_fn local_keys_half_hopper, local_keys_shared_hopper;
/* The scales of heads of LLA in float16, when y is known; rows of heads that are not tame become pending.
 * memory: what the pass over rows has left. Then keys of heads that are tame. */
local_adjoint_fn local_key_scales_half_hopper, local_keys_solved_half_hopper;
kernel_work_fn local_keys_solved_half_hopper_work;
kernel_work_fn local_rows_solved_hopper_work, local_keys_hopper_work;

#ifdef __cplusplus
}
#endif

#endif
