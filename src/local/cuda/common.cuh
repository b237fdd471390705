/* SPDX-License-Identifier: MIT
 *
 * What the CUDA kernels of the local family share: the shapes of tiles, the block of rows of a thread block,
 * the score, the online softmax.
 *
 * A thread block has 4 warps and 64 rows (queries). Each warp has 16 rows to itself, from the scores to the
 * output; each thread has two of them, in the layout of D in mma.cuh (rows g and g + 8). Sums over keys are
 * reduced within the four lanes of a row: warps wait for each other only where the next tile of keys, which
 * all of them read, is loaded.
 *
 * bf16 problems with dot scores compute on narrow tiles, which hold the inputs unchanged. All others compute
 * on wide tiles, with keys relative to the first key of the sequence (the "origin", as on CPUs), so that no
 * precision is lost where all keys lie far from zero.
 */
#ifndef LOAM_LOCAL_CUDA_COMMON_CUH
#define LOAM_LOCAL_CUDA_COMMON_CUH

#include "src/gpu/tile.cuh"
#include "src/local/decay.h"
#include "src/local/score.h"

enum { THREADS = 128, ROWS = 64, CHUNK = 128 };

/* Tiles for head dimensions up to DIM; functions call it S. A pass computes CHUNK columns of the output at
 * most. */
template <bool WIDE, int DIM> struct shape {
    typedef element<WIDE> type;
    static constexpr int keys = WIDE ? (DIM == 256 ? 16 : 32) : DIM == 64 ? 64 : 32;
    static constexpr int stages = WIDE || DIM > 128 ? 1 : 2;
    static constexpr int columns = DIM < CHUNK ? DIM : CHUNK;
    static constexpr int pitch = DIM + PAD;
    static constexpr int row_tile = ROWS * pitch; /* elements of a tile of queries */
    static constexpr int key_tile = keys * pitch; /* of a tile of keys */
    static constexpr int value_tile = keys * (columns + PAD);
    static constexpr int parts = parts_of<WIDE>;
};

LOAM_INLINE bool local_wide(const loam_problem *p) { return p->dtype != LOAM_BF16 || p->score == LOAM_RBF; }

/* Do wide tiles save lse, kbar and the products of the probe as if keys were not relative to the origin?
 * Those of Hopper do; a forward there may be followed by a backward here, or the other way round: the arrays
 * decide which of them falls back on these kernels. */
LOAM_INLINE bool local_saves_raw(const loam_problem *p)
{
    return p->dtype == LOAM_F16 && p->score == LOAM_DOT && !local_mapped(p) &&
           (p->mechanism != LOAM_LLA || p->ridge_unit != LOAM_RIDGE_TRACE);
}

/* Channel c of what kbar then has more than kbar of keys relative to the origin. */
template <bool WIDE>
static __device__ __forceinline__ float saved_shift(const loam_problem &p, const float *origin, int c)
{
    return WIDE && local_saves_raw(&p) ? origin[c] : 0;
}

LOAM_INLINE int local_padded_dim(const loam_problem *p)
{
    const int64_t d = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    return d <= 64 ? 64 : d <= 128 ? 128 : 256;
}

/* ------------------------------------------------------------------ the block of rows */

struct row_block {
    local_seq s;
    int64_t h, h_kv, i0;
    int rows;        /* queries i0 .. i0 + rows - 1 of sequence s */
    int first, last; /* keys first .. last - 1: all that any of the rows sees */
};

/* Block n of the problem, of `size` rows at most; late rows first, since they see the most keys. rows <= 0
 * where the sequence is too short to have this block. */
static __device__ __forceinline__ row_block row_block_of(const loam_problem &p, const loam_args &a, int64_t n,
                                                         int size)
{
    const int64_t blocks = (p.len_q + size - 1) / size, back = n / (p.batch * p.heads_q);
    row_block x;
    x.h = n % p.heads_q;
    x.h_kv = local_kv_head(&p, x.h);
    x.s = local_seq_at(&p, &a, n / p.heads_q % p.batch);
    x.i0 = (blocks - 1 - back) * size;
    x.rows = (int)(x.s.nq - x.i0 < size ? x.s.nq - x.i0 : size);
    x.first = 0, x.last = 0;
    if (x.rows > 0) {
        int64_t lo, hi, unused;
        local_visible(&p, &x.s, x.i0, &lo, &unused);
        local_visible(&p, &x.s, x.i0 + x.rows - 1, &unused, &hi);
        x.first = (int)lo, x.last = (int)(hi > lo ? hi : lo);
    }
    return x;
}

template <int ROWS_OF_BLOCK = ROWS>
static __device__ __forceinline__ row_block row_block_at(const loam_problem &p, const loam_args &a, int64_t n)
{
    return row_block_of(p, a, n, ROWS_OF_BLOCK);
}

/* The two rows of this thread. */
struct row_pair {
    int at[2];         /* row of the block */
    bool real[2];      /* the row is within the sequence */
    int lo[2], hi[2];  /* the row sees keys lo .. hi - 1 */
    float position[2]; /* of the row among the keys: i + n_kv - n_q */
};

static __device__ __forceinline__ row_pair row_pair_of(const loam_problem &p, const row_block &x)
{
    row_pair r;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int64_t lo = 0, hi = 0;
        r.at[e] = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * e;
        r.real[e] = r.at[e] < x.rows;
        if (r.real[e]) local_visible(&p, &x.s, x.i0 + r.at[e], &lo, &hi);
        r.lo[e] = (int)lo, r.hi[e] = (int)hi;
        r.position[e] = (float)(x.i0 + r.at[e] + x.s.nk - x.s.nq);
    }
    return r;
}

/* Whether the warp has no rows: it then skips products, but helps to load tiles. */
static __device__ __forceinline__ bool warp_is_idle(const row_block &x)
{
    return (int)(threadIdx.x / 32 * 16) >= x.rows;
}

/* The column of element e (0 to 3) of fragment n of a warp's accumulator. */
static __device__ __forceinline__ int column_of(int n, int e)
{
    return 8 * n + 2 * (threadIdx.x % 4) + e % 2;
}

static __device__ __forceinline__ rows_view rows_of(const loam_const_view &v, loam_dtype dtype, int64_t b,
                                                    int64_t h, int64_t token)
{
    const rows_view out = { v.data, dtype, LOCAL_AT(v, b, h, token), v.token };
    return out;
}

/* origin <- the first key of the sequence, as float. Zeros where the sequence has no keys, beyond dim_qk, and
 * with PaTH: there each row sees the keys reflected differently, and no shift is common to all rows. */
template <int DIM>
static __device__ __forceinline__ void load_origin(float *origin, const loam_problem &p, const loam_args &a,
                                                   const local_seq &s, int64_t h_kv)
{
    for (int c = threadIdx.x; c < DIM; c += blockDim.x) {
        const int64_t at = LOCAL_AT(a.k, s.b, h_kv, s.k0) + c;
        origin[c] = !p.path && s.nk > 0 && c < p.dim_qk ? load_real<float>(a.k.data, p.dtype, at) : 0;
    }
}

/* ------------------------------------------------------------------ the score */

struct score_constants {
    bool rbf, mapped, sloped, biased, decayed, scaled_only;
    float scale, cap, slope;
    const local_decay_pair *decay; /* G of local/decay.h to base 2, from the sequence's first key on */
};

static __device__ __forceinline__ score_constants score_constants_of(const loam_problem &p,
                                                                     const loam_args &a, const local_seq &seq,
                                                                     int64_t h)
{
    score_constants s;
    s.rbf = p.score == LOAM_RBF, s.mapped = local_mapped(&p), s.sloped = p.slope != 0,
    s.biased = p.key_bias != 0, s.decayed = p.decay != 0;
    s.scaled_only = !s.rbf && !s.mapped && !s.sloped && !s.biased && !s.decayed;
    s.scale = (float)p.scale, s.cap = (float)p.soft_cap;
    s.slope = s.sloped ? ((const float *)a.slope)[h] : 0;
    s.decay = (const local_decay_pair *)a.log_decay.data +
              (s.decayed ? LOCAL_AT(a.log_decay, seq.b, h, seq.k0) : 0);
    return s;
}

/* Terms of the score of a key beside the product q . k, for one tile: |k|^2 (RBF) and the bias. */
struct key_terms {
    const float *norm, *bias; /* [keys of the tile] */
};

static __device__ __forceinline__ float clamp_score(float x)
{
    return fminf(fmaxf(x, -SCORE_LIMIT), SCORE_LIMIT);
}

/* Reads a pair of G by volatile asm, so that the compiler does not keep it in registers from one use to the
 * next: kernels whose scores do not decay have no registers for that. */
static __device__ __forceinline__ local_decay_pair read_decay(const local_decay_pair *at)
{
    local_decay_pair pair;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(pair.hi), "=f"(pair.lo) : "l"(at));
    return pair;
}

/* G_a - G_j, the sum of the log decays between key j and a query at position a = hi - 1, the last key that
 * the query sees. Natural logarithm. */
static __device__ __forceinline__ float decay_between(const score_constants &sc, int hi, int j)
{
    const local_decay_pair query = read_decay(sc.decay + (hi > 0 ? hi - 1 : 0)),
                           key = read_decay(sc.decay + j);
    return ((query.hi - key.hi) + (query.lo - key.lo)) * (float)LN2;
}

/* The map of a scaled score; *factor is its derivative. */
static __device__ __forceinline__ float map_score(const score_constants &sc, float z, float *factor)
{
    const float t = tanhf(z / sc.cap);
    *factor = 1 - t * t;
    return sc.cap * t;
}

/* The score of key j, column c of its tile, from the product q . k. constant: the part of the product that
 * depends on the query alone (query_constants), 0 but where scores are mapped: elsewhere it shifts all scores
 * of the row alike. hi: the end of the keys that the query sees. *factor is d s / d (scale x). */
static __device__ __forceinline__ float score_of(const score_constants &sc, const key_terms &k, float product,
                                                 float constant, float position, int hi, int j, int c,
                                                 float *factor)
{
    *factor = 1;
    if (sc.scaled_only) return clamp_score(product * sc.scale);
    float s = clamp_score(clamp_score(product + constant - (sc.rbf ? 0.5f * k.norm[c] : 0)) * sc.scale);
    if (sc.mapped) s = map_score(sc, s, factor);
    if (sc.sloped) s -= sc.slope * fabsf(position - (float)j);
    if (sc.decayed) s += decay_between(sc, hi, j);
    return sc.biased ? s + k.bias[c] : s;
}

/* The warp's products with the tile that begins at key j become scores; -inf where a row does
 * not see the key. */
template <int BLOCKS>
static __device__ __forceinline__ void scores_in_place(float (&s)[BLOCKS][4], const score_constants &sc,
                                                       const key_terms &k, const row_pair &r,
                                                       const float (&constant)[2], int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = column_of(n, e), row = e / 2;
            float factor;
            const float x = score_of(sc, k, s[n][e], constant[row], r.position[row], r.hi[row], j + c, c,
                                     &factor);
            s[n][e] = j + c >= r.lo[row] && j + c < r.hi[row] ? x : -INFINITY;
        }
    }
}

/* e^x for x <= 0. */
static __device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * (float)LOG2E); }

static __device__ __forceinline__ float finite_or_zero(float m) { return m > -INFINITY ? m : 0; }

/* p = exp(s - lse). Where s and lse are large so are their rounding errors, which must not
 * make p exceed 1. */
static __device__ __forceinline__ float weight_of(float s, float lse) { return exp_fast(fminf(s - lse, 0)); }

/* Online softmax: the running maximum and sum of weights of the thread's two rows. omega is of the
 * thread's columns. */
struct online {
    float m[2], omega[2];
};

static __device__ __forceinline__ void online_begin(online &o)
{
    o.m[0] = o.m[1] = -INFINITY;
    o.omega[0] = o.omega[1] = 0;
}

/* Scores of a tile become w = exp(s - m) under the new maximum, rounded to PARTS bf16 parts (0: not rounded),
 * and are added to omega. keep[row] is the factor for all that the row has accumulated before. */
template <int PARTS, int BLOCKS>
static __device__ __forceinline__ void online_weigh(online &o, float (&s)[BLOCKS][4], float (&keep)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = o.m[row];
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
            top = fmaxf(top, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        top = quad_max(top);
        const float m = finite_or_zero(top);
        keep[row] = exp_fast(o.m[row] - m);
        o.m[row] = top;
        o.omega[row] *= keep[row];
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                s[n][e] = exp_fast(s[n][e] - m);
                if constexpr (PARTS > 0) s[n][e] = rounded<PARTS>(s[n][e]);
                o.omega[row] += s[n][e];
            }
        }
    }
}

template <int BLOCKS>
static __device__ __forceinline__ void scale_rows(float (&x)[BLOCKS][4], const float (&by)[2])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] *= by[e / 2];
    }
}

/* The unit of the ridge of a row. top: its largest weight; variance: trace(Cov) / dim_qk, the mean variance
 * of the keys that the row sees. */
template <class REAL>
static __device__ __forceinline__ REAL ridge_unit_of(const loam_problem &p, REAL top, REAL variance)
{
    return p.ridge_unit == LOAM_RIDGE_MAX     ? top
           : p.ridge_unit == LOAM_RIDGE_TRACE ? variance + (REAL)LOCAL_TRACE_FLOOR
                                              : 1;
}

/* ------------------------------------------------------------------ results */

/* Stores x and y to columns c and c + 1 of a row that begins at element `at`, where the row, of `columns`
 * elements, has them. */
static __device__ __forceinline__ void store_pair(void *data, loam_dtype dtype, int64_t at, int c,
                                                  int64_t columns, float x, float y)
{
    if (c < columns) store_real(data, dtype, at + c, x);
    if (c + 1 < columns) store_real(data, dtype, at + c + 1, y);
}

static __device__ __forceinline__ void put_info(const loam_args &a, const row_block &x, int64_t i,
                                                loam_row_info info)
{
    if (a.info.data) ((loam_row_info *)a.info.data)[LOCAL_AT(a.info, x.s.b, x.h, x.s.q0 + i)] = info;
}

/* Clears the block's rows of args.weights: keys that a row does not see keep weight 0. */
static __device__ __forceinline__ void clear_weights(const loam_problem &p, const loam_args &a,
                                                     const row_block &x)
{
    for (int64_t e = threadIdx.x; e < x.rows * p.len_kv; e += THREADS) {
        const int64_t i = x.s.q0 + x.i0 + e / p.len_kv;
        ((float *)a.weights.data)[LOCAL_AT(a.weights, x.s.b, x.h, i) + e % p.len_kv] = 0;
    }
    __syncthreads();
}

static __device__ __forceinline__ void put_weight(const loam_args &a, const row_block &x, const row_pair &r,
                                                  int row, int j, float w)
{
    if (r.real[row] && j >= r.lo[row] && j < r.hi[row])
        ((float *)a.weights.data)[LOCAL_AT(a.weights, x.s.b, x.h, x.s.q0 + x.i0 + r.at[row]) + j] = w;
}

#endif
