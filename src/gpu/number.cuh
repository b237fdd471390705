/* SPDX-License-Identifier: MIT
 * One number of an array in global memory, of the types that problems have on GPUs, by the instructions that
 * convert it: those of base/dtype.h go through double and integers, and kernels have hundreds of such places.
 * And the two constants of the log2 domain. */
#ifndef LOAM_GPU_NUMBER_CUH
#define LOAM_GPU_NUMBER_CUH

#include "loam.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* log2(e) and ln(2): exponentials and scores are in the log2 domain, lse is a natural logarithm. */
constexpr double LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;

template <class REAL>
static __device__ __forceinline__ REAL load_real(const void *data, loam_dtype dtype, int64_t index)
{
    switch (dtype) {
    case LOAM_BF16: return (REAL)__bfloat162float(((const __nv_bfloat16 *)data)[index]);
    case LOAM_F16: return (REAL)__half2float(((const __half *)data)[index]);
    default: return (REAL)((const float *)data)[index];
    }
}

static __device__ __forceinline__ void store_real(void *data, loam_dtype dtype, int64_t index, float x)
{
    switch (dtype) {
    case LOAM_BF16: ((__nv_bfloat16 *)data)[index] = __float2bfloat16_rn(x); break;
    case LOAM_F16: ((__half *)data)[index] = __float2half_rn(x); break;
    default: ((float *)data)[index] = x;
    }
}

#endif
