/* SPDX-License-Identifier: MIT
 * How the launches of query_kernel and key_kernel choose the instance for a problem. */
#ifndef LOAM_LOCAL_CUDA_BACKWARD_LAUNCH_CUH
#define LOAM_LOCAL_CUDA_BACKWARD_LAUNCH_CUH

#include "src/gpu/launch.cuh"
#include "src/local/cuda/backward.cuh"

template <int N> struct constant {
    static constexpr int value = N;
};

/* Calls launch(dimensions, directions), both of type constant. */
template <int DIM, class LAUNCH> static loam_status by_directions(const loam_problem *p, LAUNCH launch)
{
    switch (p->mechanism) {
    case LOAM_SOFTMAX: return launch(constant<DIM>(), constant<NO_DIRECTION>());
    case LOAM_PARALLAX: return launch(constant<DIM>(), constant<GIVEN_PROBE>());
    default:
        return p->ridge_unit == LOAM_RIDGE_TRACE ? launch(constant<DIM>(), constant<SOLVED_BY_TRACE>())
                                                 : launch(constant<DIM>(), constant<SOLVED_PROBE>());
    }
}

template <class LAUNCH> static loam_status by_shape(const loam_problem *p, LAUNCH launch)
{
    switch (local_padded_dim(p)) {
    case 64: return by_directions<64>(p, launch);
    case 128: return by_directions<128>(p, launch);
    default: return by_directions<256>(p, launch);
    }
}

#endif
