/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the passes of local/cuda/forward_solved.cu, for bf16 and float16,
 * dot scores that may decay but have no other bias: tiles are 64, 128 or 256 channels wide, and channels that
 * the arrays do not have are 0. A thread block is one warpgroup with 64 rows. Operands of products are fp16:
 * three bits more a part than bf16, which the keys of trained models need.
 *
 * Blocks whose rows see many keys have directions and weights in one part each, which leaves a residual of
 * about 2^-11; the last sweep measures the true one. Where it misses the tolerance, or the iteration is too
 * slow to reach it, the block is listed for the launches that give each row a matrix of its own
 * (heavy_solve.cu). Blocks with few keys have two parts at once, in a launch that overlaps with the first.
 * One kernel for both would need too many registers for its products to be pipelined. Blocks with 64
 * dimensions and very few keys are those of forward_resident.cu.
 *
 * With 256 channels a row has no matrix: listed blocks take plain steps in two parts, as many as it takes.
 * Registers hold one sum of 64 rows: what else is one sweep is two.
 */
#include "src/local/cuda/launch.cuh"
#include "src/local/hopper/forward_few.cuh"
#include "src/local/hopper/forward_means.cuh"
#include "src/local/hopper/forward_resident.cuh"
#include "src/local/hopper/heavy_work.cuh"

#include <type_traits>

/* How sweeps take the keys of blocks in PARTS parts, where some may have segments. */
template <int PARTS, int DIM, bool DECAYED>
constexpr int keys_of_blocks = PARTS == 1 && DIM == 64 && !DECAYED ? KEY_SEGMENTS : ALL_KEYS;

/* Solves the rows of the block in PARTS parts; false where that is not enough. The means of its rows are then
 * in the scratch, their weights in `weight`. */
template <int PARTS, int OF_KEYS, bool NEAR, int DIM, bool DECAYED>
static __device__ __forceinline__ bool solve_rows(solver_shared<DIM, __half> &sm, ring_count &count,
                                                  unsigned &queries, const solve_launch &all, float *scratch,
                                                  row_weight (&weight)[2])
{
    const loam_problem &p = all.p;
    const loam_args &a = all.a;
    const row_block &block = sm.rows;
    row_pair r_storage = row_pair_of(p, block);
    const row_pair &r = in_memory(r_storage);
    row_ridge ridge_storage = {};
    row_ridge &ridge = in_memory(ridge_storage);
    typedef block_system<DIM, DECAYED, __half> far_system;
    typedef typename std::conditional<NEAR, near_system<DIM, DECAYED, __half>, far_system>::type system;
    system sys_storage = { block_system_of<DIM, DECAYED>(p, a, block, r, ridge, all.maps, sm, count,
                                                         scratch) };
    sys_storage.units = half_units_of(*all.copy, p, sm.block / p.heads_q % p.batch, block.h_kv);
    await_queries(sys_storage, queries++);
    system &sys = in_memory(sys_storage);
    float lse2[2], largest[2], error2[2];
    bool finite[2], missed = false;
    means_sweep<PARTS, OF_KEYS>(sys, lse2, largest);
    weight[0] = { lse2[0], largest[0] }, weight[1] = { lse2[1], largest[1] };
    set_weights(sys, lse2, largest);
    ridge = ridge_in_units(p, a, block, r, sys.units, largest);
    const cg_tolerance tolerance = plain_tolerance<PARTS, DIM>(a.saved != NULL);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    start_solve(sys, cg, wanted);
    cg_run<PARTS, OF_KEYS>(sys, cg, tolerance);
    if ((PARTS == 1 || has_row_matrices<DIM>)&&__syncthreads_or(needs_more<PARTS>(cg, tolerance)))
        return false;
    output_sweep<PARTS, OF_KEYS>(sys, cg, all.saved, error2, finite);
    row_verdict verdict[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        verdict[row] = verdict_of(sys, cg, tolerance, row, wanted[row] && finite[row], error2[row]);
        missed = missed || (wanted[row] && finite[row] && !verdict[row].good);
    }
    if (PARTS == 1 && __syncthreads_or(missed)) return false;
    put_row_results(all, sm.block, block, r, cg, verdict, weight);
    return true;
}

/* claim_block of those blocks in one part that see fewer tiles than `below`, which come last. */
template <int DIM>
static __device__ __forceinline__ void claim_below(solver_shared<DIM, __half> &sm, const solve_launch &all,
                                                   int64_t blocks, int below)
{
    for (;;) {
        sm.block = blocks - 1 - (int64_t)atomicAdd((unsigned long long *)all.work.next_block, 1ull);
        if (sm.block < 0) break;
        sm.rows = row_block_at(all.p, all.a, sm.block);
        if (sm.rows.rows > 0 && key_tiles(sm.rows) < below && !is_resident<DIM>(all.p, sm.rows) &&
            !sees_few<DIM>(all.p, sm.rows))
            return;
    }
    sm.block = -1;
}

template <int PARTS, int DIM, bool DECAYED, int OF_KEYS, bool NEAR>
__global__ void __launch_bounds__(THREADS, NEAR ? 1 : solver_blocks<DIM>)
    solved_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const local_saved saved, const solve_work work, const int64_t blocks,
                         const bool listed, const int below, const __grid_constant__ qkv_maps maps,
                         const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solver_shared<DIM, __half> &sm = *(solver_shared<DIM, __half> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const block_list unlisted = {}, list = { work.next_listed, work.listed, work.listed_count };
    ring_count count = { 0 };
    unsigned queries = 0;
    /* The copy in fp16 is complete before a launch that overlaps with this one begins. */
    if (PARTS == 2 && !NEAR) wait_for_previous_launch();
    if (!NEAR) launch_dependents();
    if (threadIdx.x == 0) {
        init_rings(sm);
        if (!NEAR) sm.scratch = claim_scratch(work);
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            if (OF_KEYS == KEY_SEGMENTS && below > 0)
                claim_below(sm, all, blocks, below);
            else
                claim_block<PARTS, DECAYED>(sm, all, blocks,
                                            !has_row_matrices<DIM> && listed ? list : unlisted);
            if (OF_KEYS == KEY_SEGMENTS && sm.block >= 0) sm.segment_tiles = segment_tiles(sm.rows);
            if (sm.block >= 0) ask_queries(sm, maps);
        }
        if (NEAR) {
            wait_for_previous_launch();
            launch_dependents();
        }
        __syncthreads();
        if (sm.block < 0) break;
        float *const scratch = work.scratch + (NEAR ? 0 : sm.scratch * (int64_t)solver_scratch(DIM));
        row_weight weight[2];
        if (solve_rows<PARTS, OF_KEYS, NEAR, DIM, DECAYED>(sm, count, queries, all, scratch,
                                                           in_memory(weight)))
            continue;
        if constexpr (has_row_matrices<DIM>) {
            float *const vectors = NEAR ? (float *)(&sm + 1) : scratch;
            put_listed<DIM>(sm, all, row_pair_of(p, sm.rows), weight,
                            scratch_vector<DIM>(vectors, VECTOR_KBAR), 1,
                            scratch_vector<DIM>(vectors, VECTOR_VBAR));
        } else if (threadIdx.x == 0) {
            work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
        }
    }
    if (!NEAR && threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    /* One thread block sees to it that this launch does not end before the one that it overlaps with; the
     * others make room. */
    if (PARTS == 1 && blockIdx.x == 0) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ the launches */

template <int PARTS, int DIM, bool DECAYED, int OF_KEYS = keys_of_blocks<PARTS, DIM, DECAYED>,
          bool NEAR = false>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                               const qkv_maps *maps, bool listed, loam_error *error, int below = 0)
{
    const int64_t blocks = (int64_t)row_blocks(p), heads = p->batch * p->heads_q,
                  most = NEAR        ? FEW_KEYS * heads
                         : below > 0 ? (below - FEW_KEYS) * heads
                                     : most_solver_blocks<DIM>(*work);
    /* Neighbours, so that others that come in fours find place. */
    const unsigned cluster = NEAR && most <= blocks ? FEW_KEYS : 1;
    return cuda_launch_clusters(
        "solved_kernel_hopper", solved_kernel_hopper<PARTS, DIM, DECAYED, OF_KEYS, NEAR>,
        most < blocks ? most : blocks, cluster, THREADS,
        sizeof(solver_shared<DIM, __half>) + (NEAR ? near_vectors(DIM) : 0), a->stream, true, error, *p, *a,
        *saved, *work, blocks, listed, below, *maps, *copy, *heavy);
}

/* Blocks with few keys in two parts. Where blocks are few, those of a causal sequence, without a window, are
 * no more than FEW_KEYS, and each has a multiprocessor. */
template <int DIM>
static loam_status launch_two_parts(const loam_problem *p, const loam_args *a, const local_saved *saved,
                                    const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                                    const qkv_maps *maps, loam_error *error)
{
    if constexpr (DIM == TILE_SIDE)
        if (forward_few_pays(p) && p->window == 0 && p->len_q <= p->len_kv)
            return launch_pass<2, DIM, false, ALL_KEYS, true>(p, a, saved, work, copy, heavy, maps, false,
                                                              error);
    return launch_pass<2, DIM, false>(p, a, saved, work, copy, heavy, maps, false, error);
}

/* Blocks in one part: by clusters where they are few, else with segments of keys where there may be some. */
template <int DIM>
static loam_status launch_one_part(const loam_problem *p, const loam_args *a, const local_saved *saved,
                                   const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                                   const qkv_maps *maps, loam_error *error)
{
    if (DIM == TILE_SIDE && forward_few_pays(p)) {
        const int below = forward_few_tiles(p);
        TRY(forward_few(p, a, saved, work, copy, heavy, maps, error));
        if (below == 0) return LOAM_OK;
        return launch_pass<1, DIM, false>(p, a, saved, work, copy, heavy, maps, false, error, below);
    }
    if (p->len_kv <= UNSEGMENTED_KEYS)
        return launch_pass<1, DIM, false, ALL_KEYS>(p, a, saved, work, copy, heavy, maps, false, error);
    return launch_pass<1, DIM, false>(p, a, saved, work, copy, heavy, maps, false, error);
}

/* Blocks with few keys in two parts; beside them all others in one part; then those for which that was not
 * enough, with matrices or, without, in two parts. Where scores decay, all blocks in two parts first. */
template <int DIM> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    const half_copy copy = half_copy_carve(p, &work, &pool);
    const heavy_work heavy = heavy_work_carve(p, &pool);
    qkv_maps maps;
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &copy.keys, DIM, TILE_SIDE, error));
    TRY(key_map_make(&maps.v, p, &copy.values, DIM, TILE_SIDE, error));
    TRY(solve_work_clear(&work, a, error));
    TRY(half_copy_make(&copy, p, a, error));
    if (p->decay) {
        TRY((launch_pass<2, DIM, true>(p, a, &saved, &work, &copy, &heavy, &maps, false, error)));
    } else {
        if (!all_resident(p, a)) {
            TRY(launch_two_parts<DIM>(p, a, &saved, &work, &copy, &heavy, &maps, error));
            TRY(launch_one_part<DIM>(p, a, &saved, &work, &copy, &heavy, &maps, error));
        }
        if (may_be_resident(p, a)) TRY(forward_resident(p, a, &saved, &work, &copy, &heavy, &maps, error));
    }
    if (has_row_matrices<DIM>) return heavy_forward(p, a, &saved, &work, &copy, &heavy, &maps, error);
    if (p->decay) return LOAM_OK;
    return launch_pass<2, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, true, error);
}

size_t local_solved_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    (void)half_copy_carve(p, &work, &pool);
    (void)heavy_work_carve(p, &pool);
    return pool.used;
}

bool local_solved_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) && key_map_fits(p, &a->v);
}

loam_status local_solved_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return by_dim(
        p, [&](auto dim) { return launch<decltype(dim)::value>(p, a, error); });
}
