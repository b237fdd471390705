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
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_CUH

#include "src/recurrent/hopper/gradient_channels.cuh"
#include "src/recurrent/hopper/gradient_products.cuh"
#include "src/recurrent/hopper/gradient_rows.cuh"

/* Thread block n computes slot n. */
template <int DIM, gate_reach GATES, bool DELTA>
static __global__ void __launch_bounds__(gradient_shape<DIM, GATES>::threads,
                                         gradient_shape<DIM, GATES>::blocks)
    gradient_kernel_hopper(const loam_problem p, const loam_args a, const recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    gradient_shared<DIM, GATES, DELTA> &sm = *(gradient_shared<DIM, GATES, DELTA> *)memory;
    const chunk_place chunk = chunk_of_slot(p, a, chunks, blockIdx.x);
    constexpr int threads = gradient_shape<DIM, GATES>::threads;
    const int thread = threadIdx.x;
    if (chunk.tokens == 0) {
        if (thread == 0) {
            chunks.grad_scale[blockIdx.x] = 0;
            if (chunks.grad_decay) {
                chunks.grad_decay[blockIdx.x] = 0;
            }
        }
        return;
    }
    load_rows_of<DIM, threads>(sm.in.grad_o, chunks.grad_o, chunk);
    load_rows_of<DIM, threads>(sm.in.u, chunks.u, chunk);
    if (DELTA) {
        load_rows_of<DIM, threads>(sm.dr, { chunks.du, 0, 0, 0, 1, true }, chunk);
        copy_async_commit();
    }
    load_rows_of<DIM, threads>(sm.q, chunks.q, chunk);
    load_rows_of<DIM, threads>(sm.k, chunks.k, chunk);
    load_state_tiles<DIM, threads>(sm.in.state, chunks.states + chunk.slot * DIM * DIM);
    load_state_tiles<DIM, threads>(sm.in.grad_state, chunks.grad_states + chunk.slot * DIM * DIM);
    copy_async_commit();
    if (thread == 0) {
        sm.chunk = chunk;
    }
    load_scalars(sm, p, a, chunk);
    float decay[BLOCK_TOKENS];
    if (GATES == CHANNEL_GATES) {
        load_decays<DIM>(decay, p, a, chunk);
    }
    if (DELTA) {
        weights_operand<2> inverse;
        load_inverse(inverse, chunks.inverse + chunk.slot * CHUNK_TOKENS * CHUNK_TOKENS);
        copy_async_wait<1>();
        __syncthreads();
        multiply_inverse_transposed<DIM / (threads / 128)>(sm.dr, inverse);
    }
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    if constexpr (GATES == CHANNEL_GATES) {
        decay_in_blocks(sm, decay);
        __syncthreads();
    }
    if (GATES != NO_GATES) {
        dot_states(sm);
    }
    multiply_all(sm, (float)p.scale);
    __syncthreads();
    if constexpr (GATES == CHANNEL_GATES) {
        store_channel_gates(sm, p, a, sm.chunk);
        __syncthreads();
    }
    store_row_gradients(sm, p, a, chunks, sm.chunk);
    __syncthreads();
    if constexpr (GATES == TOKEN_GATES) {
        if (thread < 32) {
            store_token_gates(sm, p, a, chunks, sm.chunk);
        }
    }
    if (thread >= 32 && thread < 64) {
        const float sum = lane_sum<32>(sm.scale_dot[thread - 32] + sm.scale_dot[thread]);
        if (thread == 32) {
            chunks.grad_scale[sm.chunk.slot] = sum;
        }
    }
}

#endif
