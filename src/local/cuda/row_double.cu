/* SPDX-License-Identifier: MIT
 *
 * Rows of Local Linear Attention in float64, one thread block for each row at a time: the rows that conjugate
 * gradients did not solve, or all rows with PaTH, where the rows of a block see the keys reflected
 * differently and cannot share products with them. Forward: means, Cov + Lambda by centred sums, its Cholesky
 * factor, rho, output. Backward: the adjoint solve.
 *
 * Keys are relative to the first key of the sequence, and are loaded in tiles; centred at kbar, and values at
 * vbar, once these are known. Thread c has channel c of all sums over keys; dimensions are at most DIM64 =
 * ROW64_THREADS. A warp has every eighth key of a tile: its loads do not wait for each other, and its sums
 * over channels need no other warp.
 */
#include "src/local/cuda/backward.h"
#include "src/local/cuda/forward.h"
#include "src/local/cuda/solve_work.cuh"

enum { ROW64_THREADS = 256, WARPS64 = ROW64_THREADS / 32, DIM64 = 256, BLOCK64 = 4 };
enum { KEYS64 = 32, WARP_KEYS64 = KEYS64 / WARPS64 }; /* of a tile, at most */
enum { TILE64_BYTES = 64 << 10, MATRIX64_BYTES = 80 << 10 };

struct row_double_shared {
    double query[DIM64], origin[DIM64], kbar[DIM64], vbar[DIM64], right[DIM64], rho[DIM64];
    double score[KEYS64], weight[KEYS64], line[KEYS64]; /* of the keys of the tile: s; p; p u, or p g */
    double sum[WARPS64];
};

/* A tile of keys and values, a row of each beside the other, their dimensions rounded up to blocks; where the
 * matrix is smaller than MATRIX64_BYTES it takes the tile's place while no tile is needed. */
extern __shared__ double tile64[];

static __host__ __device__ __forceinline__ int64_t triangle(int64_t n) { return n * (n + 1) / 2; }

static __host__ __device__ __forceinline__ int round64(int64_t dim)
{
    return (int)((dim + BLOCK64 - 1) / BLOCK64) * BLOCK64;
}

static __host__ __device__ __forceinline__ int wide64(const loam_problem &p)
{
    return round64(p.dim_qk) + round64(p.dim_v);
}

static __host__ __device__ __forceinline__ int keys64(const loam_problem &p)
{
    return wide64(p) * KEYS64 * (int)sizeof(double) > TILE64_BYTES ? KEYS64 / 2 : KEYS64;
}

static __host__ __device__ __forceinline__ size_t shared64(const loam_problem &p)
{
    const size_t tile = (size_t)(keys64(p) * wide64(p)) * sizeof(double),
                 matrix = (size_t)triangle(p.dim_qk) * sizeof(double);
    return matrix > MATRIX64_BYTES || matrix < tile ? tile : matrix;
}

/* The row of the thread block: query i sees keys lo .. hi - 1; m and omega are the maximum and sum of the
 * softmax, unit that of the ridge; constant is what all scores lose with keys relative to the origin. */
struct row_double_at {
    row_block x;
    int64_t i, lo, hi;
    score_constants sc;
    double position, constant, dropped, m, omega, unit;
};

/* The sum of x over the threads of the block, returned to every thread. */
static __device__ double block_sum(row_double_shared &sm, double x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sm.sum[threadIdx.x / 32] = x;
    __syncthreads();
    double total = 0;
    for (int w = 0; w < WARPS64; w++)
        total += sm.sum[w];
    return total;
}

static __device__ double score64(const row_double_at &r, const loam_problem &p, const loam_args &a,
                                 double product, double norm, int64_t j)
{
    const double x = product + r.constant - (r.sc.rbf ? 0.5 * norm : 0);
    double s = local_score(&p, x, (double)r.sc.slope, r.position - (double)j);
    if (r.sc.biased)
        s += (double)((const float *)a.key_bias.data)[LOCAL_AT(a.key_bias, r.x.s.b, r.x.h, r.x.s.k0 + j)];
    if (r.sc.decayed) /* G is in the log2 domain */
        s += local_decay_between(r.sc.decay[r.hi > 0 ? r.hi - 1 : 0], r.sc.decay[j]) * 0.6931471805599453;
    return s;
}

/* Columns first .. of the tile <- rows of x, which has `seen` of them, less `from`; beyond those 0. */
template <class T>
static __device__ __forceinline__ void load_rows64(const loam_problem &p, int first, const T *x,
                                                   int64_t stride, int64_t seen, int64_t dim,
                                                   const double *from)
{
    enum { AHEAD = 2 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = keys64(p), wide = wide64(p);
    for (int c0 = lane; c0 < dim; c0 += 32 * AHEAD) {
        T raw[WARP_KEYS64][AHEAD];
#pragma unroll
        for (int t = 0; t < WARP_KEYS64; t++) {
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int row = warp + t * WARPS64, c = c0 + 32 * n;
                if (row < seen && c < dim) raw[t][n] = x[row * stride + c];
            }
        }
#pragma unroll
        for (int t = 0; t < WARP_KEYS64; t++) {
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int row = warp + t * WARPS64, c = c0 + 32 * n;
                if (row < keys && c < dim)
                    tile64[row * wide + first + c] = row < seen ? (double)raw[t][n] - (from ? from[c] : 0)
                                                                : 0;
            }
        }
    }
}

template <class T>
static __device__ void load_both64(const row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                   const row_double_at &r, int64_t j)
{
    const int64_t seen = r.hi - j < keys64(p) ? r.hi - j : keys64(p);
    load_rows64(p, 0, (const T *)a.k.data + LOCAL_AT(a.k, r.x.s.b, r.x.h_kv, r.x.s.k0 + j), a.k.token, seen,
                p.dim_qk, sm.origin);
    load_rows64(p, round64(p.dim_qk), (const T *)a.v.data + LOCAL_AT(a.v, r.x.s.b, r.x.h_kv, r.x.s.k0 + j),
                a.v.token, seen, p.dim_v, (const double *)NULL);
}

/* dot[t] <- the product of `with` and the warp's t-th row of the tile, from column `first` on; of the row
 * with itself where `with` is NULL. To every lane. */
static __device__ void dots64(const loam_problem &p, int first, int64_t dim, const double *with,
                              double (&dot)[WARP_KEYS64])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = keys64(p), wide = wide64(p);
#pragma unroll
    for (int t = 0; t < WARP_KEYS64; t++)
        dot[t] = 0;
    for (int c = lane; c < dim; c += 32) {
#pragma unroll
        for (int t = 0; t < WARP_KEYS64; t++) {
            const int row = warp + t * WARPS64;
            const double x = row < keys ? tile64[row * wide + first + c] : 0;
            dot[t] += x * (with ? with[c] : x);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
        for (int t = 0; t < WARP_KEYS64; t++)
            dot[t] += __shfl_xor_sync(0xffffffffu, dot[t], step);
    }
}

/* The row of the tile that a lane has the numbers of, or -1; those of that row. */
static __device__ __forceinline__ int row_of_lane64(const loam_problem &p)
{
    const int row = (int)(threadIdx.x % 32) * WARPS64 + (int)(threadIdx.x / 32);
    return row < keys64(p) ? row : -1;
}

static __device__ __forceinline__ double of_lane64(const double (&dot)[WARP_KEYS64])
{
    double x = dot[0];
#pragma unroll
    for (int t = 1; t < WARP_KEYS64; t++)
        x = threadIdx.x % 32 == t ? dot[t] : x;
    return x;
}

/* Loads the row's keys and values from j on into the tile, and computes their scores; where the means are
 * known also p, and keys and values are then centred. Beyond the row's last key scores are -inf, p is 0. */
static __device__ void load_tile64(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                   const row_double_at &r, int64_t j)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = keys64(p), wide = wide64(p);
    const bool known = !(r.omega <= 0);
    __syncthreads();
    switch (p.dtype) {
    case LOAM_BF16: load_both64<__nv_bfloat16>(sm, p, a, r, j); break;
    case LOAM_F16: load_both64<__half>(sm, p, a, r, j); break;
    default: load_both64<float>(sm, p, a, r, j); break;
    }
    __syncwarp();
    double product[WARP_KEYS64], norm[WARP_KEYS64] = {};
    dots64(p, 0, p.dim_qk, sm.query, product);
    if (r.sc.rbf) dots64(p, 0, p.dim_qk, NULL, norm);
    const int mine = row_of_lane64(p);
    if (mine >= 0) {
        const bool seen = j + mine < r.hi;
        const double s = seen ? score64(r, p, a, of_lane64(product), of_lane64(norm), j + mine) : -INFINITY;
        sm.score[mine] = s;
        sm.weight[mine] = known ? exp(s - r.m) / r.omega : 0;
    }
    if (known) {
        const int values = round64(p.dim_qk);
        for (int row = warp; row < keys; row += WARPS64) {
            for (int c = lane; c < p.dim_qk; c += 32)
                tile64[row * wide + c] -= sm.kbar[c];
            for (int c = lane; c < p.dim_v; c += 32)
                tile64[row * wide + values + c] -= sm.vbar[c];
        }
    }
    __syncthreads();
}

/* Online softmax: the maximum, the sum of weights, kbar and vbar. */
static __device__ void means_of_row(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                    row_double_at &r)
{
    const int c = threadIdx.x, lane = c % 32, keys = keys64(p), wide = wide64(p), values = round64(p.dim_qk);
    double k = 0, v = 0, omega = 0;
    r.m = -INFINITY, r.omega = 0;
    for (int64_t j = r.lo; j < r.hi; j += keys) {
        load_tile64(sm, p, a, r, j);
        const double s = lane < keys ? sm.score[lane] : -INFINITY;
        double m = fmax(r.m, s);
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            m = fmax(m, __shfl_xor_sync(0xffffffffu, m, step));
        if (c < keys) sm.weight[c] = exp(s - m);
        if (m > r.m) {
            const double keep = exp(r.m - m);
            k *= keep, v *= keep, omega *= keep;
            r.m = m;
        }
        __syncthreads();
#pragma unroll 4
        for (int row = 0; row < keys; row++) {
            const double w = sm.weight[row];
            omega += w;
            k += c < p.dim_qk ? w * tile64[row * wide + c] : 0;
            v += c < p.dim_v ? w * tile64[row * wide + values + c] : 0;
        }
    }
    r.omega = omega;
    sm.kbar[c] = k / omega, sm.vbar[c] = v / omega;
    __syncthreads();
}

static __device__ __forceinline__ void load_block64(const double *x, double (&out)[BLOCK64])
{
    const double2 low = *(const double2 *)x, high = *(const double2 *)(x + 2);
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
}

/* gram <- the lower triangle of Cov, packed by rows. Each thread accumulates SHARE blocks of BLOCK64 x
 * BLOCK64 elements in each sweep over the keys. */
template <int SHARE>
static __device__ void gram_of_row(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                   const row_double_at &r, double *gram)
{
    const int keys = keys64(p), wide = wide64(p);
    const int64_t side = round64(p.dim_qk) / BLOCK64, blocks = triangle(side);
    for (int64_t base = 0; base < blocks; base += ROW64_THREADS * SHARE) {
        double sum[SHARE][BLOCK64][BLOCK64] = {};
        int top[SHARE], left[SHARE];
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            const int64_t n = base + threadIdx.x + s * ROW64_THREADS;
            int row = n < blocks ? (int)((sqrt(8.0 * (double)n + 1) - 1) / 2) : -1;
            row += n < blocks && triangle(row + 1) <= n;
            row -= n < blocks && triangle(row) > n;
            top[s] = row * BLOCK64;
            left[s] = row < 0 ? 0 : (int)(n - triangle(row)) * BLOCK64;
        }
        for (int64_t j = r.lo; j < r.hi; j += keys) {
            load_tile64(sm, p, a, r, j);
            for (int row = 0; row < keys; row++) {
                const double w = sm.weight[row];
#pragma unroll
                for (int s = 0; s < SHARE; s++) {
                    if (top[s] < 0) continue;
                    double y[BLOCK64], z[BLOCK64];
                    load_block64(tile64 + row * wide + top[s], y);
                    load_block64(tile64 + row * wide + left[s], z);
#pragma unroll
                    for (int n = 0; n < BLOCK64; n++) {
#pragma unroll
                        for (int m = 0; m < BLOCK64; m++)
                            sum[s][n][m] += w * y[n] * z[m];
                    }
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
#pragma unroll
            for (int y = 0; y < BLOCK64; y++) {
#pragma unroll
                for (int z = 0; z < BLOCK64; z++) {
                    const int64_t at = top[s] + y, c = left[s] + z;
                    if (top[s] >= 0 && at < p.dim_qk && c <= at) gram[triangle(at) + c] = sum[s][y][z];
                }
            }
        }
    }
    __syncthreads();
}

static __device__ double ridge64(const loam_problem &p, const loam_args &a, const row_double_at &r, int64_t c)
{
    return r.unit * local_ridge(&p, &a, &r.x.s, r.x.h, r.i, c);
}

/* Finds the unit of the ridge and adds Lambda to the diagonal of gram. Returns the bound at or below which a
 * pivot counts as zero. */
static __device__ double add_ridge64(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                     row_double_at &r, double *gram)
{
    const int64_t c = threadIdx.x;
    const bool mine = c < p.dim_qk;
    double trace = 0, largest = 0, mean2 = 0;
    for (int64_t n = 0; n < p.dim_qk; n++) {
        trace += gram[triangle(n) + n];
        mean2 = fmax(mean2, sm.kbar[n] * sm.kbar[n]);
    }
    r.unit = p.ridge_unit == LOAM_RIDGE_MAX     ? 1 / r.omega
             : p.ridge_unit == LOAM_RIDGE_TRACE ? trace / (double)p.dim_qk + LOCAL_TRACE_FLOOR
                                                : 1;
    __syncthreads();
    if (mine) gram[triangle(c) + c] += ridge64(p, a, r, c);
    __syncthreads();
    for (int64_t n = 0; n < p.dim_qk; n++)
        largest = fmax(largest, gram[triangle(n) + n]);
    return local_least_pivot(largest, mean2);
}

/* Where the matrix is solved: in shared memory where it fits. */
static __device__ double *place64(const loam_problem &p, double *gram)
{
    const int64_t count = triangle(p.dim_qk);
    if (count * (int64_t)sizeof *gram > MATRIX64_BYTES) return gram;
    for (int64_t n = threadIdx.x; n < count; n += ROW64_THREADS)
        tile64[n] = gram[n];
    __syncthreads();
    return tile64;
}

/* gram <- its Cholesky factor; false where a pivot is not above `least`. All threads of the
 * block take part. */
static __device__ bool factor64(double *gram, int64_t d, double least)
{
    const int64_t across = threadIdx.x % 16, down = threadIdx.x / 16;
    for (int64_t j = 0; j < d; j++) {
        const double pivot = gram[triangle(j) + j];
        if (!(pivot > least)) return false;
        __syncthreads();
        for (int64_t i = j + threadIdx.x; i < d; i += ROW64_THREADS)
            gram[triangle(i) + j] = i == j ? sqrt(pivot) : gram[triangle(i) + j] / sqrt(pivot);
        __syncthreads();
        for (int64_t i = j + 1 + down; i < d; i += ROW64_THREADS / 16) {
            const double f = gram[triangle(i) + j];
            for (int64_t c = j + 1 + across; c <= i; c += 16)
                gram[triangle(i) + c] -= f * gram[triangle(c) + j];
        }
        __syncthreads();
    }
    return true;
}

/* rho <- the solution for the right-hand side in sm.right, by forward and back substitution. */
static __device__ void substitute64(row_double_shared &sm, const double *gram, int64_t d)
{
    const int64_t c = threadIdx.x;
    double own = c < d ? sm.right[c] : 0;
    for (int64_t j = 0; j < d; j++) {
        if (c == j) sm.rho[j] = own / gram[triangle(j) + j];
        __syncthreads();
        own -= c > j && c < d ? gram[triangle(c) + j] * sm.rho[j] : 0;
    }
    own = c < d ? sm.rho[c] : 0;
    __syncthreads();
    for (int64_t j = d - 1; j >= 0; j--) {
        if (c == j) sm.rho[j] = own / gram[triangle(j) + j];
        __syncthreads();
        own -= c < j ? gram[triangle(j) + c] * sm.rho[j] : 0;
    }
    __syncthreads();
}

/* Sums of the last sweep in thread c: channel c of sum p u (v - vbar) and of Cov rho. */
struct lines64 {
    double value, image;
};

static __device__ lines64 sweep64(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                  const row_double_at &r)
{
    const int c = threadIdx.x, keys = keys64(p), wide = wide64(p), values = round64(p.dim_qk);
    lines64 out = { 0, 0 };
    for (int64_t j = r.lo; j < r.hi; j += keys) {
        load_tile64(sm, p, a, r, j);
        double u[WARP_KEYS64];
        dots64(p, 0, p.dim_qk, sm.rho, u);
        const int mine = row_of_lane64(p);
        if (mine >= 0) {
            const double w = sm.weight[mine], mine_u = of_lane64(u);
            sm.line[mine] = w * mine_u;
            if (a.weights.data && j + mine < r.hi) {
                ((float *)a.weights.data)[LOCAL_AT(a.weights, r.x.s.b, r.x.h, r.x.s.q0 + r.i) + j + mine] =
                    (float)(w * (1 - mine_u));
            }
        }
        __syncthreads();
#pragma unroll 4
        for (int row = 0; row < keys; row++) {
            out.value += c < p.dim_v ? sm.line[row] * tile64[row * wide + values + c] : 0;
            out.image += c < p.dim_qk ? sm.line[row] * tile64[row * wide + c] : 0;
        }
    }
    return out;
}

/* Are lse and kbar saved of keys relative to the origin? */
static __device__ __forceinline__ bool saves_relative(const loam_problem &p)
{
    return local_wide(&p) && !local_saves_raw(&p);
}

static __device__ row_double_at begin_row(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                          const hard_row &hard)
{
    row_double_at r;
    r.x = row_block_at(p, a, hard.block);
    r.i = r.x.i0 + hard.at;
    local_visible(&p, &r.x.s, r.i, &r.lo, &r.hi);
    r.sc = score_constants_of(p, a, r.x.s, r.x.h);
    r.position = (double)(r.i + r.x.s.nk - r.x.s.nq);
    __syncthreads();
    const int64_t q = LOCAL_AT(a.q, r.x.s.b, r.x.h, r.x.s.q0 + r.i),
                  k = LOCAL_AT(a.k, r.x.s.b, r.x.h_kv, r.x.s.k0);
    double constant = 0;
    for (int c = threadIdx.x; c < DIM64; c += ROW64_THREADS) {
        sm.origin[c] = !p.path && c < p.dim_qk ? element_load(a.k.data, p.dtype, k + c) : 0;
        sm.query[c] = c < p.dim_qk ? element_load(a.q.data, p.dtype, q + c) - (r.sc.rbf ? sm.origin[c] : 0)
                                   : 0;
        sm.kbar[c] = sm.vbar[c] = 0;
        constant += r.sc.rbf ? -0.5 * sm.query[c] * sm.query[c] : sm.query[c] * sm.origin[c];
    }
    r.constant = block_sum(sm, constant);
    /* Scores are complete here; saved.lse must lack the constant that the other kernels leave out. */
    r.dropped = saves_relative(p) && !r.sc.mapped ? p.scale * r.constant : 0;
    return r;
}

static __device__ void put_row_double(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                      const local_saved &saved, const row_double_at &r, double o,
                                      loam_row_info info)
{
    const int64_t c = threadIdx.x, line = local_row(&p, &r.x.s, r.x.h, r.i), token = r.x.s.q0 + r.i;
    const double lse = r.m + log(r.omega);
    if (c < p.dim_v) {
        element_store(a.o.data, p.dtype, LOCAL_AT(a.o, r.x.s.b, r.x.h, token) + c, o);
        if (a.saved) ((float *)saved.vbar)[line * p.dim_v + c] = (float)sm.vbar[c];
    }
    if (c < p.dim_qk) {
        if (a.rho.data) ((float *)a.rho.data)[LOCAL_AT(a.rho, r.x.s.b, r.x.h, token) + c] = (float)sm.rho[c];
        if (a.saved) {
            ((float *)saved.rho)[line * p.dim_qk + c] = (float)sm.rho[c];
            ((float *)saved.kbar)[line * p.dim_qk + c] = (float)(sm.kbar[c] +
                                                                 (saves_relative(p) ? 0 : sm.origin[c]));
        }
    }
    if (c == 0) {
        put_info(a, r.x, r.i, info);
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, r.x.s.b, r.x.h, token)] = (float)lse;
        if (a.saved) ((float *)saved.lse)[line] = (float)(lse - r.dropped);
    }
}

/* A row whose rho or y float32 cannot hold counts as singular. */
static __device__ bool fits_float(double x) { return fabs(x) <= 3.4e38; }

template <int SHARE>
static __global__ void __launch_bounds__(ROW64_THREADS, SHARE == 1 ? 2 : 1)
    row_double_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const local_saved saved, const solve_work work)
{
    __shared__ row_double_shared sm;
    const int64_t c = threadIdx.x, d = p.dim_qk;
    double *gram = work.row_scratch + blockIdx.x * triangle(d);
    for (unsigned long long n = blockIdx.x; n < *work.hard_count; n += gridDim.x) {
        row_double_at r = begin_row(sm, p, a, work.hard[n]);
        means_of_row(sm, p, a, r);
        gram_of_row<SHARE>(sm, p, a, r, gram);
        double *const place = place64(p, gram);
        const double least = add_ridge64(sm, p, a, r, place);
        sm.right[c] = c < d ? sm.kbar[c] - sm.query[c] + (r.sc.rbf ? 0 : sm.origin[c]) : 0;
        __syncthreads();
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_GRAM, work.hard[n].iterations, 0 };
        bool solved = factor64(place, d, least);
        if (solved) substitute64(sm, place, d);
        solved = solved && __syncthreads_and(c >= d || fits_float(sm.rho[c]));
        if (!solved) {
            info.code = LOAM_ROW_SINGULAR;
            __syncthreads();
            sm.rho[c] = 0;
            __syncthreads();
        }
        const lines64 lines = sweep64(sm, p, a, r);
        const double wrong = c < d ? lines.image + ridge64(p, a, r, c) * sm.rho[c] - sm.right[c] : 0;
        const double size = c < d ? sm.right[c] * sm.right[c] : 0;
        const double error2 = block_sum(sm, wrong * wrong), size2 = block_sum(sm, size);
        info.residual = solved && size2 > 0 ? (float)sqrt(error2 / size2) : 0;
        put_row_double(sm, p, a, saved, r, sm.vbar[c] - lines.value, info);
        __syncthreads();
    }
}

/* Whether one block of the triangle for each thread is enough. Then (SHARE = 1) a multiprocessor holds two
 * thread blocks instead of one. */
static bool few_channels(const loam_problem *p)
{
    return triangle((p->dim_qk + BLOCK64 - 1) / BLOCK64) <= ROW64_THREADS;
}

static loam_status launch_rows(const loam_problem *p, const loam_args *a, const solve_work *work,
                               int64_t blocks, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const auto kernel = few_channels(p) ? row_double_kernel<1> : row_double_kernel<4>;
    return cuda_launch("row_double_kernel", kernel, blocks, ROW64_THREADS, shared64(*p), a->stream, false,
                       error, *p, *a, saved, *work);
}

loam_status local_row_double_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    return launch_rows(p, a, &work, ROW64_BLOCKS, error);
}

/* ------------------------------------------------------------------ the adjoint solve */

/* right <- drho = -sum p (do . (v - vbar)) kappa of a row whose means are known. */
static __device__ void adjoint_right64(row_double_shared &sm, const loam_problem &p, const loam_args &a,
                                       const row_double_at &r)
{
    const int c = threadIdx.x, keys = keys64(p), wide = wide64(p);
    const int64_t grad = LOCAL_AT(a.grad_o, r.x.s.b, r.x.h, r.x.s.q0 + r.i);
    double sum = 0, *const grad_o = sm.rho; /* which is not known yet */
    grad_o[c] = c < p.dim_v ? element_load(a.grad_o.data, p.dtype, grad + c) : 0;
    for (int64_t j = r.lo; j < r.hi; j += keys) {
        load_tile64(sm, p, a, r, j);
        double g[WARP_KEYS64];
        dots64(p, round64(p.dim_qk), p.dim_v, grad_o, g);
        const int mine = row_of_lane64(p);
        if (mine >= 0) sm.line[mine] = sm.weight[mine] * of_lane64(g);
        __syncthreads();
#pragma unroll 4
        for (int row = 0; row < keys; row++)
            sum -= c < p.dim_qk ? sm.line[row] * tile64[row * wide + c] : 0;
    }
    __syncthreads();
    sm.right[c] = sum;
    __syncthreads();
}

/* y of the rows on the list; 0 where the system is singular or float32 cannot hold y. */
template <int SHARE>
static __global__ void __launch_bounds__(ROW64_THREADS, SHARE == 1 ? 2 : 1)
    adjoint_double_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                          const row_arrays arrays, const solve_work work)
{
    __shared__ row_double_shared sm;
    const int64_t c = threadIdx.x, d = p.dim_qk;
    double *gram = work.row_scratch + blockIdx.x * triangle(d);
    for (unsigned long long n = blockIdx.x; n < *work.hard_count; n += gridDim.x) {
        row_double_at r = begin_row(sm, p, a, work.hard[n]);
        means_of_row(sm, p, a, r);
        gram_of_row<SHARE>(sm, p, a, r, gram);
        adjoint_right64(sm, p, a, r);
        double *const place = place64(p, gram);
        const double least = add_ridge64(sm, p, a, r, place);
        bool solved = factor64(place, d, least);
        if (solved) substitute64(sm, place, d);
        solved = solved && __syncthreads_and(c >= d || fits_float(sm.rho[c]));
        if (c < d) arrays.y[local_row(&p, &r.x.s, r.x.h, r.i) * d + c] = solved ? (float)sm.rho[c] : 0;
        __syncthreads();
    }
}

static loam_status launch_adjoint(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  const solve_work *work, int64_t blocks, loam_error *error)
{
    const auto kernel = few_channels(p) ? adjoint_double_kernel<1> : adjoint_double_kernel<4>;
    return cuda_launch("adjoint_double_kernel", kernel, blocks, ROW64_THREADS, shared64(*p), a->stream, false,
                       error, *p, *a, *rows, *work);
}

loam_status local_adjoint_double_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                      void *memory, loam_error *error)
{
    arena pool = { (char *)memory, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    return launch_adjoint(p, a, rows, &work, ROW64_BLOCKS, error);
}

/* ------------------------------------------------------------------ all rows */

/* Writes the results of a row that sees no key. */
static __device__ void put_empty(const loam_problem &p, const loam_args &a, const local_saved &saved,
                                 const row_block &x, int64_t i)
{
    const int64_t line = local_row(&p, &x.s, x.h, i), token = x.s.q0 + i;
    const loam_row_info info = { LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
    for (int64_t c = 0; c < p.dim_v; c++) {
        element_store(a.o.data, p.dtype, LOCAL_AT(a.o, x.s.b, x.h, token) + c, 0);
        if (a.saved) ((float *)saved.vbar)[line * p.dim_v + c] = 0;
    }
    for (int64_t c = 0; c < p.dim_qk; c++) {
        if (a.rho.data) ((float *)a.rho.data)[LOCAL_AT(a.rho, x.s.b, x.h, token) + c] = 0;
        if (a.saved)
            ((float *)saved.rho)[line * p.dim_qk + c] = ((float *)saved.kbar)[line * p.dim_qk + c] = 0;
    }
    put_info(a, x, i, info);
    if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, token)] = -INFINITY;
    if (a.saved) ((float *)saved.lse)[line] = -INFINITY;
}

/* One thread for each row: puts it on the list or, where it sees no key, writes its results: y = 0 for the
 * adjoint solve, the outputs where y is NULL. */
static __global__ void __launch_bounds__(ROW64_THREADS)
    list_rows_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const local_saved saved, const solve_work work, float *y)
{
    const int64_t n = (int64_t)blockIdx.x * ROW64_THREADS + threadIdx.x, block = n / ROWS;
    const hard_row row = { block, (int32_t)(n % ROWS), 0 };
    const row_block x = row_block_at(p, a, block);
    int64_t lo = 0, hi = 0;
    if (block >= (p.len_q + ROWS - 1) / ROWS * p.batch * p.heads_q || row.at >= x.rows) return;
    local_visible(&p, &x.s, x.i0 + row.at, &lo, &hi);
    if (lo < hi)
        work.hard[atomicAdd(work.hard_count, 1ull)] = row;
    else if (y)
        for (int64_t c = 0; c < p.dim_qk; c++)
            y[local_row(&p, &x.s, x.h, x.i0 + row.at) * p.dim_qk + c] = 0;
    else
        put_empty(p, a, saved, x, x.i0 + row.at);
}

/* As many thread blocks as an H200 holds at once, or one for each row where these are fewer; packed sequences
 * may have none. */
static int64_t all64_blocks(const loam_problem *p)
{
    const int64_t rows = local_rows(p), most = (few_channels(p) ? 2 : 1) * ROW64_BLOCKS;
    return rows < 1 ? 1 : rows < most ? rows : most;
}

static solve_work all64_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk;
    solve_work w = {};
    w.hard_count = (unsigned long long *)arena_take(pool, 1, sizeof(unsigned long long));
    w.hard = (hard_row *)arena_take(pool, (size_t)local_rows(p), sizeof(hard_row));
    w.row_scratch = (double *)arena_take(pool, size_mul((size_t)all64_blocks(p), d * (d + 1) / 2),
                                         sizeof(double));
    return w;
}

static loam_status list_rows(const loam_problem *p, const loam_args *a, const solve_work *work, float *y,
                             loam_error *error)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const size_t threads = row_blocks(p) * ROWS;
    TRY(cuda_check(cudaMemsetAsync(work->hard_count, 0, sizeof *work->hard_count, stream),
                   "count of the rows", error));
    list_rows_kernel<<<(unsigned)((threads + ROW64_THREADS - 1) / ROW64_THREADS), ROW64_THREADS, 0, stream>>>(
        *p, *a, local_saved_carve(p, a->saved, NULL), *work, y);
    return cuda_launched("list_rows_kernel", error);
}

size_t local_all64_cuda_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)all64_carve(p, &pool);
    return pool.used;
}

loam_status local_all64_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const solve_work work = all64_carve(p, &pool);
    TRY(list_rows(p, a, &work, NULL, error));
    return launch_rows(p, a, &work, all64_blocks(p), error);
}

loam_status local_adjoint_all64_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     void *memory, loam_error *error)
{
    arena pool = { (char *)memory, 0 };
    const solve_work work = all64_carve(p, &pool);
    TRY(list_rows(p, a, &work, rows->y, error));
    return launch_adjoint(p, a, rows, &work, all64_blocks(p), error);
}
