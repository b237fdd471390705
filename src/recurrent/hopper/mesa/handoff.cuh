/* SPDX-License-Identifier: MIT
 * The arguments and the workspace of the kernels of MesaNet on Hopper. A slot is the place of one
 * chunk of one value head. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_HANDOFF_CUH
#define LOAM_RECURRENT_HOPPER_MESA_HANDOFF_CUH

#include "src/recurrent/cuda/solve.cuh"

enum { MESA_DIM = 64, MESA_TOKENS = SOLVE_TOKENS };

struct mesa_params {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    kept_states<float> kept; /* [slot]: S, then the symmetric part of H, at the beginning of the chunk */
    float *h_in;             /* [sequence][value head][64][64]: a copy of H of state_in */
    float *chunk_decay;      /* [slot]: e^(sum of the gates) of the chunk */
    int32_t *nested;         /* [slot]: 1 for a chunk whose gates are all 0 */
    int32_t *needs_f64;      /* [slot]: 1 for a chunk that must be solved in float64 */
    double *x;               /* [work row][64]: the solutions of such chunks */
};

#endif
