/* SPDX-License-Identifier: MIT
 *
 * Backward on GPUs, the pass over keys: a block of keys of a key-value head, past which stream the queries
 * that see them, of all heads of the group, with the row_records of the pass over rows. dk and dv are
 * accumulated in registers. Products come out as [key][query].
 */
#ifndef LOAM_LOCAL_CUDA_BACKWARD_KEY_CUH
#define LOAM_LOCAL_CUDA_BACKWARD_KEY_CUH

#include "src/local/cuda/backward.cuh"

/* The row_records of N rows, transposed: an array for each word. */
template <int N> struct record_tile {
    float lse[N];
    float gbar[N], gbar_rest[N];
    float rho_kbar[N], rho_rest[N];
    float y_kbar[N], y_rest[N];
    float e[N];
    float spread[N], trace[N], unit[N];
    float kbar2[N];
    float x0[N];
    int32_t peak[N], lo[N], hi[N];
};

template <class S> struct query_stage {
    alignas(16) typename S::type query[S::queries * S::pitch];
    alignas(16) typename S::type grad_o[S::queries * S::pitch];
    alignas(16) typename S::type direction[S::directions * S::queries * S::pitch];
    record_tile<S::queries> record;
};

template <bool WIDE, int DIM, int DIRECTIONS> struct key_shared {
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    alignas(16) typename S::type keys[S::key_rows * S::pitch];
    alignas(16) typename S::type values[S::key_rows * S::pitch];
    query_stage<S> stage[S::stages];
    float origin[DIM];
};

/* ------------------------------------------------------------------ the block of keys and its queries */

struct key_block {
    local_seq s;
    int64_t h_kv, first_head; /* of the group of query heads */
    int64_t head;             /* number of the head among those of all sequences */
    int j0, count;            /* keys j0 .. j0 + count - 1; count <= 0 beyond the sequence's keys */
    int stored;               /* keys that have a gradient to write */
    int first;                /* first query of the tiles that see the keys */
    int64_t tiles;            /* tiles of queries for each head */
};

/* Finds the tiles of `step` queries in which some query sees some key of the block. */
static __device__ __forceinline__ void find_queries(key_block &x, const loam_problem &p, int step)
{
    const int64_t shift = x.s.nk - x.s.nq, last_key = x.j0 + x.count - 1;
    int64_t first = 0, last = x.s.nq - 1; /* i + shift >= j for the first key, |i + shift - j| < window */
    if (p.causal) first = x.j0 - shift;
    if (p.window > 0 && p.window < x.s.nk + x.s.nq) {
        const int64_t from = x.j0 - p.window + 1 - shift, to = last_key + p.window - 1 - shift;
        first = from > first ? from : first;
        last = to < last ? to : last;
    }
    first = first > 0 ? first / step * step : 0;
    x.first = (int)first;
    x.tiles = x.count > 0 && last >= first ? (last - first) / step + 1 : 0;
}

/* Block n of the problem; early keys first, since under a causal mask most queries see them. The numbers of a
 * grid have 32 bits: divisions of 64 are a microsecond before the first copy. */
template <int ROWS_OF_BLOCK>
static __device__ __forceinline__ key_block key_block_at(const loam_problem &p, const loam_args &a,
                                                         unsigned n, int step)
{
    const unsigned heads = (unsigned)p.heads_kv, sequences = n / heads, batch = (unsigned)p.batch;
    key_block x;
    x.h_kv = n % heads;
    x.first_head = x.h_kv * ((unsigned)p.heads_q / heads);
    x.s = local_seq_at(&p, &a, sequences % batch);
    x.head = (int64_t)(sequences % batch) * heads + x.h_kv;
    const int64_t j0 = (int64_t)(sequences / batch) * ROWS_OF_BLOCK,
                  stored = local_stored_keys(&p, &x.s) - j0;
    x.j0 = (int)j0;
    x.count = (int)(x.s.nk - j0 < ROWS_OF_BLOCK ? x.s.nk - j0 : ROWS_OF_BLOCK);
    x.stored = (int)(stored < ROWS_OF_BLOCK ? stored : ROWS_OF_BLOCK);
    find_queries(x, p, step);
    return x;
}

/* Tile n of the queries of a block: its head, first query, and stage. */
struct query_at {
    int64_t h;
    int i, stage;
};

static __device__ __forceinline__ query_at query_tile_at(const key_block &x, int64_t n, int step, int stages)
{
    const query_at t = { x.first_head + n / x.tiles, x.first + (int)(n % x.tiles) * step, (int)(n % stages) };
    return t;
}

template <int ROWS_OF_TILE, int THREADS_OF_BLOCK>
static __device__ __forceinline__ void fill_records(record_tile<ROWS_OF_TILE> &tile, const row_scalars *from,
                                                    int rows)
{
    constexpr int words = sizeof(row_scalars) / sizeof(uint32_t);
    static_assert(sizeof tile == ROWS_OF_TILE * sizeof(row_scalars),
                  "one word of record_tile for each of row_scalars");
    for (int e = threadIdx.x; e < ROWS_OF_TILE * words; e += THREADS_OF_BLOCK) {
        const int r = e / words, word = e % words;
        ((uint32_t *)&tile)[word * ROWS_OF_TILE + r] = r < rows ? ((const uint32_t *)(from + r))[word] : 0;
    }
}

/* Loads a tile of queries: q, do, directions and records. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void fill_queries(key_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                    const loam_problem &p, const loam_args &a,
                                                    const local_saved &saved, const row_arrays &arrays,
                                                    const key_block &x, const query_at &t)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    query_stage<S> &stage = sm.stage[t.stage];
    const int64_t token = x.s.q0 + t.i, row = local_row(&p, &x.s, t.h, t.i), left = x.s.nq - t.i;
    const int rows = (int)(left < S::queries ? left : S::queries);
    fill_tile<S::queries, DIM, S::key_threads>(stage.query, rows_of(a.q, p.dtype, x.s.b, t.h, token), rows, 0,
                                               (int)p.dim_qk, p.score == LOAM_RBF ? sm.origin : NULL);
    fill_tile<S::queries, DIM, S::key_threads>(stage.grad_o, rows_of(a.grad_o, p.dtype, x.s.b, t.h, token),
                                               rows, 0, (int)p.dim_v, NULL);
    fill_directions<S, DIRECTIONS, S::queries, S::key_threads>(stage.direction, p, a, saved, arrays, x.s.b,
                                                               t.h, token, row, rows);
    fill_records<S::queries, S::key_threads>(stage.record, arrays.record + row, rows);
    copy_async_commit();
}

/* Loads the keys and values of the block. */
template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void begin_keys(key_shared<WIDE, DIM, DIRECTIONS> &sm,
                                                  const loam_problem &p, const loam_args &a,
                                                  const key_block &x)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    const int64_t token = x.s.k0 + x.j0;
    if (WIDE) {
        load_origin<DIM>(sm.origin, p, a, x.s, x.h_kv);
        __syncthreads();
    }
    fill_tile<S::key_rows, DIM, S::key_threads>(sm.keys, rows_of(a.k, p.dtype, x.s.b, x.h_kv, token), x.count,
                                                0, (int)p.dim_qk, sm.origin);
    fill_tile<S::key_rows, DIM, S::key_threads>(sm.values, rows_of(a.v, p.dtype, x.s.b, x.h_kv, token),
                                                x.count, 0, (int)p.dim_v, NULL);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

/* ------------------------------------------------------------------ the thread's keys */

struct key_pair {
    int at[2];              /* key of the block */
    float norm[2], bias[2]; /* |k|^2 where it is needed; bias for the current head */
    float inner[2];         /* sum of ds factor, for RBF; these three sums are of the thread's columns */
    float spread[2];        /* sum of p e / unit, for a ridge relative to the trace */
    float grad_bias[2];     /* sum of ds over the rows of the current head */
};

template <class S>
static __device__ __forceinline__ key_pair key_pair_of(const typename S::type *keys, bool norms)
{
    key_pair k = {};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.at[row] = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * row;
        float sum = 0;
        for (int c = threadIdx.x % 4; norms && c < S::dim; c += 4) {
            const float y = tile_value(keys[k.at[row] * S::pitch + c]);
            sum += y * y;
        }
        k.norm[row] = quad_sum(sum);
    }
    return k;
}

static __device__ __forceinline__ void begin_head(key_pair &k, score_constants &sc, const loam_problem &p,
                                                  const loam_args &a, const key_block &x, int64_t h)
{
    sc = score_constants_of(p, a, x.s, h);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t at = LOCAL_AT(a.key_bias, x.s.b, h, x.s.k0 + x.j0 + k.at[row]);
        k.grad_bias[row] = 0;
        k.bias[row] = sc.biased && k.at[row] < x.count ? ((const float *)a.key_bias.data)[at] : 0;
    }
}

/* Writes the sums of ds over queries: the gradient of a key bias, and the column sums that
 * local_decay_gradient_cuda needs. */
static __device__ __forceinline__ void put_bias_gradient(const key_pair &k, const loam_problem &p,
                                                         const loam_args &a, const key_block &x, int64_t h)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(k.grad_bias[row]);
        const int64_t token = x.s.k0 + x.j0 + k.at[row];
        if (threadIdx.x % 4 != 0 || blockIdx.y != 0 || k.at[row] >= x.stored) continue;
        if (p.key_bias && a.grad_key_bias.data)
            ((float *)a.grad_key_bias.data)[LOCAL_AT(a.grad_key_bias, x.s.b, h, token)] = sum;
        if (p.decay && a.grad_log_decay.data)
            ((float *)a.grad_log_decay.data)[LOCAL_AT(a.grad_log_decay, x.s.b, h, token)] = sum;
    }
}

/* ------------------------------------------------------------------ one tile of queries */

/* out = the block's keys times the transpose of a tile of queries in PARTS bf16 parts. The bits are those
 * that product_rows computes with the operands exchanged: u and t are small differences of large products,
 * and the pass over rows found the centres from products of product_rows. */
template <class S, int PARTS>
static __device__ __forceinline__ void product_keys(float (&out)[S::queries / 8][4],
                                                    const typename S::type *keys,
                                                    const typename S::type *tile)
{
    constexpr int parts = sizeof(typename S::type) == 4 ? 3 : 1;
    clear(out);
#pragma unroll(parts == 3 ? 2 : 16)
    for (int k = 0; k < S::dim; k += 16) {
        operand_a<parts> a;
        load_a<S::pitch>(a, keys, threadIdx.x / 32 * 16, k);
#pragma unroll
        for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
            for (int n = 0; n < S::queries / 8; n += 2) {
                operand_b<parts> b[2];
                load_b_rows<S::pitch>(b, tile + part * S::queries * S::pitch, 8 * n, k);
                mma<true>(out[n], a, b[0]);
                mma<true>(out[n + 1], a, b[1]);
            }
        }
    }
}

template <class S>
static __device__ __forceinline__ void product_direction(float (&out)[S::queries / 8][4],
                                                         const typename S::type *keys,
                                                         const query_stage<S> &stage, int n)
{
    product_keys<S, S::direction_parts>(out, keys,
                                        stage.direction + n * S::direction_parts * S::queries * S::pitch);
}

/* dk += weights times direction n of the tile, columns `first` .. */
template <class S>
static __device__ __forceinline__ void add_direction(float (&dk)[S::columns / 8][4],
                                                     const float (&weights)[S::queries / 8][4],
                                                     const query_stage<S> &stage, int n, int first)
{
    constexpr int step = S::queries * S::pitch;
    const typename S::type *tile = stage.direction + n * S::direction_parts * step;
    if constexpr (S::direction_parts > 1) product_weights<1, S::pitch>(dk, weights, tile + step, first);
    product_weights<S::key_parts, S::pitch>(dk, weights, tile, first);
}

/* The products of the keys with the tile become weights: s = k . q becomes scale ds factor,
 * g = v . do becomes p (1 - u), u = k . rho becomes -p E, w = k . kbar becomes -2/dim p e / unit.
 * t = k . y is only read. */
template <class S, int DIRECTIONS, int BLOCKS>
static __device__ __forceinline__ void key_tile_gradient(float (&s)[BLOCKS][4], float (&g)[BLOCKS][4],
                                                         float (&u)[BLOCKS][4], const float (&t)[BLOCKS][4],
                                                         float (&w)[BLOCKS][4], key_pair &k,
                                                         const record_tile<S::queries> &rec,
                                                         const score_constants &sc, bool by_max,
                                                         float inverse_d, float position, int j0)
{
    const key_terms terms = { k.norm, k.bias };
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, c = column_of(n, e), j = j0 + k.at[row];
            const float at = position + (float)c;
            const pair_row own = { rec.e[c], rec.spread[c], rec.trace[c], rec.kbar2[c], rec.peak[c] };
            float factor;
            const float score = score_of(sc, terms, s[n][e], rec.x0[c], at, rec.hi[c], j, row, &factor);
            const float p = j >= rec.lo[c] && j < rec.hi[c] ? weight_of(score, rec.lse[c]) : 0;
            const pair_terms pair = pair_of<DIRECTIONS>(
                by_max, inverse_d, p,
                DIRECTIONS >= GIVEN_PROBE ? u[n][e] - rec.rho_kbar[c] - rec.rho_rest[c] : 0,
                g[n][e] - rec.gbar[c] - rec.gbar_rest[c],
                DIRECTIONS >= SOLVED_PROBE ? t[n][e] - rec.y_kbar[c] - rec.y_rest[c] : 0, j, k.norm[row],
                DIRECTIONS == SOLVED_BY_TRACE ? w[n][e] : 0, own);
            const float ds = pair.ds * factor;
            k.grad_bias[row] += pair.ds;
            k.inner[row] += ds;
            s[n][e] = ds * sc.scale;
            g[n][e] = pair.kept;
            if (DIRECTIONS >= GIVEN_PROBE) u[n][e] = -pair.error;
            if (DIRECTIONS == SOLVED_BY_TRACE) {
                k.spread[row] += pair.spread;
                w[n][e] = -2 * inverse_d * pair.spread;
            }
        }
    }
}

/* Sums over queries for the block's keys. */
template <int BLOCKS> struct key_sums {
    float dk[BLOCKS][4], dv[BLOCKS][4];
};

template <bool WIDE, int DIM, int DIRECTIONS>
static __device__ __forceinline__ void keys_from_tile(
    key_sums<backward_shape<WIDE, DIM, DIRECTIONS>::columns / 8> &sum, key_pair &k,
    const key_shared<WIDE, DIM, DIRECTIONS> &sm, const loam_problem &p, const key_block &x,
    const score_constants &sc, const query_at &tile, int first)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    constexpr int blocks = S::queries / 8;
    const query_stage<S> &stage = sm.stage[tile.stage];
    const bool by_max = p.mechanism == LOAM_LLA && p.ridge_unit == LOAM_RIDGE_MAX;
    float s[blocks][4], g[blocks][4], u[blocks][4], t[blocks][4], w[blocks][4];
    product_keys<S, 1>(s, sm.keys, stage.query);
    product_keys<S, 1>(g, sm.values, stage.grad_o);
    if constexpr (DIRECTIONS >= GIVEN_PROBE) product_direction<S>(u, sm.keys, stage, 0);
    if constexpr (DIRECTIONS >= SOLVED_PROBE) product_direction<S>(t, sm.keys, stage, 1);
    if constexpr (DIRECTIONS >= SOLVED_BY_TRACE) product_direction<S>(w, sm.keys, stage, 2);
    key_tile_gradient<S, DIRECTIONS>(s, g, u, t, w, k, stage.record, sc, by_max, 1 / (float)p.dim_qk,
                                     (float)(tile.i + x.s.nk - x.s.nq), x.j0);
    product_weights<S::key_parts, S::pitch>(sum.dv, g, stage.grad_o, first);
    product_weights<S::key_parts, S::pitch>(sum.dk, s, stage.query, first);
    if constexpr (DIRECTIONS >= GIVEN_PROBE) add_direction<S>(sum.dk, u, stage, 0, first);
    if constexpr (DIRECTIONS >= SOLVED_PROBE) add_direction<S>(sum.dk, g, stage, 1, first);
    if constexpr (DIRECTIONS >= SOLVED_BY_TRACE) add_direction<S>(sum.dk, w, stage, 2, first);
}

/* Writes dk and dv. For RBF dk gains -scale (sum ds) k; for a ridge relative to the trace it gains
 * 2/dim (sum p e / unit) k. */
template <class S, int DIRECTIONS>
static __device__ __forceinline__ void put_key_gradients(const key_sums<S::columns / 8> &sum,
                                                         const key_pair &k, const typename S::type *keys,
                                                         const loam_problem &p, const loam_args &a,
                                                         const key_block &x, int first)
{
    const bool rbf = p.score == LOAM_RBF;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float times = rbf ? -(float)p.scale * quad_sum(k.inner[row]) : 0;
        if (DIRECTIONS == SOLVED_BY_TRACE) times += 2 / (float)p.dim_qk * quad_sum(k.spread[row]);
        if (k.at[row] >= x.stored) continue;
        const int64_t token = x.s.k0 + x.j0 + k.at[row];
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const int c = first + column_of(n, 0);
            float y[2] = { sum.dk[n][2 * row], sum.dk[n][2 * row + 1] };
            if (rbf || DIRECTIONS == SOLVED_BY_TRACE) {
                y[0] += times * tile_value(keys[k.at[row] * S::pitch + c]);
                y[1] += times * tile_value(keys[k.at[row] * S::pitch + c + 1]);
            }
            if (a.grad_k.data) {
                store_pair(a.grad_k.data, p.dtype, LOCAL_AT(a.grad_k, x.s.b, x.h_kv, token), c, p.dim_qk,
                           y[0], y[1]);
            }
            if (a.grad_v.data) {
                store_pair(a.grad_v.data, p.dtype, LOCAL_AT(a.grad_v, x.s.b, x.h_kv, token), c, p.dim_v,
                           sum.dv[n][2 * row], sum.dv[n][2 * row + 1]);
            }
        }
    }
}

template <bool WIDE, int DIM, int DIRECTIONS>
__global__ void __launch_bounds__(backward_shape<WIDE, DIM, DIRECTIONS>::key_threads)
    key_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
               const local_saved saved, const row_arrays arrays)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    extern __shared__ __align__(16) unsigned char memory[];
    key_shared<WIDE, DIM, DIRECTIONS> &sm = *(key_shared<WIDE, DIM, DIRECTIONS> *)memory;
    const key_block x = key_block_at<S::key_rows>(p, a, blockIdx.x, S::queries);
    const int first = blockIdx.y * S::columns;
    const key_scale *const scale = local_key_scales(&p, arrays.state);
    if (x.stored <= 0 || (scale && scale[x.head].tame)) return;
    const int64_t group = p.heads_q / p.heads_kv, tiles = group * x.tiles;
    begin_keys(sm, p, a, x);
    key_pair k = key_pair_of<S>(sm.keys, p.score == LOAM_RBF || DIRECTIONS == SOLVED_BY_TRACE);
    key_sums<S::columns / 8> sum;
    score_constants sc;
    clear(sum.dk);
    clear(sum.dv);
    if (tiles == 0)
        for (int64_t h = x.first_head; h < x.first_head + group; h++)
            put_bias_gradient(k, p, a, x, h);
    else
        fill_queries(sm, p, a, saved, arrays, x, query_tile_at(x, 0, S::queries, S::stages));
    for (int64_t n = 0; n < tiles; n++) {
        const query_at tile = query_tile_at(x, n, S::queries, S::stages);
        if (S::stages > 1 && n + 1 < tiles) {
            fill_queries(sm, p, a, saved, arrays, x, query_tile_at(x, n + 1, S::queries, S::stages));
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (n % x.tiles == 0) begin_head(k, sc, p, a, x, tile.h);
        keys_from_tile(sum, k, sm, p, x, sc, tile, first);
        if (n % x.tiles == x.tiles - 1) put_bias_gradient(k, p, a, x, tile.h);
        __syncthreads();
        if (S::stages == 1 && n + 1 < tiles)
            fill_queries(sm, p, a, saved, arrays, x, query_tile_at(x, n + 1, S::queries, S::stages));
    }
    put_key_gradients<S, DIRECTIONS>(sum, k, sm.keys, p, a, x, first);
}

template <bool WIDE, int DIM, int DIRECTIONS>
static loam_status launch_key(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                              loam_error *error)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> S;
    const int64_t blocks = (p->len_kv + S::key_rows - 1) / S::key_rows * p->batch * p->heads_kv;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const dim3 grid((unsigned)blocks, DIM / S::columns);
    constexpr size_t shared = sizeof(key_shared<WIDE, DIM, DIRECTIONS>);
    TRY(cuda_allow_shared((const void *)key_kernel<WIDE, DIM, DIRECTIONS>, shared, error));
    key_kernel<WIDE, DIM, DIRECTIONS>
        <<<grid, S::key_threads, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows);
    return cuda_launched("key_kernel", error);
}

#endif
