/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, backward: adds the sums of a tile, and goes back through the computation of its arrays
 * (path_tile_kernel, score_own_tile):
 *     A = lower(Q K^T - a B),  Ql = Q - a W,  a = lower(Q N^T)              for each head's own rows
 *     Kr = K - B^T N,  E = N^T W,  W = Lam N,  B = Lam strict(N K^T)
 *     Lam = R diag(beta),  R^-1 = I + diag(beta) strict(N N^T) */
#include "src/local/cuda/path/backward.cuh"

struct tiles_shared {
    shared_tile k, n, w, b, lam; /* w: at the end the hi part of R */
    shared_tile one, two, three, four, five;
    float beta[EDGE], columns[WARPS][EDGE];
};

/* Gradients of the tile: dk, dn, -dW and -dB. */
struct tile_sums {
    strip k, n, w, b;
};

static __device__ __forceinline__ void strip_lower(strip &x, int m, float sign, int strict)
{
    for_pairs(
        x, m,
        [&](int r, int c, float &u, float &v) {
            u = c + strict <= r ? sign * u : 0;
            v = c + 1 + strict <= r ? sign * v : 0;
        });
}

static __device__ __forceinline__ void strip_add(strip &x, const strip &y, float sign)
{
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e / 4][e % 4] += sign * y[e / 4][e % 4];
}

/* Writes dq, and the row's part of the gradient of the scale: scores are linear in q, so sum_j ds_ij x_ij =
 * q_i . dq_i / scale. */
static __device__ __forceinline__ void put_queries(const loam_problem &p, const loam_args &a,
                                                   const path_grads &w, const path_rows &x, strip &dq,
                                                   const bf16 *q, int m)
{
    float along[2] = { 0, 0 };
    const int g = threadIdx.x % 32 / 4;
    for_pairs(dq, m, [&](int r, int c, float &u, float &v) {
        along[r != m + g] += u * __bfloat162float(q[r * PITCH + c]) +
                             v * __bfloat162float(q[r * PITCH + c + 1]);
        if (row_exists(x, r) && a.grad_q.data) {
            bf16 *to = (bf16 *)a.grad_q.data + LOCAL_AT(a.grad_q, x.s.b, x.h, x.s.q0 + x.first + r) + c;
            to[0] = __float2bfloat16_rn(u), to[1] = __float2bfloat16_rn(v);
        }
    });
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(along[half]);
        if (threadIdx.x % 4 == 0 && row_exists(x, m + g + 8 * half))
            w.rows.sums.scale[local_row(&p, &x.s, x.h, x.first + m + g + 8 * half)] = (double)sum / p.scale;
    }
}

/* Back through A, Ql and a of one head's rows. one: q; two: dA; three: gradient of Ql; four: da; five: a. */
static __device__ void back_through_rows(tiles_shared &t, const loam_problem &p, const loam_args &a,
                                         const path_grads &w, const path_rows &x, tile_sums &sums, int m)
{
    const int64_t slot = query_slot(w, x) * TILE_SIZE;
    strip da, other;
    fill_argument(t.one, a.q, x.s.b, x.h, x.s.q0, x.first, x.s.nq);
    fill_slot(t.two, w.own_ds + slot);
    fill_slot(t.three, w.inner + slot);
    await_tiles();
    clear(da);
    product_rows<1, EDGE>(da, t.three, 0, m, t.w);
    product_rows<1, EDGE>(da, t.two, 0, m, t.b);
    strip_lower(da, m, -1, 0);
    strip_store(da, m, t.four, NULL, PITCH);
    strip_load(other, m, t.three, PITCH);
    product_tiles(other, t.two, m, t.k);
    product_weights<1, PITCH>(other, da, t.n, 0);
    put_queries(p, a, w, x, other, t.one, m);
    clear(other);
    product_rows<1, EDGE>(other, t.one, 0, m, t.n);
    strip_lower(other, m, 1, 0);
    strip_store(other, m, t.five, NULL, PITCH);
    __syncthreads();
    product_transposed_left(sums.k, t.two, m, t.one);
    product_transposed_left(sums.n, t.four, m, t.one);
    product_transposed_left(sums.w, t.five, m, t.three);
    product_transposed_left(sums.b, t.five, m, t.two);
    __syncthreads();
}

/* de <- dE: that of the rows, from the pass over keys, and that of the keys and of the rows of I which
 * crossed this tile within its group. one, two: scratch. */
static __device__ void gather_crossings(tiles_shared &t, const path_grads &w, int64_t base, int64_t n,
                                        int64_t tiles, strip &de, int m)
{
    const int64_t first = n / w.w.group * w.w.group, last = first + w.w.group - 1, slot = base + n;
    strip sum;
    clear(sum);
    for (int64_t from = first; from <= n && last + 1 < tiles; from++) {
        if (from == n && first == 0) /* no rows cross the first group, so Eg is not used */
            break;
        const int64_t at = from == n ? key_crossing(w, slot, n, n) : key_crossing(w, base + from, from, n);
        __syncthreads();
        fill_slot(t.one, (from == n ? w.key_x : w.key_y) + at);
        fill_slot(t.two, (from == n ? w.key_y : w.key_x) + at);
        await_tiles();
        product_transposed_left(sum, t.one, m, t.two);
    }
    strip_load_float(de, m, w.de + slot * TILE_SIZE);
    strip_add(de, sum, -1);
    __syncthreads();
}

/* From the gradients of Kr and E to those of W, B, N and K, and to that of Lam, in `lam`. */
static __device__ void back_through_arrays(tiles_shared &t, const path_grads &w, int64_t base, int64_t n,
                                           int64_t tiles, tile_sums &sums, strip &lam, int m)
{
    const int64_t slot = (base + n) * TILE_SIZE;
    strip part;
    gather_crossings(t, w, base, n, tiles, part, m);
    strip_store(part, m, t.two, NULL, PITCH); /* dE */
    strip_load_float(part, m, w.dkr + slot);
    strip_add(sums.k, part, 1);
    strip_store(part, m, t.one, NULL, PITCH); /* dKr */
    clear(part);
    product_rows<1, EDGE>(part, t.n, 0, m, t.k);
    strip_lower(part, m, 1, 1);
    strip_store(part, m, t.five, NULL, PITCH); /* strict(N K^T) */
    __syncthreads();
    product_rows<1, EDGE>(sums.n, t.w, 0, m, t.two);
    clear(part);
    product_tiles(part, t.b, m, t.one);
    strip_add(sums.n, part, -1);
    strip_negate(sums.w);
    product_tiles(sums.w, t.n, m, t.two);
    product_rows<1, EDGE>(sums.b, t.n, 0, m, t.one);
    strip_negate(sums.b);
    strip_store(sums.w, m, t.three, NULL, PITCH);
    strip_store(sums.b, m, t.four, NULL, PITCH);
    clear(lam);
    product_transposed_right<2>(lam, sums.w, t.n);
    product_transposed_right<2>(lam, sums.b, t.five);
    __syncthreads();
    product_transposed_left(sums.n, t.lam, m, t.three);
    clear(part);
    product_transposed_left(part, t.lam, m, t.four);
    strip_lower(part, m, 1, 1);
    product_weights<1, PITCH>(sums.n, part, t.k, 0);
    strip_store(part, m, t.b, NULL, PITCH);
    __syncthreads();
    product_transposed_left(sums.k, t.b, m, t.n);
}

/* From the gradient of Lam back through R: dbeta of the thread's two rows, and dn. */
static __device__ void back_through_inverse(tiles_shared &t, const bf16 *r_hi, const bf16 *r_lo,
                                            tile_sums &sums, strip &lam, float (&dbeta)[2], int m)
{
    const int g = threadIdx.x % 32 / 4;
    strip part, low;
    fill_slot(t.w, r_hi);
    strip_load(part, m, r_hi, EDGE);
    strip_load(low, m, r_lo, EDGE);
    strip_add(part, low, 1);
#pragma unroll
    for (int e = 0; e < 32; e++)
        part[e / 4][e % 4] *= lam[e / 4][e % 4];
    column_sums(part, t.columns[m / 16]);
    await_tiles();
    for_pairs(lam, m, [&](int, int c, float &u, float &v) { u *= t.beta[c], v *= t.beta[c + 1]; });
    clear(part);
    product_transposed_right<2>(part, lam, t.w);
    strip_store(part, m, t.one, t.two, PITCH);
    __syncthreads();
    clear(part);
    product_transposed_left(part, t.w, m, t.two);
    product_transposed_left(part, t.w, m, t.one);
    strip_lower(part, m, -1, 1);
    clear(low);
    product_rows<1, EDGE>(low, t.n, 0, m, t.n);
    dbeta[0] = dbeta[1] = 0;
    for (int e = 0; e < 32; e++) {
        dbeta[e % 4 / 2] += part[e / 4][e % 4] * low[e / 4][e % 4];
        part[e / 4][e % 4] *= t.beta[m + g + e % 4 / 2 * 8];
    }
    dbeta[0] = quad_sum(dbeta[0]), dbeta[1] = quad_sum(dbeta[1]);
    product_weights<1, PITCH>(sums.n, part, t.n, 0);
    strip_store(part, m, t.three, NULL, PITCH);
    __syncthreads();
    product_transposed_left(sums.n, t.three, m, t.n);
    for (int half = 0; half < 2; half++)
        for (int warp = 0; warp < WARPS; warp++)
            dbeta[half] += t.columns[warp][m + g + 8 * half];
}

/* Writes the rows of a tile to a gradient by keys; 0 for stored keys beyond those in use. */
static __device__ __forceinline__ void put_keys(const loam_problem &p, const loam_view &view,
                                                const path_rows &x, int n, strip &sum, int m)
{
    const int64_t stored = local_stored_keys(&p, &x.s);
    for_pairs(sum, m, [&](int r, int c, float &u, float &v) {
        const int64_t t = (int64_t)n * EDGE + r;
        if (view.data && t < stored) {
            bf16 *to = (bf16 *)view.data + LOCAL_AT(view, x.s.b, x.h_kv, x.s.k0 + t) + c;
            to[0] = __float2bfloat16_rn(t < x.s.nk ? u : 0);
            to[1] = __float2bfloat16_rn(t < x.s.nk ? v : 0);
        }
    });
}

static __device__ __forceinline__ void put_tile(const loam_problem &p, const loam_args &a, const path_rows &x,
                                                int n, tile_sums &sums, const float (&dbeta)[2], int m)
{
    put_keys(p, a.grad_k, x, n, sums.k, m);
    put_keys(p, a.grad_w, x, n, sums.n, m);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t t = (int64_t)n * EDGE + m + threadIdx.x % 32 / 4 + 8 * half;
        if (a.grad_beta.data && threadIdx.x % 4 == 0 && t < local_stored_keys(&p, &x.s)) {
            ((float *)a.grad_beta.data)[LOCAL_AT(a.grad_beta, x.s.b, x.h_kv, x.s.k0 + t)] = t < x.s.nk
                                                                                                ? dbeta[half]
                                                                                                : 0;
        }
    }
}

static __device__ __forceinline__ void load_tile(tiles_shared &t, const loam_args &a, const path_grads &w,
                                                 const path_rows &x, int n, int m)
{
    const int64_t slot = (x.base + n) * TILE_SIZE, key = (int64_t)n * EDGE;
    strip r, low;
    fill_argument(t.k, a.k, x.s.b, x.h_kv, x.s.k0, key, x.s.nk);
    fill_argument(t.n, a.w, x.s.b, x.h_kv, x.s.k0, key, x.s.nk);
    fill_slot(t.w, w.w.w_hi + slot);
    fill_slot(t.b, w.w.b_hi + slot);
    if (threadIdx.x < EDGE) {
        t.beta[threadIdx.x] =
            key + threadIdx.x < x.s.nk
                ? ((const float *)a.beta.data)[LOCAL_AT(a.beta, x.s.b, x.h_kv, x.s.k0 + key + threadIdx.x)]
                : 0;
    }
    await_tiles();
    strip_load(r, m, w.w.r_hi + slot, EDGE);
    strip_load(low, m, w.w.r_lo + slot, EDGE);
    strip_add(r, low, 1);
    for_pairs(r, m, [&](int, int c, float &u, float &v) { u *= t.beta[c], v *= t.beta[c + 1]; });
    strip_store(r, m, t.lam, NULL, PITCH);
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS, 2)
    path_tiles_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const path_grads w)
{
    extern __shared__ __align__(16) unsigned char memory[];
    tiles_shared &t = *(tiles_shared *)memory;
    const int64_t count = (p.len_kv + EDGE - 1) / EDGE, group = p.heads_q / p.heads_kv;
    const int m = threadIdx.x / 32 * 16, n = (int)(blockIdx.x % count);
    path_rows x;
    x.b = blockIdx.x / count % p.batch, x.h_kv = blockIdx.x / count / p.batch, x.n = n;
    x.s = local_seq_at(&p, &a, x.b);
    x.base = x.h_kv * w.slots + slot_base(p, x.s, x.b);
    x.first = (int64_t)n * EDGE - x.s.nk + x.s.nq;
    tile_sums sums;
    float dbeta[2] = { 0, 0 };
    clear(sums.k);
    clear(sums.n);
    if (n >= tiles_of(x.s)) {
        put_tile(p, a, x, n, sums, dbeta, m);
        return;
    }
    clear(sums.w);
    clear(sums.b);
    load_tile(t, a, w, x, n, m);
    for (x.h = x.h_kv * group; x.first + EDGE > 0 && x.h < (x.h_kv + 1) * group; x.h++)
        back_through_rows(t, p, a, w, x, sums, m);
    strip lam;
    back_through_arrays(t, w, x.base, n, tiles_of(x.s), sums, lam, m);
    __syncthreads();
    const int64_t slot = (x.base + n) * TILE_SIZE;
    back_through_inverse(t, w.w.r_hi + slot, w.w.r_lo + slot, sums, lam, dbeta, m);
    put_tile(p, a, x, n, sums, dbeta, m);
}

loam_status local_path_tiles_cuda(const loam_problem *p, const loam_args *a, const path_grads *g,
                                  loam_error *error)
{
    const int64_t blocks = (p->len_kv + EDGE - 1) / EDGE * p->batch * p->heads_kv;
    constexpr size_t shared = sizeof(tiles_shared);
    TRY(cuda_allow_shared((const void *)path_tiles_kernel, shared, error));
    path_tiles_kernel<<<(unsigned)blocks, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, *g);
    return cuda_launched("path_tiles_kernel", error);
}
