/* SPDX-License-Identifier: MIT
 *
 * MesaNet by chunks of 64 tokens, 64 channels, bf16. All systems of a chunk (recurrent/hopper/mesa/system.cuh)
 * are solved together: by conjugate gradients, whose steps are matrix products, or, where all gates of the
 * chunk are 0, by two factors (recurrent/hopper/mesa/nested.cuh). If a row ends with a relative residual above
 * RESIDUAL, or if its products are not exact enough to tell, the whole chunk is solved again in float64. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH
#define LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH

#include "src/recurrent/hopper/mesa/nested.cuh"

enum { MESA_MOST_STEPS = 96, MESA_MOST_ROUNDS = 4 };

/* A row is solved when |b - A x| <= RESIDUAL |b|. */
#define RESIDUAL 5e-5f
/* The error of A x, computed with hi and lo parts, is below TWO_PARTS trace(A) |x| / 8 (found by experiment).
 * Where this exceeds DOUBTFUL |b|, the residual cannot be trusted and the chunk is solved in float64. */
#define TWO_PARTS 3.8e-6f
#define DOUBTFUL 1e-3f

/* Conjugate gradients for A x = b from x = 0, for the 16 rows of the warp, until |r|^2 <= goal in
 * each row or for MESA_MOST_STEPS steps. r is b on entry and the residual on return; rest is |r|^2.
 * Returns the number of steps. */
static __device__ __forceinline__ int mesa_conjugate(mesa_rows &x, mesa_rows &r,
                                                     const mesa_solve_stage &stage, const float (&decay)[2],
                                                     const float (&goal)[2], float (&rest)[2])
{
    mesa_rows p, y;
    clear(x);
    memcpy(p, r, sizeof p);
    mesa_dot(rest, r, r);
    int steps = 0;
    for (; steps < MESA_MOST_STEPS; steps++) {
        if (!__any_sync(~0u, rest[0] > goal[0] || rest[1] > goal[1])) {
            break;
        }
        float curvature[2], alpha[2], next[2], beta[2];
        mesa_apply<MAP_SYSTEM>(y, p, stage, decay);
        mesa_add_ridge(y, p, stage.ridge);
        mesa_dot(curvature, p, y);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            alpha[row] = rest[row] > goal[row] && curvature[row] > 0 ? rest[row] / curvature[row] : 0;
        }
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            x[e / 4][e % 4] = fma(alpha[e % 4 / 2], p[e / 4][e % 4], x[e / 4][e % 4]);
            r[e / 4][e % 4] = fma(-alpha[e % 4 / 2], y[e / 4][e % 4], r[e / 4][e % 4]);
        }
        mesa_dot(next, r, r);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            beta[row] = rest[row] > 0 ? next[row] / rest[row] : 0;
            rest[row] = next[row];
        }
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            p[e / 4][e % 4] = fma(beta[e % 4 / 2], p[e / 4][e % 4], r[e / 4][e % 4]);
        }
    }
    return steps;
}

/* How the systems of the thread's two rows ended. */
struct mesa_end {
    float residual[2];
    int steps; /* of conjugate gradients; 0 with NESTED */
    bool doubtful;
};

/* The same by the two factors of the chunk: iterative refinement from x = 0, until |r|^2 <= goal in each row
 * or for MESA_MOST_ROUNDS rounds. */
static __device__ __forceinline__ void mesa_nested(mesa_rows &x, mesa_rows &r, const mesa_solve_stage &stage,
                                                   const float (&goal)[2], float (&rest)[2])
{
    const float one[2] = { 1, 1 };
    clear(x);
    mesa_dot(rest, r, r);
    for (int round = 0; round < MESA_MOST_ROUNDS; round++) {
        if (!__any_sync(~0u, rest[0] > goal[0] || rest[1] > goal[1])) {
            break;
        }
        mesa_rows step, y;
        mesa_solve_nested(step, r, stage);
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            const int row = e % 4 / 2; /* a row that has converged stays as it is */
            step[e / 4][e % 4] = rest[row] > goal[row] ? step[e / 4][e % 4] : 0;
            x[e / 4][e % 4] += step[e / 4][e % 4];
        }
        mesa_apply<MAP_SYSTEM>(y, step, stage, one);
        mesa_add_ridge(y, step, stage.ridge);
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            r[e / 4][e % 4] -= y[e / 4][e % 4];
        }
        mesa_dot(rest, r, r);
    }
}

/* Solves A x = r for the warp's rows; r is overwritten. trace: trace(A) of the thread's two rows. */
template <bool NESTED>
static __device__ __forceinline__ mesa_end mesa_solve_rows(mesa_rows &x, mesa_rows &r,
                                                           const mesa_solve_stage &stage,
                                                           const float (&decay)[2], const float (&trace)[2])
{
    float size[2], goal[2], rest[2], length[2];
    mesa_end end = {};
    mesa_dot(size, r, r);
    goal[0] = RESIDUAL * RESIDUAL * size[0], goal[1] = RESIDUAL * RESIDUAL * size[1];
    if constexpr (NESTED) {
        mesa_nested(x, r, stage, goal, rest);
    } else {
        end.steps = mesa_conjugate(x, r, stage, decay, goal, rest);
    }
    mesa_dot(length, x, x);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        /* the comparisons are negated, so that NaN is doubtful */
        end.doubtful |= !(rest[row] <= goal[row]) ||
                        !(TWO_PARTS / 8 * trace[row] * sqrtf(length[row]) <= DOUBTFUL * sqrtf(size[row]));
        end.residual[row] = size[row] > 0 ? sqrtf(rest[row] / size[row]) : 0;
    }
    return end;
}

/* The shared memory of a kernel: without NESTED the members of mesa_solve_stage from
 * `whiten` on are not used. */
template <bool NESTED>
constexpr size_t mesa_stage_bytes = NESTED ? sizeof(mesa_solve_stage) : offsetof(mesa_solve_stage, whiten);

/* True if the chunk of the thread block has tokens and is of the kind that the kernel solves. */
template <bool NESTED>
static __device__ __forceinline__ bool mesa_has_chunk(const mesa &s, const mesa_chunk &at)
{
    return at.tokens > 0 && s.nested[kept_slot(s.kept, s.p, at.seq, at.h, at.chunk)] == (int32_t)NESTED;
}

/* Forward: x, o and info of a chunk, one thread block for each. Two launches cover all chunks: NESTED
 * those whose gates are all 0. */
template <bool NESTED>
__global__ void __launch_bounds__(MESA_THREADS, 2) mesa_solve_kernel(const __grid_constant__ mesa s)
{
    extern __shared__ __align__(16) char shared[];
    mesa_solve_stage &stage = *(mesa_solve_stage *)shared;
    const mesa_chunk at = mesa_chunk_of_block(s);
    if (!mesa_has_chunk<NESTED>(s, at)) {
        return;
    }
    mesa_solve_load(s, stage, at.seq, at.h, at.chunk, at.tokens);
    const int lane = threadIdx.x % 32, t2 = lane % 4 * 2, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float decay[2] = { expf((float)stage.sums[t0]), expf((float)stage.sums[t0 + 8]) };
    mesa_rows x, r;
    float trace[2];
    if constexpr (NESTED) {
        mesa_factor(stage, kept_row(s.kept, s.p, at.seq, at.h, at.chunk, MESA_DIM));
    }
    mesa_weigh(stage, trace);
    mesa_trace(trace, stage, decay);
    __syncwarp();
    mesa_load_rows(r, s.a.q, at.seq.b, at.key_head, at.first, at.tokens);
    mesa_queries(r, s.p);
    const mesa_end end = mesa_solve_rows<NESTED>(x, r, stage, decay, trace);
    if (__any_sync(~0u, end.doubtful) && lane == 0) {
        s.doubtful[kept_slot(s.kept, s.p, at.seq, at.h, at.chunk)] = 1;
    }
    mesa_apply<MAP_OUTPUT>(r, x, stage, decay);
    __nv_bfloat16 *o = (__nv_bfloat16 *)s.a.o.data + RECURRENT_AT(s.a.o, at.seq.b, at.h, at.first);
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 2 * 8, c = e / 2 * 8 + t2;
        if (t < at.tokens) {
            *(__nv_bfloat162 *)(o + t * s.a.o.token + c) = __floats2bfloat162_rn(r[e / 2][e % 2 * 2],
                                                                                 r[e / 2][e % 2 * 2 + 1]);
        }
    }
    if (s.a.info.data && lane % 4 == 0) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int t = t0 + 8 * row;
            const loam_row_info info = { LOAM_ROW_SOLVED, NESTED ? LOAM_SOLVER_GRAM : LOAM_SOLVER_CG,
                                         end.steps, end.residual[row] };
            if (t < at.tokens) {
                ((loam_row_info *)s.a.info.data)[RECURRENT_AT(s.a.info, at.seq.b, at.h, at.first + t)] = info;
            }
        }
    }
}

#endif
