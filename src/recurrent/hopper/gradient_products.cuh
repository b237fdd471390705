/* SPDX-License-Identifier: MIT
 * Gradients of a chunk: the matrix products that give x, y, e and z. Where each channel has its own gate, the
 * pairs of tokens of the same block of 16 are not included. Notation of recurrent/hopper/gradient.cu. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_PRODUCTS_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_PRODUCTS_CUH

#include "src/recurrent/hopper/gradient_shared.cuh"
#include "src/recurrent/hopper/operands.cuh"

/* ------------------------------------------------------------------ dr = Linv^T du */

/* Loads the warp's 16 rows of Linv^T, an upper triangular matrix, as operand A in hi and lo part. */
static __device__ __forceinline__ void load_inverse(weights_operand<2> &a, const float *inverse)
{
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float w[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = row + e / 2 * 8, j = 8 * n + 2 * t + e % 2;
            w[n][e] = j >= i ? inverse[j * CHUNK_TOKENS + i] : 0;
        }
    }
    split_weights(a, w);
}

/* Replaces du by dr = Linv^T du in the tiles `dr`. Each warpgroup computes COLUMNS of the columns. */
template <int COLUMNS>
static __device__ __forceinline__ void multiply_inverse_transposed(__nv_bfloat16 *dr,
                                                                   const weights_operand<2> &inverse)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, first = threadIdx.x / 128 * COLUMNS;
    float out[COLUMNS / 8][4];
    clear(out);
#pragma unroll
    for (int block = 0; block < CHUNK_BLOCKS; block++) {
        if (block < warp) continue;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            uint32_t r[4];
            load_matrices_transposed(
                r, dr + swizzled(block * BLOCK_TOKENS + lane % 16, first + 8 * n + lane / 16 * 8));
            const uint32_t left[2] = { r[0], r[1] }, right[2] = { r[2], r[3] };
#pragma unroll
            for (int part = 1; part >= 0; part--) {
                mma_bf16(out[n], inverse.part[part][block], left);
                mma_bf16(out[n + 1], inverse.part[part][block], right);
            }
        }
    }
    __syncthreads();
    const int row = warp * 16 + lane / 4, column = first + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            *(__nv_bfloat162 *)(dr + swizzled(row + half * 8, column + 8 * n)) = __floats2bfloat162_rn(
                out[n][2 * half], out[n][2 * half + 1]);
        }
    }
}

/* ------------------------------------------------------------------ pairs of tokens of a chunk */

/* Turns s, the products of do (`read`) or dr with u, into the weights of q and k: W_ij or -X_ij, where
 * `factor` is the scale or -1. With TOKEN_GATES they are multiplied by D_ij. KEYS: rows are keys,
 * columns queries, and -X_ij is multiplied by beta_i. Weights with j >= i are 0, except W_ii without
 * gates; with gates W_ii is stored in sm.diagonal. With CHANNEL_GATES the pairs of each block of 16
 * tokens are stored in sm.block_pairs. */
template <int DIM, gate_reach GATES, bool DELTA, bool KEYS>
static __device__ __forceinline__ void weigh_pairs(float (&s)[8][4], gradient_shared<DIM, GATES, DELTA> &sm,
                                                   float factor, bool read, int tile)
{
    const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x % 128 / 32;
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = row + e / 2 * 8, c = 8 * n + 2 * t + e % 2;
            const int i = KEYS ? c : r, j = KEYS ? r : c;
            float weight = s[n][e] * factor;
            if (KEYS && !read) weight *= sm.beta[i];
            if (!KEYS && GATES != NO_GATES && read && i == j && tile == 0) sm.diagonal[i] = weight;
            if (GATES == TOKEN_GATES) weight *= decay_between(sm.pre[i], sm.pre[j]);
            s[n][e] = i > j || (GATES == NO_GATES && read && i == j) ? weight : 0;
            if (GATES == CHANNEL_GATES && !KEYS && n / 2 == warp && tile == 0)
                sm.block_pairs[read ? 0 : DELTA][warp][j % BLOCK_TOKENS][i % BLOCK_TOKENS] = s[n][e];
        }
    }
}

/* Multiplies the thread's two rows of x by `first` and `second`. */
static __device__ __forceinline__ void scale_rows(float (&x)[8][4], float first, float second)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        x[n][0] *= first, x[n][1] *= first, x[n][2] *= second, x[n][3] *= second;
}

/* Multiplies each channel (column) of x by its factor. */
static __device__ __forceinline__ void scale_channels(float (&x)[8][4], const float *factor)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 f = *(const float2 *)(factor + 8 * n + threadIdx.x % 4 * 2);
        x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
    }
}

/* x += w B for the warp's 16 rows, where B is the 16 rows of block `block` of the tile. */
static __device__ __forceinline__ void add_block(float (&x)[8][4], const uint32_t (&w)[4],
                                                 const __nv_bfloat16 *tile, int block)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t r[4];
        load_matrices_transposed(r, tile + swizzled(block * BLOCK_TOKENS + lane % 16, 8 * n + lane / 16 * 8));
        const uint32_t left[2] = { r[0], r[1] }, right[2] = { r[2], r[3] };
        mma_bf16(x[n], w, left);
        mma_bf16(x[n + 1], w, right);
    }
}

/* The warp's rows are queries of one block of 16 tokens. For each earlier block, from the first on, x is
 * decayed over that block, and its keys, decayed to its end, are added. All factors are in [0, 1]. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_earlier(float (&x)[8][4], const uint32_t (&w)[4][4],
                                                   gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm, int tile)
{
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = 0; block < CHUNK_BLOCKS - 1; block++) {
        if (block < warp) {
            scale_channels(x, sm.block_decay[block] + tile * TILE_SIDE);
            add_block(x, w[block], sm.in.decayed + tile * TILE_ELEMENTS, block);
        }
    }
}

/* The warp's rows are keys of one block. For each later block, from the last one back, y is decayed over that
 * block, and its queries (with a delta rule its keys too), decayed from its beginning, are added. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_later(float (&y)[8][4], const uint32_t (&w)[4][4],
                                                 const uint32_t (&erased)[4][4],
                                                 gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm, int tile)
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = CHUNK_BLOCKS - 1; block > 0; block--) {
        if (block > warp) {
            scale_channels(y, sm.block_decay[block] + tile * TILE_SIDE);
            add_block(y, w[block], sm.in.decayed + rows + tile * TILE_ELEMENTS, block);
            if (DELTA) add_block(y, erased[block], sm.in.decayed + 2 * rows + tile * TILE_ELEMENTS, block);
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void store_sum(float *sum, const float (&x)[8][4], int tile)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float *to = sum + row * (DIM + 8) + tile * TILE_SIDE + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        *(float2 *)(to + 8 * n) = make_float2(x[n][0], x[n][1]);
        *(float2 *)(to + 8 * (DIM + 8) + 8 * n) = make_float2(x[n][2], x[n][3]);
    }
}

/* out = rows state: DIM / 64 tiles of 64 rows, 64 columns of a state. Asynchronous:
 * commit and wait before use. */
template <int DIM>
static __device__ __forceinline__ void more_state(float (&out)[8][4], const __nv_bfloat16 *rows,
                                                  const __nv_bfloat16 *state)
{
    const uint32_t a = descriptor_low(rows), b = descriptor_low(state);
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        wgmma_columns<__nv_bfloat16>(out,
                                     descriptor_of(a + (k / TILE_SIDE * TILE_ELEMENTS + k % TILE_SIDE) / 8),
                                     descriptor_of(b + k * TILE_SIDE / 8), k > 0);
    }
}

/* out += w tile, 64 channels of the chunk's rows. Asynchronous. */
static __device__ __forceinline__ void more_tile(float (&out)[8][4], const weights_operand<1> &w,
                                                 const __nv_bfloat16 *tile)
{
    more_weights<TILE_SIDE>((float(&)[1][8][4])out, w.part[0], tile);
}

/* out += w tile, all parts of w. Waits for the result. */
template <int DIM, int PARTS>
static __device__ __forceinline__ void multiply_pairs(float (&out)[DIM / TILE_SIDE][8][4],
                                                      const weights_operand<PARTS> &w,
                                                      const __nv_bfloat16 *tile)
{
    wgmma_fence();
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--)
        more_weights<DIM>(out, w.part[part], tile);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(out);
}

/* The accumulators of a warpgroup, `tiles` times 64 x 64. In the functions below `tile` is the first of
 * its tiles of 64 channels. */
template <int DIM, gate_reach GATES> using tile_sums = float[gradient_shape<DIM, GATES>::tiles][8][4];

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void multiply_states(tile_sums<DIM, GATES> &out, const __nv_bfloat16 *rows,
                                                       const __nv_bfloat16 *state, int tile)
{
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++)
        more_state<DIM>(out[n], rows, state + (tile + n) * DIM * TILE_SIDE);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(out);
}

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void scale_sums(tile_sums<DIM, GATES> &x, float first, float second)
{
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++)
        scale_rows(x[n], first, second);
}

/* s = rows others^T. */
template <int DIM>
static __device__ __forceinline__ void multiply_tokens(float (&s)[8][4], const __nv_bfloat16 *rows,
                                                       const __nv_bfloat16 *others)
{
    multiply_rows<DIM>(s, rows, others, false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(s);
}

/* A warpgroup with queries as rows: out is x for rows do (`read`, `factor` is the scale) and z for rows dr
 * (`factor` is -1). With CHANNEL_GATES two things are left to complete_block: the decay from the beginning of
 * the row's own block of 16 tokens, and the pairs within that block. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_queries(gradient_shared<DIM, GATES, DELTA> &sm,
                                                        tile_sums<DIM, GATES> &out, const __nv_bfloat16 *rows,
                                                        float factor, bool read, int tile)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[8][4];
    weights_operand<pair_parts<GATES, DELTA>> w;
    multiply_tokens<DIM>(s, rows, sm.in.u);
    weigh_pairs<DIM, GATES, DELTA, false>(s, sm, factor, read, tile);
    split_weights(w, s);
    multiply_states<DIM, GATES>(out, rows, sm.in.state, tile);
    if (GATES == TOKEN_GATES)
        scale_sums<DIM, GATES>(out, factor * exp2_fast(sm.pre[row].x), factor * exp2_fast(sm.pre[row + 8].x));
    else
        scale_sums<DIM, GATES>(out, factor, factor);
    if constexpr (GATES == CHANNEL_GATES)
        add_earlier<DIM, DELTA>(out[0], w.part[0], sm, tile);
    else
        multiply_pairs<DIM>(out, w, sm.k);
}

/* Weights with keys as rows: W_ij where `others` is do (`read`, `factor` is the scale), -beta_i X_ij where it
 * is dr (`factor` is -1). */
template <int DIM, gate_reach GATES, bool DELTA, int PARTS>
static __device__ __forceinline__ void weigh_keys(weights_operand<PARTS> &w,
                                                  gradient_shared<DIM, GATES, DELTA> &sm,
                                                  const __nv_bfloat16 *others, float factor, bool read,
                                                  int tile)
{
    float s[8][4];
    multiply_tokens<DIM>(s, sm.in.u, others);
    weigh_pairs<DIM, GATES, DELTA, true>(s, sm, factor, read, tile);
    split_weights(w, s);
}

/* A warpgroup with keys as rows: y and e; without gates e is y + e, and y is not set. With CHANNEL_GATES
 * complete_block does the rest: the decay of both to the end of the row's own block, that of e from there to
 * the end of the chunk, and for y the pairs within the block. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_keys(gradient_shared<DIM, GATES, DELTA> &sm,
                                                     tile_sums<DIM, GATES> &y, tile_sums<DIM, GATES> &e,
                                                     float scale, int tile)
{
    if constexpr (GATES == TOKEN_GATES) {
        /* One product after the other: weights in two parts are many registers. */
        const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const float2 end = sm.pre[CHUNK_TOKENS - 1];
#pragma unroll
        for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++)
            clear(y[n]);
        weights_operand<pair_parts<GATES, DELTA>> w;
        weigh_keys(w, sm, sm.in.grad_o, scale, true, tile);
        multiply_pairs<DIM>(y, w, sm.q);
        if (DELTA) {
            weigh_keys(w, sm, sm.dr, -1, false, tile);
            multiply_pairs<DIM>(y, w, sm.k);
        }
        multiply_states<DIM, GATES>(e, sm.in.u, sm.in.grad_state, tile);
        scale_sums<DIM, GATES>(e, decay_between(end, sm.pre[row]), decay_between(end, sm.pre[row + 8]));
        return;
    }
    weights_operand<1> w, erased;
    weigh_keys(w, sm, sm.in.grad_o, scale, true, tile);
    if (DELTA) weigh_keys(erased, sm, sm.dr, -1, false, tile);
    if constexpr (GATES == NO_GATES) {
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++) {
            more_state<DIM>(e[n], sm.in.u, sm.in.grad_state + (tile + n) * DIM * TILE_SIDE);
            more_tile(e[n], w, sm.q + (tile + n) * TILE_ELEMENTS);
            if (DELTA) more_tile(e[n], erased, sm.k + (tile + n) * TILE_ELEMENTS);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(e);
    } else if constexpr (GATES == CHANNEL_GATES) {
        multiply_states<DIM, GATES>(e, sm.in.u, sm.in.grad_state, tile);
        clear(y[0]);
        add_later<DIM, DELTA>(y[0], w.part[0], erased.part[0], sm, tile);
    }
}

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void store_sums(float *sum, const tile_sums<DIM, GATES> &x, int tile)
{
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++)
        store_sum<DIM>(sum, x[n], tile + n);
}

/* A barrier for all threads of the block, which half of them reach in one branch (FIRST) and half in the
 * other. compute-sanitizer reports one barrier of all threads in two places as an error. So each half
 * waits for its own threads at named barrier 5 or 6, and each quarter for the other half at a named
 * barrier of its own, 1 .. 4. */
template <int THREADS, bool FIRST> static __device__ __forceinline__ void sync_branches()
{
    constexpr int half = THREADS / 2, quarter = THREADS / 4, mine = FIRST ? 1 : 3, theirs = FIRST ? 3 : 1;
    named_barrier_arrive<half + quarter>(theirs);
    named_barrier_arrive<half + quarter>(theirs + 1);
    named_barrier_sync<half>(FIRST ? 5 : 6);
    if (__shfl_sync(0xffffffffu, threadIdx.x % half / quarter, 0) == 0)
        named_barrier_sync<half + quarter>(mine);
    else
        named_barrier_sync<half + quarter>(mine + 1);
}

/* All products of the chunk. The results of all warpgroups overwrite the operands in shared memory. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_all(gradient_shared<DIM, GATES, DELTA> &sm, float scale)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    typedef gradient_shape<DIM, GATES> shape;
    /* The shuffle tells the compiler that the branch is uniform in a warp: in a divergent one it would
     * serialise the products. */
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0),
              tile = group % shape::warpgroups * shape::tiles;
    tile_sums<DIM, GATES> first, second;
    if (group < shape::warpgroups) {
        multiply_queries(sm, first, sm.in.grad_o, scale, true, tile);
        if (DELTA) multiply_queries(sm, second, sm.dr, -1, false, tile);
        sync_branches<shape::threads, true>();
        store_sums<DIM, GATES>(sm.products[shared::x], first, tile);
        if (DELTA) store_sums<DIM, GATES>(sm.products[shared::z], second, tile);
    } else {
        multiply_keys(sm, first, second, scale, tile);
        sync_branches<shape::threads, false>();
        store_sums<DIM, GATES>(sm.products[shared::y], GATES == NO_GATES ? second : first, tile);
        if (GATES != NO_GATES) store_sums<DIM, GATES>(sm.products[shared::e], second, tile);
    }
}

/* Partial sums of sum_r S_r dS_r for each channel: a thread has two channels and every STATE_PARTS-th row. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void dot_states(gradient_shared<DIM, GATES, DELTA> &sm)
{
    const int c = threadIdx.x % (DIM / 2) * 2, part = threadIdx.x / (DIM / 2);
    if (part >= STATE_PARTS) return;
    float2 sum = { 0, 0 };
#pragma unroll 8
    for (int r = part; r < DIM; r += STATE_PARTS) {
        const int at = swizzled_state<DIM>(r, c);
        const float2 s = __bfloat1622float2(*(const __nv_bfloat162 *)(sm.in.state + at));
        const float2 ds = __bfloat1622float2(*(const __nv_bfloat162 *)(sm.in.grad_state + at));
        sum.x += s.x * ds.x, sum.y += s.y * ds.y;
    }
    *(float2 *)&sm.state_dot[part][c] = sum;
}

#endif
