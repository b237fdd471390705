/* SPDX-License-Identifier: MIT
 *
 * Forward with a given probe (0 or args.probe) on GPUs: one sweep over the keys, as in local_forward_cpu.c:
 *     omega = sum w,  T = sum w (t - c),  A = sum w v,  B = sum w (t - c) v,   w = exp(s - m),  t = rho . k
 *     o = (A (1 + T / omega) - B) / omega
 * with the running maximum m and, for a probe, a centre c that follows the mean of t.
 */
#ifndef LOAM_LOCAL_LOCAL_GIVEN_CUDA_CUH
#define LOAM_LOCAL_LOCAL_GIVEN_CUDA_CUH

#include "src/local/local_cuda.cuh"

template <bool WIDE, int DIM, bool PROBED> struct given_shared {
    typedef shape<WIDE, DIM> of;
    typedef typename of::type type;
    alignas(16) type query[of::row_tile];
    alignas(16) type probe[PROBED ? of::row_tile : 8];
    alignas(16) type keys[of::stages][of::key_tile];
    alignas(16) type values[of::stages][of::value_tile];
    float norm[of::stages][of::keys], bias[of::stages][of::keys];
    float origin[DIM];
};

/* What a tile of keys needs beside k and v; call between the arrival of the tile and the next barrier. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_key_terms(float *norm, float *bias, const element<WIDE> *keys,
                                                      const scoring &sc, bool norms, const loam_args &a,
                                                      const row_block &x, int j)
{
    typedef shape<WIDE, DIM> of;
    if (norms) {
        tile_norms<of::keys, DIM, THREADS>(norm, keys);
    }
    if (sc.biased && threadIdx.x < of::keys) {
        const int64_t at = LOCAL_AT(a.key_bias, x.s.b, x.h, x.s.k0 + j + threadIdx.x);
        bias[threadIdx.x] = j + (int)threadIdx.x < x.last ? ((const float *)a.key_bias.data)[at] : 0;
    }
}

template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_keys(element<WIDE> *tile, const loam_problem &p, const loam_args &a,
                                                 const row_block &x, int j, const float *origin)
{
    typedef shape<WIDE, DIM> of;
    fill_tile<of::keys, DIM, THREADS>(tile, rows_of(a.k, p.dtype, x.s.b, x.h_kv, x.s.k0 + j), x.last - j, 0,
                                      (int)p.dim_qk, origin);
}

/* Columns first .. of the values. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_values(element<WIDE> *tile, const loam_problem &p, const loam_args &a,
                                                   const row_block &x, int j, int first)
{
    typedef shape<WIDE, DIM> of;
    fill_tile<of::keys, of::columns, THREADS>(tile, rows_of(a.v, p.dtype, x.s.b, x.h_kv, x.s.k0 + j), x.last - j,
                                              first, (int)p.dim_v - first, NULL);
}

/* Queries, or probes, of the block. RBF takes queries relative to the origin. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_rows(element<WIDE> *tile, const loam_problem &p, const loam_const_view &v,
                                                 const row_block &x, const float *origin)
{
    fill_tile<ROWS, DIM, THREADS>(tile, rows_of(v, p.dtype, x.s.b, x.h, x.s.q0 + x.i0), x.rows, 0, (int)p.dim_qk,
                                  origin);
}

/* constant[row]: the part of x that the query alone gives: q . origin, or -|q'|^2 / 2; 0 on narrow tiles, which have no origin. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void query_constants(float (&constant)[2], const element<WIDE> *query,
                                                       const float *origin, const row_pair &r, bool rbf)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float sum = 0;
        for (int c = threadIdx.x % 4; WIDE && c < DIM; c += 4) {
            const float q = tile_value(query[r.at[e] * (DIM + PAD) + c]);
            sum += rbf ? -0.5f * q * q : q * origin[c];
        }
        constant[e] = WIDE ? quad_sum(sum) : 0;
    }
}

/* Moves the centre to the mean of t over this tile and all before; t becomes w (t - c). before: omega (of the row) without the
 * tile; tsum: this thread's columns. shift: what B then loses of A. */
template <int BLOCKS>
static __device__ __forceinline__ void centre_probe(float (&t)[BLOCKS][4], const float (&w)[BLOCKS][4],
                                                    float (&centre)[2], float (&tsum)[2], const float (&before)[2],
                                                    float (&shift)[2])
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

template <bool WIDE, int DIM, bool PROBED>
__global__ void __launch_bounds__(THREADS, 2)
    given_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a, const local_saved saved)
{
    typedef shape<WIDE, DIM> of;
    constexpr int blocks = of::keys / 8, wide_blocks = of::columns / 8;
    extern __shared__ __align__(16) unsigned char memory[];
    given_shared<WIDE, DIM, PROBED> &sm = *(given_shared<WIDE, DIM, PROBED> *)memory;

    const row_block x = row_block_at(p, a, blockIdx.x);
    const int chunk = blockIdx.y * CHUNK;
    if (x.rows <= 0) {
        return;
    }
    const scoring sc = scoring_of(p, a, x.h);
    const row_pair r = row_pair_of(p, x);
    if (WIDE) {
        load_origin<DIM>(sm.origin, p, a, x);
        __syncthreads();
    }
    fill_rows<WIDE, DIM>(sm.query, p, a.q, x, sc.rbf ? sm.origin : NULL);
    if (PROBED) {
        fill_rows<WIDE, DIM>(sm.probe, p, a.probe, x, NULL);
    }

    float o[wide_blocks][4], b[PROBED ? wide_blocks : 1][4];
    float centre[2] = { 0, 0 }, tsum[2] = { 0, 0 }, constant[2] = { 0, 0 }, x0[2] = { 0, 0 };
    online w;
    clear(o);
    clear(b);
    online_begin(w);
    const int warp_row = threadIdx.x / 32 * 16;
    if (x.first < x.last) {
        fill_keys<WIDE, DIM>(sm.keys[0], p, a, x, x.first, sm.origin);
        fill_values<WIDE, DIM>(sm.values[0], p, a, x, x.first, chunk);
    }
    copy_async_commit();
    for (int j = x.first, at = 0; j < x.last; j += of::keys, at = (at + 1) % of::stages) {
        if (of::stages > 1) {
            if (j + of::keys < x.last) {
                const int next = (at + 1) % of::stages;
                fill_keys<WIDE, DIM>(sm.keys[next], p, a, x, j + of::keys, sm.origin);
                fill_values<WIDE, DIM>(sm.values[next], p, a, x, j + of::keys, chunk);
            }
            copy_async_commit();
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (j == x.first) {
            query_constants<WIDE, DIM>(constant, sm.query, sm.origin, r, sc.rbf);
            x0[0] = sc.capped ? constant[0] : 0, x0[1] = sc.capped ? constant[1] : 0;
        }
        if (sc.rbf || sc.biased) {
            fill_key_terms<WIDE, DIM>(sm.norm[at], sm.bias[at], sm.keys[at], sc, sc.rbf, a, x, j);
            __syncthreads();
        }
        const key_terms terms = { sm.norm[at], sm.bias[at] };
        float s[blocks][4], keep[2], before[2] = { w.omega[0], w.omega[1] };
        clear(s);
        product_rows<1, DIM>(s, sm.query, 0, warp_row, sm.keys[at]);
        scores_in_place(s, sc, terms, r, x0, j);
        online_weigh(w, s, keep);
        scale_rows(o, keep);
        if constexpr (PROBED) {
            float t[blocks][4], shift[2];
            clear(t);
            product_rows<1, DIM>(t, sm.probe, 0, warp_row, sm.keys[at]);
#pragma unroll
            for (int row = 0; row < 2; row++) {
                tsum[row] *= keep[row];
                before[row] *= keep[row];
            }
            centre_probe(t, s, centre, tsum, before, shift);
#pragma unroll
            for (int n = 0; n < wide_blocks; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    b[n][e] = b[n][e] * keep[e / 2] - shift[e / 2] * o[n][e];
                }
            }
            product_weights<of::parts, of::columns + PAD>(b, t, sm.values[at], 0);
        }
        product_weights<of::parts, of::columns + PAD>(o, s, sm.values[at], 0);
        __syncthreads();
        if (of::stages == 1 && j + of::keys < x.last) {
            fill_keys<WIDE, DIM>(sm.keys[0], p, a, x, j + of::keys, sm.origin);
            fill_values<WIDE, DIM>(sm.values[0], p, a, x, j + of::keys, chunk);
            copy_async_commit();
        }
    }
    copy_async_wait<0>();

    const int64_t b0 = x.s.b, token = x.s.q0 + x.i0;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float omega = quad_sum(w.omega[row]), some = omega > 0 ? 1 : 0;
        const float rest = PROBED && omega > 0 ? quad_sum(tsum[row]) / omega : 0;
        float inverse = omega > 0 ? 1 / omega : 0, lse = omega > 0 ? w.m[row] + logf(omega) : -INFINITY;
        const float dropped = sc.capped ? 0 : sc.scale * constant[row];
        float full = lse + dropped;
        if (p.sink) {
            const float sink = ((const float *)a.sink)[x.h], m = fmaxf(full, sink);
            const float total = m + logf(expf(full - m) + expf(sink - m));
            inverse *= expf(full - total);
            full = total;
            lse = total - dropped;
        }
        if (!r.real[row]) {
            continue;
        }
        const int64_t i = x.i0 + r.at[row], at = local_row(&p, &x.s, x.h, i);
        const int64_t o_at = LOCAL_AT(a.o, b0, x.h, token + r.at[row]);
#pragma unroll
        for (int n = 0; n < wide_blocks; n++) {
            const int c = chunk + column_of(n, 0);
            if (c >= p.dim_v) {
                continue;
            }
            const float mean[2] = { o[n][2 * row] * inverse, o[n][2 * row + 1] * inverse };
            const bool both = c + 1 < p.dim_v;
            float y[2] = { mean[0], mean[1] };
            if constexpr (PROBED) {
                y[0] = mean[0] * (1 + rest) - b[n][2 * row] * inverse;
                y[1] = mean[1] * (1 + rest) - b[n][2 * row + 1] * inverse;
            }
            store_pair(a.o.data, p.dtype, o_at + c, y[0], y[1], both);
            if (saved.vbar) {
                store_pair(saved.vbar, LOAM_F32, at * p.dim_v + c, mean[0], mean[1], both);
            }
        }
        if (threadIdx.x % 4 == 0 && chunk == 0) {
            const loam_row_info info = { some > 0 || p.sink ? LOAM_ROW_SOLVED : LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
            put_info(a, x, i, r.lo[row] < r.hi[row] ? info : loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 });
            if (a.lse.data) {
                ((float *)a.lse.data)[LOCAL_AT(a.lse, b0, x.h, token + r.at[row])] = full;
            }
            if (saved.lse) {
                ((float *)saved.lse)[at] = lse;
            }
            if (PROBED && saved.tbar) {
                ((float *)saved.tbar)[2 * at] = centre[row];
                ((float *)saved.tbar)[2 * at + 1] = rest;
            }
        }
        /* The probe that was used: the given one, 0 for softmax and where nothing is seen. */
        for (int c = threadIdx.x % 4; a.rho.data && chunk == 0 && c < p.dim_qk; c += 4) {
            const float rho = PROBED && some > 0 ? tile_value(sm.probe[r.at[row] * (DIM + PAD) + c]) : 0;
            ((float *)a.rho.data)[LOCAL_AT(a.rho, b0, x.h, token + r.at[row]) + c] = rho;
        }
    }
}

#endif
