/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper, forward through the steps: what the divisors were, and the
 * gradients of the queries' logarithms (src/recurrent/hopper/positive_gradient.cuh). */
#include "src/recurrent/hopper/positive_gradient.cuh"

/* s.inverse and s.shift from queries, weights and the products g . S and g . v; s.pairs <- dw. Eight
 * threads of a warp have a row. */
static __device__ void divide(const positive_chunk &u, const positive_shared &s, const positive_launch &l,
                              int at, int r)
{
    const int i = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
    const float inverse = s.divisor[i] > 0 ? 1 / s.divisor[i] : 0;
    float *pairs = s.pairs + i * POSITIVE_PAIRS_PITCH, dot = 0;
    for (int m = lane; m < u.features; m += 8)
        dot = fmaf(s.queries[i * u.pitch + m], s.sums[i * u.pitch + m], dot);
    for (int j = lane; j <= i; j += 8)
        dot = fmaf(s.weights[i * POSITIVE_PAIRS_PITCH + j], pairs[j], dot);
    const float shift = -inverse * (inverse * positive_row_sum(dot));
    for (int j = lane; j < POSITIVE_STEP; j += 8)
        pairs[j] = fmaf(inverse, pairs[j], shift);
    if (lane > 0) return;
    s.inverse[i] = inverse, s.shift[i] = shift;
    if (at + i < u.count)
        l.records[positive_query_row(u, at, i, r)] = make_float4(s.top[i], inverse, shift, 0);
}

/* db of every other row of a step, of feature m. */
static __device__ void store_gradients(const positive_chunk &u, const positive_shared &s,
                                       const positive_launch &l, int at, int r)
{
    for (int m = (int)threadIdx.x / 2; m < u.features; m += POSITIVE_THREADS / 2) {
        float a[POSITIVE_STEP];
#pragma unroll
        for (int j = 0; j < POSITIVE_STEP; j++)
            a[j] = s.a[j * u.pitch + m];
        for (int i = (int)threadIdx.x % 2; i < POSITIVE_STEP && at + i < u.count; i += 2) {
            const float b = s.b[i * u.pitch + m], *pairs = s.pairs + i * POSITIVE_PAIRS_PITCH;
            const float state = fmaf(s.inverse[i], s.sums[i * u.pitch + m], s.shift[i] * s.s_0[m]);
            float sum = s.queries[i * u.pitch + m] * state;
#pragma unroll
            for (int j = 0; j < POSITIVE_STEP; j++)
                if (j <= i) sum = fmaf(exp2_fast(a[j] + b), pairs[j], sum);
            l.grad_b[positive_query_row(u, at, i, r) * u.features + m] = s.held[m] >> i & 1 ? 0 : sum;
        }
    }
}

static __device__ void begin(const positive_launch &l, const positive_chunk &u, const positive_shared &s)
{
    positive_load_chunk(l, u, s);
    positive_load_item_rows(u, s, 0);
    positive_fetch_state(u, s, l.states);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.c_1[m] = l.before[u.at * u.features + m], s.s_1[m] = s.normaliser[m];
    copy_async_wait<0>();
    __syncthreads();
}

__global__ void __launch_bounds__(POSITIVE_THREADS, 3)
    positive_queries_kernel(const __grid_constant__ positive_launch l)
{
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    positive_shared_carve(positive_memory, u.features, POSITIVE_GRADIENT, &s);
    if (u.count <= 0) return;
    begin(l, u, s);
    int item = 0;
    for (int at = 0; at < u.count; at += POSITIVE_STEP) {
        const __nv_bfloat16 *values = s.v + at * POSITIVE_PITCH;
        positive_products<true>(u, s.k + at * POSITIVE_PITCH, s.half + at, s.a);
        for (int r = 0; r < (int)u.x.reads; r++, item++) {
            const int place = item % 2 * POSITIVE_STEP * POSITIVE_PITCH;
            positive_load_item_rows(u, s, item + 1);
            positive_products<false>(u, s.q + place, NULL, s.b);
            __syncthreads();
            positive_mark_held(u, s.b, s.held);
            if (r == 0) positive_scan(u, s, u.count - at);
            __syncthreads();
            positive_weigh<false>(u, s);
            positive_read_state(u, s, s.grad_o + place);
            positive_pair_products(u, s, s.grad_o + place, values);
            copy_async_wait<0>();
            __syncthreads();
            divide(u, s, l, at, r);
            __syncthreads();
            store_gradients(u, s, l, at, r);
            __syncthreads();
        }
        positive_accumulate(u, s, values, s.keys, s.decay);
    }
}

loam_status positive_queries_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t blocks = l->p.batch * l->x.heads * l->chunks;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_GRADIENT, &s);
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_queries_kernel", positive_queries_kernel, blocks,
                                     POSITIVE_THREADS, shared, l->a.stream, false, error, *l);
}
