/* SPDX-License-Identifier: MIT
 *
 * The systems A_t x_t = b_t of the tokens of a chunk of MesaNet as matrix products (von Oswald et al. 2025).
 * S0 and H0 are the states at the beginning of the chunk, pre_t is the inclusive prefix sum of its log
 * decays, and W_ti = beta_i e^(sum of the log decays of i + 1 .. t) for i <= t, else 0. Rows are tokens: row
 * t of P is p_t, row t of X is x_t, and row t of A P is A_t p_t:
 *
 *     A P = P Lambda + e^pre (P H0) + ((P K^T) o W) K,   o = e^pre (X S0^T) + ((X K^T) o W) V
 *
 * A warp solves the systems of 16 rows without waiting for other warps. Operands from registers are split
 * into hi and lo parts, and so are the states; keys and values are exact in bf16. For keys of length 1 the
 * tiles have the keys as given, and W includes the factors 1 / |k|. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_SYSTEM_CUH
#define LOAM_RECURRENT_HOPPER_MESA_SYSTEM_CUH

#include "src/gpu/hopper.cuh"
#include "src/recurrent/hopper/mesa/states.cuh"

enum { PIVOTS = 4, ELIMINATIONS = MESA_DIM / PIVOTS };

struct mesa_solve_shared {
    mesa_tile k, v, states[2][2]; /* states: S0 and H0, each in hi and lo part */
    union {
        float4 weights[MESA_WARPS][MESA_BLOCKS][32]; /* W in the layout of D, one float4 for each lane */
        /* Used by mesa_factor, before W is computed: */
        mesa_transpose square;                        /* Z Z^T */
        float pivots[ELIMINATIONS][PIVOTS][MESA_DIM]; /* the pivot rows of each step */
        mesa_tile root[2];                            /* R^-1, hi and lo part */
    };
    double sums[MESA_TOKENS]; /* pre */
    float key_weight[MESA_TOKENS],
        norm[MESA_TOKENS]; /* beta / |k|^2 and |k|; beta and 1 without a feature map */
    float ridge[MESA_DIM];
    /* From here on only for chunks whose gates are all 0: N and Y of mesa_factor, in hi and lo part. */
    mesa_tile whiten[2], past[2];
    uint64_t eliminated[ELIMINATIONS]; /* mbarriers: the pivot rows of a step are complete */
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
    mesa_rows pairs = {};
    clear(y);
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, x, k);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += 2) {
            mesa_product<MAP == MAP_OUTPUT, 2>(y, a, sm.states[MAP == MAP_SYSTEM], k, n);
            if (n <= 2 * warp) /* causal: keys up to the last row of the warp */
                mesa_product<true, 1>(pairs, a, &from, k, n);
        }
    }
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float4 w = sm.weights[warp][n][lane];
        pairs[n][0] *= w.x, pairs[n][1] *= w.y, pairs[n][2] *= w.z, pairs[n][3] *= w.w;
        if (MAP != MAP_SYSTEM) {
            const float2 norm = *(const float2 *)&sm.norm[8 * n + t2];
            pairs[n][0] *= norm.x, pairs[n][1] *= norm.y, pairs[n][2] *= norm.x, pairs[n][3] *= norm.y;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[n][e] *= decay[e / 2];
    }
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        if (k <= warp) {
            operand_a<2> a;
            mesa_operand(a, pairs, k);
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2)
                mesa_product<false, 1>(y, a, &to, k, n);
        }
    }
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

/* Loads all of the sm that mesa_pair_weights and mesa_factor need: K, V, S0 and H0 in hi and lo part, the
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
    copy_async_wait<0>();
    __syncthreads();
    const float norm2 = s.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(sm.k) : 1;
    if (threadIdx.x % 2 == 0) {
        sm.key_weight[threadIdx.x / 2] = norm2 > 0 ? beta / norm2 : 0;
        sm.norm[threadIdx.x / 2] = sqrtf(norm2);
    }
    __syncthreads();
}

/* Computes W of the warp's rows. trace: the part of trace(A_t) that comes from the keys of the chunk,
 * for the thread's two rows. */
static __device__ __forceinline__ void mesa_pair_weights(mesa_solve_shared &sm, float (&trace)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0 = 16 * warp + lane / 4;
    trace[0] = trace[1] = 0;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = t0 + e / 2 * 8, i = 8 * n + lane % 4 * 2 + e % 2;
            w[e] = i <= t ? expf((float)(sm.sums[t] - sm.sums[i])) * sm.key_weight[i] : 0;
            trace[e / 2] = fma(w[e] * sm.norm[i], sm.norm[i], trace[e / 2]);
        }
        sm.weights[warp][n][lane] = make_float4(w[0], w[1], w[2], w[3]);
    }
    trace[0] = quad_sum(trace[0]), trace[1] = quad_sum(trace[1]);
}

/* Adds the parts of trace(A_t) that come from H0 and the ridge to the part computed by mesa_pair_weights. */
static __device__ __forceinline__ void mesa_add_trace(float (&trace)[2], const mesa_solve_shared &sm,
                                                      const float (&decay)[2])
{
    float state = 0, ridge = 0;
    for (int c = threadIdx.x % 32; c < MESA_DIM; c += 32)
        state += __bfloat162float(sm.states[1][0][c][c]), ridge += sm.ridge[c];
    state = row_sum<32>(state), ridge = row_sum<32>(ridge);
    trace[0] += decay[0] * state + ridge, trace[1] += decay[1] * state + ridge;
}

/* Loads the warp's rows of a chunk from a view of bf16; rows beyond the chunk are 0. */
static __device__ __forceinline__ void mesa_load_rows(mesa_rows &x, const loam_const_view &view,
                                                      const mesa_chunk &chunk, int64_t head)
{
    const int t0 = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)view.data +
                                RECURRENT_AT(view, chunk.seq.b, head, chunk.first);
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 2 * 8, c = e / 2 * 8 + (int)threadIdx.x % 4 * 2;
        const uint32_t pair = t < chunk.tokens ? *(const uint32_t *)(from + t * view.token + c) : 0;
        x[e / 2][e % 2 * 2] = unpack_first(pair);
        x[e / 2][e % 2 * 2 + 1] = unpack_second(pair);
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

#endif
