/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, the pass over rows for blocks of 64 rows that see few keys
 * (local/hopper/resident.cuh): drho, the adjoint solve and what follows from its solution
 * (local/hopper/backward_solution.cuh), with two fp16 parts of all weights.
 */
#include "src/local/hopper/backward_resident.cuh"
#include "src/local/hopper/backward_solution.cuh"
#include "src/local/hopper/resident.cuh"

/* The queries of the thread's rows, in units of the keys. */
struct resident_queries {
    const __nv_bfloat16 *at[2];
    bool real[2];
    float inverse;

    __device__ __forceinline__ float get(int row, int c) const
    {
        return real[row] ? __bfloat162float(at[row][c]) * inverse : 0;
    }
};

/* A block of rows as backward_solution.cuh has it. */
template <int TILES> struct resident_rows {
    static constexpr int dim = TILE_SIDE;
    typedef resident_queries row_queries;
    const row_pair &r;
    const row_ridge &ridge; /* in units of the inputs */
    const resident_system<TILES> &sys;
    const rows_launch &all;

    int64_t first; /* the line of the block's first row in arrays over rows */

    __device__ __forceinline__ bool is_f16() const { return false; }
    __device__ __forceinline__ int64_t line(int row) const { return first + r.at[row]; }
    __device__ __forceinline__ row_lambdas lambdas() const
    {
        return { { NULL }, false, { ridge.number[0], ridge.number[1] } };
    }
    __device__ __forceinline__ resident_queries targets() const
    {
        resident_queries out = { {}, { r.real[0], r.real[1] }, power_inverse(sys.units.key) };
        const row_block &block = sys.block;
#pragma unroll
        for (int row = 0; row < 2; row++)
            out.at[row] = (const __nv_bfloat16 *)sys.a.q.data +
                          LOCAL_AT(sys.a.q, block.s.b, block.h, block.s.q0 + block.i0 + r.at[row]);
        return out;
    }
};

/* Scores become p times its power of two, from the lse that forward saved. */
template <int TILES>
static __device__ __forceinline__ void weigh_saved(resident_system<TILES> &sys, const rows_launch &all,
                                                   adjoint_rows &rows)
{
    row_operand<1> query;
    float top[2], inverse[2], scale2[2], best[2];
    wide_tile_tops<TILE_SIDE>(top, sys.sm.rows, sys.r);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(unit);
        scale2[row] = (float)(sys.p.scale * LOG2E) * (unit * sys.units.key);
    }
    narrow_tile<TILE_SIDE>(sys.sm.rows, sys.sm.rows, sys.r, inverse);
    load_fragments<TILE_SIDE>(query.part[0], sys.sm.rows, sys.r);
    score_keys(sys, query, scale2, best, rows.peak);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = local_row(&sys.p, &sys.block.s, sys.block.h, sys.block.i0 + sys.r.at[row]);
        const float lse = sys.r.real[row] ? ((const float *)all.saved.lse)[line] : 0;
        rows.lse2[row] = finite_or_zero(lse) * 1.44269504f;
        rows.largest[row] = rows.peak[row] < 0 ? 0 : exp2_fast(fminf(best[row] - rows.lse2[row], 0));
        sys.weight_log2[row] = weight_exponent(rows.largest[row], sys.units.norm);
    }
#pragma unroll 1
    for (int n = 0; n < 2 * sys.groups; n++) {
        float w[4];
        sys.weight().load(w, n);
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[e] = exp2_fast(fminf(w[e] - rows.lse2[e / 2], 0) + sys.weight_log2[e / 2]);
        sys.weight().store(n, w);
    }
}

/* The mean keys, and do, in the place of the queries. gbar = do . vbar in the units of the products of do and
 * values; norm: of do in its unit. */
template <int TILES>
static __device__ __forceinline__ void load_gradients(const resident_system<TILES> &sys,
                                                      const resident_rows<TILES> &rs, adjoint_rows &rows,
                                                      float (&gbar)[2], float (&norm)[2])
{
    const __half *const wide = (const __half *)sys.sm.x;
    const float key = power_inverse(sys.units.key), value = power_inverse(sys.units.value);
    float top[2], inverse[2];
    wide_tile_tops<TILE_SIDE>(top, wide, sys.r);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rows.grad[row] = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(rows.grad[row]);
        gbar[row] = norm[row] = 0;
    }
    narrow_tile<TILE_SIDE>(sys.sm.rows, wide, sys.r, inverse);
    const row_vectors means = key_rows(rs, rs.all.saved.kbar), values(rs, rs.all.saved.vbar, sys.p.dim_v);
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n += TOGETHER) {
        row_fragments k_mean, v_mean;
        means.load(k_mean, n), values.load(v_mean, n);
        scale_fragments(k_mean, { key, key });
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            sys.kbar().store(n + k, { k_mean[k][0].x, k_mean[k][0].y, k_mean[k][1].x, k_mean[k][1].y });
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int at = swizzled(sys.r.at[row], column_of(n + k, 0));
                const float2 grad = unpack_pair<__half>(*(const uint32_t *)(sys.sm.rows + at));
                gbar[row] += value * (grad.x * v_mean[k][row].x + grad.y * v_mean[k][row].y);
                norm[row] += grad.x * grad.x + grad.y * grad.y;
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        gbar[row] = quad_sum(gbar[row]), norm[row] = sqrtf(quad_sum(norm[row]));
}

/* b = drho = -sum p (g - gbar) kappa in b_unit, and the sum of the weights as rounded, which is 0 but for
 * rounding. */
template <int TILES>
static __device__ __forceinline__ void adjoint_right_side(float (&b)[FRAGMENTS][4],
                                                          const resident_system<TILES> &sys,
                                                          adjoint_rows &rows, const float (&gbar)[2],
                                                          const float (&norm)[2])
{
    row_operand<1> grad;
    float factor[2], rest[2] = { 0, 0 }, exponent[2];
    load_fragments<TILE_SIDE>(grad.part[0], sys.sm.rows, sys.r);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        exponent[row] = product_exponent(rows.largest[row] * 2 * norm[row] * value_norm<TILE_SIDE>);
        factor[row] = power_of_two(exponent[row] - sys.weight_log2[row]);
    }
    clear(b);
#pragma unroll 1
    for (int g = 0; g < sys.groups; g++) {
        float w[2][4] = {};
        uint32_t part[2][4];
        add_products(w, grad, sys.sm.values, g);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float p[4];
            sys.weight().load(p, 2 * g + n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] = p[e] * factor[e / 2] * (w[n][e] - gbar[e / 2]);
        }
        split_group(part, w);
        add_group(rest, part);
        add_weighted(b, part, sys.sm.keys, g);
    }
    rest[0] = quad_sum(rest[0]), rest[1] = quad_sum(rest[1]);
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        float mean[4];
        sys.kbar().load(mean, n);
#pragma unroll
        for (int e = 0; e < 4; e++)
            b[n][e] = sys.r.real[e / 2] ? rest[e / 2] * mean[e] - b[n][e] : 0;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = rows.grad[row] * sys.units.value * power_of_two(-exponent[row]);
        rows.rest[row] = unit * rest[row], rows.b_unit[row] = unit * sys.units.key;
    }
}

/* Leaves the block to row matrices; b: the right sides, in their units. */
template <int TILES>
static __device__ __forceinline__ void list_adjoint(const resident_system<TILES> &sys, const rows_launch &all,
                                                    const adjoint_rows &rows, const cg_rows &cg,
                                                    const float (&b)[FRAGMENTS][4])
{
    const solve_launch solve = { all.p, all.a, all.saved, all.work, all.maps.all, all.copy, all.heavy };
    const row_weight weight[2] = { { rows.lse2[0], rows.largest[0] }, { rows.lse2[1], rows.largest[1] } };
    const float inverse[2] = { power_inverse(cg.unit[0]), power_inverse(cg.unit[1]) };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        const float scaled[4] = { b[n][0] * inverse[0], b[n][1] * inverse[0], b[n][2] * inverse[1],
                                  b[n][3] * inverse[1] };
        sys.x().store(n, scaled);
    }
    put_listed<TILE_SIDE>(sys.sm, solve, sys.r, weight, sys.kbar(), 1, sys.x());
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int row = 0; row < 2; row++)
        all.heavy->adjoint[sys.sm.listed * ROWS + sys.r.at[row]] = { rows.rest[row], rows.peak[row],
                                                                     cg.unit[row] * rows.b_unit[row] };
}

/* ------------------------------------------------------------------ from the solution on */

/* y from the solution x, and do. */
template <int TILES> struct resident_source {
    const resident_system<TILES> &sys;
    const adjoint_rows &rows;
    float unit[2]; /* of x */

    __device__ __forceinline__ void load(row_fragments &y, int n) const
    {
        load_lanes(y, sys.x(), n);
        scale_fragments(y, unit);
    }
    __device__ __forceinline__ float2 grad(int n, int row) const
    {
        const float2 g = unpack_pair<__half>(
            *(const uint32_t *)(sys.sm.rows + swizzled(sys.r.at[row], column_of(n, 0))));
        return { rows.grad[row] * g.x, rows.grad[row] * g.y };
    }
};

/* Operands of the last sweep, in the place of vectors. */
static __device__ __forceinline__ void store_operand(float4 *vector, const row_operand<2> &x)
{
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        const uint32_t(&w)[4] = x.part[n / 4][n % 4];
        ((uint4 *)vector)[n * THREADS + threadIdx.x] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}
static __device__ __forceinline__ void load_operand(row_operand<2> &x, const float4 *vector)
{
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
        const uint4 w = ((const uint4 *)vector)[n * THREADS + threadIdx.x];
        uint32_t(&to)[4] = x.part[n / 4][n % 4];
        to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
    }
}

/* y takes the place of the solution and rho that of the mean key; do gets the unit of the sweep. */
template <int TILES>
static __device__ __forceinline__ void put_resident_operands(const resident_rows<TILES> &rs,
                                                             const resident_source<TILES> &source,
                                                             const solved_units &units)
{
    const resident_system<TILES> &sys = rs.sys;
    const row_vectors rhos = key_rows(rs, rs.all.saved.rho);
    const float probe[2] = { power_inverse(units.probe[0]), power_inverse(units.probe[1]) },
                solution[2] = { power_inverse(units.solution[0]), power_inverse(units.solution[1]) },
                narrow[2] = { power_inverse(units.grad[0]), power_inverse(units.grad[1]) };
    row_operand<2> y, rho;
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n += TOGETHER) {
        row_fragments p, x;
        rhos.load(p, n);
        source.load(x, n);
        scale_fragments(p, probe);
        scale_fragments(x, solution);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float2 g = source.grad(n + k, row);
                rho.set(n + k, 2 * row, p[k][row].x, p[k][row].y);
                y.set(n + k, 2 * row, x[k][row].x, x[k][row].y);
                *(uint32_t *)(sys.sm.rows + swizzled(sys.r.at[row], column_of(n + k, 0))) = pack_pair<__half>(
                    narrow[row] * g.x, narrow[row] * g.y);
            }
        }
    }
    store_operand(sys.sm.x, y);
    store_operand(sys.sm.kbar, rho);
}

/* q = sum ds k and r = sum p E k, in the units of their weights and of the keys. */
template <int TILES>
static __device__ __forceinline__ void resident_sweep(float (&q)[FRAGMENTS][4], float (&r)[FRAGMENTS][4],
                                                      const resident_system<TILES> &sys,
                                                      const solved_units &units, const solved_pair_rows &own,
                                                      solved_sums &sums)
{
    const float factor[2] = { power_of_two(units.weight_log2[0] - sys.weight_log2[0]),
                              power_of_two(units.weight_log2[1] - sys.weight_log2[1]) };
    solved_sums sum = {};
    clear(q);
    clear(r);
#pragma unroll 1
    for (int group = 0; group < sys.groups; group++) {
        float p[2][4], g[2][4] = {}, u[2][4] = {};
        uint32_t weight[2][4];
        {
            row_operand<1> grad;
            row_operand<2> rows;
            load_fragments<TILE_SIDE>(grad.part[0], sys.sm.rows, sys.r);
            add_products(g, grad, sys.sm.values, group);
            load_operand(rows, sys.sm.x);
            add_products(g, rows, sys.sm.keys, group);
            load_operand(rows, sys.sm.kbar);
            add_products(u, rows, sys.sm.keys, group);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            sys.weight().load(p[n], 2 * group + n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[n][e] *= factor[e / 2];
        }
        solved_errors(g, p, own);
        split_group(weight, g);
        add_group(sum.weight, weight);
        add_weighted(r, weight, sys.sm.keys, group);
        solved_gradients<false>(u, p, g, own, sum, sys.block.first + group * GROUP);
        split_group(weight, u);
        add_group(sum.gradient, weight);
        add_weighted(q, weight, sys.sm.keys, group);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sums.u[row] = quad_sum(sum.u[row]), sums.weight[row] = quad_sum(sum.weight[row]);
        sums.gradient[row] = quad_sum(sum.gradient[row]), sums.ds[row] = 0;
    }
}

static __device__ __forceinline__ void take_fragments(row_fragments &x, const float (&from)[FRAGMENTS][4],
                                                      int n)
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        x[k][0] = { from[n + k][0], from[n + k][1] }, x[k][1] = { from[n + k][2], from[n + k][3] };
}

/* All that follows from the solution. `solved`: rows that the iteration has solved; of others y is 0. */
template <int TILES>
static __device__ __forceinline__ void finish_adjoint(const resident_rows<TILES> &rs,
                                                      const adjoint_rows &rows, const cg_rows &cg,
                                                      const bool (&solved)[2])
{
    const resident_system<TILES> &sys = rs.sys;
    const float inverse = power_inverse(sys.units.key);
    float bb[2], q[FRAGMENTS][4], p_error[FRAGMENTS][4];
    adjoint_row own[2];
    row_scalars rec[2];
    resident_source<TILES> source = { sys, rows, { 0, 0 } };
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = cg.unit[row] * rows.b_unit[row];
        own[row] = { rows.rest[row], rows.peak[row], unit };
        bb[row] = cg.bb[row] * unit * unit;
        source.unit[row] = solved[row] ? unit * inverse * inverse : 0;
    }
    row_norms norms[2];
    const solved_units units = load_solved(rs, source, own, rows.lse2, rows.largest, rec, norms);
    put_resident_operands(rs, source, units);
    solved_sums sums;
    resident_sweep(q, p_error, sys, units, pair_constants(rec, units, sys.p.ridge_unit == LOAM_RIDGE_MAX),
                   sums);
    const solved_centres centre = centres_of(sums, units);
    const solved_output<resident_rows<TILES>> out(rs, units);
    output_sums total = {};
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n += TOGETHER) {
        row_fragments ds, error;
        take_fragments(ds, q, n);
        take_fragments(error, p_error, n);
        put_fragments(total, out, n, ds, error, sums, centre);
    }
    put_row_sums<false>(rs, total.scale, centre);
    const float error2[2] = { quad_sum(total.error2[0]), quad_sum(total.error2[1]) };
    rec[0].rho_rest = centre.u[0], rec[0].y_rest = centre.error[0];
    rec[1].rho_rest = centre.u[1], rec[1].y_rest = centre.error[1];
    put_records(rs, rec);
    const bool good = all_solved(rs, error2, bb, units);
    if (threadIdx.x == 0) rs.all.arrays.state[sys.sm.block] = good ? ROWS_TWO_PARTS : ROWS_PENDING;
}

template <int TILES>
static __device__ __forceinline__ void adjoint_resident(resident_shared<TILES> &sm, const rows_launch &all,
                                                        const row_block &block)
{
    const half_units units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch,
                                           block.h_kv);
    /* Smaller than where a step is dearer: a solution in directions of little variance shows late. Scores of
     * standard deviation 16 at ridge 0.1 have dq within 4e-3 so, and within 4e-2 with a stop at 1e-4. */
    const cg_tolerance tolerance = { 3e-5f, 3e-5f, 1e-2f, 2 * TILE_SIDE, 0, false, 0 };
    load_block(sm, all.maps.all, block, &all.maps.grad_o);
    resident_system<TILES> sys = resident_system_of(all.p, all.a, block, sm, units);
    adjoint_rows rows;
    cg_rows cg;
    float b[FRAGMENTS][4], gbar[2], norm[2];
    weigh_saved(sys, all, rows);
    sys.ridge = ridge_in_units(all.p, all.a, block, sys.r, units, rows.largest);
    const bool wanted[2] = { within_range(sys, rows.largest, 0), within_range(sys, rows.largest, 1) };
    row_ridge ridge = sys.ridge;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float square = units.key * units.key;
        ridge.unit[row] *= square, ridge.number[row] *= square, ridge.least[row] *= square;
    }
    const resident_rows<TILES> rs = { sys.r, ridge, sys, all,
                                      local_row(&all.p, &block.s, block.h, block.i0) };
    load_gradients(sys, rs, rows, gbar, norm);
    __syncthreads(); /* x takes the place of do */
    adjoint_right_side(b, sys, rows, gbar, norm);
    start_resident(sys, cg, b, wanted);
    resident_run(sys, cg, tolerance, b);
    if (__syncthreads_or(cg.live[0] || cg.live[1])) {
        adjoint_right_side(b, sys, rows, gbar, norm);
        list_adjoint(sys, all, rows, cg, b);
        return;
    }
    const bool solved[2] = { wanted[0] && sys.ridge.least[0] > BLOCK_LEAST_RIDGE * cg.most[0],
                             wanted[1] && sys.ridge.least[1] > BLOCK_LEAST_RIDGE * cg.most[1] };
    finish_adjoint(rs, rows, cg, solved);
}

template <int TILES>
__global__ void __launch_bounds__(THREADS, resident_blocks<TILES>)
    adjoint_resident_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const __grid_constant__ rows_plan plan, const bool first)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    resident_shared<TILES> &sm = *(resident_shared<TILES> *)swizzled_memory;
    const rows_launch all = { p, a, plan.saved, plan.rows, plan.work, plan.maps, &plan.copy, &plan.heavy };
    /* The copy in fp16 is complete before a launch that overlaps with the first one begins. */
    if (first) wait_for_previous_launch();
    launch_dependents();
    const row_block block = row_block_at(p, a, blockIdx.x);
    if (takes_block<TILES>(p, block)) {
        if (threadIdx.x == 0) sm.block = blockIdx.x;
        __syncthreads();
        adjoint_resident(sm, all, block);
    }
    if (!first) wait_for_previous_launch();
}

template <int TILES>
static loam_status launch_tiles(const loam_problem *p, const loam_args *a, const rows_plan *plan, bool first,
                                loam_error *error)
{
    return cuda_launch("adjoint_resident_kernel", adjoint_resident_kernel<TILES>, (int64_t)row_blocks(p),
                       THREADS, sizeof(resident_shared<TILES>), a->stream, true, error, *p, *a, *plan, first);
}

loam_status backward_resident(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                              loam_error *error)
{
    const bool alone = all_resident(p, a), two = p->len_kv > TILE_SIDE;
    if (two) TRY(launch_tiles<2>(p, a, plan, alone, error));
    return launch_tiles<1>(p, a, plan, alone && !two, error);
}
