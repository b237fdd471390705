/* SPDX-License-Identifier: MIT
 * The stream of tiles of keys, and of values, past a block of rows: a ring of one or two stages in shared
 * memory, filled by asynchronous copies, and read by all four warps. With two stages the copies of the next
 * tile overlap with the use of the current one. */
#ifndef LOAM_LOCAL_CUDA_STREAM_CUH
#define LOAM_LOCAL_CUDA_STREAM_CUH

#include "src/local/cuda/common.cuh"

template <bool WIDE, int DIM> struct stream_shared {
    typedef shape<WIDE, DIM> S;
    alignas(16) typename S::type keys[S::stages][S::key_tile];
    alignas(16) typename S::type values[S::stages][S::value_tile];
    float norm[S::stages][S::keys], bias[S::stages][S::keys];
    float origin[DIM];
};

/* The tile that begins at key j is in stage `stage` of the ring. */
struct tile_at {
    int j, stage;
};

template <bool WIDE, int DIM, bool VALUES>
static __device__ __forceinline__ void fill_stage(stream_shared<WIDE, DIM> &ring, const loam_problem &p,
                                                  const loam_args &a, const row_block &x, int j, int stage,
                                                  int first)
{
    typedef shape<WIDE, DIM> S;
    fill_tile<S::keys, DIM, THREADS>(ring.keys[stage], rows_of(a.k, p.dtype, x.s.b, x.h_kv, x.s.k0 + j),
                                     x.last - j, 0, (int)p.dim_qk, ring.origin);
    if (VALUES) {
        fill_tile<S::keys, S::columns, THREADS>(ring.values[stage],
                                                rows_of(a.v, p.dtype, x.s.b, x.h_kv, x.s.k0 + j), x.last - j,
                                                first, (int)p.dim_v - first, NULL);
    }
    copy_async_commit();
}

/* Fills in the terms of the scores of a tile's keys: |k|^2 where `norms`, and the biases. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_terms(stream_shared<WIDE, DIM> &ring, const score_constants &sc,
                                                  bool norms, const loam_args &a, const row_block &x,
                                                  const tile_at &t)
{
    typedef shape<WIDE, DIM> S;
    if (norms) tile_norms<S::keys, DIM, THREADS>(ring.norm[t.stage], ring.keys[t.stage]);
    if (sc.biased && threadIdx.x < S::keys) {
        const int64_t at = LOCAL_AT(a.key_bias, x.s.b, x.h, x.s.k0 + t.j + threadIdx.x);
        ring.bias[t.stage][threadIdx.x] = t.j + (int)threadIdx.x < x.last
                                              ? ((const float *)a.key_bias.data)[at]
                                              : 0;
    }
}

/* Calls use(tile) for each tile of the keys that the block sees, in order. VALUES: loads the values too,
 * their columns from `first` on. norms: |k|^2 is needed even if the score does not use it. All threads of the
 * block take part. */
template <bool WIDE, int DIM, bool VALUES, class F>
static __device__ __forceinline__ void stream_keys(stream_shared<WIDE, DIM> &ring, const loam_problem &p,
                                                   const loam_args &a, const row_block &x,
                                                   const score_constants &sc, bool norms, int first, F use)
{
    typedef shape<WIDE, DIM> S;
    const bool terms = norms || sc.rbf || sc.biased;
    __syncthreads();
    if (x.first < x.last) fill_stage<WIDE, DIM, VALUES>(ring, p, a, x, x.first, 0, first);
    for (tile_at t = { x.first, 0 }; t.j < x.last; t.j += S::keys, t.stage = (t.stage + 1) % S::stages) {
        if (S::stages > 1 && t.j + S::keys < x.last) {
            fill_stage<WIDE, DIM, VALUES>(ring, p, a, x, t.j + S::keys, (t.stage + 1) % S::stages, first);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (terms) {
            fill_terms(ring, sc, norms || sc.rbf, a, x, t);
            __syncthreads();
        }
        use(t);
        __syncthreads();
        if (S::stages == 1 && t.j + S::keys < x.last)
            fill_stage<WIDE, DIM, VALUES>(ring, p, a, x, t.j + S::keys, 0, first);
    }
}

/* ------------------------------------------------------------------ tiles of the block's rows */

/* Loads the block's rows of v (queries, or probes), relative to `origin` where that is not NULL (RBF). */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void fill_rows(element<WIDE> *tile, const loam_problem &p,
                                                 const loam_const_view &v, const row_block &x,
                                                 const float *origin)
{
    fill_tile<ROWS, DIM, THREADS>(tile, rows_of(v, p.dtype, x.s.b, x.h, x.s.q0 + x.i0), x.rows, 0,
                                  (int)p.dim_qk, origin);
    copy_async_commit();
}

/* Loads the origin of the block's sequence, and the block's queries. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void begin_rows(element<WIDE> *query, stream_shared<WIDE, DIM> &ring,
                                                  const loam_problem &p, const loam_args &a,
                                                  const row_block &x)
{
    load_origin<DIM>(ring.origin, p, a, x.s, x.h_kv);
    __syncthreads();
    fill_rows<WIDE, DIM>(query, p, a.q, x, p.score == LOAM_RBF ? ring.origin : NULL);
    if (WIDE) __syncthreads(); /* query_constants reads queries of other threads */
}

/* constant[row]: the part of the product x that depends on the query alone: q . origin or, for RBF,
 * -|q - origin|^2 / 2. 0 on narrow tiles, which have no origin. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void query_constants(float (&constant)[2], const element<WIDE> *query,
                                                       const float *origin, const row_pair &r, bool rbf)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float sum = 0;
        for (int c = threadIdx.x % 4; WIDE && c < DIM; c += 4) {
            const float q = tile_value(query[r.at[row] * (DIM + PAD) + c]);
            sum += rbf ? -0.5f * q * q : q * origin[c];
        }
        constant[row] = WIDE ? quad_sum(sum) : 0;
    }
}

#endif
