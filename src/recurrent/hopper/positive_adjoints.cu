/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper: the gradients of S and s after each chunk. */
#include "src/recurrent/hopper/positive_gradient.cuh"

/* s.queries <- inverse e^{b + c_0 - top} of a step; s.normaliser has shift instead of inverse. c_0: before
 * the chunk. */
static __device__ void weigh(const positive_chunk &u, const positive_shared &s)
{
    positive_for_features(u, [&](int m, int row) {
        float sum = 0;
#pragma unroll
        for (int i = row; i < row + HALF_STEP; i++) {
            const float b = positive_hold_float(s.b[i * u.pitch + m]),
                        query = exp2_fast((float)LOG2E * (b + s.c_0[m] - s.top[i]));
            s.queries[i * u.pitch + m] = query * s.inverse[i];
            sum = fmaf(query, s.shift[i], sum);
        }
        sum += positive_other_half(sum);
        if (row == 0) s.normaliser[m] += sum;
    });
}

/* The sums over the queries of a chunk, relative to c before it. */
__global__ void __launch_bounds__(POSITIVE_THREADS, 3)
    positive_adjoint_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    positive_shared_carve(positive_memory, u.features, POSITIVE_GRADIENT, &s);
    if (u.count <= 0) return;
    for (int e = (int)threadIdx.x; e < POSITIVE_DIM * u.pitch; e += POSITIVE_THREADS)
        s.state[e] = 0;
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.c_0[m] = l.before[u.at * u.features + m], s.normaliser[m] = 0;
    positive_load_item_rows(u, s, 0);
    for (int item = 0; positive_has_item(u, item); item++) {
        const int place = item % 2 * POSITIVE_STEP * POSITIVE_PITCH;
        copy_async_wait<0>();
        __syncthreads();
        positive_load_item_rows(u, s, item + 1);
        positive_products<false>(u, s.q + place, NULL, s.b);
        positive_load_records(l, u, s, item / (int)u.x.reads * POSITIVE_STEP, item % (int)u.x.reads);
        __syncthreads();
        weigh(u, s);
        __syncthreads();
        positive_accumulate(u, s, s.grad_o + place, s.queries, NULL);
    }
    __syncthreads();
    float *to = l.adjoints + positive_state_at(u);
    const int rows = (int)l.p.dim_v;
    for (int e = (int)threadIdx.x; e < (rows + 1) * u.features; e += POSITIVE_THREADS)
        to[e] = e / u.features < rows ? s.state[e / u.features * u.pitch + e % u.features]
                                      : s.normaliser[e % u.features];
}

/* A thread has a number of the state of a head, and goes back through its chunks; the reads of FOLD_AHEAD of
 * them are on their way together. */
enum { FOLD_AHEAD = 8 };

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_unfold_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const int64_t features = l.p.features, rows = l.p.dim_v + 1,
                  e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, m = e % features,
                  row = e / features % rows, item = e / features / rows, n = item % l.x.heads,
                  b = item / l.x.heads;
    if (b >= l.p.batch) return;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, b);
    const loam_const_view &out = l.a.grad_state_out;
    const loam_view &in = l.a.grad_state_in;
    const int64_t chunks = (seq.len + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK;
    float *adjoints = l.adjoints + (item * l.chunks * rows + row) * features + m;
    const float *tops = l.tops + item * l.chunks * features + m,
                *before = l.before + item * l.chunks * features + m;
    float state = out.data ? ((const float *)out.data)[RECURRENT_AT(out, seq.index, n, row) + m] : 0;
    for (int64_t last = chunks - 1; last >= 0; last -= FOLD_AHEAD) {
        float chunk[FOLD_AHEAD], c[FOLD_AHEAD], top[FOLD_AHEAD];
#pragma unroll
        for (int i = 0; i < FOLD_AHEAD; i++) {
            if (last < i) continue;
            chunk[i] = adjoints[(last - i) * rows * features];
            c[i] = before[(last - i) * features], top[i] = tops[(last - i) * features];
        }
#pragma unroll
        for (int i = 0; i < FOLD_AHEAD; i++) {
            if (last < i) continue;
            adjoints[(last - i) * rows * features] = state;
            state = fmaf(state, exp2_fast((float)LOG2E * (c[i] - fmaxf(c[i], top[i]))), chunk[i]);
        }
    }
    if (!in.data) return;
    ((float *)in.data)[RECURRENT_AT(in, seq.index, n, row) + m] = state;
    /* The logarithms that a state is relative to have no gradient. */
    if (row == l.p.dim_v) ((float *)in.data)[RECURRENT_AT(in, seq.index, n, row + 1) + m] = 0;
}

loam_status positive_adjoints_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t heads = l->p.batch * l->x.heads, blocks = heads * l->chunks,
                  numbers = heads * (l->p.dim_v + 1) * l->p.features,
                  folds = (numbers + POSITIVE_THREADS - 1) / POSITIVE_THREADS;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_GRADIENT, &s);
    if (blocks > 0 && l->p.features > POSITIVE_ADJOINTS) {
        TRY(cuda_launch("positive_adjoint_kernel", positive_adjoint_kernel, blocks, POSITIVE_THREADS, shared,
                        l->a.stream, true, error, *l));
    }
    return folds == 0 ? LOAM_OK
                      : cuda_launch("positive_unfold_kernel", positive_unfold_kernel, folds, POSITIVE_THREADS,
                                    0, l->a.stream, true, error, *l);
}
