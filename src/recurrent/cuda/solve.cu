/* SPDX-License-Identifier: MIT
 * The systems of MesaNet in float64, of all tokens. */
#include "src/recurrent/cuda/solve_rows.cuh"

/* One thread block for each SOLVE_TOKENS tokens of a head. */
__global__ void __launch_bounds__(SOLVE_THREADS, 3) solve_kernel(const __grid_constant__ solve s)
{
    extern __shared__ __align__(16) char shared[];
    const int64_t chunk = blockIdx.x % s.system.per_sequence, head = blockIdx.x / s.system.per_sequence;
    const int64_t h = head % s.p.heads_v, first = chunk * SOLVE_TOKENS;
    const recurrent_seq seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    if (first >= seq.len) return;
    double *kept = kept_row(s.system, s.p, seq, h, chunk, 0);
    solve_chunk(s, shared, seq, h, first, kept, s.system.width, kept);
}

loam_status recurrent_solve_cuda(const loam_problem *p, const loam_args *a, const kept_states<double> *system,
                                 double *x, double *dx, int parts, loam_error *error)
{
    solve s = {};
    s.p = *p, s.a = *a, s.form = *recurrent_form_of(p->mechanism), s.system = *system;
    s.x = x, s.dx = dx, s.parts = parts;
    s.plane = recurrent_tokens(p) * p->heads_v * p->dim_qk;
    if (s.system.per_sequence == 0) return LOAM_OK;
    return cuda_launch("solve_kernel", solve_kernel, p->batch * p->heads_v * s.system.per_sequence,
                       SOLVE_THREADS, solve_shared_bytes((size_t)p->dim_qk), a->stream, false, error, s);
}
