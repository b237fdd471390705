/* SPDX-License-Identifier: MIT
 * The running log-decay sums G of local/decay.h, and the gradient of the log decays, on GPUs. A thread block
 * scans the keys of one head of one sequence in pieces of SCAN_PIECE keys, in float64. The order of the sums
 * depends on the positions of the keys alone. */
#include "src/gpu/launch.cuh"
#include "src/gpu/number.cuh"
#include "src/local/decay.h"

enum { SCAN_THREADS = 512, SCAN_EACH = 4, SCAN_PIECE = SCAN_THREADS * SCAN_EACH };
static_assert((int)SCAN_THREADS >= (int)LOCAL_DECAY_SPARE, "a thread for each spare pair");

/* The exclusive prefix sum of x over the threads of the block; *whole: the sum over all threads. */
static __device__ __forceinline__ double scan_threads(double x, double *whole)
{
    __shared__ double warps[SCAN_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = x, before = 0, total = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < SCAN_THREADS / 32; w++) {
        before += w < warp ? warps[w] : 0;
        total += warps[w];
    }
    *whole = total;
    return before + (sum - x);
}

/* Exclusive prefix sum over 0 .. count - 1: calls put(j, sum of load(t) over t < j, load(j)). */
template <class LOAD, class PUT>
static __device__ __forceinline__ void scan(int64_t count, LOAD load, PUT put)
{
    double carry = 0;
    for (int64_t from = 0; from < count; from += SCAN_PIECE) {
        const int64_t first = from + threadIdx.x * SCAN_EACH;
        double x[SCAN_EACH], own = 0, whole;
#pragma unroll
        for (int e = 0; e < SCAN_EACH; e++) {
            x[e] = first + e < count ? load(first + e) : 0;
            own += x[e];
        }
        double sum = carry + scan_threads(own, &whole);
#pragma unroll
        for (int e = 0; e < SCAN_EACH; e++) {
            if (first + e < count) put(first + e, sum, x[e]);
            sum += x[e];
        }
        carry += whole;
    }
}

__global__ void __launch_bounds__(SCAN_THREADS)
    decay_sums_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const loam_const_view sums)
{
    const int64_t h = blockIdx.x % p.heads_q;
    const local_seq s = local_seq_at(&p, &a, blockIdx.x / p.heads_q);
    const float *const gates = (const float *)a.log_decay.data + LOCAL_AT(a.log_decay, s.b, h, s.k0);
    local_decay_pair *const out = (local_decay_pair *)sums.data + LOCAL_AT(sums, s.b, h, s.k0);
    scan(
        s.nk,
        [&](int64_t j) { return fmax((double)gates[j * a.log_decay.token], LOCAL_LEAST_DECAY) * LOG2E; },
        [&](int64_t j, double before, double own) {
            const double sum = before + own;
            const float hi = (float)sum;
            out[j] = local_decay_pair{ hi, (float)(sum - (double)hi) };
        });
    /* Tiles of keys reach beyond the keys in use, and the last tile beyond the end of the array
     * (LOCAL_DECAY_SPARE). */
    for (int64_t j = s.nk + threadIdx.x; j < local_stored_keys(&p, &s); j += SCAN_THREADS)
        out[j] = local_decay_pair{ 0, 0 };
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < LOCAL_DECAY_SPARE)
        ((local_decay_pair *)sums.data)[local_keys(&p) * p.heads_q + threadIdx.x] = local_decay_pair{ 0, 0 };
}

/* The column sums of ds in grad_log_decay become the gradient, an exclusive prefix sum over keys. The row
 * sums of ds are 0 but for rounding. What rounding leaves of the sum of row i is subtracted at the row's own
 * position, i + nk - nq, and thus enters the gradients of the keys after it. */
__global__ void __launch_bounds__(SCAN_THREADS)
    decay_gradient_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                          const double *rows)
{
    const int64_t h = blockIdx.x % p.heads_q;
    const local_seq s = local_seq_at(&p, &a, blockIdx.x / p.heads_q);
    const loam_view &grad = a.grad_log_decay;
    float *const out = (float *)grad.data + LOCAL_AT(grad, s.b, h, s.k0);
    scan(
        s.nk,
        [&](int64_t j) {
            const int64_t i = j - s.nk + s.nq;
            const double row = i >= 0 && i < s.nq ? rows[local_row(&p, &s, h, i)] : 0;
            return (double)out[j * grad.token] - row;
        },
        [&](int64_t j, double before, double) { out[j * grad.token] = (float)before; });
    for (int64_t j = s.nk + threadIdx.x; j < local_stored_keys(&p, &s); j += SCAN_THREADS)
        out[j * grad.token] = 0;
}

loam_status local_decay_sums_cuda(const loam_problem *p, const loam_args *a, const loam_const_view *sums,
                                  loam_error *error)
{
    if (p->batch == 0) return LOAM_OK;
    decay_sums_kernel<<<(unsigned)(p->batch * p->heads_q), SCAN_THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a,
                                                                                                       *sums);
    return cuda_launched("decay_sums_kernel", error);
}

loam_status local_decay_gradient_cuda(const loam_problem *p, const loam_args *a, const double *rows,
                                      loam_error *error)
{
    if (p->batch == 0 || !p->decay || !a->grad_log_decay.data) return LOAM_OK;
    decay_gradient_kernel<<<(unsigned)(p->batch * p->heads_q), SCAN_THREADS, 0, (cudaStream_t)a->stream>>>(
        *p, *a, rows);
    return cuda_launched("decay_gradient_kernel", error);
}
