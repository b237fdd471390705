/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, the pass over rows: drho, the adjoint solve and dq of 64 rows in one go, with the
 * solver of local_solved_sm90.cuh. Formulas are those of local_backward_probe_cuda.cuh and local_backward_query_cuda.cuh.
 *
 * A block begins cheap, as forward blocks do, where its rows see many keys and forward was content with one bf16 part for each of
 * their probes. Then rho and y are bf16 numbers times a power of two, the last sweep takes each in one tile, and that sweep finds
 * the residual of the adjoint solve too: with E = g + t, drho - (Cov + Lambda) y = -sum p E kappa - Lambda y. Where that misses, and
 * in all other blocks, the solve goes on with two parts, and so does the last sweep, after one that finds the means of u and t. Blocks
 * with rows for float64 are left to query_kernel.
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

/* Behind the barriers of the solver. */
template <int DIM>
constexpr size_t pair_barriers_at = offsetof(solve_shared_sm90<DIM>, block) + sizeof(int64_t);
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

template <int DIM> struct rows_system {
    system_sm90<DIM> &sys;
    pair_barriers<DIM> &barriers;
    rows_count &count;
    const local_saved &saved;
    const row_arrays &arrays;
    const rows_maps_sm90 &maps;
    int64_t line[2]; /* the thread's rows in arrays over rows */

    __device__ __forceinline__ __nv_bfloat16 *slot(unsigned n) const { return sys.sm.slot[n]; }
    __device__ __forceinline__ float2 pair(const void *array, int row, int c) const
    {
        return sys.r.real[row] ? *(const float2 *)((const float *)array + line[row] * DIM + c)
                               : make_float2(0, 0);
    }
};

template <int DIM>
static __device__ __forceinline__ void ask_rows(const rows_system<DIM> &rs, __nv_bfloat16 *tile,
                                                const CUtensorMap &map)
{
    const row_block &x = rs.sys.x;
#pragma unroll
    for (int c = 0; c < DIM; c += SIDE) {
        copy_box(tile + c * SIDE, &map, &rs.sys.sm.query_full, c, (int)(x.s.q0 + x.i0), (int)x.h, (int)x.s.b);
    }
}

/* Rows of a tile from `rows` on become 0: what lies beyond a sequence need not be a number, and 0 times it would not be 0. */
template <int DIM> static __device__ __forceinline__ void clear_tail(__nv_bfloat16 *tile, int rows)
{
    for (int e = threadIdx.x; e < (SIDE - rows) * (DIM / 8); e += THREADS) {
        const int r = rows + e / (DIM / 8), c = e % (DIM / 8) * 8;
        *(uint4 *)(tile + swizzled(r, c)) = make_uint4(0, 0, 0, 0);
    }
}

template <int DIM>
static __device__ __forceinline__ void clear_tails(const system_sm90<DIM> &sys, const __nv_bfloat16 *keys,
                                                   const __nv_bfloat16 *values, int j)
{
    if (j + SIDE > sys.x.s.nk) {
        clear_tail<DIM>((__nv_bfloat16 *)keys, (int)sys.x.s.nk - j);
        clear_tail<DIM>((__nv_bfloat16 *)values, (int)sys.x.s.nk - j);
        fence_async_proxy();
        __syncthreads();
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

/* drho = -sum p (g - gbar) kappa into the scratch, as b of the solve. The output gradients lie where the direction will. */
template <bool FINE, int DIM>
static __device__ __forceinline__ void probe_gradient_sm90(const rows_system<DIM> &rs, rows_sums &sum,
                                                           bool peak)
{
    const system_sm90<DIM> &sys = rs.sys;
    float f[DIM / SIDE][8][4], total[2] = { 0, 0 };
    sum.best[0] = sum.best[1] = -INFINITY;
    sum.peak[0] = sum.peak[1] = INT32_MAX;
    clear_sums<DIM>(f);
    stream_sm90<DIM, true>(sys.ring(), rs.count.ring, sys.maps, sys.x, [&](const tiles_at &t) {
        float s[8][4], g[8][4];
        clear_tails(sys, t.keys, t.values, t.j);
        multiply_rows<DIM>(s, sys.sm.query, t.keys, false);
        multiply_rows<DIM>(g, sys.sm.direction[0], t.values, false);
        products_commit();
        products_wait<0>();
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
        weights_operand<FINE ? 2 : 1> w;
        split_weights(w, g);
        add_weights(total, w);
        if (FINE) {
            multiply_weights<DIM>(f, w.part[FINE], t.keys);
        }
        multiply_weights<DIM>(f, w.part[0], t.keys);
        products_commit();
        products_wait<0>();
        products_arrived(f);
    });
    finish_peak(sum);
    const lane_vector kbar = sys.vector(VECTOR_KBAR), b = sys.vector(VECTOR_B);
    sum.rest[0] = quad_sum(total[0]), sum.rest[1] = quad_sum(total[1]);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        b.put(n, sys.r.real[row] ? sum.rest[row] * kbar.get(n) - f[n / 32][n / 4 % 8][n % 4] : 0);
    }
}

/* ------------------------------------------------------------------ last sweep of a cheap block */

/* What a row adds to its pairs. */
struct pair_rows {
    float error[2];  /* off E = g + t: gbar + y . kbar */
    float one[2];    /* 1 + rho . kbar, from which u comes off */
    float e[2];      /* -y . Lambda rho */
    float middle[2]; /* an x to count from */
};

/* Where the scale's gradient is wanted, or the ridge's unit is the largest p, nothing is "plain": products q . k are then kept, and
 * p is computed from them twice. */
template <int DIM>
static __device__ __forceinline__ float weight_sm90(const system_sm90<DIM> &sys, float product, int row,
                                                    int j)
{
    const float p = exp2_fast(fminf(product * sys.scale2 - sys.lse2[row], 0));
    return sys.seen(row, j) ? p : 0;
}

/* Products s with q become p, and g with do and y become p E. */
template <bool PLAIN, int DIM>
static __device__ __forceinline__ void pair_errors(float (&s)[8][4], float (&g)[8][4],
                                                   const system_sm90<DIM> &sys, const pair_rows &own, int j)
{
    if (PLAIN) {
        weights_sm90(s, sys, j);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = PLAIN ? s[n][e] : weight_sm90(sys, s[n][e], e / 2, j + column_of(n, e));
            g[n][e] = p * (g[n][e] - own.error[e / 2]);
        }
    }
}

/* Products u with rho become ds, from f = p E. */
template <bool PLAIN, int DIM>
static __device__ __forceinline__ void pair_gradients(float (&u)[8][4], const float (&s)[8][4],
                                                      const float (&f)[8][4], const system_sm90<DIM> &sys,
                                                      const pair_rows &own, rows_sums &sum, int j)
{
    const bool by_max = !PLAIN && sys.p.ridge_unit == LOAM_RIDGE_MAX;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, at = j + column_of(n, e);
            const float p = PLAIN ? s[n][e] : weight_sm90(sys, s[n][e], row, at);
            const float share = !by_max ? p * own.e[row] : at == sum.peak[row] ? own.e[row] : 0;
            u[n][e] = f[n][e] * (own.one[row] - u[n][e]) + share;
            if (!PLAIN) {
                const float x = s[n][e] - own.middle[row];
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

/* Values and keys of the block's tiles in turn, or keys alone, through the first SLOTS slots of the ring. */
template <int DIM, unsigned SLOTS, bool VALUES> struct tile_turns {
    const rows_system<DIM> &rs;
    unsigned count, taken;

    __device__ __forceinline__ tile_turns(const rows_system<DIM> &system) : rs(system), taken(0)
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
        const CUtensorMap *map = VALUES && n % 2 == 0 ? &rs.maps.all.v : &rs.maps.all.k;
        barrier_expect(&rs.barriers.full[slot], DIM * SIDE * 2);
        for (int c = 0; c < DIM; c += SIDE) {
            copy_box(rs.slot(slot) + c * SIDE, map, &rs.barriers.full[slot], c, (int)x.s.k0 + key_of(n),
                     (int)x.h_kv, (int)x.s.b);
        }
    }
    __device__ __forceinline__ const __nv_bfloat16 *take()
    {
        const unsigned slot = taken % SLOTS;
        const int left = (int)rs.sys.x.s.nk - key_of(taken);
        barrier_wait(&rs.barriers.full[slot], rs.count.parity >> slot & 1);
        rs.count.parity ^= 1u << slot;
        taken++;
        if (left < SIDE) {
            clear_tail<DIM>(rs.slot(slot), left);
            fence_async_proxy();
            __syncthreads();
        }
        return rs.slot(slot);
    }
    /* The tile taken `before` the last one has done: all products with it have ended. */
    __device__ __forceinline__ void give(unsigned before) const
    {
        __syncthreads();
        if (threadIdx.x == 0 && taken - 1 - before + SLOTS < count) {
            ask(taken - 1 - before + SLOTS);
        }
    }
};

/* q = sum ds k and r = sum p E k, with the sums of the weights (this thread's columns) in inner and total. At 128 dimensions there
 * are no registers for three products beside both sums: u comes late, and f is then what its part says. */
template <bool PLAIN, int DIM>
static __device__ __forceinline__ void pair_sums(float (&q)[DIM / SIDE][8][4], float (&r)[DIM / SIDE][8][4],
                                                 float (&inner)[2], float (&total)[2],
                                                 const rows_system<DIM> &rs, const pair_rows &own,
                                                 rows_sums &sum)
{
    constexpr bool late = DIM > 64;
    const system_sm90<DIM> &sys = rs.sys;
    tile_turns<DIM, pair_slots<DIM>::grad_o, true> turns(rs);
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    while (turns.taken < turns.count) {
        const int j = turns.key_of(turns.taken);
        const __nv_bfloat16 *const values = turns.take(), *const keys = turns.take();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1> f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        multiply_rows<DIM>(g, rs.slot(pair_slots<DIM>::grad_o), values, false);
        multiply_rows<DIM>(g, sys.sm.direction[0], keys, true);
        if (!late) {
            multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
        }
        products_commit();
        products_wait<0>();
        products_arrived(s);
        products_arrived(g);
        turns.give(1);
        pair_errors<PLAIN>(s, g, sys, own, j);
        split_weights(f, g);
        add_weights(total, f);
        multiply_weights<DIM>(r, f.part[0], keys);
        if (late) {
            multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
            products_commit();
            products_wait<0>();
            products_arrived(r);
            unpack_weights(g, f);
        }
        products_arrived(u);
        pair_gradients<PLAIN>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[0], keys);
        products_commit();
        products_wait<0>();
        products_arrived(r);
        products_arrived(q);
        turns.give(0);
    }
}

/* u and t, issued with both parts of rho and y. */
template <int DIM>
static __device__ __forceinline__ void multiply_fine(float (&u)[8][4], float (&t)[8][4],
                                                     const rows_system<DIM> &rs, const __nv_bfloat16 *keys,
                                                     bool add)
{
    multiply_rows<DIM>(u, rs.slot(pair_slots<DIM>::rho), keys, false);
    multiply_rows<DIM>(u, rs.sys.sm.direction[1], keys, true);
    multiply_rows<DIM>(t, rs.slot(pair_slots<DIM>::y), keys, add);
    multiply_rows<DIM>(t, rs.sys.sm.direction[0], keys, true);
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
        turns.give(0);
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
        turns.give(0);
        const __nv_bfloat16 *const keys = turns.take();
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        multiply_fine(u, g, rs, keys, true);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        products_arrived(g);
        products_arrived(u);
        pair_errors<false>(s, g, sys, own, j);
        pair_gradients<false>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[1], keys);
        multiply_weights<DIM>(q, ds.part[0], keys);
        products_commit();
        products_wait<0>();
        products_arrived(q);
        turns.give(0);
    }
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
            const float2 rho = rs.pair(rs.saved.rho, row, c), y = solution_pair<FINE>(sys, k, n, at);
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
            e[row] -= y.x * rho.x * ridge_at(sys.ridge, sys.p, a, sys.x, sys.r, row, c) +
                      y.y * rho.y * ridge_at(sys.ridge, sys.p, a, sys.x, sys.r, row, c + 1);
            if (sys.p.ridge_axes == LOAM_RIDGE_CHANNEL && a.grad_ridge.data && sys.r.real[row]) {
                store_pair(a.grad_ridge.data, LOAM_F32, out[row], c, DIM, part[0], part[1]);
            }
            if (sys.r.real[row]) {
                *(float2 *)(rs.arrays.y + rs.line[row] * DIM + c) = y;
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
            rs.arrays.sums.ridge[rs.line[row]] = (double)ridge[row];
            if (sys.p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data) {
                ((float *)a.grad_ridge.data)[out[row]] = ridge[row];
            }
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
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const row_record &r = rec[row];
        const float middle = r.lo < r.hi && scale != 0 ? (r.lse - logf((float)(r.hi - r.lo))) / scale : 0;
        own.error[row] = r.gbar + r.gbar_rest + r.y_kbar + r.y_rest;
        own.one[row] = 1 + r.rho_kbar + r.rho_rest;
        own.e[row] = r.e;
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
        ask_rows(rs, rs.slot(pair_slots<DIM>::grad_o), rs.maps.grad_o);
    }
    sum.scale[0] = sum.scale[1] = sum.mean[0] = sum.mean[1] = 0;
    fill_pair_rows<FINE>(rs, k, sum, rec);
    fence_async_proxy();
    __syncthreads();
    barrier_wait(&rs.sys.sm.query_full, rs.count.rows++ % 2);
}

/* dq, the records and the sums of the rows. q, inner: of this thread's columns. */
template <int DIM>
static __device__ __forceinline__ void put_pairs(const rows_system<DIM> &rs,
                                                 const float (&q)[DIM / SIDE][8][4], float (&inner)[2],
                                                 rows_sums &sum, const row_record (&rec)[2])
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
            rs.arrays.record[rs.line[row]] = rec[row];
            rs.arrays.sums.scale[rs.line[row]] = (double)sum.scale[row];
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
            const float2 y = rs.pair(rs.arrays.y, row, c);
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
    const bool plain = sys.p.ridge_unit != LOAM_RIDGE_MAX && !sys.a.grad_scale;
    float q[DIM / SIDE][8][4], r[DIM / SIDE][8][4];
    float inner[2] = { 0, 0 }, total[2] = { 0, 0 }, error2[2] = { 0, 0 }, residual;
    row_record rec[2];
    begin_pairs<false>(rs, k, sum, rec);
    const pair_rows own = pair_rows_of(sys, rec);
    if (plain) {
        pair_sums<true>(q, r, inner, total, rs, own, sum);
    } else {
        pair_sums<false>(q, r, inner, total, rs, own, sum);
    }
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 y = direction_pair<false>(sys, n, e);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const int row = e / 2;
                const float lambda = ridge_at(sys.ridge, sys.p, sys.a, sys.x, sys.r, row,
                                              column_of(n, e + s));
                const float rest = r[n / 8][n % 8][e + s] - total[row] * kbar.get(4 * n + e + s) +
                                   lambda * (s ? y.y : y.x);
                error2[row] += rest * rest / (k.unit[row] * k.unit[row]);
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
    put_pairs(rs, q, inner, sum, rec);
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
    const pair_rows own = pair_rows_of(rs.sys, rec);
    pair_sums_fine(q, inner, rs, own, sum);
    put_pairs(rs, q, inner, sum, rec);
}

/* ------------------------------------------------------------------ the solve */

/* b, as the last first sweep left it, in the unit of the solution at hand. */
template <int DIM>
static __device__ __forceinline__ void scale_right_side(const system_sm90<DIM> &sys, cg_rows &k)
{
    const lane_vector b = sys.vector(VECTOR_B);
    for (int n = 0; n < DIM / 2; n++) {
        b.put(n, b.get(n) / k.unit[n / 2 % 2]);
    }
    row_dots<DIM>(k.bb, b, b);
}

/* The solution becomes the direction, in two parts. True where all rows are solved; where not, those that are not go on the list for
 * float64, and y and records are written for query_kernel. */
template <int DIM>
static __device__ __forceinline__ bool check_rows(const rows_system<DIM> &rs, const cg_rows &k,
                                                  const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                  const rows_sums &sum, const solve_work &work, int64_t block)
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
            *(float2 *)(rs.arrays.y + rs.line[row] * DIM + c) = solution_pair<true>(sys, k, n / 2, 2 * row);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!sys.r.real[row] || threadIdx.x % 4 != 0) {
            continue;
        }
        row_record rec = {};
        rec.gbar_rest = sum.rest[row], rec.peak = sum.peak[row], rec.unit = sys.ridge.unit[row];
        rs.arrays.record[rs.line[row]] = rec;
        if (hard[row]) {
            const hard_row left = { block, sys.r.at[row], k.iterations[row] };
            work.hard[atomicAdd(work.hard_count, 1ull)] = left;
        }
    }
    return false;
}

/* kbar into the scratch, do . vbar; true where forward has needed more than one part for a probe of the thread's rows. */
template <int DIM>
static __device__ __forceinline__ bool load_rows(const rows_system<DIM> &rs, rows_sums &sum)
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
            const float2 mean = rs.pair(rs.saved.kbar, row, c), rho = rs.pair(rs.saved.rho, row, c),
                         value = rs.pair(rs.saved.vbar, row, c);
            const float2 grad = __bfloat1622float2(
                *(const __nv_bfloat162 *)(sys.sm.direction[0] + swizzled(sys.r.at[row], c)));
            kbar.put(4 * n + e, mean.x), kbar.put(4 * n + e + 1, mean.y);
            fine |= rounded<1>(rho.x) != rho.x || rounded<1>(rho.y) != rho.y;
            sum.gbar[row] += grad.x * value.x + grad.y * value.y;
        }
    }
    sum.gbar[0] = quad_sum(sum.gbar[0]), sum.gbar[1] = quad_sum(sum.gbar[1]);
    return fine;
}

template <int DIM>
static __device__ __forceinline__ void rows_block_sm90(solve_shared_sm90<DIM> &sm,
                                                       pair_barriers<DIM> &barriers, rows_count &count,
                                                       const loam_problem &p, const loam_args &a,
                                                       const local_saved &saved, const row_arrays &arrays,
                                                       const solve_work &work, const rows_maps_sm90 &maps,
                                                       int64_t block, float *scratch)
{
    const row_block x = row_block_at(p, a, block);
    if (x.rows <= 0) {
        return;
    }
    const row_pair r = row_pair_of(p, x);
    int64_t lo, hi, first, last;
    local_visible(&p, &x.s, x.i0, &lo, &hi);
    local_visible(&p, &x.s, x.i0 + x.rows - 1, &first, &last);
    row_ridge ridge = {};
    system_sm90<DIM> sys = { p,
                             a,
                             x,
                             r,
                             ridge,
                             maps.all,
                             sm,
                             count.ring,
                             scratch,
                             (float)(p.scale * 1.4426950408889634),
                             { 0, 0 },
                             (int)first,
                             x.rows < ROWS ? 0 : (int)hi,
                             hi - lo < FEW_KEYS * DIM };
    const rows_system<DIM> rs = { sys,
                                  barriers,
                                  count,
                                  saved,
                                  arrays,
                                  maps,
                                  { local_row(&p, &x.s, x.h, x.i0 + r.at[0]),
                                    local_row(&p, &x.s, x.h, x.i0 + r.at[1]) } };
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, 2 * DIM * SIDE * 2);
        ask_rows(rs, sm.query, maps.all.q);
        ask_rows(rs, sm.direction[0], maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);

    rows_sums sum = {};
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    float unit[2] = { 1, 1 };
    ridge = row_ridge_of(p, a, x, r, unit);
    bool wanted[2], fine = load_rows(rs, sum);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sys.lse2[row] = r.real[row] ? finite_or_zero(((const float *)saved.lse)[rs.line[row]]) * 1.44269504f
                                    : 0;
        wanted[row] = r.lo[row] < r.hi[row] && ridge.least[row] > 0;
        fine |= r.lo[row] < r.hi[row] && !wanted[row];
    }
    sys.fine = __syncthreads_or(sys.fine || fine);

    const cg_tolerance cheap = { 8e-3f, 1.8e-2f, 8 }, exact = { 3e-4f, 1e-2f, 64 };
    cg_rows k;
    bool resumed = false;
    int32_t state = ROWS_CHEAP;
    for (;;) {
        if (sys.fine) {
            probe_gradient_sm90<true>(rs, sum, true);
        } else {
            probe_gradient_sm90<false>(rs, sum, by_max);
        }
        if (by_max) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                unit[row] = sum.peak[row] < 0 ? 0 : exp2_fast(fminf(sum.best[row] - sys.lse2[row], 0));
            }
            ridge = row_ridge_of(p, a, x, r, unit);
        }
        if (resumed) {
            scale_right_side(sys, k);
            cg_resume(sys, k, wanted, exact.stop);
        } else {
            cg_begin(sys, k, wanted);
        }
        if (sys.fine) {
            cg_run<true>(sys, k, exact);
            state = ROWS_LEFT;
            if (check_rows(rs, k, wanted, exact, sum, work, block)) {
                finish_rows_fine(rs, k, sum);
                state = ROWS_FINE;
            }
            break;
        }
        cg_run<false>(sys, k, cheap);
        if (finish_rows(rs, k, wanted, cheap, sum)) {
            break;
        }
        sys.fine = resumed = true;
        if (threadIdx.x == 0) {
            barrier_expect(&sm.query_full, DIM * SIDE * 2);
            ask_rows(rs, sm.direction[0], maps.grad_o);
        }
        barrier_wait(&sm.query_full, count.rows++ % 2);
    }
    if (threadIdx.x == 0) {
        arrays.state[block] = state;
    }
}

template <int DIM>
__global__ void __launch_bounds__(THREADS, 2)
    rows_kernel_sm90(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const local_saved saved, const row_arrays arrays, const solve_work work,
                     const int64_t blocks, const __grid_constant__ rows_maps_sm90 maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solve_shared_sm90<DIM> &sm = *(solve_shared_sm90<DIM> *)swizzled_memory;
    pair_barriers<DIM> &barriers = *(pair_barriers<DIM> *)(swizzled_memory + pair_barriers_at<DIM>);
    float *scratch = work.scratch + (int64_t)blockIdx.x * VECTORS * (DIM / 2) * THREADS;
    rows_count count = {};
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_slots<DIM>; n++) {
            barrier_init(&sm.full[n], 1);
        }
        for (int n = 0; n < (int)ring_slots<DIM> - 1; n++) {
            barrier_init(&barriers.full[n], 1);
        }
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = (int64_t)atomicAdd((unsigned long long *)work.next_block, 1ull);
        }
        __syncthreads();
        const int64_t block = sm.block;
        if (block >= blocks) {
            return;
        }
        rows_block_sm90(sm, barriers, count, p, a, saved, arrays, work, maps, block, scratch);
    }
}

#endif
