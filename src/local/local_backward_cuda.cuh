/* SPDX-License-Identifier: MIT
 *
 * Backward on GPUs: what its kernels share. Formulas and numerical care are those of local_backward_cpu.c; so
 * are the two passes, in which no thread block adds to what another writes:
 *
 *   rows   64 or fewer queries of a head, all keys stream by: drho (probe_kernel), the adjoint solve
 *          (adjoint_kernel), then the row constants and dq (query_kernel)
 *   keys   64 or fewer keys of a key-value head, all queries that see them stream by: dk and dv (key_kernel)
 *
 * Beside q, a row has up to three vectors that multiply the keys ("directions"): rho; for LLA y; and where
 * the ridge is relative to the trace, kbar. Those of LLA have more digits than bf16, and are two narrow tiles
 * each.
 */
#ifndef LOAM_LOCAL_LOCAL_BACKWARD_CUDA_CUH
#define LOAM_LOCAL_LOCAL_BACKWARD_CUDA_CUH

#include "src/local/local_backward_cuda.h"
#include "src/local/local_stream_cuda.cuh"

/* Directions of a row. */
enum { NO_DIRECTION, GIVEN_PROBE, SOLVED_PROBE, SOLVED_BY_TRACE };

/* Shared memory of a thread block for tiles: what compute capability 8.0 has, less a little for the rest. */
constexpr size_t TILE_BYTES = 156 * 1024;

/* The most rows whose tiles fit, where each row takes `each` bytes and all else `rest`. */
constexpr int most_rows(size_t each, size_t rest)
{
    return 64 * each + rest <= TILE_BYTES ? 64 : 32 * each + rest <= TILE_BYTES ? 32 : 16;
}

template <bool WIDE, int DIM, int DIRECTIONS> struct backward_shape {
    typedef element<WIDE> type;
    static constexpr int dim = DIM, pitch = DIM + PAD;
    static constexpr size_t row_bytes = pitch * sizeof(type);
    static constexpr int stages = WIDE || DIM > 128 ? 1 : 2;
    /* Tiles of a direction, and of a row: q, do, directions. */
    static constexpr int direction_parts = WIDE || DIRECTIONS < SOLVED_PROBE ? 1 : 2;
    static constexpr int row_tiles = 2 + DIRECTIONS * direction_parts;
    static constexpr int directions = DIRECTIONS > 0 ? DIRECTIONS *direction_parts : 1;

    /* Rows of a block and keys of a tile that streams by. */
    static constexpr int keys = DIM > 128 ? 16 : 32;
    static constexpr int rows = most_rows(row_tiles * row_bytes, 2 * stages * keys * row_bytes);
    static constexpr int threads = 2 * rows;

    /* Keys of a block and queries of a tile that streams by; dk and dv are computed `columns` at a time. */
    static constexpr bool light = WIDE ? DIM == 64 && DIRECTIONS == NO_DIRECTION
                                       : DIM == 64 || (DIM == 128 && DIRECTIONS < SOLVED_PROBE);
    static constexpr int queries = light ? 32 : 16; /* as registers allow */
    static constexpr int key_rows = most_rows(2 * row_bytes, row_tiles *stages *queries *row_bytes);
    static constexpr int key_threads = 2 * key_rows;
    static constexpr int columns = DIM < CHUNK ? DIM : DIRECTIONS == SOLVED_BY_TRACE ? CHUNK / 2 : CHUNK;

    /* Parts of the weights of sums over keys, which may cancel, and over queries. */
    static constexpr int row_parts = WIDE ? 3 : 2;
    static constexpr int key_parts = WIDE ? 3 : DIRECTIONS < SOLVED_PROBE ? 1 : 2;
};

/* ------------------------------------------------------------------ what one pair says */

/* What a row adds to its pairs beside the products. */
struct pair_row {
    float e, spread, trace, kbar2;
    int peak;
};

/* The pieces of dq, dk and dv: ds = d loss / d s; spread: p x of the trace unit. */
struct pair_terms {
    float ds, error, kept, spread;
};

/* u, g, t centred; product = kbar . k. */
template <int DIRECTIONS>
static __device__ __forceinline__ pair_terms pair_of(bool by_max, float inverse_d, float p, float u, float g,
                                                     float t, int j, float norm, float product,
                                                     const pair_row &row)
{
    const float error = g + t, kept = p * (1 - u);
    pair_terms out = { kept * error, p * error, kept, 0 };
    if (DIRECTIONS > NO_DIRECTION) {
        out.ds += !by_max ? p * row.e : j == row.peak ? row.e : 0;
    }
    if (DIRECTIONS == SOLVED_BY_TRACE) {
        out.spread = p * row.spread;
        out.ds += out.spread * ((norm - 2 * product + row.kbar2) * inverse_d - row.trace);
    }
    return out;
}

/* x = q . k, or -|q - k|^2 / 2, without what is dropped. */
static __device__ __forceinline__ float score_argument(const scoring &sc, const key_terms &k, float product,
                                                       float constant, int c)
{
    return clamp_score(product + constant - (sc.rbf ? 0.5f * k.norm[c] : 0));
}

/* ------------------------------------------------------------------ tiles */

/* tile [ROWS][COLUMNS + PAD] <- dense float rows of `columns` elements; 0 beyond. */
template <int ROWS_OF_TILE, int COLUMNS, int THREADS_OF_BLOCK>
static __device__ __forceinline__ void fill_direction(float *tile, const float *from, int rows, int columns)
{
    for (int e = threadIdx.x; e < ROWS_OF_TILE * COLUMNS; e += THREADS_OF_BLOCK) {
        const int r = e / COLUMNS, c = e % COLUMNS;
        tile[r * (COLUMNS + PAD) + c] = r < rows && c < columns ? from[(int64_t)r * columns + c] : 0;
    }
}

/* In two parts, the second a tile of its own behind the first. */
template <int ROWS_OF_TILE, int COLUMNS, int THREADS_OF_BLOCK>
static __device__ __forceinline__ void fill_direction(__nv_bfloat16 *tile, const float *from, int rows,
                                                      int columns)
{
    for (int e = threadIdx.x; e < ROWS_OF_TILE * COLUMNS / 2; e += THREADS_OF_BLOCK) {
        const int r = e / (COLUMNS / 2), c = e % (COLUMNS / 2) * 2;
        const float *at = from + (int64_t)r * columns + c;
        uint32_t part[2];
        split_pair(part, r < rows && c < columns ? at[0] : 0, r < rows && c + 1 < columns ? at[1] : 0);
        *(uint32_t *)(tile + r * (COLUMNS + PAD) + c) = part[0];
        *(uint32_t *)(tile + (ROWS_OF_TILE + r) * (COLUMNS + PAD) + c) = part[1];
    }
}

/* The directions of rows `row` .. (in the order of local_row), whose first is token `token` of head h; the
 * tiles lie one after another. */
template <class S, int DIRECTIONS, int ROWS_OF_TILE, int THREADS_OF_BLOCK>
static __device__ __forceinline__ void fill_directions(typename S::type *tiles, const loam_problem &p,
                                                       const loam_args &a, const local_saved &saved,
                                                       const row_arrays &arrays, int64_t b, int64_t h,
                                                       int64_t token, int64_t row, int rows)
{
    constexpr int step = S::direction_parts * ROWS_OF_TILE * S::pitch;
    const int d = (int)p.dim_qk;
    if constexpr (DIRECTIONS == GIVEN_PROBE) {
        fill_tile<ROWS_OF_TILE, S::dim, THREADS_OF_BLOCK>(tiles, rows_of(a.probe, p.dtype, b, h, token), rows,
                                                          0, d, NULL);
    }
    if constexpr (DIRECTIONS >= SOLVED_PROBE) {
        const float *const rho = (const float *)saved.rho + row * d, *const y = arrays.y + row * d;
        fill_direction<ROWS_OF_TILE, S::dim, THREADS_OF_BLOCK>(tiles, rho, rows, d);
        fill_direction<ROWS_OF_TILE, S::dim, THREADS_OF_BLOCK>(tiles + step, y, rows, d);
    }
    if constexpr (DIRECTIONS >= SOLVED_BY_TRACE) {
        const float *const kbar = (const float *)saved.kbar + row * d;
        fill_direction<ROWS_OF_TILE, S::dim, THREADS_OF_BLOCK>(tiles + 2 * step, kbar, rows, d);
    }
}

/* ------------------------------------------------------------------ keys and values stream past queries */

template <class S> struct pair_ring {
    alignas(16) typename S::type keys[S::stages][S::keys * S::pitch];
    alignas(16) typename S::type values[S::stages][S::keys * S::pitch];
    float norm[S::stages][S::keys], bias[S::stages][S::keys];
    float origin[S::dim];
};

template <class S, bool VALUES>
static __device__ __forceinline__ void fill_pairs(pair_ring<S> &ring, const loam_problem &p,
                                                  const loam_args &a, const row_block &x, int j, int slot)
{
    const int64_t token = x.s.k0 + j;
    fill_tile<S::keys, S::dim, S::threads>(ring.keys[slot], rows_of(a.k, p.dtype, x.s.b, x.h_kv, token),
                                           x.last - j, 0, (int)p.dim_qk, ring.origin);
    if (VALUES) {
        fill_tile<S::keys, S::dim, S::threads>(ring.values[slot], rows_of(a.v, p.dtype, x.s.b, x.h_kv, token),
                                               x.last - j, 0, (int)p.dim_v, NULL);
    }
    copy_async_commit();
}

/* What scores need of a key beside k. */
template <class S>
static __device__ __forceinline__ void fill_pair_terms(pair_ring<S> &ring, const scoring &sc, bool norms,
                                                       const loam_args &a, const row_block &x,
                                                       const tile_at &t)
{
    if (norms) {
        tile_norms<S::keys, S::dim, S::threads>(ring.norm[t.slot], ring.keys[t.slot]);
    }
    if (sc.biased && threadIdx.x < S::keys) {
        const int j = t.j + (int)threadIdx.x;
        const int64_t at = LOCAL_AT(a.key_bias, x.s.b, x.h, x.s.k0 + j);
        ring.bias[t.slot][threadIdx.x] = j < x.last ? ((const float *)a.key_bias.data)[at] : 0;
    }
}

/* Calls use(tile, terms) for all tiles of the block's keys in order. norms: |k|^2 is wanted though the
 * score does not need it. All threads of the block take part. */
template <class S, bool VALUES, class F>
static __device__ __forceinline__ void stream_pairs(pair_ring<S> &ring, const loam_problem &p,
                                                    const loam_args &a, const row_block &x, const scoring &sc,
                                                    bool norms, F use)
{
    const bool terms = norms || sc.rbf || sc.biased;
    __syncthreads();
    if (x.first < x.last) {
        fill_pairs<S, VALUES>(ring, p, a, x, x.first, 0);
    }
    for (tile_at t = { x.first, 0 }; t.j < x.last; t.j += S::keys, t.slot = (t.slot + 1) % S::stages) {
        if (S::stages > 1 && t.j + S::keys < x.last) {
            fill_pairs<S, VALUES>(ring, p, a, x, t.j + S::keys, (t.slot + 1) % S::stages);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (terms) {
            fill_pair_terms(ring, sc, norms || sc.rbf, a, x, t);
            __syncthreads();
        }
        const key_terms k = { ring.norm[t.slot], ring.bias[t.slot] };
        use(t, k);
        __syncthreads();
        if (S::stages == 1 && t.j + S::keys < x.last) {
            fill_pairs<S, VALUES>(ring, p, a, x, t.j + S::keys, 0);
        }
    }
}

/* ------------------------------------------------------------------ a block of queries */

/* The thread's rows: what of them does not change from tile to tile. */
struct row_constants {
    float constant[2]; /* what scores leave out of x; a soft cap must see it: then it is in x0 */
    float x0[2];
    float lse[2];  /* 0 where it is -inf */
    float gbar[2]; /* do . vbar */
};

/* The origin, which narrow tiles need too: to take it out of sums that are 0 but for rounding. Then the tiles
 * of queries and output gradients, which it waits for. */
template <class S>
static __device__ __forceinline__ void begin_queries(typename S::type *query, typename S::type *grad_o,
                                                     float *origin, const loam_problem &p, const loam_args &a,
                                                     const row_block &x)
{
    const int64_t token = x.s.q0 + x.i0;
    load_origin<S::dim>(origin, p, a, x.s, x.h_kv);
    __syncthreads();
    fill_tile<S::rows, S::dim, S::threads>(query, rows_of(a.q, p.dtype, x.s.b, x.h, token), x.rows, 0,
                                           (int)p.dim_qk, p.score == LOAM_RBF ? origin : NULL);
    fill_tile<S::rows, S::dim, S::threads>(grad_o, rows_of(a.grad_o, p.dtype, x.s.b, x.h, token), x.rows, 0,
                                           (int)p.dim_v, NULL);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

template <bool WIDE, class S>
static __device__ __forceinline__ row_constants row_constants_of(const element<WIDE> *query,
                                                                 const element<WIDE> *grad_o,
                                                                 const float *origin, const loam_problem &p,
                                                                 const local_saved &saved, const row_block &x,
                                                                 const row_pair &r, const scoring &sc)
{
    row_constants out;
    float constant[2];
    query_constants<WIDE, S::dim>(constant, query, origin, r, sc.rbf);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t at = local_row(&p, &x.s, x.h, x.i0 + r.at[row]);
        float gbar = 0;
        for (int c = threadIdx.x % 4; r.real[row] && c < p.dim_v; c += 4) {
            gbar += tile_value(grad_o[r.at[row] * S::pitch + c]) *
                    ((const float *)saved.vbar)[at * p.dim_v + c];
        }
        out.x0[row] = sc.capped ? constant[row] : 0;
        out.constant[row] = sc.capped ? 0 : constant[row];
        out.gbar[row] = quad_sum(gbar);
        out.lse[row] = r.real[row] ? finite_or_zero(((const float *)saved.lse)[at]) : 0;
    }
    return out;
}

/* Products of a block's directions with a tile of keys: direction n of the thread's rows. */
template <class S>
static __device__ __forceinline__ void product_direction(float (&out)[S::keys / 8][4],
                                                         const typename S::type *directions, int n,
                                                         const typename S::type *keys)
{
    constexpr int step = S::rows * S::pitch;
    clear(out);
    product_rows<S::direction_parts, S::dim>(out, directions + n * S::direction_parts * step, step,
                                             threadIdx.x / 32 * 16, keys);
}

#endif
