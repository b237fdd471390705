/* SPDX-License-Identifier: MIT
 *
 * A matrix of a row, near Cov + Lambda, and its inverse as V V^T: what preconditions the row's conjugate
 * gradients. A warp has one matrix of 64 channels at a time (128: row_factor_wide.cuh), in squares of 16 x 16
 * channels: accumulators are pairs of fragments D of mma.cuh, operands are fragments A, which serve as B of
 * the transpose too.
 *
 * The matrix is a sum of products x x^T with x = sqrt(p) (k - kbar) in one fp16 part: an error in x leaves it
 * positive definite and changes an eigenvalue L of it by 2^-11 |x| sqrt(L) at most, little even at the ridge.
 * Products of the factorisation have two fp16 parts, 22 bits.
 */
#ifndef LOAM_LOCAL_HOPPER_ROW_FACTOR_CUH
#define LOAM_LOCAL_HOPPER_ROW_FACTOR_CUH

#include "src/gpu/hopper.cuh"

enum { SQUARE = 16, SQUARES = TILE_SIDE / SQUARE, LOWER_SQUARES = SQUARES * (SQUARES + 1) / 2 };
template <int DIM> constexpr int lower_squares = DIM / SQUARE *(DIM / SQUARE + 1) / 2;

/* Centred keys are at most 2^16 in their unit; by this factor, in two steps, they become at most 2^7. */
#define CENTRED_SCALE 0x1p-2f
#define ROOT_SCALE 0x1p-7f

/* Pivots are at least this in the unit of the matrix, so that V stays within the range of fp16. */
#define LEAST_PIVOT 0x1p-14f

struct square_sums {
    float tile[2][4];
};
struct square_parts {
    uint32_t hi[4], lo[4];
};

/* The place of square (i, j), i >= j, of a lower triangle, and of square (j, i) of its transpose. */
static __host__ __device__ constexpr int lower_square(int i, int j) { return i * (i + 1) / 2 + j; }

/* d += a b^T. */
static __device__ __forceinline__ void add_square(square_sums &d, const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4])
{
    mma_half(d.tile[0], a, b[0], b[2]);
    mma_half(d.tile[1], a, b[1], b[3]);
}

static __device__ __forceinline__ void add_square(square_sums &d, const square_parts &a,
                                                  const square_parts &b)
{
    add_square(d, a.lo, b.hi);
    add_square(d, a.hi, b.lo);
    add_square(d, a.hi, b.hi);
}

static __device__ __forceinline__ void split_square(square_parts &out, const square_sums &x)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[2];
        split_pair<__half>(part, x.tile[e / 2][e % 2 * 2], x.tile[e / 2][e % 2 * 2 + 1]);
        out.hi[e] = part[0], out.lo[e] = part[1];
    }
}

static __device__ __forceinline__ square_parts negated(const square_parts &x)
{
    square_parts out;
#pragma unroll
    for (int e = 0; e < 4; e++)
        out.hi[e] = x.hi[e] ^ 0x80008000u, out.lo[e] = x.lo[e] ^ 0x80008000u;
    return out;
}

/* ------------------------------------------------------------------ the matrix */

/* The keys of a row's matrix: indices, and sqrt(p) of each. Both have room for a multiple of 16; what is
 * beyond `count` has root 0 and the index of some key. In shared memory. */
struct key_list {
    const int32_t *key;
    const __half *root;
    int count;
};

static __device__ __forceinline__ int whole_squares(int keys)
{
    return (keys + SQUARE - 1) / SQUARE * SQUARE;
}

/* Keys of a list on their way to a warp. A key's 16-byte chunk n is stored as chunk n ^ (key % 8). */
enum { GATHER_STAGES = 4, GATHER_BYTES = SQUARE * TILE_SIDE * 2 };

/* keys: of the head, [][dim]; this matrix has 64 of their channels. */
static __device__ __forceinline__ void gather_keys(unsigned char *stage, const __half *keys, int64_t dim,
                                                   const key_list &list, int first)
{
    const int chunk = threadIdx.x % 8, from = threadIdx.x % 32 / 8;
    if (first < list.count) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int at = from + 4 * n;
            copy_async_16(stage + at * TILE_SIDE * 2 + (chunk ^ at % 8) * 16,
                          keys + list.key[first + at] * dim + 8 * chunk);
        }
    }
    copy_async_commit();
}

/* 16 keys of a tile of wgmma's layout, or of a stage, transposed: rows are channels. */
static __device__ __forceinline__ void load_keys_transposed(uint32_t (&x)[SQUARES][4], const void *tile)
{
    const int lane = threadIdx.x % 32, key = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
        const int chunk = 2 * i + lane / 8 % 2;
        load_matrices_transposed(x[i],
                                 (const unsigned char *)tile + key * TILE_SIDE * 2 + (chunk ^ key % 8) * 16);
    }
}

/* sqrt(p) (k - centre) of two numbers; centre: its negative times CENTRED_SCALE, root: times ROOT_SCALE. */
static __device__ __forceinline__ uint32_t centred_pair(uint32_t keys, uint32_t centre, uint32_t root)
{
    __half2 k, c, w;
    memcpy(&k, &keys, sizeof k), memcpy(&c, &centre, sizeof c), memcpy(&w, &root, sizeof w);
    k = __hmul2(__hfma2(k, __float2half2_rn(CENTRED_SCALE), c), w);
    memcpy(&keys, &k, sizeof k);
    return keys;
}

/* x <- sqrt(p) (k - centre) of such keys. centre: its negative times CENTRED_SCALE in channels 8 n + g, twice
 * each; root: sqrt(p) times ROOT_SCALE of keys 2 t and 2 t + 1, and of the eighth ones after these. */
static __device__ __forceinline__ void centred_keys(uint32_t (&x)[SQUARES][4], const void *tile,
                                                    const uint32_t (&centre)[2 * SQUARES],
                                                    const uint32_t (&root)[2])
{
    load_keys_transposed(x, tile);
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] = centred_pair(x[i][e], centre[2 * i + e % 2], root[e / 2]);
    }
}

/* A number of channel 8 n + g as centred_keys wants it. */
static __device__ __forceinline__ uint32_t centre_of(float x)
{
    return pack_pair<__half>(-CENTRED_SCALE * x, -CENTRED_SCALE * x);
}

/* s += x x^T, the lower triangle. */
static __device__ __forceinline__ void add_keys(square_sums (&s)[LOWER_SQUARES],
                                                const uint32_t (&x)[SQUARES][4])
{
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
#pragma unroll
        for (int j = 0; j <= i; j++)
            add_square(s[lower_square(i, j)], x[i], x[j]);
    }
}

/* s += the sum over the list. stages: [GATHER_STAGES][GATHER_BYTES] of this warp. */
static __device__ __forceinline__ void add_list(square_sums (&s)[LOWER_SQUARES], const __half *keys,
                                                int64_t dim, const key_list &list,
                                                const uint32_t (&centre)[2 * SQUARES], unsigned char *stages)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < GATHER_STAGES - 1; n++)
        gather_keys(stages + n * GATHER_BYTES, keys, dim, list, n * SQUARE);
    for (int first = 0, n = 0; first < list.count; first += SQUARE, n++) {
        uint32_t x[SQUARES][4];
        const uint32_t root[2] = { *(const uint32_t *)(list.root + first + 2 * t),
                                   *(const uint32_t *)(list.root + first + 8 + 2 * t) };
        copy_async_wait<GATHER_STAGES - 2>();
        __syncwarp();
        gather_keys(stages + (n + GATHER_STAGES - 1) % GATHER_STAGES * GATHER_BYTES, keys, dim, list,
                    first + (GATHER_STAGES - 1) * SQUARE);
        centred_keys(x, stages + n % GATHER_STAGES * GATHER_BYTES, centre, root);
        add_keys(s, x);
    }
    copy_async_wait<0>();
    __syncwarp();
}

/* Adds to the diagonal of a square on it; ridge: of its channels 8 n + g. */
static __device__ __forceinline__ void add_ridge(square_sums &s, const float *ridge)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        s.tile[n][n * 2] += g == 2 * t ? ridge[n] : 0;
        s.tile[n][n * 2 + 1] += g == 2 * t + 1 ? ridge[n] : 0;
    }
}

/* Adds to the diagonal of the matrix; ridge: of channels 8 n + g. */
static __device__ __forceinline__ void add_diagonal(square_sums (&s)[LOWER_SQUARES],
                                                    const float (&ridge)[2 * SQUARES])
{
#pragma unroll
    for (int i = 0; i < SQUARES; i++)
        add_ridge(s[lower_square(i, i)], ridge + 2 * i);
}

/* ------------------------------------------------------------------ its inverse */

/* Of pivots, which are far from the ends of the range. */
static __device__ __forceinline__ float pivot_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float pivot_inverse_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Elements 2 t and 2 t + 1 of a lane. */
static __device__ __forceinline__ float2 pair_of_lane(const float (&s)[2], int lane)
{
    return { __shfl_sync(0xffffffffu, s[0], lane), __shfl_sync(0xffffffffu, s[1], lane) };
}

/* A symmetric 8 x 8 matrix s = L L^T, this lane's elements 2 t and 2 t + 1 of row g, becomes L^-1. Row
 * operations turn s = U D U^T into D U^T and the identity into U^-1, of which column k takes the place of the
 * eliminated column k of s; the rows of U^-1 divided by the roots of D are those of L^-1. Pivots are at least
 * `least`. Two columns at a time: all lanes compute both pivots, which is a shorter chain than to ask for the
 * second one. */
static __device__ __forceinline__ void eliminate(float (&s)[2], float least)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float own = 1;
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
        const float2 upper = pair_of_lane(s, k * 4 + k / 2), lower = pair_of_lane(s, (k + 1) * 4 + k / 2),
                     mine = pair_of_lane(s, g * 4 + k / 2), first = pair_of_lane(s, k * 4 + t),
                     row = pair_of_lane(s, (k + 1) * 4 + t);
        const float pivot = fmaxf(upper.x, least), inverse = pivot_inverse(pivot), ratio = lower.x * inverse,
                    last_pivot = fmaxf(lower.y - ratio * lower.x, least);
        const float factor = g > k ? mine.x * inverse : 0,
                    last_factor = g > k + 1 ? (mine.y - factor * lower.x) * pivot_inverse(last_pivot) : 0;
        const float2 second = { row.x - ratio * first.x, row.y - ratio * first.y };
        own = g == k ? pivot : g == k + 1 ? last_pivot : own;
        s[0] -= factor * first.x + last_factor * second.x, s[1] -= factor * first.y + last_factor * second.y;
        if (t == k / 2 && g > k) s[0] = last_factor * ratio - factor;
        if (t == k / 2 && g > k + 1) s[1] = -last_factor;
    }
    const float scale = pivot_inverse_root(own);
#pragma unroll
    for (int e = 0; e < 2; e++)
        s[e] = (2 * t + e < g ? s[e] : 2 * t + e == g ? 1.0f : 0.0f) * scale;
}

/* Two fp16 parts of an 8 x 8 matrix, a pair of a row in each lane. */
struct small_parts {
    uint32_t hi, lo;
};

static __device__ __forceinline__ small_parts split_small(float x, float y)
{
    uint32_t part[2];
    split_pair<__half>(part, x, y);
    return { part[0], part[1] };
}

static __device__ __forceinline__ small_parts transposed_small(const small_parts &x)
{
    return { transposed_matrix(x.hi), transposed_matrix(x.lo) };
}

/* d += sign a b^T of 8 x 8 matrices: both parts of a at once, as the two halves of an operand of 16 rows. */
static __device__ __forceinline__ void add_small(float (&d)[2], const small_parts &a, const small_parts &b,
                                                 bool negative)
{
    const uint32_t sign = negative ? 0x80008000u : 0, rows[2] = { a.hi ^ sign, a.lo ^ sign };
    float low[4] = {}, high[4] = { d[0], d[1], 0, 0 }; /* apart: neither product waits for the other */
    mma_half(low, rows, b.lo);
    mma_half(high, rows, b.hi);
    d[0] = (low[0] + low[2]) + (high[0] + high[2]), d[1] = (low[1] + low[3]) + (high[1] + high[3]);
}

/* W = L^-1 of the square s = L L^T, and its transpose, as operands; by its quarters of 8 x 8. */
static __device__ __forceinline__ void invert_square(square_parts &w, square_parts &transposed,
                                                     const square_sums &s, float least)
{
    float first[2] = { s.tile[0][0], s.tile[0][1] }, below[2] = { 0, 0 };
    float last[2] = { s.tile[1][2], s.tile[1][3] }, product[2] = { 0, 0 }, corner[2] = { 0, 0 };
    eliminate(first, least);
    const small_parts w_first = split_small(first[0], first[1]), w_turned = transposed_small(w_first);
    add_small(below, split_small(s.tile[0][2], s.tile[0][3]), w_first, false);
    const small_parts l_below = split_small(below[0], below[1]);
    add_small(last, l_below, l_below, true);
    add_small(product, l_below, w_turned, false);
    eliminate(last, least);
    const small_parts w_last = split_small(last[0], last[1]);
    add_small(corner, w_last, transposed_small(split_small(product[0], product[1])), true);
    const small_parts w_corner = split_small(corner[0], corner[1]),
                      corner_turned = transposed_small(w_corner), last_turned = transposed_small(w_last);
    w = { { w_first.hi, w_corner.hi, 0, w_last.hi }, { w_first.lo, w_corner.lo, 0, w_last.lo } };
    transposed = { { w_turned.hi, 0, corner_turned.hi, last_turned.hi },
                   { w_turned.lo, 0, corner_turned.lo, last_turned.lo } };
}

/* V = L^-T of the matrix s = L L^T, an upper triangle: put(i, j, square) is called for its squares (j, i),
 * j <= i. */
template <class PUT>
static __device__ __forceinline__ void invert_matrix(square_sums (&s)[LOWER_SQUARES], float least, PUT put)
{
    square_parts l[LOWER_SQUARES], v[LOWER_SQUARES], w[SQUARES], x;
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
#pragma unroll
        for (int j = 0; j < i; j++) {
            square_sums at = {};
#pragma unroll
            for (int k = 0; k < j; k++)
                add_square(s[lower_square(i, j)], negated(l[lower_square(i, k)]), l[lower_square(j, k)]);
            split_square(x, s[lower_square(i, j)]);
            add_square(at, x, w[j]);
            split_square(l[lower_square(i, j)], at);
        }
#pragma unroll
        for (int k = 0; k < i; k++)
            add_square(s[lower_square(i, i)], negated(l[lower_square(i, k)]), l[lower_square(i, k)]);
        invert_square(w[i], v[lower_square(i, i)], s[lower_square(i, i)], least);
        put(i, i, v[lower_square(i, i)]);
#pragma unroll
        for (int j = 0; j < i; j++) {
            square_sums sum = {}, at = {};
#pragma unroll
            for (int k = j; k < i; k++)
                add_square(sum, negated(v[lower_square(k, j)]), l[lower_square(i, k)]);
            split_square(x, sum);
            add_square(at, x, w[i]);
            split_square(v[lower_square(i, j)], at);
            put(i, j, v[lower_square(i, j)]);
        }
    }
}

/* ------------------------------------------------------------------ its use */

/* V of a row in the workspace, hi parts: each square as four matrices of 8 x 8, row by row, so that it can be
 * loaded as operand A, and so can its transpose. */
enum { SQUARE_WORDS = SQUARE * SQUARE / 2 };
template <int DIM> constexpr int factor_words = lower_squares<DIM> *SQUARE_WORDS;

static __device__ __forceinline__ void put_square(uint32_t *factor, int square, const uint32_t (&v)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        factor[square * SQUARE_WORDS + e * 32 + (int)threadIdx.x % 32] = v[e];
}

/* A square of a factor in shared memory, and its transpose. */
static __device__ __forceinline__ void load_square(uint32_t (&v)[4], const unsigned char *factor, int square)
{
    load_matrices(v, factor + square * SQUARE_WORDS * 4 + threadIdx.x % 32 * 16);
}
static __device__ __forceinline__ void load_square_transposed(uint32_t (&v)[4], const unsigned char *factor,
                                                              int square)
{
    const unsigned lane = threadIdx.x % 32, from = lane % 8 | (lane & 8) << 1 | (lane & 16) >> 1;
    load_matrices_transposed(v, factor + square * SQUARE_WORDS * 4 + from * 16);
}

/* Operands B: pairs of channels 16 n + 2 t and 16 n + 8 + 2 t of eight vectors, one for each g. */
template <int DIM> struct vector_parts {
    uint32_t hi[DIM / SQUARE][2], lo[DIM / SQUARE][2];
};

/* What squares (0, i) .. (i, i) of V, which lie at squares[n], add to z = V V^T r of eight vectors r, of each
 * of COUNT factors V; OWN: only to vector `own`. z: channels 16 n + g and 16 n + 8 + g of vectors 2 t and
 * 2 t + 1. */
template <int COUNT, bool OWN, int DIM>
static __device__ __forceinline__ void multiply_squares(float (&z)[COUNT][DIM / SQUARE][4],
                                                        const vector_parts<DIM> &r, int i,
                                                        const unsigned char *const (&squares)[COUNT],
                                                        int own = 0)
{
    constexpr int chains = OWN ? 4 : 1; /* of products that wait for each other */
    uint32_t v[4];
    float y[COUNT][chains][4] = {};
    uint32_t first[COUNT][2], second[COUNT][2];
#pragma unroll
    for (int j = 0; j <= i; j++) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            load_square_transposed(v, squares[n], j);
            mma_half(y[n][2 * j % chains], v, r.lo[j][0], r.lo[j][1]);
            mma_half(y[n][(2 * j + 1) % chains], v, r.hi[j][0], r.hi[j][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        float(&sum)[4] = y[n][0];
#pragma unroll
        for (int at = 4; at < 4 * chains; at++)
            sum[at % 4] += y[n][at / 4][at % 4];
        split_pair<__half>(first[n], sum[0], sum[1]);
        split_pair<__half>(second[n], sum[2], sum[3]);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            first[n][part] = transposed_matrix(first[n][part]);
            second[n][part] = transposed_matrix(second[n][part]);
            if (OWN && (int)threadIdx.x % 32 / 4 != own) first[n][part] = second[n][part] = 0;
        }
    }
#pragma unroll
    for (int j = 0; j <= i; j++) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            load_square(v, squares[n], j);
            mma_half(z[n][j], v, first[n][1], second[n][1]);
            mma_half(z[n][j], v, first[n][0], second[n][0]);
        }
    }
}

/* x and y, element g of vectors 2 t and 2 t + 1, become elements 2 t and 2 t + 1 of vector g. */
static __device__ __forceinline__ void transpose_floats(float &x, float &y)
{
    const uint32_t first = __float_as_uint(x), second = __float_as_uint(y);
    const uint32_t low = transposed_matrix(__byte_perm(first, second, 0x5410)),
                   high = transposed_matrix(__byte_perm(first, second, 0x7632));
    x = __uint_as_float(__byte_perm(low, high, 0x5410));
    y = __uint_as_float(__byte_perm(low, high, 0x7632));
}

#endif
