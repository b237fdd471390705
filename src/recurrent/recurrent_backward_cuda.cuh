/* SPDX-License-Identifier: MIT
 * The workspace of the backward pass on GPUs of compute capability 8.0 and newer: what one of its kernels hands to the next. */
#ifndef LOAM_RECURRENT_BACKWARD_CUDA_CUH
#define LOAM_RECURRENT_BACKWARD_CUDA_CUH

#include "src/recurrent/recurrent_cuda.cuh"

/* The instances in double are those that solve. */
template <class REAL> constexpr bool solves = sizeof(REAL) == sizeof(double);

/* Arrays by work rows (recurrent_work_row) unless told; NULL where the problem has no use for one. */
template <class REAL> struct backward_work {
    int64_t work_rows;
    int parts;               /* thread blocks of a head; each has its own sums over rows of the state */
    kept_states<REAL> kept;  /* all rows before tokens 0, every, ...; every = sqrt(tokens) */
    REAL *before;            /* the states before each token of one block of them, as the threads hold them */
    int64_t before_per_head; /* tokens there are states for, for each part */
    bool before_by_sequence; /* sequence n has tokens n every and on; else first and on */
    REAL *dx, *dk,
        *dg;       /* [parts][work row][dim_qk]: of x, k, log decays; dx of MesaNet: z in the first part */
    REAL *dbeta;   /* [parts][work row] */
    float *weight; /* normalise: s . x */
    REAL *along;   /* normalise: do . y, [along_parts][work row] */
    int along_parts;
    kept_states<double> system; /* MesaNet: H at the beginning of chunks */
    REAL *x, *dw;          /* MesaNet: what reads S; gradients of keys as values of H; [work row][dim_qk] */
    double *scale, *decay; /* parts of sums over tokens */
    double *ridge;         /* MesaNet: [heads_v][dim_qk] */

    /* Where the states of a sequence begin, and how many tokens there are room for. */
    __device__ int64_t before_slot(const recurrent_seq &s, int64_t h) const
    {
        return h * before_per_head + (before_by_sequence ? s.index * kept.every : s.first);
    }
    __device__ int64_t before_tokens(const recurrent_seq &s) const
    {
        return before_by_sequence ? kept.every : s.len;
    }
};

/* (backward_work.dx) S^T do of all tokens. */
loam_status recurrent_adjoint_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                   loam_error *error);
/* The recurrence in reverse: grad_v, grad_state_in, and what gathers take. */
loam_status recurrent_reverse_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                   loam_error *error);
loam_status recurrent_reverse64_cuda(const loam_problem *p, const loam_args *a,
                                     const backward_work<double> *w, loam_error *error);
/* Gradients of q, k, gates and write strengths from their parts; those that are sums over tokens. */
loam_status recurrent_gather_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                  loam_error *error);
loam_status recurrent_gather64_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                    loam_error *error);

#endif
