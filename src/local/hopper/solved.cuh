/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the passes of local/cuda/solved.cuh, for bf16, dot scores that
 * may decay but have no other bias, and head dimensions 64 and 128. A thread block is one warpgroup with 64
 * rows.
 *
 * Blocks whose rows see many keys have directions and weights in one bf16 part each, which leaves a residual
 * of about 2^-8; the last sweep measures the true one. Where it misses the tolerance, or the iteration is too
 * slow to reach it, the block is listed for a launch in two parts. Blocks with few keys have two parts at
 * once, in a launch that overlaps with the first. One kernel for both would need too many registers for its
 * products to be pipelined.
 */
#ifndef LOAM_LOCAL_HOPPER_SOLVED_CUH
#define LOAM_LOCAL_HOPPER_SOLVED_CUH

#include "src/local/hopper/solve.cuh"

/* A pass over keys and values, in a ring of MORE stages than the solver's, which overwrite parts of the
 * direction. */
template <int MORE, bool AHEAD, int DIM, bool DECAYED, class SCORE, class WEIGH, class PACK, class GATHER>
static __device__ __forceinline__ void stream_values_hopper(const system_hopper<DIM, DECAYED> &sys,
                                                            SCORE score, WEIGH weigh, PACK pack,
                                                            GATHER gather)
{
    if constexpr (MORE == 0) {
        stream_steps_hopper<DIM, true, AHEAD>(sys.ring(), sys.count, sys.maps, sys.x, score, weigh, pack,
                                              gather);
    } else {
        ring_count count = sys.sm.wide[MORE - 1];
        fence_async_proxy();
        __syncthreads();
        stream_steps_hopper<DIM, true, AHEAD>(sys.template wide_ring<MORE>(), count, sys.maps, sys.x, score,
                                              weigh, pack, gather);
        if (threadIdx.x == 0) {
            sys.sm.wide[MORE - 1] = count;
        }
    }
}

/* The online softmax: lse, and the means of keys and values into the scratch. most: the largest p of a row.
 * Means are divided by the sum of the weights as rounded to their parts: their error is then relative to the
 * spread of the keys, not to their size. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ void means_hopper(system_hopper<DIM, DECAYED> &outer, float (&lse)[2],
                                                    float (&most)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    system_hopper<DIM, DECAYED> sys = known_system(outer, r, ridge);
    constexpr int parts = FINE ? 2 : 1;
    float k[DIM / TILE_SIDE][8][4], v[DIM / TILE_SIDE][8][4], s[8][4];
    float m[2] = { -INFINITY, -INFINITY }, omega[2] = { 0, 0 }, sum[2] = { 0, 0 }, keep[2];
    weights_operand<parts> a;
    score_rows<DIM, DECAYED, FINE, true> rows;
    rows.load_query(sys);
    clear_sums<DIM>(k);
    clear_sums<DIM>(v);
    stream_values_hopper<FINE || DIM == 64 ? 0 : 2, true>(
        sys, [&](const tiles_at &t) { rows.query_keys(s, sys, t.keys); },
        [&](const tiles_at &t) {
            wgmma_results(s);
            decay_of_tile(s, sys, t.j);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[n][e] *= DECAYED ? 1.0f : sys.scale2;
                }
            }
            if (!sys.all_seen(t.j)) {
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        s[n][e] = sys.seen(e / 2, t.j + column_of(n, e)) ? s[n][e] : -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float top = m[row];
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    top = fmaxf(top, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
                }
                top = quad_max(top);
                const float base = finite_or_zero(top);
                keep[row] = exp2_fast(m[row] - base);
                m[row] = top, omega[row] *= keep[row], sum[row] *= keep[row];
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 2 * row; e < 2 * row + 2; e++) {
                        s[n][e] = exp2_fast(s[n][e] - base);
                        omega[row] += s[n][e];
                    }
                }
            }
            wgmma_results(s);
        },
        [&]() {
            wgmma_results(k);
            wgmma_results(v);
            split_weights(a, s);
#pragma unroll
            for (int step = 0; step < 4; step++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
#pragma unroll
                    for (int part = 0; part < parts; part++) {
                        const uint32_t pair = a.part[part][step][e];
                        sum[e % 2] += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
                    }
                }
            }
            if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        k[n / 8][n % 8][e] *= keep[e / 2], v[n / 8][n % 8][e] *= keep[e / 2];
                    }
                }
            }
        },
        [&](const tiles_at &t) {
            if (FINE) {
                multiply_weights<DIM>(k, a.part[FINE], t.keys);
            }
            multiply_weights<DIM>(k, a.part[0], t.keys);
            multiply_weights<DIM>(v, a.part[0], t.values);
        });
    wgmma_results(k);
    wgmma_results(v);
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
    sys.tame = true;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        omega[row] = quad_sum(omega[row]), sum[row] = quad_sum(sum[row]);
        const bool some = omega[row] > 0;
        const float inverse = sum[row] > 0 ? 1 / sum[row] : 0;
        sys.lse2[row] = some ? m[row] + log2f(omega[row]) : 0;
        sys.tame = sys.tame && fabsf(sys.lse2[row]) < TAME_LSE;
        lse[row] = some ? sys.lse2[row] * 0.693147181f : -INFINITY;
        most[row] = some ? 1 / omega[row] : 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                kbar.put(4 * n + e, k[n / 8][n % 8][e] * inverse);
                vbar.put(4 * n + e, v[n / 8][n % 8][e] * inverse);
            }
        }
    }
    outer.tame = __syncthreads_and(sys.tame);
    outer.lse2[0] = sys.lse2[0], outer.lse2[1] = sys.lse2[1];
}

/* b = kbar - q, scaled to about 1; x = 0 and r = b. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void begin_hopper(const system_hopper<DIM, DECAYED> &outer, cg_rows &k,
                                                    const bool (&wanted)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_hopper<DIM, DECAYED> sys = known_system(outer, r, ridge);
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = sys.r.real[row] ? kbar.get(n) - sys.target(row, column_of(n / 4, n % 4)) : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    cg_begin_hopper(sys, k, y, top, wanted);
}

/* Stores two neighbours of a row of bf16. */
static __device__ __forceinline__ void store_bf16_pair(__nv_bfloat16 *to, float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    if ((uintptr_t)to % 4 == 0) {
        *(__nv_bfloat162 *)to = pair;
    } else {
        to[0] = pair.x, to[1] = pair.y;
    }
}

/* Writes rho, and saves rho, kbar and vbar for the backward pass, of rows within the sequence. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ void put_rows(const system_hopper<DIM, DECAYED> &sys, const cg_rows &k,
                                                const local_saved &saved)
{
    const loam_args &a = sys.a;
    const lane_vector vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t i = sys.x.i0 + sys.r.at[row], line = local_row(&sys.p, &sys.x.s, sys.x.h, i);
        const int64_t to = LOCAL_AT(a.rho, sys.x.s.b, sys.x.h, sys.x.s.q0 + i);
        if (!sys.r.real[row]) {
            continue;
        }
#pragma unroll 4
        for (int n = 0; n < DIM / 8; n++) {
            const float2 x = direction_pair<FINE>(sys, n, 2 * row);
            const float2 rho = { k.unit[row] * x.x, k.unit[row] * x.y };
            const int c = column_of(n, 0), at = 4 * n + 2 * row;
            if (a.rho.data) {
                ((float *)a.rho.data)[to + c] = rho.x, ((float *)a.rho.data)[to + c + 1] = rho.y;
            }
            if (a.saved) {
                *(float2 *)((float *)saved.rho + line * DIM + c) = rho;
                *(float2 *)((float *)saved.kbar + line * DIM + c) = { kbar.get(at), kbar.get(at + 1) };
                *(float2 *)((float *)saved.vbar + line * DIM + c) = { vbar.get(at), vbar.get(at + 1) };
            }
        }
    }
}

/* The last sweep: writes o = vbar - sum p u v, rho and saved of rows within the sequence. error: the square
 * of |b - (Cov + Lambda) x| of each row; finite: whether its o is. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ void lines_hopper(const system_hopper<DIM, DECAYED> &outer,
                                                    const cg_rows &k, const local_saved &saved,
                                                    float (&error)[2], bool (&finite)[2])
{
    const row_pair r = outer.r;
    const row_ridge ridge = outer.ridge;
    const system_hopper<DIM, DECAYED> sys = known_system(outer, r, ridge);
    float error2[2];
    const loam_args &a = sys.a;
    float y[DIM / TILE_SIDE][8][4], o[DIM / TILE_SIDE][8][4], total[2] = { 0, 0 }, centre[2];
    float f[8][4], u[8][4];
    weights_operand<FINE ? 2 : 1> w;
    score_rows<DIM, DECAYED, FINE, true> rows;
    {
        const lane_vector x = sys.vector(VECTOR_X);
        const float none[2] = { 0, 0 };
#pragma unroll
        for (int n = 0; n < DIM / 2; n++) {
            y[n / 32][n / 4 % 8][n % 4] = x.get(n);
        }
        turn_direction<FINE>(sys, y, none, centre);
    }
    rows.load(sys);
    clear_sums<DIM>(y);
    clear_sums<DIM>(o);
    stream_values_hopper<FINE || DIM == 64 ? 0 : 1, false>(
        sys,
        [&](const tiles_at &t) {
            rows.query_keys(f, sys, t.keys);
            rows.direction_keys(u, sys, t.keys);
        },
        [&](const tiles_at &t) { centre_weights(f, u, sys, t.j, centre, total); },
        [&]() {
            wgmma_results(y);
            wgmma_results(o);
            split_weights(w, f);
        },
        [&](const tiles_at &t) {
            if (FINE) {
                multiply_weights<DIM>(y, w.part[FINE], t.keys);
                multiply_weights<DIM>(o, w.part[FINE], t.values);
            }
            multiply_weights<DIM>(y, w.part[0], t.keys);
            multiply_weights<DIM>(o, w.part[0], t.values);
        });
    wgmma_results(y);
    wgmma_results(o);
    finish_image<FINE>(y, sys, total);
    const lane_vector b = sys.vector(VECTOR_B), vbar = sys.vector(VECTOR_VBAR);
    float bad[2] = { 0, 0 };
    __nv_bfloat16 *to[2];
    error2[0] = error2[1] = 0;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to[row] = (__nv_bfloat16 *)a.o.data +
                  LOCAL_AT(a.o, sys.x.s.b, sys.x.h, sys.x.s.q0 + sys.x.i0 + sys.r.at[row]);
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, at = 4 * n + e;
            float out[2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const float rest = b.get(at + s) - y[n / 8][n % 8][e + s], mean = vbar.get(at + s);
                error2[row] += rest * rest;
                out[s] = mean - k.unit[row] * (o[n / 8][n % 8][e + s] - total[row] * mean);
                bad[row] += out[s] * 0;
            }
            if (sys.r.real[row]) {
                store_bf16_pair(to[row] + column_of(n, 0), out[0], out[1]);
            }
        }
    }
    if (a.rho.data || a.saved) {
        put_rows<FINE>(sys, k, saved);
    }
    error[0] = quad_sum(error2[0]), error[1] = quad_sum(error2[1]);
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* Solves the rows of the block in one part or, FINE, in two; false where one part was not enough. */
template <bool FINE, int DIM, bool DECAYED>
static __device__ __forceinline__ bool solved_block_hopper(solve_shared_hopper<DIM> &sm, ring_count &count,
                                                           unsigned &queries, const solve_launch &all,
                                                           float *scratch)
{
    const loam_problem &p = all.p;
    const loam_args &a = all.a;
    const row_block &x = sm.rows;
    row_pair r_storage = row_pair_of(p, x);
    const row_pair &r = in_memory(r_storage);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, DIM * TILE_SIDE * 2);
        for (int c = 0; c < DIM; c += TILE_SIDE) {
            load_box(sm.query + c * TILE_SIDE, &all.maps.q, &sm.query_full, c, (int)(x.s.q0 + x.i0), (int)x.h,
                     (int)x.s.b);
        }
    }
    barrier_wait(&sm.query_full, queries++ % 2);

    int64_t hi, first, unused;
    local_visible(&p, &x.s, x.i0, &unused, &hi);
    local_visible(&p, &x.s, x.i0 + x.rows - 1, &first, &unused);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    system_hopper<DIM, DECAYED> sys_storage = { p,
                                                a,
                                                x,
                                                r,
                                                ridge,
                                                all.maps,
                                                sm,
                                                count,
                                                scratch,
                                                (float)(p.scale * 1.4426950408889634),
                                                { 0, 0 },
                                                (int)first,
                                                x.rows < ROWS ? 0 : (int)hi,
                                                FINE,
                                                false };
    system_hopper<DIM, DECAYED> &sys = in_memory(sys_storage);
    float lse_storage[2], most[2], error2[2];
    float(&lse)[2] = in_memory(lse_storage);
    bool finite[2], good[2], missed = false;
    means_hopper<FINE>(sys, lse, most);
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    const float unit[2] = { by_max ? most[0] : 1, by_max ? most[1] : 1 };
    ridge = row_ridge_of(p, a, x, r, unit);
    /* Gradients need a more exact probe than o does. */
    const cg_tolerance tolerance = FINE ? cg_tolerance{ a.saved ? 3e-4f : 1.2e-3f, 1e-2f, 128 }
                                        : cg_tolerance{ 6e-3f, 1.8e-2f, 8 };
    const bool wanted[2] = { r.lo[0] < r.hi[0] && ridge.least[0] > 0,
                             r.lo[1] < r.hi[1] && ridge.least[1] > 0 };
    cg_rows k_storage;
    cg_rows &k = in_memory(k_storage);
    begin_hopper(sys, k, wanted);
    cg_run<FINE>(sys, k, tolerance);
    if (!FINE) {
        const float far = tolerance.accept * tolerance.accept;
        missed = (k.live[0] && k.rr[0] > far * k.bb[0]) || (k.live[1] && k.rr[1] > far * k.bb[1]);
        if (__syncthreads_or(missed)) {
            return false;
        }
    }
    lines_hopper<FINE>(sys, k, all.saved, error2, finite);
    float residual[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        good[row] = accepted(k, tolerance, row, error2[row], &residual[row]) && finite[row] &&
                    ridge.least[row] > BLOCK_LEAST_RIDGE * k.most[row];
        missed = missed || (wanted[row] && !good[row] && finite[row]);
    }
    if (!FINE && __syncthreads_or(missed)) {
        return false;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) {
            continue;
        }
        const int64_t i = x.i0 + r.at[row];
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, k.iterations[row], residual[row] };
        if (r.lo[row] >= r.hi[row]) {
            info = loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
        } else if (!wanted[row] || !good[row]) {
            const hard_row hard = { sm.block, r.at[row], k.iterations[row] };
            all.work.hard[atomicAdd(all.work.hard_count, 1ull)] = hard;
        }
        put_info(a, x, i, info);
        if (a.lse.data) {
            ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = lse[row];
        }
        if (a.saved) {
            ((float *)all.saved.lse)[local_row(&p, &x.s, x.h, i)] = lse[row];
        }
    }
    return true;
}

template <bool FINE, bool LISTED, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_SM90)
    solved_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const local_saved saved, const solve_work work, const int64_t blocks,
                         const __grid_constant__ maps_hopper maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_hopper<DIM> &sm = *(solve_shared_hopper<DIM> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps };
    ring_count count = { 0 };
    unsigned queries = 0;
    if (FINE && !LISTED) {
        launch_dependents();
    }
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_slots<DIM>; n++) {
            barrier_init(&sm.full[n], 1);
        }
        for (int n = 0; n < (int)ring_slots<DIM> + 2; n++) {
            barrier_init(&sm.wide_full[0][n], 1);
            barrier_init(&sm.wide_full[1][n], 1);
        }
        sm.wide[0].used = sm.wide[1].used = 0;
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
        sm.scratch = take_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = take_block<FINE, LISTED, DIM, DECAYED>(sm.rows, all, blocks);
        }
        __syncthreads();
        if (sm.block < 0) {
            break;
        }
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = solved_block_hopper<FINE, DIM, DECAYED>(sm, count, queries, all, scratch);
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
