/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper, forward through the steps: what the divisors were, and the
 * gradients of the queries' logarithms (src/recurrent/hopper/positive_gradient.cuh). Where features are few
 * enough for accumulators, the gradients of S and s of the chunk alone, too. */
#include "src/recurrent/hopper/positive_gradient.cuh"

/* s.inverse and s.shift from queries, weights and the products g . S and g . v; s.pairs <- dw. Eight
 * threads of a warp have a row. */
static __device__ void divide(const positive_chunk &u, const positive_shared &s, const positive_launch &l,
                              int at, int r)
{
    const int i = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
    const float *weights = s.weights + i * POSITIVE_PAIRS_PITCH,
                divisor = s.divisor[i] + positive_row_sum(weights[lane] + weights[lane + 8]),
                inverse = divisor > 0 ? 1 / divisor : 0;
    float *pairs = s.pairs + i * POSITIVE_PAIRS_PITCH, dot = 0;
    for (int m = lane; m < u.features; m += 8)
        dot = fmaf(s.queries[i * u.pitch + m], s.sums[i * u.pitch + m], dot);
    for (int j = lane; j <= i; j += 8)
        dot = fmaf(weights[j], pairs[j], dot);
    const float shift = -inverse * (inverse * positive_row_sum(dot));
    for (int j = lane; j < POSITIVE_STEP; j += 8)
        pairs[j] = j <= i ? fmaf(inverse, pairs[j], shift) : 0;
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

/* The same with the sums over pairs as products; a warp has every fourth group of eight features. */
static __device__ void store_products(const positive_chunk &u, const positive_shared &s,
                                      const positive_launch &l, int at, int r)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    operand_a<2> pairs;
    positive_load_a(pairs, s.pairs, POSITIVE_PAIRS_PITCH, 0);
    for (int n = (int)threadIdx.x / 32 * 8; n < u.features; n += POSITIVE_WARPS * 8) {
        float d[4] = { 0, 0, 0, 0 };
        operand_b<2> keys;
        positive_load_b(keys, s.keys, u.pitch, n);
        mma(d, pairs, keys);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = g + e / 2 * 8, m = n + 2 * t + e % 2, x = i * u.pitch + m;
            const float state = fmaf(s.inverse[i], s.sums[x], s.shift[i] * s.s_0[m]);
            d[e] = s.held[m] >> i & 1 ? 0 : fmaf(s.queries[x], state, s.b[x] * d[e]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (at + g + 8 * e >= u.count) continue;
            float *to = l.grad_b + positive_query_row(u, at, g + 8 * e, r) * u.features + n + 2 * t;
            *(float2 *)to = make_float2(d[2 * e], d[2 * e + 1]);
        }
    }
}

/* c before the step. */
static __device__ void store_ends(const positive_chunk &u, const positive_shared &s, const positive_launch &l,
                                  int at)
{
    float *to = l.ends + (u.at * POSITIVE_STEPS + at / POSITIVE_STEP) * u.features;
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        to[m] = s.c_0[m];
}

/* The step's part of the gradients of S, of the warp's 16 channels, and of s, relative to c before the chunk:
 * queries times f = e^{c before the chunk - c_0}. */
static __device__ void add_adjoints(const positive_chunk &u, const positive_shared &s,
                                    const __nv_bfloat16 *grad_o, float (&adjoint)[8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    operand_a<1> a;
    positive_load_transposed(a, grad_o, (int)threadIdx.x / 32 * 16);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (8 * n >= u.features) continue;
        const int m = 8 * n + g;
        const float f = exp2_fast((float)LOG2E * (s.start[m] - s.c_0[m]));
        operand_b<2> b;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 2 * t + 8 * e;
            const float *query = s.queries + i * u.pitch + m;
            uint32_t part[2];
            split_pair(part, query[0] * (f * s.inverse[i]), query[u.pitch] * (f * s.inverse[i + 1]));
            b.part[0][e] = part[0], b.part[1][e] = part[1];
        }
        mma(adjoint[n], a, b);
    }
    positive_for_features(u, [&](int m, int row) {
        float sum = 0;
#pragma unroll
        for (int i = row; i < row + HALF_STEP; i++)
            sum = fmaf(s.queries[i * u.pitch + m], s.shift[i], sum);
        sum += positive_other_half(sum);
        if (row == 0) s.reads[m] = fmaf(exp2_fast((float)LOG2E * (s.start[m] - s.c_0[m])), sum, s.reads[m]);
    });
}

static __device__ void store_adjoints(const positive_chunk &u, const positive_shared &s,
                                      const positive_launch &l, const float (&adjoint)[8][4])
{
    float *to = l.adjoints + positive_state_at(u);
    if (positive_warp_works(u)) positive_store_state<4>(u, to, adjoint);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        to[l.p.dim_v * u.features + m] = s.reads[m];
}

static __device__ void begin(const positive_launch &l, const positive_chunk &u, const positive_shared &s)
{
    positive_load_chunk(l, u, s);
    positive_load_item_rows(u, s, 0);
    positive_fetch_state(u, s, l.states);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.c_1[m] = s.start[m] = l.before[u.at * u.features + m], s.s_1[m] = s.normaliser[m], s.reads[m] = 0;
    copy_async_wait<0>();
    __syncthreads();
}

template <bool ADJOINTS>
__global__ void __launch_bounds__(POSITIVE_THREADS, 3)
    positive_queries_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    positive_shared_carve(positive_memory, u.features, POSITIVE_GRADIENT, &s);
    if (u.count <= 0) return;
    begin(l, u, s);
    int item = 0, apart = 0;
    float adjoint[8][4];
    clear(adjoint);
    for (int at = 0; at < u.count; at += POSITIVE_STEP) {
        const __nv_bfloat16 *values = s.v + at * POSITIVE_PITCH;
        positive_products<true>(u, s.k + at * POSITIVE_PITCH, s.half + at, s.a);
        for (int r = 0; r < (int)u.x.reads; r++, item++) {
            const int place = item % 2 * POSITIVE_STEP * POSITIVE_PITCH;
            positive_load_item_rows(u, s, item + 1);
            positive_products<false>(u, s.q + place, NULL, s.b);
            __syncthreads();
            positive_mark_held(u, s.b, s.held);
            if (r == 0)
                apart = __syncthreads_or(positive_scan(u, s, u.count - at));
            else
                __syncthreads();
            if (r == 0) store_ends(u, s, l, at);
            positive_weigh<false>(u, s, apart);
            __syncthreads();
            positive_store_weights(u, s, apart);
            positive_read_state(u, s, s.grad_o + place);
            positive_pair_products(u, s, s.grad_o + place, values);
            copy_async_wait<0>();
            __syncthreads();
            divide(u, s, l, at, r);
            __syncthreads();
            if (apart)
                store_gradients(u, s, l, at, r);
            else
                store_products(u, s, l, at, r);
            if (ADJOINTS) add_adjoints(u, s, s.grad_o + place, adjoint);
            __syncthreads();
        }
        positive_accumulate(u, s, values, s.keys, s.decay);
    }
    if (ADJOINTS) store_adjoints(u, s, l, adjoint);
}

loam_status positive_queries_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t blocks = l->p.batch * l->x.heads * l->chunks;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_GRADIENT, &s);
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_queries_kernel",
                                     l->p.features <= POSITIVE_ADJOINTS ? positive_queries_kernel<true>
                                                                        : positive_queries_kernel<false>,
                                     blocks, POSITIVE_THREADS, shared, l->a.stream, true, error, *l);
}
