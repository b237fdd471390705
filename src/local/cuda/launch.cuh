/* SPDX-License-Identifier: MIT
 * How launches choose the instance of a kernel for a problem. */
#ifndef LOAM_LOCAL_CUDA_LAUNCH_CUH
#define LOAM_LOCAL_CUDA_LAUNCH_CUH

#include "src/gpu/launch.cuh"
#include "src/local/cuda/common.cuh"

template <int N> struct constant {
    static constexpr int value = N;
};

/* Calls launch(dim), of type constant: the head dimension of the tiles. */
template <class LAUNCH> static loam_status by_dim(const loam_problem *p, LAUNCH launch)
{
    switch (local_padded_dim(p)) {
    case 64: return launch(constant<64>());
    case 128: return launch(constant<128>());
    default: return launch(constant<256>());
    }
}

/* Calls launch(wide, dim), both of type constant. */
template <class LAUNCH> static loam_status by_tiles(const loam_problem *p, LAUNCH launch)
{
    return by_dim(
        p,
        [&](auto dim) {
            return local_wide(p) ? launch(constant<true>(), dim) : launch(constant<false>(), dim);
        });
}

#endif
