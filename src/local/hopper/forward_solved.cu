/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the passes of local/cuda/forward_solved.cu, for bf16, dot scores
 * that may decay but have no other bias, and head dimensions 64 and 128. A thread block is one warpgroup with
 * 64 rows. Operands of products are fp16: three bits more a part than bf16, which the keys of trained models
 * need.
 *
 * Blocks whose rows see many keys have directions and weights in one part each, which leaves a residual of
 * about 2^-11; the last sweep measures the true one. Where it misses the tolerance, or the iteration is too
 * slow to reach it, the block is listed for a launch in two parts, where with 64 dimensions each row gets a
 * matrix of its own (pcg.cuh). Blocks with few keys have two parts at once, in a launch that overlaps with
 * the first, and matrices if steps without are too many. One kernel for both would need too many registers
 * for its products to be pipelined. The functions of the matrices are called, which makes wgmma wait for each
 * product: inlined, they would spill even more.
 */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/pcg.cuh"

/* A sweep over keys and values, in a ring of EXTRA stages more than the solver's, which overwrite parts of
 * the direction. */
template <int EXTRA, bool PIPELINED, int DIM, bool DECAYED, class T, class SCORE, class WEIGH, class PACK,
          class ACCUMULATE>
static __device__ __forceinline__ void stream_values(const block_system<DIM, DECAYED, T> &sys, SCORE score,
                                                     WEIGH weigh, PACK pack, ACCUMULATE accumulate)
{
    if constexpr (EXTRA == 0) {
        stream_pipelined<DIM, true, PIPELINED>(sys.ring(), sys.count, sys.maps, sys.block, score, weigh, pack,
                                               accumulate);
    } else {
        ring_count count = sys.sm.extended[EXTRA - 1];
        fence_async_proxy();
        __syncthreads();
        stream_pipelined<DIM, true, PIPELINED>(sys.template extended_ring<EXTRA>(), count, sys.maps,
                                               sys.block, score, weigh, pack, accumulate);
        if (threadIdx.x == 0) sys.sm.extended[EXTRA - 1] = count;
    }
}

/* The products s = q . k with keys from j on become scores to base 2; -inf where a row does not see one. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void masked_scores(float (&s)[8][4],
                                                     const block_system<DIM, DECAYED, T> &sys, int j)
{
    add_decay(s, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= DECAYED ? 1.0f : sys.scale2[e / 2];
    }
    if (!sys.unmasked(j)) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = sys.seen(e / 2, j + column_of(n, e)) ? s[n][e] : -INFINITY;
        }
    }
}

/* The online softmax of two rows: the running maximum to base 2, and the sums of weights, exact and as
 * rounded to their parts (this thread's columns). rescale: the factor for all that was summed before. */
struct softmax_rows {
    float m[2], omega[2], rounded[2], rescale[2];
};

/* The largest weight, to base 2: the top of the range of fp16 is used. */
template <class T> constexpr float softmax_top = is_half<T> ? 15 : 0;

/* Scores become weights, w = 2^(s - m + softmax_top). */
template <class T> static __device__ __forceinline__ void softmax_step(softmax_rows &soft, float (&s)[8][4])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = soft.m[row];
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        top = quad_max(top);
        const float base = finite_or_zero(top);
        soft.rescale[row] = exp2_fast(soft.m[row] - base);
        soft.m[row] = top, soft.omega[row] *= soft.rescale[row], soft.rounded[row] *= soft.rescale[row];
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] - (base - softmax_top<T>));
                soft.omega[row] += s[n][e];
            }
        }
    }
}

/* Adds the weights as rounded, the parts of each pair of columns together (add_weights: lo parts first). */
template <int PARTS, class T>
static __device__ __forceinline__ void add_weights_by_pair(float (&total)[2],
                                                           const weights_operand<PARTS, 4, T> &w)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const float2 pair = unpack_pair<T>(w.part[part][k][e]);
                total[e % 2] += pair.x + pair.y;
            }
        }
    }
}

/* Rescales the sums of keys and of values, where the maximum of any of the warp's rows moved. */
template <int DIM>
static __device__ __forceinline__ void rescale_means(float (&k)[DIM / TILE_SIDE][8][4],
                                                     float (&v)[DIM / TILE_SIDE][8][4],
                                                     const float (&rescale)[2])
{
    if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                k[n / 8][n % 8][e] *= rescale[e / 2], v[n / 8][n % 8][e] *= rescale[e / 2];
        }
    }
}

/* The exponent that weights of a row can have, so that fp16 holds p (direction . k - direction . kbar) for
 * any direction; `largest`: of the p. */
static __device__ __forceinline__ float weight_exponent(float largest, float norm)
{
    const float bound = largest * DIRECTION_NORM * 2 * norm;
    return bound > 0 && bound < INFINITY ? 14 - floorf(log2f(bound)) : 0;
}

/* The means of keys and values go to the scratch, in their units, from the sums k and v; lse of the rows and
 * what weights are multiplied by to the system. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void put_means(block_system<DIM, DECAYED, T> &sys, softmax_rows &soft,
                                                 const float (&k)[DIM / TILE_SIDE][8][4],
                                                 const float (&v)[DIM / TILE_SIDE][8][4], float (&lse)[2],
                                                 float (&largest)[2])
{
    const lane_vector kbar = sys.vector(VECTOR_KBAR), vbar = sys.vector(VECTOR_VBAR);
    sys.lse_exact = true;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float omega = quad_sum(soft.omega[row]), rounded = quad_sum(soft.rounded[row]);
        const bool some = omega > 0;
        const float inverse = rounded > 0 ? 1 / rounded : 0;
        const float lse2 = some ? soft.m[row] + (log2f(omega) - softmax_top<T>) : 0;
        sys.lse_exact = sys.lse_exact && fabsf(lse2) < EXACT_LSE;
        lse[row] = some ? lse2 * 0.693147181f : -INFINITY;
        largest[row] = some ? power_of_two(softmax_top<T>) / omega : 0;
        if (is_half<T>) sys.weight_log2[row] = weight_exponent(largest[row], sys.units.norm);
        sys.lse2[row] = lse2 - sys.weight_log2[row];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                kbar.put(4 * n + e, k[n / 8][n % 8][e] * inverse);
                vbar.put(4 * n + e, v[n / 8][n % 8][e] * inverse);
            }
        }
    }
}

/* The first sweep, an online softmax: lse, and the means of keys and values into the scratch. largest: the
 * largest p of a row. Means are divided by the sum of the weights as rounded to their parts: their error is
 * then relative to the spread of the keys, not to their size. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void means_sweep(block_system<DIM, DECAYED, T> &stored, float (&lse)[2],
                                                   float (&largest)[2])
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    float k[DIM / TILE_SIDE][8][4], v[DIM / TILE_SIDE][8][4], s[8][4];
    softmax_rows soft = { { -INFINITY, -INFINITY }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
    weights_operand<PARTS, 4, T> w;
    score_operands<DIM, DECAYED, T, PARTS, true> rows;
    rows.load_query(sys);
    clear_sums<DIM>(k);
    clear_sums<DIM>(v);
    stream_values<PARTS == 2 || DIM == 64 ? 0 : 2, true>(
        sys, [&](const auto &t) { rows.query_keys(s, sys, t.keys); },
        [&](const auto &t) {
            wgmma_results(s);
            masked_scores(s, sys, t.j);
            softmax_step<T>(soft, s);
            wgmma_results(s);
        },
        [&]() {
            wgmma_results(k);
            wgmma_results(v);
            split_weights(w, s);
            add_weights_by_pair(soft.rounded, w);
            rescale_means<DIM>(k, v, soft.rescale);
        },
        [&](const auto &t) {
            if (PARTS == 2) multiply_weights<DIM>(k, w.part[PARTS - 1], t.keys);
            multiply_weights<DIM>(k, w.part[0], t.keys);
            multiply_weights<DIM>(v, w.part[0], t.values);
        });
    wgmma_results(k);
    wgmma_results(v);
    put_means(sys, soft, k, v, lse, largest);
    stored.lse_exact = __syncthreads_and(sys.lse_exact);
    stored.lse2[0] = sys.lse2[0], stored.lse2[1] = sys.lse2[1];
    stored.weight_log2[0] = sys.weight_log2[0], stored.weight_log2[1] = sys.weight_log2[1];
}

/* b = kbar - q, scaled to about 1; x = 0 and r = b. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void start_solve(const block_system<DIM, DECAYED, T> &stored, cg_rows &cg,
                                                   const bool (&wanted)[2])
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = sys.r.real[row] ? kbar.get(n) - sys.target(row, column_of(n / 4, n % 4)) : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    start_cg(sys, cg, y, top, wanted);
}

/* Writes rho, and saves rho, kbar and vbar for the backward pass, of rows within the sequence. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void save_rows(const block_system<DIM, DECAYED, T> &sys, const cg_rows &cg,
                                                 const row_direction &own, const local_saved &saved)
{
    const loam_args &a = sys.a;
    const lane_vector vbar = sys.vector(VECTOR_VBAR), kbar = sys.vector(VECTOR_KBAR);
    const float key = sys.units.key, value = sys.units.value;
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
            if (a.rho.data) ((float *)a.rho.data)[to + c] = rho.x, ((float *)a.rho.data)[to + c + 1] = rho.y;
            if (a.saved) {
                *(float2 *)((float *)saved.rho + line * DIM + c) = rho;
                *(float2 *)((float *)saved.kbar + line * DIM + c) = { key * kbar.get(at),
                                                                      key * kbar.get(at + 1) };
                *(float2 *)((float *)saved.vbar + line * DIM + c) = { value * vbar.get(at),
                                                                      value * vbar.get(at + 1) };
            }
        }
    }
}

/* Writes o = vbar - sum p u v of rows within the sequence, from sums = sum p (u - centre) v and total =
 * sum p (u - centre), both in the unit of the image. y: the image of the solution. error: the square of
 * |b - y| of each row; finite: whether its o is. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void put_output(const block_system<DIM, DECAYED, T> &sys, const cg_rows &cg,
                                                  const row_direction &own,
                                                  const float (&y)[DIM / TILE_SIDE][8][4],
                                                  const float (&sums)[DIM / TILE_SIDE][8][4],
                                                  const float (&total)[2], float (&error)[2],
                                                  bool (&finite)[2])
{
    const loam_args &a = sys.a;
    const lane_vector b = sys.vector(VECTOR_B), vbar = sys.vector(VECTOR_VBAR);
    const float value = sys.units.value,
                unit[2] = { cg.unit[0] * image_unit(sys, own, 0), cg.unit[1] * image_unit(sys, own, 1) };
    float error2[2] = { 0, 0 }, bad[2] = { 0, 0 };
    __nv_bfloat16 *to[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to[row] = (__nv_bfloat16 *)a.o.data +
                  LOCAL_AT(a.o, sys.block.s.b, sys.block.h, sys.block.s.q0 + sys.block.i0 + sys.r.at[row]);
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = e / 2, at = 4 * n + e;
            float out[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float residual = b.get(at + c) - y[n / 8][n % 8][e + c], mean = vbar.get(at + c);
                error2[row] += residual * residual;
                out[c] = value * (mean - unit[row] * (sums[n / 8][n % 8][e + c] - total[row] * mean));
                bad[row] += out[c] * 0;
            }
            if (sys.r.real[row]) store_bf16_pair(to[row] + column_of(n, 0), out[0], out[1]);
        }
    }
    error[0] = error2[0], error[1] = error2[1];
    finite[0] = quad_sum(bad[0]) == 0, finite[1] = quad_sum(bad[1]) == 0;
}

/* The last sweep: writes o = vbar - sum p u v, rho and saved of rows within the sequence. error: the square
 * of |b - (Cov + Lambda) x| of each row; finite: whether its o is. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void output_sweep(const block_system<DIM, DECAYED, T> &stored,
                                                    const cg_rows &cg, const local_saved &saved,
                                                    float (&error)[2], bool (&finite)[2])
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    float y[DIM / TILE_SIDE][8][4], o[DIM / TILE_SIDE][8][4], total[2] = { 0, 0 };
    float f[8][4], u[8][4], error2[2];
    weights_operand<PARTS, 4, T> w;
    score_operands<DIM, DECAYED, T, PARTS, true> rows;
    row_direction own = {};
    /* One part in the backward pass is of bf16: the residual below is that of the rho that it reads. */
    direction_from_solution<PARTS>(sys, y, own, PARTS == 1 && sys.a.saved);
    rows.load(sys);
    clear_sums<DIM>(y);
    clear_sums<DIM>(o);
    stream_values<PARTS == 2 || DIM == 64 ? 0 : 1, false>(
        sys,
        [&](const auto &t) {
            rows.query_keys(f, sys, t.keys);
            rows.direction_keys(u, sys, t.keys);
        },
        [&](const auto &t) { centre_weights(f, u, sys, t.j, own.centre, total); },
        [&]() {
            wgmma_results(y);
            wgmma_results(o);
            split_weights(w, f);
        },
        [&](const auto &t) {
            if (PARTS == 2) {
                multiply_weights<DIM>(y, w.part[PARTS - 1], t.keys);
                multiply_weights<DIM>(o, w.part[PARTS - 1], t.values);
            }
            multiply_weights<DIM>(y, w.part[0], t.keys);
            multiply_weights<DIM>(o, w.part[0], t.values);
        });
    wgmma_results(y);
    wgmma_results(o);
    finish_image<PARTS>(y, sys, own, total);
    put_output(sys, cg, own, y, o, total, error2, finite);
    if (sys.a.rho.data || sys.a.saved) save_rows<PARTS>(sys, cg, own, saved);
    error[0] = quad_sum(error2[0]), error[1] = quad_sum(error2[1]);
}

/* The queries of the block by bulk copy, which are made fp16 in place; count: fillings of their tile
 * before. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_block_queries(block_system<DIM, DECAYED, __half> &sys,
                                                          unsigned count)
{
    const row_block &block = sys.block;
    if (threadIdx.x == 0) {
        barrier_expect(&sys.sm.query_full, DIM * TILE_SIDE * 2);
        load_tile<DIM>(sys.sm.query, sys.maps.q, &sys.sm.query_full, (int)(block.s.q0 + block.i0),
                       (int)block.h, (int)block.s.b);
    }
    barrier_wait(&sys.sm.query_full, count % 2);
    uint32_t *const words = (uint32_t *)sys.sm.query;
    float top[2] = { 0, 0 };
#pragma unroll 8
    for (int n = 0; n < DIM / 4; n++) {
        const float2 q = unpack_pair<__nv_bfloat16>(
            words[swizzled(sys.r.at[n % 2], column_of(n / 2, 0)) / 2]);
        top[n % 2] = fmaxf(top[n % 2], fmaxf(fabsf(q.x), fabsf(q.y)));
    }
    float inverse[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(unit);
        sys.query_unit[row] = unit * power_inverse(sys.units.key);
        sys.scale2[row] *= unit * sys.units.key;
    }
#pragma unroll 8
    for (int n = 0; n < DIM / 4; n++) {
        uint32_t &word = words[swizzled(sys.r.at[n % 2], column_of(n / 2, 0)) / 2];
        const float2 q = unpack_pair<__nv_bfloat16>(word);
        word = pack_pair<__half>(q.x * inverse[n % 2], q.y * inverse[n % 2]);
    }
    fence_async_proxy();
    __syncthreads();
}

/* Writes what a row has once: info, lse and its saved copy. Rows with keys that are not `good` go on the list
 * for float64. */
static __device__ __forceinline__ void put_row_results(const solve_launch &all, int64_t number,
                                                       const row_block &block, const row_pair &r,
                                                       const cg_rows &cg, const bool (&good)[2],
                                                       const float (&residual)[2], const float (&lse)[2])
{
    const loam_args &a = all.a;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0) continue;
        const int64_t i = block.i0 + r.at[row];
        loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, cg.iterations[row], residual[row] };
        if (r.lo[row] >= r.hi[row]) {
            info = loam_row_info{ LOAM_ROW_EMPTY, LOAM_SOLVER_NONE, 0, 0 };
        } else if (!good[row]) {
            const hard_row hard = { number, r.at[row], cg.iterations[row] };
            all.work.hard[atomicAdd(all.work.hard_count, 1ull)] = hard;
        }
        put_info(a, block, i, info);
        if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, block.s.b, block.h, block.s.q0 + i)] = lse[row];
        if (a.saved) ((float *)all.saved.lse)[local_row(&all.p, &block.s, block.h, i)] = lse[row];
    }
}

/* Steps without a preconditioner; in two parts, as many as the matrices of a block that sees few keys are
 * worth. With `saved`, gradients follow: they need a more exact probe than o does, and one that took many
 * steps in one part does not bear the rounding to bf16. */
template <int PARTS, int DIM> static __device__ __forceinline__ cg_tolerance plain_tolerance(bool saved)
{
    const int most = has_row_matrices<DIM> ? 28 : 128;
    const float stop = saved ? 3e-4f : 1.2e-3f;
    return PARTS == 2 ? cg_tolerance{ stop, stop, 1e-2f, most, 0, false }
           : saved    ? cg_tolerance{ 6e-3f, 6e-3f, 1.8e-2f, 8, 0.62f, false }
                      : cg_tolerance{ 6e-3f, 3.5e-3f, 1.2e-2f, 16, 0.77f, true };
}

/* With matrices. */
static __device__ __forceinline__ cg_tolerance heavy_tolerance(bool saved)
{
    const float stop = saved ? 3e-4f : 1.2e-3f;
    return { stop, stop, saved ? 1e-3f : 2.5e-3f, 32, 0, true };
}

/* Can fp16 hold the row's system? */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ bool within_range(const block_system<DIM, DECAYED, T> &sys,
                                                    const float (&largest)[2], int row)
{
    const float least = sys.ridge.least[row], longest2 = sys.units.norm * sys.units.norm;
    return sys.r.lo[row] < sys.r.hi[row] && least > 0 && !sys.units.wide &&
           largest[row] * longest2 < HALF_RANGE * least;
}

/* Goes on with a matrix for each row, for the rows that are `wanted` and not solved yet. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void solve_heavy(const block_system<DIM, DECAYED, T> &sys, cg_rows &cg,
                                                   const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                   const solve_launch &all)
{
    const heavy_work work = all.heavy->of(sys.sm.scratch);
    const row_block &block = sys.block;
    const __half *const keys = (const __half *)all.copy->keys.data +
                               LOCAL_AT(all.copy->keys, block.s.b, block.h_kv, block.s.k0 + block.first);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        cg.live[row] = wanted[row] && cg.rr[row] > tolerance.stop * tolerance.stop * cg.bb[row] &&
                       cg.bb[row] < INFINITY;
    }
    make_factors(sys, cg.live, work, keys);
    pcg_run<2>(sys, cg, tolerance, work.factor);
}

/* Solves the rows of the block in PARTS parts; false where one part was not enough. listed: it was not, and
 * steps without a preconditioner would be too many. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ bool solve_rows(solver_shared<DIM, __half> &sm, ring_count &count,
                                                  unsigned &queries, const solve_launch &all, float *scratch,
                                                  bool listed)
{
    constexpr bool with_matrices = PARTS == 2 && has_row_matrices<DIM>;
    const loam_problem &p = all.p;
    const loam_args &a = all.a;
    const row_block &block = sm.rows;
    row_pair r_storage = row_pair_of(p, block);
    const row_pair &r = in_memory(r_storage);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    typedef block_system<DIM, DECAYED, __half> system;
    system sys_storage = block_system_of<DIM, DECAYED>(p, a, block, r, ridge, all.maps, sm, count, scratch);
    sys_storage.units = half_units_of(*all.copy, p, sm.block / p.heads_q % p.batch, block.h_kv);
    load_block_queries(sys_storage, queries++);
    system &sys = in_memory(sys_storage);
    float lse_storage[2], largest[2], error2[2];
    float(&lse)[2] = in_memory(lse_storage);
    bool finite[2], good[2], missed = false;
    means_sweep<PARTS>(sys, lse, largest);
    const bool by_max = p.ridge_unit == LOAM_RIDGE_MAX;
    const float square = power_inverse(sys.units.key) * power_inverse(sys.units.key);
    const float unit[2] = { (by_max ? largest[0] : 1) * square, (by_max ? largest[1] : 1) * square };
    ridge = row_ridge_of(p, a, block, r, unit);
    cg_tolerance tolerance = plain_tolerance<PARTS, DIM>(a.saved != NULL);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    start_solve(sys, cg, wanted);
    if (!with_matrices || !listed) cg_run<PARTS>(sys, cg, tolerance);
    if (PARTS == 1) {
        const float bound = tolerance.accept * tolerance.accept;
        missed = (cg.live[0] && cg.rr[0] > bound * cg.bb[0]) || (cg.live[1] && cg.rr[1] > bound * cg.bb[1]);
        if (__syncthreads_or(missed)) return false;
    }
    if constexpr (with_matrices) {
        if (__syncthreads_or(cg.live[0] || cg.live[1])) {
            tolerance = heavy_tolerance(a.saved != NULL);
            solve_heavy(sys, cg, wanted, tolerance, all);
        }
    }
    output_sweep<PARTS>(sys, cg, all.saved, error2, finite);
    float residual[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        good[row] = accepted(cg, tolerance, row, error2[row], &residual[row]) && finite[row] &&
                    ridge.least[row] > BLOCK_LEAST_RIDGE * cg.most[row];
        missed = missed || (wanted[row] && !good[row] && finite[row]);
        good[row] = good[row] && wanted[row];
    }
    if (PARTS == 1 && __syncthreads_or(missed)) return false;
    put_row_results(all, sm.block, block, r, cg, good, residual, lse);
    return true;
}

template <int PARTS, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    solved_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const local_saved saved, const solve_work work, const int64_t blocks, bool listed,
                         const __grid_constant__ qkv_maps maps, const __grid_constant__ half_copy copy,
                         const __grid_constant__ heavy_work heavy)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solver_shared<DIM, __half> &sm = *(solver_shared<DIM, __half> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    ring_count count = { 0 };
    unsigned queries = 0;
    /* The copy in fp16 is complete before a launch that overlaps with this one begins. */
    if (PARTS == 2) wait_for_previous_launch(), launch_dependents();
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_stages<DIM>; n++)
            barrier_init(&sm.full[n], 1);
        for (int n = 0; n < (int)ring_stages<DIM> + 2; n++) {
            barrier_init(&sm.extended_full[0][n], 1);
            barrier_init(&sm.extended_full[1][n], 1);
        }
        sm.extended[0].used = sm.extended[1].used = 0;
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
        sm.scratch = claim_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) sm.block = claim_block<PARTS, DIM, DECAYED>(sm.rows, all, blocks, listed);
        __syncthreads();
        if (sm.block < 0) break;
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = solve_rows<PARTS, DIM, DECAYED>(sm, count, queries, all, scratch, listed);
        if (!solved && threadIdx.x == 0) work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    if (PARTS == 1) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ the launches */

template <int PARTS, int DIM, bool DECAYED>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                               const qkv_maps *maps, bool listed, bool overlapped, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = work->scratches;
    return cuda_launch("solved_kernel_hopper", solved_kernel_hopper<PARTS, DIM, DECAYED>,
                       most < blocks ? most : blocks, THREADS, sizeof(solver_shared<DIM, __half>), a->stream,
                       overlapped, error, *p, *a, *saved, *work, blocks, listed, *maps, *copy, *heavy);
}

/* Blocks with few keys in two parts; beside them all others in one part; then, in two parts, those of the
 * others for which one part was not enough. Where scores decay, all blocks in two parts. */
template <int DIM> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    solve_work work = solve_work_carve(p, &pool);
    const half_copy copy = half_copy_carve(p, &work, &pool);
    const heavy_work heavy = heavy_work_carve(p, &work, &pool);
    work.scratches = heavy.scratches;
    qkv_maps maps;
    TRY(query_map_make(&maps.q, p, &a->q, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &copy.keys, TILE_SIDE, error));
    TRY(key_map_make(&maps.v, p, &copy.values, TILE_SIDE, error));
    TRY(solve_work_clear(&work, a, error));
    TRY(half_copy_make(&copy, p, a, error));
    if (p->decay)
        return launch_pass<2, DIM, true>(p, a, &saved, &work, &copy, &heavy, &maps, false, true, error);
    TRY((launch_pass<2, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, false, true, error)));
    TRY((launch_pass<1, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, false, true, error)));
    return launch_pass<2, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, true, false, error);
}

size_t local_solved_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    (void)half_copy_carve(p, &work, &pool);
    (void)heavy_work_carve(p, &work, &pool);
    return pool.used;
}

bool local_solved_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) && key_map_fits(p, &a->v);
}

loam_status local_solved_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->dim_qk == 64 ? launch<64>(p, a, error) : launch<128>(p, a, error);
}
