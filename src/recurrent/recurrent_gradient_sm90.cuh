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

enum { GRADIENT_THREADS = 256, PAIR_BLOCK = 16, PAIR_BLOCKS = CHUNK_TOKENS / PAIR_BLOCK };

template <int DIM, gate_reach GATES, bool DELTA> struct gradient_shared {
    enum {
        rows = CHUNK_TOKENS * DIM,
        state_size = DIM * DIM,
        local_rows = GATES == CHANNEL_GATES ? 2 + DELTA : 0,
        pitch = DIM + 8, /* so that rows of a warp's products lie in different banks */
        sums = 2 + (GATES != NO_GATES) + DELTA,
        blocks = GATES == CHANNEL_GATES ? PAIR_BLOCKS : 1,
        parts = GRADIENT_THREADS / (DIM / 2)
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
    double pre[CHUNK_TOKENS];        /* base 2 */
    float whole[blocks][DIM];        /* decay of each block of 16 tokens */
    float state_dot[parts][DIM];     /* parts of sum_r S_r dS_r */
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

template <int DIM>
static __device__ __forceinline__ void load_state(__nv_bfloat16 *tiles, const __nv_bfloat16 *state)
{
#pragma unroll 4
    for (int e = threadIdx.x; e < DIM * (DIM / 8); e += GRADIENT_THREADS) {
        const int r = e / (DIM / 8), c = e % (DIM / 8) * 8;
        copy_async_16(tiles + swizzled_state<DIM>(r, c), state + r * DIM + c);
    }
}

/* ------------------------------------------------------------------ decays */

static __device__ __forceinline__ const float *gate_of(const loam_problem &p, const loam_args &a,
                                                       const chunk_place &place, int row)
{
    const float *data = (const float *)a.log_decay.data;
    return p.mechanism == LOAM_RETENTION
               ? data + place.h * a.log_decay.head
               : data + RECURRENT_AT(a.log_decay, place.b, place.h, place.first + row);
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
        m.pre[2 * lane] = sum - g[1];
        m.pre[2 * lane + 1] = sum;
    }
}

/* e^g of channel c; 1 beyond the sequence. */
static __device__ __forceinline__ float decay_of(const loam_problem &p, const loam_args &a,
                                                 const chunk_place &place, int row, int c)
{
    return row < place.tokens ? exp2_fast(gate_of(p, a, place, row)[c] * 1.4426950408889634f) : 1;
}

/* Rows decayed within their block of 16 tokens, by products of decays. A thread has one channel of some blocks. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void decay_locally(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                     const loam_problem &p, const loam_args &a,
                                                     const chunk_place &place)
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int c = threadIdx.x % DIM;
    for (int block = threadIdx.x / DIM; block < PAIR_BLOCKS; block += GRADIENT_THREADS / DIM) {
        float decay[PAIR_BLOCK];
#pragma unroll
        for (int i = 0; i < PAIR_BLOCK; i++) {
            decay[i] = decay_of(p, a, place, block * PAIR_BLOCK + i, c);
        }
        float from_start = 1, to_end = 1;
#pragma unroll
        for (int i = 0; i < PAIR_BLOCK; i++) {
            const int at = swizzled(block * PAIR_BLOCK + i, c);
            from_start *= decay[i];
            m.in.local[rows + at] = __float2bfloat16_rn(__bfloat162float(m.q[at]) * from_start);
            if (DELTA) {
                m.in.local[2 * rows + at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * from_start);
            }
        }
        m.whole[block][c] = from_start;
#pragma unroll
        for (int i = PAIR_BLOCK - 1; i >= 0; i--) {
            const int at = swizzled(block * PAIR_BLOCK + i, c);
            m.in.local[at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * to_end);
            to_end *= decay[i];
        }
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

/* dr in the place of du; each warpgroup half of its columns. */
template <int DIM>
static __device__ __forceinline__ void solve_transposed(__nv_bfloat16 *dr, const weights_operand<2> &inverse)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, first = threadIdx.x / 128 * (DIM / 2);
    float out[DIM / 16][4];
    clear(out);
#pragma unroll
    for (int block = 0; block < PAIR_BLOCKS; block++) {
        if (block < warp) {
            continue;
        }
#pragma unroll
        for (int n = 0; n < DIM / 16; n += 2) {
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
    for (int n = 0; n < DIM / 16; n++) {
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
                                                   float factor, bool read)
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
            if (!KEYS && GATES != NO_GATES && read && i == j) {
                m.diagonal[i] = weight;
            }
            if (GATES == TOKEN_GATES) {
                weight *= exp2_fast((float)(m.pre[i] - m.pre[j]));
            }
            s[n][e] = i > j || (GATES == NO_GATES && read && i == j) ? weight : 0;
            if (GATES == CHANNEL_GATES && !KEYS && n / 2 == warp) {
                m.pair[read ? 0 : DELTA][warp][j % PAIR_BLOCK][i % PAIR_BLOCK] = s[n][e];
            }
        }
    }
}

/* x times `factor` of its two rows. */
template <int TILES>
static __device__ __forceinline__ void scale_rows(float (&x)[TILES][8][4], float first, float second)
{
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            x[m][n][0] *= first, x[m][n][1] *= first, x[m][n][2] *= second, x[m][n][3] *= second;
        }
    }
}

template <int TILES>
static __device__ __forceinline__ void add_rows(float (&x)[TILES][8][4], const float (&y)[TILES][8][4])
{
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[m][n][e] += y[m][n][e];
            }
        }
    }
}

/* x times a number of each channel. */
template <int TILES>
static __device__ __forceinline__ void scale_channels(float (&x)[TILES][8][4], const float *factor)
{
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f = *(const float2 *)(factor + m * SIDE + 8 * n + threadIdx.x % 4 * 2);
            x[m][n][0] *= f.x, x[m][n][1] *= f.y, x[m][n][2] *= f.x, x[m][n][3] *= f.y;
        }
    }
}

/* x += w rows: the warp's 16 rows, 16 rows of the tiles from `block` on. */
template <int TILES>
static __device__ __forceinline__ void add_block(float (&x)[TILES][8][4], const uint32_t (&w)[4],
                                                 const __nv_bfloat16 *tiles, int block)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t r[4];
            load_matrices_transposed(
                r, tiles + swizzled(block * PAIR_BLOCK + lane % 16, m * SIDE + 8 * n + lane / 16 * 8));
            const uint32_t left[2] = { r[0], r[1] }, right[2] = { r[2], r[3] };
            mma_bf16(x[m][n], w, left);
            mma_bf16(x[m][n + 1], w, right);
        }
    }
}

/* The warp's rows are queries of one block: x decays over each block before it, from the start of the chunk on, and its keys join.
 * All factors are in [0, 1]. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_earlier(float (&x)[DIM / SIDE][8][4], const uint32_t (&w)[4][4],
                                                   gradient_shared<DIM, CHANNEL_GATES, DELTA> &m)
{
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = 0; block < PAIR_BLOCKS - 1; block++) {
        if (block < warp) {
            scale_channels(x, m.whole[block]);
            add_block(x, w[block], m.in.local, block);
        }
    }
}

/* The warp's rows are keys of one block: sums over the queries of the blocks behind it, from the last one back. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_later(float (&y)[DIM / SIDE][8][4], const uint32_t (&w)[4][4],
                                                 const uint32_t (&erased)[4][4],
                                                 gradient_shared<DIM, CHANNEL_GATES, DELTA> &m)
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int block = PAIR_BLOCKS - 1; block > 0; block--) {
        if (block > warp) {
            scale_channels(y, m.whole[block]);
            add_block(y, w[block], m.in.local + rows, block);
            if (DELTA) {
                add_block(y, erased[block], m.in.local + 2 * rows, block);
            }
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void store_sum(float *sum, const float (&x)[DIM / SIDE][8][4])
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float *to = sum + row * (DIM + 8) + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < DIM / SIDE; m++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            *(float2 *)(to + m * SIDE + 8 * n) = make_float2(x[m][n][0], x[m][n][1]);
            *(float2 *)(to + 8 * (DIM + 8) + m * SIDE + 8 * n) = make_float2(x[m][n][2], x[m][n][3]);
        }
    }
}

/* A warpgroup with queries as rows: out = what do (x) or dr (z) of theirs gives, `factor` times. Where gates have channels, it lacks
 * the decay from the start of the rows' own block of 16 tokens on, and the pairs within that. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_queries(gradient_shared<DIM, GATES, DELTA> &m,
                                                        float (&out)[DIM / SIDE][8][4], const __nv_bfloat16 *own,
                                                        float factor, bool diagonal)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[8][4];
    uint32_t rows[DIM / 16][4];
    load_rows<DIM>(rows, own);
#pragma unroll
    for (int n = 0; n < DIM / SIDE; n++) {
        clear(out[n]);
    }
    multiply_rows<DIM>(s, rows, m.in.u, false);
    products_commit();
    multiply_weights<DIM>(out, rows, m.in.state);
    products_commit();
    products_wait<1>();
    products_arrived(s);
    weigh_pairs<DIM, GATES, DELTA, false>(s, m, factor, diagonal);
    weights_operand<1> w;
    split_weights(w, s);
    products_wait<0>();
    products_arrived(out);
    if (GATES == TOKEN_GATES) {
        scale_rows(out, factor * exp2_fast((float)m.pre[row]), factor * exp2_fast((float)m.pre[row + 8]));
    } else {
        scale_rows(out, factor, factor);
    }
    if (GATES == CHANNEL_GATES) {
        add_earlier<DIM, DELTA>(out, w.part[0], (gradient_shared<DIM, CHANNEL_GATES, DELTA> &)m);
    } else {
        multiply_weights<DIM>(out, w.part[0], m.k);
        products_commit();
        products_wait<0>();
        products_arrived(out);
    }
}

/* A warpgroup with keys as rows: y and e, without gates y + e in y. Where gates have channels, both lack the decay to the end of the
 * rows' own block, e also that from there on, and y the pairs within it. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_keys(gradient_shared<DIM, GATES, DELTA> &m,
                                                     float (&y)[DIM / SIDE][8][4], float (&e)[DIM / SIDE][8][4],
                                                     float scale)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[8][4];
    uint32_t rows[DIM / 16][4];
    weights_operand<1> w, erased;
    load_rows<DIM>(rows, m.in.u);
#pragma unroll
    for (int n = 0; n < DIM / SIDE; n++) {
        clear(y[n]);
        clear(e[n]);
    }
    multiply_rows<DIM>(s, rows, m.in.grad_o, false);
    products_commit();
    products_wait<0>();
    products_arrived(s);
    weigh_pairs<DIM, GATES, DELTA, true>(s, m, scale, true);
    split_weights(w, s);
    if (GATES != CHANNEL_GATES) {
        multiply_weights<DIM>(y, w.part[0], m.q);
        products_commit();
    }
    if (DELTA) {
        multiply_rows<DIM>(s, rows, m.dr, false);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        weigh_pairs<DIM, GATES, DELTA, true>(s, m, -1, false);
        split_weights(erased, s);
        if (GATES != CHANNEL_GATES) {
            multiply_weights<DIM>(y, erased.part[0], m.k);
            products_commit();
        }
    }
    multiply_weights<DIM>(GATES == NO_GATES ? y : e, rows, m.in.grad_state);
    products_commit();
    if (GATES == CHANNEL_GATES) {
        add_later<DIM, DELTA>(y, w.part[0], erased.part[0], (gradient_shared<DIM, CHANNEL_GATES, DELTA> &)m);
    }
    products_wait<0>();
    products_arrived(y);
    products_arrived(e);
    if (GATES == TOKEN_GATES) {
        const double end = m.pre[CHUNK_TOKENS - 1];
        scale_rows(e, exp2_fast((float)(end - m.pre[row])), exp2_fast((float)(end - m.pre[row + 8])));
    }
}

/* The sums of both warpgroups, each first before second, to where the operands were. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_chunk(gradient_shared<DIM, GATES, DELTA> &m, float scale)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    float first[DIM / SIDE][8][4], second[DIM / SIDE][8][4];
    /* known to be the same for a whole warp: products of matrices in a branch that might part it would wait for each other */
    if (__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) == 0) {
        multiply_queries(m, first, m.in.grad_o, scale, true);
        if (DELTA) {
            multiply_queries(m, second, m.dr, -1, false);
        }
        __syncthreads();
        store_sum<DIM>(m.sum[shared::x], first);
        if (DELTA) {
            store_sum<DIM>(m.sum[shared::z], second);
        }
    } else {
        multiply_keys(m, first, second, scale);
        __syncthreads();
        store_sum<DIM>(m.sum[shared::y], first);
        if (GATES != NO_GATES) {
            store_sum<DIM>(m.sum[shared::e], second);
        }
    }
}

/* Parts of sum_r S_r dS_r of each channel; a thread has two channels of some rows. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void multiply_states(gradient_shared<DIM, GATES, DELTA> &m)
{
    constexpr int parts = gradient_shared<DIM, GATES, DELTA>::parts;
    const int c = threadIdx.x % (DIM / 2) * 2, part = threadIdx.x / (DIM / 2);
    float2 sum = { 0, 0 };
#pragma unroll 8
    for (int r = part; r < DIM; r += parts) {
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
                                                    const chunk_place &place, int block, int c)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    float decay[PAIR_BLOCK], q[PAIR_BLOCK], k[PAIR_BLOCK], x[PAIR_BLOCK], y[PAIR_BLOCK], z[PAIR_BLOCK];
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int row = block * PAIR_BLOCK + i, at = swizzled(row, c);
        decay[i] = decay_of(p, a, place, row, c);
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
    const int c = threadIdx.x % DIM;
    for (int block = threadIdx.x / DIM; block < PAIR_BLOCKS; block += GRADIENT_THREADS / DIM) {
        finish_block<DIM, DELTA>(m, p, a, place, block, c);
    }
    __syncthreads();
    if (!a.grad_log_decay.data) {
        return;
    }
    float whole = 0;
#pragma unroll
    for (int part = 0; part < shared::parts; part++) {
        whole += m.state_dot[part][c];
    }
#pragma unroll
    for (int block = 0; block < PAIR_BLOCKS; block++) {
        whole *= m.whole[block][c];
    }
    for (int block = threadIdx.x / DIM; block < PAIR_BLOCKS; block += GRADIENT_THREADS / DIM) {
        float others = whole;
#pragma unroll
        for (int other = 0; other < PAIR_BLOCKS; other++) {
            others += other < block ? m.before[other][c] : other > block ? m.after[other][c] : 0;
        }
        float *to = (float *)a.grad_log_decay.data + c;
        for (int i = block * PAIR_BLOCK; i < (block + 1) * PAIR_BLOCK && i < place.tokens; i++) {
            to[RECURRENT_AT(a.grad_log_decay, place.b, place.h, place.first + i)] =
                m.sum[shared::e][i * shared::pitch + c] + others;
        }
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

/* The gradient dx of features x becomes that of the row that they were made of, `given`. LANES lanes share the row. */
template <int LANES>
static __device__ __forceinline__ void chain_features(const loam_problem &p, float (&dx)[8],
                                                      const float (&x)[8], const __nv_bfloat16 *given)
{
    if (p.feature_map == LOAM_FEATURES_ELU) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dx[n] *= fminf(x[n], 1);
        }
    } else if (p.feature_map == LOAM_FEATURES_UNIT) {
        float raw[8];
        load_8(raw, given);
        const float along = lane_sum<LANES>(dot_8(x, dx)), square = lane_sum<LANES>(dot_8(raw, raw));
        const float inverse = square > 0 ? rsqrtf(square) : 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dx[n] = (dx[n] - along * x[n]) * inverse;
        }
    }
}

/* Row r of the gradient of q or k: to the argument, or to the slot where value heads have yet to be summed. */
template <int DIM>
static __device__ __forceinline__ void put_row(const loam_problem &p, const loam_view &view,
                                               __nv_bfloat16 *by_slot, const chunk_source &given,
                                               const chunk_place &place, int r, int c, float (&dx)[8],
                                               const float (&x)[8])
{
    if (by_slot) {
        store_8(by_slot + (place.slot * CHUNK_TOKENS + r) * DIM + c, dx);
        return;
    }
    const bool real = r < place.tokens;
    chain_features<DIM / 8>(p, dx, x, chunk_row<DIM>(given, place, real ? r : 0) + c);
    if (real && view.data) {
        store_8((__nv_bfloat16 *)view.data + RECURRENT_AT(view, place.b, place.h, place.first + r) + c, dx);
    }
}

template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void finish_rows(gradient_shared<DIM, GATES, DELTA> &m, const loam_problem &p,
                                                   const loam_args &a, const recurrent_chunks &chunks,
                                                   const chunk_place &place)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    constexpr int lanes = DIM / 8;
    const int c = threadIdx.x % lanes * 8;
#pragma unroll 2
    for (int r = threadIdx.x / lanes; r < CHUNK_TOKENS; r += GRADIENT_THREADS / lanes) {
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
            erased = lane_sum<lanes>(dot_8(k, z));
        } else {
            load_8(dr, chunks.du + (place.slot * CHUNK_TOKENS + r) * DIM + c);
        }
        if (GATES == TOKEN_GATES) {
            float e[8];
            load_8(e, m.sum[shared::e] + r * shared::pitch + c);
            row = lane_sum<lanes>(dot_8(q, dq) - dot_8(k, dk)) + beta * erased;
            out = lane_sum<lanes>(dot_8(k, e));
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
        const float along = lane_sum<lanes>(dot_8(q, dq));
        float strength = erased;
        if (a.grad_beta.data) {
            float v[8];
            load_8(v, chunk_row<DIM>(chunks.v, place, real ? r : 0) + c);
            strength += lane_sum<lanes>(dot_8(dr, v));
        }
        if (threadIdx.x % lanes == 0) {
            m.row_dot[r] = row, m.out_dot[r] = out, m.scale_dot[r] = along;
            if (real && a.grad_beta.data) {
                ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, place.b, place.h, place.first + r)] =
                    strength;
            }
        }
        put_row<DIM>(p, a.grad_q, chunks.grad_q, chunks.q_given, place, r, c, dq, q);
        put_row<DIM>(p, a.grad_k, chunks.grad_k, chunks.k_given, place, r, c, dk, k);
        if (real && a.grad_v.data) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                dr[n] *= beta;
            }
            store_8((__nv_bfloat16 *)a.grad_v.data +
                        RECURRENT_AT(a.grad_v, place.b, place.h, place.first + r) + c,
                    dr);
        }
    }
}

/* One warp: gradients of the gates of tokens, two a lane, from the dots of their rows. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_gates(gradient_shared<DIM, TOKEN_GATES, DELTA> &m,
                                                    const loam_problem &p, const loam_args &a,
                                                    const recurrent_chunks &chunks, const chunk_place &place)
{
    constexpr int parts = gradient_shared<DIM, TOKEN_GATES, DELTA>::parts;
    const int lane = threadIdx.x % 32;
    float whole = 0;
    for (int n = lane; n < parts * DIM; n += 32) {
        whole += m.state_dot[0][n];
    }
    whole = lane_sum<32>(whole) * exp2_fast((float)m.pre[CHUNK_TOKENS - 1]);
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
static __global__ void __launch_bounds__(GRADIENT_THREADS, DIM == 64 ? 2 : 1)
    gradient_kernel_sm90(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    gradient_shared<DIM, GATES, DELTA> &m = *(gradient_shared<DIM, GATES, DELTA> *)memory;
    const chunk_place place = chunk_of_slot(p, a, chunks, blockIdx.x);
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
    load_chunk<DIM, GRADIENT_THREADS>(m.in.grad_o, chunks.grad_o, place, thread);
    load_chunk<DIM, GRADIENT_THREADS>(m.in.u, chunks.u, place, thread);
    if (DELTA) {
        load_chunk<DIM, GRADIENT_THREADS>(m.dr, { chunks.du, 0, 0, 0, 1, true }, place, thread);
        copy_async_commit();
    }
    load_chunk<DIM, GRADIENT_THREADS>(m.q, chunks.q, place, thread);
    load_chunk<DIM, GRADIENT_THREADS>(m.k, chunks.k, place, thread);
    load_state<DIM>(m.in.state, chunks.states + place.slot * DIM * DIM);
    load_state<DIM>(m.in.grad_state, chunks.grad_states + place.slot * DIM * DIM);
    copy_async_commit();
    load_numbers(m, p, a, place);
    if (DELTA) {
        weights_operand<2> inverse;
        load_inverse(inverse, chunks.inverse + place.slot * CHUNK_TOKENS * CHUNK_TOKENS);
        copy_async_wait<1>();
        __syncthreads();
        solve_transposed<DIM>(m.dr, inverse);
    }
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    if (GATES == CHANNEL_GATES) {
        decay_locally<DIM, DELTA>((gradient_shared<DIM, CHANNEL_GATES, DELTA> &)m, p, a, place);
        __syncthreads();
    }
    if (GATES != NO_GATES) {
        multiply_states(m);
    }
    multiply_chunk(m, (float)p.scale);
    __syncthreads();
    if (GATES == CHANNEL_GATES) {
        finish_channels<DIM, DELTA>((gradient_shared<DIM, CHANNEL_GATES, DELTA> &)m, p, a, place);
        __syncthreads();
    }
    finish_rows(m, p, a, chunks, place);
    __syncthreads();
    if (GATES == TOKEN_GATES && thread < 32) {
        finish_gates<DIM, DELTA>((gradient_shared<DIM, TOKEN_GATES, DELTA> &)m, p, a, chunks, place);
    }
    if (thread >= 32 && thread < 64) {
        const float sum = lane_sum<32>(m.scale_dot[thread - 32] + m.scale_dot[thread]);
        if (thread == 32) {
            chunks.grad_scale[place.slot] = sum;
        }
    }
}

#endif
