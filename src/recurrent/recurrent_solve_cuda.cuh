/* SPDX-License-Identifier: MIT
 * The systems of MesaNet on GPUs, those of SOLVE_TOKENS tokens by one thread block. */
#ifndef LOAM_RECURRENT_SOLVE_CUDA_CUH
#define LOAM_RECURRENT_SOLVE_CUDA_CUH

#include "src/recurrent/recurrent_cuda.cuh"

enum { SOLVE_TOKENS = 64 };

/* (H_t + Lambda) x_t = scale phi(q_t) for all tokens, from H before tokens 0, 64, ... (destroyed); x [work row][dim_qk], 0 where
 * the system is singular. dx not NULL: also (H_t + Lambda) z_t = dx_t, z in its place. Writes args.info. */
loam_status recurrent_solve_cuda(const loam_problem *p, const loam_args *a, const kept_states<double> *system,
                                 double *x, double *dx, loam_error *error);

#endif
