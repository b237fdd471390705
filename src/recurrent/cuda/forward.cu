/* SPDX-License-Identifier: MIT
 * Forward and decode of the recurrent family on GPUs of compute capability 8.0 and newer. With normalised
 * reads, a first sweep takes s alone through the tokens and writes s . x. MesaNet first takes H
 * through the tokens and keeps it at the beginning of each chunk, then solves the systems of all chunks in
 * parallel, and then reads S with the solutions. */
#include "src/recurrent/cuda/decode.h"
#include "src/recurrent/cuda/solve.cuh"
#include "src/recurrent/cuda/sweep.cuh"

/* Arrays in the workspace; NULL where the problem does not need one. */
typedef struct forward_work {
    float *denominator;         /* [work row]: s . x of normalised reads */
    double *x;                  /* [work row][dim_qk], MesaNet: what reads S */
    kept_states<double> system; /* MesaNet: H before tokens 0, SOLVE_TOKENS, ... */
} forward_work;

static forward_work forward_carve(const loam_problem *p, arena *pool)
{
    forward_work w = {};
    const size_t rows = size_mul((size_t)recurrent_tokens(p), (size_t)p->heads_v);
    if (p->normalise) w.denominator = (float *)arena_take(pool, rows, sizeof(float));
    if (recurrent_form_of(p->mechanism)->solved) {
        w.x = (double *)arena_take(pool, size_mul(rows, (size_t)p->dim_qk), sizeof(double));
        w.system = kept_carve<double>(p, SOLVE_TOKENS, p->dim_qk, pool);
    }
    return w;
}

static loam_status direct(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    sweep<float> s = sweep_of<float>(p, a);
    s.denominator = forward_carve(p, &pool).denominator;
    if (p->normalise) TRY(sweep_denominators(p, a, s.denominator, error));
    return p->pass == LOAM_DECODE && recurrent_step_reads(p, a)
               ? recurrent_step_cuda(p, a, s.denominator, error)
               : sweep_run(&s, error);
}

static loam_status solved(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const forward_work w = forward_carve(p, &pool);
    sweep<double> s = sweep_of<double>(p, a);
    TRY(sweep_systems(p, a, &w.system, error));
    TRY(recurrent_solve_cuda(p, a, &w.system, w.x, NULL, 0, error));
    s.x = w.x;
    return sweep_run(&s, error);
}

static loam_status run(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->batch > 0)
        TRY(recurrent_form_of(p->mechanism)->solved ? solved(p, a, error) : direct(p, a, error));
    return loam_succeed(error);
}

size_t recurrent_forward_cuda_work(const loam_problem *p)
{
    arena pool = {};
    (void)forward_carve(p, &pool);
    return pool.used;
}

loam_status recurrent_forward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, error);
}

size_t recurrent_decode_cuda_work(const loam_problem *p) { return recurrent_forward_cuda_work(p); }

loam_status recurrent_decode_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return run(p, a, error);
}
