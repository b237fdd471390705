/* SPDX-License-Identifier: MIT
 * The systems of MesaNet on GPUs, those of SOLVE_TOKENS tokens by one thread block. */
#ifndef LOAM_RECURRENT_SOLVE_CUDA_CUH
#define LOAM_RECURRENT_SOLVE_CUDA_CUH

#include "src/recurrent/recurrent_cuda.cuh"

enum { SOLVE_TOKENS = 64 };

/* (H_t + Lambda) x_t = scale phi(q_t) for all tokens, from H before tokens 0, 64, ... (destroyed); x [work row][dim_qk], 0 where
 * the system is singular. dx [parts][work row][dim_qk] or NULL: also (H_t + Lambda) z_t = the sum of dx_t over the parts, z in the
 * place of the first. Writes args.info. */
loam_status recurrent_solve_cuda(const loam_problem *p, const loam_args *a, const kept_states<double> *system,
                                 double *x, double *dx, int parts, loam_error *error);

/* The same for the chunks that `only` names by their slots, from float states [slot][dim_v + dim_qk]; dim_qk to 96. */
loam_status recurrent_solve_rest_cuda(const loam_problem *p, const loam_args *a,
                                      const kept_states<float> *states, const int32_t *only, double *x,
                                      loam_error *error);

#endif
