/* SPDX-License-Identifier: MIT
 *
 * PaTH scores on GPUs: what the kernels share. Tiles of 64 keys have the arrays of local/cpu/path_tile.h: N
 * (rows w), Lam, W, B and Kr (keys as seen from the end of their tile), and
 *
 *     E = N^T W:  a row x crosses a tile as x - x E, a key as k - k E^T
 *
 * Tiles come in groups: Kt are keys as seen from the end of their group, and Eg crosses a whole group. A
 * block of 64 queries x goes through the tiles of its own group one by one, from right to left: scores with
 * Kr, then x crosses by E. Then it goes through the groups before its own, one by one: scores with the Kt of
 * all tiles of the group, then x crosses by Eg. With about as many tiles in a group as there are groups, both
 * kinds of steps are few. x is kept in float32, and E is split in hi and lo parts, so that the crossings lose
 * no precision.
 *
 * Arrays are indexed by slots. A slot is one tile of one head: slot = head * slots + base_b + n for tile n of
 * sequence b, with base_b = b * tiles or, packed, cu_kv[b] / 64 + b, so that the slots of sequences never
 * overlap. Queries are blocked by the tile that holds their positions among the keys, 64 n .. 64 n + 63.
 */
#ifndef LOAM_LOCAL_CUDA_PATH_COMMON_CUH
#define LOAM_LOCAL_CUDA_PATH_COMMON_CUH

#include "src/gpu/launch.cuh"
#include "src/gpu/tile.cuh"
#include "src/local/decay.h"
#include "src/local/local.h"

enum { EDGE = 64, WARPS = 4, THREADS = 32 * WARPS, PITCH = EDGE + PAD, TILE_SIZE = EDGE * EDGE };

typedef __nv_bfloat16 bf16;
typedef bf16 shared_tile[EDGE * PITCH];
/* A warp's 16 rows of a tile of 64 columns, in the layout of D in mma.cuh. */
typedef float strip[8][4];

/* Arrays by slots of key-value heads, [64][64] each; hi and lo are the two bf16 parts of a number. */
struct path_arrays {
    bf16 *kr, *kt;
    bf16 *w_hi, *w_lo, *b_hi, *b_lo, *e_hi, *e_lo, *eg_hi,
        *eg_lo;        /* Eg: at the slot of the first tile of a group */
    bf16 *r_hi, *r_lo; /* backward only, else NULL */
    int64_t slots;     /* of one head */
    int group;         /* tiles of a group */
};

static inline int64_t path_slots(const loam_problem *p)
{
    return sequence_packed(p) ? p->total_kv / EDGE + p->batch : p->batch * ((p->len_kv + EDGE - 1) / EDGE);
}

/* Tiles in a group: a power of 2 near the square root of the number of tiles. */
static inline int path_group(const loam_problem *p)
{
    int group = 4;
    while ((int64_t)group * group < (p->len_kv + EDGE - 1) / EDGE)
        group *= 2;
    return group;
}

static inline path_arrays path_arrays_carve(const loam_problem *p, arena *pool)
{
    const size_t size = size_mul(size_mul((size_t)path_slots(p), (size_t)p->heads_kv), TILE_SIZE);
    path_arrays x;
    bf16 **const all[] = { &x.kr,   &x.kt,   &x.w_hi,  &x.w_lo,  &x.b_hi, &x.b_lo,
                           &x.e_hi, &x.e_lo, &x.eg_hi, &x.eg_lo, &x.r_hi, &x.r_lo };
    const size_t count = p->pass == LOAM_BACKWARD ? 12 : 10;
    x.r_hi = x.r_lo = NULL;
    for (size_t n = 0; n < count; n++)
        *all[n] = (bf16 *)arena_take(pool, size, sizeof(bf16));
    x.slots = path_slots(p), x.group = path_group(p);
    return x;
}

static __device__ __forceinline__ int64_t slot_base(const loam_problem &p, const local_seq &s, int64_t b)
{
    return sequence_packed(&p) ? s.k0 / EDGE + b : b * ((p.len_kv + EDGE - 1) / EDGE);
}

static __device__ __forceinline__ int64_t tiles_of(const local_seq &s) { return (s.nk + EDGE - 1) / EDGE; }

/* ------------------------------------------------------------------ strips of a warp */

/* x += y tile^T. PARTS: bf16 parts of y. */
template <int PARTS>
static __device__ __forceinline__ void product_transposed_right(strip &x, const strip &y, const bf16 *tile)
{
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
        operand_a<PARTS> a;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t part[PARTS];
            split_pair(part, y[k + e / 2][e % 2 * 2], y[k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < PARTS; n++)
                a.part[n][e] = part[n];
        }
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            operand_b<1> b[2];
            load_b_rows<PITCH>(b, tile, 8 * n, 8 * k);
            mma(x[n], a, b[0]);
            mma(x[n + 1], a, b[1]);
        }
    }
}

/* Operand A from rows m .. m + 15, columns k .. k + 15 of the transpose of a tile. */
static __device__ __forceinline__ void load_a_transposed(operand_a<1> &a, const bf16 *tile, int m, int k)
{
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(a.part[0], tile + (k + lane / 16 * 8 + lane % 8) * PITCH + m + lane / 8 % 2 * 8);
}

/* x += rows m .. m + 15 of left^T times right. */
static __device__ __forceinline__ void product_transposed_left(strip &x, const bf16 *left, int m,
                                                               const bf16 *right)
{
#pragma unroll
    for (int k = 0; k < EDGE; k += 16) {
        operand_a<1> a;
        load_a_transposed(a, left, m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            operand_b<1> b[2];
            load_b<PITCH>(b, right, k, 8 * n);
            mma(x[n], a, b[0]);
            mma(x[n + 1], a, b[1]);
        }
    }
}

/* x += rows m .. m + 15 of left times right. */
static __device__ __forceinline__ void product_tiles(strip &x, const bf16 *left, int m, const bf16 *right)
{
#pragma unroll
    for (int k = 0; k < EDGE; k += 16) {
        operand_a<1> a;
        load_a<PITCH>(a, left, m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            operand_b<1> b[2];
            load_b<PITCH>(b, right, k, 8 * n);
            mma(x[n], a, b[0]);
            mma(x[n + 1], a, b[1]);
        }
    }
}

/* Calls f(row, column, x, y) for the pairs (two neighbours of a row) of a warp's strip that
 * begins at row m. */
template <class F> static __device__ __forceinline__ void for_pairs(strip &x, int m, F f)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        f(m + g, 8 * n + 2 * t, x[n][0], x[n][1]);
        f(m + g + 8, 8 * n + 2 * t, x[n][2], x[n][3]);
    }
}

static __device__ __forceinline__ void strip_negate(strip &x)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        x[n][0] = -x[n][0], x[n][1] = -x[n][1], x[n][2] = -x[n][2], x[n][3] = -x[n][3];
}

static __device__ __forceinline__ void strip_copy(strip &x, const strip &y)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        x[n][0] = y[n][0], x[n][1] = y[n][1], x[n][2] = y[n][2], x[n][3] = y[n][3];
}

static __device__ __forceinline__ void store_bf16_pair(bf16 *to, float x, float y)
{
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, y);
}

/* Stores a strip to rows m .. of `pitch` elements as bf16; lo, if not NULL, gets the lo part. */
static __device__ __forceinline__ void strip_store(strip &x, int m, bf16 *hi, bf16 *lo, int pitch)
{
    for_pairs(
        x, m,
        [&](int r, int c, float &u, float &v) {
            store_bf16_pair(hi + r * pitch + c, u, v);
            if (lo)
                store_bf16_pair(lo + r * pitch + c, u - __bfloat162float(__float2bfloat16_rn(u)),
                                v - __bfloat162float(__float2bfloat16_rn(v)));
        });
}

static __device__ __forceinline__ void strip_load(strip &x, int m, const bf16 *from, int pitch)
{
    for_pairs(
        x, m,
        [&](int r, int c, float &u, float &v) {
            const float2 pair = __bfloat1622float2(*(const __nv_bfloat162 *)(from + r * pitch + c));
            u = pair.x, v = pair.y;
        });
}

/* x <- x - x E, with E in two parts. */
static __device__ __forceinline__ void cross_tile(strip &x, const bf16 *e_hi, const bf16 *e_lo)
{
    strip minus;
    strip_copy(minus, x);
    strip_negate(minus);
    product_weights<1, PITCH>(x, minus, e_lo, 0);
    product_weights<2, PITCH>(x, minus, e_hi, 0);
}

/* x <- x - x E^T. */
static __device__ __forceinline__ void cross_tile_transposed(strip &x, const bf16 *e_hi, const bf16 *e_lo)
{
    strip minus;
    strip_copy(minus, x);
    strip_negate(minus);
    product_transposed_right<1>(x, minus, e_lo);
    product_transposed_right<2>(x, minus, e_hi);
}

/* ------------------------------------------------------------------ loads of tiles to shared memory */

/* Loads the [64][64] array of a slot. Asynchronous: await_tiles() waits. */
static __device__ __forceinline__ void fill_slot(bf16 *tile, const bf16 *slot)
{
    for (int e = threadIdx.x; e < EDGE * EDGE / 8; e += THREADS)
        copy_async_16(tile + e / 8 * PITCH + e % 8 * 8, slot + e * 8);
}

/* Loads rows first .. first + 63 of an argument; 0 where a row is negative or not below `count`. */
static __device__ __forceinline__ void fill_argument(bf16 *tile, const loam_const_view &view, int64_t b,
                                                     int64_t h, int64_t token, int64_t first, int64_t count)
{
    const int64_t at = b * view.batch + h * view.head + token * view.token;
    const bf16 *data = (const bf16 *)view.data + at;
    const bool aligned = view.token % 8 == 0 && (uintptr_t)data % 16 == 0;
    for (int e = threadIdx.x; e < EDGE * EDGE / 8; e += THREADS) {
        const int64_t row = first + e / 8;
        bf16 *to = tile + e / 8 * PITCH + e % 8 * 8;
        const bf16 *from = data + row * view.token + e % 8 * 8;
        if (row >= 0 && row < count && aligned)
            copy_async_16(to, from);
        else
            for (int c = 0; c < 8; c++)
                to[c] = row >= 0 && row < count ? from[c] : __float2bfloat16_rn(0);
    }
}

static __device__ __forceinline__ void await_tiles()
{
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

/* ------------------------------------------------------------------ a block of rows */

struct path_rows {
    local_seq s;
    int64_t b, h, h_kv;
    int n;         /* tile of its positions; negative: before all keys */
    int64_t first; /* row r is query first + r, if there is one */
    int64_t base;  /* slot of tile 0 of the key-value head */
};

static inline int64_t path_row_blocks(const loam_problem *p) { return (p->len_q + EDGE - 1) / EDGE + 1; }

/* Block `index` of the launch: the last rows of all heads come first. False where the block has no rows. */
static __device__ __forceinline__ bool path_rows_of(const loam_problem &p, const loam_args &a, int64_t slots,
                                                    int64_t index, path_rows &x)
{
    x.h = index % p.heads_q, x.b = index / p.heads_q % p.batch;
    const int64_t back = index / p.heads_q / p.batch;
    x.s = local_seq_at(&p, &a, x.b);
    x.h_kv = local_kv_head(&p, x.h);
    x.n = (int)(tiles_of(x.s) - 1 - back);
    x.first = (int64_t)x.n * EDGE - x.s.nk + x.s.nq;
    x.base = x.h_kv * slots + slot_base(p, x.s, x.b);
    return x.first + EDGE > 0 && x.first < x.s.nq;
}

static __device__ __forceinline__ bool row_exists(const path_rows &x, int r)
{
    return x.first + r >= 0 && x.first + r < x.s.nq;
}

/* Running log-decay sum G at a position among the keys, to base 2. */
static __device__ __forceinline__ local_decay_pair decay_at(const loam_args &a, const path_rows &x,
                                                            int64_t at)
{
    const local_decay_pair *sum = (const local_decay_pair *)a.log_decay.data;
    return at >= 0 && at < x.s.nk ? sum[LOCAL_AT(a.log_decay, x.s.b, x.h, x.s.k0 + at)]
                                  : local_decay_pair{ 0, 0 };
}

/* The products of a warp's rows with tile n become scores to base 2; -inf above the diagonal of the
 * rows' own tile. */
template <bool DECAY>
static __device__ __forceinline__ void scores_of(strip &s, const path_rows &x, const loam_args &a,
                                                 float scale, int n, int m)
{
    const int g = threadIdx.x % 32 / 4;
    local_decay_pair row[2];
    if (DECAY) {
        row[0] = decay_at(a, x, (int64_t)x.n * EDGE + m + g);
        row[1] = decay_at(a, x, (int64_t)x.n * EDGE + m + g + 8);
    }
    for_pairs(s, m, [&](int r, int c, float &u, float &v) {
        u *= scale, v *= scale;
        if (DECAY) {
            const local_decay_pair at = row[r != m + g], left = decay_at(a, x, (int64_t)n * EDGE + c),
                                   right = decay_at(a, x, (int64_t)n * EDGE + c + 1);
            u += (at.hi - left.hi) + (at.lo - left.lo);
            v += (at.hi - right.hi) + (at.lo - right.lo);
        }
        if (n == x.n) {
            u = c <= r ? u : -INFINITY;
            v = c + 1 <= r ? v : -INFINITY;
        }
    });
}

/* For rows m .. of a block: the scores with the keys of their own tile, s = q k^T - a B with
 * a = lower(q N^T), and the queries as the tiles before see them, x = q - a W. tiles, in shared memory: q, k,
 * N, then hi and lo of B and of W. minus_a: -a. */
static __device__ __forceinline__ void score_own_tile(strip &s, strip &x, strip &minus_a,
                                                      const shared_tile *tiles, int m)
{
    clear(s);
    clear(minus_a);
    product_rows<1, EDGE>(s, tiles[0], 0, m, tiles[1]);
    product_rows<1, EDGE>(minus_a, tiles[0], 0, m, tiles[2]);
    for_pairs(minus_a, m, [&](int r, int c, float &u, float &v) {
        u = c <= r ? -u : 0;
        v = c + 1 <= r ? -v : 0;
    });
    product_weights<1, PITCH>(s, minus_a, tiles[4], 0);
    product_weights<2, PITCH>(s, minus_a, tiles[3], 0);
    strip_load(x, m, tiles[0], PITCH);
    product_weights<1, PITCH>(x, minus_a, tiles[6], 0);
    product_weights<2, PITCH>(x, minus_a, tiles[5], 0);
}

/* Loads the tiles that `score_own_tile` reads. */
static __device__ __forceinline__ void fill_own(shared_tile *tiles, const loam_args &a, const path_rows &x,
                                                const path_arrays &w)
{
    const int64_t slot = (x.base + x.n) * TILE_SIZE;
    fill_argument(tiles[0], a.q, x.s.b, x.h, x.s.q0, x.first, x.s.nq);
    fill_argument(tiles[1], a.k, x.s.b, x.h_kv, x.s.k0, (int64_t)x.n * EDGE, x.s.nk);
    fill_argument(tiles[2], a.w, x.s.b, x.h_kv, x.s.k0, (int64_t)x.n * EDGE, x.s.nk);
    fill_slot(tiles[3], w.b_hi + slot);
    fill_slot(tiles[4], w.b_lo + slot);
    fill_slot(tiles[5], w.w_hi + slot);
    fill_slot(tiles[6], w.w_lo + slot);
}

/* Whether rows of tile n cross something after their scores with tile j: E of tile j in their own group; Eg
 * at the first tile of another group. Nothing lies before tile 0. */
static __device__ __forceinline__ bool crosses(int n, int j, int group)
{
    return j > 0 && (j / group == n / group || j % group == 0);
}

static __device__ __forceinline__ void fill_crossing(bf16 *hi, bf16 *lo, const path_rows &x,
                                                     const path_arrays &w, int j)
{
    const bool own = j / w.group == x.n / w.group;
    const int64_t slot = (x.base + j) * TILE_SIZE;
    fill_slot(hi, (own ? w.e_hi : w.eg_hi) + slot);
    fill_slot(lo, (own ? w.e_lo : w.eg_lo) + slot);
}

static __device__ __forceinline__ const bf16 *keys_for(const path_rows &x, const path_arrays &w, int j)
{
    return (j / w.group == x.n / w.group ? w.kr : w.kt) + (x.base + j) * TILE_SIZE;
}

/* ------------------------------------------------------------------ host */

/* Computes the arrays of all tiles and groups: local/cuda/path/prepare.cu. */
loam_status local_path_prepare_cuda(const loam_problem *p, const loam_args *a, const path_arrays *w,
                                    loam_error *error);

#endif
