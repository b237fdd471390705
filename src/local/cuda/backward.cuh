/* SPDX-License-Identifier: MIT
 *
 * Backward on GPUs: what its kernels share. Formulas and numerical care are those of local/cpu/backward.c.
 * There are two passes, in which no thread block adds to what another writes:
 *
 *     rows   a block of up to 64 queries of a head, past which all their keys stream: drho (probe_kernel),
 *            the adjoint solve (adjoint_kernel), then the row constants and dq (query_kernel)
 *     keys   a block of up to 64 keys of a key-value head, past which all queries that see them stream: dk
 *            and dv (key_kernel)
 *
 * Beside q, up to three vectors of a row multiply the keys (its "directions"): rho; for LLA y; and kbar where
 * the ridge is relative to the trace. Directions of LLA are float32; on narrow tiles each is split in hi and
 * lo parts, a tile for each.
 */
#ifndef LOAM_LOCAL_CUDA_BACKWARD_CUH
#define LOAM_LOCAL_CUDA_BACKWARD_CUH

#include "src/local/cuda/backward.h"
#include "src/local/cuda/launch.cuh"
#include "src/local/cuda/stream.cuh"

/* Which directions a row has: none, rho (given), rho and y (solved), or rho, y and kbar. */
enum { NO_DIRECTION, GIVEN_PROBE, SOLVED_PROBE, SOLVED_BY_TRACE };

/* Shared memory for the tiles of a thread block: that of compute capability 8.0, less what else
 * a block needs. */
constexpr size_t TILE_BYTES = 156 * 1024;

/* The most rows (64, 32 or 16) whose tiles fit, at `each` bytes for each row and `rest` for all else. */
constexpr int most_rows(size_t each, size_t rest)
{
    return 64 * each + rest <= TILE_BYTES ? 64 : 32 * each + rest <= TILE_BYTES ? 32 : 16;
}

template <bool WIDE, int DIM, int DIRECTIONS> struct backward_shape {
    typedef element<WIDE> type;
    static constexpr int dim = DIM, pitch = DIM + PAD;
    static constexpr size_t row_bytes = pitch * sizeof(type);
    static constexpr int stages = WIDE || DIM > 128 ? 1 : 2;
    /* Tiles of one direction; tiles of the block's rows: q, do, directions; tiles of all directions. */
    static constexpr int direction_parts = WIDE || DIRECTIONS < SOLVED_PROBE ? 1 : 2;
    static constexpr int row_tiles = 2 + DIRECTIONS * direction_parts;
    static constexpr int directions = DIRECTIONS > 0 ? DIRECTIONS *direction_parts : 1;

    /* Pass over rows: keys of a streamed tile, and rows of a block. */
    static constexpr int keys = DIM > 128 ? 16 : 32;
    static constexpr int rows = most_rows(row_tiles * row_bytes, 2 * stages * keys * row_bytes);
    static constexpr int threads = 2 * rows;

    /* Pass over keys: queries of a streamed tile, and keys of a block; dk and dv are computed
     * `columns` at a time. */
    static constexpr bool light = WIDE ? DIM == 64 && DIRECTIONS == NO_DIRECTION
                                       : DIM == 64 || (DIM == 128 && DIRECTIONS < SOLVED_PROBE);
    static constexpr int queries = light ? 32 : 16; /* as many as registers allow */
    static constexpr int key_rows = most_rows(2 * row_bytes, row_tiles *stages *queries *row_bytes);
    static constexpr int key_threads = 2 * key_rows;
    static constexpr int columns = DIM < CHUNK ? DIM : DIRECTIONS == SOLVED_BY_TRACE ? CHUNK / 2 : CHUNK;

    /* bf16 parts of weights: in sums over keys, which may cancel, and in sums over queries. */
    static constexpr int row_parts = WIDE ? 3 : 2;
    static constexpr int key_parts = WIDE ? 3 : DIRECTIONS < SOLVED_PROBE ? 1 : 2;
};

/* Calls launch(dim, directions), both of type constant. */
template <class LAUNCH> static loam_status by_directions(const loam_problem *p, LAUNCH launch)
{
    return by_dim(
        p,
        [&](auto dim) {
            switch (p->mechanism) {
            case LOAM_SOFTMAX: return launch(dim, constant<NO_DIRECTION>());
            case LOAM_PARALLAX: return launch(dim, constant<GIVEN_PROBE>());
            default:
                return p->ridge_unit == LOAM_RIDGE_TRACE ? launch(dim, constant<SOLVED_BY_TRACE>())
                                                         : launch(dim, constant<SOLVED_PROBE>());
            }
        });
}

/* ------------------------------------------------------------------ the gradients of one pair */

/* Constants of a row in the gradients of its pairs, as in row_scalars. */
struct pair_row {
    float e, spread, trace, kbar2;
    int peak;
};

/* ds = d loss / d s; error: p E; kept: p (1 - u); spread: p e / unit where the ridge is relative
 * to the trace. */
struct pair_terms {
    float ds, error, kept, spread;
};

/* u, g and t are centred: u = rho . kappa, g = do . (v - vbar), t = y . kappa. norm = |k|^2,
 * product = kbar . k. */
template <int DIRECTIONS>
static __device__ __forceinline__ pair_terms pair_of(bool by_max, float inverse_d, float p, float u, float g,
                                                     float t, int j, float norm, float product,
                                                     const pair_row &row)
{
    const float error = g + t, kept = p * (1 - u);
    pair_terms out = { kept * error, p * error, kept, 0 };
    if (DIRECTIONS > NO_DIRECTION) out.ds += !by_max ? p * row.e : j == row.peak ? row.e : 0;
    if (DIRECTIONS == SOLVED_BY_TRACE) {
        out.spread = p * row.spread;
        out.ds += out.spread * ((norm - 2 * product + row.kbar2) * inverse_d - row.trace);
    }
    return out;
}

/* x = q . k, or -|q - k|^2 / 2, without the constant that scores leave out. */
static __device__ __forceinline__ float score_argument(const score_constants &sc, const key_terms &k,
                                                       float product, float constant, int c)
{
    return clamp_score(product + constant - (sc.rbf ? 0.5f * k.norm[c] : 0));
}

/* ------------------------------------------------------------------ tiles */

/* tile [ROWS_OF_TILE][COLUMNS + PAD] <- `rows` dense rows of `columns` floats; 0 beyond them. */
template <int ROWS_OF_TILE, int COLUMNS, int THREADS_OF_BLOCK>
static __device__ __forceinline__ void fill_direction(float *tile, const float *from, int rows, int columns)
{
    for (int e = threadIdx.x; e < ROWS_OF_TILE * COLUMNS; e += THREADS_OF_BLOCK) {
        const int r = e / COLUMNS, c = e % COLUMNS;
        tile[r * (COLUMNS + PAD) + c] = r < rows && c < columns ? from[(int64_t)r * columns + c] : 0;
    }
}

/* The same in two bf16 parts: the tile of the lo parts lies right behind that of the hi parts. */
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

/* Loads the directions of `rows` rows, from row `row` (in the order of local_row) on, which is token `token`
 * of head h. The tiles of the directions lie one after another. */
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

/* ------------------------------------------------------------------ keys and values streamed past queries */

template <class S> struct pair_ring {
    alignas(16) typename S::type keys[S::stages][S::keys * S::pitch];
    alignas(16) typename S::type values[S::stages][S::keys * S::pitch];
    float norm[S::stages][S::keys], bias[S::stages][S::keys];
    float origin[S::dim];
};

template <class S, bool VALUES>
static __device__ __forceinline__ void fill_pairs(pair_ring<S> &ring, const loam_problem &p,
                                                  const loam_args &a, const row_block &x, int j, int stage)
{
    const int64_t token = x.s.k0 + j;
    fill_tile<S::keys, S::dim, S::threads>(ring.keys[stage], rows_of(a.k, p.dtype, x.s.b, x.h_kv, token),
                                           x.last - j, 0, (int)p.dim_qk, ring.origin);
    if (VALUES) {
        fill_tile<S::keys, S::dim, S::threads>(ring.values[stage],
                                               rows_of(a.v, p.dtype, x.s.b, x.h_kv, token), x.last - j, 0,
                                               (int)p.dim_v, NULL);
    }
    copy_async_commit();
}

/* Fills in the terms of the scores of a tile's keys: |k|^2 where `norms`, and the biases. */
template <class S>
static __device__ __forceinline__ void fill_pair_terms(pair_ring<S> &ring, const score_constants &sc,
                                                       bool norms, const loam_args &a, const row_block &x,
                                                       const tile_at &t)
{
    if (norms) tile_norms<S::keys, S::dim, S::threads>(ring.norm[t.stage], ring.keys[t.stage]);
    if (sc.biased && threadIdx.x < S::keys) {
        const int j = t.j + (int)threadIdx.x;
        const int64_t at = LOCAL_AT(a.key_bias, x.s.b, x.h, x.s.k0 + j);
        ring.bias[t.stage][threadIdx.x] = j < x.last ? ((const float *)a.key_bias.data)[at] : 0;
    }
}

/* Calls use(tile, terms) for each tile of the keys that the block sees, in order. VALUES: loads the values
 * too. norms: |k|^2 is needed even if the score does not use it. All threads of the block take part. */
template <class S, bool VALUES, class F>
static __device__ __forceinline__ void stream_pairs(pair_ring<S> &ring, const loam_problem &p,
                                                    const loam_args &a, const row_block &x,
                                                    const score_constants &sc, bool norms, F use)
{
    const bool terms = norms || sc.rbf || sc.biased;
    __syncthreads();
    if (x.first < x.last) fill_pairs<S, VALUES>(ring, p, a, x, x.first, 0);
    for (tile_at t = { x.first, 0 }; t.j < x.last; t.j += S::keys, t.stage = (t.stage + 1) % S::stages) {
        if (S::stages > 1 && t.j + S::keys < x.last) {
            fill_pairs<S, VALUES>(ring, p, a, x, t.j + S::keys, (t.stage + 1) % S::stages);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (terms) {
            fill_pair_terms(ring, sc, norms || sc.rbf, a, x, t);
            __syncthreads();
        }
        const key_terms k = { ring.norm[t.stage], ring.bias[t.stage] };
        use(t, k);
        __syncthreads();
        if (S::stages == 1 && t.j + S::keys < x.last) fill_pairs<S, VALUES>(ring, p, a, x, t.j + S::keys, 0);
    }
}

/* ------------------------------------------------------------------ a block of queries */

/* Constants of the thread's two rows. */
struct row_constants {
    /* The query's part of x, which scores leave out; 0 where they are mapped: then it is x0. */
    float constant[2];
    float x0[2];
    float lse[2];  /* 0 where the row sees no key */
    float gbar[2]; /* do . vbar */
};

/* Loads the origin, then the tiles of queries and output gradients, and waits for them. Narrow tiles need the
 * origin too, to correct sums that are 0 but for rounding. */
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
                                                                 const row_pair &r, const score_constants &sc)
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
        out.x0[row] = sc.mapped ? constant[row] : 0;
        out.constant[row] = sc.mapped ? 0 : constant[row];
        out.gbar[row] = quad_sum(gbar);
        const float lse = r.real[row] ? ((const float *)saved.lse)[at] : -INFINITY;
        const float dropped = WIDE && local_saves_raw(&p) ? sc.scale * constant[row] : 0;
        out.lse[row] = lse > -INFINITY ? lse - dropped : 0;
    }
    return out;
}

/* out = the products of direction n of the warp's rows with a tile of keys. */
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
