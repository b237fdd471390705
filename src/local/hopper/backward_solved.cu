/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, rows of blocks whose adjoint system row matrices have solved
 * (heavy_solve.cu): backward_solution.cuh, with one part of the weights.
 */
#include "src/local/hopper/backward_solution.cuh"

template <bool DECAYED> using solved_system = rows_system<TILE_SIDE, DECAYED, __half>;
typedef pair_stages<TILE_SIDE> stages;

/* y of channels column_of(n, e) and the next one, which heavy_adjoint left. */
static __device__ __forceinline__ float2 solution_of(const float *solution, const adjoint_row (&own)[2],
                                                     int n, int e)
{
    const float unit = own[e / 2].unit, *const from = solution + (4 * n + e) * THREADS + threadIdx.x;
    return { unit * from[0], unit * from[THREADS] };
}

/* Elements e and e + 1 of fragment n of a tile of bf16 rows in the memory of fp16. */
static __device__ __forceinline__ float2 wide_pair(const __half *tile, const row_pair &r, int n, int e)
{
    return unpack_pair<__nv_bfloat16>(*(const uint32_t *)(tile + swizzled(r.at[e / 2], column_of(n, e))));
}

/* y of the block, and do, which lies in its stage in bf16. */
template <bool DECAYED> struct listed_source {
    const solved_system<DECAYED> &rs;
    const adjoint_row (&own)[2];
    const float *solution;

    __device__ __forceinline__ float2 y(int n, int e) const { return solution_of(solution, own, n, e); }
    __device__ __forceinline__ float2 grad(int n, int e) const
    {
        return wide_pair(rs.stage(stages::grad_o), rs.r, n, e);
    }
    /* The squares of drho. */
    __device__ __forceinline__ void squares(float (&bb)[2]) const
    {
        bb[0] = bb[1] = 0;
#pragma unroll 4
        for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const float2 b = solution_of(solution + listed_vector<TILE_SIDE>, own, n, e);
                bb[e / 2] += b.x * b.x + b.y * b.y;
            }
        }
        bb[0] = quad_sum(bb[0]), bb[1] = quad_sum(bb[1]);
    }
};

/* The operands of the rows in shared memory. */
template <bool DECAYED>
static __device__ __forceinline__ void put_operands(const solved_system<DECAYED> &rs,
                                                    const adjoint_row (&own)[2], const float *solution,
                                                    const solved_units &units)
{
    const float grad[2] = { power_inverse(units.grad[0]), power_inverse(units.grad[1]) };
    narrow_tile<TILE_SIDE>(rs.stage(stages::grad_o), rs.stage(stages::grad_o), rs.r, grad);
#pragma unroll 4
    for (int n = 0; n < TILE_SIDE / 8; n++) {
#pragma unroll
        for (int at = 0; at < 4; at += 2) {
            const int row = at / 2, c = column_of(n, at);
            const float probe = power_inverse(units.probe[row]), inverse = power_inverse(units.solution[row]);
            const float2 rho = rs.key_pair(rs.all.saved.rho, row, c), y = solution_of(solution, own, n, at);
            store_directions<2>(rs, swizzled(rs.r.at[row], c), { probe * rho.x, probe * rho.y },
                                { inverse * y.x, inverse * y.y });
        }
    }
    fence_async_proxy();
    __syncthreads();
}

/* q = sum ds k and r = sum p E k, in the units of their weights and of the keys. */
template <bool DECAYED>
static __device__ __forceinline__ void solved_sweep(float (&q)[1][8][4], float (&r)[1][8][4],
                                                    const solved_system<DECAYED> &rs,
                                                    const solved_pair_rows &own, solved_sums &sums)
{
    enum { DIM = TILE_SIDE };
    const auto &sys = rs.sys;
    solved_sums sum = {};
    pair_stream<DIM, DECAYED, stages::rho, true, __half> stream(rs);
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __half *const values = stream.wait(), *const keys = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1, 4, __half> f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        more_rows<DIM>(g, rs.stage(stages::grad_o), values, false);
        more_rows<DIM>(g, rs.stage(stages::y), keys, true);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        more_rows<DIM>(u, rs.stage(stages::rho), keys, false);
        more_rows<DIM>(u, sys.sm.direction[1], keys, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        wgmma_results(u);
        score_weights(s, sys, j);
        solved_errors(g, s, own, sum);
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
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sums.p[row] = quad_sum(sum.p[row]), sums.u[row] = quad_sum(sum.u[row]);
        sums.error[row] = quad_sum(sum.error[row]), sums.weight[row] = quad_sum(sum.weight[row]);
        sums.gradient[row] = quad_sum(sum.gradient[row]), sums.ds[row] = quad_sum(sum.ds[row]);
    }
}

/* A block of the list. */
template <bool DECAYED>
static __device__ __forceinline__ void rows_after_solution(pairs_shared<TILE_SIDE, __half> &sm,
                                                           rows_count &count, const rows_launch &all)
{
    const row_block &block = sm.rows;
    const heavy_work &heavy = *all.heavy;
    const row_pair r = row_pair_of(all.p, block);
    adjoint_row own[2];
    float lse2[2], largest[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = sm.listed * ROWS + r.at[row];
        const row_weight weight = heavy.weight[line];
        own[row] = heavy.adjoint[line], lse2[row] = weight.lse2, largest[row] = weight.largest;
    }
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    const float unit[2] = { by_max ? largest[0] : 1, by_max ? largest[1] : 1 };
    const row_ridge ridge = row_ridge_of(all.p, all.a, block, r, unit);
    pairs_system<TILE_SIDE, DECAYED, __half> sys = block_system_of<TILE_SIDE, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, all.work.scratch);
    sys.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    load_block_queries(sys, count.rows++);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, TILE_SIDE * TILE_SIDE * 2);
        load_row_tile(sys, sm.stage[stages::grad_o], all.maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);
    sys.lse_exact = __syncthreads_and(fabsf(lse2[0]) < EXACT_LSE && fabsf(lse2[1]) < EXACT_LSE);
    sys.lse2[0] = lse2[0], sys.lse2[1] = lse2[1];

    row_scalars rec[2];
    float bb[2];
    const float *const solution = heavy.vectors + sm.listed * listed_vectors<TILE_SIDE>;
    solved_units units;
    {
        const solved_system<DECAYED> rs(sys, all, count);
        const listed_source<DECAYED> source = { rs, own, solution };
        source.squares(bb);
        units = load_solved(rs, source, own, lse2, largest, rec);
    }
    put_operands(solved_system<DECAYED>(sys, all, count), own, solution, units);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sys.weight_log2[row] = units.weight_log2[row];
        sys.lse2[row] = lse2[row] - units.weight_log2[row];
    }
    const solved_system<DECAYED> rs(sys, all, count);
    float q[1][8][4], p_error[1][8][4], error2[2];
    solved_sums sums;
    solved_sweep(q, p_error, rs, pair_constants(rec, units, by_max), sums);
    const solved_centres centre = centres_of(sums, units);
    finish_sums(q[0], error2, p_error[0], rs, sums, centre, units);
#pragma unroll
    for (int row = 0; row < 2; row++)
        rec[row].rho_rest = centre.u[row], rec[row].y_rest = centre.error[row];
    put_records(rs, rec);
    const bool good = all_solved(rs, error2, bb, units);
    if (good) put_solved<DECAYED>(rs, q[0], centre);
    if (threadIdx.x == 0) all.arrays.state[sm.block] = good ? ROWS_TWO_PARTS : ROWS_PENDING;
}

template <bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    rows_solved_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const __grid_constant__ rows_plan plan)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    typedef pairs_shared<TILE_SIDE, __half> shared;
    shared &sm = *(shared *)swizzled_memory;
    const rows_launch all = { p, a, plan.saved, plan.rows, plan.work, plan.maps, &plan.copy, &plan.heavy };
    const solve_launch solve = { p, a, plan.saved, plan.work, plan.maps.all, &plan.copy, &plan.heavy };
    const block_list list = { plan.work.next_ended, plan.heavy.listed, plan.work.heavy_count };
    rows_count count = {};
    wait_for_previous_launch();
    launch_dependents();
    if (threadIdx.x == 0) {
        pair_barriers<TILE_SIDE> *const pairs = (pair_barriers<TILE_SIDE> *)(swizzled_memory +
                                                                             pair_barriers_at<TILE_SIDE>);
        for (int n = 0; n < (int)ring_stages<TILE_SIDE> - 1; n++)
            barrier_init(&pairs->full[n], 1);
        barrier_init(&sm.query_full, 1);
        fence_async_proxy();
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) claim_block<2, DECAYED>(sm, solve, 0, list);
        __syncthreads();
        if (sm.block < 0) break;
        rows_after_solution<DECAYED>(sm, count, all);
    }
}

loam_status rows_solved(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    auto *const kernel = p->decay ? rows_solved_kernel<true> : rows_solved_kernel<false>;
    return cuda_launch("rows_solved_kernel", kernel, BLOCKS_PER_SM * solve_multiprocessors(), THREADS,
                       rows_shared_bytes<TILE_SIDE>, a->stream, true, error, *p, *a, *plan);
}
