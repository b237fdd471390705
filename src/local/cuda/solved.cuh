/* SPDX-License-Identifier: MIT
 *
 * Forward of Local Linear Attention on GPUs, 64 rows of a head at a time: a sweep for the means (online
 * softmax), the solver, and a last sweep
 *     o = vbar - sum p u v,   u = rho . kappa,
 * which also computes the true residual. Rows that are not solved in this way are put on a list; row64_kernel
 * (local/cuda/row64.cu) then computes them anew in float64.
 *
 * Persistent blocks take blocks of rows from a counter, since some rows need more iterations than others.
 */
#ifndef LOAM_LOCAL_CUDA_SOLVED_CUH
#define LOAM_LOCAL_CUDA_SOLVED_CUH

#include "src/local/cuda/solve.cuh"

/* A row left to float64: row `at` of block of rows `block`. */
struct hard_row {
    int64_t block;
    int32_t at, iterations;
};

/* The workspace, the same for forward and backward. */
struct solve_work {
    int64_t *next_block;
    unsigned long long *hard_count;
    /* On Hopper: counters of the launches for blocks of rows with few keys, and for those listed for a second
     * launch; the list; which scratches are taken. */
    int64_t *next_few, *next_listed;
    unsigned long long *listed_count;
    int32_t *scratch_taken;
    int32_t *listed;
    hard_row *hard;
    int64_t scratches;
    float *scratch;      /* of the solver, for each thread block */
    double *row_scratch; /* of row64_kernel, for each thread block */
};

enum { ROW64_BLOCKS = 132 };

/* Writes the means kbar and vbar to the scratch, and finds lse, square[row] = sum p |k|^2 and the largest p
 * of a row. Weights are rounded to the sum of their bf16 parts before they are added to omega, so that the
 * error of a mean is relative to the spread of the keys, not to their distance from zero. */
template <bool WIDE, int DIM>
static __device__ void sweep_means(system_of<WIDE, DIM> &sys, float (&square)[2], float (&most)[2])
{
    typedef shape<WIDE, DIM> of;
    constexpr int blocks = of::keys / 8, columns = of::columns / 8;
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
    for (int first = 0; first < DIM; first += of::columns) {
        float k[columns][4], v[columns][4], sum2[2] = { 0, 0 };
        online w;
        clear(k);
        clear(v);
        online_begin(w);
        stream_keys<WIDE, DIM, true>(
            sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, true, first, [&](const tile_at &t) {
                float s[blocks][4], keep[2];
                const key_terms terms = { sys.sm.ring.norm[t.slot], sys.sm.ring.bias[t.slot] };
                clear(s);
                product_rows<1, DIM>(s, sys.sm.query, 0, sys.warp_row(), sys.sm.ring.keys[t.slot]);
                scores_in_place(s, sys.sc, terms, sys.r, sys.x0, t.j);
                online_weigh<fine_parts<WIDE>>(w, s, keep);
                scale_rows(k, keep);
                scale_rows(v, keep);
#pragma unroll
                for (int row = 0; row < 2; row++) {
                    sum2[row] *= keep[row];
#pragma unroll
                    for (int n = 0; n < blocks; n++) {
                        sum2[row] += s[n][2 * row] * terms.norm[column_of(n, 0)] +
                                     s[n][2 * row + 1] * terms.norm[column_of(n, 1)];
                    }
                }
                product_weights<fine_parts<WIDE>, of::pitch>(k, s, sys.sm.ring.keys[t.slot], first);
                product_weights<of::parts, of::columns + PAD>(v, s, sys.sm.ring.values[t.slot], 0);
            });
        float inverse[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float omega = quad_sum(w.omega[row]);
            inverse[row] = omega > 0 ? 1 / omega : 0;
            sys.lse[row] = omega > 0 ? w.m[row] + logf(omega) : -INFINITY;
            square[row] = quad_sum(sum2[row]) * inverse[row];
            most[row] = inverse[row];
        }
        scale_rows(k, inverse);
        scale_rows(v, inverse);
#pragma unroll
        for (int n = 0; n < columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                kbar.put(first / 2 + 4 * n + e, k[n][e]);
                vbar.put(first / 2 + 4 * n + e, v[n][e]);
            }
        }
    }
}

/* b = kbar - q, both relative to the same point. */
template <class SYSTEM> static __device__ __forceinline__ void put_right_side(const SYSTEM &sys)
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR), b = sys.vector(VECTOR_B);
    for (int n = 0; n < SYSTEM::dim / 2; n++) {
        const int row = n / 2 % 2;
        b.put(n, sys.r.real[row] ? kbar.get(n) - sys.target(row, column_of(n / 4, n % 4)) : 0);
    }
}

/* spread[row] = sum p |k - kbar|^2, from differences. The formula sum p |k|^2 - |kbar|^2 would cancel
 * where nearly all weight is on one key, and a ridge relative to the trace needs the small result to
 * full precision. */
template <bool WIDE, int DIM>
static __device__ void sweep_spread(const system_of<WIDE, DIM> &sys, float (&spread)[2])
{
    typedef shape<WIDE, DIM> of;
    put_direction(sys, VECTOR_KBAR);
    spread[0] = spread[1] = 0;
    stream_keys<WIDE, DIM, false>(sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, false, 0, [&](const tile_at &t) {
        float w[of::keys / 8][4];
        tile_weights(w, sys, t);
        for (int n = 0; n < of::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const element<WIDE> *key = sys.sm.ring.keys[t.slot] + column_of(n, e) * of::pitch;
                const element<WIDE> *mean = sys.sm.direction + sys.r.at[e / 2] * of::pitch;
                float sum = 0;
                for (int c = 0; c < sys.p.dim_qk; c++) {
                    const float rest = WIDE ? 0 : tile_value(mean[of::row_tile + c]);
                    const float kappa = tile_value(key[c]) - tile_value(mean[c]) - rest;
                    sum += kappa * kappa;
                }
                spread[e / 2] += w[n][e] * sum;
            }
        }
    });
    spread[0] = quad_sum(spread[0]), spread[1] = quad_sum(spread[1]);
}

/* Finds Lambda with its unit, and `wanted`, the rows for the solver: those that see a key, have not
 * overflowed, and whose ridge is not so small that only float64 can tell what is singular. */
template <class SYSTEM>
static __device__ __forceinline__ row_ridge ridge_of_rows(const SYSTEM &sys, const float (&square)[2],
                                                          const float (&most)[2], bool (&wanted)[2])
{
    const loam_problem &p = sys.p;
    float centre2[2], spread[2], unit[2], variance[2];
    row_dots<SYSTEM::dim>(centre2, sys.vector(VECTOR_KBAR), sys.vector(VECTOR_KBAR));
    spread[0] = fmaxf(square[0] - centre2[0], 0), spread[1] = fmaxf(square[1] - centre2[1], 0);
    if (p.ridge_unit == LOAM_RIDGE_TRACE) {
        sweep_spread(sys, spread);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        variance[row] = spread[row] / (float)p.dim_qk;
        unit[row] = p.ridge_unit == LOAM_RIDGE_MAX     ? most[row]
                    : p.ridge_unit == LOAM_RIDGE_TRACE ? variance[row] + (float)LOCAL_TRACE_FLOOR
                                                       : 1;
    }
    const row_ridge ridge = row_ridge_of(p, sys.a, sys.x, sys.r, unit);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        wanted[row] = sys.r.lo[row] < sys.r.hi[row] && square[row] < INFINITY &&
                      ridge.least[row] > BLOCK_LEAST_RIDGE * variance[row];
    }
    return ridge;
}

/* Writes effective weights p (1 - u), in a sweep of their own: they are meant for small inputs only. rest:
 * the mean of u, which is 0 but for rounding. */
template <bool WIDE, int DIM>
static __device__ void put_solved_weights(const system_of<WIDE, DIM> &sys, const cg_rows &k,
                                          const float (&centre)[2], const float (&rest)[2])
{
    typedef shape<WIDE, DIM> of;
    const float from[2] = { centre[0] + rest[0], centre[1] + rest[1] };
    clear_weights(sys.p, sys.a, sys.x);
    stream_keys<WIDE, DIM, false>(sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, false, 0, [&](const tile_at &t) {
        float w[of::keys / 8][4], u[of::keys / 8][4];
        tile_weights(w, sys, t);
        clear(u);
        product_rows<2, DIM>(u, sys.sm.direction, of::row_tile, sys.warp_row(), sys.sm.ring.keys[t.slot]);
#pragma unroll
        for (int n = 0; n < of::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                put_weight(sys.a, sys.x, sys.r, row, t.j + column_of(n, e),
                           w[n][e] * (1 - k.unit[row] * (u[n][e] - from[row])));
            }
        }
    });
}

/* The last sweep: writes o, rho and saved of rows within the sequence.
 * error2[row] = |b - (Cov + Lambda) x|^2; finite: whether all of o is. */
template <bool WIDE, int DIM>
static __device__ void sweep_lines(const system_of<WIDE, DIM> &sys, const cg_rows &k,
                                   const local_saved &saved, float (&error2)[2], bool (&finite)[2])
{
    typedef shape<WIDE, DIM> of;
    constexpr int columns = of::columns / 8;
    const loam_problem &p = sys.p;
    const loam_args &a = sys.a;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B), image = sys.vector(VECTOR_IMAGE);
    const lane_vector vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
    float centre[2], bad[2] = { 0, 0 };
    row_dots<DIM>(centre, x, kbar);
    error2[0] = error2[1] = 0;
    for (int first = 0; first < DIM; first += of::columns) {
        float y[columns][4], o[columns][4], total[2] = { 0, 0 };
        clear(y);
        clear(o);
        stream_keys<WIDE, DIM, true>(sys.sm.ring, p, a, sys.x, sys.sc, false, first, [&](const tile_at &t) {
            float f[of::keys / 8][4];
            centred_weights<WIDE, DIM>(f, sys, t, centre, total);
            product_weights<fine_parts<WIDE>, of::pitch>(y, f, sys.sm.ring.keys[t.slot], first);
            product_weights<fine_parts<WIDE>, of::columns + PAD>(o, f, sys.sm.ring.values[t.slot], 0);
        });
        total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
        finish_image(sys, y, first, total, x, image);
        if (a.weights.data && first == 0) {
            put_solved_weights(sys, k, centre, total);
        }
#pragma unroll
        for (int n = 0; n < columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const int row = e / 2, at = first / 2 + 4 * n + e, c = first + column_of(n, e);
                float out[2];
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const float wrong = b.get(at + s) - image.get(at + s);
                    error2[row] += wrong * wrong;
                    const float mean = vbar.get(at + s);
                    out[s] = mean - k.unit[row] * (o[n][e + s] - total[row] * mean);
                    bad[row] += c + s < p.dim_v ? out[s] * 0 : 0;
                }
                if (!sys.r.real[row]) {
                    continue;
                }
                const int64_t i = sys.x.i0 + sys.r.at[row], line = local_row(&p, &sys.x.s, sys.x.h, i);
                const int64_t token = sys.x.s.q0 + i;
                store_pair(a.o.data, p.dtype, LOCAL_AT(a.o, sys.x.s.b, sys.x.h, token), c, p.dim_v, out[0],
                           out[1]);
                const float rho[2] = { k.unit[row] * x.get(at), k.unit[row] * x.get(at + 1) };
                if (a.rho.data) {
                    store_pair(a.rho.data, LOAM_F32, LOCAL_AT(a.rho, sys.x.s.b, sys.x.h, token), c, p.dim_qk,
                               rho[0], rho[1]);
                }
                if (a.saved) {
                    store_pair(saved.rho, LOAM_F32, line * p.dim_qk, c, p.dim_qk, rho[0], rho[1]);
                    store_pair(saved.kbar, LOAM_F32, line * p.dim_qk, c, p.dim_qk, kbar.get(at),
                               kbar.get(at + 1));
                    store_pair(saved.vbar, LOAM_F32, line * p.dim_v, c, p.dim_v, vbar.get(at),
                               vbar.get(at + 1));
                }
            }
        }
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

template <bool WIDE, int DIM>
static __device__ void solved_block(solve_shared<WIDE, DIM> &sm, const loam_problem &p, const loam_args &a,
                                    const local_saved &saved, const solve_work &work, int64_t block,
                                    float *scratch)
{
    const row_block x = row_block_at(p, a, block);
    if (x.rows <= 0) {
        return;
    }
    const scoring sc = scoring_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    __syncthreads();
    begin_rows<WIDE, DIM>(sm.query, sm.ring, p, a, x);
    float constant[2], square[2], most[2], error2[2];
    bool wanted[2], finite[2];
    query_constants<WIDE, DIM>(constant, sm.query, sm.ring.origin, r, sc.rbf);
    row_ridge ridge = {};
    system_of<WIDE, DIM> sys = {
        p,     a,  x,       r,        sc,
        ridge, sm, scratch, { 0, 0 }, { sc.capped ? constant[0] : 0, sc.capped ? constant[1] : 0 }
    };
    sweep_means(sys, square, most);
    copy_async_wait<0>();
    __syncthreads();
    put_right_side(sys);
    ridge = ridge_of_rows(sys, square, most, wanted);
    cg_rows k;
    solve_rows(sys, k, wanted);
    sweep_lines(sys, k, saved, error2, finite);

#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) {
            continue;
        }
        const bool empty = r.lo[row] >= r.hi[row];
        const int64_t i = x.i0 + r.at[row];
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, k.iterations[row], 0 };
        const bool good = accepted(k, cg_tolerance_of(p.dtype), row, error2[row], &info.residual);
        if (empty) {
            info = loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
        } else if (!wanted[row] || !good || !finite[row]) {
            const hard_row hard = { block, r.at[row], k.iterations[row] };
            work.hard[atomicAdd(work.hard_count, 1ull)] = hard;
        }
        put_info(a, x, i, info);
        if (a.lse.data) {
            ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] =
                sys.lse[row] + (sc.capped ? 0 : sc.scale * constant[row]);
        }
        if (a.saved) {
            ((float *)saved.lse)[local_row(&p, &x.s, x.h, i)] = sys.lse[row];
        }
    }
}

template <bool WIDE, int DIM>
__global__ void __launch_bounds__(THREADS, 2)
    solved_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                  const local_saved saved, const solve_work work, const int64_t blocks)
{
    extern __shared__ __align__(16) unsigned char memory[];
    solve_shared<WIDE, DIM> &sm = *(solve_shared<WIDE, DIM> *)memory;
    __shared__ int64_t block;
    float *scratch = work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            block = (int64_t)atomicAdd((unsigned long long *)work.next_block, 1ull);
        }
        __syncthreads();
        if (block >= blocks) {
            return;
        }
        solved_block(sm, p, a, saved, work, block, scratch);
    }
}

#endif
