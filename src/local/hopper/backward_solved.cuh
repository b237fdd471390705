/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, from y of a block of 64 rows in fp16 to all that the pass
 * over rows writes: the sweep of backward_solution.cuh with one part of the weights, and PARTS of y and rho.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_SOLVED_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_SOLVED_CUH

#include "src/local/hopper/backward_solution.cuh"

template <int DIM, bool DECAYED> using solved_system = rows_system<DIM, DECAYED, __half>;

/* Columns of fragment n of row `at` of a tile of rows of the problem in the memory of fp16. */
static __device__ __forceinline__ float2 wide_pair(const __half *tile, int at, int n, bool is_f16)
{
    return unpack_16_bits(*(const uint32_t *)(tile + swizzled(at, column_of(n, 0))), is_f16);
}

/* The operands of the rows in shared memory. */
template <int PARTS, int DIM, bool DECAYED, class SOURCE>
static __device__ __forceinline__ void put_operands(const solved_system<DIM, DECAYED> &rs,
                                                    const SOURCE &source, const solved_units &units)
{
    __half *const grad_o = rs.stage(pair_stages<DIM>::grad_o);
    const float grad[2] = { power_inverse(units.grad[0]), power_inverse(units.grad[1]) };
    const row_pair own = rs.r;
    narrow_tile<DIM>(grad_o, grad_o, own, grad, rs.sys.p.dtype == LOAM_F16);
    const row_vectors rhos = key_rows(rs, rs.all.saved.rho);
    const float probe[2] = { power_inverse(units.probe[0]), power_inverse(units.probe[1]) },
                solution[2] = { power_inverse(units.solution[0]), power_inverse(units.solution[1]) };
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments rho, y;
        rhos.load(rho, n);
        source.load(y, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float2 a = rho[k][row], b = y[k][row];
                store_directions<PARTS>(rs, swizzled(own.at[row], column_of(n + k, 0)),
                                        { probe[row] * a.x, probe[row] * a.y },
                                        { solution[row] * b.x, solution[row] * b.y });
            }
        }
    }
    fence_async_proxy();
    __syncthreads();
}

/* The stages of tiles: those that lo parts of y and rho leave. */
template <int DIM, int PARTS>
constexpr unsigned solved_stages = PARTS == 1 ? pair_stages<DIM>::grad_o : pair_stages<DIM>::rho;

/* q = sum ds k and r = sum p E k, in the units of their weights and of the keys. */
template <int PARTS, bool DECAYED>
static __device__ __forceinline__ void solved_tiles(float (&q)[1][8][4], float (&r)[1][8][4],
                                                    const solved_system<64, DECAYED> &rs,
                                                    const solved_pair_rows &own, solved_sums &sum)
{
    enum { DIM = 64 };
    typedef pair_stages<DIM> stages;
    const auto &sys = rs.sys;
    pair_stream<DIM, DECAYED, solved_stages<DIM, PARTS>, true, __half> stream(rs);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __half *const values = stream.wait(), *const keys = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1, 4, __half> f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        more_rows<DIM>(g, rs.stage(stages::grad_o), values, false);
        if (PARTS == 2) more_rows<DIM>(g, rs.stage(stages::y), keys, true);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        if (PARTS == 2) more_rows<DIM>(u, rs.stage(stages::rho), keys, false);
        more_rows<DIM>(u, sys.sm.direction[1], keys, PARTS == 2);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        wgmma_results(u);
        score_weights(s, sys, j);
        solved_errors(g, s, own);
        split_weights(f, g);
        add_weights(sum.weight, f);
        solved_gradients<DECAYED>(u, s, g, own, sum, j);
        split_weights(ds, u);
        add_weights(sum.gradient, ds);
        multiply_weights<DIM>(r, f.part[0], keys);
        more_weights<DIM>(q, ds.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(r);
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* Weights x, times `factor` of each row, as rounded to fp16. */
static __device__ __forceinline__ void pack_rows(weights_operand<1, 4, __half> &w, float (&x)[8][4],
                                                 const float (&factor)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] *= factor[e / 2];
    }
    split_weights(w, x);
}
static __device__ __forceinline__ void unpack_rows(float (&x)[8][4], const weights_operand<1, 4, __half> &w,
                                                   const float (&factor)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 pair = unpack_pair<__half>(w.part[0][n / 2][n % 2 * 2 + e / 2]);
            x[n][e] = factor[e / 2] * pair.x, x[n][e + 1] = factor[e / 2] * pair.y;
        }
    }
}

/* The same at 128 dimensions, where there are no registers for three products beside both sums: u = rho . k
 * is issued late, and p and p E are rounded to fp16 meanwhile, p times 2^14. Two parts leave one stage for
 * tiles. */
template <int PARTS, bool DECAYED>
static __device__ __forceinline__ void solved_tiles(float (&q)[2][8][4], float (&r)[2][8][4],
                                                    const solved_system<128, DECAYED> &rs,
                                                    const solved_pair_rows &own, solved_sums &sum)
{
    enum { DIM = 128 };
    typedef pair_stages<DIM> stages;
    const auto &sys = rs.sys;
    const float raise[2] = { power_of_two(14 - sys.weight_log2[0]), power_of_two(14 - sys.weight_log2[1]) },
                fall[2] = { power_inverse(raise[0]), power_inverse(raise[1]) }, same[2] = { 1, 1 };
    pair_stream<DIM, DECAYED, solved_stages<DIM, PARTS>, true, __half> stream(rs);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __half *const values = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1, 4, __half> p, f, ds;
        multiply_rows<DIM>(g, rs.stage(stages::grad_o), values, false);
        if (PARTS == 2) {
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(g);
            stream.release(stream.waited);
        }
        const __half *const keys = stream.wait();
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        if (PARTS == 2) more_rows<DIM>(g, rs.stage(stages::y), keys, true);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        if (PARTS == 1) stream.release(stream.waited - 1);
        score_weights(s, sys, j);
        solved_errors(g, s, own);
        split_weights(f, g);
        add_weights(sum.weight, f);
        pack_rows(p, s, raise);
        multiply_rows<DIM>(u, PARTS == 2 ? rs.stage(stages::rho) : sys.sm.direction[1], keys, false);
        if (PARTS == 2) more_rows<DIM>(u, sys.sm.direction[1], keys, true);
        more_weights<DIM>(r, f.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(r);
        wgmma_results(u);
        unpack_rows(g, f, same);
        unpack_rows(s, p, fall);
        solved_gradients<DECAYED>(u, s, g, own, sum, j);
        split_weights(ds, u);
        add_weights(sum.gradient, ds);
        multiply_weights<DIM>(q, ds.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* Adds one of the two to x, that of ds where GRADIENTS, at 256 dimensions, where registers hold one. p is
 * made during the products with do and y; p and p E are rounded to fp16 as above. */
template <int PARTS, bool GRADIENTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void wide_tiles(float (&x)[DIM / TILE_SIDE][8][4],
                                                  const solved_system<DIM, DECAYED> &rs,
                                                  const solved_pair_rows &own, solved_sums &sum)
{
    typedef pair_stages<DIM> stages;
    const auto &sys = rs.sys;
    const float raise[2] = { power_of_two(14 - sys.weight_log2[0]), power_of_two(14 - sys.weight_log2[1]) },
                fall[2] = { power_inverse(raise[0]), power_inverse(raise[1]) }, same[2] = { 1, 1 };
    pair_stream<DIM, DECAYED, solved_stages<DIM, PARTS>, true, __half> stream(rs);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __half *const values = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1, 4, __half> p, w;
        if (PARTS == 2) {
            multiply_rows<DIM>(g, rs.operand(stages::grad_o), values, false);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(g);
            stream.release(stream.waited);
        }
        const __half *const keys = stream.wait();
        multiply_rows<DIM>(s, rs.queries(), keys, false);
        wgmma_commit();
        if (PARTS == 1) more_rows<DIM>(g, rs.operand(stages::grad_o), values, false);
        if (PARTS == 2) more_rows<DIM>(g, rs.operand(stages::y), keys, true);
        more_rows<DIM>(g, rs.direction(0), keys, true);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        score_weights(s, sys, j);
        wgmma_results(s);
        wgmma_wait<0>();
        wgmma_results(g);
        if (PARTS == 1) stream.release(stream.waited - 1);
        solved_errors(g, s, own);
        split_weights(w, g);
        if constexpr (GRADIENTS) {
            pack_rows(p, s, raise);
            multiply_rows<DIM>(u, PARTS == 2 ? rs.operand(stages::rho) : rs.direction(1), keys, false);
            if (PARTS == 2) more_rows<DIM>(u, rs.direction(1), keys, true);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(u);
            unpack_rows(g, w, same);
            unpack_rows(s, p, fall);
            solved_gradients<DECAYED>(u, s, g, own, sum, j);
            split_weights(w, u);
        }
        add_weights(GRADIENTS ? sum.gradient : sum.weight, w);
        multiply_weights<DIM>(x, w.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(x);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* The sweep, two of them at 256 dimensions, whose sums then lie in the scratch: R and B of the solve, which
 * has ended. What follows from them is done in loops: straight code for registers is many times as long. */
enum { VECTOR_Q_SUM = VECTOR_R, VECTOR_R_SUM = VECTOR_B };

template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void solved_sweep(const solved_system<DIM, DECAYED> &rs,
                                                    const solved_pair_rows &own, solved_sums &sum)
{
    const lane_vector to_q = rs.sys.vector(VECTOR_Q_SUM), to_r = rs.sys.vector(VECTOR_R_SUM);
    float q[DIM / TILE_SIDE][8][4], r[DIM / TILE_SIDE][8][4];
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    solved_tiles<PARTS>(q, r, rs, own, sum);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        to_q.put(n, q[n / 32][n / 4 % 8][n % 4]), to_r.put(n, r[n / 32][n / 4 % 8][n % 4]);
}

template <int PARTS, bool GRADIENTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void wide_sweep(const solved_system<DIM, DECAYED> &rs,
                                                  const solved_pair_rows &own, solved_sums &sum)
{
    const lane_vector to = rs.sys.vector(GRADIENTS ? VECTOR_Q_SUM : VECTOR_R_SUM);
    float x[DIM / TILE_SIDE][8][4];
    clear_sums<DIM>(x);
    wide_tiles<PARTS, GRADIENTS>(x, rs, own, sum);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        to.put(n, x[n / 32][n / 4 % 8][n % 4]);
}

template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void put_sums(const solved_system<DIM, DECAYED> &rs,
                                                const solved_pair_rows &own, solved_sums &sums)
{
    solved_sums sum = {};
    if constexpr (DIM > 128) {
        wide_sweep<PARTS, false>(rs, own, sum);
        wide_sweep<PARTS, true>(rs, own, sum);
    } else {
        solved_sweep<PARTS>(rs, own, sum);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sums.u[row] = quad_sum(sum.u[row]), sums.weight[row] = quad_sum(sum.weight[row]);
        sums.gradient[row] = quad_sum(sum.gradient[row]), sums.ds[row] = quad_sum(sum.ds[row]);
    }
}

/* Writes dq and the sums of the rows, which for rows that miss others write again. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_rows(float (&error2)[2], const solved_system<DIM, DECAYED> &rs,
                                                const solved_sums &sums, const solved_centres &centre,
                                                const solved_units &units)
{
    const solved_output<solved_system<DIM, DECAYED>> out(rs, units);
    const lane_vector of_ds = rs.sys.vector(VECTOR_Q_SUM), of_error = rs.sys.vector(VECTOR_R_SUM);
    output_sums total = {};
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments q, r;
        load_lanes(q, of_ds, n);
        load_lanes(r, of_error, n);
        put_fragments(total, out, n, q, r, sums, centre);
    }
    error2[0] = quad_sum(total.error2[0]), error2[1] = quad_sum(total.error2[1]);
    put_row_sums<DECAYED>(rs, total.scale, centre);
}

/* The extremes of the thread's rows, to those of their head. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_row_extremes(const solved_system<DIM, DECAYED> &rs,
                                                        const row_norms (&norms)[2])
{
    const loam_problem &p = rs.sys.p;
    const int64_t sequence = rs.sys.sm.block / p.heads_q % p.batch;
    const float longest = longest_value(rs.sys.units, p);
    float error;
    head_extremes own = extremes_of_row(p, norms[0], longest, &error);
    raise_extremes(own, extremes_of_row(p, norms[1], longest, &error));
    put_extremes(rs.all.extremes[sequence * p.heads_kv + rs.sys.block.h_kv], own);
}

/* In one part residuals are accepted below this: their error enters the gradients once. */
#define HALF_ACCEPT 1e-2f

/* From the solution on: `source` as in load_solved, do in its stage as it is in memory; bb:
 * the square of the right side of a row. In one part, false where a row misses and its block is to be solved
 * anew; in two such rows are for float64. */
template <int PARTS, int DIM, bool DECAYED, class SOURCE>
static __device__ __forceinline__ bool finish_solution(pairs_system<DIM, DECAYED, __half> &sys,
                                                       const rows_launch &all, rows_count &count,
                                                       const SOURCE &source, const adjoint_row (&own)[2],
                                                       const float (&lse2)[2], const float (&largest)[2],
                                                       const float (&bb)[2])
{
    constexpr float accept = PARTS == 1 ? HALF_ACCEPT : SOLVED_ACCEPT;
    row_scalars rec[2];
    solved_units units;
    {
        const solved_system<DIM, DECAYED> rs(sys, all, count);
        row_norms norms[2];
        units = load_solved(rs, source, own, lse2, largest, rec, norms);
        if (all.extremes) put_row_extremes(rs, norms);
        put_operands<PARTS>(rs, source, units);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sys.weight_log2[row] = units.weight_log2[row];
        sys.lse2[row] = lse2[row] - units.weight_log2[row];
    }
    const solved_system<DIM, DECAYED> rs(sys, all, count);
    float error2[2];
    solved_sums sums;
    put_sums<PARTS>(rs, pair_constants(rec, units, all.p.ridge_unit == LOAM_RIDGE_MAX), sums);
    const solved_centres centre = centres_of(sums, units);
    put_rows(error2, rs, sums, centre, units);
    bool missed = false;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rec[row].rho_rest = centre.u[row], rec[row].y_rest = centre.error[row];
        missed |= !row_solved(error2[row], bb[row], units.rounding[row], accept);
    }
    if (PARTS == 1 && __syncthreads_or(missed)) return false;
    put_records(rs, rec);
    const bool good = all_solved(rs, error2, bb, units, accept);
    if (threadIdx.x == 0)
        all.arrays.state[sys.sm.block] = !good ? ROWS_PENDING : PARTS == 1 ? ROWS_ONE_PART : ROWS_TWO_PARTS;
    return true;
}

#endif
