/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper for float16: y, the solution of the adjoint system (Cov +
 * Lambda) y = drho, of 64 rows at a time, by the launches of backward_rows.cu. Operands are fp16 throughout:
 * keys and values are copies in powers of two of a head (half_copy.cuh), queries, do and directions have
 * those of a row, and weights p (g - gbar) one by Cauchy and Schwarz, for p at most 1. So no operand leaves
 * the range of fp16, and a weight is off by 2^-25 where the largest that there could be is 2^15.
 *
 * One part, where rows see many keys and their probes have one part, leaves a residual of about 2^-11; y is
 * then rounded to one part. Each block ends with the sweep of backward_solved.cuh, which finds the true
 * residual of its rows; what misses goes to two parts, then, to 128 dimensions, to row matrices, then to
 * float64.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_HALF_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_HALF_CUH

#include "src/local/hopper/backward_first.cuh"
#include "src/local/hopper/backward_plan.cuh"
#include "src/local/hopper/backward_solved.cuh"
#include "src/local/hopper/conjugate.cuh"

template <int DIM, bool DECAYED> using half_system = pairs_system<DIM, DECAYED, __half>;
template <int DIM, bool DECAYED> using half_rows_system = rows_system<DIM, DECAYED, __half>;

/* ------------------------------------------------------------------ before the solve */

/* The mean keys into the scratch, in units of the keys. True where a probe of the thread's rows has two
 * parts. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool load_mean_keys(const half_rows_system<DIM, DECAYED> &rs)
{
    const row_vectors means = key_rows(rs, rs.all.saved.kbar), rhos = key_rows(rs, rs.all.saved.rho);
    const lane_vector kbar = rs.sys.vector(VECTOR_KBAR);
    const float key = power_inverse(rs.sys.units.key);
    bool two_parts = false;
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments mean, rho;
        means.load(mean, n), rhos.load(rho, n);
        scale_fragments(mean, { key, key });
        store_lanes(kbar, mean, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++)
                two_parts |= one_part(rho[k][row].x) != rho[k][row].x ||
                             one_part(rho[k][row].y) != rho[k][row].y;
        }
    }
    return two_parts;
}

/* do, in the place of the direction, becomes fp16 in units of its rows. gbar = do . vbar in the unit of the
 * products of do and values. Returns the exponent that weights p (g - gbar) of a row can have. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_gradients(const half_rows_system<DIM, DECAYED> &rs,
                                                      adjoint_rows &rows, float (&gbar)[2],
                                                      float (&exponent)[2])
{
    __half *const grad_o = rs.sys.sm.direction[0];
    const float value = power_inverse(rs.sys.units.value);
    float top[2], inverse[2], norm2[2] = { 0, 0 };
    const row_pair own = rs.r;
    wide_tile_tops<DIM>(top, grad_o, own, true);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rows.grad[row] = unit_of_largest<__half>(quad_max(top[row]));
        inverse[row] = power_inverse(rows.grad[row]), gbar[row] = 0;
    }
    narrow_tile<DIM>(grad_o, grad_o, own, inverse, true);
    const row_vectors means(rs, rs.all.saved.vbar, rs.sys.p.dim_v);
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments mean;
        means.load(mean, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int at = swizzled(own.at[row], column_of(n + k, 0));
                const float2 grad = unpack_pair<__half>(*(const uint32_t *)(grad_o + at));
                gbar[row] += value * (grad.x * mean[k][row].x + grad.y * mean[k][row].y);
                norm2[row] += grad.x * grad.x + grad.y * grad.y;
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        gbar[row] = quad_sum(gbar[row]);
        exponent[row] = product_exponent(2 * sqrtf(quad_sum(norm2[row])) * value_norm<DIM>);
    }
    fence_async_proxy();
    __syncthreads();
}

/* lse of the rows from `saved`, to base 2. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_lse(const half_rows_system<DIM, DECAYED> &rs, adjoint_rows &rows)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float lse = rs.r.real[row] ? ((const float *)rs.all.saved.lse)[rs.line(row)] : 0;
        rows.lse2[row] = finite_or_zero(lse) * 1.44269504f;
    }
}

/* From do to drho, which becomes b of the solve, scaled to about 1; x = 0. The weights of the rows, and which
 * of them have a ridge and fit fp16. False where one part is not enough for a probe. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ bool first_sweep(half_system<DIM, DECAYED> &sys, row_ridge &ridge,
                                                   adjoint_rows &rows, const rows_launch &all,
                                                   rows_count &count, float (&f)[DIM / TILE_SIDE][8][4])
{
    rows_sums sum = {};
    float exponent[2];
    const bool two_parts = load_mean_keys(half_rows_system<DIM, DECAYED>(sys, all, count));
    barrier_wait(&sys.sm.query_full, count.rows++ % 2);
    if (PARTS == 1 && __syncthreads_or(two_parts)) return false;
    const row_pair own = sys.r;
    narrow_queries(sys, own);
    {
        const half_rows_system<DIM, DECAYED> rs(sys, all, count);
        load_lse(rs, rows);
        load_gradients(rs, rows, sum.gbar, exponent);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        sys.weight_log2[row] = exponent[row], sys.lse2[row] = rows.lse2[row] - exponent[row];
    sys.lse_exact = __syncthreads_and(fabsf(rows.lse2[0]) < EXACT_LSE && fabsf(rows.lse2[1]) < EXACT_LSE);
    const bool peak = PARTS == 2 || all.p.ridge_unit == LOAM_RIDGE_MAX;
    probe_gradient_sweep<PARTS>(f, half_rows_system<DIM, DECAYED>(sys, all, count), sum, peak);
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        float &drho = f[n / 32][n / 4 % 8][n % 4];
        drho = sys.r.real[n / 2 % 2] ? sum.rest[n / 2 % 2] * kbar.get(n) - drho : 0;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float unit = rows.grad[row] * sys.units.value * power_of_two(-exponent[row]);
        rows.rest[row] = unit * sum.rest[row], rows.b_unit[row] = unit * sys.units.key;
        rows.peak[row] = sum.peak[row];
        rows.largest[row] = !peak                ? power_of_two(-exponent[row]) * sum.best[row]
                            : rows.peak[row] < 0 ? 0
                                                 : exp2_fast(fminf(sum.best[row] - rows.lse2[row], 0));
    }
    set_weights(sys, rows.lse2, rows.largest);
    ridge = ridge_in_units(all.p, all.a, sys.block, sys.r, sys.units, rows.largest);
    return true;
}

/* drho becomes b of the solve, scaled to about 1; x = 0. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void start_adjoint(const half_system<DIM, DECAYED> &stored, cg_rows &cg,
                                                     const float (&drho)[DIM / TILE_SIDE][8][4],
                                                     const bool (&wanted)[2])
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const half_system<DIM, DECAYED> sys = system_in_registers(stored, r, ridge);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        y[n] = drho[n / 32][n / 4 % 8][n % 4];
        top[n / 2 % 2] = fmaxf(top[n / 2 % 2], fabsf(y[n]));
    }
    start_cg(sys, cg, y, top, wanted);
}

/* ------------------------------------------------------------------ row matrices */

/* What the place of a block on a list has of the adjoint solve. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_adjoint_rows(const half_system<DIM, DECAYED> &sys,
                                                        const rows_launch &all, const cg_rows &cg,
                                                        const adjoint_rows &rows)
{
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int row = 0; row < 2; row++)
        all.heavy->adjoint[sys.sm.listed * ROWS + sys.r.at[row]] = { rows.rest[row], rows.peak[row],
                                                                     cg.unit[row] * rows.b_unit[row] };
}

/* Leaves the adjoint solve of a block to row matrices. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_adjoint(const half_system<DIM, DECAYED> &sys,
                                                   const rows_launch &all, const cg_rows &cg,
                                                   const adjoint_rows &rows)
{
    const solve_launch solve = { all.p, all.a, all.saved, all.work, all.maps.all, all.copy, all.heavy };
    const row_weight weight[2] = { { rows.lse2[0], rows.largest[0] }, { rows.lse2[1], rows.largest[1] } };
    put_listed<DIM>(sys.sm, solve, sys.r, weight, sys.vector(VECTOR_KBAR), 1, sys.vector(VECTOR_B));
    put_adjoint_rows(sys, all, cg, rows);
}

/* ------------------------------------------------------------------ from the solution on */

/* Rows that fp16 cannot hold, and those whose ridge is too small, have y = 0 here and are for float64. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool solved_here(const half_system<DIM, DECAYED> &sys,
                                                   const row_ridge &ridge, const cg_rows &cg,
                                                   const bool (&wanted)[2], int row)
{
    return wanted[row] && ridge.least[row] > BLOCK_LEAST_RIDGE * cg.most[row];
}

/* Leaves a block whose solve has ended to rows_solved_kernel. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_ended(const half_system<DIM, DECAYED> &sys, const row_ridge &ridge,
                                                 const rows_launch &all, const cg_rows &cg,
                                                 const adjoint_rows &rows, const bool (&wanted)[2],
                                                 int64_t blocks)
{
    const float inverse = power_inverse(sys.units.key);
    const row_weight weight[2] = { { rows.lse2[0], rows.largest[0] }, { rows.lse2[1], rows.largest[1] } };
    float scale[2];
#pragma unroll
    for (int row = 0; row < 2; row++)
        scale[row] = solved_here(sys, ridge, cg, wanted, row) ? inverse * inverse : 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int64_t n = (int64_t)atomicAdd(all.ended->count, 1ull);
        all.ended->block[n] = (int32_t)sys.sm.block, sys.sm.listed = blocks - 1 - n;
    }
    __syncthreads();
    put_place<DIM>(*all.heavy, sys.sm.listed, sys.r, weight, sys.vector(VECTOR_X), scale,
                   sys.vector(VECTOR_B));
    put_adjoint_rows(sys, all, cg, rows);
}

/* y, from the solution in the scratch, rounded to PARTS, and do, which lies in its stage. */
template <int PARTS> struct scratch_source {
    int row[2];
    lane_vector x;
    float unit[2]; /* of x */
    const __half *grad_o;

    __device__ __forceinline__ void load(row_fragments &y, int n) const
    {
        load_lanes(y, x, n);
        scale_fragments(y, unit);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++)
                if (PARTS == 1) y[k][row] = { one_part(y[k][row].x), one_part(y[k][row].y) };
        }
    }
    __device__ __forceinline__ float2 grad(int n, int of) const
    {
        return wide_pair(grad_o, row[of], n, true);
    }
};

/* The square of what a residual of one part may be, relative to HALF_ACCEPT: with the root of the condition
 * number that the iteration has met it is to be below 3 HALF_ACCEPT, as in bf16. */
static __device__ __forceinline__ float lenience(const cg_rows &cg, int row)
{
    return fminf(1, fmaxf(9 * cg.least[row] / cg.most[row], 1e-4f));
}

/* Completes a block whose solve has ended. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ bool finish_rows(half_system<DIM, DECAYED> &sys, row_ridge &ridge,
                                                   const rows_launch &all, rows_count &count,
                                                   const cg_rows &cg, const adjoint_rows &rows,
                                                   const bool (&wanted)[2])
{
    __half *const grad_o = sys.sm.stage[pair_stages<DIM>::grad_o];
    const float inverse = power_inverse(sys.units.key);
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    const float ridge_unit[2] = { by_max ? rows.largest[0] : 1, by_max ? rows.largest[1] : 1 };
    scratch_source<PARTS> source = { { sys.r.at[0], sys.r.at[1] }, sys.vector(VECTOR_X), {}, grad_o };
    float bb[2];
    adjoint_row own[2];
    if (threadIdx.x == 0) {
        barrier_expect(&sys.sm.query_full, DIM * TILE_SIDE * 2);
        load_row_tile(sys, grad_o, all.maps.grad_o);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool solved = solved_here(sys, ridge, cg, wanted, row);
        const float unit = cg.unit[row] * rows.b_unit[row];
        own[row] = { rows.rest[row], rows.peak[row], unit };
        source.unit[row] = solved ? unit * inverse * inverse : 0;
        bb[row] = cg.bb[row] * unit * unit * (PARTS == 1 ? lenience(cg, row) : 1);
    }
    ridge = row_ridge_of(all.p, all.a, sys.block, sys.r, ridge_unit);
    put_ridge(sys);
    barrier_wait(&sys.sm.query_full, count.rows++ % 2);
    return finish_solution<PARTS>(sys, all, count, source, own, rows.lse2, rows.largest, bb);
}

/* In one part as in bf16, in two as in forward where gradients follow. Without matrices it takes as many
 * steps as cuda/adjoint_kernel. */
template <int PARTS, int DIM> static __device__ __forceinline__ cg_tolerance half_tolerance()
{
    if (PARTS == 2 && !has_row_matrices<DIM>) return { 3e-4f, 3e-4f, 1e-2f, 96, 0, false, 0 };
    return PARTS == 1 ? cg_tolerance{ 8e-3f, 8e-3f, 3e-2f, 8, 0.62f, false, 0 }
                      : cg_tolerance{ 3e-4f, 3e-4f, 1e-2f, 28, 0, false, DIM == 64 ? 64.0f : 96.0f };
}

/* Begins to copy the queries of the block, and do in the place of the direction. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_block_rows(const half_system<DIM, DECAYED> &sys,
                                                       const rows_launch &all)
{
    if (threadIdx.x == 0) {
        barrier_expect(&sys.sm.query_full, 2 * DIM * TILE_SIDE * 2);
        load_row_tile(sys, sys.sm.query, all.maps.all.q);
        load_row_tile(sys, sys.sm.direction[0], all.maps.grad_o);
    }
}

/* Computes the block in PARTS parts, or leaves it to row matrices; false where PARTS is not enough. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ bool half_block(pairs_shared<DIM, __half> &sm, rows_count &count,
                                                  const rows_launch &all, float *scratch, int64_t blocks)
{
    const row_block &block = sm.rows;
    row_pair r_storage = row_pair_of(all.p, block);
    const row_pair &r = in_memory(r_storage);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    half_system<DIM, DECAYED> sys_storage = block_system_of<DIM, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, scratch);
    sys_storage.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    adjoint_rows rows_storage = {};
    adjoint_rows &rows = in_memory(rows_storage);
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    const cg_tolerance tolerance = half_tolerance<PARTS, DIM>();
    half_system<DIM, DECAYED> &sys = in_memory(sys_storage);
    float drho[DIM / TILE_SIDE][8][4];
    load_block_rows(sys, all);
    if (!first_sweep<PARTS>(sys, ridge, rows, all, count, drho)) return false;
    const bool wanted[2] = { within_range(sys, rows.largest, 0), within_range(sys, rows.largest, 1) };
    start_adjoint(sys, cg, drho, wanted);
    cg_run<PARTS>(sys, cg, tolerance);
    if constexpr (PARTS == 1 || has_row_matrices<DIM>) {
        const float bound = PARTS == 1 ? tolerance.accept * tolerance.accept : 0;
        if (__syncthreads_or((cg.live[0] && cg.rr[0] > bound * cg.bb[0]) ||
                             (cg.live[1] && cg.rr[1] > bound * cg.bb[1]))) {
            if constexpr (PARTS == 2) put_adjoint(sys, all, cg, rows);
            return PARTS == 2;
        }
    }
    if constexpr (PARTS == 2 && DIM == 128) {
        put_ended(sys, ridge, all, cg, rows, wanted, blocks);
        return true;
    } else {
        return finish_rows<PARTS>(sys, ridge, all, count, cg, rows, wanted);
    }
}

template <int PARTS, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, solver_blocks<DIM>)
    half_rows_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const __grid_constant__ rows_plan plan, const int64_t blocks, const bool listed)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    pairs_shared<DIM, __half> &sm = *(pairs_shared<DIM, __half> *)swizzled_memory;
    const solve_work &work = plan.work;
    const rows_launch all = { p,         a,          plan.saved,  plan.rows,           work,
                              plan.maps, &plan.copy, &plan.heavy, &plan.ended[listed], plan.extremes };
    const solve_launch solve = { p, a, plan.saved, work, plan.maps.all, &plan.copy, &plan.heavy };
    const block_list unlisted = {}, list = { work.next_listed, work.listed, work.listed_count };
    rows_count count = {};
    launch_dependents();
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ring_stages<DIM>; n++)
            barrier_init(&sm.full[n], 1);
        init_pair_barriers(sm);
        sm.scratch = claim_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) claim_block<PARTS, DECAYED, true>(sm, solve, blocks, listed ? list : unlisted);
        __syncthreads();
        if (sm.block < 0) break;
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = half_block<PARTS, DIM, DECAYED>(sm, count, all, scratch, blocks);
        if (!solved && threadIdx.x == 0) work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
        if (PARTS == 2 && DIM == 128) atomicAdd(all.ended->gone, 1ull);
    }
    if (PARTS == 1) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ a launch */

template <int DIM> static int64_t pass_grid(const loam_problem *p, const rows_plan *plan)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = most_solver_blocks<DIM>(plan->work);
    return most < blocks ? most : blocks;
}

template <int PARTS, int DIM, bool DECAYED>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const rows_plan *plan, bool listed,
                               loam_error *error)
{
    return cuda_launch("half_rows_kernel", half_rows_kernel<PARTS, DIM, DECAYED>, pass_grid<DIM>(p, plan),
                       THREADS, rows_shared_bytes<DIM>, a->stream, PARTS == 1, error, *p, *a, *plan,
                       (int64_t)row_blocks(p), listed);
}

#endif
