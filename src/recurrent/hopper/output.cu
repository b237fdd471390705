/* SPDX-License-Identifier: MIT
 *
 * OUTPUT on Hopper, after the states are known: a thread block computes one chunk, all chunks in parallel. S0
 * is the state before the chunk, dS1 the gradient of the state after it:
 *
 *     forward             o = scale (q_in S0^T + P u), with a delta rule LO: u in hi and lo part
 *     backward, additive  du = k_out dS1^T + scale P^T do
 *
 * Where a token has one gate, P and u of a delta rule have it, and q_in S0^T gets it here. */
#include "src/gpu/launch.cuh"
#include "src/recurrent/hopper/maps.cuh"
#include "src/recurrent/hopper/operands.cuh"
#include "src/recurrent/hopper/stages.h"

struct output_arrays {
    chunk_map value, value_lo; /* u; do */
    chunk_map pairs;           /* P */
    chunk_map row;             /* q_in; k_out */
    chunk_map state;           /* states; grad_states */
    loam_view o;
    __nv_bfloat16 *du;
    bool aligned; /* rows of o can be written 16 bytes at a time */
    int channels; /* of o */
    float scale;
};

enum { OUTPUT_THREADS = 128 };

/* Channels of o that a thread block computes, of DIM. */
template <int DIM> static constexpr int output_columns = DIM < 128 ? DIM : 128;

template <int DIM, bool LO> struct output_shared {
    static constexpr int columns = output_columns<DIM>;
    alignas(1024) __nv_bfloat16 row[DIM * TILE_SIDE]; /* at the end: staging buffer of the output */
    __nv_bfloat16 state[columns * DIM], value[(1 + LO) * columns * TILE_SIDE], pairs[TILE_ELEMENTS];
    uint64_t pairs_full, state_full;
};

/* Channels of o, and so rows of the state, are those from `column`. */
template <int DIM, bool LO>
static __device__ __forceinline__ void output_load(output_shared<DIM, LO> &sm, const output_arrays &arrays,
                                                   const chunk_place &chunk, int column)
{
    constexpr int columns = output_columns<DIM>, tiles = columns / TILE_SIDE;
    barrier_expect(&sm.pairs_full, ((1 + LO) * columns + TILE_SIDE) * TILE_SIDE * 2);
    barrier_expect(&sm.state_full, (columns + TILE_SIDE) * DIM * 2);
    chunk_boxes_at<1>(arrays.pairs, 0, 0, chunk, 0).copy(sm.pairs, &sm.pairs_full);
    chunk_boxes_at<DIM / TILE_SIDE>(arrays.row, 0, 0, chunk, 0).copy(sm.row, &sm.state_full);
    chunk_boxes_at<tiles>(arrays.value, column, 0, chunk, 0).copy(sm.value, &sm.pairs_full);
    if (LO) {
        chunk_boxes_at<tiles>(arrays.value_lo, column, 0, chunk, 0)
            .copy(sm.value + columns * TILE_SIDE, &sm.pairs_full);
    }
    for (int c = 0; c < DIM; c += TILE_SIDE) { /* a tile has all rows */
        for (int r = 0; r < columns; r += TILE_SIDE) {
            chunk_boxes_at<1>(arrays.state, c, column + r, chunk, 0)
                .copy(sm.state + c * columns + r * TILE_SIDE, &sm.state_full);
        }
    }
}

/* Loads the pairs as operand A: rows 16 warp .. of P or of its transpose. */
template <bool TRANSPOSED>
static __device__ __forceinline__ void load_pairs(uint32_t (&a)[4][4], const __nv_bfloat16 *pairs)
{
    if constexpr (TRANSPOSED)
        load_transposed(a, pairs);
    else
        load_rows<TILE_SIDE>(a, pairs);
}

template <int TILES> static __device__ __forceinline__ void scale_output(float (&x)[TILES][8][4], float scale)
{
#pragma unroll
    for (int n = 0; n < TILES * 32; n++)
        x[n / 32][n / 4 % 8][n % 4] *= scale;
}

/* Rows times their factors. 0 times inf is not 0. */
template <int TILES>
static __device__ __forceinline__ void decay_rows(float (&x)[TILES][8][4], const float *factors)
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const float factor[2] = { factors[row], factors[row + 8] };
#pragma unroll
    for (int n = 0; n < TILES * 32; n++) {
        const float by = factor[n % 4 / 2];
        float &element = x[n / 32][n / 4 % 8][n % 4];
        element = by > 0 ? element * by : 0;
    }
}

/* out (+)= the rows times the state. */
template <int DIM, bool LO>
static __device__ __forceinline__ void add_state(float (&out)[output_columns<DIM> / TILE_SIDE][8][4],
                                                 output_shared<DIM, LO> &sm, bool add)
{
    barrier_wait(&sm.state_full, 0);
    multiply_rows<DIM>(*(float(*)[output_columns<DIM> / 8][4]) & out, sm.row, sm.state, add);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(out);
}

/* out (+)= the pairs times the values. Rows of another sequence may follow those of the chunk. P is 0 there,
 * but 0 times inf or NaN is not 0. */
template <int DIM, bool BACKWARD, bool LO>
static __device__ __forceinline__ void add_pairs(float (&out)[output_columns<DIM> / TILE_SIDE][8][4],
                                                 output_shared<DIM, LO> &sm, const chunk_place &chunk,
                                                 bool add)
{
    constexpr int columns = output_columns<DIM>;
    uint32_t pairs[4][4];
    barrier_wait(&sm.pairs_full, 0);
    if (chunk.tokens < CHUNK_TOKENS) {
        clear_rows<columns / TILE_SIDE>(sm.value, chunk.tokens, threadIdx.x, OUTPUT_THREADS);
        fence_async_proxy();
        __syncthreads();
    }
    load_pairs<BACKWARD>(pairs, sm.pairs);
    wgmma_fence();
    if (LO) more_weights<columns>(out, pairs, sm.value + columns * TILE_SIDE, add);
    more_weights<columns>(out, pairs, sm.value, LO || add);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(out);
}

/* Copies rows from the staging buffer to o or du; each warp copies its own 16. */
template <int DIM, bool BACKWARD>
static __device__ __forceinline__ void store_rows(const output_arrays &arrays, const __nv_bfloat16 *tiles,
                                                  const chunk_place &chunk, int column)
{
    constexpr int pieces = output_columns<DIM> / 8;
    const int first = threadIdx.x / 32 * 16;
#pragma unroll 4
    for (int e = threadIdx.x % 32; e < 16 * pieces; e += 32) {
        const int r = first + e / pieces, c = column + e % pieces * 8;
        uint4 out = *(const uint4 *)(tiles + swizzled(r, c - column));
        if (BACKWARD) {
            if (r >= chunk.tokens) out = make_uint4(0, 0, 0, 0);
            *(uint4 *)(arrays.du + (chunk.slot * CHUNK_TOKENS + r) * DIM + c) = out;
        } else if (r < chunk.tokens && c < arrays.channels) {
            uint16_t *to = (uint16_t *)arrays.o.data +
                           RECURRENT_AT(arrays.o, chunk.b, chunk.h, chunk.first + r) + c;
            if (arrays.aligned) {
                *(uint4 *)to = out;
            } else {
                const uint32_t pairs[4] = { out.x, out.y, out.z, out.w };
#pragma unroll
                for (int s = 0; s < 8; s++)
                    to[s] = (uint16_t)(pairs[s / 2] >> s % 2 * 16);
            }
        }
    }
}

template <int DIM, bool BACKWARD, bool LO>
__global__ void __launch_bounds__(OUTPUT_THREADS)
    output_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                  const __grid_constant__ recurrent_chunks chunks,
                  const __grid_constant__ output_arrays arrays)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    output_shared<DIM, LO> &sm = *(output_shared<DIM, LO> *)swizzled_memory;
    if (threadIdx.x == 0) {
        barrier_init(&sm.pairs_full, 1);
        barrier_init(&sm.state_full, 1);
        fence_async_proxy();
    }
    __syncthreads();
    launch_dependents();
    if (BACKWARD || chunks.to == chunks.per_sequence) wait_for_previous_launch();
    constexpr int columns = output_columns<DIM>, parts = DIM / columns;
    const chunk_place chunk = chunk_of_block(p, a, chunks, blockIdx.x / parts);
    const int column = blockIdx.x % parts * columns;
    if (chunk.tokens == 0) return;
    if (threadIdx.x == 0) output_load(sm, arrays, chunk, column);
    float out[columns / TILE_SIDE][8][4];
    uint32_t rounded[columns / 16][4];
    if constexpr (BACKWARD) {
        add_pairs<DIM, BACKWARD, LO>(out, sm, chunk, false);
        scale_output(out, arrays.scale);
        add_state<DIM>(out, sm, true);
    } else {
        const bool decays = LO && chunks.pre_decay;
        if (decays) {
            add_state<DIM>(out, sm, false);
            decay_rows(out, chunks.pre_decay + chunk.slot * CHUNK_TOKENS);
        }
        add_pairs<DIM, BACKWARD, LO>(out, sm, chunk, decays);
        if (!decays) add_state<DIM>(out, sm, true);
        scale_output(out, arrays.scale);
    }
    round_to_operand(rounded, out);
    __syncthreads();
    store_operands(sm.row, rounded);
    __syncwarp();
    store_rows<DIM, BACKWARD>(arrays, sm.row, chunk, column);
    end_after_previous_launch();
}

/* ------------------------------------------------------------------ launches */

template <int DIM, bool BACKWARD, bool LO>
static loam_status output_launch_as(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                    const output_arrays *arrays, loam_error *error)
{
    return cuda_launch("output_kernel", output_kernel<DIM, BACKWARD, LO>,
                       chunk_blocks(*chunks) * (DIM / output_columns<DIM>), OUTPUT_THREADS,
                       sizeof(output_shared<DIM, LO>), a->stream, true, error, *p, *a, *chunks, *arrays);
}

template <bool BACKWARD, bool LO>
static loam_status output_launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                 const output_arrays *arrays, loam_error *error)
{
    if constexpr (LO)
        if (chunk_width(p) == 256) return output_launch_as<256, BACKWARD, LO>(p, a, chunks, arrays, error);
    return chunk_width(p) == 64 ? output_launch_as<64, BACKWARD, LO>(p, a, chunks, arrays, error)
                                : output_launch_as<128, BACKWARD, LO>(p, a, chunks, arrays, error);
}

loam_status recurrent_output_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                    loam_error *error)
{
    if (recurrent_tokens(p) == 0) return LOAM_OK;
    const int64_t d = chunk_width(p);
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, chunks, chunks->u, d, error));
    TRY(slot_map_make(&arrays.pairs, chunks, chunks->pairs, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, chunks, chunks->q_in, d, error));
    TRY(slot_map_make(&arrays.state, chunks, chunks->states, d, d, TILE_SIDE, error));
    arrays.o = a->o, arrays.channels = (int)p->dim_v, arrays.scale = (float)p->scale;
    arrays.aligned = chunk_view_aligned(a->o.data, a->o.batch, a->o.head, a->o.token, 8);
    if (!recurrent_form_of(p->mechanism)->delta)
        return output_launch<false, false>(p, a, chunks, &arrays, error);
    TRY(slot_map_make(&arrays.value_lo, chunks, chunks->values_lo, CHUNK_TOKENS, d, CHUNK_TOKENS, error));
    return output_launch<false, true>(p, a, chunks, &arrays, error);
}

loam_status recurrent_output_reverse_hopper(const loam_problem *p, const loam_args *a,
                                            const recurrent_chunks *chunks, loam_error *error)
{
    if (recurrent_tokens(p) == 0) return LOAM_OK;
    const int64_t d = chunk_width(p);
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, chunks, chunks->grad_o, d, error));
    TRY(slot_map_make(&arrays.pairs, chunks, chunks->pairs, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, chunks, chunks->k_out, d, error));
    TRY(slot_map_make(&arrays.state, chunks, chunks->grad_states, d, d, TILE_SIDE, error));
    arrays.du = chunks->du, arrays.scale = (float)p->scale;
    return output_launch<true, false>(p, a, chunks, &arrays, error);
}

/* Only what is read matters: o may have any alignment, and du is an array over slots. */
bool recurrent_chunks_hopper_fit(const loam_problem *p, const recurrent_chunks *chunks)
{
    return chunk_source_fits(p, chunks->q_in) && chunk_source_fits(p, chunks->k_out) &&
           (!(chunks->suf_decay || chunks->weighed) || chunk_source_fits(p, chunks->k)) &&
           chunk_source_fits(p, chunks->u_hat) &&
           (p->pass != LOAM_BACKWARD || chunk_source_fits(p, chunks->grad_o));
}
