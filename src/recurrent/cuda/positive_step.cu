/* SPDX-License-Identifier: MIT
 * One token of decode with positive random features, in one launch: a thread block has a head of z. Rows of
 * A, B and z have eight lanes each, rows of the state a warp. What lies in memory from call to call is asked
 * for at once, while the rows of q and k, on which all else waits, are on their way. */
#include "src/recurrent/cuda/positive.cuh"

enum { STEP_THREADS = 512, WARPS = STEP_THREADS / 32, LANES = 8, ROWS = 32 / LANES, LINE = 128 };

/* A head of a sequence, and shared memory. Of two rows the first is the key's, the second that of a query. */
struct step_head {
    positive x;
    recurrent_seq seq;
    int64_t n;
    int d, features;
    double *given, *at;             /* [2][d]: sqrt(scale) q and k less its shift; x and y */
    double *logs;                   /* [features]: b + c of a query */
    float *q, *k, *decay, *c, *sum; /* [features]: as in positive.h; sum: s with this token */
};

static size_t step_bytes(const loam_problem *p)
{
    return (size_t)(4 * p->dim_qk + p->features) * sizeof(double) + 5 * (size_t)p->features * sizeof(float);
}

static __device__ __forceinline__ step_head step_here(const launch &l, double *shared)
{
    step_head s = { positive_here(l) };
    s.n = blockIdx.x % s.x.heads;
    s.seq = recurrent_seq_at(&l.p, &l.a, blockIdx.x / s.x.heads);
    s.d = (int)l.p.dim_qk, s.features = (int)l.p.features;
    s.given = shared;
    s.at = l.a.balance.data ? shared + 2 * s.d : shared;
    s.logs = shared + 4 * s.d;
    s.q = (float *)(s.logs + s.features);
    s.k = s.q + s.features, s.decay = s.k + s.features, s.c = s.decay + s.features, s.sum = s.c + s.features;
    return s;
}

/* ------------------------------------------------------------------ memory ahead */

/* Rows of floats, `stride` apart. */
static __device__ void ask_for(const void *data, int64_t first, int64_t stride, int rows, int width)
{
    const int lines = (width * (int)sizeof(float) + LINE - 1) / LINE;
    for (int e = (int)threadIdx.x; data && e < rows * lines; e += STEP_THREADS) {
        const char *row = (const char *)((const float *)data + first + e / lines * stride);
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + e % lines * LINE));
    }
}

static __device__ void ask_for_all(const step_head &s)
{
    const loam_args *a = s.x.a;
    ask_for(a->balance_keys.data, s.n * a->balance_keys.head, a->balance_keys.token, s.d, s.d);
    ask_for(a->balance.data, s.n * a->balance.head, a->balance.token, s.d, s.d);
    ask_for(a->z.data, s.n * a->z.head, a->z.token, s.features, s.d);
    ask_for(a->state_in.data, RECURRENT_AT(a->state_in, s.seq.index, s.n, 0), a->state_in.token,
            (int)s.x.p->dim_v + 2, s.features);
}

/* ------------------------------------------------------------------ logarithms */

/* The sum of x over COUNT neighbouring lanes, returned to all of them. */
template <int COUNT, class REAL> static __device__ __forceinline__ REAL lanes_sum(REAL x)
{
#pragma unroll
    for (int apart = COUNT / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

/* s.at <- y of the key, in its first row, with the query r = 0; x of that query, in the other. */
static __device__ void step_points(const step_head &s, int64_t r)
{
    const positive &x = s.x;
    const int first = r == 0 ? 0 : s.d, lane = (int)threadIdx.x % LANES;
    for (int e = first + (int)threadIdx.x; e < 2 * s.d; e += STEP_THREADS) {
        const bool key = e < s.d;
        const int64_t h = key ? positive_key_head(&x, s.n) : positive_query_head(&x, s.n, r);
        s.given[e] = given_at(x, key, s.n, h, s.seq.b, s.seq.first, e % s.d);
    }
    __syncthreads();
    if (s.at == s.given) return;
    for (int row0 = first + (int)threadIdx.x / 32 * ROWS; row0 < 2 * s.d; row0 += WARPS * ROWS) {
        const int row = row0 + (int)threadIdx.x % 32 / LANES, here = row < 2 * s.d ? row : 2 * s.d - 1;
        const loam_const_view &from = here < s.d ? x.a->balance_keys : x.a->balance;
        const float *const weights = (const float *)from.data + s.n * from.head + here % s.d * from.token;
        const double *const given = s.given + here / s.d * s.d;
        double sum = 0;
#pragma unroll 8
        for (int c = lane; c < s.d; c += LANES)
            sum = fma((double)weights[c], given[c], sum);
        sum = lanes_sum<LANES>(sum);
        if (lane == 0 && row < 2 * s.d) s.at[row] = sum;
    }
    __syncthreads();
}

/* Feature m of the key, whose logarithm is a: c, the sum s and what they take; both go to the state. */
static __device__ void step_key(const step_head &s, int m, double a)
{
    const loam_args *args = s.x.a;
    const loam_view &out = args->state_out;
    const float *const sums = (const float *)args->state_in.data;
    const bool live = s.seq.len > 0;
    const double before = positive_start(&s.x, &s.seq, s.n, m), held = positive_hold(a),
                 after = live ? fmax(before, ceil(held)) : before;
    const float old = sums ? sums[RECURRENT_AT(args->state_in, s.seq.index, s.n, s.x.p->dim_v) + m] : 0;
    s.c[m] = (float)after;
    s.k[m] = live ? expf((float)(held - after)) : 0;
    s.decay[m] = expf((float)(before - after));
    s.sum[m] = fmaf(old, s.decay[m], s.k[m]);
    ((float *)out.data)[RECURRENT_AT(out, s.seq.index, s.n, s.x.p->dim_v) + m] = s.sum[m];
    positive_end(&s.x, &s.seq, s.n, m, after);
}

/* The features of the key, with the query r = 0; s.logs of that query. */
static __device__ void step_logarithms(const step_head &s, int64_t r)
{
    const loam_const_view &z = s.x.a->z, &alpha = s.x.a->log_alpha;
    const int lane = (int)threadIdx.x % LANES;
    const double *const y = s.at, *const x = s.at + s.d;
    double half = 0;
    for (int c = (int)threadIdx.x % 32; c < s.d; c += 32)
        half = fma(y[c], y[c], half);
    half = warp_sum(half) / 2;
    for (int row0 = (int)threadIdx.x / 32 * ROWS; row0 < s.features; row0 += WARPS * ROWS) {
        const int row = row0 + (int)threadIdx.x % 32 / LANES, m = row < s.features ? row : s.features - 1;
        const float *const weights = (const float *)z.data + s.n * z.head + m * z.token;
        double a = 0, b = 0;
#pragma unroll 8
        for (int c = lane; c < s.d; c += LANES) {
            a = fma((double)weights[c], y[c], a);
            b = fma((double)weights[c], x[c], b);
        }
        a = lanes_sum<LANES>(a), b = lanes_sum<LANES>(b);
        if (lane > 0 || row >= s.features) continue;
        if (r == 0) step_key(s, m, a - half + (alpha.data ? (double)parameter_at(alpha, s.n, 0, m) : 0));
        s.logs[m] = positive_hold(b) + (double)s.c[m];
    }
    __syncthreads();
}

/* q = e^{b + c - max}; returned: s . q. Each warp finds the largest and the sum by itself. */
static __device__ float step_query(const step_head &s)
{
    const int lane = (int)threadIdx.x % 32;
    double top = -HUGE_VAL;
    float sum = 0;
    for (int m = lane; m < s.features; m += 32)
        top = fmax(top, s.logs[m]);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        top = fmax(top, __shfl_xor_sync(~0u, top, apart));
    for (int m = (int)threadIdx.x; m < s.features; m += STEP_THREADS)
        s.q[m] = expf((float)(s.logs[m] - top));
    __syncthreads();
    for (int m = lane; m < s.features; m += 32)
        sum = fmaf(s.sum[m], s.q[m], sum);
    return lanes_sum<32>(sum);
}

/* ------------------------------------------------------------------ the state */

/* The token's value, of a row of S. */
static __device__ __forceinline__ float value_at(const step_head &s, int row)
{
    const loam_args *a = s.x.a;
    const int64_t at = RECURRENT_AT(a->v, s.seq.b, positive_key_head(&s.x, s.n), s.seq.first) + row;
    return s.seq.len > 0 && row < s.x.p->dim_v ? (float)element_load(a->v.data, s.x.p->dtype, at) : 0;
}

/* y[i] <- row first + i of S, times q; `writes`: of S with the key taken in. */
static __device__ __forceinline__ void read_rows(const step_head &s, bool writes, int first, float (&y)[ROWS])
{
    const loam_args *a = s.x.a;
    const loam_view &out = a->state_out;
    const int64_t stride = writes ? a->state_in.token : out.token;
    float *to = (float *)out.data + RECURRENT_AT(out, s.seq.index, s.n, first);
    const float *from = !writes            ? to
                        : a->state_in.data ? (const float *)a->state_in.data +
                                                 RECURRENT_AT(a->state_in, s.seq.index, s.n, first)
                                           : NULL;
    const int rows = (int)s.x.p->dim_v - first;
    float v[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        v[i] = writes ? value_at(s, first + i) : 0, y[i] = 0;
    for (int m = (int)threadIdx.x % 32; m < s.features; m += 32) {
        float S[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            S[i] = from && i < rows ? from[i * stride + m] : 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (writes) S[i] = fmaf(S[i], s.decay[m], v[i] * s.k[m]);
            if (writes && i < rows) to[i * out.token + m] = S[i];
            y[i] = fmaf(S[i], s.q[m], y[i]);
        }
    }
}

/* o of a query, from the rows of S, which with r = 0 take the key in. */
static __device__ void step_rows(const step_head &s, int64_t r, float denominator)
{
    const loam_args *a = s.x.a;
    const bool first = threadIdx.x % 32 == 0 && s.seq.len > 0;
    const int64_t h = positive_query_head(&s.x, s.n, r);
    for (int row0 = (int)threadIdx.x / 32 * ROWS; row0 < s.x.p->dim_v; row0 += WARPS * ROWS) {
        float y[ROWS];
        read_rows(s, r == 0, row0, y);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float sum = lanes_sum<32>(y[i]);
            if (first && row0 + i < s.x.p->dim_v)
                element_store(a->o.data, s.x.p->dtype, RECURRENT_AT(a->o, s.seq.b, h, s.seq.first) + row0 + i,
                              denominator == 0 ? 0 : sum / denominator);
        }
    }
    if (threadIdx.x == 0 && first && a->info.data) {
        const loam_row_info info = { denominator == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE,
                                     0, 0 };
        ((loam_row_info *)a->info.data)[RECURRENT_AT(a->info, s.seq.b, h, s.seq.first)] = info;
    }
}

__global__ void __launch_bounds__(STEP_THREADS, 2) positive_step_kernel(const __grid_constant__ launch l)
{
    extern __shared__ double shared[];
    const step_head s = step_here(l, shared);
    ask_for_all(s);
    for (int64_t r = 0; r < (s.seq.len > 0 ? s.x.reads : 1); r++) {
        if (s.seq.len > 0) step_points(s, r);
        step_logarithms(s, r);
        step_rows(s, r, step_query(s));
        __syncthreads();
    }
}

loam_status positive_step_cuda(const launch *l, loam_error *error)
{
    const int64_t heads = l->p.batch * l->x.heads;
    REQUIRE(heads <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads: too large for one launch");
    return heads == 0 ? LOAM_OK
                      : cuda_launch("positive_step_kernel", positive_step_kernel, heads, STEP_THREADS,
                                    step_bytes(&l->p), l->a.stream, false, error, *l);
}
