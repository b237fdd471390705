/* SPDX-License-Identifier: MIT
 * Gradients of a chunk: dq, dk and dv from x, y, e and z, 8 channels per thread, and the gradients that are
 * sums over channels: of beta, of the gates of tokens, of the scale. Notation of
 * recurrent/hopper/gradient.cu. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_ROWS_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_ROWS_CUH

#include "src/recurrent/hopper/bf16.cuh"
#include "src/recurrent/hopper/gradient_shared.cuh"

static __device__ __forceinline__ void load_8(float (&x)[8], const __nv_bfloat16 *from)
{
    unpack_8(x, *(const uint4 *)from);
}

static __device__ __forceinline__ void load_8(float (&x)[8], const float *from)
{
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

static __device__ __forceinline__ float dot_8(const float (&x)[8], const float (&y)[8])
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sum += x[n] * y[n];
    return sum;
}

/* The sum over LANES neighbouring lanes, in all of them. */
template <int LANES> static __device__ __forceinline__ float lane_sum(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* The chain rule of the feature map: dx, the gradient of the features x, becomes the gradient of the row
 * `given`, whose features x are. LANES lanes share a row. */
template <int LANES>
static __device__ __forceinline__ void feature_map_gradient(const loam_problem &p, float (&dx)[8],
                                                            const float (&x)[8], const uint4 &given)
{
    if (p.feature_map == LOAM_FEATURES_ELU) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            dx[n] *= fminf(x[n], 1);
    } else if (p.feature_map == LOAM_FEATURES_UNIT) {
        float raw[8];
        unpack_8(raw, given);
        const float projection = lane_sum<LANES>(dot_8(x, dx)), square = lane_sum<LANES>(dot_8(raw, raw));
        const float inverse = square > 0 ? rsqrtf(square) : 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
            dx[n] = (dx[n] - projection * x[n]) * inverse;
    }
}

/* Rows in registers: a thread has 8 channels of every step-th row of the chunk. */
template <int DIM, int THREADS> struct row_vectors {
    enum { lanes = DIM / 8, step = THREADS / lanes, count = CHUNK_TOKENS / step };
    uint4 vector[count];
};

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_vectors(row_vectors<DIM, THREADS> &x, bool wanted,
                                                    const chunk_source &s, const chunk_place &chunk)
{
    typedef row_vectors<DIM, THREADS> vectors;
    const chunk_rows rows = chunk_rows_of<DIM>(s, chunk);
    const int c = threadIdx.x % vectors::lanes * 8;
#pragma unroll
    for (int n = 0; n < vectors::count; n++) {
        const int r = threadIdx.x / vectors::lanes + n * vectors::step;
        x.vector[n] = wanted && r < chunk.tokens && c < rows.channels
                          ? *(const uint4 *)(rows.first + r * rows.stride + c)
                          : make_uint4(0, 0, 0, 0);
    }
}

/* Row r of a gradient is at first + r * stride and has this many channels; `first` is NULL where the gradient
 * is not wanted. */
struct rows_out {
    __nv_bfloat16 *first;
    int64_t stride;
    int channels;
};

static __device__ __forceinline__ rows_out rows_to(const loam_view &view, int64_t channels,
                                                   const chunk_place &chunk, int64_t h)
{
    return { view.data ? (__nv_bfloat16 *)view.data + RECURRENT_AT(view, chunk.b, h, chunk.first) : NULL,
             view.token, (int)channels };
}

/* The rows in the array over slots where contributions of value heads are still to be summed,
 * else those in the view. */
template <int DIM>
static __device__ __forceinline__ rows_out rows_to(const loam_view &view, int64_t channels,
                                                   __nv_bfloat16 *by_slot, const chunk_place &chunk)
{
    if (by_slot) return { by_slot + chunk.slot * CHUNK_TOKENS * DIM, DIM, DIM };
    return rows_to(view, channels, chunk, chunk.h);
}

static __device__ __forceinline__ void store_row(const rows_out &to, int r, int c, bool real,
                                                 const float (&x)[8])
{
    if (real && to.first && c < to.channels) *(uint4 *)(to.first + r * to.stride + c) = pack_8(x);
}

/* 8 channels of a row: features and gradients; dr without beta. Sums over the channels of the row: terms of
 * the gates, q x + beta k z - k y and k e, and the part k z of dbeta. */
struct row_gradient {
    float q[8], k[8], dq[8], dk[8], z[8], dr[8];
    float row_term, end_term, dbeta;
};

/* Loads row r and completes dq and dk. du: the row of du, without a delta rule, where dr = du. */
template <int LANES, int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void load_row_gradient(row_gradient &x,
                                                         const gradient_shared<DIM, GATES, DELTA> &sm,
                                                         const uint4 &du, int r, int c)
{
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    const float beta = sm.beta[r], diagonal = GATES == NO_GATES ? 0 : sm.diagonal[r];
    x.row_term = x.end_term = x.dbeta = 0;
    load_8(x.q, sm.q + swizzled(r, c));
    load_8(x.k, sm.k + swizzled(r, c));
    load_8(x.dq, sm.products[shared::x] + r * shared::pitch + c);
    load_8(x.dk, sm.products[shared::y] + r * shared::pitch + c);
    if (DELTA) {
        load_8(x.z, sm.products[shared::z] + r * shared::pitch + c);
        load_8(x.dr, sm.dr + swizzled(r, c));
        x.dbeta = lane_sum<LANES>(dot_8(x.k, x.z));
    } else {
        unpack_8(x.dr, du);
    }
    if (GATES == TOKEN_GATES) {
        float e[8];
        load_8(e, sm.products[shared::e] + r * shared::pitch + c);
        x.row_term = lane_sum<LANES>(dot_8(x.q, x.dq) - dot_8(x.k, x.dk)) + beta * x.dbeta;
        x.end_term = lane_sum<LANES>(dot_8(x.k, e));
#pragma unroll
        for (int n = 0; n < 8; n++)
            x.dk[n] += e[n];
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        x.dq[n] += diagonal * x.k[n];
        x.dk[n] += diagonal * x.q[n] + (DELTA ? beta * x.z[n] : 0);
    }
}

/* Stores dq, dk, dv and dbeta of all rows, and keeps the dot products of which the gradients of
 * gates and scale are sums. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void store_row_gradients(gradient_shared<DIM, GATES, DELTA> &sm,
                                                           const loam_problem &p, const loam_args &a,
                                                           const recurrent_chunks &chunks,
                                                           const chunk_place &chunk)
{
    typedef row_vectors<DIM, gradient_shape<DIM, GATES>::threads> vectors;
    const int c = threadIdx.x % vectors::lanes * 8;
    const bool wants_beta = a.grad_beta.data, to_inputs = !chunks.grad_q,
               norms = to_inputs && p.feature_map == LOAM_FEATURES_UNIT;
    vectors du, v, q_given, k_given;
    load_vectors(du, !DELTA, { chunks.du, 0, 0, 0, 1, true, 0 }, chunk);
    load_vectors(v, wants_beta, chunks.v, chunk);
    load_vectors(q_given, norms, chunks.q_given, chunk);
    load_vectors(k_given, norms, chunks.k_given, chunk);
    const rows_out to_q = rows_to<DIM>(a.grad_q, p.dim_qk, chunks.grad_q, chunk),
                   to_k = rows_to<DIM>(a.grad_k, p.dim_qk, chunks.grad_k, chunk),
                   to_v = rows_to(a.grad_v, p.dim_v, chunk, chunk.h);
#pragma unroll
    for (int i = 0; i < vectors::count; i++) {
        const int r = threadIdx.x / vectors::lanes + i * vectors::step;
        const bool real = r < chunk.tokens;
        row_gradient x;
        load_row_gradient<vectors::lanes>(x, sm, du.vector[i], r, c);
        const float q_dq = lane_sum<vectors::lanes>(dot_8(x.q, x.dq));
        if (wants_beta) {
            float value[8];
            unpack_8(value, v.vector[i]);
            x.dbeta += lane_sum<vectors::lanes>(dot_8(x.dr, value));
        }
        if (threadIdx.x % vectors::lanes == 0) {
            sm.row_dot[r] = x.row_term, sm.out_dot[r] = x.end_term, sm.scale_dot[r] = q_dq;
            if (real && wants_beta) {
                ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, chunk.b, chunk.h, chunk.first + r)] =
                    x.dbeta;
            }
        }
        if (to_inputs) {
            feature_map_gradient<vectors::lanes>(p, x.dq, x.q, q_given.vector[i]);
            feature_map_gradient<vectors::lanes>(p, x.dk, x.k, k_given.vector[i]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
            x.dr[n] *= sm.beta[r];
        store_row(to_q, r, c, real, x.dq);
        store_row(to_k, r, c, real, x.dk);
        store_row(to_v, r, c, real, x.dr);
    }
}

/* One warp: gradients of the gates of tokens, two tokens per lane, from the dot products of the rows. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void store_token_gates(gradient_shared<DIM, TOKEN_GATES, DELTA> &sm,
                                                         const loam_args &a, const recurrent_chunks &chunks,
                                                         const chunk_place &chunk)
{
    const int lane = threadIdx.x % 32;
    float state = 0; /* the state before the chunk, as it reaches its end */
    for (int n = lane; n < STATE_PARTS * DIM; n += 32)
        state += sm.state_dot[0][n];
    state = lane_sum<32>(state) * exp2_fast(sm.pre[CHUNK_TOKENS - 1].x);
    const float2 row = *(const float2 *)&sm.row_dot[2 * lane], out = *(const float2 *)&sm.out_dot[2 * lane];
    /* Sums over i >= t and over j < t for the lane's two tokens t. No sum is a difference of two others. */
    const float later = next_lane(suffix_sum(row.x + row.y)),
                earlier = previous_lane(prefix_sum(out.x + out.y));
    const float gate[2] = { later + (row.x + row.y) + earlier + state,
                            later + row.y + (earlier + out.x) + state };
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (2 * lane + n < chunk.tokens) {
            sum += gate[n];
            if (a.grad_log_decay.data) {
                ((float *)a.grad_log_decay.data)[RECURRENT_AT(a.grad_log_decay, chunk.b, chunk.h,
                                                              chunk.first + 2 * lane + n)] = gate[n];
            }
        }
    }
    sum = lane_sum<32>(sum);
    if (lane == 0 && chunks.grad_decay) chunks.grad_decay[chunk.slot] = sum;
}

#endif
