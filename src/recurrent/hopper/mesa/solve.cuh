/* SPDX-License-Identifier: MIT
 *
 * MesaNet by chunks of 64 tokens, 64 channels, bf16. All systems of a chunk are solved together, by conjugate
 * gradients, whose steps are matrix products. If a row ends with a relative residual above RESIDUAL_MAX, or
 * if its products are not exact enough to tell, the whole chunk is solved again in float64.
 *
 * The systems A_t x_t = b_t of the tokens of a chunk of MesaNet as matrix products (von Oswald et al. 2025).
 * S0 and H0 are the states at the beginning of the chunk, pre_t is the inclusive prefix sum of its log
 * decays, and W_ti = beta_i e^(sum of the log decays of i + 1 .. t) for i <= t, else 0. Rows are tokens: row
 * t of P is p_t, row t of X is x_t, and row t of A P is A_t p_t:
 *
 *     A P = P Lambda + e^pre (P H0) + ((P K^T) o W) K,   o = e^pre (X S0^T) + ((X K^T) o W) V
 *
 * The rows of a step are an operand from registers, split into hi and lo parts, as the states are; keys and
 * values are exact in bf16. For keys of length 1 the tiles have the keys as given, and W includes the factors
 * 1 / |k|. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH
#define LOAM_RECURRENT_HOPPER_MESA_SOLVE_CUH

#include "src/recurrent/hopper/mesa/states.cuh"

/* ------------------------------------------------------------------ the systems as matrix products */

struct mesa_solve_shared {
    mesa_tile k, v, states[2][2];                /* states: S0 and H0, each in hi and lo part */
    float4 weights[MESA_WARPS][MESA_BLOCKS][32]; /* W in the layout of D, one float4 for each lane */
    float2 sums[MESA_TOKENS];                    /* pre, in the log2 domain, hi and lo part */
    float key_weight[MESA_TOKENS],
        norm[MESA_TOKENS]; /* beta / |k|^2 and |k|; beta and 1 without a feature map */
    float ridge[MESA_DIM],
        trace[MESA_TOKENS]; /* trace: of A_t, out of registers while its system is solved */
};

/* The matrix that mesa_apply multiplies each row by: H_t, S_t or S_t^T. */
typedef enum mesa_map { MAP_SYSTEM, MAP_OUTPUT, MAP_ADJOINT } mesa_map;

/* y = e^pre (x M) + ((x from^T) o W) to. MAP_SYSTEM: M = H0, `from` and `to` are keys. MAP_OUTPUT: M = S0^T,
 * from keys to values. MAP_ADJOINT: M = S0, from values to keys. With values W is multiplied by |k|, since
 * its factor 1 / |k|^2 is that of two keys. */
template <mesa_map MAP>
static __device__ __forceinline__ void mesa_apply(mesa_rows &y, const mesa_rows &x,
                                                  const mesa_solve_shared &sm, const float (&decay)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t2 = lane % 4 * 2;
    const mesa_tile &from = MAP == MAP_ADJOINT ? sm.v : sm.k, &to = MAP == MAP_OUTPUT ? sm.v : sm.k;
    mesa_rows pairs;
    weights_operand<2> a;
    mesa_split(a, x);
    wgmma_fence();
    mesa_add<true, 1>(pairs, a, &from, false);
    wgmma_commit();
    mesa_add<MAP != MAP_ADJOINT, 2>(y, a, sm.states[MAP == MAP_SYSTEM], false); /* H0 is symmetric */
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_results(pairs);
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float4 w = sm.weights[warp][n][lane];
        pairs[n][0] *= w.x, pairs[n][1] *= w.y, pairs[n][2] *= w.z, pairs[n][3] *= w.w;
        if (MAP != MAP_SYSTEM) {
            const float2 norm = *(const float2 *)&sm.norm[8 * n + t2];
            pairs[n][0] *= norm.x, pairs[n][1] *= norm.y, pairs[n][2] *= norm.x, pairs[n][3] *= norm.y;
        }
    }
    weights_operand<2> weighted;
    mesa_split(weighted, pairs);
    wgmma_wait<0>();
    wgmma_results(y);
    mesa_scale(y, decay);
    wgmma_fence();
    mesa_add<false, 1>(y, weighted, &to, true);
    mesa_wait(y);
}

/* y += x Diag(ridge) */
static __device__ __forceinline__ void mesa_add_ridge(mesa_rows &y, const mesa_rows &x, const float *ridge)
{
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float2 by = *(const float2 *)&ridge[8 * n + (int)threadIdx.x % 4 * 2];
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[n][e] = fma(e % 2 ? by.y : by.x, x[n][e], y[n][e]);
    }
}

/* Loads all that mesa_pair_weights needs: K, V, S0 and H0 in hi and lo part, the
 * prefix sums of the gates, the ridge, beta and |k|. All of it is complete at the end. */
static __device__ __forceinline__ void mesa_solve_load(const mesa_params &s, mesa_solve_shared &sm,
                                                       const mesa_chunk &chunk)
{
    mesa_load(sm.k, s.a.k, chunk, chunk.key_head);
    mesa_load(sm.v, s.a.v, chunk, chunk.h);
    copy_async_commit();
    const float *states = mesa_states(s.kept, s, chunk);
#pragma unroll 8
    for (int e = threadIdx.x; e < 2 * MESA_DIM * (MESA_DIM / 4); e += MESA_THREADS) {
        const int row = e / (MESA_DIM / 4), c = e % (MESA_DIM / 4) * 4;
        mesa_store_split(sm.states[row / MESA_DIM], row % MESA_DIM, c,
                         *(const float4 *)(states + row * MESA_DIM + c));
    }
    if (threadIdx.x < 32) {
        mesa_cumulative_log_decay(sm.sums, s, chunk);
    } else if (threadIdx.x >= 64) {
        const int c = threadIdx.x - 64;
        sm.ridge[c] = (float)recurrent_ridge(&s.p, &s.a, chunk.h, c);
    }
    const float beta = mesa_load_scalar(s.a.beta, chunk, (int)threadIdx.x / 2);
    mesa_tiles_complete();
    const float norm2 = s.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(sm.k) : 1;
    if (threadIdx.x % 2 == 0) {
        sm.key_weight[threadIdx.x / 2] = norm2 > 0 ? beta / norm2 : 0;
        sm.norm[threadIdx.x / 2] = sqrtf(norm2);
    }
    __syncthreads();
}

/* The parts of trace(A_t) that come from H0 and the ridge, of the thread's two rows. */
static __device__ __forceinline__ void mesa_trace_of_state(float (&trace)[2], const mesa_solve_shared &sm,
                                                           const float (&decay)[2])
{
    float state = 0, ridge = 0;
    for (int c = threadIdx.x % 32; c < MESA_DIM; c += 32)
        state += __bfloat162float(sm.states[1][0][swizzled(c, c)]), ridge += sm.ridge[c];
    state = row_sum<32>(state), ridge = row_sum<32>(ridge);
    trace[0] = decay[0] * state + ridge, trace[1] = decay[1] * state + ridge;
}

/* Computes W and trace(A_t) of the warp's rows. */
static __device__ __forceinline__ void mesa_pair_weights(mesa_solve_shared &sm, const float (&decay)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0 = 16 * warp + lane / 4;
    float trace[2] = { 0, 0 }, of_state[2];
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = t0 + e / 2 * 8, i = 8 * n + lane % 4 * 2 + e % 2;
            w[e] = i <= t ? decay_between(sm.sums[t], sm.sums[i]) * sm.key_weight[i] : 0;
            trace[e / 2] = fma(w[e] * sm.norm[i], sm.norm[i], trace[e / 2]);
        }
        sm.weights[warp][n][lane] = make_float4(w[0], w[1], w[2], w[3]);
    }
    trace[0] = quad_sum(trace[0]), trace[1] = quad_sum(trace[1]);
    mesa_trace_of_state(of_state, sm, decay);
    if (lane % 4 == 0) sm.trace[t0] = trace[0] + of_state[0], sm.trace[t0 + 8] = trace[1] + of_state[1];
    __syncwarp();
}

/* Loads the warp's rows of a chunk from a view of bf16; rows beyond the chunk are 0. */
static __device__ __forceinline__ void mesa_load_rows(mesa_rows &x, const loam_const_view &view,
                                                      const mesa_chunk &chunk, int64_t head)
{
    const int t0 = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)view.data +
                                RECURRENT_AT(view, chunk.seq.b, head, chunk.first + t0) +
                                (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool there = t0 + 8 * row < chunk.tokens;
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n++) {
            const uint32_t pair = there ? *(const uint32_t *)(from + 8 * row * view.token + 8 * n) : 0;
            x[n][2 * row] = unpack_first(pair), x[n][2 * row + 1] = unpack_second(pair);
        }
    }
}

/* Stores the warp's rows to a view of bf16, none beyond the chunk. */
static __device__ __forceinline__ void mesa_store_rows(const loam_view &to, const mesa_chunk &chunk,
                                                       int64_t head, const mesa_rows &y, int t0)
{
    __nv_bfloat16 *data = (__nv_bfloat16 *)to.data + RECURRENT_AT(to, chunk.seq.b, head, chunk.first + t0) +
                          (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (t0 + 8 * row >= chunk.tokens) continue;
        __nv_bfloat16 *at = data + 8 * row * to.token;
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n++)
            *(__nv_bfloat162 *)(at + 8 * n) = __floats2bfloat162_rn(y[n][2 * row], y[n][2 * row + 1]);
    }
}

/* r <- scale phi(r), phi the feature map: the right solutions from rows of q. */
static __device__ __forceinline__ void mesa_scale_queries(mesa_rows &r, const loam_problem &p)
{
    float norm2[2], factor[2] = { (float)p.scale, (float)p.scale };
    if (p.feature_map == LOAM_FEATURES_UNIT) {
        mesa_dot(norm2, r, r);
#pragma unroll
        for (int row = 0; row < 2; row++)
            factor[row] *= norm2[row] > 0 ? rsqrtf(norm2[row]) : 0;
    }
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        r[e / 4][e % 4] *= factor[e % 4 / 2];
}

/* ------------------------------------------------------------------ conjugate gradients */

enum { MESA_MOST_STEPS = 96 };

/* A row is solved when |b - A x| <= RESIDUAL_MAX |b|. */
#define RESIDUAL_MAX 5e-5f
/* The error of A x, computed with hi and lo parts, is below PRODUCT_ERROR trace(A) |x| / 8 (found by
 * experiment). Where this exceeds PRODUCT_ERROR_MAX |b|, the residual cannot be trusted and the chunk is
 * solved in float64. */
#define PRODUCT_ERROR 3.8e-6f
#define PRODUCT_ERROR_MAX 1e-3f

/* Conjugate gradients for A x = b from x = 0, for the 64 rows of the chunk, until |r|^2 <= tolerance2 in
 * each row or for MESA_MOST_STEPS steps; a row that has ended stays as it is. r is b on entry and the
 * residual on return; residual2 is |r|^2. Returns the number of steps in which one of the warp's rows had
 * not ended. */
static __device__ __forceinline__ int mesa_cg(mesa_rows &x, mesa_rows &r, const mesa_solve_shared &sm,
                                              const float (&decay)[2], const float (&tolerance2)[2],
                                              float (&residual2)[2])
{
    mesa_rows p, y;
    clear(x);
    memcpy(p, r, sizeof p);
    mesa_dot(residual2, r, r);
    int steps = 0;
    for (int step = 0; step < MESA_MOST_STEPS; step++) {
        const bool active = residual2[0] > tolerance2[0] || residual2[1] > tolerance2[1];
        if (!__syncthreads_or(active)) break;
        steps += __any_sync(~0u, active) ? 1 : 0;
        float curvature[2], alpha[2], next[2], beta[2];
        mesa_apply<MAP_SYSTEM>(y, p, sm, decay);
        mesa_add_ridge(y, p, sm.ridge);
        mesa_dot(curvature, p, y);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            alpha[row] = residual2[row] > tolerance2[row] && curvature[row] > 0
                             ? __fdividef(residual2[row], curvature[row])
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
            beta[row] = residual2[row] > 0 ? __fdividef(next[row], residual2[row]) : 0;
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
    int steps;
    bool needs_f64;
};

/* Solves A x = r; r is overwritten. */
static __device__ __forceinline__ mesa_outcome mesa_solve_rows(mesa_rows &x, mesa_rows &r,
                                                               const mesa_solve_shared &sm,
                                                               const float (&decay)[2])
{
    const float *trace = sm.trace + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float rhs2[2], tolerance2[2], residual2[2], solution2[2];
    mesa_outcome outcome = {};
    mesa_dot(rhs2, r, r);
    tolerance2[0] = RESIDUAL_MAX * RESIDUAL_MAX * rhs2[0],
    tolerance2[1] = RESIDUAL_MAX * RESIDUAL_MAX * rhs2[1];
    outcome.steps = mesa_cg(x, r, sm, decay, tolerance2, residual2);
    mesa_dot(solution2, x, x);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        /* the comparisons are negated, so that NaN is needs_f64 */
        outcome.needs_f64 |= !(residual2[row] <= tolerance2[row]) ||
                             !(PRODUCT_ERROR / 8 * trace[8 * row] * sqrtf(solution2[row]) <=
                               PRODUCT_ERROR_MAX * sqrtf(rhs2[row]));
        outcome.residual[row] = rhs2[row] > 0 ? sqrtf(residual2[row] / rhs2[row]) : 0;
    }
    return outcome;
}

/* Forward: x, o and info of a chunk, one thread block for each. */
__global__ void __launch_bounds__(MESA_THREADS, 2) mesa_solve_kernel(const __grid_constant__ mesa_params s)
{
    extern __shared__ __align__(1024) char shared_memory[];
    mesa_solve_shared &sm = *(mesa_solve_shared *)shared_memory;
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s);
    if (chunk.tokens <= 0) return;
    mesa_rows x, r;
    mesa_load_rows(r, s.a.q, chunk, chunk.key_head); /* comes while the rest is loaded */
    mesa_solve_load(s, sm, chunk);
    const int lane = threadIdx.x % 32, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float decay[2] = { exp2_fast(sm.sums[t0].x), exp2_fast(sm.sums[t0 + 8].x) };
    mesa_pair_weights(sm, decay);
    mesa_scale_queries(r, s.p);
    const mesa_outcome outcome = mesa_solve_rows(x, r, sm, decay);
    if (__any_sync(~0u, outcome.needs_f64) && lane == 0) s.needs_f64[mesa_slot(s, chunk)] = 1;
    mesa_apply<MAP_OUTPUT>(r, x, sm, decay);
    mesa_store_rows(s.a.o, chunk, chunk.h, r, t0);
    if (s.a.info.data && lane % 4 == 0) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int t = t0 + 8 * row;
            const loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, outcome.steps,
                                         outcome.residual[row] };
            if (t < chunk.tokens) {
                ((loam_row_info *)
                     s.a.info.data)[RECURRENT_AT(s.a.info, chunk.seq.b, chunk.h, chunk.first + t)] = info;
            }
        }
    }
}

#endif
