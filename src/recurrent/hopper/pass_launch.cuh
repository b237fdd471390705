/* SPDX-License-Identifier: MIT
 * The kernel of PASS and REVERSE, and its launches. */
#ifndef LOAM_RECURRENT_HOPPER_PASS_LAUNCH_CUH
#define LOAM_RECURRENT_HOPPER_PASS_LAUNCH_CUH

#include "src/recurrent/hopper/pass_additive.cuh"
#include "src/recurrent/hopper/pass_delta.cuh"
#include "src/recurrent/hopper/pass_reverse.cuh"

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO>
static __device__ __forceinline__ void run_pass(pass_shared<DIM, DELTA, BACKWARD, LO> &sm,
                                                const pass_arrays &arrays, const pass_block &block)
{
    if constexpr (!DELTA) {
        carry_state<additive_pass<DIM, GATED, BACKWARD>>(sm, arrays, block);
    } else if constexpr (BACKWARD) {
        carry_state<reverse_pass<DIM, GATED>>(sm, arrays, block);
    } else {
        carry_state<delta_pass<DIM, GATED, LO>>(sm, arrays, block);
    }
}

/* REVERSE (BACKWARD) reads nothing that PASS writes, so the two run at the same time by programmatic
 * dependent launch: REVERSE may begin when all blocks of PASS have called launch_dependents(), which they
 * do after PREPARE has ended, so that the arrays of PREPARE are complete. REVERSE calls wait_for_previous_launch()
 * only at its end, so that it does not end before PASS. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO>
__global__ void __launch_bounds__(pass_shape<DIM, DELTA, BACKWARD, LO>::threads, 1)
    pass_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                const __grid_constant__ recurrent_chunks chunks, const __grid_constant__ pass_arrays arrays)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    pass_shared<DIM, DELTA, BACKWARD, LO> &sm = *(pass_shared<DIM, DELTA, BACKWARD, LO> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.ring, shape::consumers / 32);
        barrier_init(&sm.cleared, 32);
        fence_async_proxy();
    }
    __syncthreads();
    if (!BACKWARD) {
        wait_for_previous_launch();
    }
    launch_dependents();
    const pass_block block = pass_block_at<DIM, DELTA, BACKWARD, LO>(p, a, chunks);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (warp > 4) {
        pass_store<DIM, DELTA, BACKWARD, LO>(sm, chunks, arrays, block);
    } else if (warp == 4) {
        pass_load<DIM, DELTA, GATED, BACKWARD, LO>(sm, chunks, arrays, block);
    } else {
        run_pass<DIM, DELTA, GATED, BACKWARD, LO>(sm, arrays, block);
    }
    if (BACKWARD) {
        wait_for_previous_launch();
    }
}

/* ------------------------------------------------------------------ launches */

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO>
static loam_status pass_launch_as(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                  const pass_arrays *arrays, loam_error *error)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    const int64_t blocks = p->batch * p->heads_v * shape::blocks_per_head;
    return cuda_launch("pass_kernel", pass_kernel<DIM, DELTA, GATED, BACKWARD, LO>, blocks, shape::threads,
                       sizeof(pass_shared<DIM, DELTA, BACKWARD, LO>), a->stream, true, error, *p, *a, *chunks,
                       *arrays);
}

template <int DIM, bool BACKWARD>
static loam_status pass_launch_of(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                  const pass_arrays *arrays, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool gated = form->gate != GATE_NONE;
    if (form->delta) {
        constexpr bool hi_lo = !BACKWARD;
        return gated ? chunks->k_lo && hi_lo
                           ? pass_launch_as<DIM, true, true, BACKWARD, hi_lo>(p, a, chunks, arrays, error)
                           : pass_launch_as<DIM, true, true, BACKWARD, false>(p, a, chunks, arrays, error)
               : chunks->k_lo && hi_lo
                   ? pass_launch_as<DIM, true, false, BACKWARD, hi_lo>(p, a, chunks, arrays, error)
                   : pass_launch_as<DIM, true, false, BACKWARD, false>(p, a, chunks, arrays, error);
    }
    return gated ? pass_launch_as<DIM, false, true, BACKWARD, false>(p, a, chunks, arrays, error)
                 : pass_launch_as<DIM, false, false, BACKWARD, false>(p, a, chunks, arrays, error);
}

template <bool BACKWARD>
static loam_status pass_launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                               const pass_arrays *arrays, loam_error *error)
{
    if (p->batch == 0) {
        return LOAM_OK;
    }
    return p->dim_qk == 64 ? pass_launch_of<64, BACKWARD>(p, a, chunks, arrays, error)
                           : pass_launch_of<128, BACKWARD>(p, a, chunks, arrays, error);
}

#endif
