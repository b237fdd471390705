/* SPDX-License-Identifier: MIT
 *
 * The matrix of a row (row_factor.cuh) of 128 channels, 36 squares of 16 x 16, which are more than a warp
 * holds: a warpgroup has it. The sum of x x^T is one product of wgmma, which leaves rows w and w + 4 of
 * squares in warp w. Their inverse goes by columns: once row k is W_k (s_k0 .. s_kk), all later rows i get
 * L_ik = s_ik W_k^T, and subtract from their squares what it makes of row k and of the other rows. A square
 * of a column that has been eliminated then holds the transpose of one of L^-1 to be.
 */
#ifndef LOAM_LOCAL_HOPPER_ROW_FACTOR_WIDE_CUH
#define LOAM_LOCAL_HOPPER_ROW_FACTOR_WIDE_CUH

#include "src/local/hopper/row_factor.cuh"
#include "src/local/hopper/tile.cuh"

/* A key has WIDE_CHUNKS pieces of 16 bytes, one for each thread of half a warp. */
enum { WIDE_DIM = 128, WIDE_SQUARES = WIDE_DIM / SQUARE, WIDE_CHUNKS = WIDE_DIM / 8 };

/* x x^T of channels below 64; of those from 64 on by those below; of those from 64 on. */
struct wide_sums {
    float part[3][8][4];
};

/* Eight channels of a key, as centred_pair has them. */
static __device__ __forceinline__ uint4 centred_chunk(const uint4 &k, const uint32_t (&centre)[4],
                                                      uint32_t root)
{
    return { centred_pair(k.x, centre[0], root), centred_pair(k.y, centre[1], root),
             centred_pair(k.z, centre[2], root), centred_pair(k.w, centre[3], root) };
}

/* s += x^T x of a tile of 64 centred keys, which all threads have written. Asynchronous until a wait. */
static __device__ __forceinline__ void multiply_keys(wide_sums &s, const __half *tile)
{
    const uint32_t a = descriptor_low(tile), b = descriptor_low(tile + TILE_ELEMENTS);
    fence_async_proxy();
    __syncthreads();
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < TILE_ELEMENTS / 8; k += SQUARE * TILE_SIDE / 8) {
        wgmma_transposed<__half>(s.part[0], descriptor_of(a + k), descriptor_of(a + k), 1);
        wgmma_transposed<__half>(s.part[1], descriptor_of(b + k), descriptor_of(a + k), 1);
        wgmma_transposed<__half>(s.part[2], descriptor_of(b + k), descriptor_of(b + k), 1);
    }
    wgmma_commit();
}

/* Of 64 keys of a list, from `first` on, what a thread centres: a chunk of every eighth one. */
struct wide_gather {
    enum { KEYS = THREADS / WIDE_CHUNKS, TURNS = TILE_SIDE / KEYS };
    uint4 k[TURNS];

    /* keys: of the head. */
    __device__ __forceinline__ void load(const __half *keys, const key_list &list, int first)
    {
        const int chunk = threadIdx.x % WIDE_CHUNKS, from = first + (int)threadIdx.x / WIDE_CHUNKS;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int at = from + KEYS * i;
            k[i] = make_uint4(0, 0, 0, 0);
            if (at < whole_squares(list.count))
                k[i] = *(const uint4 *)(keys + (int64_t)list.key[at] * WIDE_DIM + 8 * chunk);
        }
    }
    __device__ __forceinline__ void put(__half *tile, const key_list &list, int first,
                                        const uint32_t (&centre)[4]) const
    {
        const int chunk = threadIdx.x % WIDE_CHUNKS, from = threadIdx.x / WIDE_CHUNKS;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int at = from + KEYS * i;
            const bool real = first + at < whole_squares(list.count);
            const uint32_t root = real ? *(const uint16_t *)(list.root + first + at) * 0x10001u : 0;
            *(uint4 *)(tile + swizzled(at, 8 * chunk)) = centred_chunk(k[i], centre, root);
        }
    }
};

/* s += the sum over the list. tiles: two in turn; centre: of the thread's chunk. */
static __device__ __forceinline__ void add_list(wide_sums &s, __half (*tiles)[WIDE_DIM * TILE_SIDE],
                                                const __half *keys, const key_list &list,
                                                const uint32_t (&centre)[4])
{
    wide_gather gather;
    gather.load(keys, list, 0);
#pragma unroll 1
    for (int first = 0, n = 0; first < list.count; first += TILE_SIDE, n++) {
        gather.put(tiles[n % 2], list, first, centre);
        wgmma_results(s.part);
        multiply_keys(s, tiles[n % 2]);
        gather.load(keys, list, first + TILE_SIDE);
        wgmma_wait<0>();
        wgmma_results(s.part);
    }
}

/* ------------------------------------------------------------------ squares of a warp */

/* Rows w and w + 4 of the matrix, in warp w; of squares beyond the diagonal nothing is read. */
struct wide_rows {
    square_sums low[SQUARES], high[WIDE_SQUARES];
};

static __device__ __forceinline__ wide_rows wide_rows_of(const wide_sums &s)
{
    wide_rows out;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            out.low[n / 2].tile[n % 2][e] = s.part[0][n][e];
            out.high[n / 2].tile[n % 2][e] = s.part[1][n][e];
            out.high[SQUARES + n / 2].tile[n % 2][e] = s.part[2][n][e];
        }
    }
    return out;
}

/* Calls use(square, float (&)[2][4]-like tiles n and n + 1 of part) for the warp's squares on and below the
 * diagonal. */
template <class SUMS, class USE>
static __device__ __forceinline__ void each_wide_square(SUMS &s, int warp, USE use)
{
#pragma unroll
    for (int j = 0; j < SQUARES; j++) {
        if (j <= warp) use(lower_square(warp, j), s.part[0][2 * j], s.part[0][2 * j + 1]);
        use(lower_square(warp + SQUARES, j), s.part[1][2 * j], s.part[1][2 * j + 1]);
        if (j <= warp) use(lower_square(warp + SQUARES, SQUARES + j), s.part[2][2 * j], s.part[2][2 * j + 1]);
    }
}

/* Adds to the diagonal; ridge: of channels 8 n + g of the warp's two squares on it. */
static __device__ __forceinline__ void add_diagonal(wide_rows &s, const float (&ridge)[4], int warp)
{
#pragma unroll
    for (int j = 0; j < SQUARES; j++) {
        const float own = j == warp ? 1.0f : 0.0f, low[2] = { own * ridge[0], own * ridge[1] },
                    high[2] = { own * ridge[2], own * ridge[3] };
        add_ridge(s.low[j], low);
        add_ridge(s.high[SQUARES + j], high);
    }
}

/* ------------------------------------------------------------------ the inverse */

/* What the warps tell each other about column k: W_k, the squares of row k of V^T, and L_ik below. */
struct wide_column {
    uint4 diagonal[2][32], square[WIDE_SQUARES][2][32];
};

static __device__ __forceinline__ void put_parts(uint4 (&to)[2][32], const square_parts &x)
{
    const int lane = threadIdx.x % 32;
    to[0][lane] = make_uint4(x.hi[0], x.hi[1], x.hi[2], x.hi[3]);
    to[1][lane] = make_uint4(x.lo[0], x.lo[1], x.lo[2], x.lo[3]);
}
static __device__ __forceinline__ square_parts get_parts(const uint4 (&from)[2][32])
{
    const uint4 hi = from[0][threadIdx.x % 32], lo = from[1][threadIdx.x % 32];
    return { { hi.x, hi.y, hi.z, hi.w }, { lo.x, lo.y, lo.z, lo.w } };
}

/* x w^T in two parts. */
static __device__ __forceinline__ square_parts times_transposed(const square_sums &x, const square_parts &w)
{
    square_parts parts;
    square_sums product = {};
    split_square(parts, x);
    add_square(product, parts, w);
    split_square(parts, product);
    return parts;
}

/* Row K, of which all columns before are eliminated, becomes row K of V^T = L^-1: put(K, j, square) is called
 * for its squares, transposed. */
template <int K, int COUNT, class PUT>
static __device__ __forceinline__ void end_row(const square_sums (&row)[COUNT], wide_column &column,
                                               float least, PUT put)
{
    square_parts w, v;
    invert_square(w, v, row[K], least);
    put_parts(column.diagonal, w);
    put_parts(column.square[K], v);
    put(K, K, v);
#pragma unroll
    for (int j = 0; j < K; j++) {
        v = times_transposed(row[j], w);
        put_parts(column.square[j], v);
        put(K, j, v);
    }
}

/* Column k of row i: its square becomes 0, for V. Returns L_ik, negative. */
static __device__ __forceinline__ square_parts end_square(square_sums &s, wide_column &column, int i)
{
    const square_parts l = times_transposed(s, get_parts(column.diagonal));
    put_parts(column.square[i], l);
    s = {};
    return negated(l);
}

/* Takes column K out of row i, from minus L_iK. */
template <int K, int COUNT>
static __device__ __forceinline__ void update_row(square_sums (&row)[COUNT], int i, const square_parts &minus,
                                                  const wide_column &column)
{
#pragma unroll
    for (int m = 0; m < COUNT; m++) {
        if (m > i) continue;
        const square_parts other = get_parts(column.square[m]);
        if (m <= K)
            add_square(row[m], other, minus);
        else
            add_square(row[m], minus, other);
    }
}

/* The columns from K on, once row K is W_K .. */
template <int K, class PUT>
static __device__ __forceinline__ void eliminate_columns(wide_rows &s, wide_column (&columns)[2], int warp,
                                                         float least, PUT put)
{
    wide_column &column = columns[K % 2], &next = columns[(K + 1) % 2];
    const int high = warp + SQUARES;
    square_parts low_minus = {}, high_minus = {};
    __syncthreads();
    if constexpr (K + 1 < SQUARES)
        if (warp > K) low_minus = end_square(s.low[K], column, warp);
    if (high > K) high_minus = end_square(s.high[K], column, high);
    __syncthreads();
    if constexpr (K + 1 < SQUARES) {
        if (warp > K) update_row<K>(s.low, warp, low_minus, column);
        if (warp == K + 1) end_row<K + 1>(s.low, next, least, put);
    }
    if (high > K) update_row<K>(s.high, high, high_minus, column);
    if constexpr (K + 1 >= SQUARES)
        if (high == K + 1) end_row<K + 1>(s.high, next, least, put);
    if constexpr (K + 2 < WIDE_SQUARES) eliminate_columns<K + 1>(s, columns, warp, least, put);
}

/* V = L^-T of the matrix s = L L^T, as invert_matrix of 64 channels, by all threads of the block; s is
 * clobbered. The warp that has the next row of L^-1 ends it while the others update theirs. */
template <class PUT>
static __device__ __forceinline__ void invert_matrix(wide_rows &s, wide_column (&columns)[2], int warp,
                                                     float least, PUT put)
{
    if (warp == 0) end_row<0>(s.low, columns[0], least, put);
    eliminate_columns<0>(s, columns, warp, least, put);
}

#endif
