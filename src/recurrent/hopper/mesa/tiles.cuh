/* SPDX-License-Identifier: MIT
 * The arguments and the workspace of the kernels of MesaNet on Hopper; tiles of a chunk in shared memory, and
 * products of a warpgroup with them. A slot is the place of one chunk of one value head. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_TILES_CUH
#define LOAM_RECURRENT_HOPPER_MESA_TILES_CUH

#include "src/gpu/block_sum.cuh"
#include "src/recurrent/cuda/solve.cuh"
#include "src/recurrent/hopper/bf16.cuh"
#include "src/recurrent/hopper/decays.cuh"
#include "src/recurrent/hopper/operands.cuh"

enum { MESA_DIM = 64, MESA_TOKENS = SOLVE_TOKENS };
enum { MESA_WARPS = 4, MESA_THREADS = 32 * MESA_WARPS };
enum { MESA_BLOCKS = MESA_DIM / 8 };

/* A tile of hopper.cuh, at a multiple of 1024 bytes. */
typedef __nv_bfloat16 mesa_tile[TILE_ELEMENTS];
/* 64 x 64 numbers of a warpgroup, 16 rows of each warp, in the layout of D (mma.cuh). */
typedef float mesa_rows[MESA_BLOCKS][4];

struct mesa_params {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    unsigned chunks, group;  /* of a sequence; value heads of a key head */
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
    /* divisions of 32 bits, a tenth of those of 64 */
    const unsigned head = blockIdx.x / s.chunks, heads = (unsigned)s.p.heads_v;
    mesa_chunk x;
    x.index = blockIdx.x % s.chunks, x.h = head % heads;
    x.key_head = head % heads / s.group;
    x.seq = recurrent_seq_at(&s.p, &s.a, head / heads);
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
    load_tiles<MESA_DIM, MESA_THREADS, MESA_TOKENS>(tile, { from, view.token, MESA_DIM }, chunk.tokens);
}

/* One thread: so many bytes of bulk copies are to complete on the barrier. */
static __device__ __forceinline__ void mesa_expect(uint64_t *barrier, unsigned bytes)
{
    barrier_init(barrier, 1);
    fence_async_proxy();
    barrier_expect(barrier, bytes);
}

/* All that the block has stored to tiles is there for products. */
static __device__ __forceinline__ void mesa_tiles_complete()
{
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
}

/* |row|^2 of row threadIdx.x / 2 of a tile; two neighbouring threads share a row. */
static __device__ __forceinline__ float mesa_norm2(const mesa_tile &tile)
{
    const int row = threadIdx.x / 2, column = threadIdx.x % 2 * (MESA_DIM / 2);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < MESA_DIM / 16; n++) {
        const uint4 q = *(const uint4 *)(tile + swizzled(row, column + 8 * n));
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

/* One warp: the cumulative log decays of the chunk, in the log2 domain, hi and lo part. */
static __device__ __forceinline__ void mesa_cumulative_log_decay(float2 (&sums)[MESA_TOKENS],
                                                                 const mesa_params &s,
                                                                 const mesa_chunk &chunk)
{
    const int lane = threadIdx.x % 32;
    float gate[2];
    double pre[2];
    mesa_load_gates(gate, s, chunk);
    cumulative_log_decay(pre, gate, LOG2_E);
    sums[2 * lane] = split_double(pre[0]), sums[2 * lane + 1] = split_double(pre[1]);
}

/* The same as split_pair, in six instructions where those of __low2float make eight. */
template <int PARTS>
static __device__ __forceinline__ void mesa_split_pair(uint32_t (&out)[PARTS], float x, float y)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        out[part] = pack_bf16(x, y);
        x -= unpack_first(out[part]), y -= unpack_second(out[part]);
    }
}

/* x as operand from registers, in hi and lo part. */
static __device__ __forceinline__ void mesa_split(weights_operand<2> &a, const mesa_rows &x)
{
#pragma unroll
    for (int e = 0; e < 2 * MESA_DIM / 8; e++) {
        uint32_t part[2];
        mesa_split_pair(part, x[e / 2][e % 2 * 2], x[e / 2][e % 2 * 2 + 1]);
        a.part[0][e / 4][e % 4] = part[0], a.part[1][e / 4][e % 4] = part[1];
    }
}

/* Stores four neighbouring elements in hi and lo part. */
static __device__ __forceinline__ void mesa_store_split(mesa_tile (&to)[2], int row, int column, float4 x)
{
    uint32_t first[2], second[2];
    mesa_split_pair(first, x.x, x.y), mesa_split_pair(second, x.z, x.w);
#pragma unroll
    for (int part = 0; part < 2; part++)
        *(uint2 *)(to[part] + swizzled(row, column)) = make_uint2(first[part], second[part]);
}

/* ------------------------------------------------------------------ products
 *
 * B is a tile, with BY_ROWS its transpose, as the sum of PARTS parts. Products are asynchronous: they follow
 * a wgmma_fence, and a commit and a wait come before their use. */

/* y (+)= a B, a term of it: A from registers. */
template <bool BY_ROWS>
static __device__ __forceinline__ void mesa_add_term(mesa_rows &y, const uint32_t (&a)[4][4],
                                                     const mesa_tile &b, bool add)
{
    if constexpr (BY_ROWS)
        more_rows<MESA_DIM>(y, a, b, add);
    else
        more_weights<MESA_DIM>((float(&)[1][8][4])y, a, b, add);
}

/* y (+)= x B, x in hi and lo part: the terms from the least on, hi of the one and lo of the other, and hi of
 * both. The product of the lo parts is left out. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_add(mesa_rows &y, const weights_operand<2> &x,
                                                const mesa_tile *tile, bool add)
{
    mesa_add_term<BY_ROWS>(y, x.part[1], tile[0], add);
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--)
        mesa_add_term<BY_ROWS>(y, x.part[0], tile[part], true);
}

/* y (+)= (the rows of a tile) B. */
template <bool BY_ROWS, int PARTS>
static __device__ __forceinline__ void mesa_add_rows(mesa_rows &y, const mesa_tile &rows,
                                                     const mesa_tile *tile, bool add)
{
    const uint32_t a = descriptor_low(rows);
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
        if constexpr (BY_ROWS) {
            more_rows<MESA_DIM>(y, rows, tile[part], add || part < PARTS - 1);
        } else {
            const uint32_t b = descriptor_low(tile[part]);
#pragma unroll
            for (int k = 0; k < MESA_DIM; k += 16) {
                wgmma_columns<__nv_bfloat16>(y, descriptor_of(a + k / 8),
                                             descriptor_of(b + k * TILE_SIDE / 8),
                                             add || part < PARTS - 1 || k > 0);
            }
        }
    }
}

/* Waits for all products of y. */
static __device__ __forceinline__ void mesa_wait(mesa_rows &y)
{
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(y);
}

/* ------------------------------------------------------------------ rows of a warp */

/* The offset in a tile of the thread's pair of block n of mesa_rows, in row t0 or, row = 1, t0 + 8. */
static __device__ __forceinline__ int mesa_offset(int t0, int n, int row)
{
    return (swizzled(t0, (int)threadIdx.x % 4 * 2) ^ 8 * n) + row * 8 * TILE_SIDE;
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

#endif
