/* SPDX-License-Identifier: MIT
 * Gradients of positive random features on GPUs (src/recurrent/reference/positive.c): first of the
 * logarithms, which take the place of those of the features, and of queries and keys; then of z and log
 * alpha, by parts of SLICE tokens that are added up in order. */
#include "src/recurrent/cuda/positive.cuh"

enum { Z_ROWS = 8 };

/* Gradients of the logarithms of a group, 0 where these were held, in place and in e [GROUP][features]. */
static __device__ void logarithm_gradients(const positive &x, const group &g, bool key, int64_t n, int64_t r,
                                           const double *rows, double *half, float *e)
{
    const int features = (int)x.p->features;
    half_norms(rows, (int)x.p->dim_qk, half);
    for (int m = (int)threadIdx.x; m < features; m += THREADS) {
        double raw[GROUP];
        logarithms(x, key, n, m, rows, half, raw);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            if (i >= g.count) continue;
            float *grad = features_at(x, key ? x.grad_k : x.grad_q, g, n, i, r) + m;
            const float phi = features_at(x, key ? x.k : x.q, g, n, i, r)[m];
            *grad = fabs(raw[i]) < POSITIVE_BOUND ? *grad * phi : 0;
            e[i * features + m] = *grad;
        }
        for (int i = g.count; i < GROUP; i++)
            e[i * features + m] = 0;
    }
    __syncthreads();
}

/* rows[i][c] <- the gradient of row i: sum_m e_m z_m, of a key less its row times sum_m e_m. */
static __device__ void row_gradients(const positive &x, bool key, int64_t n, const float *e, double *rows)
{
    const int d = (int)x.p->dim_qk, features = (int)x.p->features;
    for (int c = (int)threadIdx.x; c < d; c += THREADS) {
        double sum[GROUP], all[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            sum[i] = all[i] = 0;
        for (int m = 0; m < features; m++) {
            const double z = (double)parameter_at(x.a->z, n, m, c);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                sum[i] = fma((double)e[i * features + m], z, sum[i]);
                all[i] += (double)e[i * features + m];
            }
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            rows[i * d + c] = sum[i] - (key ? all[i] * rows[i * d + c] : 0);
    }
    __syncthreads();
}

/* Channel c of sqrt(scale) A^T of row i. */
static __device__ double turned_back(const positive &x, bool key, int64_t n, const double *rows, int i, int c)
{
    const loam_const_view &A = key ? x.a->balance_keys : x.a->balance;
    const int d = (int)x.p->dim_qk;
    double sum = A.data ? 0 : rows[i * d + c];
    for (int j = 0; A.data && j < d; j++)
        sum += (double)parameter_at(A, n, j, c) * rows[i * d + j];
    return sqrt(x.p->scale) * sum;
}

static __device__ void store_queries(const positive &x, const group &g, int64_t n, int64_t r,
                                     const double *rows)
{
    const int d = (int)x.p->dim_qk;
    const loam_view &to = x.a->grad_q;
    for (int e = (int)threadIdx.x; to.data && e < g.count * d; e += THREADS) {
        const int64_t at = RECURRENT_AT(to, g.seq.b, positive_query_head(&x, n, r),
                                        g.seq.first + g.first + e / d);
        element_store(to.data, x.p->dtype, at + e % d, turned_back(x, false, n, rows, e / d, e % d));
    }
}

/* A block of 64 tokens of a key-value head, and the queries that read it. */
__global__ void __launch_bounds__(THREADS) positive_rows_kernel(const __grid_constant__ launch l)
{
    extern __shared__ double rows[];
    __shared__ double half[GROUP];
    const positive x = positive_here(l);
    const int d = (int)l.p.dim_qk;
    double *grad_k = rows + 2 * GROUP * d;
    float *e = (float *)(grad_k + GROUP * d);
    const int64_t item = blockIdx.x / l.blocks, head = item % l.p.heads_kv;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, item / l.p.heads_kv);
    const loam_view &to = l.a.grad_k;
    for (int step = 0; step < BLOCK / GROUP; step++) {
        const group g = group_at(seq, blockIdx.x % l.blocks, step);
        if (g.count == 0) return;
        for (int64_t n = head * x.sharing; n < (head + 1) * x.sharing; n++) {
            load_rows(x, g, true, n, head, rows);
            logarithm_gradients(x, g, true, n, 0, rows, half, e);
            row_gradients(x, true, n, e, rows);
            for (int i = (int)threadIdx.x; i < GROUP * d; i += THREADS)
                grad_k[i] = turned_back(x, true, n, rows, i / d, i % d) +
                            (n > head * x.sharing ? grad_k[i] : 0);
            for (int64_t r = 0; r < x.reads; r++) {
                load_rows(x, g, false, n, positive_query_head(&x, n, r), rows);
                logarithm_gradients(x, g, false, n, r, rows, half, e);
                row_gradients(x, false, n, e, rows);
                store_queries(x, g, n, r, rows);
            }
        }
        for (int i = (int)threadIdx.x; to.data && i < g.count * d; i += THREADS) {
            const int64_t at = RECURRENT_AT(to, seq.b, head, seq.first + g.first + i / d);
            element_store(to.data, l.p.dtype, at + i % d, grad_k[i]);
        }
    }
}

/* Channel c of x, of a token wherever it is. */
static __device__ double row_at(const positive &x, bool key, int64_t n, int64_t h, int64_t b, int64_t token,
                                int c)
{
    const loam_const_view &A = key ? x.a->balance_keys : x.a->balance;
    if (!A.data) return given_at(x, key, n, h, b, token, c);
    double sum = 0;
    for (int j = 0; j < (int)x.p->dim_qk; j++)
        sum += (double)parameter_at(A, n, c, j) * given_at(x, key, n, h, b, token, j);
    return sum;
}

/* sums[m] += e_m x, of one row of the arrays of the recurrence; in column d of keys, e_m alone. */
static __device__ void add_row(const positive &x, bool key, int64_t n, int64_t b, int64_t token, int64_t r,
                               int c, int first, double (&sums)[Z_ROWS])
{
    const int d = (int)x.p->dim_qk;
    const int64_t row = (b * x.heads + n) * x.axis + token * x.reads + r;
    const float *e = (const float *)(key ? x.grad_k : x.grad_q) + row * x.p->features + first;
    const int64_t h = key ? positive_key_head(&x, n) : positive_query_head(&x, n, r);
    const double value = c < d ? row_at(x, key, n, h, b, token, c) : key ? 1 : 0;
#pragma unroll
    for (int m = 0; m < Z_ROWS; m++)
        if (first + m < x.p->features) sums[m] = fma((double)e[m], value, sums[m]);
}

/* A part of the gradients of Z_ROWS rows of z: of SLICE tokens, counted over the batch. */
__global__ void __launch_bounds__(THREADS) positive_parts_kernel(const __grid_constant__ launch l)
{
    const positive x = positive_here(l);
    const int d = (int)l.p.dim_qk;
    const int64_t tiles = (l.p.features + Z_ROWS - 1) / Z_ROWS, n = blockIdx.x / tiles % x.heads,
                  slice = blockIdx.x / tiles / x.heads, tokens = x.axis / x.reads,
                  all = (sequence_packed(&l.p) ? 1 : l.p.batch) * tokens;
    const int first = (int)(blockIdx.x % tiles) * Z_ROWS;
    for (int c = (int)threadIdx.x; c <= d; c += THREADS) {
        double sums[Z_ROWS];
        for (int m = 0; m < Z_ROWS; m++)
            sums[m] = 0;
        for (int64_t t = slice * SLICE; t < (slice + 1) * SLICE && t < all; t++) {
            add_row(x, true, n, t / tokens, t % tokens, 0, c, first, sums);
            for (int64_t r = 0; r < x.reads; r++)
                add_row(x, false, n, t / tokens, t % tokens, r, c, first, sums);
        }
        for (int m = 0; m < Z_ROWS && first + m < l.p.features; m++)
            l.parts[((slice * x.heads + n) * l.p.features + first + m) * (d + 1) + c] = sums[m];
    }
}

__global__ void __launch_bounds__(THREADS) positive_sum_kernel(const __grid_constant__ launch l)
{
    const int64_t width = l.p.dim_qk + 1, rows = l.x.heads * l.p.features,
                  e = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = e / width / l.p.features,
                  m = e / width % l.p.features, c = e % width;
    const loam_view &z = l.a.grad_z, &alpha = l.a.grad_log_alpha;
    if (e >= rows * width) return;
    double sum = 0;
    for (int64_t slice = 0; slice < l.slices; slice++)
        sum += l.parts[slice * rows * width + e];
    if (c < l.p.dim_qk && z.data) ((float *)z.data)[n * z.head + m * z.token + c] = (float)sum;
    if (c == l.p.dim_qk && alpha.data) ((float *)alpha.data)[n * alpha.head + m] = (float)sum;
}

loam_status positive_gradient_cuda(const launch *l, loam_error *error)
{
    const int64_t tiles = (l->p.features + Z_ROWS - 1) / Z_ROWS,
                  items = l->p.batch * l->p.heads_kv * l->blocks, parts = l->slices * l->x.heads * tiles,
                  sums = (l->x.heads * l->p.features * (l->p.dim_qk + 1) + THREADS - 1) / THREADS;
    const size_t shared = rows_bytes(&l->p) * 3 / 2 + GROUP * (size_t)l->p.features * sizeof(float);
    REQUIRE(items <= INT32_MAX && parts <= INT32_MAX && sums <= INT32_MAX, error, LOAM_EMEMORY,
            "batch x heads x len_q: too large for one launch");
    if (items > 0) {
        TRY(cuda_launch("positive_rows_kernel", positive_rows_kernel, items, THREADS, shared, l->a.stream,
                        false, error, *l));
    }
    if (!l->a.grad_z.data && !l->a.grad_log_alpha.data) return LOAM_OK;
    if (parts > 0) {
        TRY(cuda_launch("positive_parts_kernel", positive_parts_kernel, parts, THREADS, 0, l->a.stream, false,
                        error, *l));
    }
    return cuda_launch("positive_sum_kernel", positive_sum_kernel, sums, THREADS, 0, l->a.stream, false,
                       error, *l);
}
