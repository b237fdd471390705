/* SPDX-License-Identifier: MIT
 *
 * PREPARE where a token has one decay for all channels, or none: P = (q k^T) o e^seg, from one matrix
 * product over the whole chunk; `o` is the elementwise product.
 *
 * e^seg_ij is computed from pre_i - pre_j (recurrent/hopper/decays.cuh). A sum is stored as two floats, hi
 * and lo, whose difference is as exact as one in float64 wherever e^seg is not 0.
 */
#include "src/recurrent/hopper/prepare.cuh"
#include "src/recurrent/hopper/stages.h"

struct prepare_tokens_scalars {
    float2 pre_log2[TILE_SIDE];                                        /* pre in the log2 domain, hi and lo */
    float pre_decay[TILE_SIDE], suf_decay[TILE_SIDE], beta[TILE_SIDE]; /* e^pre, e^suf */
    /* Factors from rows of the tiles to features: for features of length 1 the `mantissa`
     * of unit_factor, else 1. */
    float q_norm[TILE_SIDE], k_norm[TILE_SIDE];
    float k_factor[TILE_SIDE]; /* factors from rows of the tile of k to beta k e^pre; additive: beta e^suf */
};

template <int DIM, bool DELTA> struct prepare_tokens_shared : prepare_tokens_scalars {
    alignas(1024) __nv_bfloat16 q[TILE_SIDE * DIM],
        k[TILE_SIDE * DIM]; /* with a delta rule, v overwrites q */
    float square[DELTA ? SQUARE_ELEMENTS : 1];
};

/* Cumulative log decays and decays; called by one warp. */
template <class SHARED>
static __device__ __forceinline__ void scan_gates(SHARED &sm, const loam_const_view &gates,
                                                  const chunk_place &chunk)
{
    const lane_decays x = lane_decays_of(gates, chunk);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = threadIdx.x % 32 * 2 + n;
        sm.pre_log2[t] = x.pre_log2[n], sm.pre_decay[t] = x.pre[n], sm.suf_decay[t] = x.suf[n];
    }
}

/* Replaces the rows of a tile by their features, and stores these in `array` unless it is NULL. For features
 * of length 1 the tile is multiplied by the power of two alone, which is exact; norm[r], the rest, multiplies
 * what is computed from row r. */
template <int DIM>
static __device__ __forceinline__ void apply_feature_map(__nv_bfloat16 *tile, float *norm,
                                                         __nv_bfloat16 *array, const chunk_place &chunk,
                                                         const loam_problem &p)
{
    const int r = threadIdx.x / 2, half = threadIdx.x % 2 * (DIM / 2);
    const loam_feature_map map = p.feature_map;
    unit_factor factor = { 1, 1 };
    if (map == LOAM_FEATURES_UNIT) {
        double norm2 = 0;
#pragma unroll
        for (int c = 0; c < DIM / 2; c += 8)
            norm2 += norm2_of(*(const uint4 *)(tile + swizzled(r, half + c)));
        factor = unit_factor_of(norm2 + __shfl_xor_sync(0xffffffffu, norm2, 1));
    }
    norm[r] = factor.mantissa;
#pragma unroll
    for (int c = 0; c < DIM / 2 && map != LOAM_FEATURES_IDENTITY; c += 8) {
        uint4 *at = (uint4 *)(tile + swizzled(r, half + c));
        const uint4 out = map == LOAM_FEATURES_UNIT                      ? scaled(*at, factor.power)
                          : r < chunk.tokens && half + c < (int)p.dim_qk ? elu(*at)
                                                                         : make_uint4(0, 0, 0, 0);
        *at = out;
        if (array) *slot_vector<DIM>(array, chunk, r, half + c) = scaled(out, factor.mantissa);
    }
}

/* Stores the features of a tile, times decay[row] where GATED, and their lo part unless `lo` is NULL. */
template <int DIM, bool GATED>
static __device__ __forceinline__ void store_features(__nv_bfloat16 *array, __nv_bfloat16 *lo,
                                                      const chunk_place &chunk, const __nv_bfloat16 *tile,
                                                      const float *norm, const float *decay)
{
#pragma unroll 2
    for (int e = threadIdx.x; e < CHUNK_TOKENS * (DIM / 8); e += PREPARE_THREADS) {
        const int r = e / (DIM / 8), c = e % (DIM / 8) * 8;
        float8 out = unpack(*(const uint4 *)(tile + swizzled(r, c)));
        multiply(out, GATED ? norm[r] * decay[r] : norm[r]);
        const uint4 hi = pack(out);
        *slot_vector<DIM>(array, chunk, r, c) = hi;
        if (lo) *slot_vector<DIM>(lo, chunk, r, c) = lo_part(out, hi);
    }
}

/* s becomes s o e^seg up to the diagonal, 0 above it; with DELTA l likewise below the diagonal. */
template <bool GATED, bool DELTA>
static __device__ __forceinline__ void decay_pairs(float (&s)[8][4], float (&l)[8][4],
                                                   const prepare_tokens_scalars &sm)
{
    const int warp = threadIdx.x / 32, i = warp * 16 + threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
    const float2 row[2] = { sm.pre_log2[i], sm.pre_log2[i + 8] };
    const float q_norm[2] = { sm.q_norm[i], sm.q_norm[i + 8] },
                k_norm[2] = { sm.k_norm[i], sm.k_norm[i + 8] };
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n >= 2 * warp + 2) { /* all above the diagonal */
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = l[n][e] = 0;
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = 8 * n + j + e % 2, distance = i + e / 2 * 8 - column;
            const float decay = GATED ? decay_between(row[e / 2], sm.pre_log2[column]) : 1,
                        norm = sm.k_norm[column];
            s[n][e] = distance >= 0 ? s[n][e] * (q_norm[e / 2] * norm * decay) : 0;
            if (DELTA) l[n][e] = distance > 0 ? l[n][e] * (k_norm[e / 2] * norm * decay) : 0;
        }
    }
}

/* Writes the warp's rows of L = I + Diag(beta) A, without the unit diagonal, to the square. */
template <class SHARED>
static __device__ __forceinline__ void store_system(SHARED &sm, const float (&s)[8][4])
{
    const int i = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float beta = sm.beta[i + 8 * row];
            *(float2 *)(sm.square + (i + 8 * row) * SQUARE_PITCH + 8 * n +
                        j) = make_float2(s[n][2 * row] * beta, s[n][2 * row + 1] * beta);
        }
    }
}

/* Loads q and k and maps them to features in the tiles, which are complete and fenced at the end; loads beta
 * and the decays. */
template <int DIM, bool GATED, bool DELTA>
static __device__ __forceinline__ void load_inputs(prepare_tokens_shared<DIM, DELTA> &sm,
                                                   const loam_problem &p, const loam_args &a,
                                                   const recurrent_chunks &chunks, const chunk_place &chunk)
{
    load_rows_of<DIM, PREPARE_THREADS>(sm.q, chunks.q_given, chunk);
    load_rows_of<DIM, PREPARE_THREADS>(sm.k, chunks.k_given, chunk);
    copy_async_commit();
    if (a.beta.data) load_beta(sm.beta, a, chunk);
    if (GATED && threadIdx.x >= PREPARE_THREADS - 32) scan_gates(sm, a.log_decay, chunk);
    copy_async_wait<0>();
    __syncthreads();
    apply_feature_map<DIM>(sm.q, sm.q_norm, chunks.q_features, chunk, p);
    apply_feature_map<DIM>(sm.k, sm.k_norm, chunks.k_features, chunk, p);
    fence_async_proxy();
    __syncthreads();
}

/* Stores q_in, k_out and the decays that the pass reads, as far as they have arrays, and computes
 * k_factor. weighted: there is a beta. */
template <int DIM, bool GATED, bool DELTA>
static __device__ __forceinline__ void store_decayed(prepare_tokens_shared<DIM, DELTA> &sm,
                                                     const recurrent_chunks &chunks, const chunk_place &chunk,
                                                     bool weighted)
{
    if (threadIdx.x < TILE_SIDE) {
        const int t = threadIdx.x;
        if (DELTA)
            sm.k_factor[t] = sm.beta[t] * (GATED ? sm.pre_decay[t] : 1) * sm.k_norm[t];
        else if (GATED)
            sm.k_factor[t] = (weighted ? sm.beta[t] : 1) * sm.suf_decay[t];
    }
    for (int c = threadIdx.x; c < DIM && chunks.chunk_decay; c += PREPARE_THREADS)
        chunks.chunk_decay[chunk.slot * DIM + c] = GATED ? sm.pre_decay[TILE_SIDE - 1] : 1;
    if (GATED && chunks.q_decayed)
        store_features<DIM, true>(chunks.q_decayed, NULL, chunk, sm.q, sm.q_norm, sm.pre_decay);
    if (GATED && DELTA && chunks.suf_decay && threadIdx.x < TILE_SIDE)
        chunks.suf_decay[chunk.slot * TILE_SIDE + threadIdx.x] = sm.suf_decay[threadIdx.x];
    if (GATED && DELTA && chunks.pre_decay && threadIdx.x < TILE_SIDE)
        chunks.pre_decay[chunk.slot * TILE_SIDE + threadIdx.x] = sm.pre_decay[threadIdx.x];
    if (GATED ? chunks.k_decayed != NULL : DELTA && chunks.k_lo) {
        store_features<DIM, GATED>(GATED ? chunks.k_decayed : chunks.k_features, chunks.k_lo, chunk, sm.k,
                                   sm.k_norm, sm.suf_decay);
    }
}

/* Thread block n computes slot n. */
template <int DIM, bool GATED, bool DELTA>
__global__ void __launch_bounds__(PREPARE_THREADS, DELTA ? (DIM > 128 ? 2 : 4) : 1)
    prepare_tokens_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                          const __grid_constant__ recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    auto &sm = *(prepare_tokens_shared<DIM, DELTA> *)swizzled_memory;
    const chunk_place chunk = chunk_of_block(p, a, chunks, blockIdx.x);
    if (chunk.tokens == 0) return;
    report_solved(p, a, chunk);
    load_inputs<DIM, GATED, DELTA>(sm, p, a, chunks, chunk);
    store_decayed<DIM, GATED, DELTA>(sm, chunks, chunk, a.beta.data);
    if (!chunks.pairs) return;
    float s[1][8][4], l[1][8][4];
    wgmma_fence();
    more_rows<DIM>(s[0], sm.q, sm.k, false);
    if (DELTA) more_rows<DIM>(l[0], sm.k, sm.k, false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(s[0]);
    if (DELTA) {
        wgmma_results(l[0]);
        __syncthreads();
        load_rows_of<DIM, PREPARE_THREADS>(sm.q, chunks.v, chunk);
        copy_async_commit();
    }
    decay_pairs<GATED, DELTA>(s[0], l[0], sm);
    store_product<TILE_SIDE>(chunks.pairs, chunk, s[0], 0);
    if constexpr (DELTA) {
        store_system(sm, l[0]);
        copy_async_wait<0>();
        fence_async_proxy();
        store_wy<DIM, false>(chunks, chunk, sm.square, sm.beta, sm.k_factor, sm.k, sm.k, sm.q);
    } else {
        if (chunks.values) store_weighed<DIM>(chunks.values, chunks, chunk, sm.beta);
        if (GATED && chunks.weighed) {
            __syncthreads();
            store_weighed<DIM>(chunks.weighed, chunks, chunk, sm.k_factor);
        }
    }
    end_after_previous_launch();
}

/* ------------------------------------------------------------------ launches */

template <int DIM, bool GATED, bool DELTA>
static loam_status launch_as(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                             loam_error *error)
{
    return cuda_launch("prepare_tokens_kernel", prepare_tokens_kernel<DIM, GATED, DELTA>,
                       chunk_blocks(*chunks), PREPARE_THREADS, sizeof(prepare_tokens_shared<DIM, DELTA>),
                       a->stream, chunks->from > 0, error, *p, *a, *chunks);
}

template <bool GATED, bool DELTA>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          loam_error *error)
{
    if (DELTA && chunk_width(p) == 256)
        return launch_as < DELTA ? 256 : 128, GATED, DELTA > (p, a, chunks, error);
    return chunk_width(p) == 64 ? launch_as<64, GATED, DELTA>(p, a, chunks, error)
                                : launch_as<128, GATED, DELTA>(p, a, chunks, error);
}

loam_status recurrent_features_hopper(const loam_problem *p, const loam_args *a,
                                      const recurrent_chunks *chunks, loam_error *error)
{
    return launch<false, false>(p, a, chunks, error);
}

loam_status recurrent_prepare_hopper(const loam_problem *p, const loam_args *a,
                                     const recurrent_chunks *chunks, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    loam_args one_gate = *a;
    switch (form->gate) {
    case GATE_CHANNEL: return recurrent_prepare_channels_hopper(p, a, chunks, error);
    case GATE_NONE:
        return form->delta ? launch<false, true>(p, a, chunks, error)
                           : launch<false, false>(p, a, chunks, error);
    case GATE_HEAD: one_gate.log_decay.batch = one_gate.log_decay.token = 0; break;
    case GATE_TOKEN: break;
    }
    return form->delta ? launch<true, true>(p, &one_gate, chunks, error)
                       : launch<true, false>(p, &one_gate, chunks, error);
}
