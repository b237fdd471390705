/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, backward: a thread block has a tile of keys and reads all rows after it. Each warp has
 * 16 of the keys: its strips hold transposed scores [key][row], and dk and dv. */
#include "src/local/cuda/path/backward.cuh"

enum { STAGES = 2, STAGE_TILES = 3, ROWS = 0, GRAD_O = 1, CROSSED = 2 };

struct keys_shared {
    shared_tile keys, values;
    shared_tile tile[STAGES][STAGE_TILES];
    float lse[STAGES][EDGE], delta[STAGES][EDGE];
};

/* A tile of keys paired with a block of rows. crossed: after the tile, the rows cross it or, from a later
 * group, its whole group. The sum for dEg is shared among the tiles of the group: tile j adds the blocks of
 * rows i with i = j modulo the size of a group. */
struct tile_pair {
    path_rows x;
    int copy; /* of the rows' queries, as the tile sees them */
    bool crossed;
};

static __device__ __forceinline__ tile_pair tile_pair_of(const loam_problem &p, const path_grads &w,
                                                         path_rows x, int64_t h, int i, int j)
{
    tile_pair out;
    x.h = h, x.n = i;
    x.first = (int64_t)i * EDGE - x.s.nk + x.s.nq;
    out.x = x;
    out.copy = copy_of(i, j, w.w.group);
    out.crossed = i / w.w.group == j / w.w.group ? j > 0
                                                 : j / w.w.group > 0 && i % w.w.group == j % w.w.group;
    return out;
}

static __device__ __forceinline__ void fill_stage(keys_shared &shared, int stage, const loam_args &a,
                                                  const path_grads &w, const tile_pair &x)
{
    const int64_t slot = query_slot(w, x.x), at = (slot * w.copies + x.copy) * TILE_SIZE;
    fill_slot(shared.tile[stage][ROWS], w.x + at);
    if (x.crossed) fill_slot(shared.tile[stage][CROSSED], w.y + at);
    fill_argument(shared.tile[stage][GRAD_O], a.grad_o, x.x.s.b, x.x.h, x.x.s.q0, x.x.first, x.x.s.nq);
    if (threadIdx.x < EDGE) {
        shared.lse[stage][threadIdx.x] = w.lse[slot * EDGE + threadIdx.x];
        shared.delta[stage][threadIdx.x] = w.delta[slot * EDGE + threadIdx.x];
    }
}

/* Sums of a warp over rows. de: -dE, or -dEg. */
struct key_sums {
    strip dk, dv, de;
};

/* The transposed products s = k . x and g = v . do become p and scale dS; column gains the
 * column sums of dS. */
template <bool DECAY>
static __device__ __forceinline__ void key_gradient(strip &s, strip &g, const loam_args &a,
                                                    const path_rows &x, int j, int m, float scale,
                                                    const float *lse, const float *delta, float (&column)[2])
{
    const int first = threadIdx.x % 32 / 4;
    local_decay_pair key[2];
    if (DECAY) {
        key[0] = decay_at(a, x, (int64_t)j * EDGE + m + first);
        key[1] = decay_at(a, x, (int64_t)j * EDGE + m + first + 8);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = 8 * n + threadIdx.x % 4 * 2 + e % 2;
            float score = s[n][e] * (scale * (float)LOG2E);
            if (DECAY) {
                const local_decay_pair at = decay_at(a, x, (int64_t)x.n * EDGE + c);
                score += (at.hi - key[e / 2].hi) + (at.lo - key[e / 2].lo);
            }
            s[n][e] = exp2_fast(fminf(score - lse[c], 0));
            g[n][e] = s[n][e] * (g[n][e] - delta[c]);
            column[e / 2] += g[n][e];
            g[n][e] *= scale;
        }
    }
}

/* Stores sign times a strip to rows m .. of [64][64] floats. */
static __device__ __forceinline__ void strip_store_float(strip &x, int m, float *to, float sign)
{
    for_pairs(
        x, m,
        [&](int r, int c, float &u, float &v) {
            *(float2 *)(to + r * EDGE + c) = make_float2(sign * u, sign * v);
        });
}

/* Adds the blocks of rows from .. to - 1 of a head to the sums. */
template <bool DECAY>
static __device__ __forceinline__ void add_rows(keys_shared &shared, const loam_problem &p,
                                                const loam_args &a, const path_grads &w, const path_rows &x,
                                                int64_t h, int j, int from, int to, key_sums &sums,
                                                float (&column)[2])
{
    const int m = threadIdx.x / 32 * 16;
    __syncthreads();
    if (from < to) fill_stage(shared, 0, a, w, tile_pair_of(p, w, x, h, from, j));
    copy_async_commit();
    for (int i = from; i < to; i++) {
        const int stage = (i - from) % STAGES;
        const tile_pair pair = tile_pair_of(p, w, x, h, i, j);
        if (i + 1 < to) fill_stage(shared, 1 - stage, a, w, tile_pair_of(p, w, x, h, i + 1, j));
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        shared_tile *tile = shared.tile[stage];
        strip s, g;
        clear(s);
        clear(g);
        product_rows<1, EDGE>(s, shared.keys, 0, m, tile[ROWS]);
        product_rows<1, EDGE>(g, shared.values, 0, m, tile[GRAD_O]);
        key_gradient<DECAY>(s, g, a, pair.x, j, m, (float)p.scale, shared.lse[stage], shared.delta[stage],
                            column);
        product_weights<1, PITCH>(sums.dv, s, tile[GRAD_O], 0);
        product_weights<1, PITCH>(sums.dk, g, tile[ROWS], 0);
        if (pair.crossed) product_transposed_left(sums.de, tile[ROWS], m, tile[CROSSED]);
        __syncthreads();
    }
}

/* Adds the block of rows at the tile itself, of which p and dS were kept. */
static __device__ __forceinline__ void add_own_rows(keys_shared &shared, const loam_args &a,
                                                    const path_grads &w, path_rows x, int64_t h, int j,
                                                    key_sums &sums, float *column)
{
    const int m = threadIdx.x / 32 * 16;
    x.h = h, x.n = j;
    x.first = (int64_t)j * EDGE - x.s.nk + x.s.nq;
    const int64_t slot = query_slot(w, x) * TILE_SIZE;
    __syncthreads();
    fill_slot(shared.tile[0][ROWS], w.own_p + slot);
    fill_argument(shared.tile[0][GRAD_O], a.grad_o, x.s.b, h, x.s.q0, x.first, x.s.nq);
    await_tiles();
    product_transposed_left(sums.dv, shared.tile[0][ROWS], m, shared.tile[0][GRAD_O]);
    if (column && threadIdx.x < EDGE)
        column[threadIdx.x] = w.own_columns[slot / TILE_SIZE * EDGE + threadIdx.x];
}

static __device__ __forceinline__ void put_values(const loam_problem &p, const loam_args &a,
                                                  const path_rows &x, int j, int m, strip &dv)
{
    const int64_t stored = local_stored_keys(&p, &x.s);
    for_pairs(dv, m, [&](int r, int c, float &u, float &v) {
        const int64_t t = (int64_t)j * EDGE + r;
        if (a.grad_v.data && t < stored) {
            bf16 *to = (bf16 *)a.grad_v.data + LOCAL_AT(a.grad_v, x.s.b, x.h_kv, x.s.k0 + t) + c;
            to[0] = __float2bfloat16_rn(t < x.s.nk ? u : 0);
            to[1] = __float2bfloat16_rn(t < x.s.nk ? v : 0);
        }
    });
}

/* Writes the column sums of dS of head h, for the gradient of the log decays; more: adds to those that
 * were written. */
static __device__ __forceinline__ void put_columns(const loam_problem &p, const loam_args &a,
                                                   const path_rows &x, int64_t h, int j, int m,
                                                   const float (&column)[2], const float *own, bool more)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = m + threadIdx.x % 32 / 4 + 8 * half;
        const int64_t t = (int64_t)j * EDGE + r;
        const float sum = quad_sum(column[half]) + own[r];
        if (a.grad_log_decay.data && threadIdx.x % 4 == 0 && t < local_stored_keys(&p, &x.s)) {
            float *to = (float *)a.grad_log_decay.data + LOCAL_AT(a.grad_log_decay, x.s.b, h, x.s.k0 + t);
            *to = t < x.s.nk ? sum + (more ? *to : 0) : 0;
        }
    }
}

/* Gradients of a tile of stored keys beyond those in use: 0. own_column: scratch in shared memory. */
template <bool DECAY>
static __device__ __forceinline__ void put_unused_tile(const loam_problem &p, const loam_args &a,
                                                       const path_rows &x, int j, float *own_column)
{
    const int64_t group = p.heads_q / p.heads_kv;
    const int m = threadIdx.x / 32 * 16;
    const float zero[2] = { 0, 0 };
    strip dv;
    if ((int64_t)j * EDGE >= local_stored_keys(&p, &x.s)) return;
    clear(dv);
    own_column[threadIdx.x % EDGE] = 0;
    __syncthreads();
    put_values(p, a, x, j, m, dv);
    for (int64_t h = x.h_kv * group; DECAY && h < (x.h_kv + 1) * group; h++)
        put_columns(p, a, x, h, j, m, zero, own_column, false);
}

template <bool DECAY>
static __global__ void __launch_bounds__(THREADS, 2)
    path_keys_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const path_grads w)
{
    extern __shared__ __align__(16) unsigned char memory[];
    keys_shared &shared = *(keys_shared *)memory;
    __shared__ float own_column[EDGE];
    const int64_t pairs = p.batch * p.heads_kv, group = p.heads_q / p.heads_kv;
    const int m = threadIdx.x / 32 * 16, j = (int)(blockIdx.x / pairs);
    path_rows x;
    x.h_kv = blockIdx.x % p.heads_kv, x.b = blockIdx.x % pairs / p.heads_kv;
    x.s = local_seq_at(&p, &a, x.b);
    x.base = x.h_kv * w.slots + slot_base(p, x.s, x.b);
    const int tiles = (int)tiles_of(x.s);
    if (j >= tiles) {
        put_unused_tile<DECAY>(p, a, x, j, own_column);
        return;
    }
    const int64_t lead = x.s.nk - x.s.nq;
    const int begins = lead > 0 ? (int)(lead / EDGE) : 0, end = j / w.w.group * w.w.group + w.w.group;
    const int own_end = end < tiles ? end : tiles;
    const int64_t slot = (x.base + j) * TILE_SIZE;
    fill_argument(shared.values, a.v, x.s.b, x.h_kv, x.s.k0, (int64_t)j * EDGE, x.s.nk);
    float column[2];
    key_sums sums;
    clear(sums.dv);
    for (int part = 0; part < 2; part++) {
        const int first = part == 0 ? j + 1 : end, from = first > begins ? first : begins;
        clear(sums.dk);
        clear(sums.de);
        __syncthreads();
        if (part == 0 || end < tiles) {
            fill_slot(shared.keys, (part == 0 ? w.w.kr : w.w.kt) + slot);
            await_tiles();
        }
        for (int64_t h = x.h_kv * group; h < (x.h_kv + 1) * group; h++) {
            column[0] = column[1] = 0;
            __syncthreads();
            own_column[threadIdx.x % EDGE] = 0;
            if (part == 0 && j >= begins)
                add_own_rows(shared, a, w, x, h, j, sums, DECAY ? own_column : NULL);
            add_rows<DECAY>(shared, p, a, w, x, h, j, from, part == 0 ? own_end : tiles, sums, column);
            if (DECAY) {
                __syncthreads();
                put_columns(p, a, x, h, j, m, column, own_column, part > 0);
            }
        }
        if (part == 0 || end < tiles) {
            strip_store_float(sums.dk, m, (part == 0 ? w.dkr : w.dkt) + slot, 1);
            strip_store_float(sums.de, m, (part == 0 ? w.de : w.deg) + slot, -1);
        }
    }
    put_values(p, a, x, j, m, sums.dv);
}

template <bool DECAY>
static loam_status launch(const loam_problem *p, const loam_args *a, const path_grads *g, loam_error *error)
{
    const int64_t blocks = (p->len_kv + EDGE - 1) / EDGE * p->batch * p->heads_kv;
    constexpr size_t shared = sizeof(keys_shared);
    TRY(cuda_allow_shared((const void *)path_keys_kernel<DECAY>, shared, error));
    path_keys_kernel<DECAY><<<(unsigned)blocks, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, *g);
    return cuda_launched("path_keys_kernel", error);
}

loam_status local_path_keys_cuda(const loam_problem *p, const loam_args *a, const path_grads *g,
                                 loam_error *error)
{
    return p->decay ? launch<true>(p, a, g, error) : launch<false>(p, a, g, error);
}
