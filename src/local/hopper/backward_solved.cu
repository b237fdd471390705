/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, rows of blocks whose adjoint system row matrices have solved
 * (heavy_solve.cu): backward_solved.cuh. With 128 channels, of float16 alone, where steps in two parts leave
 * their blocks to it too.
 */
#include "src/local/hopper/backward_solved.cuh"

/* y of a block, which heavy_adjoint left, and do, which lies in its stage as it is in memory. */
struct listed_source {
    int row[2];
    float unit[2]; /* of y */
    const float *solution;
    const __half *grad_o;
    bool is_f16;

    __device__ __forceinline__ void load(row_fragments &y, int n) const { load_vector(y, solution, n); }
    __device__ __forceinline__ void load_vector(row_fragments &x, const float *vector, int n) const
    {
        load_lanes(x, lane_vector{ (float *)vector + threadIdx.x }, n);
        scale_fragments(x, unit);
    }
    __device__ __forceinline__ float2 grad(int n, int of) const
    {
        return wide_pair(grad_o, row[of], n, is_f16);
    }
    /* The squares of drho. */
    template <int DIM> __device__ __forceinline__ void squares(float (&bb)[2]) const
    {
        bb[0] = bb[1] = 0;
#pragma unroll 1
        for (int n = 0; n < DIM / 8; n += TOGETHER) {
            row_fragments x;
            load_vector(x, solution + listed_vector<DIM>, n);
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
                for (int row = 0; row < 2; row++)
                    bb[row] += x[k][row].x * x[k][row].x + x[k][row].y * x[k][row].y;
            }
        }
        bb[0] = quad_sum(bb[0]), bb[1] = quad_sum(bb[1]);
    }
};

/* A block of the list. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void rows_after_solution(pairs_shared<DIM, __half> &sm, rows_count &count,
                                                           const rows_launch &all, float *scratch)
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
    __half *const grad_o = sm.stage[pair_stages<DIM>::grad_o];
    pairs_system<DIM, DECAYED, __half> sys = block_system_of<DIM, DECAYED>(
        all.p, all.a, block, r, ridge, all.maps.all, sm, count.ring, scratch);
    sys.units = half_units_of(*all.copy, all.p, sm.block / all.p.heads_q % all.p.batch, block.h_kv);
    put_ridge(sys);
    load_block_queries(sys, count.rows++);
    if (threadIdx.x == 0) {
        barrier_expect(&sm.query_full, DIM * TILE_SIDE * 2);
        load_row_tile(sys, grad_o, all.maps.grad_o);
    }
    barrier_wait(&sm.query_full, count.rows++ % 2);
    sys.lse_exact = __syncthreads_and(fabsf(lse2[0]) < EXACT_LSE && fabsf(lse2[1]) < EXACT_LSE);
    const listed_source source = { { r.at[0], r.at[1] },
                                   { own[0].unit, own[1].unit },
                                   heavy.vectors + sm.listed * listed_vectors<DIM>,
                                   grad_o,
                                   all.p.dtype == LOAM_F16 };
    float bb[2];
    source.squares<DIM>(bb);
    (void)finish_solution<2>(sys, all, count, source, own, lse2, largest, bb);
}

/* Waits until all thread blocks of a launch, so many, have ended; what they wrote is then visible to the
 * block. They are all running or done: this launch begins when all of the previous one, which waited for
 * theirs, have begun. */
static __device__ __forceinline__ void wait_until_gone(const ended_blocks &ended, unsigned long long launched)
{
    if (threadIdx.x == 0) {
        while (*(volatile unsigned long long *)ended.gone < launched)
            __nanosleep(500);
        __threadfence();
    }
    __syncthreads();
}

/* The blocks that row matrices have solved, and with 128 dimensions those on the second list of ended blocks;
 * or, where `launched` is not 0, those on the first one, of a launch of so many thread blocks, beside the
 * last blocks of the launch after it. */
template <int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    rows_solved_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                       const __grid_constant__ rows_plan plan, const int64_t blocks,
                       const unsigned long long launched)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    typedef pairs_shared<DIM, __half> shared;
    shared &sm = *(shared *)swizzled_memory;
    const rows_launch all = { p,         a,          plan.saved,  plan.rows, plan.work,
                              plan.maps, &plan.copy, &plan.heavy, NULL,      plan.extremes };
    const solve_launch solve = { p, a, plan.saved, plan.work, plan.maps.all, &plan.copy, &plan.heavy };
    const ended_blocks &ends = plan.ended[launched > 0 ? 0 : 1];
    const block_list list = { plan.work.next_ended, plan.heavy.listed, plan.work.heavy_count },
                     ended = { ends.next, ends.block, ends.count };
    rows_count count = {};
    if (launched == 0)
        wait_for_previous_launch();
    else
        wait_until_gone(ends, launched);
    launch_dependents();
    if (threadIdx.x == 0) {
        init_pair_barriers(sm);
        sm.scratch = claim_scratch(plan.work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sm.block = -1;
            if (launched == 0) claim_block<2, DECAYED>(sm, solve, 0, list);
            if (DIM == 128 && sm.block < 0) {
                claim_block<2, DECAYED>(sm, solve, 0, ended);
                sm.listed = blocks - 1 - sm.listed;
            }
        }
        __syncthreads();
        if (sm.block < 0) break;
        float *scratch = plan.work.scratch + (int64_t)sm.scratch * VECTORS * (DIM / 2) * THREADS;
        rows_after_solution<DIM, DECAYED>(sm, count, all, scratch);
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&plan.work.scratch_taken[sm.scratch], 0);
    }
    if (launched > 0) wait_for_previous_launch();
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const rows_plan *plan, int64_t launched,
                          loam_error *error)
{
    auto *const kernel = p->decay ? rows_solved_kernel<DIM, true> : rows_solved_kernel<DIM, false>;
    return cuda_launch("rows_solved_kernel", kernel, BLOCKS_PER_SM * solve_multiprocessors(), THREADS,
                       rows_shared_bytes<DIM>, a->stream, true, error, *p, *a, *plan, (int64_t)row_blocks(p),
                       (unsigned long long)launched);
}

loam_status rows_solved(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    return local_padded_dim(p) == 64 ? launch<64>(p, a, plan, 0, error) : launch<128>(p, a, plan, 0, error);
}

loam_status rows_ended(const loam_problem *p, const loam_args *a, const rows_plan *plan, int64_t launched,
                       loam_error *error)
{
    return launch<128>(p, a, plan, launched, error);
}
