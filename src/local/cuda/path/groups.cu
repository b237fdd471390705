/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, backward: from dKt and dEg back through the crossings within groups
 * (path_group_kernel). */
#include "src/local/cuda/path/backward.cuh"

struct crossing_shared {
    shared_tile e_hi, e_lo;
};

static __device__ __forceinline__ void load_crossing(crossing_shared &shared, const path_grads &w,
                                                     int64_t slot)
{
    __syncthreads();
    fill_slot(shared.e_hi, w.w.e_hi + slot * TILE_SIZE);
    fill_slot(shared.e_lo, w.w.e_lo + slot * TILE_SIZE);
    await_tiles();
}

/* Keys of tile n, from Kr, cross the tiles after it by k' = k - k E^T; then back, dk = dk' - dk' E. dKr
 * gains the result. */
static __device__ void back_through_keys(crossing_shared &shared, const path_grads &w, int64_t base,
                                         int64_t n, int64_t last, int m)
{
    const int64_t slot = base + n;
    strip x, sum;
    strip_load(x, m, w.w.kr + slot * TILE_SIZE, EDGE);
    for (int64_t j = n + 1; j <= last; j++) {
        load_crossing(shared, w, base + j);
        strip_store(x, m, w.key_x + key_crossing(w, slot, n, j), NULL, EDGE);
        cross_tile_transposed(x, shared.e_hi, shared.e_lo);
    }
    strip_load_float(x, m, w.dkt + slot * TILE_SIZE);
    for (int64_t j = last; j > n; j--) {
        load_crossing(shared, w, base + j);
        strip_store(x, m, w.key_y + key_crossing(w, slot, n, j), NULL, EDGE);
        cross_tile(x, shared.e_hi, shared.e_lo);
    }
    float *dkr = w.dkr + slot * TILE_SIZE;
    strip_load_float(sum, m, dkr);
#pragma unroll
    for (int e = 0; e < 32; e++)
        sum[e / 4][e % 4] += x[e / 4][e % 4];
    for_pairs(sum, m,
              [&](int r, int c, float &u, float &v) { *(float2 *)(dkr + r * EDGE + c) = make_float2(u, v); });
}

/* The rows of I cross the tiles of a group from the last, x' = x - x E, and Eg = I - x; then back,
 * with dx = -dEg. */
static __device__ void back_through_group(crossing_shared &shared, const path_grads &w, int64_t base,
                                          int64_t first, int64_t last, int m)
{
    strip x, part;
    for_pairs(x, m, [&](int r, int c, float &u, float &v) { u = r == c, v = r == c + 1; });
    for (int64_t j = last; j >= first; j--) {
        load_crossing(shared, w, base + j);
        strip_store(x, m, w.key_x + key_crossing(w, base + j, j, j), NULL, EDGE);
        cross_tile(x, shared.e_hi, shared.e_lo);
    }
    clear(x);
    for (int64_t j = first; j <= last; j++) {
        strip_load_float(part, m, w.deg + (base + j) * TILE_SIZE);
#pragma unroll
        for (int e = 0; e < 32; e++)
            x[e / 4][e % 4] -= part[e / 4][e % 4];
    }
    for (int64_t j = first; j <= last; j++) {
        load_crossing(shared, w, base + j);
        strip_store(x, m, w.key_y + key_crossing(w, base + j, j, j), NULL, EDGE);
        cross_tile_transposed(x, shared.e_hi, shared.e_lo);
    }
}

static __global__ void __launch_bounds__(THREADS)
    path_groups_back_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const path_grads w)
{
    __shared__ __align__(16) crossing_shared shared;
    const int64_t tiles = (p.len_kv + EDGE - 1) / EDGE, index = blockIdx.x;
    const int64_t n = index % tiles, b = index / tiles % p.batch, h = index / tiles / p.batch;
    const local_seq s = local_seq_at(&p, &a, b);
    const int m = threadIdx.x / 32 * 16;
    const int64_t first = n / w.w.group * w.w.group, last = first + w.w.group - 1;
    const bool whole = blockIdx.y == 1;
    if (last + 1 >= tiles_of(s) || (whole && (n != first || n == 0))) return;
    const int64_t base = h * w.slots + slot_base(p, s, b);
    if (whole)
        back_through_group(shared, w, base, first, last, m);
    else
        back_through_keys(shared, w, base, n, last, m);
}

loam_status local_path_groups_cuda(const loam_problem *p, const loam_args *a, const path_grads *g,
                                   loam_error *error)
{
    const int64_t tiles = (p->len_kv + EDGE - 1) / EDGE;
    if (tiles <= g->w.group) return LOAM_OK;
    const dim3 blocks((unsigned)(tiles * p->batch * p->heads_kv), 2);
    path_groups_back_kernel<<<blocks, THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, *g);
    return cuda_launched("path_groups_back_kernel", error);
}
