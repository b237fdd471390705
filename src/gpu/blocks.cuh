/* SPDX-License-Identifier: MIT
 * Thread blocks that stay: a grid of as many as the GPU holds at once, each of which takes one block of work
 * after another. */
#ifndef LOAM_GPU_BLOCKS_CUH
#define LOAM_GPU_BLOCKS_CUH

#include "src/gpu/launch.cuh"

/* Whether a thread block has a round. STAYS false: there is a thread block for each block of work, and only
 * round 0. */
template <bool STAYS> static __device__ __forceinline__ bool has_round(unsigned blocks, unsigned round)
{
    return round == 0 || (STAYS && round * gridDim.x < blocks);
}

/* Block number `round` of this thread block, or `blocks` where there is none. Every other round of the grid
 * runs backwards: where early blocks have the most work, each thread block thus gets its share of it. */
static __device__ __forceinline__ unsigned block_of_round(unsigned blocks, unsigned round)
{
    const unsigned n = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    return n < blocks ? n : blocks;
}

/* Calls use(n) for each block n that this thread block has; all roles go through them in this order. */
template <bool STAYS = true, class F>
static __device__ __forceinline__ void for_each_block(unsigned blocks, F use)
{
    for (unsigned round = 0; has_round<STAYS>(blocks, round); round++) {
        const unsigned n = block_of_round(blocks, round);
        if (n < blocks) use(n);
    }
}

/* The grid of a kernel that loops so: one thread block to a multiprocessor, or, `stays` false, one for each
 * block of work, which the scheduler shares out better where such blocks are long. */
static inline loam_status cuda_grid_that_stays(int64_t blocks, bool stays, int64_t *grid, loam_error *error)
{
    int multiprocessors = 0;
    TRY(cuda_multiprocessors(&multiprocessors, error));
    *grid = stays && multiprocessors < blocks ? multiprocessors : blocks;
    return LOAM_OK;
}

#endif
