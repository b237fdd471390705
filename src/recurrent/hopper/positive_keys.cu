/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper, back through the steps: the gradients of the keys'
 * logarithms and of the values (src/recurrent/hopper/positive_gradient.cuh). */
#include "src/recurrent/hopper/positive_gradient.cuh"

/* What the queries after the step give: s.sums <- R v + r; dv <- sum_m e^{a - c_1} R, of the warp's
 * channels. */
static __device__ void read_adjoint(const positive_chunk &u, const positive_shared &s,
                                    const __nv_bfloat16 *values, float (&dv)[2][4])
{
    const int channel = (int)threadIdx.x / 32 * 16;
    positive_read_state(u, s, values);
    clear(dv);
    for (int k = 0; k < u.features; k += 16) {
        operand_a<2> keys;
        positive_load_a(keys, s.keys, u.pitch, k);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            operand_b<2> b;
            positive_load_b_rows(b, s.state, u.pitch, channel + 8 * side, k);
            mma(dv[side], keys, b);
        }
    }
}

/* s.pairs <- dw, s.weights and s.queries times inverse, s.normaliser <- r before the step; with the first
 * read s.sums <- da of the queries after the step. */
static __device__ void scale_rows(const positive_chunk &u, const positive_shared &s, bool first)
{
    for (int e = (int)threadIdx.x; e < POSITIVE_STEP * POSITIVE_STEP; e += POSITIVE_THREADS) {
        const int i = e / POSITIVE_STEP, at = i * POSITIVE_PAIRS_PITCH + e % POSITIVE_STEP;
        s.pairs[at] = e % POSITIVE_STEP <= i ? fmaf(s.inverse[i], s.pairs[at], s.shift[i]) : 0;
        s.weights[at] *= s.inverse[i];
    }
    positive_for_features(u, [&](int m, int row) {
        const float after = s.normaliser[m];
        float sum = 0;
#pragma unroll
        for (int i = row; i < row + HALF_STEP; i++) {
            const int at = i * u.pitch + m;
            if (first) s.sums[at] = s.keys[at] * (s.sums[at] + after);
            sum = fmaf(s.queries[at], s.shift[i], sum);
            s.queries[at] *= s.inverse[i];
        }
        sum += positive_other_half(sum);
        __syncwarp();
        if (row == 0) s.normaliser[m] = (first ? after * s.decay[m] : after) + sum;
    });
}

/* s.sums += sum_t E dw of feature m, over every other query; the two threads of a feature add theirs. */
static __device__ void add_pairs(const positive_chunk &u, const positive_shared &s)
{
    const int odd = (int)threadIdx.x % 2;
    for (int m = (int)threadIdx.x / 2; m < (u.features + 63) / 64 * 64; m += POSITIVE_THREADS / 2) {
        const bool there = m < u.features;
        float a[POSITIVE_STEP], sums[POSITIVE_STEP];
#pragma unroll
        for (int j = 0; j < POSITIVE_STEP; j++)
            a[j] = there ? s.a[j * u.pitch + m] : -INFINITY, sums[j] = 0;
        for (int i = odd; i < POSITIVE_STEP; i += 2) {
            const float b = there ? s.b[i * u.pitch + m] : 0, *pairs = s.pairs + i * POSITIVE_PAIRS_PITCH;
#pragma unroll
            for (int j = 0; j < POSITIVE_STEP; j++)
                if (j <= i) sums[j] = fmaf(exp2_fast(a[j] + b), pairs[j], sums[j]);
        }
#pragma unroll
        for (int j = 0; j < POSITIVE_STEP; j++) {
            const float both = sums[j] + __shfl_xor_sync(~0u, sums[j], 1);
            if (there && j % 2 == odd) s.sums[j * u.pitch + m] += both;
        }
    }
}

/* The same as products; a warp has every fourth group of eight features. */
static __device__ void add_products(const positive_chunk &u, const positive_shared &s)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    operand_a<2> pairs;
    positive_load_pairs_transposed(pairs, s.pairs);
    for (int n = (int)threadIdx.x / 32 * 8; n < u.features; n += POSITIVE_WARPS * 8) {
        float d[4] = { 0, 0, 0, 0 };
        operand_b<2> queries;
        positive_load_b(queries, s.b, u.pitch, n);
        mma(d, pairs, queries);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (g + e / 2 * 8) * u.pitch + n + 2 * t + e % 2;
            s.sums[at] = fmaf(s.keys[at], d[e], s.sums[at]);
        }
    }
}

/* dv += sum_t w inverse g. */
static __device__ __forceinline__ void add_values(const positive_shared &s, const __nv_bfloat16 *grad_o,
                                                  float (&dv)[2][4])
{
    operand_a<2> weights;
    operand_b<1> b[2];
    positive_load_pairs_transposed(weights, s.weights);
    load_b<POSITIVE_PITCH>(b, grad_o, 0, (int)threadIdx.x / 32 * 16);
    mma(dv[0], weights, b[0]);
    mma(dv[1], weights, b[1]);
}

static __device__ void store_step(const positive_launch &l, const positive_chunk &u, const positive_shared &s,
                                  int at, const float (&dv)[2][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, channel = (int)threadIdx.x / 32 * 16 + 2 * t;
    const loam_view &to = l.a.grad_v;
    for (int e = (int)threadIdx.x; e < POSITIVE_STEP * u.features; e += POSITIVE_THREADS) {
        const int j = e / u.features, m = e % u.features;
        if (at + j < u.count)
            l.grad_a[positive_query_row(u, at, j, 0) * u.features + m] = s.held[m] >> j & 1
                                                                             ? 0
                                                                             : s.sums[j * u.pitch + m];
    }
    if (!to.data || !positive_warp_works(u)) return;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int j = g + e / 2 * 8, token = u.first + at + j;
        if (at + j >= u.count) continue;
        const float x = dv[e % 2][e / 2 * 2], y = dv[e % 2][e / 2 * 2 + 1];
        if (l.x.sharing > 1) {
            float *row = l.grad_v + positive_query_row(u, at, j, 0) * l.p.dim_v;
            *(float2 *)(row + channel + e % 2 * 8) = make_float2(x, y);
        } else {
            __nv_bfloat16 *row = (__nv_bfloat16 *)to.data +
                                 RECURRENT_AT(to, u.seq.b, positive_key_head(&u.x, u.n), u.seq.first + token);
            *(uint32_t *)(row + channel + e % 2 * 8) = pack_pair<__nv_bfloat16>(x, y);
        }
    }
}

/* The step whose first token is `at`, and all its reads, the first of which is `item`. */
static __device__ void take_step(const positive_launch &l, const positive_chunk &u, const positive_shared &s,
                                 int at, int item)
{
    const __nv_bfloat16 *values = s.v + at * POSITIVE_PITCH;
    int apart = 0;
    float dv[2][4];
    positive_products<true>(u, s.k + at * POSITIVE_PITCH, s.half + at, s.a);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.c_1[m] = l.ends[(u.at * POSITIVE_STEPS + at / POSITIVE_STEP) * u.features + m];
    for (int r = 0; r < (int)u.x.reads; r++, item++) {
        const int place = item % 2 * POSITIVE_STEP * POSITIVE_PITCH;
        const int next = r == (int)u.x.reads - 1 ? item - 2 * r - 1 : item + 1; /* steps go back, reads on */
        copy_async_wait<0>();
        __syncthreads();
        positive_load_item_rows(u, s, next);
        positive_products<false>(u, s.q + place, NULL, s.b);
        positive_load_records(l, u, s, at, r);
        if (r == 0) {
            __syncthreads();
            positive_mark_held(u, s.a, s.held);
            apart = __syncthreads_or(positive_scan(u, s, u.count - at));
        } else {
            __syncthreads();
        }
        positive_weigh<true>(u, s, apart);
        __syncthreads();
        positive_store_weights(u, s, apart);
        positive_pair_products(u, s, s.grad_o + place, values);
        if (r == 0) read_adjoint(u, s, values, dv);
        __syncthreads();
        scale_rows(u, s, r == 0);
        __syncthreads();
        if (apart)
            add_pairs(u, s);
        else
            add_products(u, s);
        add_values(s, s.grad_o + place, dv);
        positive_accumulate(u, s, s.grad_o + place, s.queries, r == 0 ? s.decay : NULL);
        __syncthreads();
    }
    store_step(l, u, s, at, dv);
}

__global__ void __launch_bounds__(POSITIVE_THREADS, 3)
    positive_keys_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    positive_shared_carve(positive_memory, u.features, POSITIVE_GRADIENT, &s);
    if (u.count <= 0) return;
    positive_load_chunk(l, u, s);
    copy_async_commit();
    positive_fetch_state(u, s, l.adjoints);
    copy_async_wait<0>();
    __syncthreads();
    const int last = (u.count - 1) / POSITIVE_STEP;
    positive_load_item_rows(u, s, last * (int)u.x.reads);
    for (int step = last; step >= 0; step--)
        take_step(l, u, s, step * POSITIVE_STEP, step * (int)u.x.reads);
}

/* Elements of the gradient of v: the sum over the heads of z that read a key-value head. */
__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_values_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const int64_t e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, dim = l.p.dim_v, c = e % dim,
                  token = e / dim % l.x.axis, head = e / dim / l.x.axis % l.p.heads_kv,
                  b = e / dim / l.x.axis / l.p.heads_kv;
    const loam_view &to = l.a.grad_v;
    if (b >= positive_entries(l)) return;
    float sum = 0;
    for (int64_t n = head * l.x.sharing; n < (head + 1) * l.x.sharing; n++)
        sum += l.grad_v[((b * l.x.heads + n) * l.x.axis + token) * dim + c];
    store_real(to.data, LOAM_BF16, RECURRENT_AT(to, b, head, token) + c, sum);
}

loam_status positive_keys_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t blocks = l->p.batch * l->x.heads * l->chunks,
                  values = positive_entries(*l) * l->p.heads_kv * l->x.axis * l->p.dim_v,
                  sums = (values + POSITIVE_THREADS - 1) / POSITIVE_THREADS;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_GRADIENT, &s);
    REQUIRE(sums <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    if (blocks == 0) return LOAM_OK;
    TRY(cuda_launch("positive_keys_kernel", positive_keys_kernel, blocks, POSITIVE_THREADS, shared,
                    l->a.stream, true, error, *l));
    return l->x.sharing == 1 || !l->a.grad_v.data || sums == 0
               ? LOAM_OK
               : cuda_launch("positive_values_kernel", positive_values_kernel, sums, POSITIVE_THREADS, 0,
                             l->a.stream, true, error, *l);
}
