/* SPDX-License-Identifier: MIT
 *
 * MesaNet by chunks of 64 tokens, 64 channels, bf16. All systems of a chunk
 * (recurrent/hopper/mesa/system.cuh) are solved together: by conjugate gradients, whose steps are matrix
 * products, or, where all gates of the chunk are 0, by two factors (recurrent/hopper/mesa/nested.cuh). If a
 * row ends with a relative residual above RESIDUAL_MAX, or if its products are not exact enough to tell, the
 * whole chunk is solved again in float64. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH
#define LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH

#include "src/recurrent/hopper/mesa/nested.cuh"

enum { MESA_MOST_STEPS = 96, MESA_MOST_ROUNDS = 4 };

/* A row is solved when |b - A x| <= RESIDUAL_MAX |b|. */
#define RESIDUAL_MAX 5e-5f
/* The error of A x, computed with hi and lo parts, is below PRODUCT_ERROR trace(A) |x| / 8 (found by
 * experiment). Where this exceeds PRODUCT_ERROR_MAX |b|, the residual cannot be trusted and the chunk is
 * solved in float64. */
#define PRODUCT_ERROR 3.8e-6f
#define PRODUCT_ERROR_MAX 1e-3f

/* Conjugate gradients for A x = b from x = 0, for the 16 rows of the warp, until |r|^2 <= tolerance2 in
 * each row or for MESA_MOST_STEPS steps. r is b on entry and the residual on return; residual2 is |r|^2.
 * Returns the number of steps. */
static __device__ __forceinline__ int mesa_cg(mesa_rows &x, mesa_rows &r, const mesa_solve_shared &sm,
                                              const float (&decay)[2], const float (&tolerance2)[2],
                                              float (&residual2)[2])
{
    mesa_rows p, y;
    clear(x);
    memcpy(p, r, sizeof p);
    mesa_dot(residual2, r, r);
    int steps = 0;
    for (; steps < MESA_MOST_STEPS; steps++) {
        if (!__any_sync(~0u, residual2[0] > tolerance2[0] || residual2[1] > tolerance2[1])) break;
        float curvature[2], alpha[2], next[2], beta[2];
        mesa_apply<MAP_SYSTEM>(y, p, sm, decay);
        mesa_add_ridge(y, p, sm.ridge);
        mesa_dot(curvature, p, y);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            alpha[row] = residual2[row] > tolerance2[row] && curvature[row] > 0
                             ? residual2[row] / curvature[row]
                             : 0;
        }
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            x[e / 4][e % 4] = fma(alpha[e % 4 / 2], p[e / 4][e % 4], x[e / 4][e % 4]);
            r[e / 4][e % 4] = fma(-alpha[e % 4 / 2], y[e / 4][e % 4], r[e / 4][e % 4]);
        }
        mesa_dot(next, r, r);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            beta[row] = residual2[row] > 0 ? next[row] / residual2[row] : 0;
            residual2[row] = next[row];
        }
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++)
            p[e / 4][e % 4] = fma(beta[e % 4 / 2], p[e / 4][e % 4], r[e / 4][e % 4]);
    }
    return steps;
}

/* How the systems of the thread's two rows ended. */
struct mesa_outcome {
    float residual[2];
    int steps; /* of conjugate gradients; 0 with NESTED */
    bool needs_f64;
};

/* The same by the two factors of the chunk: iterative refinement from x = 0, until |r|^2 <= tolerance2 in
 * each row or for MESA_MOST_ROUNDS rounds. */
static __device__ __forceinline__ void mesa_refine_nested(mesa_rows &x, mesa_rows &r,
                                                          const mesa_solve_shared &sm,
                                                          const float (&tolerance2)[2], float (&residual2)[2])
{
    const float one[2] = { 1, 1 };
    clear(x);
    mesa_dot(residual2, r, r);
    for (int round = 0; round < MESA_MOST_ROUNDS; round++) {
        if (!__any_sync(~0u, residual2[0] > tolerance2[0] || residual2[1] > tolerance2[1])) break;
        mesa_rows step, y;
        mesa_solve_nested(step, r, sm);
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            const int row = e % 4 / 2; /* a row that has converged stays as it is */
            step[e / 4][e % 4] = residual2[row] > tolerance2[row] ? step[e / 4][e % 4] : 0;
            x[e / 4][e % 4] += step[e / 4][e % 4];
        }
        mesa_apply<MAP_SYSTEM>(y, step, sm, one);
        mesa_add_ridge(y, step, sm.ridge);
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++)
            r[e / 4][e % 4] -= y[e / 4][e % 4];
        mesa_dot(residual2, r, r);
    }
}

/* Solves A x = r for the warp's rows; r is overwritten. trace: trace(A) of the thread's two rows. */
template <bool NESTED>
static __device__ __forceinline__ mesa_outcome mesa_solve_rows(mesa_rows &x, mesa_rows &r,
                                                               const mesa_solve_shared &sm,
                                                               const float (&decay)[2],
                                                               const float (&trace)[2])
{
    float rhs2[2], tolerance2[2], residual2[2], solution2[2];
    mesa_outcome outcome = {};
    mesa_dot(rhs2, r, r);
    tolerance2[0] = RESIDUAL_MAX * RESIDUAL_MAX * rhs2[0],
    tolerance2[1] = RESIDUAL_MAX * RESIDUAL_MAX * rhs2[1];
    if constexpr (NESTED)
        mesa_refine_nested(x, r, sm, tolerance2, residual2);
    else
        outcome.steps = mesa_cg(x, r, sm, decay, tolerance2, residual2);
    mesa_dot(solution2, x, x);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        /* the comparisons are negated, so that NaN is needs_f64 */
        outcome.needs_f64 |= !(residual2[row] <= tolerance2[row]) ||
                             !(PRODUCT_ERROR / 8 * trace[row] * sqrtf(solution2[row]) <=
                               PRODUCT_ERROR_MAX * sqrtf(rhs2[row]));
        outcome.residual[row] = rhs2[row] > 0 ? sqrtf(residual2[row] / rhs2[row]) : 0;
    }
    return outcome;
}

/* The shared memory of a kernel: without NESTED the members of mesa_solve_shared from
 * `whiten` on are not used. */
template <bool NESTED>
constexpr size_t mesa_solve_bytes = NESTED ? sizeof(mesa_solve_shared) : offsetof(mesa_solve_shared, whiten);

/* True if the chunk of the thread block has tokens and is of the kind that the kernel solves. */
template <bool NESTED>
static __device__ __forceinline__ bool mesa_has_chunk(const mesa_params &s, const mesa_chunk &chunk)
{
    return chunk.tokens > 0 && s.nested[mesa_slot(s, chunk)] == (int32_t)NESTED;
}

/* Forward: x, o and info of a chunk, one thread block for each. Two launches cover all chunks: NESTED
 * those whose gates are all 0. */
template <bool NESTED>
__global__ void __launch_bounds__(MESA_THREADS, 2) mesa_solve_kernel(const __grid_constant__ mesa_params s)
{
    extern __shared__ __align__(16) char shared_memory[];
    mesa_solve_shared &sm = *(mesa_solve_shared *)shared_memory;
    const mesa_chunk chunk = mesa_chunk_of_block(s);
    if (!mesa_has_chunk<NESTED>(s, chunk)) return;
    mesa_solve_load(s, sm, chunk);
    const int lane = threadIdx.x % 32, t2 = lane % 4 * 2, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float decay[2] = { expf((float)sm.sums[t0]), expf((float)sm.sums[t0 + 8]) };
    mesa_rows x, r;
    float trace[2];
    if constexpr (NESTED) mesa_factor(sm, mesa_states(s.kept, s, chunk) + MESA_DIM * MESA_DIM);
    mesa_pair_weights(sm, trace);
    mesa_add_trace(trace, sm, decay);
    __syncwarp();
    mesa_load_rows(r, s.a.q, chunk, chunk.key_head);
    mesa_scale_queries(r, s.p);
    const mesa_outcome outcome = mesa_solve_rows<NESTED>(x, r, sm, decay, trace);
    if (__any_sync(~0u, outcome.needs_f64) && lane == 0) s.needs_f64[mesa_slot(s, chunk)] = 1;
    mesa_apply<MAP_OUTPUT>(r, x, sm, decay);
    __nv_bfloat16 *o = (__nv_bfloat16 *)s.a.o.data + RECURRENT_AT(s.a.o, chunk.seq.b, chunk.h, chunk.first);
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 2 * 8, c = e / 2 * 8 + t2;
        if (t < chunk.tokens) {
            *(__nv_bfloat162 *)(o + t * s.a.o.token + c) = __floats2bfloat162_rn(r[e / 2][e % 2 * 2],
                                                                                 r[e / 2][e % 2 * 2 + 1]);
        }
    }
    if (s.a.info.data && lane % 4 == 0) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int t = t0 + 8 * row;
            const loam_row_info info = { LOAM_ROW_SOLVED, NESTED ? LOAM_SOLVER_GRAM : LOAM_SOLVER_CG,
                                         outcome.steps, outcome.residual[row] };
            if (t < chunk.tokens) {
                ((loam_row_info *)
                     s.a.info.data)[RECURRENT_AT(s.a.info, chunk.seq.b, chunk.h, chunk.first + t)] = info;
            }
        }
    }
}

#endif
