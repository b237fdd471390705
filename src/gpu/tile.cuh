/* SPDX-License-Identifier: MIT
 *
 * Tiles in shared memory, and the products of a warp's 16 rows with them.
 *
 * A narrow tile holds bf16: inputs of that type, unchanged. A wide tile holds float; a product splits each
 * number into three bf16 parts (8 bits each, so all 24) and adds six products of parts, the least of which is
 * 2^-16 of the first: float32 accuracy from the bf16 units. A weight or a direction that multiplies a narrow
 * tile may be split in two parts, hi and lo (relative error 2^-17).
 *
 * Rows are padded by PAD elements, so that the eight rows of one access lie in different banks.
 */
#ifndef LOAM_GPU_TILE_CUH
#define LOAM_GPU_TILE_CUH

#include "src/gpu/mma.cuh"
#include "src/gpu/number.cuh"

enum { PAD = 8 };

template <bool WIDE> struct element_of {
    typedef __nv_bfloat16 type;
};
template <> struct element_of<true> {
    typedef float type;
};
template <bool WIDE> using element = typename element_of<WIDE>::type;

/* bf16 parts of an element of a tile. */
template <bool WIDE> constexpr int parts_of = WIDE ? 3 : 1;

/* ------------------------------------------------------------------ numbers as sums of bf16 parts */

template <class T> constexpr bool is_half = false;
template <> constexpr bool is_half<__half> = true;

/* Two numbers of type T, bf16 or fp16, as one word: x is the low half. */
template <class T> static __device__ __forceinline__ uint32_t pack_pair(float x, float y)
{
    uint32_t word;
    if constexpr (is_half<T>) {
        const __half2 pair = __floats2half2_rn(x, y);
        memcpy(&word, &pair, sizeof word);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        memcpy(&word, &pair, sizeof word);
    }
    return word;
}

template <class T> static __device__ __forceinline__ float2 unpack_pair(uint32_t word)
{
    if constexpr (is_half<T>) {
        __half2 pair;
        memcpy(&pair, &word, sizeof word);
        return __half22float2(pair);
    } else {
        return { __uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u) };
    }
}

/* out[n]: the n-th part of x (low half) and y (high half), of type T. */
template <class T = __nv_bfloat16, int PARTS>
static __device__ __forceinline__ void split_pair(uint32_t (&out)[PARTS], float x, float y)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if constexpr (is_half<T>) {
            const __half2 pair = __floats2half2_rn(x, y);
            memcpy(&out[part], &pair, sizeof pair);
            x -= __low2float(pair), y -= __high2float(pair);
        } else {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
            memcpy(&out[part], &pair, sizeof pair);
            x -= __low2float(pair), y -= __high2float(pair);
        }
    }
}

/* x rounded to the sum of PARTS bf16 parts. */
template <int PARTS> static __device__ __forceinline__ float rounded(float x)
{
    float sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        sum += __bfloat162float(__float2bfloat16_rn(x - sum));
    return sum;
}

template <int PARTS> struct operand_a {
    uint32_t part[PARTS][4];
};
template <int PARTS> struct operand_b {
    uint32_t part[PARTS][2];
};

/* d += a b, without the products below the last part. For float32 accuracy (three parts) the products of
 * parts are summed apart and then added to d: tensor cores truncate when they add to an accumulator, which
 * would show over many steps. TRANSPOSED adds the parts in the order in which the product of the transposes
 * adds them, so that both have the same bits. */
template <bool TRANSPOSED = false, int PA, int PB>
static __device__ __forceinline__ void mma(float (&d)[4], const operand_a<PA> &a, const operand_b<PB> &b)
{
    constexpr int kept = PA > PB ? PA : PB;
    constexpr bool apart = kept == 3;
    float parts[4] = { 0, 0, 0, 0 };
    float(&sum)[4] = apart ? parts : d;
#pragma unroll
    for (int order = kept - 1; order >= 0; order--) {
#pragma unroll
        for (int n = 0; n <= order; n++) {
            const int i = TRANSPOSED ? order - n : n;
            if (i < PA && order - i < PB) mma_bf16(sum, a.part[i], b.part[order - i]);
        }
    }
    if (apart) d[0] += parts[0], d[1] += parts[1], d[2] += parts[2], d[3] += parts[3];
}

/* ------------------------------------------------------------------ operands from tiles
 *
 * PITCH: elements from one row of the tile to the next. */

/* A from rows m .. m + 15, columns k .. k + 15. */
template <int PITCH>
static __device__ __forceinline__ void load_a(operand_a<1> &a, const __nv_bfloat16 *tile, int m, int k)
{
    const int lane = threadIdx.x % 32;
    load_matrices(a.part[0], tile + (m + lane % 16) * PITCH + k + lane / 16 * 8);
}

template <int PITCH>
static __device__ __forceinline__ void load_a(operand_a<3> &a, const float *tile, int m, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 x = *(const float2 *)(tile + (m + g + e % 2 * 8) * PITCH + k + 2 * t + e / 2 * 8);
        uint32_t part[3];
        split_pair(part, x.x, x.y);
        a.part[0][e] = part[0], a.part[1][e] = part[1], a.part[2][e] = part[2];
    }
}

/* B for products with the transpose of the tile: its rows n .. n + 15 are the columns of B (two fragments of
 * 8), its columns k .. k + 15 the rows. */
template <int PITCH>
static __device__ __forceinline__ void load_b_rows(operand_b<1> (&b)[2], const __nv_bfloat16 *tile, int n,
                                                   int k)
{
    const int lane = threadIdx.x % 32;
    uint32_t r[4];
    load_matrices(r, tile + (n + lane / 16 * 8 + lane % 8) * PITCH + k + lane / 8 % 2 * 8);
    b[0].part[0][0] = r[0], b[0].part[0][1] = r[1], b[1].part[0][0] = r[2], b[1].part[0][1] = r[3];
}

template <int PITCH>
static __device__ __forceinline__ void load_b_rows(operand_b<3> (&b)[2], const float *tile, int n, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 x = *(const float2 *)(tile + (n + e / 2 * 8 + g) * PITCH + k + 2 * t + e % 2 * 8);
        uint32_t part[3];
        split_pair(part, x.x, x.y);
#pragma unroll
        for (int p = 0; p < 3; p++)
            b[e / 2].part[p][e % 2] = part[p];
    }
}

/* B for products with the tile: rows k .. k + 15, columns n .. n + 15 (two fragments of 8). */
template <int PITCH>
static __device__ __forceinline__ void load_b(operand_b<1> (&b)[2], const __nv_bfloat16 *tile, int k, int n)
{
    const int lane = threadIdx.x % 32;
    uint32_t r[4];
    load_matrices_transposed(r, tile + (k + lane % 16) * PITCH + n + lane / 16 * 8);
    b[0].part[0][0] = r[0], b[0].part[0][1] = r[1], b[1].part[0][0] = r[2], b[1].part[0][1] = r[3];
}

template <int PITCH>
static __device__ __forceinline__ void load_b(operand_b<3> (&b)[2], const float *tile, int k, int n)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float *x = tile + (k + e % 2 * 8 + 2 * t) * PITCH + n + e / 2 * 8 + g;
        uint32_t part[3];
        split_pair(part, x[0], x[PITCH]);
#pragma unroll
        for (int p = 0; p < 3; p++)
            b[e / 2].part[p][e % 2] = part[p];
    }
}

/* ------------------------------------------------------------------ products of a warp's 16 rows
 *
 * An accumulator of 16 rows by 8 BLOCKS columns is float x[BLOCKS][4], each x[n] a fragment D of mma.cuh. */

template <int BLOCKS> static __device__ __forceinline__ void clear(float (&x)[BLOCKS][4])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
}

/* s += rows m .. m + 15 of `rows` times the transpose of `tile` [8 BLOCKS][DIM]. The PARTS bf16 parts of
 * `rows` are tiles `step` elements apart. */
template <int PARTS, int DIM, int BLOCKS>
static __device__ __forceinline__ void product_rows(float (&s)[BLOCKS][4], const __nv_bfloat16 *rows,
                                                    int step, int m, const __nv_bfloat16 *tile)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        operand_a<1> a[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            load_a<DIM + PAD>(a[part], rows + part * step, m, k);
#pragma unroll
        for (int n = 0; n < BLOCKS; n += 2) {
            operand_b<1> b[2];
            load_b_rows<DIM + PAD>(b, tile, 8 * n, k);
#pragma unroll
            for (int part = PARTS - 1; part >= 0; part--) {
                mma(s[n], a[part], b[0]);
                mma(s[n + 1], a[part], b[1]);
            }
        }
    }
}

template <int PARTS, int DIM, int BLOCKS>
static __device__ __forceinline__ void product_rows(float (&s)[BLOCKS][4], const float *rows, int, int m,
                                                    const float *tile)
{
#pragma unroll 2
    for (int k = 0; k < DIM; k += 16) {
        operand_a<3> a;
        load_a<DIM + PAD>(a, rows, m, k);
#pragma unroll
        for (int n = 0; n < BLOCKS; n += 2) {
            operand_b<3> b[2];
            load_b_rows<DIM + PAD>(b, tile, 8 * n, k);
            mma(s[n], a, b[0]);
            mma(s[n + 1], a, b[1]);
        }
    }
}

/* out += w tile[][column ...]: w is the warp's 16 x 8 BLOCKS weights, split in PARTS parts; tile has 8 BLOCKS
 * rows of PITCH elements. */
template <int PARTS, int PITCH, int BLOCKS, int COLUMNS, class T>
static __device__ __forceinline__ void product_weights(float (&out)[COLUMNS][4], const float (&w)[BLOCKS][4],
                                                       const T *tile, int column)
{
    constexpr int tile_parts = sizeof(T) == 4 ? 3 : 1;
#pragma unroll
    for (int k = 0; k < BLOCKS; k += 2) {
        operand_a<PARTS> a;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t part[PARTS];
            split_pair(part, w[k + e / 2][e % 2 * 2], w[k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                a.part[p][e] = part[p];
        }
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            operand_b<tile_parts> b[2];
            load_b<PITCH>(b, tile, 8 * k, column + 8 * n);
            mma(out[n], a, b[0]);
            mma(out[n + 1], a, b[1]);
        }
    }
}

/* ------------------------------------------------------------------ filling tiles */

/* Rows in global memory: row r begins at element `at + r * stride` of data. */
struct rows_view {
    const void *data;
    loam_dtype dtype;
    int64_t at, stride;
};

static __device__ __forceinline__ bool rows_aligned(const rows_view &v, int columns)
{
    return v.dtype == LOAM_BF16 && columns % 8 == 0 && v.stride % 8 == 0 && (v.at % 8) == 0 &&
           (uintptr_t)v.data % 16 == 0;
}

/* tile [ROWS][COLUMNS + PAD] <- columns first .. first + columns - 1 of `rows` rows; 0 beyond them. Where
 * memory is aligned to 16 bytes the copies are asynchronous: commit and wait before use. All threads of the
 * block take part. */
template <int ROWS, int COLUMNS, int THREADS>
static __device__ __forceinline__ void fill_tile(__nv_bfloat16 *tile, const rows_view &from, int rows,
                                                 int first, int columns, const float *)
{
    const bool aligned = rows_aligned(from, columns) && first % 8 == 0;
    const uint16_t *data = (const uint16_t *)from.data + from.at + first;
    for (int e = threadIdx.x; e < ROWS * (COLUMNS / 8); e += THREADS) {
        const int r = e / (COLUMNS / 8), c = e % (COLUMNS / 8) * 8;
        __nv_bfloat16 *to = tile + r * (COLUMNS + PAD) + c;
        if (aligned && r < rows && c < columns) {
            copy_async_16(to, data + r * from.stride + c);
        } else {
            uint32_t pairs[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int c0 = c + 2 * n;
                const uint32_t low = r < rows && c0 < columns ? data[r * from.stride + c0] : 0;
                const uint32_t high = r < rows && c0 + 1 < columns ? data[r * from.stride + c0 + 1] : 0;
                pairs[n] = low | high << 16;
            }
            *(uint4 *)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}

/* The same for a wide tile: from any type, less `origin` where that is not NULL. */
template <int ROWS, int COLUMNS, int THREADS>
static __device__ __forceinline__ void fill_tile(float *tile, const rows_view &from, int rows, int first,
                                                 int columns, const float *origin)
{
    for (int e = threadIdx.x; e < ROWS * COLUMNS; e += THREADS) {
        const int r = e / COLUMNS, c = e % COLUMNS;
        float x = 0;
        if (r < rows && c < columns) {
            x = load_real<float>(from.data, from.dtype, from.at + r * from.stride + first + c);
            x -= origin ? origin[first + c] : 0;
        }
        tile[r * (COLUMNS + PAD) + c] = x;
    }
}

static __device__ __forceinline__ float tile_value(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float tile_value(__half x) { return __half2float(x); }
static __device__ __forceinline__ float tile_value(float x) { return x; }

/* norm[r] = |row r|^2 of a tile [ROWS][DIM + PAD]; THREADS / ROWS neighbouring threads share a row. */
template <int ROWS, int DIM, int THREADS, class T>
static __device__ __forceinline__ void tile_norms(float *norm, const T *tile)
{
    constexpr int share = THREADS / ROWS;
    const int r = threadIdx.x / share, part = threadIdx.x % share;
    float sum = 0;
    for (int c = part; c < DIM; c += share) {
        const float x = tile_value(tile[r * (DIM + PAD) + c]);
        sum += x * x;
    }
#pragma unroll
    for (int step = share / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (part == 0) norm[r] = sum;
}

#endif
