/* SPDX-License-Identifier: MIT
 *
 * The states S and H of MesaNet at the edges of chunks. What the tokens of a chunk add to a state, `written`,
 * does not depend on the state, so that mesa_write_kernel computes it for all chunks in parallel.
 * mesa_scan_kernel then scans each element of the state M,
 *
 *     M <- e^total M + written
 *
 * from the first chunk to the last; gradients of states from the last to the first. The scan reads
 * `written` of a chunk and overwrites it with M as it is before the update, the state at the edge where
 * the scan enters the chunk.
 *
 * Products need only the symmetric part of H, so that part is stored for each chunk. The scan itself carries
 * H as the caller gives it. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_STATES_CUH
#define LOAM_RECURRENT_HOPPER_MESA_STATES_CUH

#include "src/recurrent/hopper/mesa/tiles.cuh"

/* ------------------------------------------------------------------ what a chunk adds */

/* A matrix that is written by rows and read by columns. Rows are padded by 4 floats against bank
 * conflicts of both accesses. */
typedef float mesa_turned[MESA_DIM][MESA_DIM + 4];

/* acc += (columns m .. m + 15 of `rows`)^T Diag(factor) x, where `rows` is the sum of ROW_PARTS tiles and x
 * the sum of PARTS tiles. */
template <int ROW_PARTS, int PARTS>
static __device__ __forceinline__ void mesa_outer(mesa_rows &acc, const mesa_tile *rows, const mesa_tile *x,
                                                  const float *factor, int m)
{
    const int lane = threadIdx.x % 32, t2 = lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < MESA_TOKENS; step += 16) {
        uint32_t raw[2][4] = {};
        operand_a<2> u;
#pragma unroll
        for (int part = 0; part < ROW_PARTS; part++) {
            load_matrices_transposed(raw[part],
                                     &rows[part][step + lane / 16 * 8 + lane % 8][m + lane / 8 % 2 * 8]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 by = *(const float2 *)&factor[step + t2 + e / 2 * 8];
            const float low = __uint_as_float(raw[0][e] << 16) + __uint_as_float(raw[1][e] << 16);
            const float high = __uint_as_float(raw[0][e] & 0xffff0000u) +
                               __uint_as_float(raw[1][e] & 0xffff0000u);
            uint32_t part[2];
            split_pair(part, low * by.x, high * by.y);
            u.part[0][e] = part[0], u.part[1][e] = part[1];
        }
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += 2) {
            mesa_product<false, PARTS>(acc, u, x, step / 16, n);
        }
    }
}

/* Stores the warp's rows m .. m + 15 of a 64 x 64 matrix. */
static __device__ __forceinline__ void mesa_put_written(float *to, const mesa_rows &x, int m)
{
    const int lane = threadIdx.x % 32;
    float *row = to + (m + lane / 4) * MESA_DIM + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        *(float2 *)(row + 8 * n) = make_float2(x[n][0], x[n][1]);
        *(float2 *)(row + 8 * MESA_DIM + 8 * n) = make_float2(x[n][2], x[n][3]);
    }
}

/* x <- x + x^T, where x is the 64 x 64 matrix whose rows the warps share. The result
 * is symmetric to the bit. */
static __device__ __forceinline__ void mesa_add_transpose(mesa_rows &x, mesa_turned &turned, int m)
{
    const int lane = threadIdx.x % 32, row = m + lane / 4, t2 = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        *(float2 *)&turned[row][8 * n + t2] = make_float2(x[n][0], x[n][1]);
        *(float2 *)&turned[row + 8][8 * n + t2] = make_float2(x[n][2], x[n][3]);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        x[e / 4][e % 4] += turned[e / 4 * 8 + t2 + e % 2][row + e % 4 / 2 * 8];
    }
}

struct mesa_write_stage {
    mesa_tile k, v;
    mesa_turned turned;
    /* Factors of v k^T and k k^T of a token, beta e^suf with the 1 / |k| of features of length 1; of k k^T
     * half, as x + x^T follows. */
    float factor[2][MESA_TOKENS];
    float suf[MESA_TOKENS]; /* e^suf */
};

/* Copies H of state_in to s.given. state_out may be the same memory as state_in: a thread of the scan that
 * reads a column of H there could read what another thread has already overwritten. */
static __device__ __forceinline__ void mesa_keep_given(const mesa &s, const mesa_chunk &at)
{
    const loam_const_view &view = s.a.state_in;
    const float *from = (const float *)view.data + RECURRENT_AT(view, at.seq.index, at.h, MESA_DIM);
    float *to = s.given + (at.seq.index * s.p.heads_v + at.h) * MESA_DIM * MESA_DIM;
    float rows[MESA_DIM * MESA_DIM / MESA_THREADS];
#pragma unroll
    for (int n = 0; n < MESA_DIM * MESA_DIM / MESA_THREADS; n++) {
        const int e = n * MESA_THREADS + threadIdx.x;
        rows[n] = from[e / MESA_DIM * view.token + e % MESA_DIM];
    }
#pragma unroll
    for (int n = 0; n < MESA_DIM * MESA_DIM / MESA_THREADS; n++) {
        to[n * MESA_THREADS + threadIdx.x] = rows[n];
    }
}

/* What a chunk adds to S and H, and `total`, `nested` and `doubtful` = 0 of the chunk;
 * one thread block for each. */
__global__ void __launch_bounds__(MESA_THREADS) mesa_write_kernel(const __grid_constant__ mesa s)
{
    extern __shared__ __align__(16) char shared[];
    mesa_write_stage &x = *(mesa_write_stage *)shared;
    const loam_args &a = s.a;
    const mesa_chunk at = mesa_chunk_of_block(s);
    if (at.tokens <= 0) {
        return;
    }
    if (at.chunk == 0 && s.a.state_in.data && s.a.state_out.data) {
        mesa_keep_given(s, at);
    }
    const int64_t slot = kept_slot(s.kept, s.p, at.seq, at.h, at.chunk), first = at.chunk * MESA_TOKENS;
    mesa_load(x.k, a.k, at.seq.b, at.key_head, at.first, at.tokens);
    mesa_load(x.v, a.v, at.seq.b, at.h, at.first, at.tokens);
    copy_async_commit();
    const float beta = mesa_scalar(a.beta, at.seq, at.h, first, (int)threadIdx.x / 2, at.tokens);
    if (threadIdx.x < 32) { /* suffix sums: gates after tokens 2 lane and 2 lane + 1, and of all tokens */
        const int lane = threadIdx.x;
        const float gate[2] = { mesa_scalar(a.log_decay, at.seq, at.h, first, 2 * lane, at.tokens),
                                mesa_scalar(a.log_decay, at.seq, at.h, first, 2 * lane + 1, at.tokens) };
        float after = gate[0] + gate[1];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float next = __shfl_down_sync(~0u, after, step);
            after += lane + step < 32 ? next : 0;
        }
        const float later = __shfl_down_sync(~0u, after, 1), rest = lane < 31 ? later : 0;
        x.suf[2 * lane] = expf(rest + gate[1]), x.suf[2 * lane + 1] = expf(rest);
        const bool forgets = __any_sync(~0u, gate[0] != 0 || gate[1] != 0);
        if (lane == 0) {
            s.nested[slot] = !forgets;
            s.total[slot] = expf(after);
            s.doubtful[slot] = 0;
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    const float norm2 = s.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(x.k) : 1;
    if (threadIdx.x % 2 == 0) {
        const int t = threadIdx.x / 2;
        x.factor[0][t] = norm2 > 0 ? beta * x.suf[t] * rsqrtf(norm2) : 0;
        x.factor[1][t] = norm2 > 0 ? beta * x.suf[t] / norm2 / 2 : 0;
    }
    __syncthreads();
    const int m = (int)threadIdx.x / 32 * 16;
    float *written = kept_row(s.kept, s.p, at.seq, at.h, at.chunk, 0);
    mesa_rows acc = {};
    mesa_outer<1, 1>(acc, &x.v, &x.k, x.factor[0], m);
    mesa_put_written(written, acc, m);
    clear(acc);
    mesa_outer<1, 1>(acc, &x.k, &x.k, x.factor[1], m);
    mesa_add_transpose(acc, x.turned, m);
    mesa_put_written(written + MESA_DIM * MESA_DIM, acc, m);
}

/* ------------------------------------------------------------------ the scan */

enum { SCAN_THREADS = 64, SCAN_AHEAD = 16, SCAN_BLOCKS = 2 * MESA_DIM * MESA_DIM / 4 / SCAN_THREADS };

struct mesa_scan {
    kept_states<float> kept;
    loam_const_view begin, other; /* other: BACKWARD, state_in */
    loam_view end;
    double *apart; /* BACKWARD: partial sums of the inner product of the antisymmetric parts of H and dH */
};

/* The transposes of elements (row, column) .. (row, column + 3) of H. */
static __device__ __forceinline__ float4 mesa_load_across(const float *h, int64_t stride, int row, int column)
{
    const float *from = h + column * stride + row;
    return make_float4(from[0], from[stride], from[2 * stride], from[3 * stride]);
}

/* x <- decay x + w */
static __device__ __forceinline__ void mesa_step(float4 &x, float decay, const float4 &w)
{
    x.x = fmaf(decay, x.x, w.x), x.y = fmaf(decay, x.y, w.y);
    x.z = fmaf(decay, x.z, w.z), x.w = fmaf(decay, x.w, w.w);
}

/* The scan. A thread has four elements of a row (`state`) and their transposes (`across`, for S the
 * same elements); SCAN_BLOCKS thread blocks have S and H of a head. `written` is prefetched
 * SCAN_AHEAD chunks ahead. */
template <bool BACKWARD>
__global__ void __launch_bounds__(SCAN_THREADS)
    mesa_scan_kernel(const __grid_constant__ mesa m, const __grid_constant__ mesa_scan s)
{
    const int64_t head = blockIdx.x / SCAN_BLOCKS, h = head % m.p.heads_v;
    const recurrent_seq seq = recurrent_seq_at(&m.p, &m.a, head / m.p.heads_v);
    const int e = ((int)blockIdx.x % SCAN_BLOCKS * SCAN_THREADS + (int)threadIdx.x) * 4;
    const int row = e / MESA_DIM, column = e % MESA_DIM;
    const int chunks = (int)((seq.len + MESA_TOKENS - 1) / MESA_TOKENS);
    const bool system = row >= MESA_DIM;
    float4 state = { 0, 0, 0, 0 }, across = { 0, 0, 0, 0 };
    if (s.begin.data) {
        const float *from = (const float *)s.begin.data + RECURRENT_AT(s.begin, seq.index, h, 0);
        const float *along = from + row * s.begin.token + column;
        state = across = make_float4(along[0], along[1], along[2], along[3]);
        if (system && (BACKWARD || !s.end.data)) {
            across = mesa_load_across(from + MESA_DIM * s.begin.token, s.begin.token, row - MESA_DIM, column);
        } else if (system) {
            across = mesa_load_across(m.given + head * MESA_DIM * MESA_DIM, MESA_DIM, row - MESA_DIM, column);
        }
    }
    constexpr int64_t step = (BACKWARD ? -1 : 1) * 2 * MESA_DIM * MESA_DIM;
    const int first = BACKWARD ? chunks - 1 : 0;
    float *at = kept_row(s.kept, m.p, seq, h, first, 0) + e;
    const float *total = m.total + kept_slot(s.kept, m.p, seq, h, first);
    float4 ahead[SCAN_AHEAD];
    float decays[SCAN_AHEAD];
    const auto load = [&](int i, int n) {
        if (n < chunks) {
            ahead[i] = *(const float4 *)(at + n * step);
            decays[i] = total[BACKWARD ? -n : n];
        }
    };
#pragma unroll
    for (int i = 0; i < SCAN_AHEAD; i++) {
        load(i, i);
    }
    for (int n0 = 0; n0 < chunks; n0 += SCAN_AHEAD) {
#pragma unroll
        for (int i = 0; i < SCAN_AHEAD; i++) {
            const int n = n0 + i;
            if (n < chunks) {
                *(float4 *)(at + n * step) = make_float4((state.x + across.x) / 2, (state.y + across.y) / 2,
                                                         (state.z + across.z) / 2, (state.w + across.w) / 2);
                mesa_step(state, decays[i], ahead[i]);
                mesa_step(across, decays[i], ahead[i]);
                load(i, n + SCAN_AHEAD);
            }
        }
    }
    if (s.end.data) {
        float *to = (float *)s.end.data + RECURRENT_AT(s.end, seq.index, h, row) + column;
        to[0] = state.x, to[1] = state.y, to[2] = state.z, to[3] = state.w;
    }
    if (BACKWARD) {
        double sum = 0;
        if (system && s.begin.data && s.other.data) {
            const float *H = (const float *)s.other.data + RECURRENT_AT(s.other, seq.index, h, MESA_DIM);
            const float *along = H + (row - MESA_DIM) * s.other.token + column;
            const float4 turned = mesa_load_across(H, s.other.token, row - MESA_DIM, column);
            sum = (double)(state.x - across.x) * (double)(along[0] - turned.x) +
                  (double)(state.y - across.y) * (double)(along[1] - turned.y) +
                  (double)(state.z - across.z) * (double)(along[2] - turned.z) +
                  (double)(state.w - across.w) * (double)(along[3] - turned.w);
        }
        sum = block_sum<SCAN_THREADS>(sum / 4);
        if (threadIdx.x == 0) {
            s.apart[blockIdx.x] = sum;
        }
    }
}

#endif
