/* SPDX-License-Identifier: MIT
 *
 * Conjugate gradients on GPUs: (Cov_i + Lambda_i) x_i = b_i for the 64 rows of a block, all at once. As on
 * CPUs, Cov x = sum_j p_j kappa_j (kappa_j . x) is computed by two products with the keys and no matrix. It
 * is centred twice ("compensated centring"): x . kbar is subtracted from the products k_j . x before they are
 * weighted, and kbar times the sum of the weights from the result. Scores are computed again each time, since
 * n weights for each row do not fit in any memory.
 *
 * Directions and weights carry more digits than narrow keys: each is split in two bf16 parts, hi and lo, so
 * that the product is as exact as its operands. The vectors of a row have the layout of D in mma.cuh and lie
 * in a scratch in global memory, of which each thread touches only its own elements. The direction also lies
 * in shared memory, as operand of products.
 *
 * A row stops by its own residual alone, so that its bits do not depend on other rows. The true residual,
 * computed at the end, decides whether it is accepted.
 */
#ifndef LOAM_LOCAL_CUDA_SOLVE_CUH
#define LOAM_LOCAL_CUDA_SOLVE_CUH

#include "src/local/cuda/stream.cuh"

/* A row stops where its recursive residual, relative to |b|, is below `stop`; on Hopper, after many
 * iterations, below `late_stop`. It is accepted where the true residual, relative to |b| and times the square
 * root of the estimated condition number, is below `accept`: this bounds the relative error of x in the norm
 * of the system, which bounds the error of the output. by_residual: without that root; on keys of trained
 * models the error of a row of o was 0.3 to 1.5 times the residual in the median and at most 5 times for 99
 * of 100 rows, whatever the condition number. */
struct cg_tolerance {
    float stop, late_stop, accept;
    int most;   /* iterations */
    float rate; /* Hopper, where above 0: residuals must fall as fast as its powers */
    bool by_residual;
    float widest; /* Hopper, where above 0: of first Rayleigh quotients, relative to the ridge */
};

static __device__ __forceinline__ cg_tolerance cg_tolerance_of(loam_dtype dtype)
{
    const cg_tolerance f32 = { 3e-7f, 3e-7f, 2e-5f, 96, 0, false, 0 },
                       f16 = { 1e-5f, 1e-5f, 1e-3f, 96, 0, false, 0 },
                       bf16 = { 3e-4f, 3e-4f, 1e-2f, 64, 0, false, 0 };
    return dtype == LOAM_F32 ? f32 : dtype == LOAM_F16 ? f16 : bf16;
}

/* Rows whose ridge is below this share of the mean variance of the keys are left to float64, which alone can
 * tell whether such a system is singular. */
#define BLOCK_LEAST_RIDGE 1e-6f

/* A row left to float64: row `at` of block of rows `block`. */
struct hard_row {
    int64_t block;
    int32_t at, iterations;
};

/* Extremes of a head of a sequence, as bits of floats of at least 0, which are in the order of the numbers:
 * the largest element of keys and of values, the largest squared norm of a key. wide: the numbers span more
 * than fp16 can, so that rows of this head need float64. */
struct half_span {
    uint32_t key, norm2, value, wide;
};

/* The workspace, the same for forward and backward. */
struct solve_work {
    int64_t *next_block;
    unsigned long long *hard_count;
    /* On Hopper: counters of the launches for blocks of rows with few keys, and of those for listed blocks:
     * in two parts, the heavy keys, the solution, what follows from an adjoint one; the lists; which
     * scratches are in use. */
    int64_t *next_few, *next_listed, *next_heavy, *next_solved, *next_ended;
    unsigned long long *listed_count, *heavy_count; /* heavy: of local/hopper/heavy_work.cuh */
    int32_t *scratch_taken;
    half_span *span; /* [batch][heads_kv], of the copies in fp16 */
    int32_t *listed;
    hard_row *hard;
    int64_t scratches;
    float *scratch;      /* of the solver, for each thread block */
    double *row_scratch; /* of row_double_kernel, for each thread block */
};

enum { ROW64_BLOCKS = 132 };

/* One vector of the thread's two rows in the scratch: DIM / 8 fragments of 4 elements. */
struct lane_vector {
    float *at;
    __device__ __forceinline__ float get(int element) const { return at[(int64_t)element * THREADS]; }
    __device__ __forceinline__ void put(int element, float x) const { at[(int64_t)element * THREADS] = x; }
};

enum { VECTOR_X, VECTOR_R, VECTOR_P, VECTOR_IMAGE, VECTOR_B, VECTOR_KBAR, VECTOR_VBAR, VECTORS };

/* Floats of a scratch. */
static constexpr size_t solver_scratch(size_t dim) { return VECTORS * (dim / 2) * THREADS; }

template <int DIM> static __device__ __forceinline__ lane_vector scratch_vector(float *scratch, int vector)
{
    const lane_vector v = { scratch + (int64_t)vector * (DIM / 2) * THREADS + threadIdx.x };
    return v;
}

/* bf16 parts of a weight or of a direction. */
template <bool WIDE> constexpr int weight_parts = WIDE ? 3 : 2;

template <bool WIDE, int DIM> struct solve_shared {
    typedef shape<WIDE, DIM> S;
    static constexpr int direction_tiles = WIDE ? 1 : 2;
    alignas(16) typename S::type query[S::row_tile];
    alignas(16) typename S::type direction[direction_tiles * S::row_tile];
    stream_shared<WIDE, DIM> ring;
};

/* Lambda of the thread's rows: one number for all channels (ridge times unit) or, where `channels`, one for
 * each channel. least: the smallest of a row. */
struct row_ridge {
    float unit[2], number[2], least[2];
    bool channels;
};

static __device__ __forceinline__ row_ridge row_ridge_of(const loam_problem &p, const loam_args &a,
                                                         const row_block &x, const row_pair &r,
                                                         const float (&unit)[2])
{
    row_ridge out;
    out.channels = p.ridge_axes == LOAM_RIDGE_CHANNEL;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        out.unit[row] = unit[row];
        out.number[row] = out.least[row] = 0;
        if (!r.real[row]) continue;
        float least = INFINITY;
        for (int c = 0; c < (out.channels ? p.dim_qk : 1); c++) {
            out.number[row] = (float)((double)unit[row] *
                                      local_ridge(&p, &a, &x.s, x.h, x.i0 + r.at[row], c));
            least = fminf(least, out.number[row]);
        }
        out.least[row] = least;
    }
    return out;
}

static __device__ __forceinline__ float ridge_at(const row_ridge &ridge, const loam_problem &p,
                                                 const loam_args &a, const row_block &x, const row_pair &r,
                                                 int row, int c)
{
    if (!ridge.channels || !r.real[row] || c >= p.dim_qk) return ridge.number[row];
    const int64_t at = LOCAL_AT(a.ridge, x.s.b, x.h, x.s.q0 + x.i0 + r.at[row]) + c;
    return (float)((double)ridge.unit[row] * ((const float *)a.ridge.data)[at]);
}

/* The systems (Cov + Lambda) x = b of the block's rows, as one thread sees them. */
template <bool WIDE, int DIM> struct row_systems {
    static constexpr int dim = DIM;
    const loam_problem &p;
    const loam_args &a;
    const row_block &x;
    const row_pair &r;
    const score_constants &sc;
    const row_ridge &ridge;
    solve_shared<WIDE, DIM> &sm;
    float *scratch;
    float lse[2], x0[2];

    __device__ __forceinline__ lane_vector vector(int which) const
    {
        return scratch_vector<DIM>(scratch, which);
    }
    /* Warps do not share rows: a warp works while any of its rows is live. */
    __device__ __forceinline__ bool any_live(bool live) const { return __any_sync(0xffffffffu, live); }
    __device__ __forceinline__ int warp_row() const { return threadIdx.x / 32 * 16; }
    /* Channel c of the query, relative to the same point as kbar. */
    __device__ __forceinline__ float target(int row, int c) const
    {
        const float shift = WIDE && !sc.rbf ? sm.ring.origin[c] : 0;
        return tile_value(sm.query[r.at[row] * shape<WIDE, DIM>::pitch + c]) - shift;
    }
};

/* w <- p = exp(s - lse) of the tile. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void tile_weights(float (&w)[shape<WIDE, DIM>::keys / 8][4],
                                                    const row_systems<WIDE, DIM> &sys, const tile_at &t)
{
    clear(w);
    product_rows<1, DIM>(w, sys.sm.query, 0, sys.warp_row(), sys.sm.ring.keys[t.stage]);
    const key_terms terms = { sys.sm.ring.norm[t.stage], sys.sm.ring.bias[t.stage] };
    scores_in_place(w, sys.sc, terms, sys.r, sys.x0, t.j);
#pragma unroll
    for (int n = 0; n < shape<WIDE, DIM>::keys / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = weight_of(w[n][e], finite_or_zero(sys.lse[e / 2]));
    }
}

/* Writes the vector to shared memory as operand of products. On narrow tiles the operand has two bf16 parts,
 * and the vector is rounded to their sum. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void put_direction(const row_systems<WIDE, DIM> &sys, int which)
{
    const lane_vector v = sys.vector(which);
    __syncwarp();
#pragma unroll 4
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int at = sys.r.at[e / 2] * shape<WIDE, DIM>::pitch + column_of(n, e);
            const float y = v.get(4 * n + e), z = v.get(4 * n + e + 1);
            if constexpr (WIDE) {
                sys.sm.direction[at] = y, sys.sm.direction[at + 1] = z;
            } else {
                uint32_t part[2];
                split_pair(part, y, z);
                *(uint32_t *)(sys.sm.direction + at) = part[0];
                *(uint32_t *)(sys.sm.direction + shape<WIDE, DIM>::row_tile + at) = part[1];
                v.put(4 * n + e, rounded<2>(y)), v.put(4 * n + e + 1, rounded<2>(z));
            }
        }
    }
    __syncwarp();
}

/* out[row] = y . z for both rows. */
template <int DIM>
static __device__ __forceinline__ void row_dots(float (&out)[2], const lane_vector &y, const lane_vector &z)
{
    out[0] = out[1] = 0;
#pragma unroll 8
    for (int n = 0; n < DIM / 2; n++)
        out[n / 2 % 2] += y.get(n) * z.get(n);
    out[0] = quad_sum(out[0]), out[1] = quad_sum(out[1]);
}

/* w <- p (direction . k - centre); row sums of w (this thread's columns) are added to total. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void centred_weights(float (&w)[shape<WIDE, DIM>::keys / 8][4],
                                                       const row_systems<WIDE, DIM> &sys, const tile_at &t,
                                                       const float (&centre)[2], float (&total)[2])
{
    constexpr int blocks = shape<WIDE, DIM>::keys / 8;
    float u[blocks][4];
    tile_weights(w, sys, t);
    clear(u);
    product_rows<2, DIM>(u, sys.sm.direction, shape<WIDE, DIM>::row_tile, sys.warp_row(),
                         sys.sm.ring.keys[t.stage]);
#pragma unroll
    for (int n = 0; n < blocks; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] *= u[n][e] - centre[e / 2];
            total[e / 2] += w[n][e];
        }
    }
}

/* Columns `first` .. of the image (Cov + Lambda) v, from y = sum f k and total = sum f over the keys, where f
 * are the centred weights. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void finish_image(const row_systems<WIDE, DIM> &sys,
                                                    const float (&y)[shape<WIDE, DIM>::columns / 8][4],
                                                    int first, const float (&total)[2], const lane_vector &v,
                                                    const lane_vector &image)
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
#pragma unroll
    for (int n = 0; n < shape<WIDE, DIM>::columns / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = first / 2 + 4 * n + e, c = first + column_of(n, e);
            const float lambda = ridge_at(sys.ridge, sys.p, sys.a, sys.x, sys.r, e / 2, c);
            image.put(at, y[n][e] - total[e / 2] * kbar.get(at) + lambda * v.get(at));
        }
    }
}

/* image <- (Cov + Lambda) v, where v is the vector that put_direction was called with. A warp that is not
 * `busy` only helps to load tiles. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void apply(const row_systems<WIDE, DIM> &sys, const lane_vector &v,
                                             const lane_vector &image, bool busy)
{
    typedef shape<WIDE, DIM> S;
    float centre[2];
    row_dots<DIM>(centre, v, sys.vector(VECTOR_KBAR));
    for (int first = 0; first < DIM; first += S::columns) {
        float y[S::columns / 8][4], total[2] = { 0, 0 };
        clear(y);
        stream_keys<WIDE, DIM, false>(
            sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, false, 0, [&](const tile_at &t) {
                if (busy) {
                    float f[S::keys / 8][4];
                    centred_weights<WIDE, DIM>(f, sys, t, centre, total);
                    product_weights<weight_parts<WIDE>, S::pitch>(y, f, sys.sm.ring.keys[t.stage], first);
                }
            });
        total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
        finish_image(sys, y, first, total, v, image);
    }
}

/* State of the solves of the thread's two rows: b . b, r . r, the unit that b was divided by, and whether the
 * row still iterates. */
struct cg_rows {
    float bb[2], rr[2], unit[2];
    float least[2], most[2]; /* Rayleigh quotients met: they estimate the condition number */
    int iterations[2];
    bool live[2];
};

/* The power of two at or below |x|: division by it is exact. 1 where it is near the limits of float. */
static __device__ __forceinline__ float magnitude(float x)
{
    const float power = __uint_as_float(__float_as_uint(x) & 0x7f800000u);
    return power >= 0x1p-120f && power < 0x1p120f ? power : 1;
}

/* Scales b to about 1, and sets x = 0, r = p = b. */
template <class SYSTEM>
static __device__ __forceinline__ void cg_begin(const SYSTEM &sys, cg_rows &k, const bool (&wanted)[2])
{
    const lane_vector x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), p = sys.vector(VECTOR_P),
                      b = sys.vector(VECTOR_B);
    float top[2] = { 0, 0 };
    for (int n = 0; n < SYSTEM::dim / 2; n++)
        top[n / 2 % 2] = fmaxf(top[n / 2 % 2], fabsf(b.get(n)));
    k.unit[0] = magnitude(quad_max(top[0])), k.unit[1] = magnitude(quad_max(top[1]));
    for (int n = 0; n < SYSTEM::dim / 2; n++) {
        const float y = b.get(n) / k.unit[n / 2 % 2];
        b.put(n, y), r.put(n, y), p.put(n, y), x.put(n, 0);
    }
    row_dots<SYSTEM::dim>(k.bb, b, b);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.rr[row] = k.bb[row];
        k.live[row] = wanted[row] && k.bb[row] > 0 && k.bb[row] < INFINITY;
        k.least[row] = INFINITY, k.most[row] = 0;
        k.iterations[row] = 0;
    }
}

template <class SYSTEM>
static __device__ __forceinline__ void cg_step(const SYSTEM &sys, cg_rows &k, float stop)
{
    const lane_vector x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), p = sys.vector(VECTOR_P);
    const lane_vector image = sys.vector(VECTOR_IMAGE);
    const bool busy = sys.any_live(k.live[0] || k.live[1]);
    if (busy) put_direction(sys, VECTOR_P);
    apply(sys, p, image, busy);
    if (!busy) return;
    float curvature[2], norm2[2], alpha[2], beta[2], rr_next[2] = { 0, 0 };
    row_dots<SYSTEM::dim>(curvature, p, image);
    row_dots<SYSTEM::dim>(norm2, p, p);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.iterations[row] += k.live[row];
        k.live[row] = k.live[row] && curvature[row] > 0;
        alpha[row] = k.live[row] ? k.rr[row] / curvature[row] : 0;
        if (k.live[row]) {
            k.least[row] = fminf(k.least[row], curvature[row] / norm2[row]);
            k.most[row] = fmaxf(k.most[row], curvature[row] / norm2[row]);
        }
    }
    for (int n = 0; n < SYSTEM::dim / 2; n++) {
        const int row = n / 2 % 2;
        const float rest = r.get(n) - alpha[row] * image.get(n);
        x.put(n, x.get(n) + alpha[row] * p.get(n));
        r.put(n, rest);
        rr_next[row] += rest * rest;
    }
    rr_next[0] = quad_sum(rr_next[0]), rr_next[1] = quad_sum(rr_next[1]);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        beta[row] = k.live[row] ? rr_next[row] / k.rr[row] : 0;
        k.rr[row] = k.live[row] ? rr_next[row] : k.rr[row];
        k.live[row] = k.live[row] && rr_next[row] > stop * stop * k.bb[row];
    }
    for (int n = 0; n < SYSTEM::dim / 2; n++)
        p.put(n, r.get(n) + beta[n / 2 % 2] * p.get(n));
}

/* Solves the rows `wanted`: x in units of k.unit. Afterwards x is the direction in shared memory. */
template <class SYSTEM>
static __device__ __forceinline__ void solve_rows(const SYSTEM &sys, cg_rows &k, const bool (&wanted)[2])
{
    const cg_tolerance tolerance = cg_tolerance_of(sys.p.dtype);
    cg_begin(sys, k, wanted);
    for (int step = 0; step < tolerance.most && __syncthreads_or(k.live[0] || k.live[1]); step++)
        cg_step(sys, k, tolerance.stop);
    put_direction(sys, VECTOR_X);
}

/* Whether the row is solved, by its true residual: error2 = |b - (Cov + Lambda) x|^2, in the units of the
 * solve. *residual: relative to |b|. */
static __device__ __forceinline__ bool accepted(const cg_rows &k, const cg_tolerance &tolerance, int row,
                                                float error2, float *residual)
{
    const float ratio = k.bb[row] > 0 ? sqrtf(error2 / k.bb[row]) : 0;
    *residual = ratio;
    const float root = tolerance.by_residual ? 1 : sqrtf(k.most[row] / k.least[row]);
    return ratio == 0 || ratio * root <= tolerance.accept;
}

/* Persistent thread blocks: calls use(n) for each block of rows n that this thread block draws from the
 * counter *next, which begins at 0. All threads of the thread block take part. */
template <class USE>
static __device__ __forceinline__ void for_blocks_drawn(int64_t *next, int64_t blocks, USE use)
{
    __shared__ int64_t block;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) block = (int64_t)atomicAdd((unsigned long long *)next, 1ull);
        __syncthreads();
        if (block >= blocks) return;
        use(block);
    }
}

/* The scratch of this thread block. */
template <int DIM> static __device__ __forceinline__ float *scratch_of(const solve_work &work)
{
    return work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
}

#endif
