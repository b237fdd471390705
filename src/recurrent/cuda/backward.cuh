/* SPDX-License-Identifier: MIT
 * The workspace of the backward pass on GPUs of compute capability 8.0 and newer, by which its kernels pass
 * on results. */
#ifndef LOAM_RECURRENT_CUDA_BACKWARD_CUH
#define LOAM_RECURRENT_CUDA_BACKWARD_CUH

#include "src/recurrent/cuda/common.cuh"

/* Instances in double are those of MesaNet, which solve. */
template <class REAL> constexpr bool solves = sizeof(REAL) == sizeof(double);

/* Arrays over work rows (recurrent_work_row) unless said otherwise; NULL where the problem does
 * not need one. */
template <class REAL> struct backward_work {
    int64_t work_rows;
    int parts;                 /* thread blocks of a head; each has its own sums over rows of the state */
    kept_states<REAL> kept;    /* states before tokens 0, every, ..., all rows; every = sqrt(tokens) */
    REAL *replayed;            /* states before each token of one span of `every` tokens (replayed_states) */
    int64_t replayed_per_head; /* tokens for which there is room, for each part */
    bool replayed_by_sequence; /* room of sequence n begins at token n every; else at its first token */
    REAL *dx, *dk, *dg; /* [parts][work row][dim_qk]: of x, k, log decays; MesaNet: z replaces part 0 of dx */
    REAL *dbeta;        /* [parts][work row] */
    float *denominator; /* normalise: s . x */
    REAL *o_dot;        /* normalise: do . y, [o_dot_parts][work row] */
    int o_dot_parts;
    kept_states<double> system; /* MesaNet: H before tokens 0, SOLVE_TOKENS, ... */
    REAL *x, *dw;          /* [work row][dim_qk], MesaNet: what reads S; gradients of keys as values of H */
    double *scale, *decay; /* [work row]: parts of sums over tokens */
    double *ridge;         /* MesaNet: [heads_v][dim_qk] */

    /* Where the room for the states of a sequence begins, and for how many tokens it is. */
    __device__ int64_t replayed_slot(const recurrent_seq &s, int64_t h) const
    {
        return h * replayed_per_head + (replayed_by_sequence ? s.index * kept.every : s.first);
    }
    __device__ int64_t replayed_tokens(const recurrent_seq &s) const
    {
        return replayed_by_sequence ? kept.every : s.len;
    }
};

/* dx of backward_work: S^T do of all tokens. */
loam_status recurrent_adjoint_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                   loam_error *error);
/* The recurrence in reverse: grad_v, grad_state_in, and the parts that the gather kernels sum. */
loam_status recurrent_reverse_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                   loam_error *error);
loam_status recurrent_reverse64_cuda(const loam_problem *p, const loam_args *a,
                                     const backward_work<double> *w, loam_error *error);
/* Gradients of q, k, log decays and beta from their parts, and gradients that are sums over tokens. */
loam_status recurrent_gather_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                  loam_error *error);
loam_status recurrent_gather64_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                    loam_error *error);

#endif
