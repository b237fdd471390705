/* SPDX-License-Identifier: MIT
 * Gradients of one chunk of 64 tokens from the states around it (docs/recurrent.md, 'Backward by chunks'): chunks and value heads in
 * parallel. With D_ij = e^seg_ij, S the state before the chunk, dS the gradient of that after it, do the scaled gradient of o and
 * dr = Linv^T du (no delta rule: du):
 *
 *     x_i = sum_{j<i} W_ij D_ij k_j + e^pre_i S^T do_i             W_ij = do_i . u_j
 *     z_i = -(sum_{j<i} A_ij D_ij k_j + e^pre_i S^T dr_i)          A_ij = dr_i . u_j    (delta rule)
 *     y_j = sum_{i>j} D_ij (W_ij q_i - beta_i A_ij k_i)
 *     e_j = e^suf_j dS^T u_j
 *     dq_i = x_i + W_ii k_i,   dk_i = beta_i z_i + y_i + e_i + W_ii q_i,   dv_i = beta_i dr_i,   dbeta_i = dr_i . v_i + k_i . z_i
 *     dg_t = sum_{i>=t} (q_i x_i + beta_i k_i z_i - k_i y_i) + sum_{j<t} k_j e_j + e^total sum_r S_r dS_r
 *
 * W_ii, whose exponent is 0, stays out of x and y: in dg it would be added and taken away again. Nor does e_t of the last token enter.
 *
 * Two warpgroups: the first has queries as rows (x, z), the second keys (y, e). What they find goes to shared memory; threads that
 * each have some channels of a row finish.
 */
#ifndef LOAM_RECURRENT_GRADIENT_SM90_CUH
#define LOAM_RECURRENT_GRADIENT_SM90_CUH

#include "src/recurrent/recurrent_slots_cuda.cuh"

/* What a gate decays. */
enum gate_reach { NO_GATES, TOKEN_GATES, CHANNEL_GATES };

enum { PAIR_BLOCK = 16, PAIR_BLOCKS = CHUNK_TOKENS / PAIR_BLOCK };

/* Where channels have gates, a thread for each channel and block of 16 tokens. Half of the warpgroups have queries as rows, the others
 * keys; each has 64 `tiles` of the channels. */
template <int DIM, gate_reach GATES> struct gradient_shape {
    enum {
        tiles = GATES == CHANNEL_GATES ? 1 : DIM / SIDE,
        sharers = DIM / SIDE / tiles, /* warpgroups that have the same rows */
        threads = 2 * sharers * 128,
        blocks = DIM == 64 ? 2 : 1 /* that a multiprocessor holds */
    };
};
constexpr int STATE_PARTS = 4; /* of sums over rows of states: threads that share two channels */

template <int DIM, gate_reach GATES, bool DELTA> struct gradient_shared {
    enum {
        rows = CHUNK_TOKENS * DIM,
        state_size = DIM * DIM,
        local_rows = GATES == CHANNEL_GATES ? 2 + DELTA : 0,
        pitch = DIM + 8, /* so that rows of a warp's products lie in different banks */
        sums = 2 + (GATES != NO_GATES) + DELTA,
        blocks = GATES == CHANNEL_GATES ? PAIR_BLOCKS : 1
    };
    struct operands {
        __nv_bfloat16 grad_o[rows], u[rows], state[state_size], grad_state[state_size];
        /* k decayed to the end of its block of 16 tokens, q and k decayed from its beginning */
        __nv_bfloat16 local[local_rows ? local_rows * rows : 8];
    };
    __nv_bfloat16 q[rows], k[rows];
    __nv_bfloat16 dr[DELTA ? rows : 512];
    union {
        operands in;
        float sum[sums][CHUNK_TOKENS * pitch]; /* x, y, e, z */
    };
    chunk_place place;               /* so that no registers hold it while matrices are multiplied */
    float2 pre[CHUNK_TOKENS];       /* sums of gates, base 2, in two parts */
    float whole[blocks][DIM];        /* decay of each block of 16 tokens */
    float state_dot[STATE_PARTS][DIM];     /* parts of sum_r S_r dS_r */
    float pair[1 + DELTA][blocks][PAIR_BLOCK][PAIR_BLOCK]; /* [j][i] of each block: W, -A */
    float before[blocks][DIM], after[blocks][DIM]; /* sums of a block for the gates of later and of earlier ones */
    float diagonal[CHUNK_TOKENS], beta[CHUNK_TOKENS];
    float row_dot[CHUNK_TOKENS], out_dot[CHUNK_TOKENS], scale_dot[CHUNK_TOKENS];

    enum { x = 0, y = 1, e = 2, z = 2 + (GATES != NO_GATES) };
};

template <int DIM> static __device__ __forceinline__ int swizzled_state(int row, int column)
{
    const int c = column % SIDE;
    return column / SIDE * (DIM * SIDE) + row * SIDE + ((c / 8 ^ row % 8) * 8 | c % 8);
}

/* Rows r of a chunk at first + r * stride. */
struct chunk_rows {
    const __nv_bfloat16 *first;
    int64_t stride;
};

template <int DIM>
static __device__ __forceinline__ chunk_rows rows_of(const chunk_source &s, const chunk_place &place)
{
    return { chunk_row<DIM>(s, place, 0), s.by_slot ? DIM : s.token };
}

/* Rows into tiles of ROWS rows, zeros beyond `tokens`. Asynchronous. */
template <int DIM, int THREADS, int ROWS>
static __device__ __forceinline__ void load_tiles(__nv_bfloat16 *tiles, const chunk_rows &from, int tokens)
{
    constexpr int pieces = DIM / 8, step = THREADS / pieces;
    const int first = threadIdx.x / pieces, c = threadIdx.x % pieces * 8;
    const __nv_bfloat16 *row = from.first + first * from.stride + c;
    __nv_bfloat16 *to = tiles + c / SIDE * (ROWS * SIDE) + first * SIDE + (c % SIDE / 8 ^ first % 8) * 8;
    static_assert(step % 8 == 0, "all rows of a thread have the same swizzle");
#pragma unroll
    for (int n = 0; n < ROWS / step; n++) {
        const bool real = first + n * step < tokens;
        copy_async_16_or_zero(to + n * step * SIDE, real ? row + n * step * from.stride : from.first, real);
    }
}

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_state(__nv_bfloat16 *tiles, const __nv_bfloat16 *state)
{
    load_tiles<DIM, THREADS, DIM>(tiles, { state, DIM }, DIM);
}

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_source(__nv_bfloat16 *tiles, const chunk_source &s,
                                                   const chunk_place &place)
{
    load_tiles<DIM, THREADS, CHUNK_TOKENS>(tiles, rows_of<DIM>(s, place), place.tokens);
}

static __device__ __forceinline__ const float *gate_of(const loam_problem &p, const loam_args &a,
                                                       const chunk_place &place, int row)
{
    const float *data = (const float *)a.log_decay.data;
    return p.mechanism == LOAM_RETENTION
               ? data + place.h * a.log_decay.head
               : data + RECURRENT_AT(a.log_decay, place.b, place.h, place.first + row);
}

/* ------------------------------------------------------------------ decays */

static __device__ __forceinline__ float2 two_floats(double x)
{
    const float high = (float)x;
    return make_float2(high, (float)(x - high));
}

/* e^(a - b), rounded once where the difference is: its second parts alone carry what it loses. */
static __device__ __forceinline__ float decay_between(const float2 &a, const float2 &b)
{
    return exp2_fast((a.x - b.x) + (a.y - b.y));
}

/* beta of the tokens; sums of their gates, base 2. Held at -1e4, beyond which e^g is 0, a difference of sums in float64 is as good as
 * a sum of its own. Two warps each take part. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void load_numbers(gradient_shared<DIM, GATES, DELTA> &m, const loam_problem &p,
                                                    const loam_args &a, const chunk_place &place)
{
    const int thread = threadIdx.x, lane = thread % 32;
    if (thread < CHUNK_TOKENS) {
        const float *beta = (const float *)a.beta.data;
        const bool given = beta && p.mechanism != LOAM_LINEAR && p.mechanism != LOAM_RETENTION &&
                           p.mechanism != LOAM_GLA;
        m.beta[thread] = thread >= place.tokens ? 0
                         : given ? beta[RECURRENT_AT(a.beta, place.b, place.h, place.first + thread)]
                                 : 1;
    } else if (GATES == TOKEN_GATES && thread < CHUNK_TOKENS + 32) {
        double g[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int row = 2 * lane + n;
            g[n] = row < place.tokens
                       ? fmax((double)*gate_of(p, a, place, row), -1e4) * 1.4426950408889634
                       : 0;
        }
        double sum = g[0] + g[1];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        m.pre[2 * lane] = two_floats(sum - g[1]);
        m.pre[2 * lane + 1] = two_floats(sum);
    }
}

/* A thread of gates of channels has one channel of one block of 16 tokens. */
template <int DIM> static __device__ __forceinline__ int own_channel() { return threadIdx.x % DIM; }
template <int DIM> static __device__ __forceinline__ int own_block() { return threadIdx.x / DIM; }

/* e^g of its tokens; 1 beyond the sequence. All loads are under way together. */
template <int DIM>
static __device__ __forceinline__ void load_decays(float (&decay)[PAIR_BLOCK], const loam_problem &p,
                                                   const loam_args &a, const chunk_place &place)
{
    const float *gates = gate_of(p, a, place, 0) + own_channel<DIM>();
    const int first = own_block<DIM>() * PAIR_BLOCK;
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        decay[i] = gates[min(first + i, place.tokens - 1) * a.log_decay.token];
    }
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        decay[i] = first + i < place.tokens ? exp2_fast(decay[i] * 1.4426950408889634f) : 1;
    }
}

/* Rows decayed within their block of 16 tokens, by products of decays. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void decay_locally(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                     const float (&decay)[PAIR_BLOCK])
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    float start = 1, end = 1;
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int at = swizzled(block * PAIR_BLOCK + i, c);
        start *= decay[i];
        m.in.local[rows + at] = __float2bfloat16_rn(__bfloat162float(m.q[at]) * start);
        if (DELTA) {
            m.in.local[2 * rows + at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * start);
        }
    }
    m.whole[block][c] = start;
#pragma unroll
    for (int i = PAIR_BLOCK - 1; i >= 0; i--) {
        const int at = swizzled(block * PAIR_BLOCK + i, c);
        m.in.local[at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * end);
        end *= decay[i];
    }
}

/* ------------------------------------------------------------------ dr = Linv^T du */

/* The warp's 16 rows of Linv^T, in two parts: pairs (i, j), j from the block of i on. */
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

/* dr in the place of du; each warpgroup some of its columns. */
template <int COLUMNS>
static __device__ __forceinline__ void solve_transposed(__nv_bfloat16 *dr, const weights_operand<2> &inverse)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, first = threadIdx.x / 128 * COLUMNS;
    float out[COLUMNS / 8][4];
    clear(out);
#pragma unroll
    for (int block = 0; block < PAIR_BLOCKS; block++) {
        if (block < warp) {
            continue;
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            uint32_t r[4];
            load_matrices_transposed(
                r, dr + swizzled(block * PAIR_BLOCK + lane % 16, first + 8 * n + lane / 16 * 8));
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
            *(__nv_bfloat162 *)(dr + swizzled(row + half * 8, column + 8 * n)) =
                __floats2bfloat162_rn(out[n][2 * half], out[n][2 * half + 1]);
        }
    }
}

/* ------------------------------------------------------------------ pairs of tokens of a chunk */

/* s: products of do or dr with u -> W, or, erased, -A: what multiplies q and k, times `factor`. Of KEYS, whose rows are keys, -A is
 * times beta of the query. Zero where the key is not before the query, but for W_ii without gates. */
template <int DIM, gate_reach GATES, bool DELTA, bool KEYS>
static __device__ __forceinline__ void weigh_pairs(float (&s)[8][4], gradient_shared<DIM, GATES, DELTA> &m,
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
            if (KEYS && !read) {
                weight *= m.beta[i];
            }
            if (!KEYS && GATES != NO_GATES && read && i == j && tile == 0) {
                m.diagonal[i] = weight;
            }
            if (GATES == TOKEN_GATES) {
                weight *= decay_between(m.pre[i], m.pre[j]);
            }
            s[n][e] = i > j || (GATES == NO_GATES && read && i == j) ? weight : 0;
            if (GATES == CHANNEL_GATES && !KEYS && n / 2 == warp && tile == 0) {
                m.pair[read ? 0 : DELTA][warp][j % PAIR_BLOCK][i % PAIR_BLOCK] = s[n][e];
            }
        }
    }
}

/* x times `factor` of its two rows. */
static __device__ __forceinline__ void scale_rows(float (&x)[8][4], float first, float second)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        x[n][0] *= first, x[n][1] *= first, x[n][2] *= second, x[n][3] *= second;
    }
}

/* x times a number of each channel. */
static __device__ __forceinline__ void scale_channels(float (&x)[8][4], const float *factor)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 f = *(const float2 *)(factor + 8 * n + threadIdx.x % 4 * 2);
        x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
    }
}

/* x += w rows: the warp's 16 rows, 16 rows of the tile from `block` on. */
static __device__ __forceinline__ void add_block(float (&x)[8][4], const uint32_t (&w)[4],
                                                 const __nv_bfloat16 *tile, int block)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t r[4];
        load_matrices_transposed(r, tile + swizzled(block * PAIR_BLOCK + lane % 16, 8 * n + lane / 16 * 8));
        const uint32_t left[2] = { r[0], r[1] }, right[2] = { r[2], r[3] };
        mma_bf16(x[n], w, left);
        mma_bf16(x[n + 1], w, right);
    }
}

/* The warp's rows are queries of one block: x decays over each block before it, from the start of the chunk on, and its keys join.
 * All factors are in [0, 1]. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_earlier(float (&x)[8][4], const uint32_t (&w)[4][4],
                                                   gradient_shared<DIM, CHANNEL_GATES, DELTA> &m, int tile)
{
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = 0; block < PAIR_BLOCKS - 1; block++) {
        if (block < warp) {
            scale_channels(x, m.whole[block] + tile * SIDE);
            add_block(x, w[block], m.in.local + tile * TILE_ELEMENTS, block);
        }
    }
}

/* The warp's rows are keys of one block: sums over the queries of the blocks behind it, from the last one back. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_later(float (&y)[8][4], const uint32_t (&w)[4][4],
                                                 const uint32_t (&erased)[4][4],
                                                 gradient_shared<DIM, CHANNEL_GATES, DELTA> &m, int tile)
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = PAIR_BLOCKS - 1; block > 0; block--) {
        if (block > warp) {
            scale_channels(y, m.whole[block] + tile * SIDE);
            add_block(y, w[block], m.in.local + rows + tile * TILE_ELEMENTS, block);
            if (DELTA) {
                add_block(y, erased[block], m.in.local + 2 * rows + tile * TILE_ELEMENTS, block);
            }
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void store_sum(float *sum, const float (&x)[8][4], int tile)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float *to = sum + row * (DIM + 8) + tile * SIDE + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        *(float2 *)(to + 8 * n) = make_float2(x[n][0], x[n][1]);
        *(float2 *)(to + 8 * (DIM + 8) + 8 * n) = make_float2(x[n][2], x[n][3]);
    }
}

/* d (+)= A B over 16 rows of B: A by rows, both in shared memory. */
static __device__ __forceinline__ void wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_REGISTERS_32
                 "}, %32, %33, p, 1, 1, 0, 1;\n}\n"
                 : WGMMA_32(d)
                 : "l"(a), "l"(b), "r"(add));
}

/* out = rows state: DIM / 64 tiles of 64 rows, 64 columns of a state. Under way until a commit and a wait. */
template <int DIM>
static __device__ __forceinline__ void more_state(float (&out)[8][4], const __nv_bfloat16 *rows,
                                                      const __nv_bfloat16 *state)
{
    const uint32_t a = descriptor_low(rows), b = descriptor_low(state);
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        wgmma_columns(out, descriptor_of(a + (k / SIDE * TILE_ELEMENTS + k % SIDE) / 8),
                      descriptor_of(b + k * SIDE / 8), k > 0);
    }
}

/* The tiles of a warpgroup from the first on. */
template <int DIM, gate_reach GATES> using tile_sums = float[gradient_shape<DIM, GATES>::tiles][8][4];

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void multiply_states(tile_sums<DIM, GATES> &out, const __nv_bfloat16 *rows,
                                                       const __nv_bfloat16 *state, int tile)
{
    products_begin();
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++) {
        more_state<DIM>(out[n], rows, state + (tile + n) * DIM * SIDE);
    }
    products_commit();
    products_wait<0>();
    products_arrived(out);
}

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void scale_sums(tile_sums<DIM, GATES> &x, float first, float second)
{
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++) {
        scale_rows(x[n], first, second);
    }
}

/* s = products of rows with the transposes of others. */
template <int DIM>
static __device__ __forceinline__ void multiply_tokens(float (&s)[8][4], const __nv_bfloat16 *rows,
                                                       const __nv_bfloat16 *others)
{
    multiply_rows<DIM>(s, rows, others, false);
    products_commit();
    products_wait<0>();
    products_arrived(s);
}

/* A warpgroup with queries as rows: out = what do (x) or dr (z) of theirs gives, `factor` times. Where gates have channels, it lacks
 * the decay from the start of the rows' own block of 16 tokens on, and the pairs within that. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_queries(gradient_shared<DIM, GATES, DELTA> &m,
                                                        tile_sums<DIM, GATES> &out, const __nv_bfloat16 *rows,
                                                        float factor, bool read, int tile)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[8][4];
    weights_operand<1> w;
    multiply_tokens<DIM>(s, rows, m.in.u);
    weigh_pairs<DIM, GATES, DELTA, false>(s, m, factor, read, tile);
    split_weights(w, s);
    multiply_states<DIM, GATES>(out, rows, m.in.state, tile);
    if (GATES == TOKEN_GATES) {
        scale_sums<DIM, GATES>(out, factor * exp2_fast(m.pre[row].x), factor * exp2_fast(m.pre[row + 8].x));
    } else {
        scale_sums<DIM, GATES>(out, factor, factor);
    }
    if constexpr (GATES == CHANNEL_GATES) {
        add_earlier<DIM, DELTA>(out[0], w.part[0], m, tile);
    } else {
        multiply_weights<DIM>(out, w.part[0], m.k);
        products_commit();
        products_wait<0>();
        products_arrived(out);
    }
}

/* A warpgroup with keys as rows: y and e, without gates y + e in e. Where gates have channels, both lack the decay to the end of the
 * rows' own block, e also that from there on, and y the pairs within it. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_keys(gradient_shared<DIM, GATES, DELTA> &m,
                                                     tile_sums<DIM, GATES> &y, tile_sums<DIM, GATES> &e,
                                                     float scale, int tile)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[8][4];
    weights_operand<1> w, erased;
    multiply_tokens<DIM>(s, m.in.u, m.in.grad_o);
    weigh_pairs<DIM, GATES, DELTA, true>(s, m, scale, true, tile);
    split_weights(w, s);
    if (DELTA) {
        multiply_tokens<DIM>(s, m.in.u, m.dr);
        weigh_pairs<DIM, GATES, DELTA, true>(s, m, -1, false, tile);
        split_weights(erased, s);
    }
    multiply_states<DIM, GATES>(e, m.in.u, m.in.grad_state, tile);
    if (GATES == TOKEN_GATES) {
        const float2 end = m.pre[CHUNK_TOKENS - 1];
        scale_sums<DIM, GATES>(e, decay_between(end, m.pre[row]), decay_between(end, m.pre[row + 8]));
    }
#pragma unroll
    for (int n = 0; GATES != NO_GATES && n < gradient_shape<DIM, GATES>::tiles; n++) {
        clear(y[n]);
    }
    if constexpr (GATES == CHANNEL_GATES) {
        add_later<DIM, DELTA>(y[0], w.part[0], erased.part[0],
                              m, tile);
    } else {
        tile_sums<DIM, GATES> &sum = GATES == NO_GATES ? e : y;
        multiply_weights<DIM>(sum, w.part[0], m.q);
        if (DELTA) {
            more_weights<DIM>(sum, erased.part[0], m.k);
        }
        products_commit();
        products_wait<0>();
        products_arrived(sum);
    }
}

template <int DIM, gate_reach GATES>
static __device__ __forceinline__ void store_sums(float *sum, const tile_sums<DIM, GATES> &x, int tile)
{
#pragma unroll
    for (int n = 0; n < gradient_shape<DIM, GATES>::tiles; n++) {
        store_sum<DIM>(sum, x[n], tile + n);
    }
}

/* The sums of all warpgroups to where the operands were. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_chunk(gradient_shared<DIM, GATES, DELTA> &m, float scale)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    typedef gradient_shape<DIM, GATES> of;
    /* known to be the same for a whole warp: products of matrices in a branch that might part it would wait for each other */
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), tile = group % of::sharers * of::tiles;
    tile_sums<DIM, GATES> first, second;
    if (group < of::sharers) {
        multiply_queries(m, first, m.in.grad_o, scale, true, tile);
        if (DELTA) {
            multiply_queries(m, second, m.dr, -1, false, tile);
        }
        __syncthreads();
        store_sums<DIM, GATES>(m.sum[shared::x], first, tile);
        if (DELTA) {
            store_sums<DIM, GATES>(m.sum[shared::z], second, tile);
        }
    } else {
        multiply_keys(m, first, second, scale, tile);
        __syncthreads();
        store_sums<DIM, GATES>(m.sum[shared::y], GATES == NO_GATES ? second : first, tile);
        if (GATES != NO_GATES) {
            store_sums<DIM, GATES>(m.sum[shared::e], second, tile);
        }
    }
}

/* Parts of sum_r S_r dS_r of each channel; a thread has two channels of some rows. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void dot_states(gradient_shared<DIM, GATES, DELTA> &m)
{
    const int c = threadIdx.x % (DIM / 2) * 2, part = threadIdx.x / (DIM / 2);
    if (part >= STATE_PARTS) {
        return;
    }
    float2 sum = { 0, 0 };
#pragma unroll 8
    for (int r = part; r < DIM; r += STATE_PARTS) {
        const int at = swizzled_state<DIM>(r, c);
        const float2 s = __bfloat1622float2(*(const __nv_bfloat162 *)(m.in.state + at));
        const float2 ds = __bfloat1622float2(*(const __nv_bfloat162 *)(m.in.grad_state + at));
        sum.x += s.x * ds.x, sum.y += s.y * ds.y;
    }
    *(float2 *)&m.state_dot[part][c] = sum;
}

/* ------------------------------------------------------------------ gates of channels: pairs within blocks of 16 tokens */

/* Completes the sums of a block in one channel, and leaves in e what the block itself adds to the gradients of its gates. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_block(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                    const loam_problem &p, const loam_args &a,
                                                    const chunk_place &place)
{
    const int block = own_block<DIM>(), c = own_channel<DIM>();
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    float decay[PAIR_BLOCK], q[PAIR_BLOCK], k[PAIR_BLOCK], x[PAIR_BLOCK], y[PAIR_BLOCK], z[PAIR_BLOCK];
    load_decays<DIM>(decay, p, a, place);
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int row = block * PAIR_BLOCK + i, at = swizzled(row, c);
        q[i] = __bfloat162float(m.q[at]), k[i] = __bfloat162float(m.k[at]);
        x[i] = z[i] = 0;
    }
#pragma unroll
    for (int j = 0; j < PAIR_BLOCK; j++) {
        float w[PAIR_BLOCK], erased[PAIR_BLOCK];
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < PAIR_BLOCK; i += 4) {
            const float4 four = *(const float4 *)&m.pair[0][block][j][i];
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
            if (DELTA) {
                const float4 taken = *(const float4 *)&m.pair[DELTA][block][j][i];
                erased[i] = taken.x, erased[i + 1] = taken.y, erased[i + 2] = taken.z, erased[i + 3] = taken.w;
            }
        }
        float key = k[j];
#pragma unroll
        for (int i = j + 1; i < PAIR_BLOCK; i++) {
            key *= decay[i];
            x[i] += w[i] * key;
            if (DELTA) {
                z[i] += erased[i] * key;
            }
        }
        float sum = 0;
#pragma unroll
        for (int i = PAIR_BLOCK - 1; i > j; i--) {
            sum += w[i] * q[i];
            if (DELTA) {
                sum += erased[i] * (m.beta[block * PAIR_BLOCK + i] * k[i]);
            }
            sum *= decay[i];
        }
        y[j] = sum;
    }
    float from_start = 1, to_end = 1, beyond = 1, after = 0, before = 0;
    for (int later = block + 1; later < PAIR_BLOCKS; later++) {
        beyond *= m.whole[later][c];
    }
    float rest[PAIR_BLOCK];
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int row = block * PAIR_BLOCK + i, at = row * shared::pitch + c;
        from_start *= decay[i];
        x[i] += from_start * m.sum[shared::x][at];
        m.sum[shared::x][at] = x[i];
        rest[i] = q[i] * x[i];
        if (DELTA) {
            z[i] += from_start * m.sum[shared::z][at];
            m.sum[shared::z][at] = z[i];
            rest[i] += m.beta[row] * k[i] * z[i];
        }
    }
#pragma unroll
    for (int i = PAIR_BLOCK - 1; i >= 0; i--) {
        const int at = (block * PAIR_BLOCK + i) * shared::pitch + c;
        const float out = to_end * beyond * m.sum[shared::e][at];
        y[i] += to_end * m.sum[shared::y][at];
        m.sum[shared::y][at] = y[i] + out;
        after += rest[i] - k[i] * y[i];
        rest[i] = after;
        z[i] = k[i] * out;
        to_end *= decay[i];
    }
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        m.sum[shared::e][(block * PAIR_BLOCK + i) * shared::pitch + c] = rest[i] + before;
        before += z[i];
    }
    m.after[block][c] = after;
    m.before[block][c] = before;
}

template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_channels(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                       const loam_problem &p, const loam_args &a,
                                                       const chunk_place &place)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    finish_block<DIM, DELTA>(m, p, a, place);
    __syncthreads();
    if (!a.grad_log_decay.data) {
        return;
    }
    float others = 0;
#pragma unroll
    for (int part = 0; part < STATE_PARTS; part++) {
        others += m.state_dot[part][c];
    }
#pragma unroll
    for (int each = 0; each < PAIR_BLOCKS; each++) {
        others *= m.whole[each][c];
    }
#pragma unroll
    for (int other = 0; other < PAIR_BLOCKS; other++) {
        others += other < block ? m.before[other][c] : other > block ? m.after[other][c] : 0;
    }
    float *to = (float *)a.grad_log_decay.data +
                RECURRENT_AT(a.grad_log_decay, place.b, place.h, place.first + block * PAIR_BLOCK) + c;
    const int tokens = min(place.tokens - block * PAIR_BLOCK, (int)PAIR_BLOCK);
#pragma unroll 4
    for (int i = 0; i < tokens; i++) {
        to[i * a.grad_log_decay.token] = m.sum[shared::e][(block * PAIR_BLOCK + i) * shared::pitch + c] + others;
    }
}

/* ------------------------------------------------------------------ rows */

static __device__ __forceinline__ void unpack_8(float (&x)[8], const uint4 &bits)
{
    const uint32_t pair[4] = { bits.x, bits.y, bits.z, bits.w };
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[2 * n] = __uint_as_float(pair[n] << 16);
        x[2 * n + 1] = __uint_as_float(pair[n] & 0xffff0000u);
    }
}

static __device__ __forceinline__ void load_8(float (&x)[8], const __nv_bfloat16 *from)
{
    unpack_8(x, *(const uint4 *)from);
}

static __device__ __forceinline__ void load_8(float (&x)[8], const float *from)
{
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

static __device__ __forceinline__ void store_8(__nv_bfloat16 *to, const float (&x)[8])
{
    uint32_t pair[4][1];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        split_pair(pair[n], x[2 * n], x[2 * n + 1]);
    }
    *(uint4 *)to = make_uint4(pair[0][0], pair[1][0], pair[2][0], pair[3][0]);
}

static __device__ __forceinline__ float dot_8(const float (&x)[8], const float (&y)[8])
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        sum += x[n] * y[n];
    }
    return sum;
}

/* Over LANES lanes in a row. */
template <int LANES> static __device__ __forceinline__ float lane_sum(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

/* The gradient dx of features x becomes that of the row `given` that they were made of. LANES lanes share the row. */
template <int LANES>
static __device__ __forceinline__ void chain_features(const loam_problem &p, float (&dx)[8],
                                                      const float (&x)[8], const uint4 &given)
{
    if (p.feature_map == LOAM_FEATURES_ELU) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dx[n] *= fminf(x[n], 1);
        }
    } else if (p.feature_map == LOAM_FEATURES_UNIT) {
        float raw[8];
        unpack_8(raw, given);
        const float along = lane_sum<LANES>(dot_8(x, dx)), square = lane_sum<LANES>(dot_8(raw, raw));
        const float inverse = square > 0 ? rsqrtf(square) : 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dx[n] = (dx[n] - along * x[n]) * inverse;
        }
    }
}

/* What rows need from global memory and where they go; a thread has 8 channels of every step-th row. */
template <int DIM, int THREADS> struct row_pieces {
    enum { lanes = DIM / 8, step = THREADS / lanes, count = CHUNK_TOKENS / step };
    uint4 piece[count];
};

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_pieces(row_pieces<DIM, THREADS> &x, bool wanted, const chunk_source &s,
                                                   const chunk_place &place)
{
    typedef row_pieces<DIM, THREADS> of;
    const chunk_rows rows = rows_of<DIM>(s, place);
    const int c = threadIdx.x % of::lanes * 8;
#pragma unroll
    for (int n = 0; n < of::count; n++) {
        const int r = threadIdx.x / of::lanes + n * of::step;
        x.piece[n] = wanted && r < place.tokens ? *(const uint4 *)(rows.first + r * rows.stride + c)
                                                : make_uint4(0, 0, 0, 0);
    }
}

/* Rows of a gradient; NULL where it is not wanted. */
struct rows_out {
    __nv_bfloat16 *first;
    int64_t stride;
};

static __device__ __forceinline__ rows_out rows_to(const loam_view &view, const chunk_place &place, int64_t h)
{
    return { view.data ? (__nv_bfloat16 *)view.data + RECURRENT_AT(view, place.b, h, place.first) : NULL,
             view.token };
}

/* Where value heads have yet to be summed, the slot. */
template <int DIM>
static __device__ __forceinline__ rows_out rows_to(const loam_view &view, __nv_bfloat16 *by_slot,
                                                   const chunk_place &place)
{
    if (by_slot) {
        return { by_slot + place.slot * CHUNK_TOKENS * DIM, DIM };
    }
    return rows_to(view, place, place.h);
}

static __device__ __forceinline__ void put_row(const rows_out &to, int r, int c, bool real, const float (&x)[8])
{
    if (real && to.first) {
        store_8(to.first + r * to.stride + c, x);
    }
}

template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void finish_rows(gradient_shared<DIM, GATES, DELTA> &m, const loam_problem &p,
                                                   const loam_args &a, const recurrent_chunks &chunks,
                                                   const chunk_place &place)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    typedef row_pieces<DIM, gradient_shape<DIM, GATES>::threads> of;
    const int c = threadIdx.x % of::lanes * 8;
    const bool strengths = a.grad_beta.data, chained = !chunks.grad_q,
               norms = chained && p.feature_map == LOAM_FEATURES_UNIT;
    of du, v, q_given, k_given;
    if (!DELTA) {
        load_pieces(du, true, { chunks.du, 0, 0, 0, 1, true }, place);
    }
    load_pieces(v, strengths, chunks.v, place);
    load_pieces(q_given, norms, chunks.q_given, place);
    load_pieces(k_given, norms, chunks.k_given, place);
    const rows_out to_q = rows_to<DIM>(a.grad_q, chunks.grad_q, place),
                   to_k = rows_to<DIM>(a.grad_k, chunks.grad_k, place), to_v = rows_to(a.grad_v, place, place.h);
#pragma unroll
    for (int piece = 0; piece < of::count; piece++) {
        const int r = threadIdx.x / of::lanes + piece * of::step;
        const bool real = r < place.tokens;
        const float beta = m.beta[r], diagonal = GATES == NO_GATES ? 0 : m.diagonal[r];
        float q[8], k[8], dq[8], dk[8], z[8], dr[8], row = 0, out = 0, erased = 0;
        load_8(q, m.q + swizzled(r, c));
        load_8(k, m.k + swizzled(r, c));
        load_8(dq, m.sum[shared::x] + r * shared::pitch + c);
        load_8(dk, m.sum[shared::y] + r * shared::pitch + c);
        if (DELTA) {
            load_8(z, m.sum[shared::z] + r * shared::pitch + c);
            load_8(dr, m.dr + swizzled(r, c));
            erased = lane_sum<of::lanes>(dot_8(k, z));
        } else {
            unpack_8(dr, du.piece[piece]);
        }
        if (GATES == TOKEN_GATES) {
            float e[8];
            load_8(e, m.sum[shared::e] + r * shared::pitch + c);
            row = lane_sum<of::lanes>(dot_8(q, dq) - dot_8(k, dk)) + beta * erased;
            out = lane_sum<of::lanes>(dot_8(k, e));
#pragma unroll
            for (int n = 0; n < 8; n++) {
                dk[n] += e[n];
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dq[n] += diagonal * k[n];
            dk[n] += diagonal * q[n] + (DELTA ? beta * z[n] : 0);
        }
        const float along = lane_sum<of::lanes>(dot_8(q, dq));
        float strength = erased;
        if (strengths) {
            float value[8];
            unpack_8(value, v.piece[piece]);
            strength += lane_sum<of::lanes>(dot_8(dr, value));
        }
        if (threadIdx.x % of::lanes == 0) {
            m.row_dot[r] = row, m.out_dot[r] = out, m.scale_dot[r] = along;
            if (real && strengths) {
                ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, place.b, place.h, place.first + r)] =
                    strength;
            }
        }
        if (chained) {
            chain_features<of::lanes>(p, dq, q, q_given.piece[piece]);
            chain_features<of::lanes>(p, dk, k, k_given.piece[piece]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dr[n] *= beta;
        }
        put_row(to_q, r, c, real, dq);
        put_row(to_k, r, c, real, dk);
        put_row(to_v, r, c, real, dr);
    }
}

/* One warp: gradients of the gates of tokens, two a lane, from the dots of their rows. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_gates(gradient_shared<DIM, TOKEN_GATES, DELTA> &m,
                                                    const loam_problem &p, const loam_args &a,
                                                    const recurrent_chunks &chunks, const chunk_place &place)
{
    const int lane = threadIdx.x % 32;
    float whole = 0;
    for (int n = lane; n < STATE_PARTS * DIM; n += 32) {
        whole += m.state_dot[0][n];
    }
    whole = lane_sum<32>(whole) * exp2_fast(m.pre[CHUNK_TOKENS - 1].x);
    const float2 row = *(const float2 *)&m.row_dot[2 * lane], out = *(const float2 *)&m.out_dot[2 * lane];
    float after = row.x + row.y, before = out.x + out.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float later = __shfl_down_sync(0xffffffffu, after, step),
                    earlier = __shfl_up_sync(0xffffffffu, before, step);
        after += lane + step < 32 ? later : 0;
        before += lane >= step ? earlier : 0;
    }
    /* sums over i >= t and over j < t, of the lane's two tokens t; none is found by taking away */
    const float beyond = __shfl_down_sync(0xffffffffu, after, 1), so_far = __shfl_up_sync(0xffffffffu, before, 1);
    const float rest = lane < 31 ? beyond : 0, start = lane > 0 ? so_far : 0;
    const float gate[2] = { rest + (row.x + row.y) + start + whole, rest + row.y + (start + out.x) + whole };
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (2 * lane + n < place.tokens) {
            sum += gate[n];
            if (p.mechanism != LOAM_RETENTION && a.grad_log_decay.data) {
                ((float *)a.grad_log_decay.data)[RECURRENT_AT(a.grad_log_decay, place.b, place.h,
                                                              place.first + 2 * lane + n)] = gate[n];
            }
        }
    }
    sum = lane_sum<32>(sum);
    if (lane == 0 && chunks.grad_decay) {
        chunks.grad_decay[place.slot] = sum;
    }
}

/* ------------------------------------------------------------------ the kernel: block n = slot n */

template <int DIM, gate_reach GATES, bool DELTA>
static __global__ void __launch_bounds__(gradient_shape<DIM, GATES>::threads, gradient_shape<DIM, GATES>::blocks)
    gradient_kernel_sm90(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    gradient_shared<DIM, GATES, DELTA> &m = *(gradient_shared<DIM, GATES, DELTA> *)memory;
    const chunk_place place = chunk_of_slot(p, a, chunks, blockIdx.x);
    constexpr int threads = gradient_shape<DIM, GATES>::threads;
    const int thread = threadIdx.x;
    if (place.tokens == 0) {
        if (thread == 0) {
            chunks.grad_scale[blockIdx.x] = 0;
            if (chunks.grad_decay) {
                chunks.grad_decay[blockIdx.x] = 0;
            }
        }
        return;
    }
    load_source<DIM, threads>(m.in.grad_o, chunks.grad_o, place);
    load_source<DIM, threads>(m.in.u, chunks.u, place);
    if (DELTA) {
        load_source<DIM, threads>(m.dr, { chunks.du, 0, 0, 0, 1, true }, place);
        copy_async_commit();
    }
    load_source<DIM, threads>(m.q, chunks.q, place);
    load_source<DIM, threads>(m.k, chunks.k, place);
    load_state<DIM, threads>(m.in.state, chunks.states + place.slot * DIM * DIM);
    load_state<DIM, threads>(m.in.grad_state, chunks.grad_states + place.slot * DIM * DIM);
    copy_async_commit();
    if (thread == 0) {
        m.place = place;
    }
    load_numbers(m, p, a, place);
    float decay[PAIR_BLOCK];
    if (GATES == CHANNEL_GATES) {
        load_decays<DIM>(decay, p, a, place);
    }
    if (DELTA) {
        weights_operand<2> inverse;
        load_inverse(inverse, chunks.inverse + place.slot * CHUNK_TOKENS * CHUNK_TOKENS);
        copy_async_wait<1>();
        __syncthreads();
        solve_transposed<DIM / (threads / 128)>(m.dr, inverse);
    }
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    if constexpr (GATES == CHANNEL_GATES) {
        decay_locally(m, decay);
        __syncthreads();
    }
    if (GATES != NO_GATES) {
        dot_states(m);
    }
    multiply_chunk(m, (float)p.scale);
    __syncthreads();
    if constexpr (GATES == CHANNEL_GATES) {
        finish_channels(m, p, a, m.place);
        __syncthreads();
    }
    finish_rows(m, p, a, chunks, m.place);
    __syncthreads();
    if constexpr (GATES == TOKEN_GATES) {
        if (thread < 32) {
            finish_gates(m, p, a, chunks, m.place);
        }
    }
    if (thread >= 32 && thread < 64) {
        const float sum = lane_sum<32>(m.scale_dot[thread - 32] + m.scale_dot[thread]);
        if (thread == 32) {
            chunks.grad_scale[m.place.slot] = sum;
        }
    }
}

#endif
