/* SPDX-License-Identifier: MIT
 * Sums over the threads of a warp or of a block, in a fixed order. */
#ifndef LOAM_GPU_BLOCK_SUM_CUH
#define LOAM_GPU_BLOCK_SUM_CUH

/* The sum of x over the lanes of the warp, returned to every lane. */
template <class REAL> static __device__ __forceinline__ REAL warp_sum(REAL x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* The sum of x over the THREADS threads of the block (a power of 2), returned to every thread. */
template <int THREADS> static __device__ double block_sum(double x)
{
    __shared__ double sums[THREADS];
    __syncthreads();
    sums[threadIdx.x] = x;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    __syncthreads();
    return sums[0];
}

#endif
