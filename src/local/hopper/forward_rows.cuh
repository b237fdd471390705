/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: what the kernels share that solve blocks of 64 rows in fp16
 * parts, from the queries of a block to its output.
 */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_ROWS_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_ROWS_CUH

#include "src/local/cuda/forward.h"
#include "src/local/hopper/conjugate.cuh"
#include "src/local/hopper/heavy_work.cuh"
#include "src/local/hopper/row_store.cuh"

/* A sweep over keys and, where VALUES, values, in a ring of EXTRA stages more than the solver's, which
 * overwrite parts of the direction. */
template <int EXTRA, bool PIPELINED, bool VALUES = true, int OF_KEYS = ALL_KEYS, int DIM, bool DECAYED,
          class T, class SCORE, class WEIGH, class PACK, class ACCUMULATE>
static __device__ __forceinline__ void stream_values(const block_system<DIM, DECAYED, T> &sys, SCORE score,
                                                     WEIGH weigh, PACK pack, ACCUMULATE accumulate)
{
    if constexpr (EXTRA == 0) {
        stream_pipelined<DIM, VALUES, PIPELINED>(sys.template ring<sweep_stages<OF_KEYS, DIM>>(), sys.count,
                                                 sys.maps, sys.block, score, weigh, pack, accumulate);
    } else {
        ring_count count = sys.sm.extended[EXTRA - 1];
        fence_async_proxy();
        __syncthreads();
        stream_pipelined<DIM, VALUES, PIPELINED>(sys.template extended_ring<EXTRA>(), count, sys.maps,
                                                 sys.block, score, weigh, pack, accumulate);
        if (threadIdx.x == 0) sys.sm.extended[EXTRA - 1] = count;
    }
}

/* A tile of rows of the problem, of float16 where `is_f16`, in the memory of fp16: the largest |x| of the
 * thread's columns of each of its rows. */
template <int DIM>
static __device__ __forceinline__ void wide_tile_tops(float (&top)[2], const __half *tile, const row_pair &r,
                                                      bool is_f16 = false)
{
    const uint32_t *const words = (const uint32_t *)tile;
    top[0] = top[1] = 0;
#pragma unroll 8
    for (int n = 0; n < DIM / 4; n++) {
        const float2 x = unpack_16_bits(words[swizzled(r.at[n % 2], column_of(n / 2, 0)) / 2], is_f16);
        top[n % 2] = fmaxf(top[n % 2], fmaxf(fabsf(x.x), fabsf(x.y)));
    }
}

/* Such a tile, times `factor` of each row, becomes fp16, which may be in place. */
template <int DIM>
static __device__ __forceinline__ void narrow_tile(__half *to, const __half *tile, const row_pair &r,
                                                   const float (&factor)[2], bool is_f16 = false)
{
#pragma unroll 8
    for (int n = 0; n < DIM / 4; n++) {
        const int at = swizzled(r.at[n % 2], column_of(n / 2, 0));
        const float2 x = unpack_16_bits(*(const uint32_t *)(tile + at), is_f16);
        *(uint32_t *)(to + at) = pack_pair<__half>(x.x * factor[n % 2], x.y * factor[n % 2]);
    }
}

/* The queries of the block in shared memory become fp16, in units of their rows. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void narrow_queries(block_system<DIM, DECAYED, __half> &sys,
                                                      const row_pair &r)
{
    float top[2], inverse[2];
    wide_tile_tops<DIM>(top, sys.sm.query, r, sys.p.dtype == LOAM_F16);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(unit);
        sys.query_unit[row] = unit * power_inverse(sys.units.key);
        sys.scale2[row] *= unit * sys.units.key;
    }
    narrow_tile<DIM>(sys.sm.query, sys.sm.query, r, inverse, sys.p.dtype == LOAM_F16);
    fence_async_proxy();
    __syncthreads();
}

/* Asks for the queries of the block, sm.rows. One thread calls it. */
template <int DIM>
static __device__ __forceinline__ void ask_queries(solver_shared<DIM, __half> &sm, const qkv_maps &maps)
{
    const row_block &block = sm.rows;
    barrier_expect(&sm.query_full, DIM * TILE_SIDE * 2);
    load_tile<DIM>(sm.query, maps.q, &sm.query_full, (int)(block.s.q0 + block.i0), (int)block.h,
                   (int)block.s.b);
}

/* Waits for the queries and makes them fp16 in place; count: fillings of their tile before. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void await_queries(block_system<DIM, DECAYED, __half> &sys, unsigned count)
{
    barrier_wait(&sys.sm.query_full, count % 2);
    narrow_queries(sys, sys.r);
}

template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_block_queries(block_system<DIM, DECAYED, __half> &sys,
                                                          unsigned count)
{
    if (threadIdx.x == 0) ask_queries(sys.sm, sys.maps);
    await_queries(sys, count);
}

/* The exponent that weights of a row can have, so that fp16 holds p (direction . k - direction . kbar) for
 * any direction; `largest`: of the p. */
static __device__ __forceinline__ float weight_exponent(float largest, float norm)
{
    const float bound = largest * DIRECTION_NORM * 2 * norm;
    return bound > 0 && bound < INFINITY ? 14 - floorf(log2f(bound)) : 0;
}

/* The weights of the rows by lse, to base 2, and the largest p of each; all threads of the block call it. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void set_weights(block_system<DIM, DECAYED, __half> &sys,
                                                   const float (&lse2)[2], const float (&largest)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sys.weight_log2[row] = weight_exponent(largest[row], sys.units.norm);
        sys.lse2[row] = lse2[row] - sys.weight_log2[row];
    }
    sys.lse_exact = __syncthreads_and(fabsf(lse2[0]) < EXACT_LSE && fabsf(lse2[1]) < EXACT_LSE);
}

/* The ridge in units of the keys. */
static __device__ __forceinline__ row_ridge ridge_in_units(const loam_problem &p, const loam_args &a,
                                                           const row_block &block, const row_pair &r,
                                                           const half_units &units, const float (&largest)[2])
{
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    const float square = power_inverse(units.key) * power_inverse(units.key);
    const float unit[2] = { (by_max ? largest[0] : 1) * square, (by_max ? largest[1] : 1) * square };
    return row_ridge_of(p, a, block, r, unit);
}

/* Can fp16 hold the row's system? */
template <class SYSTEM>
static __device__ __forceinline__ bool within_range(const SYSTEM &sys, const float (&largest)[2], int row)
{
    const float least = sys.ridge.least[row], longest2 = sys.units.norm * sys.units.norm;
    return sys.r.lo[row] < sys.r.hi[row] && least > 0 && !sys.units.wide &&
           largest[row] * longest2 < HALF_RANGE * least;
}

/* b = kbar - q, scaled to about 1; x = 0 and r = b. */
template <class SYSTEM>
static __device__ __forceinline__ void start_rows(const SYSTEM &sys, cg_rows &cg, const bool (&wanted)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = sys.r.real[row] ? kbar.get(n) - sys.target(row, column_of(n / 4, n % 4)) : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    start_cg(sys, cg, y, top, wanted);
}
template <class SYSTEM>
static __device__ __forceinline__ void start_solve(const SYSTEM &stored, cg_rows &cg, const bool (&wanted)[2])
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    start_rows(system_in_registers(stored, r, ridge), cg, wanted);
}

/* Writes rho, and saves rho, kbar and vbar for the backward pass, of rows within the sequence. */
template <int PARTS, class SYSTEM>
static __device__ __forceinline__ void save_rows(const SYSTEM &sys, const cg_rows &cg,
                                                 const row_direction &own, const local_saved &saved)
{
    constexpr int DIM = SYSTEM::dim;
    const loam_args &a = sys.a;
    const auto vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
    const float key = sys.units.key, value = sys.units.value;
    const int64_t dim_qk = sys.p.dim_qk;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = cg.unit[row] * own.unit[row] * power_inverse(key);
        const int64_t i = sys.block.i0 + sys.r.at[row],
                      line = local_row(&sys.p, &sys.block.s, sys.block.h, i);
        const int64_t to = LOCAL_AT(a.rho, sys.block.s.b, sys.block.h, sys.block.s.q0 + i);
        if (!sys.r.real[row]) continue;
#pragma unroll 4
        for (int n = 0; n < DIM / 8; n++) {
            const float2 x = direction_pair<PARTS>(sys, n, 2 * row);
            const float2 rho = { unit * x.x, unit * x.y };
            const int c = column_of(n, 0), at = 4 * n + 2 * row;
            if (a.rho.data) store_pair(a.rho.data, LOAM_F32, to, c, dim_qk, rho.x, rho.y);
            if (a.saved) {
                save_pair(saved.rho, line, c, dim_qk, rho.x, rho.y);
                save_pair(saved.kbar, line, c, dim_qk, key * kbar.get(at), key * kbar.get(at + 1));
                save_pair(saved.vbar, line, c, sys.p.dim_v, value * vbar.get(at), value * vbar.get(at + 1));
            }
        }
    }
}

/* The square of |b - y| of each row (this thread's columns); y: the image of the solution. */
template <class SYSTEM>
static __device__ __forceinline__ void residual_square(const SYSTEM &sys,
                                                       const float (&y)[SYSTEM::dim / TILE_SIDE][8][4],
                                                       float (&error)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const auto b = sys.vector(VECTOR_B);
    error[0] = error[1] = 0;
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const float residual = b.get(n) - y[n / 32][n / 4 % 8][n % 4];
        error[n / 2 % 2] += residual * residual;
    }
}

/* Writes o = vbar - sum p u v of rows within the sequence, from sums = sum p (u - centre) v and total =
 * sum p (u - centre), both in the unit of the image. finite: whether o of a row is. */
template <class SYSTEM>
static __device__ __forceinline__ void put_output(const SYSTEM &sys, const cg_rows &cg,
                                                  const row_direction &own,
                                                  const float (&sums)[SYSTEM::dim / TILE_SIDE][8][4],
                                                  const float (&total)[2], bool (&finite)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const loam_args &a = sys.a;
    const auto vbar = sys.vector(VECTOR_VBAR);
    const float value = sys.units.value,
                unit[2] = { cg.unit[0] * image_unit(sys, own, 0), cg.unit[1] * image_unit(sys, own, 1) };
    const bool pieces = rows_are_pieces(a.o, (int)sys.p.dim_v);
    float bad[2] = { 0, 0 };
    float means[DIM <= 64 ? DIM / 2 : 1]; /* all loads before any store, where registers allow */
#pragma unroll
    for (int n = 0; DIM <= 64 && n < DIM / 2; n++)
        means[n] = vbar.get(n);
#pragma unroll
    for (int row = 0; row < SYSTEM::rows; row++) {
        void *const to = (uint16_t *)a.o.data + LOCAL_AT(a.o, sys.block.s.b, sys.block.h,
                                                         sys.block.s.q0 + sys.block.i0 + sys.r.at[row]);
        float2 out[DIM / 8];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            float *const pair = &out[n].x;
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int at = 4 * n + 2 * row + c;
                const float mean = DIM <= 64 ? means[at] : vbar.get(at);
                pair[c] = value * (mean - unit[row] * (sums[n / 8][n % 8][2 * row + c] - total[row] * mean));
                bad[row] += pair[c] * 0;
            }
        }
        if (sys.p.dtype == LOAM_F16)
            store_row((__half *)to, sys.r.real[row], pieces, 0, (int)sys.p.dim_v, out);
        else
            store_row((__nv_bfloat16 *)to, sys.r.real[row], pieces, 0, (int)sys.p.dim_v, out);
    }
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* A sweep for o = sum f v and, where IMAGE, y = sum f k, with f = p (direction . k - centre), whose sums
 * (this thread's columns) are added to total. */
template <int PARTS, bool IMAGE, int OF_KEYS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void sum_outputs(const block_system<DIM, DECAYED, T> &sys,
                                                   const row_direction &own,
                                                   float (&y)[DIM / TILE_SIDE][8][4],
                                                   float (&o)[DIM / TILE_SIDE][8][4], float (&total)[2])
{
    weights_operand<PARTS, 4, T> w;
    pass_weights<DIM, DECAYED, T, PARTS, true> f(sys, own, total);
    plain_sums<OF_KEYS == KEY_SEGMENTS, DIM, T> segments(sys.sm, sys.block.first);
    static_assert(IMAGE || OF_KEYS == ALL_KEYS, "both sums in one sweep");
    if (IMAGE) clear_sums<DIM>(y);
    clear_sums<DIM>(o);
    stream_values<PARTS == 2 || DIM == 64 ? 0 : 1, false, true, OF_KEYS>(
        sys, [&](const auto &t) { f.score(t); },
        [&](const auto &t) {
            segments.begin_tile(t.j, total);
            f.weigh(t);
        },
        [&]() {
            if (IMAGE) wgmma_results(y);
            wgmma_results(o);
            segments.end_segment(y, o);
            f.pack(w);
        },
        [&](const auto &t) {
            if (PARTS == 2) {
                if (IMAGE) multiply_weights<DIM>(y, w.part[PARTS - 1], t.keys);
                multiply_weights<DIM>(o, w.part[PARTS - 1], t.values);
            }
            if (IMAGE) multiply_weights<DIM>(y, w.part[0], t.keys);
            multiply_weights<DIM>(o, w.part[0], t.values);
        });
    if (IMAGE) wgmma_results(y);
    wgmma_results(o);
    if (OF_KEYS == KEY_SEGMENTS) segments.finish(total, y, o);
}

/* One part in Hopper's backward pass of bf16 is bf16: the residual of the last sweep is that of the rho that
 * it reads. */
template <int PARTS>
static __device__ __forceinline__ bool is_probe_narrow(const loam_problem &p, const loam_args &a)
{
    return PARTS == 1 && a.saved && p.dtype == LOAM_BF16;
}

/* The last sweep, two of them where registers do not hold both sums: writes o = vbar - sum p u v, rho and
 * saved of rows within the sequence. error: the square of |b - (Cov + Lambda) x| of each row; finite: whether
 * its o is. */
template <int PARTS, int OF_KEYS = ALL_KEYS, class SYSTEM>
static __device__ __forceinline__ void output_sweep(const SYSTEM &stored, const cg_rows &cg,
                                                    const local_saved &saved, float (&error)[2],
                                                    bool (&finite)[2])
{
    constexpr int DIM = SYSTEM::dim;
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const SYSTEM sys = system_in_registers(stored, r, ridge);
    constexpr bool together = DIM <= 128;
    float y[DIM / TILE_SIDE][8][4], o[DIM / TILE_SIDE][8][4], total[2] = { 0, 0 }, error2[2];
    row_direction own = {};
    direction_from_solution<PARTS>(sys, y, own, is_probe_narrow<PARTS>(sys.p, sys.a));
    if (!together) {
        compute_image<PARTS>(y, sys, own);
        residual_square(sys, y, error2);
    }
    sum_outputs<PARTS, together, OF_KEYS>(sys, own, y, o, total);
    if (together) {
        finish_image<PARTS>(y, sys, own, total);
        residual_square(sys, y, error2);
    } else {
        total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
    }
    put_output(sys, cg, own, o, total, finite);
    if (sys.a.rho.data || sys.a.saved) save_rows<PARTS>(sys, cg, own, saved);
    error[0] = quad_sum(error2[0]), error[1] = quad_sum(error2[1]);
}

/* Whether a row is solved, and its residual. */
struct row_verdict {
    bool good;
    float residual;
};

/* By the square of the true residual, of a row that is `possible`. */
template <class SYSTEM>
static __device__ __forceinline__ row_verdict verdict_of(const SYSTEM &sys, const cg_rows &cg,
                                                         const cg_tolerance &tolerance, int row,
                                                         bool possible, float error2)
{
    row_verdict out;
    const bool solved = accepted(cg, tolerance, row, error2, &out.residual);
    out.good = possible && solved && sys.ridge.least[row] > BLOCK_LEAST_RIDGE * cg.most[row];
    return out;
}

/* Writes what a row has once: info, lse and its saved copy. Rows with keys that are not solved go on the list
 * for float64. */
static __device__ __forceinline__ void put_row_results(const solve_launch &all, int64_t number,
                                                       const row_block &block, const row_pair &r,
                                                       const cg_rows &cg, const row_verdict (&verdict)[2],
                                                       const row_weight (&weight)[2])
{
    const loam_args &a = all.a;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) continue;
        const int64_t i = block.i0 + r.at[row];
        const float lse = weight[row].largest > 0 ? weight[row].lse2 * 0.693147181f : -INFINITY;
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, cg.iterations[row], verdict[row].residual };
        if (r.lo[row] >= r.hi[row]) {
            info = loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
        } else if (!verdict[row].good) {
            const hard_row hard = { number, r.at[row], cg.iterations[row] };
            all.work.hard[atomicAdd(all.work.hard_count, 1ull)] = hard;
        }
        put_info(a, block, i, info);
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, block.s.b, block.h, block.s.q0 + i)] = lse;
        if (a.saved) ((float *)all.saved.lse)[local_row(&all.p, &block.s, block.h, i)] = lse;
    }
}

#endif
