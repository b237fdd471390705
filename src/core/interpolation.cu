/* SPDX-License-Identifier: MIT
 * The sums of rows of the interpolation on GPUs: a thread has one element. */
#include "src/core/interpolation.h"
#include "src/gpu/launch.cuh"

enum { SUM_THREADS = 256 };

__global__ void __launch_bounds__(SUM_THREADS) row_sum_kernel(const __grid_constant__ row_sum s)
{
    const int64_t n = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, row = n / s.channels,
                  b = row / s.tokens / s.heads;
    if (b < s.batch) row_sum_element(&s, b, row / s.tokens % s.heads, row % s.tokens, n % s.channels);
}

loam_status row_sum_cuda(const row_sum *s, void *stream, loam_error *error)
{
    const int64_t elements = s->batch * s->heads * s->tokens * s->channels,
                  blocks = (elements + SUM_THREADS - 1) / SUM_THREADS;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x tokens: too large for one launch");
    row_sum_kernel<<<(unsigned)blocks, SUM_THREADS, 0, (cudaStream_t)stream>>>(*s);
    return cuda_launched("row_sum_kernel", error);
}
