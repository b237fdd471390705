/* SPDX-License-Identifier: MIT
 * States of positive random features on Hopper: of each chunk alone, then, chunk after chunk, before each. */
#include "src/recurrent/hopper/positive.cuh"

/* S, s and c of the keys of a chunk. */
template <int TILES>
__global__ void __launch_bounds__(POSITIVE_THREADS, 16 / TILES)
    positive_chunk_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    float state[2 * TILES][4];
    positive_shared_carve(positive_memory, u.features, POSITIVE_KEYS, &s);
    if (u.count <= 0) return;
    positive_load_chunk(l, u, s);
    copy_async_commit();
    clear(state);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.c_1[m] = (float)-POSITIVE_BOUND, s.s_1[m] = 0;
    copy_async_wait<0>();
    __syncthreads();
    for (int at = 0; at < u.count; at += POSITIVE_STEP) {
        positive_products<true>(u, s.k + at * POSITIVE_PITCH, s.half + at, s.a);
        __syncthreads();
        positive_scan(u, s, u.count - at);
        __syncthreads();
        positive_add<TILES>(u, s, s.v + at * POSITIVE_PITCH, state);
    }
    float *to = l.states + positive_state_at(u);
    if (positive_warp_works(u)) positive_store_state<TILES>(u, to, state);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS) {
        to[l.p.dim_v * u.features + m] = s.s_1[m];
        l.tops[u.at * u.features + m] = s.c_1[m];
    }
}

/* Of a sequence of chunks: one number of the state, S or s, and c of its feature. */
struct positive_fold {
    float c, state;
};

static __device__ __forceinline__ void positive_fold_chunk(positive_fold &f, float top, float chunk)
{
    const float c = fmaxf(f.c, top);
    f.state = f.state * exp2_fast((float)LOG2E * (f.c - c)) + chunk * exp2_fast((float)LOG2E * (top - c));
    f.c = c;
}

/* A thread has a number of the state of a head; the reads of FOLD_AHEAD chunks are on their way together. */
enum { FOLD_AHEAD = 8 };

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_fold_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const int64_t features = l.p.features, rows = l.p.dim_v + 1,
                  e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, m = e % features,
                  row = e / features % rows, item = e / features / rows, n = item % l.x.heads,
                  b = item / l.x.heads;
    if (b >= l.p.batch) return;
    positive x = l.x;
    x.p = &l.p, x.a = &l.a;
    const recurrent_seq seq = recurrent_seq_at(&l.p, &l.a, b);
    const loam_const_view &in = l.a.state_in;
    const loam_view &out = l.a.state_out;
    const int64_t chunks = (seq.len + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK;
    float *states = l.states + (item * l.chunks * rows + row) * features + m;
    const float *tops = l.tops + item * l.chunks * features + m;
    float *before = l.before + item * l.chunks * features + m;
    positive_fold f = { (float)positive_start(&x, &seq, n, m), 0 };
    if (in.data) f.state = ((const float *)in.data)[RECURRENT_AT(in, seq.index, n, row) + m];
    for (int64_t first = 0; first < chunks; first += FOLD_AHEAD) {
        float chunk[FOLD_AHEAD], top[FOLD_AHEAD];
#pragma unroll
        for (int i = 0; i < FOLD_AHEAD; i++) {
            if (first + i >= chunks) continue;
            chunk[i] = states[(first + i) * rows * features], top[i] = tops[(first + i) * features];
        }
#pragma unroll
        for (int i = 0; i < FOLD_AHEAD; i++) {
            if (first + i >= chunks) continue;
            states[(first + i) * rows * features] = f.state;
            if (row == l.p.dim_v) before[(first + i) * features] = f.c;
            positive_fold_chunk(f, top[i], chunk[i]);
        }
    }
    if (l.p.pass == LOAM_BACKWARD || !out.data) return;
    ((float *)out.data)[RECURRENT_AT(out, seq.index, n, row) + m] = f.state;
    if (row == l.p.dim_v) positive_end(&x, &seq, n, m, (double)f.c);
}

loam_status positive_states_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t heads = l->p.batch * l->x.heads, blocks = heads * l->chunks,
                  numbers = heads * (l->p.dim_v + 1) * l->p.features,
                  folds = (numbers + POSITIVE_THREADS - 1) / POSITIVE_THREADS;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_KEYS, &s);
    REQUIRE(blocks <= INT32_MAX && folds <= INT32_MAX, error, LOAM_EMEMORY,
            "batch x heads x len_q: too large for one launch");
    if (blocks > 0) TRY(POSITIVE_LAUNCH(positive_chunk_kernel, blocks, shared, error, *l));
    return folds == 0 ? LOAM_OK
                      : cuda_launch("positive_fold_kernel", positive_fold_kernel, folds, POSITIVE_THREADS, 0,
                                    l->a.stream, true, error, *l);
}
