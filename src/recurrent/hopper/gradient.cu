/* SPDX-License-Identifier: MIT
 * GRADIENT on Hopper: all gradients of one chunk of 64 tokens from the states around it (docs/recurrent.md,
 * 'Backward by chunks'), for all chunks and value heads in parallel. With D_ij = e^seg_ij, S the state
 * before the chunk, dS the gradient of the state after it, do the scaled gradient of o, and dr = Linv^T du
 * (without a delta rule dr = du):
 *
 *     x_i = sum_{j<i} W_ij D_ij k_j + e^pre_i S^T do_i             W_ij = do_i . u_j
 *     z_i = -(sum_{j<i} X_ij D_ij k_j + e^pre_i S^T dr_i)          X_ij = dr_i . u_j    (delta rule)
 *     y_j = sum_{i>j} D_ij (W_ij q_i - beta_i X_ij k_i)
 *     e_j = e^suf_j dS^T u_j
 *     dq_i = x_i + W_ii k_i,   dk_i = beta_i z_i + y_i + e_i + W_ii q_i
 *     dv_i = beta_i dr_i,   dbeta_i = dr_i . v_i + k_i . z_i
 *     dg_t = sum_{i>=t} (q_i x_i + beta_i k_i z_i - k_i y_i) + sum_{j<t} k_j e_j + e^total sum_r S_r dS_r
 *
 * W_ii, whose exponent is 0, is not in x and y: in dg it would be added and subtracted again. e of the last
 * token, whose exponent is 0 too, is in no dg_t.
 *
 * Half of the warpgroups compute the products with queries as rows (x, z), the others those with keys as rows
 * (y, e). The results go to shared memory, from which threads with 8 channels of a row compute the gradients.
 * Where each channel has its own gate, the pairs within blocks of 16 tokens are added in between. */
#include "src/gpu/launch.cuh"
#include "src/recurrent/hopper/gradient_channels.cuh"
#include "src/recurrent/hopper/gradient_products.cuh"
#include "src/recurrent/hopper/gradient_rows.cuh"
#include "src/recurrent/hopper/stages.h"

/* The sums of a slot without tokens. */
static __device__ __forceinline__ void clear_sums(const recurrent_chunks &chunks)
{
    if (threadIdx.x == 0) {
        chunks.grad_scale[blockIdx.x] = 0;
        if (chunks.grad_decay) chunks.grad_decay[blockIdx.x] = 0;
    }
}

/* Issues the copies of all operands; with a delta rule those that dr is made of are a group of their own. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void load_operands(gradient_shared<DIM, GATES, DELTA> &sm,
                                                     const recurrent_chunks &chunks, const chunk_place &chunk)
{
    constexpr int threads = gradient_shape<DIM, GATES>::threads;
    load_rows_of<DIM, threads>(sm.in.grad_o, chunks.grad_o, chunk);
    load_rows_of<DIM, threads>(sm.in.u, chunks.u, chunk);
    if (DELTA) {
        load_rows_of<DIM, threads>(sm.dr, { chunks.du, 0, 0, 0, 1, true, 0 }, chunk);
        copy_async_commit();
    }
    load_rows_of<DIM, threads>(sm.q, chunks.q, chunk);
    load_rows_of<DIM, threads>(sm.k, chunks.k, chunk);
    load_state_tiles<DIM, threads>(sm.in.state, chunks.states + chunk.slot * DIM * DIM);
    load_state_tiles<DIM, threads>(sm.in.grad_state, chunks.grad_states + chunk.slot * DIM * DIM);
    copy_async_commit();
}

/* The gradients from the products in shared memory. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void store_gradients(gradient_shared<DIM, GATES, DELTA> &sm,
                                                       const loam_problem &p, const loam_args &a,
                                                       const recurrent_chunks &chunks)
{
    const int thread = threadIdx.x;
    if constexpr (GATES == CHANNEL_GATES) {
        store_channel_gates(sm, p, a, sm.chunk);
        __syncthreads();
    }
    store_row_gradients(sm, p, a, chunks, sm.chunk);
    __syncthreads();
    if constexpr (GATES == TOKEN_GATES) {
        if (thread < 32) store_token_gates(sm, a, chunks, sm.chunk);
    }
    if (thread >= 32 && thread < 64) {
        const float sum = lane_sum<32>(sm.scale_dot[thread - 32] + sm.scale_dot[thread]);
        if (thread == 32) chunks.grad_scale[sm.chunk.slot] = sum;
    }
}

/* Thread block n computes slot n. */
template <int DIM, gate_reach GATES, bool DELTA>
static __global__ void __launch_bounds__(gradient_shape<DIM, GATES>::threads,
                                         gradient_shape<DIM, GATES>::blocks)
    gradient_kernel_hopper(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    gradient_shared<DIM, GATES, DELTA> &sm = *(gradient_shared<DIM, GATES, DELTA> *)memory;
    const chunk_place chunk = chunk_of_slot(p, a, chunks, blockIdx.x);
    if (chunk.tokens == 0) {
        clear_sums(chunks);
        return;
    }
    load_operands(sm, chunks, chunk);
    if (threadIdx.x == 0) sm.chunk = chunk;
    load_scalars(sm, a, chunk);
    float decay[BLOCK_TOKENS];
    if (GATES == CHANNEL_GATES) load_decays<DIM>(decay, p, a, chunk);
    if (DELTA) {
        weights_operand<2> inverse;
        load_inverse(inverse, chunks.inverse + chunk.slot * CHUNK_TOKENS * CHUNK_TOKENS);
        copy_async_wait<1>();
        __syncthreads();
        multiply_inverse_transposed<DIM / (gradient_shape<DIM, GATES>::threads / 128)>(sm.dr, inverse);
    }
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    if constexpr (GATES == CHANNEL_GATES) {
        decay_in_blocks(sm, decay);
        __syncthreads();
    }
    if (GATES != NO_GATES) dot_states(sm);
    multiply_all(sm, (float)p.scale);
    __syncthreads();
    store_gradients(sm, p, a, chunks);
}

/* ------------------------------------------------------------------ sums */

enum { SUM_THREADS = 256 };

/* Thread block n: chunk n % per_head of key head n / per_head. Adds the contributions of the value heads to
 * the gradients of the features, in the order of the heads, and applies the chain rule of the feature map. */
template <int DIM>
static __global__ void __launch_bounds__(SUM_THREADS)
    head_group_sum_kernel(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    typedef row_vectors<DIM, SUM_THREADS> vectors;
    const unsigned head_group = (unsigned)chunks.q_given.head_group, per_head = (unsigned)chunks.per_head,
                   head = blockIdx.x / per_head;
    const chunk_place chunk = chunk_of_slot(p, a, chunks,
                                            head * head_group * per_head + blockIdx.x % per_head);
    const int c = threadIdx.x % vectors::lanes * 8;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const __nv_bfloat16 *parts = (side ? chunks.grad_k : chunks.grad_q) +
                                     chunk.slot * CHUNK_TOKENS * DIM + c;
        const rows_out to = rows_to(side ? a.grad_k : a.grad_q, p.dim_qk, chunk, head);
        vectors features, given;
        load_vectors(features, true, side ? chunks.k : chunks.q, chunk);
        load_vectors(given, true, side ? chunks.k_given : chunks.q_given, chunk);
#pragma unroll
        for (int i = 0; i < vectors::count; i++) {
            const int r = threadIdx.x / vectors::lanes + i * vectors::step;
            const bool real = r < chunk.tokens;
            float sum[8] = {}, x[8];
            for (int64_t h = 0; real && h < head_group; h++) {
                float part[8];
                load_8(part, parts + (h * chunks.per_head * CHUNK_TOKENS + r) * DIM);
#pragma unroll
                for (int n = 0; n < 8; n++)
                    sum[n] += part[n];
            }
            unpack_8(x, features.vector[i]);
            feature_map_gradient<vectors::lanes>(p, sum, x, given.vector[i]);
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
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS)
        sum += from[blockIdx.x * n + i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) to[blockIdx.x * stride] = (float)(sums[0] / divisor);
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
    loam_args gates = *a;
    if (recurrent_form_of(p->mechanism)->gate == GATE_HEAD) { /* one for all tokens; its gradient is a sum */
        gates.log_decay.batch = gates.log_decay.token = 0;
        gates.grad_log_decay.data = NULL;
    }
    if (chunks->slots > 0)
        TRY(chunk_width(p) == 64 ? launch<64>(p, &gates, chunks, error)
                                 : launch<128>(p, &gates, chunks, error));
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
