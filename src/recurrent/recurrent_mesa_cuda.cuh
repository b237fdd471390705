/* SPDX-License-Identifier: MIT
 * What the kernels of MesaNet on Hopper hand to each other. */
#ifndef LOAM_RECURRENT_MESA_CUDA_CUH
#define LOAM_RECURRENT_MESA_CUDA_CUH

#include "src/recurrent/recurrent_solve_cuda.cuh"

enum { MESA_DIM = 64, MESA_TOKENS = SOLVE_TOKENS };

struct mesa {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    kept_states<float> kept; /* S, then the symmetric part of H, at the beginning of chunks */
    float *given;            /* [sequence][value head][64][64]: H of state_in */
    float *total;            /* by their slots: e^(sum of the gates) of the chunk */
    int32_t *nested;         /* by their slots: 1 for chunks whose gates are all 0 */
    int32_t *doubtful;       /* by their slots: chunks that float64 shall solve */
    double *x;               /* [work row][64]: its solutions */
};

#endif
