/* SPDX-License-Identifier: MIT
 *
 * The last sweeps of backward_pairs.cuh for tiles of 256 channels, one sum of which takes half of the
 * registers. In one part the residual of the adjoint solve is found by an image of y before the sweep for dq,
 * whose products are asked for one after another. In two parts the pairs of a tile are two halves of 32 keys.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_PAIRS_WIDE_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_PAIRS_WIDE_CUH

#include "src/local/hopper/backward_pairs.cuh"

/* Keys of half a tile. */
enum { HALF_KEYS = TILE_SIDE / 2, HALF_BLOCKS = HALF_KEYS / 8, HALF_STEPS = HALF_KEYS / 16 };

/* q = sum ds k in one part; inner: the sums of ds as rounded (this thread's columns). p is made during the
 * products with do and y, and rounded to bf16 during those with rho. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void query_sums_one_part(float (&q)[DIM / TILE_SIDE][8][4],
                                                           float (&inner)[2],
                                                           const rows_system<DIM, DECAYED> &rs,
                                                           const pair_rows &own, rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    pair_stream<DIM, DECAYED, pair_stages<DIM>::grad_o, true> stream(rs);
    clear_sums<DIM>(q);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __nv_bfloat16 *const values = stream.wait(), *const keys = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1> p, ds;
        multiply_rows<DIM>(s, rs.queries(), keys, false);
        wgmma_commit();
        more_rows<DIM>(g, rs.operand(pair_stages<DIM>::grad_o), values, false);
        more_rows<DIM>(g, rs.direction(0), keys, true);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        score_weights(s, sys, j);
        wgmma_results(s);
        wgmma_wait<0>();
        wgmma_results(g);
        stream.release(stream.waited - 1);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                g[n][e] = s[n][e] * (g[n][e] - own.error[e / 2]);
        split_weights(p, s);
        multiply_rows<DIM>(u, rs.direction(1), keys, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(u);
        unpack_weights(s, p);
        pair_gradients<1, false>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* s (+)= rows keys^T and out += w keys, with half of a tile of keys. Both after a wgmma_fence. */
template <int DIM>
static __device__ __forceinline__ void more_half_rows(float (&s)[HALF_BLOCKS][4], const __nv_bfloat16 *rows,
                                                      const __nv_bfloat16 *keys, bool add)
{
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++)
        more_rows<TILE_SIDE>(s, rows + n * TILE_ELEMENTS, keys + n * TILE_ELEMENTS, add || n > 0);
}
template <int DIM>
static __device__ __forceinline__ void more_half_weights(float (&out)[DIM / TILE_SIDE][8][4],
                                                         const uint32_t (&w)[HALF_STEPS][4],
                                                         const __nv_bfloat16 *keys)
{
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++)
        more_weights<TILE_SIDE>(*(float(*)[1][8][4])out[n], w, keys + n * TILE_ELEMENTS);
}

/* Adds half a tile of keys, from key j on, to q = sum ds k, in two parts; g has the products do . v. What the
 * rows have but once lies in memory: products leave it no registers. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void add_half_tile(float (&q)[DIM / TILE_SIDE][8][4], float (&inner)[2],
                                                     float (&g)[HALF_BLOCKS][4],
                                                     const rows_system<DIM, DECAYED> &rs, pair_rows &stored,
                                                     rows_sums &sum, const __nv_bfloat16 *keys, int j)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    float s[HALF_BLOCKS][4], u[HALF_BLOCKS][4];
    weights_operand<2, HALF_STEPS> ds;
    wgmma_fence();
    more_half_rows<DIM>(s, rs.queries(), keys, false);
    more_half_rows<DIM>(u, rs.operand(pair_stages<DIM>::rho), keys, false);
    more_half_rows<DIM>(u, rs.direction(1), keys, true);
    more_half_rows<DIM>(g, rs.operand(pair_stages<DIM>::y), keys, true);
    more_half_rows<DIM>(g, rs.direction(0), keys, true);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(s);
    wgmma_results(g);
    wgmma_results(u);
    {
        const pair_rows own = in_memory(stored);
        pair_errors<true>(s, g, sys, own, j);
        pair_gradients<2, true>(u, s, g, sys, own, in_memory(sum), j);
    }
    split_weights(ds, u);
    add_weights(in_memory(inner), ds);
    wgmma_fence();
    more_half_weights<DIM>(q, ds.part[1], keys);
    more_half_weights<DIM>(q, ds.part[0], keys);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(q);
}

/* The same of all tiles. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void query_sums_two_parts(float (&q)[DIM / TILE_SIDE][8][4],
                                                            float (&inner)[2],
                                                            const rows_system<DIM, DECAYED> &rs,
                                                            pair_rows &own, rows_sums &sum)
{
    pair_stream<DIM, DECAYED, pair_stages<DIM>::rho, true> stream(rs);
    clear_sums<DIM>(q);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        float g[2][HALF_BLOCKS][4];
        const __nv_bfloat16 *const values = stream.wait();
        wgmma_fence();
        more_half_rows<DIM>(g[0], rs.operand(pair_stages<DIM>::grad_o), values, false);
        more_half_rows<DIM>(g[1], rs.operand(pair_stages<DIM>::grad_o), values + HALF_KEYS * TILE_SIDE,
                            false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(g[0]);
        wgmma_results(g[1]);
        stream.release(stream.waited);
        const __nv_bfloat16 *const keys = stream.wait();
        add_half_tile(q, inner, g[0], rs, own, sum, keys, j);
        add_half_tile(q, inner, g[1], rs, own, sum, keys + HALF_KEYS * TILE_SIDE, j + HALF_KEYS);
        stream.release(stream.waited);
    }
    stream.finish();
}

#endif
