/* SPDX-License-Identifier: MIT
 * The launches of PREPARE: one thread block for each slot. */
#include "src/gpu/launch.cuh"
#include "src/recurrent/hopper/prepare_channels.cuh"
#include "src/recurrent/hopper/prepare_tokens.cuh"
#include "src/recurrent/hopper/stages.h"

template <int DIM, bool GATED, bool DELTA>
static loam_status launch_tokens(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                 loam_error *error)
{
    return cuda_launch("prepare_tokens_kernel", prepare_tokens_kernel<DIM, GATED, DELTA>, chunks->slots,
                       PREPARE_THREADS, sizeof(prepare_tokens_shared<DIM, DELTA>), a->stream, false, error,
                       *p, *a, *chunks);
}

template <int DIM, bool DELTA>
static loam_status launch_channels(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                   loam_error *error)
{
    return cuda_launch("prepare_channels_kernel", prepare_channels_kernel<DIM, DELTA>, chunks->slots,
                       PREPARE_THREADS, sizeof(prepare_channels_shared<DIM, DELTA>), a->stream, false, error,
                       *p, *a, *chunks);
}

template <int DIM, bool DELTA>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          loam_error *error)
{
    loam_args here = *a;
    switch (recurrent_form_of(p->mechanism)->gate) {
    case GATE_NONE: break;
    case GATE_HEAD: here.log_decay.batch = here.log_decay.token = 0; [[fallthrough]];
    case GATE_TOKEN: return launch_tokens<DIM, true, DELTA>(p, &here, chunks, error);
    case GATE_CHANNEL: return launch_channels<DIM, DELTA>(p, a, chunks, error);
    }
    return launch_tokens<DIM, false, DELTA>(p, a, chunks, error);
}

template <int DIM>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                              loam_error *error)
{
    return recurrent_form_of(p->mechanism)->delta ? launch<DIM, true>(p, a, chunks, error)
                                                  : launch<DIM, false>(p, a, chunks, error);
}

loam_status recurrent_prepare_hopper(const loam_problem *p, const loam_args *a,
                                     const recurrent_chunks *chunks, loam_error *error)
{
    return p->dim_qk == 64 ? launch_dim<64>(p, a, chunks, error) : launch_dim<128>(p, a, chunks, error);
}
