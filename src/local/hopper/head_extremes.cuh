/* SPDX-License-Identifier: MIT
 *
 * What the rows that see the keys of a head have at most, in the backward of Local Linear Attention in
 * float16 on Hopper: the pass over rows finds it, the scales of the pass over keys follow from it
 * (backward_key_solved_half.cu). Weights are bounded by Cauchy and Schwarz, sums under p:
 *
 *     p |u| <= s, s^2 = sum p u^2 = rho . Cov rho = rho . (kbar - q - Lambda rho)
 *     p |E| <= B, B^2 = sum p E^2 <= (2 |do| max |v|)^2, since sum p t^2 <= y . drho = -sum p (g - gbar) t
 *     |ds| <= (1 + s) B + |e|
 */
#ifndef LOAM_LOCAL_HOPPER_HEAD_EXTREMES_CUH
#define LOAM_LOCAL_HOPPER_HEAD_EXTREMES_CUH

#include "src/local/hopper/half_copy.cuh"

/* Exponents of powers of two above what the rows of a head have at most, plus EXPONENT_OF_1; 0: all is 0. */
enum { EXPONENT_OF_1 = 300 };
struct head_extremes {
    int32_t weight, error, score, vector, probe; /* 1 + s; B; scale ds; |do| and |y|; |rho|; of elements */
    int32_t product; /* of rows left to query_kernel: |rho . kbar|, |y . kbar| / B */
};

/* Of a row: s^2; the squares of rho, kbar - q and do; the largest elements of rho, and of y and do; e. */
struct row_norms {
    float square, rho2, b2, grad2, top_rho, top, e;
};

/* What a residual may add to s^2, of |rho| |kbar - q|. */
#define PROBE_RESIDUAL 0.02f

static __device__ __forceinline__ int exponent_above(float x)
{
    return x == 0 ? 0 : x < INFINITY ? ilogbf(x) + 1 + EXPONENT_OF_1 : 2 * EXPONENT_OF_1;
}

/* The norm of the longest value that a head can have. */
static __device__ __forceinline__ float longest_value(const half_units &units, const loam_problem &p)
{
    return 2 * HALF_TOP * units.value * sqrtf((float)p.dim_v);
}

/* Of a row that is not left to query_kernel; error: B. */
static __device__ __forceinline__ head_extremes extremes_of_row(const loam_problem &p, const row_norms &x,
                                                                float longest, float *error)
{
    const float s2 = fmaxf(x.square, 0) + PROBE_RESIDUAL * sqrtf(x.rho2) * sqrtf(x.b2),
                weight = 1 + sqrtf(s2);
    *error = 2 * sqrtf(x.grad2) * longest;
    return { exponent_above(weight),
             exponent_above(*error),
             exponent_above(fabsf((float)p.scale) * (weight * *error + fabsf(x.e))),
             exponent_above(x.top),
             exponent_above(x.top_rho),
             0 };
}

static __device__ __forceinline__ void raise_extremes(head_extremes &to, const head_extremes &x)
{
    to.weight = max(to.weight, x.weight), to.error = max(to.error, x.error),
    to.score = max(to.score, x.score);
    to.vector = max(to.vector, x.vector), to.probe = max(to.probe, x.probe);
    to.product = max(to.product, x.product);
}

/* Adds what a warp has found to its head; all of its lanes call it. */
static __device__ __forceinline__ void put_extremes(head_extremes &head, const head_extremes &own)
{
    int32_t *const to = (int32_t *)&head;
    const int32_t *const from = (const int32_t *)&own;
#pragma unroll
    for (int n = 0; n < (int)(sizeof own / sizeof *to); n++) {
        const int most = __reduce_max_sync(0xffffffffu, from[n]);
        if (threadIdx.x % 32 == 0 && most > 0) atomicMax(to + n, most);
    }
}

#endif
