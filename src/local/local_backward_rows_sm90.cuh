/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, the pass over rows: drho, the adjoint solve and dq of 64 rows in one go, with the
 * solver of local_solved_sm90.cuh. Formulas are those of local_backward_probe_cuda.cuh and local_backward_query_cuda.cuh.
 *
 * As in forward, blocks whose rows see many keys go with one bf16 part ("cheap"), if forward was content with one for each of their
 * probes: rho and y are then bf16 numbers times a power of two, the last sweep takes each in one tile, and that sweep finds the
 * residual of the adjoint solve too: with E = g + t, drho - (Cov + Lambda) y = -sum p E kappa - Lambda y. Where that misses, and in all
 * other blocks, everything is done with two parts, in launches of their own. There a sweep finds the means of u and t before the
 * last. Blocks with rows for float64 are left to query_kernel.
 */
#ifndef LOAM_LOCAL_LOCAL_BACKWARD_ROWS_SM90_CUH
#define LOAM_LOCAL_LOCAL_BACKWARD_ROWS_SM90_CUH

#include "src/local/local_backward_cuda.h"
#include "src/local/local_solved_sm90.cuh"

struct rows_maps_sm90 {
    maps_sm90 all;
    CUtensorMap grad_o;
};

/* ------------------------------------------------------------------ shared memory */

/* The last sweep has four tiles of rows: y and rho where the solver has its direction, the output gradients in the last slot of the
 * ring. Second parts lie in the two slots before it. Keys and values take turns in the others. */
template <int DIM> struct pair_slots {
    static constexpr unsigned grad_o = ring_slots<DIM> - 1, y = grad_o - 1, rho = grad_o - 2;
};

template <int DIM> struct pair_barriers {
    uint64_t full[ring_slots<DIM> - 1];
};

/* Behind all that the solver has there. */
template <int DIM>
constexpr size_t pair_barriers_at = offsetof(solve_shared_sm90<DIM>, rows) + sizeof(row_block);
template <int DIM> constexpr size_t rows_shared_bytes = pair_barriers_at<DIM> + sizeof(pair_barriers<DIM>);

/* Tiles gone through so far; fillings of the tiles of rows; a bit for each slot of the last sweep, the parity of its next filling. */
struct rows_count {
    ring_count ring;
    unsigned rows, parity;
};

/* ------------------------------------------------------------------ a block of rows */

/* What sweeps find of the thread's rows. */
struct rows_sums {
    float gbar[2];           /* do . vbar */
    float rest[2];           /* sum p (g - gbar): 0 but for rounding */
    float best[2];           /* where it is wanted, the highest product q . k times the scale to base 2 */
    int peak[2];             /* and the first key that has it */
    float scale[2], mean[2]; /* sum ds x and sum p x, of the thread's columns */
};

/* What every block of a launch shares. */
struct rows_launch {
    const loam_problem &p;
    const loam_args &a;
    const local_saved &saved;
    const row_arrays &arrays;
    const solve_work &work;
    const rows_maps_sm90 &maps;
};

/* A system and what the passes of backward need beside it; as a pass takes it out of memory. */
template <int DIM> struct rows_system {
    const row_pair r;
    const row_ridge ridge;
    const system_sm90<DIM> sys;
    const rows_launch &all;
    rows_count &count;

    __device__ __forceinline__ rows_system(const system_sm90<DIM> &from, const rows_launch &launch,
                                           rows_count &counts)
        : r(from.r), ridge(from.ridge), sys(known_system(from, r, ridge)), all(launch), count(counts)
    {
    }
    __device__ __forceinline__ __nv_bfloat16 *slot(unsigned n) const { return sys.sm.slot[n]; }
    __device__ __forceinline__ uint64_t *full(unsigned n) const
    {
        return ((pair_barriers<DIM> *)((char *)&sys.sm + pair_barriers_at<DIM>))->full + n;
    }
    /* The thread's row in arrays over rows. */
    __device__ __forceinline__ int64_t line(int row) const
    {
        return local_row(&sys.p, &sys.x.s, sys.x.h, sys.x.i0 + r.at[row]);
    }
    __device__ __forceinline__ float2 pair(const void *array, int row, int c) const
    {
        return r.real[row] ? *(const float2 *)((const float *)array + line(row) * DIM + c)
                           : make_float2(0, 0);
    }
    /* The ridge of element `at` of the thread's rows. */
    __device__ __forceinline__ float lambda(int at) const
    {
        return ridge.channels ? sys.vector(VECTOR_RIDGE).get(at) : ridge.number[at / 2 % 2];
    }
};

template <int DIM>
static __device__ __forceinline__ void ask_rows(const system_sm90<DIM> &sys, __nv_bfloat16 *tile,
                                                const CUtensorMap &map)
{
    const row_block &x = sys.x;
#pragma unroll
    for (int c = 0; c < DIM; c += SIDE) {
        copy_box(tile + c * SIDE, &map, &sys.sm.query_full, c, (int)(x.s.q0 + x.i0), (int)x.h, (int)x.s.b);
    }
}

/* total += the weights as their parts say, of the thread's columns. */
template <int PARTS>
static __device__ __forceinline__ void add_weights(float (&total)[2], const weights_operand<PARTS> &w)
{
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t pair = w.part[part][k][e];
                total[e % 2] += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
            }
        }
    }
}

/* Values and keys of the block's tiles in turn, or keys alone, through the first SLOTS slots of the ring. */
template <int DIM, unsigned SLOTS, bool VALUES> struct tile_turns {
    const rows_system<DIM> &rs;
    unsigned count, taken, given, parity;

    __device__ __forceinline__ tile_turns(const rows_system<DIM> &system)
        : rs(system), taken(0), given(0), parity(rs.count.parity)
    {
        const row_block &x = rs.sys.x;
        count = (unsigned)((x.last - x.first + SIDE - 1) / SIDE) * (VALUES ? 2 : 1);
        if (threadIdx.x == 0) {
            for (unsigned n = 0; n < SLOTS && n < count; n++) {
                ask(n);
            }
        }
    }
    __device__ __forceinline__ int key_of(unsigned n) const
    {
        return rs.sys.x.first + (int)(VALUES ? n / 2 : n) * SIDE;
    }
    __device__ __forceinline__ void ask(unsigned n) const
    {
        const row_block &x = rs.sys.x;
        const unsigned slot = n % SLOTS;
        const CUtensorMap *map = VALUES && n % 2 == 0 ? &rs.all.maps.all.v : &rs.all.maps.all.k;
        barrier_expect(rs.full(slot), DIM * SIDE * 2);
#pragma unroll
        for (int c = 0; c < DIM; c += SIDE) {
            copy_box(rs.slot(slot) + c * SIDE, map, rs.full(slot), c, (int)x.s.k0 + key_of(n), (int)x.h_kv,
                     (int)x.s.b);
        }
    }
    __device__ __forceinline__ const __nv_bfloat16 *take()
    {
        const unsigned slot = taken % SLOTS;
        barrier_wait(rs.full(slot), parity >> slot & 1);
        parity ^= 1u << slot;
        const int left = (int)rs.sys.x.s.nk - key_of(taken);
        if (left < SIDE) {
            clear_beyond<DIM>(rs.slot(slot), left);
            fence_async_proxy();
            __syncthreads();
        }
        taken++;
        return rs.slot(slot);
    }
    /* All products with the first so many of the tiles have ended. */
    __device__ __forceinline__ void give(unsigned done)
    {
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned n = given; n < done; n++) {
                if (n + SLOTS < count) {
                    ask(n + SLOTS);
                }
            }
        }
        given = done;
    }
    __device__ __forceinline__ void finish() const { rs.count.parity = parity; }
};

/* ------------------------------------------------------------------ first sweep */

template <int DIM>
static __device__ __forceinline__ void find_peak(rows_sums &sum, const float (&s)[8][4],
                                                 const system_sm90<DIM> &sys, int j)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, at = j + column_of(n, e);
            const float score = s[n][e] * sys.scale2;
            if (sys.seen(row, at) && score > sum.best[row]) {
                sum.best[row] = score, sum.peak[row] = at;
            }
        }
    }
}

/* Over the four lanes of a row; the peak is the first of the highest, -1 where nothing is seen. */
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

/* f = sum p (g - gbar) k of the thread's rows. The output gradients lie where the direction will. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void probe_gradient_sm90(float (&f)[DIM / SIDE][8][4],
                                                           const rows_system<DIM> &rs, rows_sums &sum,
                                                           bool peak)
{
    const system_sm90<DIM> &sys = rs.sys;
    float s[8][4], g[8][4], total[2] = { 0, 0 };
    weights_operand<FINE ? 2 : 1> w;
    sum.best[0] = sum.best[1] = -INFINITY;
    sum.peak[0] = sum.peak[1] = INT32_MAX;
    clear_sums<DIM>(f);
    stream_steps_sm90<DIM, true, !FINE, true>(
        sys.ring(), rs.count.ring, sys.maps, sys.x,
        [&](const tiles_at &t) {
            multiply_rows<DIM>(s, sys.sm.query, t.keys, false);
            more_rows<DIM>(g, sys.sm.direction[0], t.values, false);
        },
        [&](const tiles_at &t) {
            products_arrived(s);
            products_arrived(g);
            if (peak) {
                find_peak(sum, s, sys, t.j);
            }
            weights_sm90(s, sys, t.j);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    g[n][e] = s[n][e] * (g[n][e] - sum.gbar[e / 2]);
                }
            }
        },
        [&]() {
            products_arrived(f);
            split_weights(w, g);
            add_weights(total, w);
        },
        [&](const tiles_at &t) {
            multiply_weights<DIM>(f, w.part[0], t.keys);
            if (FINE) {
                more_weights<DIM>(f, w.part[FINE], t.keys);
            }
        });
    products_arrived(f);
    finish_peak(sum);
    sum.rest[0] = quad_sum(total[0]), sum.rest[1] = quad_sum(total[1]);
}

/* drho = -sum p (g - gbar) kappa, scaled to about 1, becomes b of the solve, which begins at 0. */
template <int DIM>
static __device__ __forceinline__ void begin_adjoint(const rows_system<DIM> &rs, cg_rows &k,
                                                     const float (&f)[DIM / SIDE][8][4], const rows_sums &sum,
                                                     const bool (&wanted)[2])
{
    const system_sm90<DIM> &sys = rs.sys;
    const lane_vector x = sys.vector(VECTOR_X), r = sys.vector(VECTOR_R), b = sys.vector(VECTOR_B),
                      kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 }, bb[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = rs.r.real[row] ? sum.rest[row] * kbar.get(n) - f[n / 32][n / 4 % 8][n % 4] : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    k.unit[0] = magnitude(quad_max(top[0])), k.unit[1] = magnitude(quad_max(top[1]));
    const float inverse[2] = { 1 / k.unit[0], 1 / k.unit[1] };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] *= inverse[row];
        b.put(n, y[n]), r.put(n, y[n]), x.put(n, 0);
        bb[row] += y[n] * y[n];
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        k.bb[row] = k.rr[row] = quad_sum(bb[row]);
        k.live[row] = wanted[row] && k.bb[row] > 0 && k.bb[row] < INFINITY;
        k.least[row] = INFINITY, k.most[row] = 0;
        k.iterations[row] = 0;
    }
}

/* ------------------------------------------------------------------ last sweep */

/* What a row adds to its pairs. */
struct pair_rows {
    float error[2];  /* off E = g + t: gbar + y . kbar */
    float one[2];    /* 1 + rho . kbar, from which u comes off */
    float e[2];      /* -y . Lambda rho, in p e */
    float middle[2]; /* an x to count from */
    /* Where the unit of the ridge is the largest p, the key that has it gets -y . Lambda rho instead. */
    bool by_max;
    int peak[2];
    float at_peak[2];
};

/* Where the scale's gradient is wanted (SCALED) products q . k are kept, and p is computed from them twice. */
template <int DIM>
static __device__ __forceinline__ float weight_sm90(const system_sm90<DIM> &sys, float product, int row,
                                                    int j)
{
    const float p = exp2_fast(fminf(product * sys.scale2 - sys.lse2[row], 0));
    return sys.seen(row, j) ? p : 0;
}

/* Products s with q become p, and g with do and y become p E. */
template <bool SCALED, int DIM>
static __device__ __forceinline__ void pair_errors(float (&s)[8][4], float (&g)[8][4],
                                                   const system_sm90<DIM> &sys, const pair_rows &own, int j)
{
    if (!SCALED) {
        weights_sm90(s, sys, j);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = SCALED ? weight_sm90(sys, s[n][e], e / 2, j + column_of(n, e)) : s[n][e];
            g[n][e] = p * (g[n][e] - own.error[e / 2]);
        }
    }
}

/* Products u with rho become ds, from f = p E. */
template <bool SCALED, int DIM>
static __device__ __forceinline__ void pair_gradients(float (&u)[8][4], const float (&s)[8][4],
                                                      const float (&f)[8][4], const system_sm90<DIM> &sys,
                                                      const pair_rows &own, rows_sums &sum, int j)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            const float p = SCALED ? weight_sm90(sys, s[n][e], row, j + column_of(n, e)) : s[n][e];
            u[n][e] = f[n][e] * (own.one[row] - u[n][e]) + p * own.e[row];
        }
    }
    if (own.by_max) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u[n][e] += j + column_of(n, e) == own.peak[e / 2] ? own.at_peak[e / 2] : 0;
            }
        }
    }
    if (SCALED) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                const float p = weight_sm90(sys, s[n][e], row, j + column_of(n, e)),
                            x = s[n][e] - own.middle[row];
                sum.scale[row] += p != 0 ? u[n][e] * x : 0;
                sum.mean[row] += p != 0 ? p * x : 0;
            }
        }
    }
}

/* The weights as their part says. */
static __device__ __forceinline__ void unpack_weights(float (&f)[8][4], const weights_operand<1> &w)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const uint32_t pair = w.part[0][n / 2][n % 2 * 2 + e / 2];
            f[n][e] = __uint_as_float(pair << 16);
            f[n][e + 1] = __uint_as_float(pair & 0xffff0000u);
        }
    }
}

/* q = sum ds k and r = sum p E k, with the sums of the weights (this thread's columns) in inner and total. At 128 dimensions there
 * are no registers for three products beside both sums: u comes late, and p and f are then what their parts say. */
template <bool SCALED, int DIM>
static __device__ __forceinline__ void pair_sums(float (&q)[DIM / SIDE][8][4], float (&r)[DIM / SIDE][8][4],
                                                 float (&inner)[2], float (&total)[2],
                                                 const rows_system<DIM> &rs, const pair_rows &own,
                                                 rows_sums &sum)
{
    constexpr bool late = DIM > 64;
    static_assert(!(late && SCALED), "p in one part will not do");
    const system_sm90<DIM> &sys = rs.sys;
    tile_turns<DIM, pair_slots<DIM>::grad_o, true> turns(rs);
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    while (turns.taken < turns.count) {
        const int j = turns.key_of(turns.taken);
        const __nv_bfloat16 *const values = turns.take(), *const keys = turns.take();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1> p, f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        more_rows<DIM>(g, rs.slot(pair_slots<DIM>::grad_o), values, false);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        if (!late) {
            more_rows<DIM>(u, sys.sm.direction[1], keys, false);
        }
        products_commit();
        products_wait<0>();
        products_arrived(s);
        products_arrived(g);
        if (late) {
            turns.give(turns.taken - 1);
        }
        pair_errors<SCALED>(s, g, sys, own, j);
        split_weights(f, g);
        add_weights(total, f);
        if (late) {
            split_weights(p, s);
            multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
            more_weights<DIM>(r, f.part[0], keys);
            products_commit();
            products_wait<0>();
            products_arrived(r);
            unpack_weights(g, f);
            unpack_weights(s, p);
        }
        products_arrived(u);
        pair_gradients<SCALED>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[0], keys);
        if (!late) {
            more_weights<DIM>(r, f.part[0], keys);
        }
        products_commit();
        products_wait<0>();
        products_arrived(r);
        products_arrived(q);
        turns.give(turns.taken);
    }
    turns.finish();
}

/* u and t, issued after others with both parts of rho and y. */
template <int DIM>
static __device__ __forceinline__ void multiply_fine(float (&u)[8][4], float (&t)[8][4],
                                                     const rows_system<DIM> &rs, const __nv_bfloat16 *keys,
                                                     bool add)
{
    more_rows<DIM>(u, rs.slot(pair_slots<DIM>::rho), keys, false);
    more_rows<DIM>(u, rs.sys.sm.direction[1], keys, true);
    more_rows<DIM>(t, rs.slot(pair_slots<DIM>::y), keys, add);
    more_rows<DIM>(t, rs.sys.sm.direction[0], keys, true);
}

/* The means of u and t, which the centres are off by: so both are small to their own precision where one key has nearly all the
 * weight and rho is large. */
template <int DIM>
static __device__ __forceinline__ void find_rests(row_record (&rec)[2], const rows_system<DIM> &rs)
{
    const system_sm90<DIM> &sys = rs.sys;
    float omega[2] = { 0, 0 }, rho[2] = { 0, 0 }, y[2] = { 0, 0 };
    tile_turns<DIM, pair_slots<DIM>::rho, false> turns(rs);
    while (turns.taken < turns.count) {
        const int j = turns.key_of(turns.taken);
        const __nv_bfloat16 *const keys = turns.take();
        float s[8][4], u[8][4], t[8][4];
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        multiply_fine(u, t, rs, keys, false);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        products_arrived(u);
        products_arrived(t);
        turns.give(turns.taken);
        weights_sm90(s, sys, j);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                omega[row] += s[n][e];
                rho[row] += s[n][e] * (u[n][e] - rec[row].rho_kbar);
                y[row] += s[n][e] * (t[n][e] - rec[row].y_kbar);
            }
        }
    }
    turns.finish();
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(omega[row]), inverse = sum > 0 ? 1 / sum : 0;
        rec[row].rho_rest = quad_sum(rho[row]) * inverse;
        rec[row].y_rest = quad_sum(y[row]) * inverse;
    }
}

/* pair_sums with two parts; r is not wanted. */
template <int DIM>
static __device__ __forceinline__ void pair_sums_fine(float (&q)[DIM / SIDE][8][4], float (&inner)[2],
                                                      const rows_system<DIM> &rs, const pair_rows &own,
                                                      rows_sums &sum)
{
    const system_sm90<DIM> &sys = rs.sys;
    tile_turns<DIM, pair_slots<DIM>::rho, true> turns(rs);
    clear_sums<DIM>(q);
    while (turns.taken < turns.count) {
        const int j = turns.key_of(turns.taken);
        float s[8][4], g[8][4], u[8][4];
        weights_operand<2> ds;
        const __nv_bfloat16 *const values = turns.take();
        multiply_rows<DIM>(g, rs.slot(pair_slots<DIM>::grad_o), values, false);
        products_commit();
        products_wait<0>();
        products_arrived(g);
        turns.give(turns.taken);
        const __nv_bfloat16 *const keys = turns.take();
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        multiply_fine(u, g, rs, keys, true);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        products_arrived(g);
        products_arrived(u);
        pair_errors<true>(s, g, sys, own, j);
        pair_gradients<true>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[1], keys);
        more_weights<DIM>(q, ds.part[0], keys);
        products_commit();
        products_wait<0>();
        products_arrived(q);
        turns.give(turns.taken);
    }
    turns.finish();
}

/* y of the solution in the scratch or, FINE, as the direction has it: a pair of row `row`. */
template <bool FINE, int DIM>
static __device__ __forceinline__ float2 solution_pair(const system_sm90<DIM> &sys, const cg_rows &k, int n,
                                                       int e)
{
    const lane_vector x = sys.vector(VECTOR_X);
    float2 y = FINE ? direction_pair<true>(sys, n, e) : make_float2(x.get(4 * n + e), x.get(4 * n + e + 1));
    y.x *= k.unit[e / 2], y.y *= k.unit[e / 2];
    return FINE ? y : make_float2(rounded<1>(y.x), rounded<1>(y.y));
}

/* The tiles of y and rho, the records of the thread's rows, and the ridge's gradient. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void fill_pair_rows(const rows_system<DIM> &rs, const cg_rows &k,
                                                      const rows_sums &sum, row_record (&rec)[2])
{
    const system_sm90<DIM> &sys = rs.sys;
    const loam_args &a = sys.a;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    float e[2] = { 0, 0 }, ridge[2] = { 0, 0 }, rho_kbar[2] = { 0, 0 }, y_kbar[2] = { 0, 0 };
    int64_t out[2];
    for (int row = 0; row < 2; row++) {
        out[row] = LOCAL_AT(a.grad_ridge, sys.x.s.b, sys.x.h, sys.x.s.q0 + sys.x.i0 + sys.r.at[row]);
    }
#pragma unroll 4
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at += 2) {
            const int row = at / 2, c = column_of(n, at), tile = swizzled(sys.r.at[row], c);
            const float2 rho = rs.pair(rs.all.saved.rho, row, c), y = solution_pair<FINE>(sys, k, n, at);
            uint32_t rho_part[2], y_part[2];
            split_pair(rho_part, rho.x, rho.y);
            split_pair(y_part, y.x, y.y);
            *(uint32_t *)(sys.sm.direction[1] + tile) = rho_part[0];
            *(uint32_t *)(sys.sm.direction[0] + tile) = y_part[0];
            if (FINE) {
                *(uint32_t *)(rs.slot(pair_slots<DIM>::rho) + tile) = rho_part[1];
                *(uint32_t *)(rs.slot(pair_slots<DIM>::y) + tile) = y_part[1];
            }
            const float part[2] = { -y.x * rho.x * sys.ridge.unit[row], -y.y * rho.y * sys.ridge.unit[row] };
            const float mean[2] = { kbar.get(4 * n + at), kbar.get(4 * n + at + 1) };
            rho_kbar[row] += rho.x * mean[0] + rho.y * mean[1];
            y_kbar[row] += y.x * mean[0] + y.y * mean[1];
            ridge[row] += part[0] + part[1];
            e[row] -= y.x * rho.x * rs.lambda(4 * n + at) + y.y * rho.y * rs.lambda(4 * n + at + 1);
            if (sys.p.ridge_axes == LOAM_RIDGE_CHANNEL && a.grad_ridge.data && sys.r.real[row]) {
                store_pair(a.grad_ridge.data, LOAM_F32, out[row], c, DIM, part[0], part[1]);
            }
            if (sys.r.real[row]) {
                *(float2 *)(rs.all.arrays.y + rs.line(row) * DIM + c) = y;
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        row_record r = {};
        ridge[row] = quad_sum(ridge[row]);
        r.lse = sys.lse2[row] * 0.693147181f;
        r.gbar = sum.gbar[row], r.gbar_rest = sum.rest[row];
        r.rho_kbar = quad_sum(rho_kbar[row]), r.y_kbar = quad_sum(y_kbar[row]);
        r.e = quad_sum(e[row]);
        r.unit = sys.ridge.unit[row];
        r.peak = sum.peak[row], r.lo = sys.r.lo[row], r.hi = sys.r.hi[row];
        rec[row] = r;
        if (sys.r.real[row] && threadIdx.x % 4 == 0) {
            rs.all.arrays.sums.ridge[rs.line(row)] = (double)ridge[row];
            if (sys.p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data) {
                ((float *)a.grad_ridge.data)[out[row]] = ridge[row];
            }
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void put_records(const rows_system<DIM> &rs, const row_record (&rec)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (rs.r.real[row] && threadIdx.x % 4 == 0) {
            rs.all.arrays.record[rs.line(row)] = rec[row];
        }
    }
}

/* What the rows add to their pairs. */
template <int DIM>
static __device__ __forceinline__ pair_rows pair_rows_of(const system_sm90<DIM> &sys,
                                                         const row_record (&rec)[2])
{
    const float scale = (float)sys.p.scale;
    pair_rows own;
    own.by_max = sys.p.ridge_unit == LOAM_RIDGE_MAX;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const row_record &r = rec[row];
        const float middle = r.lo < r.hi && scale != 0 ? (r.lse - logf((float)(r.hi - r.lo))) / scale : 0;
        own.error[row] = r.gbar + r.gbar_rest + r.y_kbar + r.y_rest;
        own.one[row] = 1 + r.rho_kbar + r.rho_rest;
        own.e[row] = own.by_max ? 0 : r.e;
        own.peak[row] = r.peak, own.at_peak[row] = r.e;
        own.middle[row] = fabsf(middle) < 1e30f ? middle : 0;
    }
    return own;
}

/* The output gradients into their slot, while the threads fill the other tiles. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void begin_pairs(const rows_system<DIM> &rs, const cg_rows &k,
                                                   rows_sums &sum, row_record (&rec)[2])
{
    if (threadIdx.x == 0) {
        barrier_expect(&rs.sys.sm.query_full, DIM * SIDE * 2);
        ask_rows(rs.sys, rs.slot(pair_slots<DIM>::grad_o), rs.all.maps.grad_o);
    }
    sum.scale[0] = sum.scale[1] = sum.mean[0] = sum.mean[1] = 0;
    fill_pair_rows<FINE>(rs, k, sum, rec);
    fence_async_proxy();
    __syncthreads();
    barrier_wait(&rs.sys.sm.query_full, rs.count.rows++ % 2);
}

/* dq and the sums of the rows. q, inner: of this thread's columns. */
template <int DIM>
static __device__ __forceinline__ void put_pairs(const rows_system<DIM> &rs,
                                                 const float (&q)[DIM / SIDE][8][4], float (&inner)[2],
                                                 rows_sums &sum)
{
    const system_sm90<DIM> &sys = rs.sys;
    const loam_args &a = sys.a;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const float scale = (float)sys.p.scale;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        inner[row] = quad_sum(inner[row]);
        /* What rounding leaves of a sum that is 0 is taken out at the mean x, and at the mean key. */
        const float rest = inner[row] * quad_sum(sum.mean[row]);
        sum.scale[row] = quad_sum(sum.scale[row]) - (fabsf(rest) < INFINITY ? rest : 0);
        if (sys.r.real[row] && threadIdx.x % 4 == 0) {
            rs.all.arrays.sums.scale[rs.line(row)] = (double)sum.scale[row];
        }
    }
    if (!a.grad_q.data) {
        return;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, c = column_of(n, e);
            if (!sys.r.real[row]) {
                continue;
            }
            const float2 y = rs.pair(rs.all.arrays.y, row, c);
            const int64_t out = LOCAL_AT(a.grad_q, sys.x.s.b, sys.x.h, sys.x.s.q0 + sys.x.i0 + sys.r.at[row]);
            store_pair(a.grad_q.data, LOAM_BF16, out, c, DIM,
                       scale * (q[n / 8][n % 8][e] - inner[row] * kbar.get(4 * n + e)) - y.x,
                       scale * (q[n / 8][n % 8][e + 1] - inner[row] * kbar.get(4 * n + e + 1)) - y.y);
        }
    }
}

/* The last sweep of a cheap block. True where the solve proves good: then all that the rows have is written. */
template <int DIM>
static __device__ __forceinline__ bool finish_rows(const rows_system<DIM> &rs, const cg_rows &k,
                                                   const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                   rows_sums &sum)
{
    const system_sm90<DIM> &sys = rs.sys;
    float q[DIM / SIDE][8][4], r[DIM / SIDE][8][4];
    float inner[2] = { 0, 0 }, total[2] = { 0, 0 }, error2[2] = { 0, 0 }, residual;
    row_record rec[2];
    begin_pairs<false>(rs, k, sum, rec);
    put_records(rs, rec);
    const pair_rows own = pair_rows_of(sys, rec);
    if (DIM > 64 || !sys.a.grad_scale) {
        pair_sums<false>(q, r, inner, total, rs, own, sum);
    } else if constexpr (DIM == 64) {
        pair_sums<true>(q, r, inner, total, rs, own, sum);
    }
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const float inverse[2] = { 1 / (k.unit[0] * k.unit[0]), 1 / (k.unit[1] * k.unit[1]) };
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 y = direction_pair<false>(sys, n, e);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const int row = e / 2;
                const float rest = r[n / 8][n % 8][e + s] - total[row] * kbar.get(4 * n + e + s) +
                                   rs.lambda(4 * n + e + s) * (s ? y.y : y.x);
                error2[row] += rest * rest * inverse[row];
            }
        }
    }
    bool missed = false;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        missed |= wanted[row] && !(accepted(k, tolerance, row, quad_sum(error2[row]), &residual) &&
                                   sys.ridge.least[row] > BLOCK_LEAST_RIDGE * k.most[row]);
    }
    if (__syncthreads_or(missed)) {
        return false;
    }
    put_pairs(rs, q, inner, sum);
    return true;
}

/* The last sweeps of a block whose solution, in two parts, is the direction. */
template <int DIM>
static __device__ __forceinline__ void finish_rows_fine(const rows_system<DIM> &rs, const cg_rows &k,
                                                        rows_sums &sum)
{
    float q[DIM / SIDE][8][4], inner[2] = { 0, 0 };
    row_record rec[2];
    begin_pairs<true>(rs, k, sum, rec);
    find_rests(rec, rs);
    put_records(rs, rec);
    const pair_rows own = pair_rows_of(rs.sys, rec);
    pair_sums_fine(q, inner, rs, own, sum);
    put_pairs(rs, q, inner, sum);
}

/* ------------------------------------------------------------------ the solve */

/* The solution becomes the direction, in two parts. True where all rows are solved; where not, those that are not go on the list for
 * float64, and y and records are written for query_kernel. */
template <int DIM>
static __device__ __forceinline__ bool check_rows(const rows_system<DIM> &rs, const cg_rows &k,
                                                  const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                  const rows_sums &sum)
{
    const system_sm90<DIM> &sys = rs.sys;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B);
    const float none[2] = { 0, 0 };
    float y[DIM / SIDE][8][4], centre[2], error2[2] = { 0, 0 }, residual;
    bool hard[2];
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n / 32][n / 4 % 8][n % 4] = x.get(n);
    }
    turn_direction<true>(sys, y, none, centre);
    image_sm90<true>(y, sys, centre);
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

/* kbar into the scratch, do . vbar; true where forward has needed more than one part for a probe of the thread's rows. */
template <int DIM>
static __device__ __forceinline__ bool load_means(const rows_system<DIM> &rs, rows_sums &sum)
{
    const system_sm90<DIM> &sys = rs.sys;
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

/* From the gradient of the output to b of the adjoint solve. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void begin_rows(system_sm90<DIM> &sys, row_ridge &ridge, cg_rows &k,
                                                  rows_sums &sums, const rows_launch &all, rows_count &count,
                                                  const bool (&wanted)[2])
{
    const rows_system<DIM> rs(sys, all, count);
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    rows_sums sum = sums;
    cg_rows begun;
    float f[DIM / SIDE][8][4];
    probe_gradient_sm90<FINE>(f, rs, sum, FINE || by_max);
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

/* The rows that the last sweep would refuse if their residual were what the iteration takes it for, or close to it, go on. */
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

/* The rows of the block with one part or, FINE, with two; false where one part is not enough. */
template <bool FINE, int DIM>
static __device__ __forceinline__ bool rows_block_sm90(solve_shared_sm90<DIM> &sm, rows_count &count,
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
    system_sm90<DIM> sys_storage = { p,
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
    system_sm90<DIM> &sys = in_memory(sys_storage);
    rows_sums sum_storage = {};
    rows_sums &sum = in_memory(sum_storage);
    cg_rows k_storage;
    cg_rows &k = in_memory(k_storage);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, 2 * DIM * SIDE * 2);
        ask_rows(sys, sm.query, all.maps.all.q);
        ask_rows(sys, sm.direction[0], all.maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);

    bool wanted[2], many = load_means(rows_system<DIM>(sys, all, count), sum), tame = true;
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
    /* The scale's gradient wants more registers than one pass at 128 dimensions has. */
    if (!FINE && (__syncthreads_or(many) || (DIM > 64 && a.grad_scale))) {
        return false;
    }
    /* One part accepts more than forward does: its error reaches the gradients once, and a block that is listed alone takes 0.3 ms. */
    const cg_tolerance tolerance = FINE ? cg_tolerance{ 3e-4f, 1e-2f, 128 } : cg_tolerance{ 8e-3f, 3e-2f, 8 };
    begin_rows<FINE>(sys, ridge, k, sum, all, count, wanted);
    cg_run<FINE>(sys, k, tolerance);
    if constexpr (FINE) {
        const bool solved = check_rows(rows_system<DIM>(sys, all, count), k, wanted, tolerance, sum);
        if (solved) {
            finish_rows_fine(rows_system<DIM>(sys, all, count), k, sum);
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
        rows_system<DIM> rs_storage(sys, all, count);
        const bool solved = finish_rows(in_memory(rs_storage), k, wanted, tolerance, sum);
        if (solved && threadIdx.x == 0) {
            all.arrays.state[sm.block] = ROWS_CHEAP;
        }
        return solved;
    }
}

template <bool FINE, bool LISTED, int DIM>
__global__ void __launch_bounds__(THREADS, 2)
    rows_kernel_sm90(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const local_saved saved, const row_arrays arrays, const solve_work work,
                     const int64_t blocks, const __grid_constant__ rows_maps_sm90 maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_sm90<DIM> &sm = *(solve_shared_sm90<DIM> *)swizzled_memory;
    const rows_launch all = { p, a, saved, arrays, work, maps };
    const solve_launch solve = { p, a, saved, work, maps.all };
    rows_count count = {};
    if (FINE && !LISTED) {
        next_launch_may_begin();
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
            sm.block = take_block<FINE, LISTED, DIM>(sm.rows, solve, blocks);
        }
        __syncthreads();
        if (sm.block < 0) {
            break;
        }
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = rows_block_sm90<FINE>(sm, count, all, scratch);
        if (!solved && threadIdx.x == 0) {
            work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
        }
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    if (!FINE) {
        await_launch_before();
    }
}

#endif
