/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs: computes the arrays of the tiles of keys, and those of their groups. */
#include "src/local/cuda/path/common.cuh"

/* Floats from one row to the next: rows four apart are 16 banks apart. */
enum { FLOAT_PITCH = EDGE + 4 };

struct prepare_shared {
    shared_tile k, n, c_hi, c_lo; /* c: hi and lo of strict(N K^T), then of W */
    union {
        float nn[EDGE][FLOAT_PITCH]; /* N N^T, until R is computed */
        shared_tile b[2];            /* B in hi and lo parts */
    };
    float r[EDGE][FLOAT_PITCH];
    float beta[EDGE];
};

/* R = (I + diag(beta) strict(N N^T))^-1 by forward substitution,
 * R_i = e_i - beta_i sum_{j < i} (n_i . n_j) R_j. Two neighbouring threads have one column and share its
 * sums. Rows of R that are not computed yet are 0. */
static __device__ __forceinline__ void substitute_forward(prepare_shared &x)
{
    const int c = threadIdx.x / 2, half = threadIdx.x % 2;
    for (int j = half; j < EDGE; j += 2)
        x.r[j][c] = 0;
    __syncwarp();
    for (int i = 0; i < EDGE; i++) {
        float sum[4] = { 0, 0, 0, 0 };
#pragma unroll 4
        for (int j = 4 * half; j < i; j += 8) {
            const float4 n = *(const float4 *)&x.nn[i][j];
            sum[0] += n.x * x.r[j][c];
            sum[1] += n.y * x.r[j + 1][c];
            sum[2] += n.z * x.r[j + 2][c];
            sum[3] += n.w * x.r[j + 3][c];
        }
        float total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        if (half == 0) x.r[i][c] = i < c ? 0 : i == c ? 1 : -x.beta[i] * total;
        __syncwarp();
    }
}

/* lam <- the warp's rows of Lam = R diag(beta). */
static __device__ __forceinline__ void load_lam(strip &lam, const prepare_shared &x, int m)
{
    for_pairs(
        lam, m,
        [&](int r, int c, float &u, float &v) {
            u = x.r[r][c] * x.beta[c];
            v = x.r[r][c + 1] * x.beta[c + 1];
        });
}

/* N N^T and strict(N K^T), then R. */
static __device__ __forceinline__ void invert_reflections(prepare_shared &x, int m)
{
    strip part;
    clear(part);
    product_rows<1, EDGE>(part, x.n, 0, m, x.n);
    for_pairs(part, m, [&](int r, int c, float &u, float &v) { x.nn[r][c] = u, x.nn[r][c + 1] = v; });
    clear(part);
    product_rows<1, EDGE>(part, x.n, 0, m, x.k);
    for_pairs(part, m, [&](int r, int c, float &u, float &v) { u = c < r ? u : 0, v = c + 1 < r ? v : 0; });
    strip_store(part, m, x.c_hi, x.c_lo, PITCH);
    __syncthreads();
    substitute_forward(x);
    __syncthreads();
}

/* B = Lam strict(N K^T) and W = Lam N, stored in global memory and, for the products that follow, in x.b and
 * in x.c_hi and x.c_lo. */
static __device__ __forceinline__ void store_b_and_w(prepare_shared &x, const path_arrays &w, int64_t slot,
                                                     int m)
{
    strip part, lam;
    load_lam(lam, x, m);
    clear(part);
    product_weights<1, PITCH>(part, lam, x.c_lo, 0);
    product_weights<2, PITCH>(part, lam, x.c_hi, 0);
    strip_store(part, m, x.b[0], x.b[1], PITCH);
    strip_store(part, m, w.b_hi + slot, w.b_lo + slot, EDGE);
    clear(part);
    product_weights<2, PITCH>(part, lam, x.n, 0);
    __syncthreads();
    strip_store(part, m, x.c_hi, x.c_lo, PITCH);
    strip_store(part, m, w.w_hi + slot, w.w_lo + slot, EDGE);
    __syncthreads();
}

/* Kr = K - B^T N and E = N^T W. */
static __device__ __forceinline__ void store_keys_and_crossing(prepare_shared &x, const path_arrays &w,
                                                               int64_t slot, int m)
{
    strip part, keys;
    clear(part);
    product_transposed_left(part, x.b[1], m, x.n);
    product_transposed_left(part, x.b[0], m, x.n);
    strip_load(keys, m, x.k, PITCH);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        keys[e][0] -= part[e][0], keys[e][1] -= part[e][1], keys[e][2] -= part[e][2],
            keys[e][3] -= part[e][3];
    }
    strip_store(keys, m, w.kr + slot, NULL, EDGE);
    clear(part);
    product_transposed_left(part, x.n, m, x.c_lo);
    product_transposed_left(part, x.n, m, x.c_hi);
    strip_store(part, m, w.e_hi + slot, w.e_lo + slot, EDGE);
}

/* One thread block for each tile of each sequence and key-value head. */
static __global__ void __launch_bounds__(THREADS)
    path_tile_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const path_arrays w)
{
    extern __shared__ __align__(16) unsigned char memory[];
    prepare_shared &x = *(prepare_shared *)memory;
    const int64_t tiles = (p.len_kv + EDGE - 1) / EDGE, index = blockIdx.x;
    const int64_t n = index % tiles, b = index / tiles % p.batch, h = index / tiles / p.batch;
    const local_seq s = local_seq_at(&p, &a, b);
    const int m = threadIdx.x / 32 * 16;
    if (n >= tiles_of(s)) return;
    const int64_t slot = (h * w.slots + slot_base(p, s, b) + n) * TILE_SIZE;
    fill_argument(x.k, a.k, s.b, h, s.k0, n * EDGE, s.nk);
    fill_argument(x.n, a.w, s.b, h, s.k0, n * EDGE, s.nk);
    if (threadIdx.x < EDGE) {
        const int64_t t = n * EDGE + threadIdx.x;
        x.beta[threadIdx.x] = t < s.nk ? ((const float *)a.beta.data)[LOCAL_AT(a.beta, s.b, h, s.k0 + t)] : 0;
    }
    await_tiles();
    invert_reflections(x, m);
    if (w.r_hi) {
        strip r;
        for_pairs(r, m, [&](int i, int c, float &u, float &v) { u = x.r[i][c], v = x.r[i][c + 1]; });
        strip_store(r, m, w.r_hi + slot, w.r_lo + slot, EDGE);
    }
    store_b_and_w(x, w, slot, m);
    store_keys_and_crossing(x, w, slot, m);
}

/* With blockIdx.y = 0, Kt: the keys of tile n cross the tiles after it in their group. With blockIdx.y = 1,
 * Eg of a group: the rows of I cross all its tiles and become X; Eg = I - X. */
static __global__ void __launch_bounds__(THREADS)
    path_group_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const path_arrays w)
{
    __shared__ __align__(16) shared_tile e_hi, e_lo;
    const int64_t tiles = (p.len_kv + EDGE - 1) / EDGE, index = blockIdx.x;
    const int64_t n = index % tiles, b = index / tiles % p.batch, h = index / tiles / p.batch;
    const local_seq s = local_seq_at(&p, &a, b);
    const int m = threadIdx.x / 32 * 16;
    const int64_t first = n / w.group * w.group, last = first + w.group - 1;
    const bool whole = blockIdx.y == 1;
    /* No rows lie beyond the last group, and none cross the first. */
    if (last + 1 >= tiles_of(s) || (whole && (n != first || n == 0))) return;
    const int64_t base = h * w.slots + slot_base(p, s, b), slot = (base + n) * TILE_SIZE;
    strip x;
    if (whole)
        for_pairs(x, m, [&](int r, int c, float &u, float &v) { u = r == c, v = r == c + 1; });
    else
        strip_load(x, m, w.kr + slot, EDGE);
    for (int64_t step = 0; step < (whole ? w.group : last - n); step++) {
        const int64_t at = (base + (whole ? last - step : n + 1 + step)) * TILE_SIZE;
        __syncthreads();
        fill_slot(e_hi, w.e_hi + at);
        fill_slot(e_lo, w.e_lo + at);
        await_tiles();
        if (whole)
            cross_tile(x, e_hi, e_lo);
        else
            cross_tile_transposed(x, e_hi, e_lo);
    }
    if (whole) {
        for_pairs(x, m, [&](int r, int c, float &u, float &v) { u = (r == c) - u, v = (r == c + 1) - v; });
        strip_store(x, m, w.eg_hi + slot, w.eg_lo + slot, EDGE);
    } else {
        strip_store(x, m, w.kt + slot, NULL, EDGE);
    }
}

loam_status local_path_prepare_cuda(const loam_problem *p, const loam_args *a, const path_arrays *w,
                                    loam_error *error)
{
    const int64_t tiles = (p->len_kv + EDGE - 1) / EDGE, blocks = tiles * p->batch * p->heads_kv;
    if (blocks == 0) return LOAM_OK;
    constexpr size_t shared = sizeof(prepare_shared);
    TRY(cuda_allow_shared((const void *)path_tile_kernel, shared, error));
    path_tile_kernel<<<(unsigned)blocks, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, *w);
    TRY(cuda_launched("path_tile_kernel", error));
    if (tiles > w->group) {
        path_group_kernel<<<dim3((unsigned)blocks, 2), THREADS, 0, (cudaStream_t)a->stream>>>(*p, *a, *w);
        TRY(cuda_launched("path_group_kernel", error));
    }
    return LOAM_OK;
}
