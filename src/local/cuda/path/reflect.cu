/* SPDX-License-Identifier: MIT
 *
 * PaTH for each row as a problem of its own: keys are reflected, k <- k - beta_t w_t (w_t . k) for each
 * position t after their own. Their gradients go through the transposed reflections in the opposite order. A
 * warp has one key, or BACK_KEYS of them, with the channels spread over its lanes. In float64, so that
 * thousands of reflections lose no precision.
 */
#include "src/gpu/block_sum.cuh"
#include "src/gpu/launch.cuh"
#include "src/local/cuda/path/reflect.h"

enum { REFLECT_THREADS = 256, REFLECT_WARPS = REFLECT_THREADS / 32, BACK_KEYS = BATCH_KEYS / REFLECT_WARPS };

/* A row of channels: lane l has channels l + 32 n, n < N. */
template <int N> struct lane_row {
    double x[N];
};

template <int N>
static __device__ __forceinline__ lane_row<N> load_row(const void *data, loam_dtype dtype, int64_t at,
                                                       int64_t d)
{
    lane_row<N> out;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int64_t c = threadIdx.x % 32 + 32 * n;
        out.x[n] = c < d ? element_load(data, dtype, at + c) : 0;
    }
    return out;
}

template <class T, int N>
static __device__ __forceinline__ void store_row(T *to, const lane_row<N> &row, int64_t d)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int64_t c = threadIdx.x % 32 + 32 * n;
        if (c < d) to[c] = (T)row.x[n];
    }
}

template <int N> static __device__ __forceinline__ double dot(const lane_row<N> &x, const lane_row<N> &y)
{
    double sum = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
        sum += x.x[n] * y.x[n];
    return warp_sum(sum);
}

static __device__ __forceinline__ double beta_of(const loam_args &a, const local_seq &s, int64_t h, int64_t t)
{
    return (double)((const float *)a.beta.data)[LOCAL_AT(a.beta, s.b, h, s.k0 + t)];
}

/* ------------------------------------------------------------------ forward */

/* A warp reflects one key of head blockIdx.y at the positions of the group, from frame `from` to frame
 * `to`, and stores it after each position where copies are wanted. */
template <int N>
static __global__ void __launch_bounds__(REFLECT_THREADS)
    reflect_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                   const batch_shape shape, int64_t b, int64_t first, int64_t count, const double *from,
                   double *to, float *copies)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t j = (int64_t)blockIdx.x * REFLECT_WARPS + threadIdx.x / 32, h = blockIdx.y, d = p.dim_qk;
    const int64_t t0 = batch_step_at(&shape, &s, first).position, at = (h * p.len_kv + j) * d;
    if (j >= s.nk || t0 + count <= j) return;
    lane_row<N> key = j < t0 ? load_row<N>(from, LOAM_F64, at, d)
                             : load_row<N>(a.k.data, p.dtype, LOCAL_AT(a.k, s.b, h, s.k0 + j), d);
    for (int64_t n = j < t0 ? 0 : j - t0; n < count; n++) {
        const int64_t t = t0 + n;
        if (t > j) {
            const lane_row<N> w = load_row<N>(a.w.data, p.dtype, LOCAL_AT(a.w, s.b, h, s.k0 + t), d);
            const double along = beta_of(a, s, h, t) * dot(w, key);
#pragma unroll
            for (int c = 0; c < N; c++)
                key.x[c] -= along * w.x[c];
        }
        if (copies) store_row(copies + n * p.heads_kv * p.len_kv * d + at, key, d);
    }
    store_row(to + at, key, d);
}

/* ------------------------------------------------------------------ backward */

/* copies: keys as the rows of the group saw them; grads: the gradients of these, NULL without rows. */
struct reflected_keys {
    const double *frame;
    const float *copies, *grads;
    double *sum, *parts;
};

/* The key before step n, from the copy of the step before or from the frame. It is rounded to float in both
 * cases, so that results do not depend on how steps are grouped. */
template <int N>
static __device__ __forceinline__ lane_row<N> key_before(const reflected_keys &x, int64_t n, int64_t step,
                                                         int64_t at, int64_t d)
{
    lane_row<N> key = n > 0 ? load_row<N>(x.copies, LOAM_F32, (n - 1) * step + at, d)
                            : load_row<N>(x.frame, LOAM_F64, at, d);
#pragma unroll
    for (int c = 0; c < N; c++)
        key.x[c] = (float)key.x[c];
    return key;
}

/* Back through k' = k - beta w (w . k), with G = grad the gradient of k', which becomes that of k:
 *     dbeta -= (w . k)(w . G),  dw -= beta ((w . G) k + (w . k) G),  G <- G - beta w (w . G) */
template <int N>
static __device__ __forceinline__ void reflect_back(lane_row<N> &grad, lane_row<N> &dw, double &dbeta,
                                                    const lane_row<N> &key, const lane_row<N> &w, double beta)
{
    const double along_key = dot(w, key), along_grad = dot(w, grad);
    dbeta -= along_key * along_grad;
#pragma unroll
    for (int c = 0; c < N; c++) {
        dw.x[c] -= beta * (along_grad * key.x[c] + along_key * grad.x[c]);
        grad.x[c] -= beta * along_grad * w.x[c];
    }
}

/* out [d + 1] <- the sums of dw and dbeta over the warps, which are in `shared`. */
template <int N>
static __device__ __forceinline__ void put_part(double *out,
                                                const double (&shared)[REFLECT_WARPS][32 * N + 1], int64_t d)
{
    for (int64_t c = threadIdx.x; c <= d; c += REFLECT_THREADS) {
        double sum = 0;
        for (int v = 0; v < REFLECT_WARPS; v++)
            sum += shared[v][c];
        out[c] = sum;
    }
}

/* A block has BATCH_KEYS keys of a head, each warp BACK_KEYS of them. */
template <int N>
static __global__ void __launch_bounds__(REFLECT_THREADS)
    reflect_back_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const batch_shape shape, int64_t b, int64_t first, int64_t count,
                        const reflected_keys x)
{
    __shared__ double shared[REFLECT_WARPS][32 * N + 1];
    const local_seq s = local_seq_at(&p, &a, b);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t h = blockIdx.y, d = p.dim_qk, step = p.heads_kv * p.len_kv * d;
    const int64_t block = (int64_t)blockIdx.x * BATCH_KEYS, j0 = block + warp * BACK_KEYS;
    const int64_t t0 = batch_step_at(&shape, &s, first).position;
    const int64_t last = t0 + count - 1 < s.nk - 1 ? t0 + count - 1 : s.nk - 1;
    if (block > last) return;
    lane_row<N> grad[BACK_KEYS];
#pragma unroll
    for (int m = 0; m < BACK_KEYS; m++)
        if (j0 + m <= last) grad[m] = load_row<N>(x.sum, LOAM_F64, (h * p.len_kv + j0 + m) * d, d);
    for (int64_t n = count - 1; n >= 0 && t0 + n >= block; n--) {
        const int64_t t = t0 + n;
        const bool row = x.grads && batch_step_at(&shape, &s, first + n).query >= 0;
        const lane_row<N> w = load_row<N>(a.w.data, p.dtype, LOCAL_AT(a.w, s.b, h, s.k0 + t), d);
        const double beta = beta_of(a, s, h, t);
        lane_row<N> dw = {};
        double dbeta = 0;
#pragma unroll
        for (int m = 0; m < BACK_KEYS; m++) {
            const int64_t j = j0 + m, at = (h * p.len_kv + j) * d;
            if (row && j <= t) {
                const lane_row<N> own = load_row<N>(x.grads, LOAM_F32, n * step + at, d);
#pragma unroll
                for (int c = 0; c < N; c++)
                    grad[m].x[c] += own.x[c];
            }
            if (j < t) {
                const lane_row<N> key = key_before<N>(x, n, step, at, d);
                reflect_back(grad[m], dw, dbeta, key, w, beta);
            }
        }
        __syncthreads();
        store_row(shared[warp], dw, d);
        if (lane == 0) shared[warp][d] = dbeta;
        __syncthreads();
        put_part<N>(x.parts + ((h * gridDim.x + blockIdx.x) * shape.group + n) * (d + 1), shared, d);
    }
#pragma unroll
    for (int m = 0; m < BACK_KEYS; m++)
        if (j0 + m <= last) store_row(x.sum + (h * p.len_kv + j0 + m) * d, grad[m], d);
}

/* Writes dw and dbeta of step blockIdx.x, head blockIdx.y: the sums of the parts of all keys before
 * its position. */
static __global__ void __launch_bounds__(REFLECT_THREADS)
    reflector_gradient_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                              const batch_shape shape, int64_t b, int64_t first, int64_t tiles,
                              const double *parts)
{
    const local_seq s = local_seq_at(&p, &a, b);
    const int64_t t = batch_step_at(&shape, &s, first + blockIdx.x).position, h = blockIdx.y, d = p.dim_qk;
    for (int64_t c = threadIdx.x; t >= 0 && c <= d; c += REFLECT_THREADS) {
        double sum = 0;
        for (int64_t tile = 0; tile * BATCH_KEYS < t; tile++)
            sum += parts[((h * tiles + tile) * shape.group + blockIdx.x) * (d + 1) + c];
        if (c < d && a.grad_w.data)
            element_store(a.grad_w.data, p.dtype, LOCAL_AT(a.grad_w, s.b, h, s.k0 + t) + c, sum);
        else if (c == d && a.grad_beta.data)
            ((float *)a.grad_beta.data)[LOCAL_AT(a.grad_beta, s.b, h, s.k0 + t)] = (float)sum;
    }
}

/* ------------------------------------------------------------------ host */

template <int N> struct channels {
    static constexpr int value = N;
};

/* Calls launch(N), where N is the number of channels of a lane. */
template <class LAUNCH> static void by_channels(const loam_problem *p, LAUNCH launch)
{
    p->dim_qk <= 32    ? launch(channels<1>())
    : p->dim_qk <= 64  ? launch(channels<2>())
    : p->dim_qk <= 128 ? launch(channels<4>())
                       : launch(channels<8>());
}

loam_status path_reflect_cuda(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                              const batch_steps *steps, int64_t from, int64_t to, bool copies,
                              loam_error *error)
{
    const int64_t keys = batch_keys_before(p, w, steps->first + steps->count);
    const dim3 grid((unsigned)((keys + REFLECT_WARPS - 1) / REFLECT_WARPS), (unsigned)p->heads_kv);
    if (keys == 0) return LOAM_OK;
    by_channels(p, [&](auto n) {
        reflect_kernel<decltype(n)::value><<<grid, REFLECT_THREADS, 0, (cudaStream_t)a->stream>>>(
            *p, *a, w->shape, steps->b, steps->first, steps->count, w->frames + from * w->frame,
            w->frames + to * w->frame, copies ? w->keys : NULL);
    });
    return cuda_launched("reflect_kernel", error);
}

loam_status path_reflect_back_cuda(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                                   const batch_steps *steps, int64_t frame, loam_error *error)
{
    const int64_t keys = batch_keys_before(p, w, steps->first + steps->count),
                  tiles = (keys + BATCH_KEYS - 1) / BATCH_KEYS;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const dim3 grid((unsigned)tiles, (unsigned)p->heads_kv),
        by_step((unsigned)steps->count, (unsigned)p->heads_kv);
    const reflected_keys x = { w->frames + frame * w->frame, w->keys, steps->rows ? w->grad_k : NULL,
                               w->sum_k, w->parts };
    if (keys == 0) return LOAM_OK;
    by_channels(p, [&](auto n) {
        reflect_back_kernel<decltype(n)::value>
            <<<grid, REFLECT_THREADS, 0, stream>>>(*p, *a, w->shape, steps->b, steps->first, steps->count, x);
    });
    TRY(cuda_launched("reflect_back_kernel", error));
    reflector_gradient_kernel<<<by_step, REFLECT_THREADS, 0, stream>>>(*p, *a, w->shape, steps->b,
                                                                       steps->first, tiles, w->parts);
    return cuda_launched("reflector_gradient_kernel", error);
}
