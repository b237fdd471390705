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
#include "src/local/hopper/forward_resident.cuh"
#include "src/local/hopper/forward_rows.cuh"
#include "src/local/hopper/heavy_work.cuh"

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
    if (rarely(!sys.unmasked(j))) {
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

/* Rescales sums. */
template <int DIM>
static __device__ __forceinline__ void rescale_sums(float (&sum)[DIM / TILE_SIDE][8][4],
                                                    const float (&rescale)[2])
{
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[n / 8][n % 8][e] *= rescale[e / 2];
    }
}

/* A mean goes to the scratch, from its sum. It is divided by the sum of the weights as rounded to their
 * parts: its error is then relative to the spread of the keys, not to their size. */
template <int DIM>
static __device__ __forceinline__ void put_mean(const lane_vector &mean, const softmax_rows &soft,
                                                const float (&sum)[DIM / TILE_SIDE][8][4])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float rounded = quad_sum(soft.rounded[row]), inverse = rounded > 0 ? 1 / rounded : 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++)
                mean.put(4 * n + e, sum[n / 8][n % 8][e] * inverse);
        }
    }
}

/* Are sums over many keys those of segments? By the lengths and the form of the problem alone. */
template <int PARTS, int DIM, bool DECAYED> constexpr bool is_segmented = PARTS == 1 && DIM == 64 && !DECAYED;

/* part, the softmax of a segment, becomes that of all before it, `total`, and this one; scale: what sums of
 * those before, and of this one, are multiplied by. */
static __device__ __forceinline__ void merge_softmax(softmax_rows &part, const softmax_rows &total,
                                                     float (&scale)[2][2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float top = fmaxf(total.m[row], part.m[row]), base = finite_or_zero(top);
        scale[0][row] = exp2_fast(total.m[row] - base), scale[1][row] = exp2_fast(part.m[row] - base);
        part.m[row] = top;
        part.omega[row] = fmaf(part.omega[row], scale[1][row], __fmul_rn(total.omega[row], scale[0][row]));
        part.rounded[row] = fmaf(part.rounded[row], scale[1][row],
                                 __fmul_rn(total.rounded[row], scale[0][row]));
    }
}

/* The end of the first sweep: the softmax of the rows and their sums from those of all segments. */
template <bool SEGMENTED, int DIM, class T>
static __device__ __forceinline__ void finish_means(const segment_sums<SEGMENTED, DIM, T> &segments,
                                                    softmax_rows &soft, const softmax_rows &before,
                                                    float (&k)[DIM / TILE_SIDE][8][4],
                                                    float (&v)[DIM / TILE_SIDE][8][4])
{
    const key_segments &keys = segments.sm.segments;
    if (keys.tiles == 0) return;
    float scale[SEGMENTS][2][2];
    if (!keys.shared) {
        merge_softmax(soft, before, scale[0]);
        segments.add_all(k, 0, scale[0]);
        segments.add_all(v, 1, scale[0]);
        return;
    }
    segments.tell(k, 0);
    segments.tell(v, 1);
    *segments.part(keys.own, 16) = make_float4(soft.m[0], soft.m[1], soft.omega[0], soft.omega[1]);
    *segments.part(keys.own, 17) = make_float4(soft.rounded[0], soft.rounded[1], 0, 0);
    const unsigned turn = segments.meet();
    softmax_rows total = { { -INFINITY, -INFINITY }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
#pragma unroll
    for (int s = 0; s < SEGMENTS; s++) {
        const float4 x = segments.numbers(s, 0, turn), y = segments.numbers(s, 1, turn);
        softmax_rows part = { { x.x, x.y }, { x.z, x.w }, { y.x, y.y }, { 0, 0 } };
        merge_softmax(part, total, scale[s]);
        total = part;
    }
    soft = total;
    segments.gather(k, 0, turn, scale);
    segments.gather(v, 1, turn, scale);
}

/* A pass of the online softmax: the sums of keys k, where KEYS, and of values v, where VALUES, in their
 * units, times their weights. */
template <int PARTS, bool KEYS, bool VALUES, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void sum_means(const block_system<DIM, DECAYED, T> &sys, softmax_rows &soft,
                                                 float (&k)[DIM / TILE_SIDE][8][4],
                                                 float (&v)[DIM / TILE_SIDE][8][4])
{
    float s[8][4];
    weights_operand<PARTS, 4, T> w;
    score_operands<DIM, DECAYED, T, PARTS, true> rows;
    constexpr bool segmented = is_segmented<PARTS, DIM, DECAYED>;
    segment_sums<segmented, DIM, T> segments(sys.sm, sys.block.first);
    const softmax_rows none = { { -INFINITY, -INFINITY }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
    softmax_rows before = none; /* of segments that ended */
    float scale[2][2];
    soft = none;
    rows.load_query(sys);
    if (KEYS) clear_sums<DIM>(k);
    if (VALUES) clear_sums<DIM>(v);
    stream_values<PARTS == 2 || DIM == 64 || !VALUES ? 0 : 2, true, VALUES, segmented>(
        sys, [&](const auto &t) { rows.query_keys(s, sys, t.keys); },
        [&](const auto &t) {
            wgmma_results(s);
            if (rarely(segments.ends(t.j))) {
                merge_softmax(soft, before, scale);
                before = soft, soft = none;
            }
            masked_scores(s, sys, t.j);
            softmax_step<T>(soft, s);
            wgmma_results(s);
        },
        [&]() {
            if (KEYS) wgmma_results(k);
            if (VALUES) wgmma_results(v);
            if constexpr (segmented) {
                segments.end(k, 0, scale);
                segments.end(v, 1, scale);
                segments.next_segment();
            }
            split_weights(w, s);
            add_weights_by_pair(soft.rounded, w);
            if (__any_sync(0xffffffffu, soft.rescale[0] != 1 || soft.rescale[1] != 1)) {
                if (KEYS) rescale_sums<DIM>(k, soft.rescale);
                if (VALUES) rescale_sums<DIM>(v, soft.rescale);
            }
        },
        [&](const auto &t) {
            if (KEYS && PARTS == 2) multiply_weights<DIM>(k, w.part[PARTS - 1], t.keys);
            if (KEYS) multiply_weights<DIM>(k, w.part[0], t.keys);
            if (VALUES) multiply_weights<DIM>(v, w.part[0], t.values);
        });
    if (KEYS) wgmma_results(k);
    if (VALUES) wgmma_results(v);
    if constexpr (segmented) finish_means(segments, soft, before, k, v);
}

/* The first sweep, an online softmax: lse to base 2, 0 for rows that see no key, and the means of keys and
 * values into the scratch. largest: the largest p of a row, 0 for such rows. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void means_sweep(const block_system<DIM, DECAYED, T> &stored,
                                                   float (&lse2)[2], float (&largest)[2])
{
    constexpr bool together = DIM <= 128;
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    float k[DIM / TILE_SIDE][8][4], v[DIM / TILE_SIDE][8][4];
    softmax_rows soft;
    sum_means<PARTS, true, together>(sys, soft, k, v);
    put_mean<DIM>(sys.vector(VECTOR_KBAR), soft, k);
    if (!together) sum_means<PARTS, false, true>(sys, soft, k, v);
    put_mean<DIM>(sys.vector(VECTOR_VBAR), soft, v);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float omega = quad_sum(soft.omega[row]);
        lse2[row] = omega > 0 ? soft.m[row] + (log2f(omega) - softmax_top<T>) : 0;
        largest[row] = omega > 0 ? power_of_two(softmax_top<T>) / omega : 0;
    }
}

/* Steps without a preconditioner; in two parts, as many as the matrices of a block that sees few keys are
 * worth, or as solve most rows where there are no matrices. With `saved`, gradients follow: they need a more
 * exact probe than o does, and one that took many steps in one part does not bear the rounding to bf16. */
template <int PARTS, int DIM> static __device__ __forceinline__ cg_tolerance plain_tolerance(bool saved)
{
    const float stop = saved ? 3e-4f : 1.2e-3f;
    if (PARTS == 2 && !has_row_matrices<DIM>) return { stop, stop, 1e-2f, 128, 0, false, 0 };
    return PARTS == 2 ? cg_tolerance{ stop, stop, 1e-2f, 28, 0.77f, false, 0 }
           : saved    ? cg_tolerance{ 6e-3f, 6e-3f, 1.8e-2f, 8, 0.62f, false, 0 }
                      : cg_tolerance{ 6e-3f, 3e-3f, 1.2e-2f, 24, 0.77f, true, 0 };
}

/* Are steps in PARTS parts not enough for a row? */
template <int PARTS>
static __device__ __forceinline__ bool needs_more(const cg_rows &cg, const cg_tolerance &tolerance)
{
    const float bound = PARTS == 1 ? tolerance.accept * tolerance.accept : 0;
    return (cg.live[0] && cg.rr[0] > bound * cg.bb[0]) || (cg.live[1] && cg.rr[1] > bound * cg.bb[1]);
}

/* Solves the rows of the block in PARTS parts; false where that is not enough. The means of its rows are then
 * in the scratch, their weights in `weight`. */
template <int PARTS, int DIM, bool DECAYED>
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
    typedef block_system<DIM, DECAYED, __half> system;
    system sys_storage = block_system_of<DIM, DECAYED>(p, a, block, r, ridge, all.maps, sm, count, scratch);
    sys_storage.units = half_units_of(*all.copy, p, sm.block / p.heads_q % p.batch, block.h_kv);
    load_block_queries(sys_storage, queries++);
    system &sys = in_memory(sys_storage);
    float lse2[2], largest[2], error2[2];
    bool finite[2], missed = false;
    constexpr bool segmented = is_segmented<PARTS, DIM, DECAYED>;
    means_sweep<PARTS>(sys, lse2, largest);
    weight[0] = { lse2[0], largest[0] }, weight[1] = { lse2[1], largest[1] };
    set_weights(sys, lse2, largest);
    ridge = ridge_in_units(p, a, block, r, sys.units, largest);
    const cg_tolerance tolerance = plain_tolerance<PARTS, DIM>(a.saved != NULL);
    const bool wanted[2] = { within_range(sys, largest, 0), within_range(sys, largest, 1) };
    cg_rows k_storage;
    cg_rows &cg = in_memory(k_storage);
    start_solve(sys, cg, wanted);
    cg_run<PARTS, segmented>(sys, cg, tolerance);
    if ((PARTS == 1 || has_row_matrices<DIM>)&&__syncthreads_or(needs_more<PARTS>(cg, tolerance)))
        return false;
    output_sweep<PARTS, segmented>(sys, cg, all.saved, error2, finite);
    row_verdict verdict[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        verdict[row] = verdict_of(sys, cg, tolerance, row, wanted[row] && finite[row], error2[row]);
        missed = missed || (wanted[row] && finite[row] && !verdict[row].good);
    }
    if (PARTS == 1 && __syncthreads_or(missed)) return false;
    if (!segmented || sm.segments.writes()) put_row_results(all, sm.block, block, r, cg, verdict, weight);
    return true;
}

/* In a launch of clusters each has one block of rows: the one that the cluster has the number of, -1 where it
 * is not for this launch, or not for this thread block, or done. One thread calls it. */
template <int DIM>
static __device__ __forceinline__ void claim_of_cluster(solver_shared<DIM, __half> &sm,
                                                        const solve_launch &all, bool done)
{
    sm.block = done ? -1 : (int64_t)(blockIdx.x / SEGMENTS);
    if (done) return;
    sm.rows = row_block_at(all.p, all.a, sm.block);
    const bool taken = sm.rows.rows > 0 && !is_resident<DIM>(all.p, sm.rows) &&
                       !sees_few<DIM>(all.p, sm.rows) &&
                       (cluster_rank() == 0 || key_tiles(sm.rows) >= SEGMENTED_TILES);
    if (!taken) sm.block = -1;
}

/* Divides the keys of the claimed block; all threads call it. */
template <int DIM>
static __device__ __forceinline__ void divide_keys(solver_shared<DIM, __half> &sm, const solve_work &work,
                                                   bool clusters)
{
    const int tiles = key_tiles(sm.rows);
    const bool divided = tiles >= SEGMENTED_TILES, shared = divided && clusters;
    const int length = (tiles + SEGMENTS - 1) / SEGMENTS, rank = (int)cluster_rank();
    if (shared) cluster_sync();
    if (threadIdx.x == 0) {
        sm.segments.tiles = divided ? length : 0;
        sm.segments.shared = shared;
        sm.segments.own = rank;
        sm.segments.turn = 0;
        for (int s = 0; s < SEGMENTS; s++) {
            const int scratch = shared ? cluster_load(&sm.scratch, (unsigned)s) : sm.scratch;
            sm.segments.slot[s] = (float4 *)(work.scratch + scratch * (int64_t)solver_scratch(DIM) +
                                             VECTORS * (DIM / 2) * THREADS);
        }
        if (shared) {
            sm.rows.first += rank * length * TILE_SIDE;
            if (rank + 1 < SEGMENTS) sm.rows.last = sm.rows.first + length * TILE_SIDE;
        }
    }
    __syncthreads();
}

/* One thread calls it. */
template <int DIM> static __device__ __forceinline__ void init_rings(solver_shared<DIM, __half> &sm)
{
    for (int n = 0; n < (int)ring_stages<DIM>; n++)
        barrier_init(&sm.full[n], 1);
    for (int n = 0; n < (int)ring_stages<DIM> + 2; n++) {
        barrier_init(&sm.extended_full[0][n], 1);
        barrier_init(&sm.extended_full[1][n], 1);
    }
    sm.extended[0].used = sm.extended[1].used = 0;
    barrier_init(&sm.query_full, 1);
    fence_async_proxy();
}

template <int PARTS, int DIM, bool DECAYED>
__global__ void __launch_bounds__(THREADS, solver_blocks<DIM>)
    solved_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const local_saved saved, const solve_work work, const int64_t blocks,
                         const bool listed, const __grid_constant__ qkv_maps maps,
                         const __grid_constant__ half_copy copy, const __grid_constant__ heavy_work heavy)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    solver_shared<DIM, __half> &sm = *(solver_shared<DIM, __half> *)swizzled_memory;
    const solve_launch all = { p, a, saved, work, maps, &copy, &heavy };
    const block_list unlisted = {}, list = { work.next_listed, work.listed, work.listed_count };
    ring_count count = { 0 };
    unsigned queries = 0;
    constexpr bool segmented = is_segmented<PARTS, DIM, DECAYED>;
    const bool clusters = segmented && cluster_size() > 1;
    /* The copy in fp16 is complete before a launch that overlaps with this one begins. */
    if (PARTS == 2) wait_for_previous_launch();
    launch_dependents();
    if (threadIdx.x == 0) {
        init_rings(sm);
        sm.scratch = claim_scratch(work);
        sm.segments.shared = false;
    }
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            if (segmented && clusters)
                claim_of_cluster(sm, all, queries > 0);
            else
                claim_block<PARTS, DECAYED>(sm, all, blocks,
                                            !has_row_matrices<DIM> && listed ? list : unlisted);
        }
        __syncthreads();
        if (sm.block < 0) break;
        if (segmented) divide_keys(sm, work, clusters);
        float *scratch = work.scratch + sm.scratch * (int64_t)solver_scratch(DIM);
        row_weight weight[2];
        if (solve_rows<PARTS, DIM, DECAYED>(sm, count, queries, all, scratch, in_memory(weight))) continue;
        if (segmented && !sm.segments.writes()) continue;
        if constexpr (has_row_matrices<DIM>) {
            put_listed<DIM>(sm, all, row_pair_of(p, sm.rows), weight,
                            scratch_vector<DIM>(scratch, VECTOR_KBAR), 1,
                            scratch_vector<DIM>(scratch, VECTOR_VBAR));
        } else if (threadIdx.x == 0) {
            work.listed[atomicAdd(work.listed_count, 1ull)] = (int32_t)sm.block;
        }
    }
    /* Others may still read sums that lie in this scratch. */
    if (segmented && sm.segments.shared) cluster_sync();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&work.scratch_taken[sm.scratch], 0);
    }
    /* One thread block sees to it that this launch does not end before the one that it overlaps with; the
     * others make room. */
    if (PARTS == 1 && blockIdx.x == 0) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ the launches */

/* Are blocks of rows so few that clusters should take them? All of a cluster compute the vectors of conjugate
 * gradients, which more keys outweigh. */
static bool clusters_pay(const loam_problem *p, int64_t blocks)
{
    enum { KEYS = 4096 };
    const int64_t most = solve_multiprocessors();
    return p->len_kv > (SEGMENTED_TILES - 1) * TILE_SIDE && blocks <= most &&
           blocks * KEYS <= most * p->len_kv;
}

template <int PARTS, int DIM, bool DECAYED>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                               const qkv_maps *maps, bool listed, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = most_solver_blocks<DIM>(*work);
    const bool clusters = is_segmented<PARTS, DIM, DECAYED> && clusters_pay(p, blocks);
    const int64_t grid = clusters ? blocks * SEGMENTS : most < blocks ? most : blocks;
    const unsigned cluster = clusters ? SEGMENTS : 1;
    return cuda_launch_clusters("solved_kernel_hopper", solved_kernel_hopper<PARTS, DIM, DECAYED>, grid,
                                cluster, THREADS, sizeof(solver_shared<DIM, __half>), a->stream, true, error,
                                *p, *a, *saved, *work, blocks, listed, *maps, *copy, *heavy);
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
            TRY((launch_pass<2, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, false, error)));
            TRY((launch_pass<1, DIM, false>(p, a, &saved, &work, &copy, &heavy, &maps, false, error)));
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
