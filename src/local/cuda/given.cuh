/* SPDX-License-Identifier: MIT
 *
 * Forward with a given probe rho (0 or args.probe) on GPUs: one sweep over the keys, with the sums of
 * local/cpu/forward.c,
 *     omega = sum w,  T = sum w (t - c),  A = sum w v,  B = sum w (t - c) v,   w = exp(s - m),  t = rho . k
 *     o = (A (1 + T / omega) - B) / omega
 * where m is the running maximum and c, with a probe, a centre that follows the running mean of t.
 * A thread block has 64 rows and, in blockIdx.y, CHUNK columns of the values.
 */
#ifndef LOAM_LOCAL_CUDA_GIVEN_CUH
#define LOAM_LOCAL_CUDA_GIVEN_CUH

#include "src/local/cuda/stream.cuh"

template <bool WIDE, int DIM, bool PROBED> struct given_shared {
    typedef shape<WIDE, DIM> S;
    alignas(16) typename S::type query[S::row_tile];
    alignas(16) typename S::type probe[PROBED ? S::row_tile : 8];
    stream_shared<WIDE, DIM> ring;
};

/* Sums over the keys so far; o is A, b is B. b, centre and tsum are for a probe only. */
template <int BLOCKS, bool PROBED> struct given_sums {
    online w;
    float o[BLOCKS][4];
    float b[PROBED ? BLOCKS : 1][4];
    float centre[2], tsum[2]; /* c, and T of the thread's columns */
};

template <int BLOCKS, bool PROBED>
static __device__ __forceinline__ void given_begin(given_sums<BLOCKS, PROBED> &g)
{
    online_begin(g.w);
    clear(g.o);
    clear(g.b);
    g.centre[0] = g.centre[1] = g.tsum[0] = g.tsum[1] = 0;
}

/* Moves the centre c to the mean of t over this tile and all before it; t becomes w (t - c). before: omega
 * without this tile, of the thread's columns. shift: by how much c moved; B must then lose shift A. */
template <int BLOCKS>
static __device__ __forceinline__ void centre_probe(float (&t)[BLOCKS][4], const float (&w)[BLOCKS][4],
                                                    float (&centre)[2], float (&tsum)[2],
                                                    const float (&before)[2], float (&shift)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float sum = tsum[row], omega = before[row];
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                sum += w[n][e] * (t[n][e] - centre[row]);
                omega += w[n][e];
            }
        }
        sum = quad_sum(sum), omega = quad_sum(omega);
        shift[row] = omega > 0 ? sum / omega : 0;
        centre[row] += shift[row];
        tsum[row] -= shift[row] * before[row];
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                t[n][e] = w[n][e] * (t[n][e] - centre[row]);
                tsum[row] += t[n][e];
            }
        }
    }
}

/* Adds one tile of keys and values to the sums; s: its scores. */
template <bool WIDE, int DIM, bool PROBED>
static __device__ __forceinline__ void given_tile(given_sums<shape<WIDE, DIM>::columns / 8, PROBED> &g,
                                                  given_shared<WIDE, DIM, PROBED> &sm, int stage,
                                                  float (&s)[shape<WIDE, DIM>::keys / 8][4])
{
    typedef shape<WIDE, DIM> S;
    float keep[2], before[2] = { g.w.omega[0], g.w.omega[1] };
    online_weigh<0>(g.w, s, keep);
    scale_rows(g.o, keep);
    if constexpr (PROBED) {
        float t[S::keys / 8][4], shift[2];
        clear(t);
        product_rows<1, DIM>(t, sm.probe, 0, threadIdx.x / 32 * 16, sm.ring.keys[stage]);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            g.tsum[row] *= keep[row];
            before[row] *= keep[row];
        }
        centre_probe(t, s, g.centre, g.tsum, before, shift);
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                g.b[n][e] = g.b[n][e] * keep[e / 2] - shift[e / 2] * g.o[n][e];
        }
        product_weights<S::parts, S::columns + PAD>(g.b, t, sm.ring.values[stage], 0);
    }
    product_weights<S::parts, S::columns + PAD>(g.o, s, sm.ring.values[stage], 0);
}

/* Results of a row: 1 / omega (where omega includes the sink), T / omega, lse without the constant that the
 * scores leave out, and lse with it. */
struct given_row {
    float inverse, rest, lse, full_lse;
};

/* The sink's part of them. */
static __device__ __forceinline__ void given_sink(given_row &g, float dropped, const loam_problem &p,
                                                  const loam_args &a, int64_t h)
{
    if (!p.sink) return;
    const float sink = ((const float *)a.sink)[h], m = fmaxf(g.full_lse, sink);
    const float total = m + logf(expf(g.full_lse - m) + expf(sink - m));
    g.inverse *= expf(g.full_lse - total);
    g.full_lse = total;
    g.lse = total - dropped;
}

static __device__ __forceinline__ given_row given_end(float most, float omega, float t, float dropped,
                                                      const loam_problem &p, const loam_args &a, int64_t h)
{
    given_row g = { 0, 0, -INFINITY, -INFINITY };
    if (omega > 0) {
        g.inverse = 1 / omega;
        g.rest = t / omega;
        g.lse = most + logf(omega);
        g.full_lse = g.lse + dropped;
    }
    given_sink(g, dropped, p, a, h);
    return g;
}

static __device__ __forceinline__ given_row given_finish(const online &w, float tsum, float dropped, int row,
                                                         const loam_problem &p, const loam_args &a, int64_t h)
{
    return given_end(w.m[row], quad_sum(w.omega[row]), quad_sum(tsum), dropped, p, a, h);
}

static __device__ __forceinline__ float saved_lse(const loam_problem &p, const given_row &g)
{
    return local_saves_raw(&p) ? g.full_lse : g.lse;
}

/* Writes the results that a row has once: info, lse, and saved. The four lanes of the row call it. */
template <bool PROBED>
static __device__ __forceinline__ void put_given_row(const loam_problem &p, const loam_args &a,
                                                     const local_saved &saved, const row_block &x,
                                                     const row_pair &r, int row, const given_row &g,
                                                     float centre)
{
    const bool empty = r.lo[row] >= r.hi[row];
    const int64_t i = x.i0 + r.at[row], at = local_row(&p, &x.s, x.h, i);
    if (threadIdx.x % 4 == 0) {
        const loam_row_info info = { empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
        put_info(a, x, i, info);
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = g.full_lse;
        if (a.saved) ((float *)saved.lse)[at] = saved_lse(p, g);
        if (PROBED && a.saved) {
            ((float *)saved.tbar)[2 * at] = centre;
            ((float *)saved.tbar)[2 * at + 1] = g.rest;
        }
    }
}

/* Writes args.rho: probe(c), or 0 for a row that sees no key. The four lanes of the row call it. */
template <bool PROBED, class F>
static __device__ __forceinline__ void put_given_probe(const loam_problem &p, const loam_args &a,
                                                       const row_block &x, const row_pair &r, int row,
                                                       F probe)
{
    const bool empty = r.lo[row] >= r.hi[row];
    for (int c = threadIdx.x % 4; a.rho.data && c < p.dim_qk; c += 4) {
        const float rho = PROBED && !empty ? tile_value(probe(c)) : 0;
        ((float *)a.rho.data)[LOCAL_AT(a.rho, x.s.b, x.h, x.s.q0 + x.i0 + r.at[row]) + c] = rho;
    }
}

/* Writes effective weights p (1 - u), in a sweep of their own: they are meant for small inputs only. */
template <bool WIDE, int DIM, bool PROBED>
static __device__ void put_given_weights(given_shared<WIDE, DIM, PROBED> &sm, const loam_problem &p,
                                         const loam_args &a, const row_block &x, const row_pair &r,
                                         const score_constants &sc, const float (&x0)[2],
                                         const given_row (&g)[2], const float (&centre)[2])
{
    typedef shape<WIDE, DIM> S;
    clear_weights(p, a, x);
    stream_keys<WIDE, DIM, false>(sm.ring, p, a, x, sc, false, 0, [&](const tile_at &tile) {
        if (warp_is_idle(x)) return;
        float s[S::keys / 8][4], t[S::keys / 8][4];
        const key_terms terms = { sm.ring.norm[tile.stage], sm.ring.bias[tile.stage] };
        clear(s);
        clear(t);
        product_rows<1, DIM>(s, sm.query, 0, threadIdx.x / 32 * 16, sm.ring.keys[tile.stage]);
        if constexpr (PROBED)
            product_rows<1, DIM>(t, sm.probe, 0, threadIdx.x / 32 * 16, sm.ring.keys[tile.stage]);
        scores_in_place(s, sc, terms, r, x0, tile.j);
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                const float u = PROBED ? t[n][e] - centre[row] - g[row].rest : 0;
                const float w = weight_of(s[n][e], finite_or_zero(g[row].lse));
                put_weight(a, x, r, row, tile.j + column_of(n, e), w * (1 - u));
            }
        }
    });
}

/* Writes columns `chunk` .. of o, and of what saved holds: vbar = A / omega and, with a probe, the correction
 * vbar - o = (B - A T / omega) / omega. */
template <bool WIDE, int DIM, bool PROBED>
static __device__ __forceinline__ void put_given_output(
    const given_sums<shape<WIDE, DIM>::columns / 8, PROBED> &sums, const given_row &g, int row, int chunk,
    const loam_problem &p, const loam_args &a, const local_saved &saved, const row_block &x, int64_t i)
{
    const int64_t at = local_row(&p, &x.s, x.h, i) * p.dim_v;
#pragma unroll
    for (int n = 0; n < shape<WIDE, DIM>::columns / 8; n++) {
        const int c = chunk + column_of(n, 0);
        float out[2] = { sums.o[n][2 * row] * g.inverse, sums.o[n][2 * row + 1] * g.inverse };
        if (a.saved) store_pair(saved.vbar, LOAM_F32, at, c, p.dim_v, out[0], out[1]);
        if constexpr (PROBED) {
            const float correction[2] = { sums.b[n][2 * row] * g.inverse - out[0] * g.rest,
                                          sums.b[n][2 * row + 1] * g.inverse - out[1] * g.rest };
            if (a.saved)
                store_pair(saved.value_shift, LOAM_F32, at, c, p.dim_v, correction[0], correction[1]);
            out[0] -= correction[0], out[1] -= correction[1];
        }
        store_pair(a.o.data, p.dtype, LOCAL_AT(a.o, x.s.b, x.h, x.s.q0 + i), c, p.dim_v, out[0], out[1]);
    }
}

template <bool WIDE, int DIM, bool PROBED>
__global__ void __launch_bounds__(THREADS, 2)
    given_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                 const local_saved saved)
{
    typedef shape<WIDE, DIM> S;
    extern __shared__ __align__(16) unsigned char memory[];
    given_shared<WIDE, DIM, PROBED> &sm = *(given_shared<WIDE, DIM, PROBED> *)memory;
    const row_block x = row_block_at(p, a, blockIdx.x);
    const int chunk = blockIdx.y * CHUNK;
    if (x.rows <= 0) return;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    begin_rows<WIDE, DIM>(sm.query, sm.ring, p, a, x);
    if constexpr (PROBED) fill_rows<WIDE, DIM>(sm.probe, p, a.probe, x, NULL);
    float constant[2];
    query_constants<WIDE, DIM>(constant, sm.query, sm.ring.origin, r, sc.rbf);
    const float x0[2] = { sc.mapped ? constant[0] : 0, sc.mapped ? constant[1] : 0 };

    given_sums<S::columns / 8, PROBED> sums;
    given_begin(sums);
    stream_keys<WIDE, DIM, true>(sm.ring, p, a, x, sc, false, chunk, [&](const tile_at &t) {
        if (warp_is_idle(x)) return;
        float s[S::keys / 8][4];
        const key_terms terms = { sm.ring.norm[t.stage], sm.ring.bias[t.stage] };
        clear(s);
        product_rows<1, DIM>(s, sm.query, 0, threadIdx.x / 32 * 16, sm.ring.keys[t.stage]);
        scores_in_place(s, sc, terms, r, x0, t.j);
        given_tile(sums, sm, t.stage, s);
    });
    copy_async_wait<0>();

    given_row g[2];
    float probed[2] = { 0, 0 };
    if constexpr (PROBED && WIDE)
        if (local_saves_raw(&p)) query_constants<WIDE, DIM>(probed, sm.probe, sm.ring.origin, r, false);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float dropped = sc.mapped ? 0 : sc.scale * constant[row];
        g[row] = given_finish(sums.w, sums.tsum[row], dropped, row, p, a, x.h);
        if (!r.real[row]) continue;
        put_given_output<WIDE, DIM, PROBED>(sums, g[row], row, chunk, p, a, saved, x, x.i0 + r.at[row]);
        if (chunk == 0) {
            put_given_row<PROBED>(p, a, saved, x, r, row, g[row], sums.centre[row] + probed[row]);
            put_given_probe<PROBED>(p, a, x, r, row,
                                    [&](int c) { return sm.probe[r.at[row] * (DIM + PAD) + c]; });
        }
    }
    if (a.weights.data && chunk == 0)
        put_given_weights<WIDE, DIM, PROBED>(sm, p, a, x, r, sc, x0, g, sums.centre);
}

#endif
