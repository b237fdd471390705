/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, the pass over rows: drho, the adjoint solve (Cov + Lambda)
 * y = drho, and dq of 64 rows at a time, with the solver of local/hopper/solve.cuh. Formulas are those of
 * local/cuda/backward_probe.cuh and local/cuda/backward_query.cuh.
 *
 * As in forward, blocks whose rows see many keys have one bf16 part ("cheap"), if one was enough for each of
 * their probes in forward. rho and y are then bf16 numbers times a power of two, and the last sweep has each
 * in one tile. That sweep also finds the residual of the adjoint solve: with E = g - gbar + t,
 * drho - (Cov + Lambda) y = -sum p E kappa - Lambda y. Blocks that miss the tolerance, and all other blocks,
 * have two parts in everything, in launches of their own; there a sweep before the last finds the means of u
 * and t. Blocks with rows for float64 are left to query_kernel.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_ROWS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_ROWS_CUH

#include "src/local/hopper/backward_pairs.cuh"

/* ------------------------------------------------------------------ first sweep */

/* Finds the highest score of each row, and its first key, in the tile that begins at key j. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void find_peak(rows_sums &sum, const float (&products)[8][4],
                                                 const system_hopper<DIM, DECAYED> &sys, int j)
{
    float s[8][4];
    memcpy(s, products, sizeof s);
    decay_of_tile(s, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, at = j + column_of(n, e);
            const float score = DECAYED ? s[n][e] : s[n][e] * sys.scale2;
            if (sys.seen(row, at) && score > sum.best[row]) {
                sum.best[row] = score, sum.peak[row] = at;
            }
        }
    }
}

/* Combines the four lanes of a row. The peak is the first key with the highest score; -1 where none is
 * seen. */
static __device__ __forceinline__ void finish_peak(rows_sums &sum)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float best = __shfl_xor_sync(0xffffffffu, sum.best[row], step);
            const int peak = __shfl_xor_sync(0xffffffffu, sum.peak[row], step);
            if (best > sum.best[row] || (best == sum.best[row] && peak < sum.peak[row])) {
                sum.best[row] = best, sum.peak[row] = peak;
            }
        }
        sum.peak[row] = sum.best[row] > -INFINITY ? sum.peak[row] : -1;
    }
}

/* The first sweep: f = sum p (g - gbar) k of the thread's rows, and sum.rest. do lies where the direction
 * will be. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ void probe_gradient_hopper(float (&f)[DIM / TILE_SIDE][8][4],
                                                             const rows_system<DIM, DECAYED> &rs,
                                                             rows_sums &sum, bool peak)
{
    const system_hopper<DIM, DECAYED> &sys = rs.sys;
    float s[8][4], g[8][4], total[2] = { 0, 0 };
    weights_operand<FINE ? 2 : 1> w;
    sum.best[0] = sum.best[1] = -INFINITY;
    sum.peak[0] = sum.peak[1] = INT32_MAX;
    clear_sums<DIM>(f);
    stream_steps_hopper<DIM, true, !FINE, true>(
        sys.ring(), rs.count.ring, sys.maps, sys.x,
        [&](const tiles_at &t) {
            multiply_rows<DIM>(s, sys.sm.query, t.keys, false);
            more_rows<DIM>(g, sys.sm.direction[0], t.values, false);
        },
        [&](const tiles_at &t) {
            wgmma_results(s);
            wgmma_results(g);
            if (peak) {
                find_peak(sum, s, sys, t.j);
            }
            weights_hopper(s, sys, t.j);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    g[n][e] = s[n][e] * (g[n][e] - sum.gbar[e / 2]);
                }
            }
        },
        [&]() {
            wgmma_results(f);
            split_weights(w, g);
            add_weights(total, w);
        },
        [&](const tiles_at &t) {
            multiply_weights<DIM>(f, w.part[0], t.keys);
            if (FINE) {
                more_weights<DIM>(f, w.part[FINE], t.keys);
            }
        });
    wgmma_results(f);
    finish_peak(sum);
    sum.rest[0] = quad_sum(total[0]), sum.rest[1] = quad_sum(total[1]);
}

/* drho = -sum p (g - gbar) kappa, scaled to about 1, becomes b of the solve; x = 0. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void begin_adjoint(const rows_system<DIM, DECAYED> &rs, cg_rows &k,
                                                     const float (&f)[DIM / TILE_SIDE][8][4],
                                                     const rows_sums &sum, const bool (&wanted)[2])
{
    const system_hopper<DIM, DECAYED> &sys = rs.sys;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = rs.r.real[row] ? sum.rest[row] * kbar.get(n) - f[n / 32][n / 4 % 8][n % 4] : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    cg_begin_hopper(sys, k, y, top, wanted);
}

/* ------------------------------------------------------------------ the solve */

/* The solution becomes the direction, in two parts, and its true residual is found. Returns true where all
 * rows are solved. If not, the rows that are not go on the list for float64, and y and records of all rows
 * are written for query_kernel. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool check_rows(const rows_system<DIM, DECAYED> &rs, const cg_rows &k,
                                                  const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                  const rows_sums &sum)
{
    const system_hopper<DIM, DECAYED> &sys = rs.sys;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B);
    const float none[2] = { 0, 0 };
    float y[DIM / TILE_SIDE][8][4], centre[2], error2[2] = { 0, 0 }, residual;
    bool hard[2];
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = x.get(n);
    }
    turn_direction<true>(sys, y, none, centre);
    image_hopper<true>(y, sys, centre);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const float wrong = b.get(n) - y[n / 32][n / 4 % 8][n % 4];
        error2[n / 2 % 2] += wrong * wrong;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool good = accepted(k, tolerance, row, quad_sum(error2[row]), &residual) &&
                          sys.ridge.least[row] > BLOCK_LEAST_RIDGE * k.most[row];
        hard[row] = sys.r.lo[row] < sys.r.hi[row] && !(wanted[row] && good);
    }
    if (!__syncthreads_or(hard[0] || hard[1])) {
        return true;
    }
#pragma unroll 4
    for (int n = 0; n < DIM / 4; n++) {
        const int row = n % 2, c = column_of(n / 2, 0);
        if (sys.r.real[row]) {
            *(float2 *)(rs.all.arrays.y + rs.line(row) * DIM + c) = solution_pair<true>(sys, k, n / 2,
                                                                                        2 * row);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!sys.r.real[row] || threadIdx.x % 4 != 0) {
            continue;
        }
        row_record rec = {};
        rec.gbar_rest = sum.rest[row], rec.peak = sum.peak[row], rec.unit = sys.ridge.unit[row];
        rs.all.arrays.record[rs.line(row)] = rec;
        if (hard[row]) {
            const hard_row left = { sys.sm.block, sys.r.at[row], k.iterations[row] };
            rs.all.work.hard[atomicAdd(rs.all.work.hard_count, 1ull)] = left;
        }
    }
    return false;
}

/* Loads kbar into the scratch, and sums gbar = do . vbar. True where forward needed two parts for the probe
 * of one of the thread's rows. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool load_means(const rows_system<DIM, DECAYED> &rs, rows_sums &sum)
{
    const system_hopper<DIM, DECAYED> &sys = rs.sys;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    bool fine = false;
    sum.gbar[0] = sum.gbar[1] = 0;
#pragma unroll 8
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, c = column_of(n, e);
            const float2 mean = rs.pair(rs.all.saved.kbar, row, c), rho = rs.pair(rs.all.saved.rho, row, c),
                         value = rs.pair(rs.all.saved.vbar, row, c);
            const float2 grad = __bfloat1622float2(
                *(const __nv_bfloat162 *)(sys.sm.direction[0] + swizzled(rs.r.at[row], c)));
            kbar.put(4 * n + e, mean.x), kbar.put(4 * n + e + 1, mean.y);
            fine |= rounded<1>(rho.x) != rho.x || rounded<1>(rho.y) != rho.y;
            sum.gbar[row] += grad.x * value.x + grad.y * value.y;
        }
    }
    sum.gbar[0] = quad_sum(sum.gbar[0]), sum.gbar[1] = quad_sum(sum.gbar[1]);
    return fine;
}

/* The first sweep, from do to b of the adjoint solve; and the ridge, where its unit is the largest p. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ void begin_rows(system_hopper<DIM, DECAYED> &sys, row_ridge &ridge,
                                                  cg_rows &k, rows_sums &sums, const rows_launch &all,
                                                  rows_count &count, const bool (&wanted)[2])
{
    const rows_system<DIM, DECAYED> rs(sys, all, count);
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    rows_sums sum = sums;
    cg_rows begun;
    float f[DIM / TILE_SIDE][8][4];
    probe_gradient_hopper<FINE>(f, rs, sum, FINE || by_max);
    begin_adjoint(rs, begun, f, sum, wanted);
    k = begun, sums = sum;
    if (by_max) {
        float unit[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            unit[row] = sum.peak[row] < 0 ? 0 : exp2_fast(fminf(sum.best[row] - sys.lse2[row], 0));
        }
        ridge = row_ridge_of(all.p, all.a, sys.x, sys.r, unit);
    }
}

/* Marks as live the rows that the last sweep would not accept, or only just, if their true residual were the
 * recursive one; true where there are any. */
static __device__ __forceinline__ bool go_on(cg_rows &k, const cg_tolerance &tolerance,
                                             const bool (&wanted)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float bound = 0.7f * tolerance.accept;
        k.live[row] = wanted[row] && k.rr[row] < INFINITY &&
                      k.rr[row] * k.most[row] > bound * bound * k.bb[row] * k.least[row];
    }
    return k.live[0] || k.live[1];
}

/* Computes the rows of the block in one part or, FINE, in two; false where one part is not enough. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ bool rows_block_hopper(solve_shared_hopper<DIM> &sm, rows_count &count,
                                                         const rows_launch &all, float *scratch)
{
    const loam_problem &p = all.p;
    const loam_args &a = all.a;
    const row_block &x = sm.rows;
    row_pair r_storage = row_pair_of(p, x);
    const row_pair &r = in_memory(r_storage);
    int64_t hi, first, unused;
    local_visible(&p, &x.s, x.i0, &unused, &hi);
    local_visible(&p, &x.s, x.i0 + x.rows - 1, &first, &unused);
    const float units[2] = { 1, 1 };
    row_ridge ridge_storage = row_ridge_of(p, a, x, r, units);
    row_ridge &ridge = in_memory(ridge_storage);
    system_hopper<DIM, DECAYED> sys_storage = { p,
                                                a,
                                                x,
                                                r,
                                                ridge,
                                                all.maps.all,
                                                sm,
                                                count.ring,
                                                scratch,
                                                (float)(p.scale * 1.4426950408889634),
                                                { 0, 0 },
                                                (int)first,
                                                x.rows < ROWS ? 0 : (int)hi,
                                                FINE,
                                                false };
    system_hopper<DIM, DECAYED> &sys = in_memory(sys_storage);
    rows_sums sum_storage = {};
    rows_sums &sum = in_memory(sum_storage);
    cg_rows k_storage;
    cg_rows &k = in_memory(k_storage);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, 2 * DIM * TILE_SIDE * 2);
        ask_rows(sys, sm.query, all.maps.all.q);
        ask_rows(sys, sm.direction[0], all.maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);

    bool wanted[2], many = load_means(rows_system<DIM, DECAYED>(sys, all, count), sum), tame = true;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float lse = r.real[row]
                              ? ((const float *)all.saved.lse)[local_row(&p, &x.s, x.h, x.i0 + r.at[row])]
                              : 0;
        sys.lse2[row] = finite_or_zero(lse) * 1.44269504f;
        tame = tame && fabsf(sys.lse2[row]) < TAME_LSE;
        wanted[row] = r.lo[row] < r.hi[row] && ridge.least[row] > 0;
        many |= r.lo[row] < r.hi[row] && !wanted[row];
    }
    sys.tame = __syncthreads_and(tame);
    /* In one part, the pass at 128 dimensions has no registers for the gradient of the scale. */
    if (!FINE && (__syncthreads_or(many) || (DIM > 64 && a.grad_scale))) {
        return false;
    }
    /* One part is accepted at a larger residual than in forward: its error enters the gradients once, and a
     * launch with one listed block takes 0.3 ms. */
    const cg_tolerance tolerance = FINE ? cg_tolerance{ 3e-4f, 1e-2f, 128 } : cg_tolerance{ 8e-3f, 3e-2f, 8 };
    begin_rows<FINE>(sys, ridge, k, sum, all, count, wanted);
    cg_run<FINE>(sys, k, tolerance);
    if constexpr (FINE) {
        const bool solved = check_rows(rows_system<DIM, DECAYED>(sys, all, count), k, wanted, tolerance, sum);
        if (solved) {
            finish_rows_fine(rows_system<DIM, DECAYED>(sys, all, count), k, sum);
        }
        if (threadIdx.x == 0) {
            all.arrays.state[sm.block] = solved ? ROWS_FINE : ROWS_LEFT;
        }
        return true;
    } else {
        const float far = tolerance.accept * tolerance.accept;
        if (__syncthreads_or(k.rr[0] > far * k.bb[0] || k.rr[1] > far * k.bb[1])) {
            return false;
        }
        rows_system<DIM, DECAYED> rs_storage(sys, all, count);
        const bool solved = finish_rows(in_memory(rs_storage), k, wanted, tolerance, sum);
        if (solved && threadIdx.x == 0) {
            all.arrays.state[sm.block] = ROWS_CHEAP;
        }
        return solved;
    }
}

template <bool FINE, bool LISTED, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, 2)
    rows_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const local_saved saved, const row_arrays arrays, const solve_work work,
                       const int64_t blocks, const __grid_constant__ rows_maps_hopper maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_hopper<DIM> &sm = *(solve_shared_hopper<DIM> *)swizzled_memory;
    const rows_launch all = { p, a, saved, arrays, work, maps };
    const solve_launch solve = { p, a, saved, work, maps.all };
    rows_count count = {};
    if (FINE && !LISTED) {
        launch_dependents();
    }
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_slots<DIM>; n++) {
            barrier_init(&sm.full[n], 1);
        }
        pair_barriers<DIM> *const pairs = (pair_barriers<DIM> *)(swizzled_memory + pair_barriers_at<DIM>);
        for (int n = 0; n < (int)ring_slots<DIM> - 1; n++) {
            barrier_init(&pairs->full[n], 1);
        }
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
        sm.scratch = take_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = take_block<FINE, LISTED, DIM, DECAYED>(sm.rows, solve, blocks);
        }
        __syncthreads();
        if (sm.block < 0) {
            break;
        }
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = rows_block_hopper<FINE, DIM, DECAYED>(sm, count, all, scratch);
        if (!solved && threadIdx.x == 0) {
            work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
        }
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    if (!FINE) {
        wait_for_previous_launch();
    }
}

#endif
