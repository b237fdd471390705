/* SPDX-License-Identifier: MIT
 *
 * MesaNet by chunks of 64 tokens, 64 channels, bf16. With S0, H0 the states at the beginning of a chunk, pre_t the sum of its log decays
 * up to token t and W_ti = beta_i e^(sum of those of i + 1 .. t) for i <= t, else 0, all systems of a chunk are one product of
 * matrices a step of conjugate gradients, whose rows are the tokens (von Oswald et al. 2025):
 *
 *     A p = Lambda p + e^pre (P H0) + ((P K^T) o W) K,   o = e^pre (X S0^T) + ((X K^T) o W) V
 *
 * A warp has 16 rows to itself and waits for no other. What a product takes from registers is split in two bf16 parts, as are the states;
 * keys and values are bf16 as they are: keys of length 1 put 1 / |k| into W. A row that ends above RESIDUAL, or whose
 * products are not exact enough to tell, leaves its chunk to float64. */
#ifndef LOAM_RECURRENT_MESA_SM90_CUH
#define LOAM_RECURRENT_MESA_SM90_CUH

#include "src/gpu/tile.cuh"
#include "src/recurrent/recurrent_mesa_cuda.cuh"

enum { MESA_WARPS = 4, MESA_THREADS = 32 * MESA_WARPS, MESA_PITCH = MESA_DIM + PAD, MESA_STAGES = 4 };
enum { MESA_BLOCKS = MESA_DIM / 8, MESA_MOST_STEPS = 96 };

#define RESIDUAL 5e-5f
/* |A x| as two parts give it is off by less than this times trace(A) |x| / 8, by experience: where that is much of |b|, float64. */
#define TWO_PARTS 3.8e-6f
#define DOUBTFUL 1e-3f

typedef __nv_bfloat16 mesa_tile[MESA_TOKENS][MESA_PITCH];
/* 16 rows by 64 columns of a warp, in the layout of D (mma.cuh). */
typedef float mesa_rows[MESA_BLOCKS][4];

/* ------------------------------------------------------------------ chunks */

/* Rows first .. of a view, `tokens` of them, zeros beyond; asynchronous. */
static __device__ __forceinline__ void mesa_load(mesa_tile &tile, const loam_const_view &view, int64_t b,
                                                 int64_t head, int64_t first, int tokens)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)view.data + RECURRENT_AT(view, b, head, first);
    for (int e = threadIdx.x; e < MESA_TOKENS * (MESA_DIM / 8); e += MESA_THREADS) {
        const int t = e / (MESA_DIM / 8), c = e % (MESA_DIM / 8) * 8;
        if (t < tokens) {
            copy_async_16(&tile[t][c], from + t * view.token + c);
        } else {
            *(uint4 *)&tile[t][c] = make_uint4(0, 0, 0, 0);
        }
    }
}

/* |row|^2 of two neighbouring threads' row threadIdx.x / 2. */
static __device__ __forceinline__ float mesa_norm2(const mesa_tile &tile)
{
    const uint4 *row = (const uint4 *)&tile[threadIdx.x / 2][threadIdx.x % 2 * (MESA_DIM / 2)];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < MESA_DIM / 16; n++) {
        const uint4 q = row[n];
        const uint32_t pairs[4] = { q.x, q.y, q.z, q.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float low = __uint_as_float(pairs[i] << 16), high = __uint_as_float(pairs[i] & 0xffff0000u);
            sum = fma(low, low, fma(high, high, sum));
        }
    }
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

/* Log decay and beta of token t of a chunk, 0 beyond it. */
static __device__ __forceinline__ float mesa_scalar(const loam_const_view &view, const recurrent_seq &s,
                                                    int64_t h, int64_t first, int t, int tokens)
{
    return t < tokens ? ((const float *)view.data)[RECURRENT_AT(view, s.b, h, s.first + first + t)] : 0;
}

/* a = rows of `x` in columns 16 k .. as an operand. */
static __device__ __forceinline__ void mesa_operand(operand_a<2> &a, const mesa_rows &x, int k)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[2];
        split_pair(part, x[2 * k + e / 2][e % 2 * 2], x[2 * k + e / 2][e % 2 * 2 + 1]);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
    }
}

/* ------------------------------------------------------------------ the states at the beginning of chunks */

struct mesa_pass_stage {
    mesa_tile k[MESA_STAGES], v[MESA_STAGES];
    float factor[MESA_TOKENS];
};

/* Even blocks S, odd blocks H of one head; a warp has 16 of the 64 rows. */
__global__ void __launch_bounds__(MESA_THREADS) mesa_pass_kernel(const __grid_constant__ mesa s)
{
    extern __shared__ __align__(16) char shared[];
    mesa_pass_stage &x = *(mesa_pass_stage *)shared;
    const loam_args &a = s.a;
    const bool system = blockIdx.x % 2;
    const int64_t head = blockIdx.x / 2, h = head % s.p.heads_v, key_head = recurrent_key_head(&s.p, h);
    const recurrent_seq seq = recurrent_seq_at(&s.p, &a, head / s.p.heads_v);
    const int lane = threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2, m = threadIdx.x / 32 * 16;
    const int64_t row0 = system * MESA_DIM + m + g, chunks = (seq.len + MESA_TOKENS - 1) / MESA_TOKENS;
    const bool unit = s.p.feature_map == LOAM_FEATURES_UNIT;
    mesa_rows acc = {};
    if (a.state_in.data) {
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            const int64_t row = row0 + e % 4 / 2 * 8, c = e / 4 * 8 + t2 + e % 2;
            acc[e / 4][e % 4] = ((const float *)a.state_in.data)[RECURRENT_AT(a.state_in, seq.index, h, row) + c];
        }
    }
    const auto load = [&](int64_t c) {
        const int64_t rest = seq.len - c * MESA_TOKENS;
        const int tokens = rest < MESA_TOKENS ? (int)rest : MESA_TOKENS;
        if (c < chunks) {
            mesa_load(x.k[c % MESA_STAGES], a.k, seq.b, key_head, seq.first + c * MESA_TOKENS, tokens);
            if (!system) {
                mesa_load(x.v[c % MESA_STAGES], a.v, seq.b, h, seq.first + c * MESA_TOKENS, tokens);
            }
        }
        copy_async_commit();
    };
    for (int c = 0; c < MESA_STAGES - 1; c++) {
        load(c);
    }
    float gate0, gate1, beta, next[3]; /* of this chunk and the next */
    const auto load_scalars = [&](int64_t c) {
        const int64_t rest = seq.len - c * MESA_TOKENS;
        const int tokens = (int)max(min(rest, (int64_t)MESA_TOKENS), (int64_t)0);
        next[0] = mesa_scalar(a.log_decay, seq, h, c * MESA_TOKENS, 2 * lane, tokens);
        next[1] = mesa_scalar(a.log_decay, seq, h, c * MESA_TOKENS, 2 * lane + 1, tokens);
        next[2] = mesa_scalar(a.beta, seq, h, c * MESA_TOKENS, (int)threadIdx.x / 2, tokens);
    };
    load_scalars(0);
    for (int64_t c = 0; c < chunks; c++) {
        gate0 = next[0], gate1 = next[1], beta = next[2];
        copy_async_wait<MESA_STAGES - 2>();
        __syncthreads();
        load(c + MESA_STAGES - 1);
        load_scalars(c + 1);
        if (!system && threadIdx.x == 0) {
            s.doubtful[kept_slot(s.kept, s.p, seq, h, c)] = 0;
        }
        const mesa_tile &k = x.k[c % MESA_STAGES], &value = (system ? x.k : x.v)[c % MESA_STAGES];

        /* sums of the gates after tokens 2 lane and 2 lane + 1, and of all */
        float after = gate0 + gate1;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float next = __shfl_down_sync(~0u, after, step);
            after += lane + step < 32 ? next : 0;
        }
        const float total = expf(__shfl_sync(~0u, after, 0)), later = __shfl_down_sync(~0u, after, 1);
        const float suf1 = lane < 31 ? later : 0, suf0 = suf1 + gate1;
        const float norm2 = unit ? mesa_norm2(k) : 1,
                    over = norm2 > 0 ? (system ? 1 / norm2 : rsqrtf(norm2)) : 0;
        const int token = (int)threadIdx.x / 2,
                  holder = token / 2; /* two threads for each; its lane in the scan */
        const float s0 = __shfl_sync(~0u, suf0, holder), s1 = __shfl_sync(~0u, suf1, holder);
        if (threadIdx.x % 2 == 0) {
            x.factor[token] = beta * over * expf(token % 2 ? s1 : s0);
        }

        float *kept = kept_row(s.kept, s.p, seq, h, c, row0);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n++) {
            *(float2 *)(kept + 8 * n + t2) = make_float2(acc[n][0], acc[n][1]);
            *(float2 *)(kept + 8 * s.kept.width + 8 * n + t2) = make_float2(acc[n][2], acc[n][3]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[n][e] *= total;
            }
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < MESA_TOKENS; step += 16) {
            uint32_t raw[4];
            operand_a<2> u;
            load_matrices_transposed(raw, &value[step + lane / 16 * 8 + lane % 8][m + lane / 8 % 2 * 8]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 by = *(const float2 *)&x.factor[step + t2 + e / 2 * 8];
                uint32_t part[2];
                split_pair(part, __uint_as_float(raw[e] << 16) * by.x,
                           __uint_as_float(raw[e] & 0xffff0000u) * by.y);
                u.part[0][e] = part[0], u.part[1][e] = part[1];
            }
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2) {
                operand_b<1> b[2];
                load_b<MESA_PITCH>(b, &k[0][0], step, 8 * n);
#pragma unroll
                for (int part = 1; part >= 0; part--) {
                    mma_bf16(acc[n], u.part[part], b[0].part[0]);
                    mma_bf16(acc[n + 1], u.part[part], b[1].part[0]);
                }
            }
        }
    }
    copy_async_wait<0>();
    if (a.state_out.data) {
#pragma unroll
        for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
            const int64_t row = row0 + e % 4 / 2 * 8, c = e / 4 * 8 + t2 + e % 2;
            ((float *)a.state_out.data)[RECURRENT_AT(a.state_out, seq.index, h, row) + c] = acc[e / 4][e % 4];
        }
    }
}

/* ------------------------------------------------------------------ the systems of a chunk */

struct mesa_solve_stage {
    mesa_tile k, v, states[2][2];                /* S0, H0 in two parts */
    float4 weights[MESA_WARPS][MESA_BLOCKS][32]; /* W as the lanes hold it */
    double sums[MESA_TOKENS];                    /* pre */
    float write[MESA_TOKENS], norm[MESA_TOKENS]; /* beta / |k|^2, |k|; beta, 1 without features */
    float ridge[MESA_DIM];
};

/* y += x tile, tile in two parts; with `by_rows` its transpose. */
template <bool BY_ROWS>
static __device__ __forceinline__ void mesa_product(mesa_rows &y, const operand_a<2> &a,
                                                    const mesa_tile (&tile)[2], int k, int n)
{
    operand_b<1> b[2][2];
#pragma unroll
    for (int part = 0; part < 2; part++) {
        if constexpr (BY_ROWS) {
            load_b_rows<MESA_PITCH>(b[part], &tile[part][0][0], 8 * n, 16 * k);
        } else {
            load_b<MESA_PITCH>(b[part], &tile[part][0][0], 16 * k, 8 * n);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        mma_bf16(y[n + i], a.part[1], b[0][i].part[0]);
        mma_bf16(y[n + i], a.part[0], b[1][i].part[0]);
        mma_bf16(y[n + i], a.part[0], b[0][i].part[0]);
    }
}

/* What is applied to rows: H, S or S^T. */
typedef enum mesa_map { MAP_SYSTEM, MAP_OUTPUT, MAP_ADJOINT } mesa_map;

/* y = e^pre (x state) + ((x from^T) o W) to: H and keys for both, S^T and keys to values, or S and values to keys. W is times |k| where
 * values take part. */
template <mesa_map MAP>
static __device__ __forceinline__ void mesa_apply(mesa_rows &y, const mesa_rows &x,
                                                  const mesa_solve_stage &stage, const float (&decay)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t2 = lane % 4 * 2;
    const mesa_tile &from = MAP == MAP_ADJOINT ? stage.v : stage.k, &to = MAP == MAP_OUTPUT ? stage.v : stage.k;
    mesa_rows pairs = {};
    clear(y);
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, x, k);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += 2) {
            mesa_product<MAP == MAP_OUTPUT>(y, a, stage.states[MAP == MAP_SYSTEM], k, n);
            if (n <= 2 * warp) { /* keys up to the last of the rows */
                operand_b<1> b[2];
                load_b_rows<MESA_PITCH>(b, &from[0][0], 8 * n, 16 * k);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_bf16(pairs[n + i], a.part[1], b[i].part[0]);
                    mma_bf16(pairs[n + i], a.part[0], b[i].part[0]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float4 w = stage.weights[warp][n][lane];
        pairs[n][0] *= w.x, pairs[n][1] *= w.y, pairs[n][2] *= w.z, pairs[n][3] *= w.w;
        if (MAP != MAP_SYSTEM) {
            const float2 norm = *(const float2 *)&stage.norm[8 * n + t2];
            pairs[n][0] *= norm.x, pairs[n][1] *= norm.y, pairs[n][2] *= norm.x, pairs[n][3] *= norm.y;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            y[n][e] *= decay[e / 2];
        }
    }
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        if (k <= warp) {
            operand_a<2> a;
            mesa_operand(a, pairs, k);
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2) {
                operand_b<1> b[2];
                load_b<MESA_PITCH>(b, &to[0][0], 16 * k, 8 * n);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_bf16(y[n + i], a.part[1], b[i].part[0]);
                    mma_bf16(y[n + i], a.part[0], b[i].part[0]);
                }
            }
        }
    }
}

/* Of both rows, over their lanes. */
static __device__ __forceinline__ void mesa_dot(float (&out)[2], const mesa_rows &x, const mesa_rows &y)
{
    out[0] = out[1] = 0;
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        out[e % 4 / 2] = fma(x[e / 4][e % 4], y[e / 4][e % 4], out[e % 4 / 2]);
    }
    out[0] = quad_sum(out[0]), out[1] = quad_sum(out[1]);
}

static __device__ __forceinline__ void mesa_add_ridge(mesa_rows &y, const mesa_rows &x, const float *ridge)
{
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float2 by = *(const float2 *)&ridge[8 * n + (int)threadIdx.x % 4 * 2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            y[n][e] = fma(e % 2 ? by.y : by.x, x[n][e], y[n][e]);
        }
    }
}

/* S0 and H0 in two parts, the gates summed, the ridge; K and V follow asynchronously. */
static __device__ __forceinline__ void mesa_solve_load(const mesa &s, mesa_solve_stage &x,
                                                       const recurrent_seq &seq, int64_t h, int64_t chunk,
                                                       int tokens)
{
    const int64_t first = chunk * MESA_TOKENS;
    const int lane = threadIdx.x % 32;
    mesa_load(x.k, s.a.k, seq.b, recurrent_key_head(&s.p, h), seq.first + first, tokens);
    mesa_load(x.v, s.a.v, seq.b, h, seq.first + first, tokens);
    copy_async_commit();
    const float *kept = kept_row(s.kept, s.p, seq, h, chunk, 0);
#pragma unroll 8
    for (int e = threadIdx.x; e < 2 * MESA_DIM * (MESA_DIM / 4); e += MESA_THREADS) {
        const int row = e / (MESA_DIM / 4), c = e % (MESA_DIM / 4) * 4;
        float4 f = *(const float4 *)(kept + row * MESA_DIM + c);
        if (row >= MESA_DIM) { /* the symmetric part of H */
            const float *turned = kept + (MESA_DIM + c) * MESA_DIM + row - MESA_DIM;
            f.x = (f.x + turned[0]) / 2, f.y = (f.y + turned[MESA_DIM]) / 2;
            f.z = (f.z + turned[2 * MESA_DIM]) / 2, f.w = (f.w + turned[3 * MESA_DIM]) / 2;
        }
        uint32_t low[2], high[2];
        split_pair(low, f.x, f.y), split_pair(high, f.z, f.w);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            *(uint2 *)&x.states[row / MESA_DIM][part][row % MESA_DIM][c] = make_uint2(low[part], high[part]);
        }
    }
    if (threadIdx.x < 32) {
        /* sums of 64 bits, gates held at -1e4: their differences are exact to 1e-10, and e^-1e4 is 0 */
        const double g0 = fmax((double)mesa_scalar(s.a.log_decay, seq, h, first, 2 * lane, tokens), -1e4);
        const double g1 = fmax((double)mesa_scalar(s.a.log_decay, seq, h, first, 2 * lane + 1, tokens), -1e4);
        double sum = g0 + g1;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double before = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? before : 0;
        }
        x.sums[2 * lane] = sum - g1, x.sums[2 * lane + 1] = sum;
    } else if (threadIdx.x >= 64) {
        const int c = threadIdx.x - 64;
        x.ridge[c] = (float)recurrent_ridge(&s.p, &s.a, h, c);
    }
    const float beta = mesa_scalar(s.a.beta, seq, h, first, (int)threadIdx.x / 2, tokens);
    copy_async_wait<0>();
    __syncthreads();
    const float norm2 = s.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(x.k) : 1;
    if (threadIdx.x % 2 == 0) {
        x.write[threadIdx.x / 2] = norm2 > 0 ? beta / norm2 : 0;
        x.norm[threadIdx.x / 2] = sqrtf(norm2);
    }
    __syncthreads();
}

/* W of this warp's rows; the parts of trace(A) that come from the keys of the chunk. */
static __device__ __forceinline__ void mesa_weigh(mesa_solve_stage &x, float (&trace)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0 = 16 * warp + lane / 4;
    trace[0] = trace[1] = 0;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = t0 + e / 2 * 8, i = 8 * n + lane % 4 * 2 + e % 2;
            w[e] = i <= t ? expf((float)(x.sums[t] - x.sums[i])) * x.write[i] : 0;
            trace[e / 2] = fma(w[e] * x.norm[i], x.norm[i], trace[e / 2]);
        }
        x.weights[warp][n][lane] = make_float4(w[0], w[1], w[2], w[3]);
    }
    trace[0] = quad_sum(trace[0]), trace[1] = quad_sum(trace[1]);
}

/* x: from 0 until the residual of each row is RESIDUAL of |b|. r is b to begin with, what is left of it at the end. Returns the steps. */
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

/* One block for each chunk. */
__global__ void __launch_bounds__(MESA_THREADS, 2) mesa_solve_kernel(const __grid_constant__ mesa s)
{
    extern __shared__ __align__(16) char shared[];
    mesa_solve_stage &stage = *(mesa_solve_stage *)shared;
    const int64_t chunk = blockIdx.x % s.kept.per_sequence, head = blockIdx.x / s.kept.per_sequence;
    const int64_t h = head % s.p.heads_v, first = chunk * MESA_TOKENS, key_head = recurrent_key_head(&s.p, h);
    const recurrent_seq seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    const int64_t left = seq.len - first;
    if (left <= 0) {
        return;
    }
    const int tokens = left < MESA_TOKENS ? (int)left : MESA_TOKENS;
    mesa_solve_load(s, stage, seq, h, chunk, tokens);

    const int lane = threadIdx.x % 32, t2 = lane % 4 * 2, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float decay[2] = { expf((float)stage.sums[t0]), expf((float)stage.sums[t0 + 8]) };
    mesa_rows x, r, y;
    float trace[2], size[2], goal[2], rest[2], length[2];
    mesa_weigh(stage, trace);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 2 * 8, c = e / 2 * 8 + t2;
        const int64_t at = RECURRENT_AT(s.a.q, seq.b, key_head, seq.first + first + t) + c;
        const uint32_t pair = t < tokens ? *(const uint32_t *)((const __nv_bfloat16 *)s.a.q.data + at) : 0;
        r[e / 2][e % 2 * 2] = __uint_as_float(pair << 16);
        r[e / 2][e % 2 * 2 + 1] = __uint_as_float(pair & 0xffff0000u);
    }
    mesa_dot(size, r, r);
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool unit = s.p.feature_map == LOAM_FEATURES_UNIT;
        factor[row] = (float)s.p.scale * (unit ? (size[row] > 0 ? rsqrtf(size[row]) : 0) : 1);
        size[row] *= factor[row] * factor[row];
        goal[row] = RESIDUAL * RESIDUAL * size[row];
    }
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        r[e / 4][e % 4] *= factor[e % 4 / 2];
    }
    const int steps = mesa_conjugate(x, r, stage, decay, goal, rest);

    float of_state = 0;
    for (int c = lane; c < MESA_DIM; c += 32) {
        of_state += __bfloat162float(stage.states[1][0][c][c]);
    }
    of_state = row_sum<32>(of_state);
    float ridge = 0;
    for (int c = lane; c < MESA_DIM; c += 32) {
        ridge += stage.ridge[c];
    }
    ridge = row_sum<32>(ridge);
    mesa_dot(length, x, x);
    bool doubtful = false;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float all = decay[row] * of_state + trace[row] + ridge;
        /* written so that NaN is doubtful */
        doubtful |= !(rest[row] <= goal[row]) ||
                    !(TWO_PARTS / 8 * all * sqrtf(length[row]) <= DOUBTFUL * sqrtf(size[row]));
    }
    if (__any_sync(~0u, doubtful) && lane == 0) {
        s.doubtful[kept_slot(s.kept, s.p, seq, h, chunk)] = 1;
    }

    mesa_apply<MAP_OUTPUT>(y, x, stage, decay);
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 2 * 8, c = e / 2 * 8 + t2;
        if (t < tokens) {
            const int64_t at = RECURRENT_AT(s.a.o, seq.b, h, seq.first + first + t) + c;
            *(__nv_bfloat162 *)((__nv_bfloat16 *)s.a.o.data +
                                at) = __floats2bfloat162_rn(y[e / 2][e % 2 * 2], y[e / 2][e % 2 * 2 + 1]);
        }
    }
    if (s.a.info.data && lane % 4 == 0) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int t = t0 + 8 * row;
            const loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, steps,
                                         size[row] > 0 ? sqrtf(rest[row] / size[row]) : 0 };
            if (t < tokens) {
                ((loam_row_info *)s.a.info.data)[RECURRENT_AT(s.a.info, seq.b, h, seq.first + first + t)] =
                    info;
            }
        }
    }
}

#endif
