/* SPDX-License-Identifier: MIT
 *
 * A matrix of a row, near Cov + Lambda, and its inverse as V V^T: what preconditions the row's conjugate
 * gradients. A warp has one matrix at a time, in squares of 16 x 16 channels: accumulators are pairs of
 * fragments D of mma.cuh, operands are fragments A, which serve as B of the transpose too.
 *
 * The matrix is a sum of products x x^T with x = sqrt(p) (k - kbar) in one fp16 part: an error in x leaves it
 * positive definite and changes an eigenvalue L of it by 2^-11 |x| sqrt(L) at most, little even at the ridge.
 * Products of the factorisation have two fp16 parts, 22 bits.
 */
#ifndef LOAM_LOCAL_HOPPER_ROW_FACTOR_CUH
#define LOAM_LOCAL_HOPPER_ROW_FACTOR_CUH

#include "src/gpu/hopper.cuh"

enum { SQUARE = 16, SQUARES = TILE_SIDE / SQUARE, LOWER_SQUARES = SQUARES * (SQUARES + 1) / 2 };

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

/* Keys of a list on their way to a warp. A key's 16-byte chunk n is stored as chunk n ^ (key % 8). */
enum { GATHER_STAGES = 8, GATHER_BYTES = SQUARE * TILE_SIDE * 2 };

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

/* x <- sqrt(p) (k - centre) of such keys. centre: its negative times CENTRED_SCALE in channels 8 n + g, twice
 * each; root: sqrt(p) times ROOT_SCALE of keys 2 t and 2 t + 1, and of the eighth ones after these. */
static __device__ __forceinline__ void centred_keys(uint32_t (&x)[SQUARES][4], const void *tile,
                                                    const uint32_t (&centre)[2 * SQUARES],
                                                    const uint32_t (&root)[2])
{
    const __half2 scale = __float2half2_rn(CENTRED_SCALE);
    load_keys_transposed(x, tile);
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            __half2 k, c, w;
            memcpy(&k, &x[i][e], sizeof k);
            memcpy(&c, &centre[2 * i + e % 2], sizeof c);
            memcpy(&w, &root[e / 2], sizeof w);
            k = __hmul2(__hfma2(k, scale, c), w);
            memcpy(&x[i][e], &k, sizeof k);
        }
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

/* Adds to the diagonal; ridge: of channels 8 n + g. */
static __device__ __forceinline__ void add_diagonal(square_sums (&s)[LOWER_SQUARES],
                                                    const float (&ridge)[2 * SQUARES])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2 * SQUARES; n++) {
        float(&d)[4] = s[lower_square(n / 2, n / 2)].tile[n % 2];
        d[n % 2 * 2] += g == 2 * t ? ridge[n] : 0;
        d[n % 2 * 2 + 1] += g == 2 * t + 1 ? ridge[n] : 0;
    }
}

/* ------------------------------------------------------------------ its inverse */

static __device__ __forceinline__ void transpose_square(uint32_t (&y)[4], const uint32_t (&x)[4])
{
    y[0] = transposed_matrix(x[0]), y[1] = transposed_matrix(x[2]);
    y[2] = transposed_matrix(x[1]), y[3] = transposed_matrix(x[3]);
}

/* s = L L^T becomes L^-1, but for what is above its diagonal. Row operations turn s = U D U^T into D U^T and
 * the identity into U^-1, of which column k takes the place of the eliminated column k of s; the rows of U^-1
 * divided by the roots of D are those of L^-1. Pivots are at least `least`. */
static __device__ __forceinline__ void eliminate_square(square_sums &s, float least)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float own[2] = { 1, 1 };
#pragma unroll
    for (int k = 0; k < SQUARE; k++) {
        const int in_row = k / 8 * 2, in_column = k % 2, fragment = k / 8, owner = k % 8 / 2;
        const float pivot = fmaxf(
            __shfl_sync(0xffffffffu, s.tile[fragment][in_row + in_column], k % 8 * 4 + owner), least);
        float above[2][2], factor[2];
#pragma unroll
        for (int e = 0; e < 4; e++)
            above[e / 2][e % 2] = __shfl_sync(0xffffffffu, s.tile[e / 2][in_row + e % 2], k % 8 * 4 + t);
#pragma unroll
        for (int row = k / 8; row < 2; row++) {
            const float mine = __shfl_sync(0xffffffffu, s.tile[fragment][2 * row + in_column], g * 4 + owner);
            factor[row] = g + 8 * row > k ? __fdividef(mine, pivot) : 0;
            own[row] = g + 8 * row == k ? pivot : own[row];
#pragma unroll
            for (int e = 0; e < 4; e++)
                s.tile[e / 2][2 * row + e % 2] -= factor[row] * above[e / 2][e % 2];
            if (t == owner && g + 8 * row > k) s.tile[fragment][2 * row + in_column] = -factor[row];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float scale = rsqrtf(own[row]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = e / 2 * 8 + 2 * t + e % 2;
            float &at = s.tile[e / 2][2 * row + e % 2];
            at = (column < g + 8 * row ? at : column == g + 8 * row ? 1.0f : 0.0f) * scale;
        }
    }
}

/* W = L^-1 of the square s = L L^T, and its transpose, as operands. */
static __device__ __forceinline__ void invert_square(square_parts &w, square_parts &transposed,
                                                     square_sums &s, float least)
{
    eliminate_square(s, least);
    split_square(w, s);
    transpose_square(transposed.hi, w.hi);
    transpose_square(transposed.lo, w.lo);
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

/* V of a row in the workspace: hi parts, the four words of a lane side by side. */
enum { FACTOR_WORDS = LOWER_SQUARES * 32 * 4 };

static __device__ __forceinline__ void load_factor(uint32_t (&v)[LOWER_SQUARES][4], const uint32_t *factor)
{
#pragma unroll
    for (int n = 0; n < LOWER_SQUARES; n++) {
        const uint4 word = *(const uint4 *)(factor + (n * 32 + threadIdx.x % 32) * 4);
        v[n][0] = word.x, v[n][1] = word.y, v[n][2] = word.z, v[n][3] = word.w;
    }
}

/* Of the 16 rows r of a warp in two parts, z = r V V^T with the V of one of them, and |r V|^2 (this thread's
 * columns of rows g and g + 8): of use for that row only. Squares of r and z are 16 rows x 16 channels. */
static __device__ __forceinline__ void multiply_factor(square_sums (&z)[SQUARES], float (&norm2)[2],
                                                       const square_parts (&r)[SQUARES],
                                                       const uint32_t (&v)[LOWER_SQUARES][4])
{
    norm2[0] = norm2[1] = 0;
#pragma unroll
    for (int j = 0; j < SQUARES; j++)
        z[j] = {};
#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
        square_sums y = {};
        square_parts part;
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t turned[4];
            transpose_square(turned, v[lower_square(i, j)]);
            add_square(y, r[j].lo, turned);
            add_square(y, r[j].hi, turned);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            norm2[e / 2 % 2] += y.tile[e / 4][e % 4] * y.tile[e / 4][e % 4];
        split_square(part, y);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            add_square(z[j], part.lo, v[lower_square(i, j)]);
            add_square(z[j], part.hi, v[lower_square(i, j)]);
        }
    }
}

#endif
