/* SPDX-License-Identifier: MIT
 *
 * The last sweep of the rows in the backward of Local Linear Attention on Hopper: dq, the residual of the
 * adjoint solve, records and sums of the rows, in one bf16 part or two. For each pair, with g = do . v,
 * t = y . kappa and u = rho . kappa:
 *
 *     E = g - gbar + t,   ds = p ((1 - u) E + e),   dq = scale sum ds k - y
 *
 * Before it: the shared memory of a block of 64 rows in the backward pass, the sums of its sweeps, and the
 * tiles that stream past it.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_PAIRS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_PAIRS_CUH

#include "src/local/cuda/backward.h"
#include "src/local/hopper/channels.cuh"
#include "src/local/hopper/head_extremes.cuh"
#include "src/local/hopper/heavy_work.cuh"
#include "src/local/hopper/row_records.cuh"

/* Operands of the backward pass are bf16, but for blocks that row matrices have solved. */
template <int DIM, bool DECAYED, class T = __nv_bfloat16> using pairs_system = block_system<DIM, DECAYED, T>;
template <int DIM, class T = __nv_bfloat16> using pairs_shared = solver_shared<DIM, T>;

struct row_pass_maps {
    qkv_maps all;
    CUtensorMap grad_o;
};

/* ------------------------------------------------------------------ shared memory */

/* Stages of the ring in which the last sweep has tiles of rows: do in the last one, the lo parts of y and rho
 * in the two before. The hi parts of y and rho are where the solver has its direction. Keys and values
 * alternate in the other stages. */
template <int DIM> struct pair_stages {
    static constexpr unsigned grad_o = ring_stages<DIM> - 1, y = grad_o - 1, rho = grad_o - 2;
};

template <int DIM> struct pair_barriers {
    uint64_t full[ring_stages<DIM> - 1];
};

/* The offset of pair_barriers: behind all that the solver has in shared memory. */
template <int DIM> constexpr size_t pair_barriers_at = offsetof(pairs_shared<DIM>, rows) + sizeof(row_block);
template <int DIM> constexpr size_t rows_shared_bytes = pair_barriers_at<DIM> + sizeof(pair_barriers<DIM>);

/* One thread begins the barriers of the last sweep. */
template <int DIM, class T>
static __device__ __forceinline__ void init_pair_barriers(pairs_shared<DIM, T> &sm)
{
    pair_barriers<DIM> *const pairs = (pair_barriers<DIM> *)((char *)&sm + pair_barriers_at<DIM>);
    for (int n = 0; n < (int)ring_stages<DIM> - 1; n++)
        barrier_init(&pairs->full[n], 1);
    barrier_init(&sm.query_full, 1);
    fence_async_proxy();
}

/* Entries that have gone through the solver's ring; fillings of the tiles of rows; a bit for each stage of
 * the last sweep, the parity of its next filling. */
struct rows_count {
    ring_count ring;
    unsigned rows, parity;
};

/* ------------------------------------------------------------------ a block of rows */

/* Sums of the sweeps for the thread's rows. */
struct rows_sums {
    float gbar[2]; /* do . vbar */
    float rest[2]; /* sum p (g - gbar): 0 but for rounding */
    float best[2]; /* the highest score to base 2, where it is wanted; else in fp16 the largest weight */
    int peak[2];   /* and the first key that has it; else -1 */
    float scale[2], mean[2]; /* sum ds (x - middle), sum p (x - middle), x = q . k, of the thread's columns */
    float total[2];          /* sum ds of the thread's columns, where scores decay */
};

/* Blocks of float16 with 128 dimensions that a launch of steps in two parts has solved: the last sweep would
 * leave these steps too few registers. Number n of the list has place row_blocks - 1 - n of heavy_work, whose
 * own list begins at 0. gone: how many thread blocks of the launch have ended. */
struct ended_blocks {
    int64_t *next;
    unsigned long long *count, *gone;
    int32_t *block;
};

/* What the launches share. */
struct rows_plan {
    local_saved saved;
    row_arrays rows;
    solve_work work;
    row_pass_maps maps;
    half_copy copy;
    heavy_work heavy;
    ended_blocks ended[2];   /* of the blocks with few keys, and of those that one part was not enough for */
    head_extremes *extremes; /* [batch][heads_kv]; of float16 */
};

/* Queues what follows from the solution of the blocks that row matrices have solved. The maps of the plan are
 * those of the copies in fp16. */
loam_status rows_solved(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error);

/* Likewise of the first list of ended blocks, of a launch of so many thread blocks, beside the last blocks of
 * the launch that has been queued after it, if any. */
loam_status rows_ended(const loam_problem *p, const loam_args *a, const rows_plan *plan, int64_t launched,
                       loam_error *error);

/* Queues the launches for tiles of 256 channels, of bfloat16 and of float16. */
loam_status rows_wide(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error);
loam_status half_rows_wide(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                           loam_error *error);

/* What all blocks of a launch share. */
struct rows_launch {
    const loam_problem &p;
    const loam_args &a;
    const local_saved &saved;
    const row_arrays &arrays;
    const solve_work &work;
    const row_pass_maps &maps;
    const half_copy *copy; /* with row matrices: of the keys, and the blocks that these solve */
    const heavy_work *heavy;
    const ended_blocks *ended;
    head_extremes *extremes; /* NULL where nothing asks for them */
};

/* A copy of the system for one pass (system_in_registers), and what else the passes of backward need. The
 * system's own rows and ridge stay those in memory: if it referred to members beside it, the compiler would
 * hold all of this in memory too. */
template <int DIM, bool DECAYED, class T = __nv_bfloat16> struct rows_system {
    static constexpr int dim = DIM;
    typedef row_targets<T> row_queries;
    const row_pair r;
    const row_ridge ridge;
    const pairs_system<DIM, DECAYED, T> sys;
    const rows_launch &all;
    rows_count &count;

    __device__ __forceinline__ rows_system(const pairs_system<DIM, DECAYED, T> &from,
                                           const rows_launch &launch, rows_count &counts)
        : r(from.r), ridge(from.ridge), sys(system_in_registers(from, from.r, from.ridge)), all(launch),
          count(counts)
    {
    }
    __device__ __forceinline__ bool is_f16() const { return sys.p.dtype == LOAM_F16; }
    __device__ __forceinline__ T *stage(unsigned n) const { return sys.sm.stage[n]; }
    /* The same for products, and the queries and a part of the direction. */
    __device__ __forceinline__ const T *operand(unsigned n) const { return operand_tile<DIM>(stage(n)); }
    __device__ __forceinline__ const T *queries() const { return operand_tile<DIM>(sys.sm.query); }
    __device__ __forceinline__ const T *direction(int part) const
    {
        return operand_tile<DIM>(sys.sm.direction[part]);
    }
    __device__ __forceinline__ uint64_t *full(unsigned n) const
    {
        return ((pair_barriers<DIM> *)((char *)&sys.sm + pair_barriers_at<DIM>))->full + n;
    }
    /* The index of the thread's row in arrays over rows. */
    __device__ __forceinline__ int64_t line(int row) const
    {
        return local_row(&sys.p, &sys.block.s, sys.block.h, sys.block.i0 + r.at[row]);
    }
    /* The query, in units of the keys. */
    __device__ __forceinline__ row_targets<T> targets() const
    {
        return { sys.sm.query, { r.at[0], r.at[1] }, { sys.query_unit[0], sys.query_unit[1] } };
    }
    __device__ __forceinline__ row_lambdas lambdas() const
    {
        return { sys.vector(VECTOR_RIDGE), ridge.channels, { ridge.number[0], ridge.number[1] } };
    }
    /* Lambda of element `at` of the thread's rows. */
    __device__ __forceinline__ float lambda(int at) const
    {
        return ridge.channels ? sys.vector(VECTOR_RIDGE).get(at) : ridge.number[at / 2 % 2];
    }
};

/* x in one fp16 part, but for its range. */
static __device__ __forceinline__ float one_part(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

/* One thread issues the copies of the 64 rows into a tile; they complete on query_full. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void load_row_tile(const pairs_system<DIM, DECAYED, T> &sys, T *tile,
                                                     const CUtensorMap &map)
{
    const row_block &block = sys.block;
    load_tile<DIM>(tile, map, &sys.sm.query_full, (int)(block.s.q0 + block.i0), (int)block.h, (int)block.s.b);
}

/* Adds the weights, as rounded to their parts, to total: sums of the thread's columns. */
template <int PARTS, int STEPS, class T>
static __device__ __forceinline__ void add_weights(float (&total)[2],
                                                   const weights_operand<PARTS, STEPS, T> &w)
{
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 pair = unpack_pair<T>(w.part[part][k][e]);
                total[e % 2] += pair.x + pair.y;
            }
        }
    }
}

/* The stream of tiles past the last sweep: values and keys in turn, or keys alone, through the first STAGES
 * stages of the ring. wait() waits for the next tile. */
template <int DIM, bool DECAYED, unsigned STAGES, bool VALUES, class T = __nv_bfloat16> struct pair_stream {
    const rows_system<DIM, DECAYED, T> &rs;
    unsigned count, waited, released, parity;

    __device__ __forceinline__ pair_stream(const rows_system<DIM, DECAYED, T> &system)
        : rs(system), waited(0), released(0), parity(rs.count.parity)
    {
        const row_block &block = rs.sys.block;
        count = (unsigned)((block.last - block.first + TILE_SIDE - 1) / TILE_SIDE) * (VALUES ? 2 : 1);
        if (threadIdx.x == 0)
            for (unsigned n = 0; n < STAGES && n < count; n++)
                load(n);
    }
    __device__ __forceinline__ int key_of(unsigned n) const
    {
        return rs.sys.block.first + (int)(VALUES ? n / 2 : n) * TILE_SIDE;
    }
    __device__ __forceinline__ void load(unsigned n) const
    {
        const row_block &block = rs.sys.block;
        const unsigned stage = n % STAGES;
        const CUtensorMap &map = VALUES && n % 2 == 0 ? rs.all.maps.all.v : rs.all.maps.all.k;
        barrier_expect(rs.full(stage), DIM * TILE_SIDE * 2);
        load_tile<DIM>(rs.stage(stage), map, rs.full(stage), (int)block.s.k0 + key_of(n), (int)block.h_kv,
                       (int)block.s.b);
    }
    __device__ __forceinline__ const T *wait()
    {
        const unsigned stage = waited % STAGES;
        barrier_wait(rs.full(stage), parity >> stage & 1);
        parity ^= 1u << stage;
        const int left = (int)rs.sys.block.s.nk - key_of(waited);
        if (left < TILE_SIDE) {
            clear_tail_block<DIM>(rs.stage(stage), left);
            fence_async_proxy();
            __syncthreads();
        }
        waited++;
        return rs.operand(stage);
    }
    /* All products with the first `used` tiles have ended: their stages are filled again. */
    __device__ __forceinline__ void release(unsigned used)
    {
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned n = released; n < used; n++)
                if (n + STAGES < count) load(n + STAGES);
        }
        released = used;
    }
    __device__ __forceinline__ void finish() const { rs.count.parity = parity; }
};

/* ------------------------------------------------------------------ the last sweep */

/* Constants of a row in the formulas of its pairs. */
struct pair_rows {
    float error[2];     /* gbar + y . kbar: E = do . v + y . k - error */
    float u[2], one[2]; /* 1 - u = one - (rho . k - u): in two parts, rho . kbar may be so large that its sum
                         * with 1 would lose 1 */
    float e[2];         /* -y . Lambda rho */
    float middle[2];    /* an x = q . k between the mean and the largest, from which x counts in sums */
    /* Where the unit of the ridge is the largest p, e is 0, and -y . Lambda rho is for the key that has this
     * p. */
    bool by_max;
    int peak[2];
    float at_peak[2];
};

/* p of one pair from its product q . k. Where the gradient of the scale is wanted (SCALED) the products are
 * kept, and p is computed from them at each use. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ float score_weight(const pairs_system<DIM, DECAYED> &sys, float product,
                                                     int row, int j)
{
    float score = product * sys.scale2[row];
    if constexpr (DECAYED) {
        const local_decay_pair *const sums = decay_sums(sys.a, sys.block.s, sys.block.h);
        score += decay_log2(row_decay(sums, sys.r.hi[row]), sums[j]);
    }
    const float p = exp2_fast(fminf(score - sys.lse2[row], 0));
    return sys.seen(row, j) ? p : 0;
}

/* The products s = q . k become p (SCALED: are kept), and g = do . v + y . k becomes p E. */
template <bool SCALED, int BLOCKS, int DIM, bool DECAYED>
static __device__ __forceinline__ void pair_errors(float (&s)[BLOCKS][4], float (&g)[BLOCKS][4],
                                                   const pairs_system<DIM, DECAYED> &sys,
                                                   const pair_rows &own, int j)
{
    if constexpr (!SCALED) score_weights(s, sys, j);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = SCALED ? score_weight(sys, s[n][e], e / 2, j + column_of(n, e)) : s[n][e];
            g[n][e] = p * (g[n][e] - own.error[e / 2]);
        }
    }
}

/* The products u = rho . k become ds, from f = p E and s, which is p (SCALED: q . k). */
template <int PARTS, bool SCALED, int BLOCKS, int DIM, bool DECAYED>
static __device__ __forceinline__ void pair_gradients(float (&u)[BLOCKS][4], const float (&s)[BLOCKS][4],
                                                      const float (&f)[BLOCKS][4],
                                                      const pairs_system<DIM, DECAYED> &sys,
                                                      const pair_rows &own, rows_sums &sum, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            const float p = SCALED ? score_weight(sys, s[n][e], row, j + column_of(n, e)) : s[n][e];
            const float from_centre = PARTS == 2 ? u[n][e] - own.u[row] : u[n][e];
            u[n][e] = f[n][e] * (own.one[row] - from_centre) + p * own.e[row];
        }
    }
    if (own.by_max) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                u[n][e] += j + column_of(n, e) == own.peak[e / 2] ? own.at_peak[e / 2] : 0;
        }
    }
    if constexpr (DECAYED) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum.total[e / 2] += u[n][e];
        }
    }
    if (SCALED) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                const float p = score_weight(sys, s[n][e], row, j + column_of(n, e)),
                            x = s[n][e] - own.middle[row];
                sum.scale[row] += p != 0 ? u[n][e] * x : 0;
                sum.mean[row] += p != 0 ? p * x : 0;
            }
        }
    }
}

/* f: the weights as rounded to bf16. */
static __device__ __forceinline__ void unpack_weights(float (&f)[8][4], const weights_operand<1> &w)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const uint32_t pair = w.part[0][n / 2][n % 2 * 2 + e / 2];
            f[n][e] = __uint_as_float(pair << 16);
            f[n][e + 1] = __uint_as_float(pair & 0xffff0000u);
        }
    }
}

/* q = sum ds k and r = sum p E k; inner and total are the sums of these weights as rounded (this thread's
 * columns). At 128 dimensions there are no registers for three products beside both accumulators: u = rho . k
 * is then issued late, and p and p E are rounded to bf16 meanwhile. */
template <bool SCALED, int DIM, bool DECAYED>
static __device__ __forceinline__ void pair_sums_one_part(float (&q)[DIM / TILE_SIDE][8][4],
                                                          float (&r)[DIM / TILE_SIDE][8][4],
                                                          float (&inner)[2], float (&total)[2],
                                                          const rows_system<DIM, DECAYED> &rs,
                                                          const pair_rows &own, rows_sums &sum)
{
    constexpr bool late = DIM > 64;
    static_assert(!(late && SCALED), "p in one part will not do");
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    pair_stream<DIM, DECAYED, pair_stages<DIM>::grad_o, true> stream(rs);
    clear_sums<DIM>(q);
    clear_sums<DIM>(r);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __nv_bfloat16 *const values = stream.wait(), *const keys = stream.wait();
        float s[8][4], g[8][4], u[8][4];
        weights_operand<1> p, f, ds;
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        more_rows<DIM>(g, rs.stage(pair_stages<DIM>::grad_o), values, false);
        more_rows<DIM>(g, sys.sm.direction[0], keys, true);
        if (!late) more_rows<DIM>(u, sys.sm.direction[1], keys, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        if (late) stream.release(stream.waited - 1);
        pair_errors<SCALED>(s, g, sys, own, j);
        split_weights(f, g);
        add_weights(total, f);
        if (late) {
            split_weights(p, s);
            multiply_rows<DIM>(u, sys.sm.direction[1], keys, false);
            more_weights<DIM>(r, f.part[0], keys);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(r);
            unpack_weights(g, f);
            unpack_weights(s, p);
        }
        wgmma_results(u);
        pair_gradients<1, SCALED>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[0], keys);
        if (!late) more_weights<DIM>(r, f.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(r);
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* Issues u = rho . k and t (+)= y . k, with both parts of rho and y, after other products and without a
 * wgmma_fence. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void multiply_two_parts(float (&u)[8][4], float (&t)[8][4],
                                                          const rows_system<DIM, DECAYED> &rs,
                                                          const __nv_bfloat16 *keys, bool add)
{
    more_rows<DIM>(u, rs.operand(pair_stages<DIM>::rho), keys, false);
    more_rows<DIM>(u, rs.direction(1), keys, true);
    more_rows<DIM>(t, rs.operand(pair_stages<DIM>::y), keys, add);
    more_rows<DIM>(t, rs.direction(0), keys, true);
}

/* rho_rest and y_rest: the means of u and t under p, which are the errors of the centres rho_kbar and y_kbar.
 * With them u and t are exact relative to their own size, also where one key has nearly all the weight and
 * rho is large. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void centre_errors(row_scalars (&rec)[2],
                                                     const rows_system<DIM, DECAYED> &rs)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    float omega[2] = { 0, 0 }, rho[2] = { 0, 0 }, y[2] = { 0, 0 };
    pair_stream<DIM, DECAYED, pair_stages<DIM>::rho, false> stream(rs);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        const __nv_bfloat16 *const keys = stream.wait();
        float s[8][4], u[8][4], t[8][4];
        multiply_rows<DIM>(s, rs.queries(), keys, false);
        multiply_two_parts(u, t, rs, keys, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(u);
        wgmma_results(t);
        stream.release(stream.waited);
        score_weights(s, sys, j);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = e / 2;
                omega[row] += s[n][e];
                rho[row] += s[n][e] * (u[n][e] - rec[row].rho_kbar);
                y[row] += s[n][e] * (t[n][e] - rec[row].y_kbar);
            }
        }
    }
    stream.finish();
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(omega[row]), inverse = sum > 0 ? 1 / sum : 0;
        rec[row].rho_rest = quad_sum(rho[row]) * inverse;
        rec[row].y_rest = quad_sum(y[row]) * inverse;
    }
}

/* The same in two parts, without r. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void pair_sums_two_parts(float (&q)[DIM / TILE_SIDE][8][4],
                                                           float (&inner)[2],
                                                           const rows_system<DIM, DECAYED> &rs,
                                                           const pair_rows &own, rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    pair_stream<DIM, DECAYED, pair_stages<DIM>::rho, true> stream(rs);
    clear_sums<DIM>(q);
    while (stream.waited < stream.count) {
        const int j = stream.key_of(stream.waited);
        float s[8][4], g[8][4], u[8][4];
        weights_operand<2> ds;
        const __nv_bfloat16 *const values = stream.wait();
        multiply_rows<DIM>(g, rs.stage(pair_stages<DIM>::grad_o), values, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(g);
        stream.release(stream.waited);
        const __nv_bfloat16 *const keys = stream.wait();
        multiply_rows<DIM>(s, sys.sm.query, keys, false);
        multiply_two_parts(u, g, rs, keys, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s);
        wgmma_results(g);
        wgmma_results(u);
        pair_errors<true>(s, g, sys, own, j);
        pair_gradients<2, true>(u, s, g, sys, own, sum, j);
        split_weights(ds, u);
        add_weights(inner, ds);
        multiply_weights<DIM>(q, ds.part[1], keys);
        more_weights<DIM>(q, ds.part[0], keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(q);
        stream.release(stream.waited);
    }
    stream.finish();
}

/* Fragments of y from n on: from the scratch, rounded to one part, or, where PARTS is 2, from the
 * direction. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void load_solution(row_fragments &y, const pairs_system<DIM, DECAYED> &sys,
                                                     const cg_rows &cg, int n)
{
    if (PARTS == 1) load_lanes(y, sys.vector(VECTOR_X), n);
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float2 x = PARTS == 2 ? direction_pair<2>(sys, n + k, 2 * row) : y[k][row];
            const float2 whole = { cg.unit[row] * x.x, cg.unit[row] * x.y };
            y[k][row] = PARTS == 2 ? whole : make_float2(rounded<1>(whole.x), rounded<1>(whole.y));
        }
    }
}

/* Stores two channels of rho and of y at element `at` of their tiles. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void store_directions(const rows_system<DIM, DECAYED, T> &rs, int at,
                                                        const float2 &rho, const float2 &y)
{
    uint32_t rho_part[2], y_part[2];
    split_pair<T>(rho_part, rho.x, rho.y);
    split_pair<T>(y_part, y.x, y.y);
    *(uint32_t *)(rs.sys.sm.direction[1] + at) = rho_part[0];
    *(uint32_t *)(rs.sys.sm.direction[0] + at) = y_part[0];
    if (PARTS == 2) {
        *(uint32_t *)(rs.stage(pair_stages<DIM>::rho) + at) = rho_part[1];
        *(uint32_t *)(rs.stage(pair_stages<DIM>::y) + at) = y_part[1];
    }
}

/* Writes the tiles of y and rho, y itself and the gradient of the ridge; makes the records of the thread's
 * rows. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void fill_pair_rows(const rows_system<DIM, DECAYED> &rs, const cg_rows &cg,
                                                      const rows_sums &sum, row_scalars (&rec)[2])
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    const row_vectors rhos = key_rows(rs, rs.all.saved.rho), ys = key_rows(rs, rs.all.arrays.y);
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const row_lambdas lambdas = rs.lambdas();
    const int own[2] = { rs.r.at[0], rs.r.at[1] };
    row_products products = {};
#pragma unroll 1
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments rho, y, mean, lambda;
        rhos.load(rho, n);
        load_lanes(mean, kbar, n);
        lambdas.load(lambda, n);
        load_solution<PARTS>(y, sys, cg, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int at = swizzled(own[row], column_of(n + k, 0));
                store_directions<PARTS>(rs, at, rho[k][row], y[k][row]);
                products.add(row, rho[k][row], y[k][row], mean[k][row], lambda[k][row]);
            }
        }
        ys.store(y, n);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        rec[row] = begin_record(rs, products, row, sys.lse2[row]);
        rec[row].gbar = sum.gbar[row], rec[row].gbar_rest = sum.rest[row], rec[row].peak = sum.peak[row];
    }
    put_channel_ridges(rs);
}

/* The constants of the pairs from the records of the rows. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ pair_rows pair_rows_of(const pairs_system<DIM, DECAYED> &sys,
                                                         const row_scalars (&rec)[2])
{
    const float scale = (float)sys.p.scale;
    pair_rows own;
    own.by_max = sys.p.ridge_unit == LOAM_RIDGE_MAX;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const row_scalars &r = rec[row];
        const float middle = r.lo < r.hi && scale != 0 ? (r.lse - logf((float)(r.hi - r.lo))) / scale : 0;
        own.error[row] = r.gbar + r.gbar_rest + r.y_kbar + r.y_rest;
        own.u[row] = PARTS == 2 ? r.rho_kbar : 0;
        own.one[row] = 1 + (PARTS == 2 ? 0 : r.rho_kbar) + r.rho_rest;
        own.e[row] = own.by_max ? 0 : r.e;
        own.peak[row] = r.peak, own.at_peak[row] = r.e;
        own.middle[row] = fabsf(middle) < 1e30f ? middle : 0;
    }
    return own;
}

/* Begins the last sweep: do is copied into its stage while the threads fill the other tiles of rows. */
template <int PARTS, int DIM, bool DECAYED>
static __device__ __forceinline__ void begin_pairs(const rows_system<DIM, DECAYED> &rs, const cg_rows &cg,
                                                   rows_sums &sum, row_scalars (&rec)[2])
{
    if (threadIdx.x == 0) {
        barrier_expect(&rs.sys.sm.query_full, DIM * TILE_SIDE * 2);
        load_row_tile(rs.sys, rs.stage(pair_stages<DIM>::grad_o), rs.all.maps.grad_o);
    }
    sum.scale[0] = sum.scale[1] = sum.mean[0] = sum.mean[1] = sum.total[0] = sum.total[1] = 0;
    fill_pair_rows<PARTS>(rs, cg, sum, rec);
    fence_async_proxy();
    __syncthreads();
    barrier_wait(&rs.sys.sm.query_full, rs.count.rows++ % 2);
}

/* Writes dq = scale (q - inner kbar) - y. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_query_gradient(const rows_system<DIM, DECAYED> &rs,
                                                          const float (&q)[DIM / TILE_SIDE][8][4],
                                                          const float (&inner)[2])
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    const row_vectors ys = key_rows(rs, rs.all.arrays.y);
    const float scale = (float)sys.p.scale;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const bool real[2] = { sys.r.real[0], sys.r.real[1] };
    const int channels = (int)sys.p.dim_qk;
    uint16_t *const to[2] = { query_gradient(rs, 0), query_gradient(rs, 1) };
#pragma unroll
    for (int n = 0; n < DIM / 8; n += TOGETHER) {
        row_fragments y, mean;
        ys.load(y, n);
        load_lanes(mean, kbar, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float *const sums = &q[(n + k) / 8][(n + k) % 8][2 * row];
                if (real[row])
                    store_channels((__nv_bfloat16 *)to[row], column_of(n + k, 0), channels,
                                   scale * (sums[0] - inner[row] * mean[k][row].x) - y[k][row].x,
                                   scale * (sums[1] - inner[row] * mean[k][row].y) - y[k][row].y);
            }
        }
    }
}

/* Writes dq, and the sums of the rows. inner: sum ds of this thread's columns. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void put_pairs(const rows_system<DIM, DECAYED> &rs,
                                                 const float (&q)[DIM / TILE_SIDE][8][4], float (&inner)[2],
                                                 rows_sums &sum)
{
    const pairs_system<DIM, DECAYED> &sys = rs.sys;
    const loam_args &a = sys.a;
    const lane_vector kbar = sys.vector(VECTOR_KBAR);
    const float scale = (float)sys.p.scale;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        inner[row] = quad_sum(inner[row]);
        /* sum ds is 0 but for rounding: the difference is subtracted at the mean x, and in dq at the mean
         * key. */
        const float rest = inner[row] * quad_sum(sum.mean[row]);
        sum.scale[row] = quad_sum(sum.scale[row]) - (fabsf(rest) < INFINITY ? rest : 0);
        if (sys.r.real[row] && threadIdx.x % 4 == 0)
            rs.all.arrays.sums.scale[rs.line(row)] = (double)sum.scale[row];
        if constexpr (DECAYED) {
            const float ds = quad_sum(sum.total[row]);
            if (sys.r.real[row] && threadIdx.x % 4 == 0) rs.all.arrays.sums.inner[rs.line(row)] = (double)ds;
        }
    }
    if (a.grad_q.data) put_query_gradient(rs, q, inner);
}

#endif
