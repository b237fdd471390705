/* SPDX-License-Identifier: MIT
 *
 * Forward of Local Linear Attention on GPUs, 64 rows of a head at a time: a sweep for the means (online
 * softmax), the solver, and a last sweep
 *     o = vbar - sum p u v,   u = rho . kappa,
 * which also computes the true residual. Rows that are not solved in this way are put on a list;
 * row_double_kernel (local/cuda/row_double.cu) then computes them anew in float64.
 *
 * Persistent thread blocks draw blocks of rows from a counter, since some rows need more iterations than
 * others.
 */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/launch.cuh"
#include "src/local/cuda/solve_work.cuh"

/* Writes the means kbar and vbar to the scratch, and finds lse, square[row] = sum p |k|^2 and the largest p
 * of a row. Weights are rounded to the sum of their bf16 parts before they are added to omega, so that the
 * error of a mean is relative to the spread of the keys, not to their distance from zero. */
template <bool WIDE, int DIM>
static __device__ void sweep_means(row_systems<WIDE, DIM> &sys, float (&square)[2], float (&most)[2])
{
    typedef shape<WIDE, DIM> S;
    constexpr int blocks = S::keys / 8, columns = S::columns / 8;
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
    for (int first = 0; first < DIM; first += S::columns) {
        float k[columns][4], v[columns][4], sum2[2] = { 0, 0 };
        online w;
        clear(k);
        clear(v);
        online_begin(w);
        stream_keys<WIDE, DIM, true>(
            sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, true, first, [&](const tile_at &t) {
                float s[blocks][4], keep[2];
                const key_terms terms = { sys.sm.ring.norm[t.stage], sys.sm.ring.bias[t.stage] };
                clear(s);
                product_rows<1, DIM>(s, sys.sm.query, 0, sys.warp_row(), sys.sm.ring.keys[t.stage]);
                scores_in_place(s, sys.sc, terms, sys.r, sys.x0, t.j);
                online_weigh<weight_parts<WIDE>>(w, s, keep);
                scale_rows(k, keep);
                scale_rows(v, keep);
#pragma unroll
                for (int row = 0; row < 2; row++) {
                    sum2[row] *= keep[row];
#pragma unroll
                    for (int n = 0; n < blocks; n++)
                        sum2[row] += s[n][2 * row] * terms.norm[column_of(n, 0)] +
                                     s[n][2 * row + 1] * terms.norm[column_of(n, 1)];
                }
                product_weights<weight_parts<WIDE>, S::pitch>(k, s, sys.sm.ring.keys[t.stage], first);
                product_weights<S::parts, S::columns + PAD>(v, s, sys.sm.ring.values[t.stage], 0);
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
template <class SYSTEM> static __device__ __forceinline__ void put_right_hand_side(const SYSTEM &sys)
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
static __device__ void sweep_spread(const row_systems<WIDE, DIM> &sys, float (&spread)[2])
{
    typedef shape<WIDE, DIM> S;
    put_direction(sys, VECTOR_KBAR);
    spread[0] = spread[1] = 0;
    stream_keys<WIDE, DIM, false>(sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, false, 0, [&](const tile_at &t) {
        float w[S::keys / 8][4];
        tile_weights(w, sys, t);
        for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const element<WIDE> *key = sys.sm.ring.keys[t.stage] + column_of(n, e) * S::pitch;
                const element<WIDE> *mean = sys.sm.direction + sys.r.at[e / 2] * S::pitch;
                float sum = 0;
                for (int c = 0; c < sys.p.dim_qk; c++) {
                    const float rest = WIDE ? 0 : tile_value(mean[S::row_tile + c]);
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
    if (p.ridge_unit == LOAM_RIDGE_TRACE) sweep_spread(sys, spread);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        variance[row] = spread[row] / (float)p.dim_qk;
        unit[row] = ridge_unit_of(p, most[row], variance[row]);
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
static __device__ void put_solved_weights(const row_systems<WIDE, DIM> &sys, const cg_rows &k,
                                          const float (&centre)[2], const float (&rest)[2])
{
    typedef shape<WIDE, DIM> S;
    const float from[2] = { centre[0] + rest[0], centre[1] + rest[1] };
    clear_weights(sys.p, sys.a, sys.x);
    stream_keys<WIDE, DIM, false>(sys.sm.ring, sys.p, sys.a, sys.x, sys.sc, false, 0, [&](const tile_at &t) {
        float w[S::keys / 8][4], u[S::keys / 8][4];
        tile_weights(w, sys, t);
        clear(u);
        product_rows<2, DIM>(u, sys.sm.direction, S::row_tile, sys.warp_row(), sys.sm.ring.keys[t.stage]);
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                put_weight(sys.a, sys.x, sys.r, row, t.j + column_of(n, e),
                           w[n][e] * (1 - k.unit[row] * (u[n][e] - from[row])));
            }
        }
    });
}

/* Writes columns c and c + 1 of o, rho and saved of a row within the sequence. at: their place in the vectors
 * of the thread. */
template <bool WIDE, int DIM>
static __device__ __forceinline__ void put_output(const row_systems<WIDE, DIM> &sys, const cg_rows &k,
                                                  const local_saved &saved, int row, int at, int c,
                                                  const float (&out)[2])
{
    const loam_problem &p = sys.p;
    const loam_args &a = sys.a;
    const row_block &block = sys.x;
    const lane_vector x = sys.vector(VECTOR_X), vbar = sys.vector(VECTOR_VBAR),
                      kbar = sys.vector(VECTOR_KBAR);
    const int64_t i = block.i0 + sys.r.at[row], saved_row = local_row(&p, &block.s, block.h, i);
    const int64_t token = block.s.q0 + i;
    store_pair(a.o.data, p.dtype, LOCAL_AT(a.o, block.s.b, block.h, token), c, p.dim_v, out[0], out[1]);
    const float rho[2] = { k.unit[row] * x.get(at), k.unit[row] * x.get(at + 1) };
    if (a.rho.data) {
        store_pair(a.rho.data, LOAM_F32, LOCAL_AT(a.rho, block.s.b, block.h, token), c, p.dim_qk, rho[0],
                   rho[1]);
    }
    if (a.saved) {
        store_pair(saved.rho, LOAM_F32, saved_row * p.dim_qk, c, p.dim_qk, rho[0], rho[1]);
        const float *const origin = sys.sm.ring.origin;
        store_pair(saved.kbar, LOAM_F32, saved_row * p.dim_qk, c, p.dim_qk,
                   kbar.get(at) + saved_shift<WIDE>(p, origin, c),
                   kbar.get(at + 1) + saved_shift<WIDE>(p, origin, c + 1));
        store_pair(saved.vbar, LOAM_F32, saved_row * p.dim_v, c, p.dim_v, vbar.get(at), vbar.get(at + 1));
    }
}

/* The last sweep: writes o, rho and saved of rows within the sequence.
 * error2[row] = |b - (Cov + Lambda) x|^2; finite: whether all of o is. */
template <bool WIDE, int DIM>
static __device__ void sweep_outputs(const row_systems<WIDE, DIM> &sys, const cg_rows &k,
                                     const local_saved &saved, float (&error2)[2], bool (&finite)[2])
{
    typedef shape<WIDE, DIM> S;
    constexpr int columns = S::columns / 8;
    const loam_problem &p = sys.p;
    const loam_args &a = sys.a;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B), image = sys.vector(VECTOR_IMAGE);
    const lane_vector vbar = sys.vector(VECTOR_VBAR);
    float centre[2], bad[2] = { 0, 0 };
    row_dots<DIM>(centre, x, sys.vector(VECTOR_KBAR));
    error2[0] = error2[1] = 0;
    for (int first = 0; first < DIM; first += S::columns) {
        float y[columns][4], o[columns][4], total[2] = { 0, 0 };
        clear(y);
        clear(o);
        stream_keys<WIDE, DIM, true>(sys.sm.ring, p, a, sys.x, sys.sc, false, first, [&](const tile_at &t) {
            float f[S::keys / 8][4];
            centred_weights<WIDE, DIM>(f, sys, t, centre, total);
            product_weights<weight_parts<WIDE>, S::pitch>(y, f, sys.sm.ring.keys[t.stage], first);
            product_weights<weight_parts<WIDE>, S::columns + PAD>(o, f, sys.sm.ring.values[t.stage], 0);
        });
        total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
        finish_image(sys, y, first, total, x, image);
        if (a.weights.data && first == 0) put_solved_weights(sys, k, centre, total);
#pragma unroll
        for (int n = 0; n < columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const int row = e / 2, at = first / 2 + 4 * n + e, c = first + column_of(n, e);
                float out[2];
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const float residual = b.get(at + s) - image.get(at + s);
                    error2[row] += residual * residual;
                    const float mean = vbar.get(at + s);
                    out[s] = mean - k.unit[row] * (o[n][e + s] - total[row] * mean);
                    bad[row] += c + s < p.dim_v ? out[s] * 0 : 0;
                }
                if (sys.r.real[row]) put_output(sys, k, saved, row, at, c, out);
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
    if (x.rows <= 0) return;
    const score_constants sc = score_constants_of(p, a, x.s, x.h);
    const row_pair r = row_pair_of(p, x);
    __syncthreads();
    begin_rows<WIDE, DIM>(sm.query, sm.ring, p, a, x);
    float constant[2], square[2], most[2], error2[2];
    bool wanted[2], finite[2];
    query_constants<WIDE, DIM>(constant, sm.query, sm.ring.origin, r, sc.rbf);
    row_ridge ridge = {};
    row_systems<WIDE, DIM> sys = {
        p,     a,  x,       r,        sc,
        ridge, sm, scratch, { 0, 0 }, { sc.mapped ? constant[0] : 0, sc.mapped ? constant[1] : 0 }
    };
    sweep_means(sys, square, most);
    copy_async_wait<0>();
    __syncthreads();
    put_right_hand_side(sys);
    ridge = ridge_of_rows(sys, square, most, wanted);
    cg_rows k;
    solve_rows(sys, k, wanted);
    sweep_outputs(sys, k, saved, error2, finite);

#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) continue;
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
        const float lse = sys.lse[row] + (sc.mapped ? 0 : sc.scale * constant[row]);
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = lse;
        if (a.saved) {
            ((float *)saved.lse)[local_row(&p, &x.s, x.h, i)] = WIDE && local_saves_raw(&p) ? lse
                                                                                            : sys.lse[row];
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
    float *scratch = scratch_of<DIM>(work);
    for_blocks_drawn(work.next_block, blocks,
                     [&](int64_t block) { solved_block(sm, p, a, saved, work, block, scratch); });
}

template <bool WIDE, int DIM>
static loam_status launch_solved(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p);
    const int64_t most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    constexpr size_t shared = sizeof(solve_shared<WIDE, DIM>);
    TRY(solve_work_clear(&work, a, error));
    TRY(cuda_allow_shared((const void *)solved_kernel<WIDE, DIM>, shared, error));
    solved_kernel<WIDE, DIM>
        <<<(unsigned)grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, work, blocks);
    return cuda_launched("solved_kernel", error);
}

loam_status local_solved_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return by_tiles(
        p, [&](auto wide,
               auto dim) { return launch_solved<decltype(wide)::value, decltype(dim)::value>(p, a, error); });
}

size_t local_solved_cuda_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)solve_work_carve(p, &pool);
    return pool.used;
}
