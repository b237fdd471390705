/* SPDX-License-Identifier: MIT
 * The systems of MesaNet on GPUs in float64; a thread block solves those of SOLVE_TOKENS tokens. */
#ifndef LOAM_RECURRENT_CUDA_SOLVE_CUH
#define LOAM_RECURRENT_CUDA_SOLVE_CUH

#include "src/recurrent/cuda/common.cuh"

enum { SOLVE_TOKENS = 64 };

/* Solves (H_t + Lambda) x_t = scale phi(q_t) for all tokens, from H before tokens 0, SOLVE_TOKENS, ...,
 * which is overwritten. x: [work row][dim_qk], 0 where the system is singular. dx, if not NULL, is
 * [parts][work row][dim_qk]; then also (H_t + Lambda) z_t = the sum of the parts of dx_t, and z replaces the
 * first part. Writes args.info. */
loam_status recurrent_solve_cuda(const loam_problem *p, const loam_args *a, const kept_states<double> *system,
                                 double *x, double *dx, int parts, loam_error *error);

#endif
