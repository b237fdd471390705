/* SPDX-License-Identifier: MIT
 * Gradients of a chunk: dq, dk and dv from x, y, e and z, 8 channels per thread, and the gradients that are
 * sums over channels: of beta, of the gates of tokens, of the scale. Notation of
 * recurrent/hopper/gradient.cuh. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_ROWS_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_ROWS_CUH

#include "src/recurrent/hopper/gradient_shared.cuh"

static __device__ __forceinline__ void unpack_8(float (&x)[8], const uint4 &bits)
{
    const uint32_t pair[4] = { bits.x, bits.y, bits.z, bits.w };
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[2 * n] = __uint_as_float(pair[n] << 16);
        x[2 * n + 1] = __uint_as_float(pair[n] & 0xffff0000u);
    }
}

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

static __device__ __forceinline__ void store_8(__nv_bfloat16 *to, const float (&x)[8])
{
    uint32_t pair[4][1];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        split_pair(pair[n], x[2 * n], x[2 * n + 1]);
    }
    *(uint4 *)to = make_uint4(pair[0][0], pair[1][0], pair[2][0], pair[3][0]);
}

static __device__ __forceinline__ float dot_8(const float (&x)[8], const float (&y)[8])
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        sum += x[n] * y[n];
    }
    return sum;
}

/* The sum over LANES neighbouring lanes, in all of them. */
template <int LANES> static __device__ __forceinline__ float lane_sum(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
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
        for (int n = 0; n < 8; n++) {
            dx[n] *= fminf(x[n], 1);
        }
    } else if (p.feature_map == LOAM_FEATURES_UNIT) {
        float raw[8];
        unpack_8(raw, given);
        const float projection = lane_sum<LANES>(dot_8(x, dx)), square = lane_sum<LANES>(dot_8(raw, raw));
        const float inverse = square > 0 ? rsqrtf(square) : 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dx[n] = (dx[n] - projection * x[n]) * inverse;
        }
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
    const chunk_rows rows = rows_of<DIM>(s, chunk);
    const int c = threadIdx.x % vectors::lanes * 8;
#pragma unroll
    for (int n = 0; n < vectors::count; n++) {
        const int r = threadIdx.x / vectors::lanes + n * vectors::step;
        x.vector[n] = wanted && r < chunk.tokens ? *(const uint4 *)(rows.first + r * rows.stride + c)
                                                 : make_uint4(0, 0, 0, 0);
    }
}

/* Row r of a gradient is at first + r * stride; `first` is NULL where the gradient is not wanted. */
struct rows_out {
    __nv_bfloat16 *first;
    int64_t stride;
};

static __device__ __forceinline__ rows_out rows_to(const loam_view &view, const chunk_place &chunk, int64_t h)
{
    return { view.data ? (__nv_bfloat16 *)view.data + RECURRENT_AT(view, chunk.b, h, chunk.first) : NULL,
             view.token };
}

/* The rows in the array over slots where contributions of value heads are still to be summed,
 * else those in the view. */
template <int DIM>
static __device__ __forceinline__ rows_out rows_to(const loam_view &view, __nv_bfloat16 *by_slot,
                                                   const chunk_place &chunk)
{
    if (by_slot) {
        return { by_slot + chunk.slot * CHUNK_TOKENS * DIM, DIM };
    }
    return rows_to(view, chunk, chunk.h);
}

static __device__ __forceinline__ void store_row(const rows_out &to, int r, int c, bool real,
                                                 const float (&x)[8])
{
    if (real && to.first) {
        store_8(to.first + r * to.stride + c, x);
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
    typedef gradient_shared<DIM, GATES, DELTA> shared;
    typedef row_vectors<DIM, gradient_shape<DIM, GATES>::threads> vectors;
    const int c = threadIdx.x % vectors::lanes * 8;
    const bool wants_beta = a.grad_beta.data, to_inputs = !chunks.grad_q,
               norms = to_inputs && p.feature_map == LOAM_FEATURES_UNIT;
    vectors du, v, q_given, k_given;
    if (!DELTA) {
        load_vectors(du, true, { chunks.du, 0, 0, 0, 1, true }, chunk);
    }
    load_vectors(v, wants_beta, chunks.v, chunk);
    load_vectors(q_given, norms, chunks.q_given, chunk);
    load_vectors(k_given, norms, chunks.k_given, chunk);
    const rows_out to_q = rows_to<DIM>(a.grad_q, chunks.grad_q, chunk),
                   to_k = rows_to<DIM>(a.grad_k, chunks.grad_k, chunk),
                   to_v = rows_to(a.grad_v, chunk, chunk.h);
#pragma unroll
    for (int n8 = 0; n8 < vectors::count; n8++) {
        const int r = threadIdx.x / vectors::lanes + n8 * vectors::step;
        const bool real = r < chunk.tokens;
        const float beta = sm.beta[r], diagonal = GATES == NO_GATES ? 0 : sm.diagonal[r];
        float q[8], k[8], dq[8], dk[8], z[8], dr[8], row = 0, out = 0, erased = 0;
        load_8(q, sm.q + swizzled(r, c));
        load_8(k, sm.k + swizzled(r, c));
        load_8(dq, sm.products[shared::x] + r * shared::pitch + c);
        load_8(dk, sm.products[shared::y] + r * shared::pitch + c);
        if (DELTA) {
            load_8(z, sm.products[shared::z] + r * shared::pitch + c);
            load_8(dr, sm.dr + swizzled(r, c));
            erased = lane_sum<vectors::lanes>(dot_8(k, z));
        } else {
            unpack_8(dr, du.vector[n8]);
        }
        if (GATES == TOKEN_GATES) {
            float e[8];
            load_8(e, sm.products[shared::e] + r * shared::pitch + c);
            row = lane_sum<vectors::lanes>(dot_8(q, dq) - dot_8(k, dk)) + beta * erased;
            out = lane_sum<vectors::lanes>(dot_8(k, e));
#pragma unroll
            for (int n = 0; n < 8; n++) {
                dk[n] += e[n];
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dq[n] += diagonal * k[n];
            dk[n] += diagonal * q[n] + (DELTA ? beta * z[n] : 0);
        }
        const float projection = lane_sum<vectors::lanes>(dot_8(q, dq));
        float dbeta = erased;
        if (wants_beta) {
            float value[8];
            unpack_8(value, v.vector[n8]);
            dbeta += lane_sum<vectors::lanes>(dot_8(dr, value));
        }
        if (threadIdx.x % vectors::lanes == 0) {
            sm.row_dot[r] = row, sm.out_dot[r] = out, sm.scale_dot[r] = projection;
            if (real && wants_beta) {
                ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, chunk.b, chunk.h, chunk.first + r)] =
                    dbeta;
            }
        }
        if (to_inputs) {
            feature_map_gradient<vectors::lanes>(p, dq, q, q_given.vector[n8]);
            feature_map_gradient<vectors::lanes>(p, dk, k, k_given.vector[n8]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dr[n] *= beta;
        }
        store_row(to_q, r, c, real, dq);
        store_row(to_k, r, c, real, dk);
        store_row(to_v, r, c, real, dr);
    }
}

/* One warp: gradients of the gates of tokens, two tokens per lane, from the dot products of the rows. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void store_token_gates(gradient_shared<DIM, TOKEN_GATES, DELTA> &sm,
                                                         const loam_problem &p, const loam_args &a,
                                                         const recurrent_chunks &chunks,
                                                         const chunk_place &chunk)
{
    const int lane = threadIdx.x % 32;
    float whole = 0;
    for (int n = lane; n < STATE_PARTS * DIM; n += 32) {
        whole += sm.state_dot[0][n];
    }
    whole = lane_sum<32>(whole) * exp2_fast(sm.pre[CHUNK_TOKENS - 1].x);
    const float2 row = *(const float2 *)&sm.row_dot[2 * lane], out = *(const float2 *)&sm.out_dot[2 * lane];
    float after = row.x + row.y, before = out.x + out.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float later = __shfl_down_sync(0xffffffffu, after, step),
                    earlier = __shfl_up_sync(0xffffffffu, before, step);
        after += lane + step < 32 ? later : 0;
        before += lane >= step ? earlier : 0;
    }
    /* Sums over i >= t and over j < t for the lane's two tokens t. No sum is a difference of two others. */
    const float beyond = __shfl_down_sync(0xffffffffu, after, 1),
                so_far = __shfl_up_sync(0xffffffffu, before, 1);
    const float rest = lane < 31 ? beyond : 0, start = lane > 0 ? so_far : 0;
    const float gate[2] = { rest + (row.x + row.y) + start + whole, rest + row.y + (start + out.x) + whole };
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (2 * lane + n < chunk.tokens) {
            sum += gate[n];
            if (p.mechanism != LOAM_RETENTION && a.grad_log_decay.data) {
                ((float *)a.grad_log_decay.data)[RECURRENT_AT(a.grad_log_decay, chunk.b, chunk.h,
                                                              chunk.first + 2 * lane + n)] = gate[n];
            }
        }
    }
    sum = lane_sum<32>(sum);
    if (lane == 0 && chunks.grad_decay) {
        chunks.grad_decay[chunk.slot] = sum;
    }
}

#endif
