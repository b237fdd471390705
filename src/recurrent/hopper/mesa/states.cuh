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
typedef float mesa_transpose[MESA_DIM][MESA_DIM + 4];

/* acc = (columns of `rows`)^T Diag(factor) x, where `rows` is the sum of ROW_PARTS tiles and x the sum of
 * PARTS tiles. */
template <int ROW_PARTS, int PARTS>
static __device__ __forceinline__ void mesa_outer(mesa_rows &acc, const mesa_tile *rows, const mesa_tile *x,
                                                  const float *factor)
{
    const int t2 = (int)threadIdx.x % 4 * 2;
    uint32_t raw[ROW_PARTS][4][4];
    weights_operand<2> u;
#pragma unroll
    for (int part = 0; part < ROW_PARTS; part++)
        load_transposed(raw[part], rows[part]);
#pragma unroll
    for (int e = 0; e < 16; e++) {
        const float2 by = *(const float2 *)&factor[e / 4 * 16 + t2 + e % 4 / 2 * 8];
        float first = 0, second = 0;
        uint32_t part[2];
#pragma unroll
        for (int n = 0; n < ROW_PARTS; n++) {
            first += unpack_first(raw[n][e / 4][e % 4]);
            second += unpack_second(raw[n][e / 4][e % 4]);
        }
        mesa_split_pair(part, first * by.x, second * by.y);
        u.part[0][e / 4][e % 4] = part[0], u.part[1][e / 4][e % 4] = part[1];
    }
    wgmma_fence();
    mesa_add<false, PARTS>(acc, u, x, false);
    mesa_wait(acc);
}

/* Stores the warp's rows m .. m + 15 of a 64 x 64 matrix. */
static __device__ __forceinline__ void mesa_store_matrix(float *to, const mesa_rows &x, int m)
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
static __device__ __forceinline__ void mesa_add_transpose(mesa_rows &x, mesa_transpose &transposed, int m)
{
    const int lane = threadIdx.x % 32, row = m + lane / 4, t2 = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        *(float2 *)&transposed[row][8 * n + t2] = make_float2(x[n][0], x[n][1]);
        *(float2 *)&transposed[row + 8][8 * n + t2] = make_float2(x[n][2], x[n][3]);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        x[e / 4][e % 4] += transposed[e / 4 * 8 + t2 + e % 2][row + e % 4 / 2 * 8];
}

struct mesa_write_shared {
    mesa_tile k, v;
    mesa_transpose transposed;
    /* Factors of v k^T and k k^T of a token, beta e^suf with the 1 / |k| of features of length 1; of k k^T
     * half, as x + x^T follows. */
    float factor[2][MESA_TOKENS];
    float suf_decay[MESA_TOKENS]; /* e^suf */
};

/* Copies H of state_in to s.h_in. state_out may be the same memory as state_in: a thread of the scan that
 * reads a column of H there could read what another thread has already overwritten. */
static __device__ __forceinline__ void mesa_copy_h_in(const mesa_params &s, const mesa_chunk &chunk)
{
    const loam_const_view &view = s.a.state_in;
    const float *from = (const float *)view.data + RECURRENT_AT(view, chunk.seq.index, chunk.h, MESA_DIM);
    float *to = s.h_in + (chunk.seq.index * s.p.heads_v + chunk.h) * MESA_DIM * MESA_DIM;
    float rows[MESA_DIM * MESA_DIM / MESA_THREADS];
#pragma unroll
    for (int n = 0; n < MESA_DIM * MESA_DIM / MESA_THREADS; n++) {
        const int e = n * MESA_THREADS + threadIdx.x;
        rows[n] = from[e / MESA_DIM * view.token + e % MESA_DIM];
    }
#pragma unroll
    for (int n = 0; n < MESA_DIM * MESA_DIM / MESA_THREADS; n++)
        to[n * MESA_THREADS + threadIdx.x] = rows[n];
}

/* One warp: e^suf of the tokens; `chunk_decay` and `needs_f64` = 0 of the chunk. */
static __device__ __forceinline__ void mesa_write_decays(const mesa_params &s, mesa_write_shared &sm,
                                                         const mesa_chunk &chunk, int64_t slot)
{
    const int lane = threadIdx.x;
    float gate[2];
    mesa_load_gates(gate, s, chunk);
    const float after = suffix_sum(gate[0] + gate[1]), later = next_lane(after);
    sm.suf_decay[2 * lane] = expf(later + gate[1]), sm.suf_decay[2 * lane + 1] = expf(later);
    if (lane == 0) {
        s.chunk_decay[slot] = expf(after);
        s.needs_f64[slot] = 0;
    }
}

/* What a chunk adds to S and H, and `chunk_decay` and `needs_f64` = 0 of the chunk;
 * one thread block for each. */
__global__ void __launch_bounds__(MESA_THREADS) mesa_write_kernel(const __grid_constant__ mesa_params s)
{
    extern __shared__ __align__(1024) char shared_memory[];
    mesa_write_shared &sm = *(mesa_write_shared *)shared_memory;
    const loam_args &a = s.a;
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s);
    if (chunk.tokens <= 0) return;
    if (chunk.index == 0 && s.a.state_in.data && s.a.state_out.data) mesa_copy_h_in(s, chunk);
    const int64_t slot = mesa_slot(s, chunk);
    mesa_load(sm.k, a.k, chunk, chunk.key_head);
    mesa_load(sm.v, a.v, chunk, chunk.h);
    copy_async_commit();
    const float beta = mesa_load_scalar(a.beta, chunk, (int)threadIdx.x / 2);
    if (threadIdx.x < 32) mesa_write_decays(s, sm, chunk, slot);
    mesa_tiles_complete();
    const float norm2 = s.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(sm.k) : 1;
    if (threadIdx.x % 2 == 0) {
        const int t = threadIdx.x / 2;
        sm.factor[0][t] = norm2 > 0 ? beta * sm.suf_decay[t] * rsqrtf(norm2) : 0;
        sm.factor[1][t] = norm2 > 0 ? beta * sm.suf_decay[t] / norm2 / 2 : 0;
    }
    __syncthreads();
    const int m = (int)threadIdx.x / 32 * 16;
    float *written = mesa_states(s.kept, s, chunk);
    mesa_rows acc;
    mesa_outer<1, 1>(acc, &sm.v, &sm.k, sm.factor[0]);
    mesa_store_matrix(written, acc, m);
    mesa_outer<1, 1>(acc, &sm.k, &sm.k, sm.factor[1]);
    mesa_add_transpose(acc, sm.transposed, m);
    mesa_store_matrix(written + MESA_DIM * MESA_DIM, acc, m);
}

/* ------------------------------------------------------------------ the scan */

enum { SCAN_THREADS = 64, SCAN_PREFETCH = 32, SCAN_BLOCKS = 2 * MESA_DIM * MESA_DIM / 4 / SCAN_THREADS };

struct mesa_scan {
    kept_states<float> kept;
    loam_const_view first;    /* the state where the scan begins: state_in; BACKWARD: grad_state_out */
    loam_const_view state_in; /* BACKWARD */
    loam_view last;           /* where the scan ends: state_out; BACKWARD: grad_state_in */
    /* BACKWARD: partial sums of the inner product of the antisymmetric parts of H and dH. */
    double *antisymmetric;
};

/* The transposes of elements (row, column) .. (row, column + 3) of H. */
static __device__ __forceinline__ float4 mesa_load_transposed(const float *h, int64_t stride, int row,
                                                              int column)
{
    const float *from = h + column * stride + row;
    return make_float4(from[0], from[stride], from[2 * stride], from[3 * stride]);
}

/* x <- decay x + w */
static __device__ __forceinline__ void mesa_decay_add(float4 &x, float decay, const float4 &w)
{
    x.x = fmaf(decay, x.x, w.x), x.y = fmaf(decay, x.y, w.y);
    x.z = fmaf(decay, x.z, w.z), x.w = fmaf(decay, x.w, w.w);
}

/* The elements of S and H that a thread has: four of row `row` (`state`), and their transposes (`transposed`,
 * for S the same elements). Rows from MESA_DIM on are H. */
struct mesa_scan_part {
    float4 state, transposed;
    int row, column;
};

/* Loads the state where the scan begins. `head`: index of sequence and value head, h: value head. */
template <bool BACKWARD>
static __device__ __forceinline__ void mesa_scan_begin(mesa_scan_part &x, const mesa_params &m,
                                                       const mesa_scan &s, const recurrent_seq &seq,
                                                       int64_t head, int64_t h)
{
    x.state = x.transposed = make_float4(0, 0, 0, 0);
    if (!s.first.data) return;
    const int64_t stride = s.first.token;
    const float *from = (const float *)s.first.data + RECURRENT_AT(s.first, seq.index, h, 0);
    const float *elements = from + x.row * stride + x.column;
    x.state = x.transposed = make_float4(elements[0], elements[1], elements[2], elements[3]);
    if (x.row >= MESA_DIM && (BACKWARD || !s.last.data)) {
        x.transposed = mesa_load_transposed(from + MESA_DIM * stride, stride, x.row - MESA_DIM, x.column);
    } else if (x.row >= MESA_DIM) {
        x.transposed = mesa_load_transposed(m.h_in + head * MESA_DIM * MESA_DIM, MESA_DIM, x.row - MESA_DIM,
                                            x.column);
    }
}

/* The elements of `written` that a thread has, SCAN_PREFETCH chunks ahead. In shared memory, because of loads
 * into registers a warp has six counters alone: to wait for a chunk is to wait for later ones too. */
typedef float4 mesa_scan_ring[SCAN_PREFETCH][SCAN_THREADS];

/* Carries the state through the chunks, from the first one of the scan, whose elements are at `at` and whose
 * decay is at `chunk_decay`. */
template <bool BACKWARD>
static __device__ __forceinline__ void mesa_scan_chunks(mesa_scan_part &x, mesa_scan_ring &ring, float *at,
                                                        const float *chunk_decay, int chunks)
{
    constexpr int64_t step = (BACKWARD ? -1 : 1) * 2 * MESA_DIM * MESA_DIM;
    const int lane = threadIdx.x % 32;
    const auto prefetch = [&](int n) {
        if (n < chunks) copy_async_16(&ring[n % SCAN_PREFETCH][threadIdx.x], at + n * step);
        copy_async_commit();
    };
    const auto load_decay = [&](int n) { return n < chunks ? chunk_decay[BACKWARD ? -n : n] : 0; };
    float decays, next = load_decay(lane); /* of chunk n - n % 32 + lane, and of 32 chunks later */
    for (int n = 0; n < SCAN_PREFETCH; n++)
        prefetch(n);
    for (int n = 0; n < chunks; n++) {
        if (n % 32 == 0) decays = next, next = load_decay(n + 32 + lane);
        const float decay = __shfl_sync(~0u, decays, n % 32);
        copy_async_wait<SCAN_PREFETCH - 1>();
        const float4 written = ring[n % SCAN_PREFETCH][threadIdx.x];
        *(float4 *)(at + n * step) = make_float4(
            (x.state.x + x.transposed.x) / 2, (x.state.y + x.transposed.y) / 2,
            (x.state.z + x.transposed.z) / 2, (x.state.w + x.transposed.w) / 2);
        mesa_decay_add(x.state, decay, written);
        mesa_decay_add(x.transposed, decay, written);
        prefetch(n + SCAN_PREFETCH);
    }
}

/* The thread's terms of the inner product of dH - dH^T and H - H^T. */
static __device__ __forceinline__ double mesa_antisymmetric(const mesa_scan_part &x, const mesa_scan &s,
                                                            const recurrent_seq &seq, int64_t h)
{
    if (x.row < MESA_DIM || !s.first.data || !s.state_in.data) return 0;
    const float *H = (const float *)s.state_in.data + RECURRENT_AT(s.state_in, seq.index, h, MESA_DIM);
    const float *elements = H + (x.row - MESA_DIM) * s.state_in.token + x.column;
    const float4 other = mesa_load_transposed(H, s.state_in.token, x.row - MESA_DIM, x.column);
    return (double)(x.state.x - x.transposed.x) * (double)(elements[0] - other.x) +
           (double)(x.state.y - x.transposed.y) * (double)(elements[1] - other.y) +
           (double)(x.state.z - x.transposed.z) * (double)(elements[2] - other.z) +
           (double)(x.state.w - x.transposed.w) * (double)(elements[3] - other.w);
}

/* The scan; SCAN_BLOCKS thread blocks have S and H of a head. */
template <bool BACKWARD>
__global__ void __launch_bounds__(SCAN_THREADS)
    mesa_scan_kernel(const __grid_constant__ mesa_params m, const __grid_constant__ mesa_scan s)
{
    __shared__ mesa_scan_ring ring;
    mesa_begin();
    const int64_t head = blockIdx.x / SCAN_BLOCKS, h = head % m.p.heads_v;
    const recurrent_seq seq = recurrent_seq_at(&m.p, &m.a, head / m.p.heads_v);
    const int e = ((int)blockIdx.x % SCAN_BLOCKS * SCAN_THREADS + (int)threadIdx.x) * 4;
    const int chunks = (int)((seq.len + MESA_TOKENS - 1) / MESA_TOKENS), first = BACKWARD ? chunks - 1 : 0;
    mesa_scan_part x;
    x.row = e / MESA_DIM, x.column = e % MESA_DIM;
    mesa_scan_begin<BACKWARD>(x, m, s, seq, head, h);
    mesa_scan_chunks<BACKWARD>(x, ring, kept_row(s.kept, m.p, seq, h, first, 0) + e,
                               m.chunk_decay + kept_slot(s.kept, m.p, seq, h, first), chunks);
    if (s.last.data) {
        float *to = (float *)s.last.data + RECURRENT_AT(s.last, seq.index, h, x.row) + x.column;
        to[0] = x.state.x, to[1] = x.state.y, to[2] = x.state.z, to[3] = x.state.w;
    }
    if (BACKWARD) {
        const double sum = block_sum<SCAN_THREADS>(mesa_antisymmetric(x, s, seq, h) / 4);
        if (threadIdx.x == 0) s.antisymmetric[blockIdx.x] = sum;
    }
}

#endif
