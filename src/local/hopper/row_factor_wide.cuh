/* SPDX-License-Identifier: MIT
 *
 * The matrix of a row (row_factor.cuh) of 128 channels, 36 squares of 16 x 16, which are more than a warp
 * holds: a warpgroup has it. The sum of x x^T is one product of wgmma, which leaves rows w and w + 4 of
 * squares in warp w. Their inverse goes by columns: once row k is W_k (s_k0 .. s_kk), all later rows i get
 * L_ik = s_ik W_k^T, and subtract from their squares what it makes of row k and of the other rows. A square
 * of a column that has been eliminated then holds one of L^-1 to be.
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

/* s += the sum over the list, whose first keys are in `gather`. tiles: two in turn; centre: of the thread's
 * chunk. */
static __device__ __forceinline__ void add_list(wide_sums &s, wide_gather &gather,
                                                __half (*tiles)[WIDE_DIM * TILE_SIDE], const __half *keys,
                                                const key_list &list, const uint32_t (&centre)[4])
{
#pragma unroll 1
    for (int first = 0, n = 0; first < list.count; first += TILE_SIDE, n++) {
        gather.put(tiles[n % 2], list, first, centre);
        gather.load(keys, list, first + TILE_SIDE);
        wgmma_results(s.part);
        multiply_keys(s, tiles[n % 2]);
        wgmma_wait<0>();
        wgmma_results(s.part);
    }
}

/* ------------------------------------------------------------------ squares of a warp */

/* Rows w and w + 4 of the matrix, in warp w; of squares beyond the diagonal nothing is read. Squares take
 * turns in their places: before column k is eliminated, place p has column k + p, modulo the number of
 * places. So one loop over columns has all of them in registers: straight code, of which each row would need
 * 180 KB, is more than caches of instructions hold. */
struct wide_rows {
    square_sums low[SQUARES], high[WIDE_SQUARES];
};

/* Places before any column is begun, k = -1. */
template <int COUNT> static __device__ __forceinline__ constexpr int first_place(int column)
{
    return (column + 1) % COUNT;
}

static __device__ __forceinline__ wide_rows wide_rows_of(const wide_sums &s)
{
    wide_rows out;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            out.low[first_place<SQUARES>(n / 2)].tile[n % 2][e] = s.part[0][n][e];
            out.high[first_place<WIDE_SQUARES>(n / 2)].tile[n % 2][e] = s.part[1][n][e];
            out.high[first_place<WIDE_SQUARES>(SQUARES + n / 2)].tile[n % 2][e] = s.part[2][n][e];
        }
    }
    return out;
}

template <int COUNT> static __device__ __forceinline__ void turn_places(square_sums (&row)[COUNT])
{
    const square_sums first = row[0];
#pragma unroll
    for (int p = 0; p + 1 < COUNT; p++)
        row[p] = row[p + 1];
    row[COUNT - 1] = first;
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
        add_ridge(s.low[first_place<SQUARES>(j)], low);
        add_ridge(s.high[first_place<WIDE_SQUARES>(SQUARES + j)], high);
    }
}

/* ------------------------------------------------------------------ the inverse */

/* What the warps tell each other about column k: W_k, the squares of row k of V^T, and L_ik below. */
struct wide_column {
    uint4 diagonal[2][32], square[WIDE_SQUARES][2][32];
};

/* Parts of a square as operand B: its registers, in pairs, side by side. */
struct paired_parts {
    uint32_t hi[4], lo[4];
};

static __device__ __forceinline__ void add_paired(square_sums &d, const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4])
{
    mma_half(d.tile[0], a, b[0], b[1]);
    mma_half(d.tile[1], a, b[2], b[3]);
}
static __device__ __forceinline__ void add_square(square_sums &d, const square_parts &a,
                                                  const paired_parts &b)
{
    add_paired(d, a.lo, b.hi);
    add_paired(d, a.hi, b.lo);
    add_paired(d, a.hi, b.hi);
}

static __device__ __forceinline__ void put_parts(uint4 (&to)[2][32], const square_parts &x)
{
    const int lane = threadIdx.x % 32;
    to[0][lane] = make_uint4(x.hi[0], x.hi[2], x.hi[1], x.hi[3]);
    to[1][lane] = make_uint4(x.lo[0], x.lo[2], x.lo[1], x.lo[3]);
}
static __device__ __forceinline__ paired_parts get_parts(const uint4 (&from)[2][32])
{
    const uint4 hi = from[0][threadIdx.x % 32], lo = from[1][threadIdx.x % 32];
    return { { hi.x, hi.y, hi.z, hi.w }, { lo.x, lo.y, lo.z, lo.w } };
}

static __device__ __forceinline__ square_parts parts_of_square(const square_sums &x)
{
    square_parts parts;
    split_square(parts, x);
    return parts;
}

static __device__ __forceinline__ square_parts transposed_square(const square_parts &x)
{
    square_parts out;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int from = e / 2 + e % 2 * 2;
        out.hi[e] = transposed_matrix(x.hi[from]), out.lo[e] = transposed_matrix(x.lo[from]);
    }
    return out;
}

/* x w^T in two parts. */
static __device__ __forceinline__ square_parts times_transposed(const square_parts &x, const paired_parts &w)
{
    square_sums product = {};
    add_square(product, x, w);
    return parts_of_square(product);
}

/* L_ik of row i, from its square in the first place; told where the row is `below` k. Returns it negative;
 * the square becomes 0, for V. */
static __device__ __forceinline__ square_parts end_square(square_sums &s, wide_column &column, int i,
                                                          const paired_parts &w, bool below)
{
    const square_parts l = times_transposed(parts_of_square(s), w);
    if (below) put_parts(column.square[i], l);
    s = {};
    return negated(l);
}

/* Takes a column out of a row, from minus L of the row; k: of the places. Squares beyond the diagonal get
 * what nothing reads: to leave them out by branches takes more moves between registers than it saves
 * products. */
template <int COUNT>
static __device__ __forceinline__ void update_row(square_sums (&row)[COUNT], int k, const square_parts &minus,
                                                  const wide_column &column)
{
#pragma unroll
    for (int p = 0; p < COUNT; p++)
        add_square(row[p], minus, get_parts(column.square[(k + p) % COUNT]));
}

/* Row k of V^T = L^-1 but for its last square, once no earlier column is in it: put(k, j, square) is called
 * for its squares, transposed. */
template <int COUNT, class PUT>
static __device__ __forceinline__ void end_row(const square_sums (&row)[COUNT], int k, wide_column &column,
                                               PUT put)
{
    const paired_parts w = get_parts(column.diagonal);
#pragma unroll
    for (int p = 1; p < COUNT; p++) {
        const int j = (k + p) % COUNT;
        if (j > k) continue;
        const square_parts v = times_transposed(transposed_square(parts_of_square(row[p])), w);
        put_parts(column.square[j], v);
        put(k, j, v);
    }
}

/* Minus L of the warp's rows in the column that was ended last. */
struct wide_minus {
    square_parts low, high;
};

/* The warp that has row k takes the column before out of its rows, which it put off, and ends row k. */
template <class PUT>
static __device__ __forceinline__ void end_own_row(wide_rows &s, const wide_minus &minus, int k,
                                                   const wide_column &before, wide_column &column, PUT put)
{
    const bool low = k < SQUARES;
    if (k > 0) update_row(s.high, k, minus.high, before);
    if (k > 0 && low) update_row(s.low, k, minus.low, before);
    if (low)
        end_row(s.low, k, column, put);
    else
        end_row(s.high, k, column, put);
}

/* The warp that has row k, in whose square on the diagonal only column k - 1 is left, begins it: W_k. */
template <class PUT>
static __device__ __forceinline__ void begin_own_row(const wide_rows &s, const wide_minus &minus, int k,
                                                     wide_column &column, float least, PUT put)
{
    const bool low = k < SQUARES;
    square_sums diagonal = low ? s.low[1] : s.high[1];
    const square_parts l = low ? minus.low : minus.high;
    square_parts w, v;
    add_square(diagonal, l, negated(l));
    invert_square(w, v, diagonal, least);
    put_parts(column.diagonal, w);
    put_parts(column.square[k], v);
    put(k, k, v);
}

/* V = L^-T of the matrix s = L L^T, as invert_matrix of 64 channels, by all threads of the block; s is
 * clobbered. The longest chain is that of the squares on the diagonal: the warp that has the next one puts
 * off all else of column k until that is done, while the others work on it. ended: a barrier of all threads,
 * at which they arrive once they have told their squares of a column; an even number of times here. */
template <class PUT>
static __device__ __forceinline__ void invert_matrix(wide_rows &s, wide_column (&columns)[3], int warp,
                                                     float least, uint64_t *ended, PUT put)
{
    wide_minus minus = {};
    const int high = warp + SQUARES;
#pragma unroll 1
    for (int k = -1; k < WIDE_SQUARES; k++) {
        wide_column &column = columns[(k + 3) % 3];
        const bool next = warp == (k + 1) % SQUARES;
        __syncthreads();
        if (k >= 0) {
            if (warp == k % SQUARES) end_own_row(s, minus, k, columns[(k + 2) % 3], column, put);
            if (k + 1 == WIDE_SQUARES) break;
            const paired_parts w = get_parts(column.diagonal);
            minus.low = end_square(s.low[0], column, warp, w, warp > k);
            minus.high = end_square(s.high[0], column, high, w, high > k);
        }
        barrier_arrive(ended);
        if (next) begin_own_row(s, minus, k + 1, columns[(k + 1) % 3], least, put);
        barrier_wait(ended, (k + 1) % 2);
        if (!next && k >= 0) {
            if (warp > k) update_row(s.low, k, minus.low, column);
            if (high > k) update_row(s.high, k, minus.high, column);
        }
        turn_places(s.low);
        turn_places(s.high);
    }
}

#endif
