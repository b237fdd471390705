/* SPDX-License-Identifier: MIT
 * The launches of GRADIENT, and of the sums that follow it: over the value heads that share a
 * key head, and over slots. */
#include "src/gpu/launch.cuh"
#include "src/recurrent/hopper/gradient.cuh"
#include "src/recurrent/hopper/stages.h"

/* ------------------------------------------------------------------ sums */

enum { SUM_THREADS = 256 };

/* Thread block n: chunk n % per_head of key head n / per_head. Adds the contributions of the value heads to
 * the gradients of the features, in the order of the heads, and applies the chain rule of the feature map. */
template <int DIM>
static __global__ void __launch_bounds__(SUM_THREADS)
    head_group_sum_kernel(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    typedef row_vectors<DIM, SUM_THREADS> vectors;
    const int64_t head_group = chunks.q_given.head_group, head = blockIdx.x / chunks.per_head;
    const chunk_place chunk = chunk_of_slot(
        p, a, chunks, head * head_group * chunks.per_head + blockIdx.x % chunks.per_head);
    const int c = threadIdx.x % vectors::lanes * 8;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const __nv_bfloat16 *parts = (side ? chunks.grad_k : chunks.grad_q) +
                                     chunk.slot * CHUNK_TOKENS * DIM + c;
        const rows_out to = rows_to(side ? a.grad_k : a.grad_q, chunk, head);
        vectors features, given;
        load_vectors(features, true, side ? chunks.k : chunks.q, chunk);
        load_vectors(given, true, side ? chunks.k_given : chunks.q_given, chunk);
#pragma unroll
        for (int n8 = 0; n8 < vectors::count; n8++) {
            const int r = threadIdx.x / vectors::lanes + n8 * vectors::step;
            const bool real = r < chunk.tokens;
            float sum[8] = {}, x[8];
            for (int64_t each = 0; real && each < head_group; each++) {
                float more[8];
                load_8(more, parts + (each * chunks.per_head * CHUNK_TOKENS + r) * DIM);
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    sum[n] += more[n];
                }
            }
            unpack_8(x, features.vector[n8]);
            feature_map_gradient<vectors::lanes>(p, sum, x, given.vector[n8]);
            store_row(to, r, c, real, sum);
        }
    }
}

/* Thread block h: to[h * stride] = (sum of from[h * n] .. from[h * n + n - 1]) /
 * divisor, summed in float64. */
static __global__ void __launch_bounds__(SUM_THREADS)
    slot_sum_kernel(float *to, int64_t stride, const float *from, int64_t n, double divisor)
{
    __shared__ double sums[SUM_THREADS];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS) {
        sum += from[blockIdx.x * n + i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        to[blockIdx.x * stride] = (float)(sums[0] / divisor);
    }
}

/* ------------------------------------------------------------------ launches */

template <int DIM, gate_reach GATES, bool DELTA>
static loam_status launch_form(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                               loam_error *error)
{
    return cuda_launch("gradient_kernel_hopper", gradient_kernel_hopper<DIM, GATES, DELTA>, chunks->slots,
                       gradient_shape<DIM, GATES>::threads, sizeof(gradient_shared<DIM, GATES, DELTA>),
                       a->stream, false, error, *p, *a, *chunks);
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    loam_status status;
    switch (form->gate) {
    case GATE_NONE:
        status = form->delta ? launch_form<DIM, NO_GATES, true>(p, a, chunks, error)
                             : launch_form<DIM, NO_GATES, false>(p, a, chunks, error);
        break;
    case GATE_CHANNEL:
        status = form->delta ? launch_form<DIM, CHANNEL_GATES, true>(p, a, chunks, error)
                             : launch_form<DIM, CHANNEL_GATES, false>(p, a, chunks, error);
        break;
    default:
        status = form->delta ? launch_form<DIM, TOKEN_GATES, true>(p, a, chunks, error)
                             : launch_form<DIM, TOKEN_GATES, false>(p, a, chunks, error);
    }
    TRY(status);
    return p->heads_v > p->heads_q ? cuda_launch("head_group_sum_kernel", head_group_sum_kernel<DIM>,
                                                 p->heads_q * chunks->per_head, SUM_THREADS, 0, a->stream,
                                                 false, error, *p, *a, *chunks)
                                   : LOAM_OK;
}

loam_status recurrent_gradient_hopper(const loam_problem *p, const loam_args *a,
                                      const recurrent_chunks *chunks, loam_error *error)
{
    if (chunks->slots > 0) {
        TRY(p->dim_qk == 64 ? launch<64>(p, a, chunks, error) : launch<128>(p, a, chunks, error));
    }
    if (a->grad_scale) {
        TRY(cuda_launch("slot_sum_kernel", slot_sum_kernel, 1, SUM_THREADS, 0, a->stream, false, error,
                        (float *)a->grad_scale, (int64_t)0, (const float *)chunks->grad_scale, chunks->slots,
                        p->scale));
    }
    if (chunks->grad_decay && a->grad_log_decay.data) {
        TRY(cuda_launch("slot_sum_kernel", slot_sum_kernel, p->heads_v, SUM_THREADS, 0, a->stream, false,
                        error, (float *)a->grad_log_decay.data, a->grad_log_decay.head,
                        (const float *)chunks->grad_decay, chunks->per_head, 1.0));
    }
    return LOAM_OK;
}
