/* SPDX-License-Identifier: MIT
 * The map of positive random features on GPUs: blocks of 64 tokens begin with a running maximum of their own
 * keys, and take in that of the blocks before them once all have theirs. */
#include "src/recurrent/cuda/positive.cuh"

/* k = e^{a - c} and, in the place of the gates, c as the block alone has it. */
__global__ void __launch_bounds__(THREADS) positive_keys_kernel(const __grid_constant__ launch l)
{
    extern __shared__ double rows[];
    __shared__ double half[GROUP];
    const positive x = positive_here(l);
    const int features = (int)l.p.features;
    const int64_t item = blockIdx.x / l.blocks, n = item % x.heads;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, item / x.heads);
    double c[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++)
        c[e] = -POSITIVE_BOUND;
    for (int step = 0; step < BLOCK / GROUP; step++) {
        const group g = group_at(seq, blockIdx.x % l.blocks, step);
        if (g.count == 0) return;
        load_rows(x, g, true, n, positive_key_head(&x, n), rows);
        half_norms(rows, (int)l.p.dim_qk, half);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int m = (int)threadIdx.x + e * THREADS;
            double a[GROUP];
            if (m >= features) continue;
            logarithms(x, true, n, m, rows, half, a);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i >= g.count) continue;
                const double held = positive_hold(a[i]);
                c[e] = fmax(c[e], ceil(held));
                features_at(x, x.k, g, n, i, 0)[m] = expf((float)(held - c[e]));
                features_at(x, x.gate, g, n, i, 0)[m] = (float)c[e];
            }
        }
    }
}

/* c before each block, and at the end. */
__global__ void __launch_bounds__(THREADS) positive_maxima_kernel(const __grid_constant__ launch l)
{
    const positive x = positive_here(l);
    const int64_t n = blockIdx.x % x.heads, b = blockIdx.x / x.heads;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, b);
    for (int64_t m = threadIdx.x; m < l.p.features; m += THREADS) {
        float c = (float)positive_start(&x, &seq, n, m);
        for (int64_t block = 0; block * BLOCK < seq.len; block++) {
            const int64_t end = (block + 1) * BLOCK, last = (end < seq.len ? end : seq.len) - 1;
            l.before[(blockIdx.x * l.blocks + block) * l.p.features + m] = c;
            c = fmaxf(c, ((const float *)x.gate)[positive_row(&x, &seq, n, last, 0) * l.p.features + m]);
        }
        if (l.p.pass != LOAM_BACKWARD) positive_end(&x, &seq, n, m, (double)c);
    }
}

/* Feature m of the keys and gates of a group, relative to all tokens before; c[i] <- c of each token, `last`
 * that before them, and after. */
static __device__ void join_keys(const positive &x, const group &g, int64_t n, int m, float &last,
                                 float (&c)[GROUP])
{
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (i >= g.count) continue;
        float *k = features_at(x, x.k, g, n, i, 0) + m, *gate = features_at(x, x.gate, g, n, i, 0) + m;
        const float own = *gate;
        c[i] = fmaxf(own, last);
        *gate = last - c[i];
        *k *= expf(own - c[i]);
        last = c[i];
        for (int64_t r = 1; r < x.reads; r++) {
            features_at(x, x.k, g, n, i, r)[m] = 0;
            features_at(x, x.gate, g, n, i, r)[m] = 0;
        }
    }
}

/* tops[0][i] <- the largest of the threads' numbers for token i. */
static __device__ void block_tops(const double (&mine)[GROUP], double (*tops)[GROUP])
{
    const int i = (int)threadIdx.x;
#pragma unroll
    for (int t = 0; t < GROUP; t++) {
        double most = mine[t];
        for (int step = 16; step > 0; step /= 2)
            most = fmax(most, __shfl_xor_sync(~0u, most, step));
        if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32][t] = most;
    }
    __syncthreads();
    for (int warp = 1; i < GROUP && warp < THREADS / 32; warp++)
        tops[0][i] = fmax(tops[0][i], tops[warp][i]);
    __syncthreads();
}

/* q = e^{b + c - max} of a group. */
static __device__ void map_queries(const positive &x, const group &g, int64_t n, int64_t r,
                                   const float (&c)[EACH][GROUP], double *rows, double (*tops)[GROUP])
{
    const int features = (int)x.p->features;
    double b[EACH][GROUP], mine[GROUP];
    load_rows(x, g, false, n, positive_query_head(&x, n, r), rows);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        mine[i] = -HUGE_VAL;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int m = (int)threadIdx.x + e * THREADS;
        if (m >= features) continue;
        logarithms(x, false, n, m, rows, NULL, b[e]);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            if (i >= g.count) continue;
            b[e][i] = positive_hold(b[e][i]) + (double)c[e][i];
            mine[i] = fmax(mine[i], b[e][i]);
        }
    }
    block_tops(mine, tops);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int m = (int)threadIdx.x + e * THREADS;
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (m < features && i < g.count)
                features_at(x, x.q, g, n, i, r)[m] = expf((float)(b[e][i] - tops[0][i]));
    }
}

__global__ void __launch_bounds__(THREADS, 1) positive_join_kernel(const __grid_constant__ launch l)
{
    extern __shared__ double rows[];
    __shared__ double tops[THREADS / 32][GROUP];
    const positive x = positive_here(l);
    const int64_t item = blockIdx.x / l.blocks, n = item % x.heads;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, item / x.heads);
    float last[EACH], c[EACH][GROUP];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t m = threadIdx.x + e * THREADS;
        last[e] = m < l.p.features ? l.before[blockIdx.x * l.p.features + m] : 0;
    }
    for (int step = 0; step < BLOCK / GROUP; step++) {
        const group g = group_at(seq, blockIdx.x % l.blocks, step);
        if (g.count == 0) return;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int m = (int)threadIdx.x + e * THREADS;
            if (m < l.p.features) join_keys(x, g, n, m, last[e], c[e]);
        }
        for (int64_t r = 0; r < x.reads; r++)
            map_queries(x, g, n, r, c, rows, tops);
    }
}

loam_status positive_map_cuda(const launch *l, loam_error *error)
{
    const int64_t heads = l->p.batch * l->x.heads, blocks = heads * l->blocks;
    const size_t shared = rows_bytes(&l->p);
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    if (heads == 0) return LOAM_OK;
    if (blocks > 0) {
        TRY(cuda_launch("positive_keys_kernel", positive_keys_kernel, blocks, THREADS, shared, l->a.stream,
                        false, error, *l));
    }
    TRY(cuda_launch("positive_maxima_kernel", positive_maxima_kernel, heads, THREADS, 0, l->a.stream, false,
                    error, *l));
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_join_kernel", positive_join_kernel, blocks, THREADS, shared,
                                     l->a.stream, false, error, *l);
}
