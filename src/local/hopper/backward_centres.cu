/* SPDX-License-Identifier: MIT
 *
 * Centres of large products with rho. The pass over keys takes u = rho . kappa from the products of two bf16
 * parts of rho, which tensor cores round to about 2^-22 of their size: more than the 1 of 1 - u can bear
 * where a row sees few keys far from the origin and the ridge is small. All products of such a row are off
 * alike, so that the mean of the same products under p is the centre to take. Sweeps in two bf16 parts have
 * found it. Rows that fp16 parts, or float64, have solved know the mean of other products: here those among
 * them with large ones get that of the pass over keys.
 */
#include "src/local/cuda/launch.cuh"
#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/backward_centres.cuh"

/* The largest product with kbar that leaves u exact to 2^-12. */
#define LARGE_PRODUCT 0x1p10f

/* The queries of the block by a bulk copy, and the parts of rho and y of the thread's rows. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void fill_rows(const rows_system<DIM, DECAYED> &rs)
{
    if (threadIdx.x == 0) {
        barrier_expect(&rs.sys.sm.query_full, DIM * TILE_SIDE * 2);
        load_row_tile(rs.sys, rs.sys.sm.query, rs.all.maps.all.q);
    }
    const row_vectors rhos = key_rows(rs, rs.all.saved.rho), ys = key_rows(rs, rs.all.arrays.y);
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments rho, y;
        rhos.load(rho, n), ys.load(y, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++)
                store_directions<2>(rs, swizzled(rs.r.at[row], column_of(n + k, 0)), rho[k][row], y[k][row]);
        }
    }
    fence_async_proxy();
    __syncthreads();
    barrier_wait(&rs.sys.sm.query_full, 0);
}

template <int DIM, bool DECAYED>
static __device__ __forceinline__ void centre_block(pairs_shared<DIM> &sm, const rows_launch &all)
{
    const row_block &block = sm.rows;
    const row_pair r = row_pair_of(all.p, block);
    const float units[2] = { 1, 1 };
    const row_ridge ridge = row_ridge_of(all.p, all.a, block, r, units);
    rows_count count = {};
    pairs_system<DIM, DECAYED> sys = block_system_of<DIM, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, all.work.scratch);
    const rows_system<DIM, DECAYED> before(sys, all, count);
    row_scalars rec[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rec[row] = r.real[row] ? all.arrays.record[before.line(row)] : row_scalars{};
        sys.lse2[row] = finite_or_zero(rec[row].lse) * 1.44269504f;
    }
    const rows_system<DIM, DECAYED> rs(sys, all, count);
    fill_rows(rs);
    centre_errors(rec, rs);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (!r.real[row] || threadIdx.x % 4 != 0 || !(fabsf(rec[row].rho_kbar) > LARGE_PRODUCT)) continue;
        row_scalars &out = all.arrays.record[rs.line(row)];
        out.rho_rest = rec[row].rho_rest, out.y_rest = rec[row].y_rest;
    }
}

template <int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, solver_blocks<DIM>)
    probe_centres_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const __grid_constant__ rows_plan plan)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    pairs_shared<DIM> &sm = *(pairs_shared<DIM> *)swizzled_memory;
    const row_block block = row_block_at(p, a, blockIdx.x);
    if (block.rows <= 0 || plan.rows.state[blockIdx.x] == ROWS_ONE_PART) return;
    const int64_t line = local_row(&p, &block.s, block.h, block.i0) + threadIdx.x;
    const bool large = threadIdx.x < block.rows && fabsf(plan.rows.record[line].rho_kbar) > LARGE_PRODUCT;
    if (!__syncthreads_or(large)) return;
    if (threadIdx.x == 0) {
        sm.rows = block;
        init_pair_barriers(sm);
    }
    __syncthreads();
    centre_block<DIM, DECAYED>(sm, { p, a, plan.saved, plan.rows, plan.work, plan.maps });
}

template <int DIM, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    return cuda_launch("probe_centres_kernel", probe_centres_kernel<DIM, DECAYED>, (int64_t)row_blocks(p),
                       THREADS, rows_shared_bytes<DIM>, a->stream, false, error, *p, *a, *plan);
}

loam_status probe_centres(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    return by_dim(
        p,
        [&](auto dim) {
            constexpr int DIM = decltype(dim)::value;
            return p->decay ? launch<DIM, true>(p, a, plan, error) : launch<DIM, false>(p, a, plan, error);
        });
}
