/* SPDX-License-Identifier: MIT
 * The arguments and the workspace of the kernels of MesaNet on Hopper; tiles of a chunk in shared memory, and
 * products of a warp's 16 rows with them. A slot is the place of one chunk of one value head. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_TILES_CUH
#define LOAM_RECURRENT_HOPPER_MESA_TILES_CUH

#include "src/gpu/block_sum.cuh"
#include "src/gpu/hopper.cuh"
#include "src/gpu/tile.cuh"
#include "src/recurrent/cuda/solve.cuh"
#include "src/recurrent/hopper/bf16.cuh"
#include "src/recurrent/hopper/decays.cuh"

enum { MESA_DIM = 64, MESA_TOKENS = SOLVE_TOKENS };
enum { MESA_WARPS = 4, MESA_THREADS = 32 * MESA_WARPS, MESA_PITCH = MESA_DIM + PAD };
enum { MESA_BLOCKS = MESA_DIM / 8 };

typedef __nv_bfloat16 mesa_tile[MESA_TOKENS][MESA_PITCH];
/* 16 rows by 64 columns of a warp, in the layout of D (mma.cuh). */
typedef float mesa_rows[MESA_BLOCKS][4];

struct mesa_params {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    kept_states<float> kept; /* [slot]: S, then the symmetric part of H, at the beginning of the chunk */
    float *h_in;             /* [sequence][value head][64][64]: a copy of H of state_in */
    float *chunk_decay;      /* [slot]: e^(sum of the gates) of the chunk */
    int32_t *needs_f64;      /* [slot]: 1 for a chunk that must be solved in float64 */
    double *x;               /* [work row][64]: the solutions of such chunks */
};

/* All kernels begin with this: the next one may be launched, and waits there until this one has ended. */
static __device__ __forceinline__ void mesa_begin()
{
    launch_dependents();
    wait_for_previous_launch();
}

/* ------------------------------------------------------------------ chunks */

/* The chunk of a thread block. */
struct mesa_chunk {
    recurrent_seq seq;
    int64_t index, h, key_head, first; /* first: row of the token axis */
    int tokens;                        /* <= 0: the sequence ends before the chunk */
};

static __device__ __forceinline__ mesa_chunk mesa_chunk_of_block(const mesa_params &s)
{
    const int64_t head = blockIdx.x / s.kept.per_sequence;
    mesa_chunk x;
    x.index = blockIdx.x % s.kept.per_sequence, x.h = head % s.p.heads_v;
    x.key_head = recurrent_key_head(&s.p, x.h);
    x.seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    x.first = x.seq.first + x.index * MESA_TOKENS;
    x.tokens = (int)min(x.seq.len - x.index * MESA_TOKENS, (int64_t)MESA_TOKENS);
    return x;
}

/* The slot of a chunk, and its rows of S and H in an array of states. */
static __device__ __forceinline__ int64_t mesa_slot(const mesa_params &s, const mesa_chunk &chunk)
{
    return kept_slot(s.kept, s.p, chunk.seq, chunk.h, chunk.index);
}
static __device__ __forceinline__ float *mesa_states(const kept_states<float> &states, const mesa_params &s,
                                                     const mesa_chunk &chunk)
{
    return kept_row(states, s.p, chunk.seq, chunk.h, chunk.index, 0);
}

/* Copies the chunk's rows of a view into a tile; rows beyond the chunk become 0. Asynchronous. */
static __device__ __forceinline__ void mesa_load(mesa_tile &tile, const loam_const_view &view,
                                                 const mesa_chunk &chunk, int64_t head)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)view.data +
                                RECURRENT_AT(view, chunk.seq.b, head, chunk.first);
    for (int e = threadIdx.x; e < MESA_TOKENS * (MESA_DIM / 8); e += MESA_THREADS) {
        const int t = e / (MESA_DIM / 8), c = e % (MESA_DIM / 8) * 8;
        if (t < chunk.tokens)
            copy_async_16(&tile[t][c], from + t * view.token + c);
        else
            *(uint4 *)&tile[t][c] = make_uint4(0, 0, 0, 0);
    }
}

/* |row|^2 of row threadIdx.x / 2 of a tile; two neighbouring threads share a row. */
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
            const float x = unpack_first(pairs[i]), y = unpack_second(pairs[i]);
            sum = fma(x, x, fma(y, y, sum));
        }
    }
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

/* The log decay or beta of token t of the chunk; 0 beyond the chunk. */
static __device__ __forceinline__ float mesa_load_scalar(const loam_const_view &view, const mesa_chunk &chunk,
                                                         int t)
{
    return t < chunk.tokens
               ? ((const float *)view.data)[RECURRENT_AT(view, chunk.seq.b, chunk.h, chunk.first + t)]
               : 0;
}

/* One warp: loads the gates of the lane's tokens, 2 lane and 2 lane + 1. */
static __device__ __forceinline__ void mesa_load_gates(float (&gate)[2], const mesa_params &s,
                                                       const mesa_chunk &chunk)
{
    const int lane = threadIdx.x % 32;
    gate[0] = mesa_load_scalar(s.a.log_decay, chunk, 2 * lane);
    gate[1] = mesa_load_scalar(s.a.log_decay, chunk, 2 * lane + 1);
}

/* One warp: the cumulative log decays of the chunk. */
static __device__ __forceinline__ void mesa_cumulative_log_decay(double (&sums)[MESA_TOKENS],
                                                                 const mesa_params &s,
                                                                 const mesa_chunk &chunk)
{
    const int lane = threadIdx.x % 32;
    float gate[2];
    double pre[2];
    mesa_load_gates(gate, s, chunk);
    cumulative_log_decay(pre, gate, 1);
    sums[2 * lane] = pre[0], sums[2 * lane + 1] = pre[1];
}

/* Stores four neighbouring elements in hi and lo part. */
static __device__ __forceinline__ void mesa_store_split(mesa_tile (&to)[2], int row, int column, float4 x)
{
    uint32_t first[2], second[2];
    split_pair(first, x.x, x.y), split_pair(second, x.z, x.w);
#pragma unroll
    for (int part = 0; part < 2; part++)
        *(uint2 *)&to[part][row][column] = make_uint2(first[part], second[part]);
}

/* a = columns 16 k .. 16 k + 15 of x as operand A, in hi and lo part. */
static __device__ __forceinline__ void mesa_operand(operand_a<2> &a, const mesa_rows &x, int k)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[2];
        split_pair(part, x[2 * k + e / 2][e % 2 * 2], x[2 * k + e / 2][e % 2 * 2 + 1]);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
    }
}

/* Products are of so many blocks of 8 columns at a time: each adds to its own accumulators, so that none
 * waits for the one before. */
enum { MESA_GROUP = 4 };

/* Operands B of a group: rows 16 k .. 16 k + 15 of the tile, columns 8 n .. */
typedef operand_b<1> mesa_group[MESA_GROUP / 2][2];

/* BY_ROWS: of the transposed tile. */
template <bool BY_ROWS>
static __device__ __forceinline__ void mesa_load_group(mesa_group &b, const mesa_tile &tile, int k, int n)
{
#pragma unroll
    for (int i = 0; i < MESA_GROUP / 2; i++)
        if constexpr (BY_ROWS)
            load_b_rows<MESA_PITCH>(b[i], &tile[0][0], 8 * n + 16 * i, 16 * k);
        else
            load_b<MESA_PITCH>(b[i], &tile[0][0], 16 * k, 8 * n + 16 * i);
}

/* y += a B of a group; blocks of columns from `end` on, an even number, are left out. */
static __device__ __forceinline__ void mesa_add_group(mesa_rows &y, const uint32_t (&a)[4],
                                                      const mesa_group &b, int n, int end = MESA_BLOCKS)
{
#pragma unroll
    for (int i = 0; i < MESA_GROUP; i++)
        if (n + i / 2 * 2 < end) mma_bf16(y[n + i], a, b[i / 2][i % 2].part[0]);
}

/* The operands of a group of a tile that is the sum of PARTS parts. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_load_parts(mesa_group (&b)[PARTS], const mesa_tile *tile, int k,
                                                       int n)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        mesa_load_group<BY_ROWS>(b[part], tile[part], k, n);
}

/* The terms of a product in parts, from the least on: hi of the one and lo of the other, and hi of both. The
 * product of the lo parts is left out. */
template <int PARTS>
static __device__ __forceinline__ void mesa_add_term(int term, mesa_rows &y, const operand_a<2> &a,
                                                     const mesa_group (&b)[PARTS], int n)
{
    mesa_add_group(y, a.part[term == PARTS], b[PARTS == 2 && term == 1], n);
}

/* y += a B, the terms of columns 16 k .. of x, which are `a`. B is the tile, with BY_ROWS its transpose, as
 * the sum of PARTS parts. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_product(mesa_rows &y, const operand_a<2> &a,
                                                    const mesa_tile *tile, int k)
{
    mesa_group b[2][PARTS];
    mesa_load_parts<BY_ROWS>(b[0], tile, k, 0);
    mesa_load_parts<BY_ROWS>(b[1], tile, k, MESA_GROUP);
#pragma unroll
    for (int term = PARTS; term >= 0; term--)
#pragma unroll
        for (int i = 0; i < 2; i++)
            mesa_add_term<PARTS>(term, y, a, b[i], i * MESA_GROUP);
}

/* y += x B, with B as in mesa_product. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_multiply(mesa_rows &y, const mesa_rows &x, const mesa_tile *tile)
{
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, x, k);
        mesa_product<BY_ROWS, PARTS>(y, a, tile, k);
    }
}

/* out[n] = x . y for each of the thread's two rows, summed over the four lanes of a row. */
static __device__ __forceinline__ void mesa_dot(float (&out)[2], const mesa_rows &x, const mesa_rows &y)
{
    out[0] = out[1] = 0;
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        out[e % 4 / 2] = fma(x[e / 4][e % 4], y[e / 4][e % 4], out[e % 4 / 2]);
    out[0] = quad_sum(out[0]), out[1] = quad_sum(out[1]);
}

static __device__ __forceinline__ void mesa_scale(mesa_rows &y, const float (&by)[2])
{
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        y[e / 4][e % 4] *= by[e % 4 / 2];
}

/* y += (rows m .. m + 15 of the tile `rows`) B, with B as in mesa_product. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_multiply_rows(mesa_rows &y, const mesa_tile &rows,
                                                          const mesa_tile *tile, int m)
{
#pragma unroll 1 /* the kernels are long: instruction fetch is their bottleneck */
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<1> a;
        load_a<MESA_PITCH>(a, &rows[0][0], m, 16 * k);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += MESA_GROUP) {
            mesa_group b[PARTS];
            mesa_load_parts<BY_ROWS>(b, tile, k, n);
#pragma unroll
            for (int part = PARTS - 1; part >= 0; part--)
                mesa_add_group(y, a.part[0], b[part], n);
        }
    }
}

#endif
