/* SPDX-License-Identifier: MIT
 * From the parts that reverse_kernel writes to gradients: sums over the parts and over the value heads that
 * share a head of q and k, the chain rule of the feature map, and sums over tokens, all in a fixed order. */
#include "src/gpu/block_sum.cuh"
#include "src/recurrent/cuda/backward.cuh"

enum { GATHER_THREADS = 128, SUM_THREADS = 256 };

template <class REAL> struct gather {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    backward_work<REAL> w;
};

/* One token of one head of q and k. */
struct gather_place {
    int64_t b, token, key_head;
};

/* Entry e of an array [parts][plane], summed over the parts. */
template <class REAL>
static __device__ __forceinline__ REAL sum_parts(const REAL *x, int parts, int64_t plane, int64_t e)
{
    REAL sum = 0;
    for (int part = 0; part < parts; part++)
        sum += x[part * plane + e];
    return sum;
}

/* phi <- features of the row at element `at`, this lane's channels. Returns the factor of the chain rule:
 * 1 / |row| for unit features. Those are divided by |row|, not multiplied by its inverse, so that a row of
 * one channel is exactly 1 or -1. */
template <int EACH, class REAL>
static __device__ __forceinline__ REAL load_phi(REAL (&phi)[EACH], const loam_problem &p, const void *data,
                                                int64_t at)
{
    const bool unit = p.feature_map == LOAM_FEATURES_UNIT;
    double norm2 = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = (int)threadIdx.x % 32 + 32 * i;
        phi[i] = c < p.dim_qk ? load_real<REAL>(data, p.dtype, at + c) : 0;
        norm2 = fma((double)phi[i], (double)phi[i], norm2);
    }
    const double norm = unit ? sqrt(row_sum<32>(norm2)) : 1;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (p.feature_map == LOAM_FEATURES_ELU)
            phi[i] = phi[i] > 0 ? phi[i] + 1 : exp(phi[i]);
        else if (unit)
            phi[i] = norm > 0 ? (REAL)((double)phi[i] / norm) : 0;
    return norm > 0 ? (REAL)(1 / norm) : 0;
}

/* Writes the gradient of a row of q or k, from the gradient of its features. */
template <int EACH, class REAL>
static __device__ __forceinline__ void store_row_gradient(const gather<REAL> &s, const loam_const_view &from,
                                                          const loam_view &to, const gather_place &x,
                                                          REAL (&gradient)[EACH])
{
    const loam_problem &p = s.p;
    REAL phi[EACH], radial = 0;
    const REAL factor = load_phi(phi, p, from.data, RECURRENT_AT(from, x.b, x.key_head, x.token));
    if (p.feature_map == LOAM_FEATURES_UNIT) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            radial = fma(gradient[i], phi[i], radial);
        radial = row_sum<32>(radial);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = (int)threadIdx.x % 32 + 32 * i;
        if (p.feature_map == LOAM_FEATURES_ELU)
            gradient[i] *= phi[i] > 1 ? (REAL)1 : phi[i];
        else if (p.feature_map == LOAM_FEATURES_UNIT)
            gradient[i] = fma(-radial, phi[i], gradient[i]) * factor;
        if (c < p.dim_qk)
            store_real(to.data, p.dtype, RECURRENT_AT(to, x.b, x.key_head, x.token) + c, (float)gradient[i]);
    }
}

/* Writes the gradients of the log decay and beta of one value head, and its part of the gradient
 * of the scale. */
template <int EACH, class REAL>
static __device__ __forceinline__ void store_parameters(const gather<REAL> &s, const gather_place &x,
                                                        int64_t h, int64_t row, const REAL (&phi)[EACH],
                                                        const REAL (&dx)[EACH])
{
    const loam_args &a = s.a;
    const int64_t d = s.p.dim_qk, plane = s.w.work_rows * d;
    const int lane = threadIdx.x % 32;
    REAL scale = 0, decay = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = lane + 32 * i;
        scale = fma(phi[i], dx[i], scale);
        if (s.w.dg && c < d) {
            const REAL dg = sum_parts(s.w.dg, s.w.parts, plane, row * d + c);
            decay += dg;
            if (s.form.gate == GATE_CHANNEL && a.grad_log_decay.data) {
                ((float *)a.grad_log_decay.data)[RECURRENT_AT(a.grad_log_decay, x.b, h, x.token) + c] =
                    (float)dg;
            }
        }
    }
    scale = row_sum<32>(scale), decay = row_sum<32>(decay);
    if (lane == 0) {
        s.w.scale[row] = scale;
        if (s.form.gate == GATE_HEAD)
            s.w.decay[row] = decay;
        else if (s.form.gate == GATE_TOKEN && a.grad_log_decay.data)
            ((float *)a.grad_log_decay.data)[RECURRENT_AT(a.grad_log_decay, x.b, h, x.token)] = (float)decay;
        if (a.grad_beta.data) {
            ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, x.b, h, x.token)] = (float)sum_parts(
                s.w.dbeta, s.w.parts, s.w.work_rows, row);
        }
    }
}

/* One warp for each token of each head of q and k; a lane has EACH channels. */
template <int EACH, class REAL>
__global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(const __grid_constant__ gather<REAL> s)
{
    const loam_problem &p = s.p;
    const int64_t n = blockIdx.x * (int64_t)(GATHER_THREADS / 32) + threadIdx.x / 32, d = p.dim_qk;
    const int64_t tokens = recurrent_tokens(&p), share = p.heads_v / p.heads_q, plane = s.w.work_rows * d;
    if (n >= tokens * p.heads_q) return;
    const bool packed = sequence_packed(&p);
    gather_place x;
    x.key_head = n % p.heads_q;
    x.b = packed ? 0 : n / p.heads_q / p.len_q, x.token = packed ? n / p.heads_q : n / p.heads_q % p.len_q;
    const recurrent_seq seq = { x.b, 0, 0, 0 };
    REAL phi[EACH], dq[EACH] = {}, dk[EACH] = {}, dx[EACH];
    load_phi(phi, p, s.a.q.data, RECURRENT_AT(s.a.q, x.b, x.key_head, x.token));
    for (int64_t h = x.key_head * share; h < (x.key_head + 1) * share; h++) {
        const int64_t row = recurrent_work_row(&p, &seq, h, x.token);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = (int)threadIdx.x % 32 + 32 * i;
            dx[i] = 0;
            if (c < d) {
                dx[i] = sum_parts(s.w.dx, solves<REAL> ? 1 : s.w.parts, plane, row * d + c);
                dq[i] = fma((REAL)p.scale, dx[i], dq[i]);
                dk[i] += sum_parts(s.w.dk, s.w.parts, plane, row * d + c);
                dk[i] += solves<REAL> ? s.w.dw[row * d + c] : (REAL)0;
            }
        }
        store_parameters(s, x, h, row, phi, dx);
    }
    if (s.a.grad_q.data) store_row_gradient(s, s.a.q, s.a.grad_q, x, dq);
    if (s.a.grad_k.data) store_row_gradient(s, s.a.k, s.a.grad_k, x, dk);
}

/* ------------------------------------------------------------------ sums over tokens */

/* The work row of token n of head h, counted over the whole batch. */
static __device__ __forceinline__ int64_t row_of_head(const loam_problem &p, int64_t h, int64_t n)
{
    return sequence_packed(&p) ? h * p.total_q + n : (n / p.len_q * p.heads_v + h) * p.len_q + n % p.len_q;
}

/* The sum of part over the tokens of head h, returned to all threads. */
static __device__ double head_sum(const loam_problem &p, const double *part, int64_t h)
{
    double sum = 0;
    for (int64_t n = threadIdx.x; n < recurrent_tokens(&p); n += SUM_THREADS)
        sum += part[row_of_head(p, h, n)];
    return block_sum<SUM_THREADS>(sum);
}

/* One thread block, for all heads one after the other. */
template <class REAL>
__global__ void __launch_bounds__(SUM_THREADS) parameter_sums_kernel(const __grid_constant__ gather<REAL> s)
{
    const loam_view &g = s.a.grad_log_decay;
    double scale = 0;
    for (int64_t h = 0; h < s.p.heads_v; h++) {
        if (s.form.gate == GATE_HEAD && g.data) {
            const double decay = head_sum(s.p, s.w.decay, h);
            if (threadIdx.x == 0) ((float *)g.data)[h * g.head] = (float)decay;
        }
        /* a normalised read is a mean, which does not depend on the scale */
        scale += s.a.grad_scale && !s.p.normalise ? head_sum(s.p, s.w.scale, h) : 0;
    }
    if (s.a.grad_scale && threadIdx.x == 0) *(float *)s.a.grad_scale = (float)scale;
}

/* dLambda_c = -sum_t z_c x_c: one thread block for 32 channels of a head, with the tokens distributed
 * over its warps. */
template <class REAL>
__global__ void __launch_bounds__(SUM_THREADS) ridge_sums_kernel(const __grid_constant__ gather<REAL> s)
{
    constexpr int warps = SUM_THREADS / 32;
    __shared__ double sums[warps][32];
    const int64_t d = s.p.dim_qk, blocks = (d + 31) / 32, h = blockIdx.x / blocks;
    const int64_t c = blockIdx.x % blocks * 32 + threadIdx.x % 32;
    double sum = 0;
    for (int64_t n = threadIdx.x / 32; c < d && n < recurrent_tokens(&s.p); n += warps) {
        const int64_t e = row_of_head(s.p, h, n) * d + c;
        sum = fma(-(double)s.w.dx[e], (double)s.w.x[e], sum);
    }
    sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32 && c < d) {
        double all = 0;
        for (int warp = 0; warp < warps; warp++)
            all += sums[warp][threadIdx.x];
        s.w.ridge[h * d + c] = all;
    }
}

/* Writes the gradient of the ridge from the sums of heads and channels; one warp. */
template <class REAL> __global__ void put_ridge_kernel(const __grid_constant__ gather<REAL> s)
{
    const int64_t d = s.p.dim_qk;
    const loam_view &g = s.a.grad_ridge;
    double all = 0;
    for (int64_t h = 0; h < s.p.heads_v; h++) {
        double sum = 0;
        for (int64_t c = threadIdx.x; c < d; c += 32) {
            const double ridge = s.w.ridge[h * d + c];
            sum += ridge;
            if (s.p.ridge_axes == LOAM_RIDGE_HEAD_CHANNEL) ((float *)g.data)[h * g.head + c] = (float)ridge;
        }
        sum = row_sum<32>(sum);
        all += sum;
        if (s.p.ridge_axes == LOAM_RIDGE_HEAD && threadIdx.x == 0) ((float *)g.data)[h * g.head] = (float)sum;
    }
    if (s.p.ridge_axes == LOAM_RIDGE_NUMBER && threadIdx.x == 0) *(float *)g.data = (float)all;
}

/* ------------------------------------------------------------------ launches */

template <class REAL> static loam_status run(const gather<REAL> &s, loam_error *error)
{
    const int64_t warps = recurrent_tokens(&s.p) * s.p.heads_q, each = GATHER_THREADS / 32;
    if (warps > 0) {
        const auto kernel = s.p.dim_qk <= 64    ? gather_kernel<2, REAL>
                            : s.p.dim_qk <= 128 ? gather_kernel<4, REAL>
                                                : gather_kernel<LOAM_MAX_DIM / 32, REAL>;
        TRY(cuda_launch("gather_kernel", kernel, (warps + each - 1) / each, GATHER_THREADS, 0, s.a.stream,
                        false, error, s));
    }
    TRY(cuda_launch("parameter_sums_kernel", parameter_sums_kernel<REAL>, 1, SUM_THREADS, 0, s.a.stream,
                    false, error, s));
    if (!s.form.solved || !s.a.grad_ridge.data) return LOAM_OK;
    TRY(cuda_launch("ridge_sums_kernel", ridge_sums_kernel<REAL>, s.p.heads_v * ((s.p.dim_qk + 31) / 32),
                    SUM_THREADS, 0, s.a.stream, false, error, s));
    return cuda_launch("put_ridge_kernel", put_ridge_kernel<REAL>, 1, 32, 0, s.a.stream, false, error, s);
}

loam_status recurrent_gather_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                  loam_error *error)
{
    const gather<float> s = { *p, *a, *recurrent_form_of(p->mechanism), *w };
    return run(s, error);
}

loam_status recurrent_gather64_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                    loam_error *error)
{
    const gather<double> s = { *p, *a, *recurrent_form_of(p->mechanism), *w };
    return run(s, error);
}
