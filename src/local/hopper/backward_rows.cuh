/* SPDX-License-Identifier: MIT
 * The pass over rows in the backward of Local Linear Attention on Hopper (backward_rows.cu): a block of 64
 * rows, the kernel, and its launch. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_ROWS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_ROWS_CUH

#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/backward_first.cuh"
#include "src/local/hopper/backward_pairs_wide.cuh"
#include "src/local/hopper/forward_rows.cuh"

/* ------------------------------------------------------------------ first sweep */

/* drho = -sum p (g - gbar) kappa, scaled to about 1, becomes b of the solve; x = 0. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void start_adjoint(const rows_system<DIM, DECAYED> &rs, cg_rows &cg,
                                                     const float (&f)[DIM / TILE_SIDE][8][4],
                                                     const rows_sums &sum, const bool (&wanted)[2])
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    float y[DIM / 2], top[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < DIM / 2; n++) {
        const int row = n / 2 % 2;
        y[n] = rs.r.real[row] ? sum.rest[row] * kbar.get(n) - f[n / 32][n / 4 % 8][n % 4] : 0;
        top[row] = fmaxf(top[row], fabsf(y[n]));
    }
    start_cg(sys, cg, y, top, wanted);
}

/* ------------------------------------------------------------------ the solve */

/* The square of the residual of the solution, rounded to PARTS, of the thread's rows, in the unit of b. The
 * solution becomes the direction. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void solution_residual(const pairs_system<DIM, DECAYED> &sys,
                                                         float (&error2)[2])
{
    float y[DIM / TILE_SIDE][8][4];
    row_direction own = {};
    direction_from_solution<PARTS>(sys, y, own);
    compute_image<PARTS>(y, sys, own);
    residual_square(sys, y, error2);
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
}

/* Is the thread's row solved, by the square of its true residual? */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool is_solved(const pairs_system<DIM, DECAYED> &sys, const cg_rows &cg,
                                                 const cg_tolerance &tolerance, int row, float error2)
{
    float residual;
    return accepted(cg, tolerance, row, error2, &residual) &&
           sys.ridge.least[row] > BLOCK_LEAST_RIDGE * cg.most[row];
}

/* Finds the true residual of the solution in two parts. Returns true where all rows are solved. If not, the
 * rows that are not go on the list for float64, and y and records of all rows are written for
 * query_kernel. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool check_rows(const rows_system<DIM, DECAYED> &rs, const cg_rows &cg,
                                                  const bool (&wanted)[2], const cg_tolerance &tolerance,
                                                  const rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    float error2[2];
    bool hard[2];
    solution_residual<2>(sys, error2);
#pragma unroll
    for (int row = 0; row < 2; row++)
        hard[row] = sys.r.lo[row] < sys.r.hi[row] &&
                    !(wanted[row] && is_solved(sys, cg, tolerance, row, error2[row]));
    if (!__syncthreads_or(hard[0] || hard[1])) return true;
    const row_vectors ys = key_rows(rs, rs.all.arrays.y);
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments x;
        load_solution<2>(x, sys, cg, n);
        ys.store(x, n);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!sys.r.real[row] || threadIdx.x % 4 != 0) continue;
        row_scalars rec = {};
        rec.gbar_rest = sum.rest[row], rec.peak = sum.peak[row], rec.unit = sys.ridge.unit[row];
        rs.all.arrays.record[rs.line(row)] = rec;
        if (hard[row]) {
            const hard_row left = { sys.sm.block, sys.r.at[row], cg.iterations[row] };
            rs.all.work.hard[atomicAdd(rs.all.work.hard_count, 1ull)] = left;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ the end of a block */

/* True where a row of the block is not solved by the squares of the true residuals. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool misses(const pairs_system<DIM, DECAYED> &sys, const cg_rows &cg,
                                              const bool (&wanted)[2], const cg_tolerance &tolerance,
                                              const float (&error2)[2])
{
    bool missed = false;
#pragma unroll
    for (int row = 0; row < 2; row++)
        missed |= wanted[row] && !is_solved(sys, cg, tolerance, row, error2[row]);
    return __syncthreads_or(missed);
}

/* The last sweep of a block in one part. True where the solve is accepted: all results of the rows are then
 * written. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool finish_rows_one_part(const rows_system<DIM, DECAYED> &rs,
                                                            const cg_rows &cg, const bool (&wanted)[2],
                                                            const cg_tolerance &tolerance, rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    float q[DIM / TILE_SIDE][8][4], r[DIM / TILE_SIDE][8][4];
    float inner[2] = { 0, 0 }, total[2] = { 0, 0 }, error2[2] = { 0, 0 };
    row_scalars rec[2];
    begin_pairs<1>(rs, cg, sum, rec);
    put_records(rs, rec);
    const pair_rows own = pair_rows_of<1>(sys, rec);
    if (DIM > 64 || !sys.a.grad_scale)
        pair_sums_one_part<false>(q, r, inner, total, rs, own, sum);
    else if constexpr (DIM == 64)
        pair_sums_one_part<true>(q, r, inner, total, rs, own, sum);
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const float inverse[2] = { 1 / (cg.unit[0] * cg.unit[0]), 1 / (cg.unit[1] * cg.unit[1]) };
    total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float2 y = direction_pair<1>(sys, n, e);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const int row = e / 2;
                const float rest = r[n / 8][n % 8][e + s] - total[row] * kbar.get(4 * n + e + s) +
                                   rs.lambda(4 * n + e + s) * (s ? y.y : y.x);
                error2[row] += rest * rest * inverse[row];
            }
        }
    }
    error2[0] = quad_sum(error2[0]), error2[1] = quad_sum(error2[1]);
    if (misses(sys, cg, wanted, tolerance, error2)) return false;
    put_pairs(rs, q, inner, sum);
    return true;
}

/* The same where the registers do not hold both sums: the residual comes first. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool finish_wide_rows(const rows_system<DIM, DECAYED> &rs,
                                                        const cg_rows &cg, const bool (&wanted)[2],
                                                        const cg_tolerance &tolerance, rows_sums &sum)
{
    float q[DIM / TILE_SIDE][8][4], inner[2] = { 0, 0 }, error2[2];
    row_scalars rec[2];
    solution_residual<1>(rs.sys, error2);
    if (misses(rs.sys, cg, wanted, tolerance, error2)) return false;
    begin_pairs<1>(rs, cg, sum, rec);
    put_records(rs, rec);
    query_sums_one_part(q, inner, rs, pair_rows_of<1>(rs.sys, rec), sum);
    put_pairs(rs, q, inner, sum);
    return true;
}

/* The last sweeps of a block in two parts. The solution is the direction. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void finish_rows_two_parts(const rows_system<DIM, DECAYED> &rs,
                                                             const cg_rows &cg, rows_sums &sum)
{
    float q[DIM / TILE_SIDE][8][4], inner[2] = { 0, 0 };
    row_scalars rec[2];
    begin_pairs<2>(rs, cg, sum, rec);
    centre_errors(rec, rs);
    put_records(rs, rec);
    pair_rows own = pair_rows_of<2>(rs.sys, rec);
    if constexpr (DIM > 128)
        query_sums_two_parts(q, inner, rs, own, sum);
    else
        pair_sums_two_parts(q, inner, rs, own, sum);
    put_pairs(rs, q, inner, sum);
}

/* ------------------------------------------------------------------ before the solve */

static __device__ __forceinline__ bool in_one_bf16_part(const row_fragments &x)
{
    bool whole = true;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++)
            whole &= rounded<1>(x[k][row].x) == x[k][row].x && rounded<1>(x[k][row].y) == x[k][row].y;
    }
    return whole;
}

/* Loads kbar into the scratch, and sums gbar = do . vbar. True where forward needed two parts for the probe
 * of one of the thread's rows. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool load_means(const rows_system<DIM, DECAYED> &rs, rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const row_vectors means = key_rows(rs, rs.all.saved.kbar), rhos = key_rows(rs, rs.all.saved.rho),
                      values(rs, rs.all.saved.vbar, sys.p.dim_v);
    const int own[2] = { rs.r.at[0], rs.r.at[1] };
    float gbar[2] = { 0, 0 };
    bool two_parts = false;
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments mean, rho, value;
        means.load(mean, n), rhos.load(rho, n), values.load(value, n);
        store_lanes(kbar, mean, n);
        two_parts |= !in_one_bf16_part(rho);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int at = swizzled(own[row], column_of(n + k, 0));
                const float2 grad = __bfloat1622float2(*(const __nv_bfloat162 *)(sys.sm.direction[0] + at));
                gbar[row] += grad.x * value[k][row].x + grad.y * value[k][row].y;
            }
        }
    }
    sum.gbar[0] = quad_sum(gbar[0]), sum.gbar[1] = quad_sum(gbar[1]);
    return two_parts;
}

/* Whether load_means is sure to find two parts: by the first columns, before anything else is loaded. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool is_surely_in_two_parts(const rows_system<DIM, DECAYED> &rs)
{
    row_fragments rho;
    key_rows(rs, rs.all.saved.rho).load(rho, 0);
    return __syncthreads_or(!in_one_bf16_part(rho));
}

/* The first sweep, from do to b of the adjoint solve; and the ridge, where its unit is the largest p. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void first_sweep(pairs_system<DIM, DECAYED> &sys, row_ridge &ridge,
                                                   cg_rows &cg, rows_sums &sums, const rows_launch &all,
                                                   rows_count &count, const bool (&wanted)[2])
{
    const rows_system<DIM, DECAYED> rs(sys, all, count);
    const bool by_max = all.p.ridge_unit == LOAM_RIDGE_MAX;
    rows_sums sum = sums;
    cg_rows begun;
    float f[DIM / TILE_SIDE][8][4];
    probe_gradient_sweep<PARTS>(f, rs, sum, PARTS == 2 || by_max);
    start_adjoint(rs, begun, f, sum, wanted);
    cg = begun, sums = sum;
    if (by_max) {
        float unit[2];
#pragma unroll
        for (int row = 0; row < 2; row++)
            unit[row] = sum.peak[row] < 0 ? 0 : exp2_fast(fminf(sum.best[row] - sys.lse2[row], 0));
        ridge = row_ridge_of(all.p, all.a, sys.block, sys.r, unit);
    }
}

/* Queries and output gradients of the block by bulk copies, the latter in place of the direction. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_block_rows(const pairs_system<DIM, DECAYED> &sys,
                                                       pairs_shared<DIM> &sm, const row_pass_maps &maps,
                                                       rows_count &count)
{
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, 2 * DIM * TILE_SIDE * 2);
        load_row_tile(sys, sm.query, maps.all.q);
        load_row_tile(sys, sm.direction[0], maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);
}

/* lse of the rows from `saved`; wanted: a row sees keys and has a ridge. True where a row that sees keys has
 * none: it is for float64. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ bool load_lse(pairs_system<DIM, DECAYED> &sys, const rows_launch &all,
                                                const row_block &block, const row_pair &r,
                                                const row_ridge &ridge, bool (&wanted)[2])
{
    bool unwanted = false, lse_exact = true;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float lse =
            r.real[row]
                ? ((const float *)all.saved.lse)[local_row(&all.p, &block.s, block.h, block.i0 + r.at[row])]
                : 0;
        sys.lse2[row] = finite_or_zero(lse) * 1.44269504f;
        lse_exact = lse_exact && fabsf(sys.lse2[row]) < EXACT_LSE;
        wanted[row] = r.lo[row] < r.hi[row] && ridge.least[row] > 0;
        unwanted |= r.lo[row] < r.hi[row] && !wanted[row];
    }
    sys.lse_exact = __syncthreads_and(lse_exact);
    return unwanted;
}

/* Leaves the adjoint solve of a block to row matrices. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_adjoint(const pairs_system<DIM, DECAYED> &sys,
                                                   const rows_launch &all, const cg_rows &cg,
                                                   const rows_sums &sum)
{
    const half_units units = half_units_of(*all.copy, all.p, sys.sm.block / all.p.heads_q % all.p.batch,
                                           sys.block.h_kv);
    const solve_launch solve = { all.p, all.a, all.saved, all.work, all.maps.all, all.copy, all.heavy };
    row_weight weight[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float largest = exp2_fast(fminf(sum.best[row] - sys.lse2[row], 0));
        weight[row] = { sys.lse2[row], sum.peak[row] < 0 ? 0 : largest };
    }
    put_listed<DIM>(sys.sm, solve, sys.r, weight, sys.vector(VECTOR_KBAR), power_inverse(units.key),
                    sys.vector(VECTOR_B));
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int row = 0; row < 2; row++)
        all.heavy->adjoint[sys.sm.listed * ROWS + sys.r.at[row]] = { sum.rest[row], sum.peak[row],
                                                                     cg.unit[row] };
}

/* What the first sweep left of such a block, and its solution. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_adjoint(const pairs_system<DIM, DECAYED> &sys,
                                                    const rows_launch &all, row_ridge &ridge, cg_rows &cg,
                                                    rows_sums &sum)
{
    const heavy_work &heavy = *all.heavy;
    const float *const from = heavy.vectors + sys.sm.listed * listed_vectors<DIM> + threadIdx.x;
    const lane_vector x = sys.vector(VECTOR_X), b = sys.vector(VECTOR_B);
    float bb[2] = { 0, 0 }, largest[2];
#pragma unroll 8
    for (int n = 0; n < DIM / 2; n++) {
        const float at = from[listed_vector<DIM> + n * THREADS];
        x.put(n, from[n * THREADS]), b.put(n, at);
        bb[n / 2 % 2] += at * at;
    }
    cg = {};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = sys.sm.listed * ROWS + sys.r.at[row];
        const adjoint_row own = heavy.adjoint[line];
        sum.rest[row] = own.rest, sum.peak[row] = own.peak, cg.unit[row] = own.unit;
        cg.bb[row] = quad_sum(bb[row]), largest[row] = heavy.weight[line].largest;
    }
    if (all.p.ridge_unit == LOAM_RIDGE_MAX) ridge = row_ridge_of(all.p, all.a, sys.block, sys.r, largest);
    put_ridge(sys);
}

/* One part is accepted at a larger residual than in forward: its error enters the gradients once, and a
 * launch with one listed block takes 0.3 ms. Row matrices take what plain steps would take too long for,
 * which the first step tells as in forward, where quotients were 9 to 46 at ridge 1, with 128 channels up
 * to 68. Without matrices it takes as many steps as cuda/adjoint_kernel. */
template <int PARTS, int DIM> static __device__ __forceinline__ cg_tolerance rows_tolerance()
{
    if (PARTS == 2 && !has_row_matrices<DIM>) return { 3e-4f, 3e-4f, 1e-2f, 64, 0, false, 0 };
    return PARTS == 1 ? cg_tolerance{ 8e-3f, 8e-3f, 3e-2f, 8, 0.62f, false, 0 }
                      : cg_tolerance{ 3e-4f, 3e-4f, 1e-2f, 28, 0, false, DIM == 64 ? 64.0f : 96.0f };
}

/* What follows from the adjoint solve of a block in two parts, where its solution is accurate enough. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void end_rows(const pairs_system<DIM, DECAYED> &sys, const rows_launch &all,
                                                rows_count &count, const cg_rows &cg, const bool (&wanted)[2],
                                                const cg_tolerance &tolerance, rows_sums &sum)
{
    const bool good = check_rows(rows_system<DIM, DECAYED>(sys, all, count), cg, wanted, tolerance, sum);
    if (good) finish_rows_two_parts(rows_system<DIM, DECAYED>(sys, all, count), cg, sum);
    if (threadIdx.x == 0) all.arrays.state[sys.sm.block] = good ? ROWS_TWO_PARTS : ROWS_PENDING;
}

/* Computes the rows of the block in PARTS bf16 parts, or leaves their adjoint solve to row matrices; false
 * where that is not enough. listed: one part was not. SOLVED: row matrices have found the solution. */
template <int PARTS, int DIM, bool DECAYED, bool SOLVED>
static __device__ __forceinline__ bool rows_block(pairs_shared<DIM> &sm, rows_count &count,
                                                  const rows_launch &all, float *scratch, bool listed)
{
    const row_block &block = sm.rows;
    row_pair r_storage = row_pair_of(all.p, block);
    const row_pair &r = in_memory(r_storage);
    const float units[2] = { 1, 1 };
    row_ridge ridge_storage = row_ridge_of(all.p, all.a, block, r, units);
    row_ridge &ridge = in_memory(ridge_storage);
    pairs_system<DIM, DECAYED> sys_storage = block_system_of<DIM, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, scratch);
    pairs_system<DIM, DECAYED> &sys = in_memory(sys_storage);
    rows_sums sum_storage = {};
    rows_sums &sum = in_memory(sum_storage);
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    if (PARTS == 1 && is_surely_in_two_parts(rows_system<DIM, DECAYED>(sys, all, count))) return false;
    load_block_rows(sys, sm, all.maps, count);

    bool wanted[2], two_parts = load_means(rows_system<DIM, DECAYED>(sys, all, count), sum);
    two_parts |= load_lse(sys, all, block, r, ridge, wanted);
    /* In one part, the pass at 128 dimensions has no registers for the gradient of the scale. */
    if (PARTS == 1 && (__syncthreads_or(two_parts) || (DIM > 64 && all.a.grad_scale))) return false;
    if constexpr (SOLVED) {
        load_adjoint(sys, all, ridge, cg, sum);
        end_rows(sys, all, count, cg, wanted, { 0, 0, 3.5e-3f, 0, 0, true, 0 }, sum);
        return true;
    }
    const cg_tolerance tolerance = rows_tolerance<PARTS, DIM>();
    first_sweep<PARTS>(sys, ridge, cg, sum, all, count, wanted);
    /* Where rows that see many keys had two parts in forward, row matrices had solved them. */
    const bool by_matrices = PARTS == 2 && has_row_matrices<DIM> && listed && __syncthreads_or(two_parts);
    if (!by_matrices) cg_run<PARTS>(sys, cg, tolerance);
    if constexpr (PARTS == 2 && !has_row_matrices<DIM>) {
        end_rows(sys, all, count, cg, wanted, tolerance, sum);
        return true;
    } else if constexpr (PARTS == 2) {
        if (__syncthreads_or(cg.live[0] || cg.live[1]))
            put_adjoint(sys, all, cg, sum);
        else
            end_rows(sys, all, count, cg, wanted, tolerance, sum);
        return true;
    } else {
        const float bound = tolerance.accept * tolerance.accept;
        if (__syncthreads_or(cg.rr[0] > bound * cg.bb[0] || cg.rr[1] > bound * cg.bb[1])) return false;
        rows_system<DIM, DECAYED> rs_storage(sys, all, count);
        const rows_system<DIM, DECAYED> &rs = in_memory(rs_storage);
        bool good;
        if constexpr (DIM > 128)
            good = finish_wide_rows(rs, cg, wanted, tolerance, sum);
        else
            good = finish_rows_one_part(rs, cg, wanted, tolerance, sum);
        if (good && threadIdx.x == 0) all.arrays.state[sm.block] = ROWS_ONE_PART;
        return good;
    }
}

template <int PARTS, int DIM, bool DECAYED, bool SOLVED>
__global__ void __launch_bounds__(THREADS, solver_blocks<DIM>)
    rows_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const local_saved saved, const row_arrays arrays, const solve_work work,
                       const int64_t blocks, const bool listed, const __grid_constant__ row_pass_maps maps,
                       const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    pairs_shared<DIM> &sm = *(pairs_shared<DIM> *)swizzled_memory;
    const rows_launch all = { p, a, saved, arrays, work, maps, &copy, &heavy };
    const solve_launch solve = { p, a, saved, work, maps.all, &copy, &heavy };
    const block_list unlisted = {}, list = { work.next_listed, work.listed, work.listed_count },
                     ended = { work.next_ended, heavy.listed, work.heavy_count };
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
        if (threadIdx.x == 0)
            claim_block<PARTS, DECAYED>(sm, solve, blocks, SOLVED ? ended : listed ? list : unlisted);
        __syncthreads();
        if (sm.block < 0) break;
        float *scratch = work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        const bool solved = rows_block<PARTS, DIM, DECAYED, SOLVED>(sm, count, all, scratch, listed);
        if (!solved && threadIdx.x == 0) work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    if (PARTS == 1) wait_for_previous_launch();
}

template <int PARTS, int DIM, bool DECAYED, bool SOLVED = false>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const rows_plan *plan, bool listed,
                               bool overlapped, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = most_solver_blocks<DIM>(plan->work);
    return cuda_launch("rows_kernel_hopper", rows_kernel_hopper<PARTS, DIM, DECAYED, SOLVED>,
                       most < blocks ? most : blocks, THREADS, rows_shared_bytes<DIM>, a->stream, overlapped,
                       error, *p, *a, plan->saved, plan->rows, plan->work, blocks, listed, plan->maps,
                       plan->copy, plan->heavy);
}

#endif
