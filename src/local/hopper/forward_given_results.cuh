/* SPDX-License-Identifier: MIT
 * Forward with a given probe on Hopper: the end of a block, from the sums of its rows to memory. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_GIVEN_RESULTS_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_GIVEN_RESULTS_CUH

#include "src/local/hopper/forward_given_stream.cuh"

/* ------------------------------------------------------------------ segments of keys */

/* Begins with the rows of a task that merges segments: as number `received` of those that receive sums, if it
 * is one. */
template <class S>
static __device__ __forceinline__ void begin_segments(given_forward_shared<S> &sm, int w, bool receives,
                                                      unsigned &received)
{
    segment_state &state = sm.segment[threadIdx.x];
    if (!receives) {
        state.total = { { -INFINITY, -INFINITY }, { 0, 0 } };
        state.awaited = NOTHING_AWAITED;
        return;
    }
    state.awaited = received++ % 2;
    if (threadIdx.x % THREADS == 0) barrier_expect(&sm.received[w], S::handed_bytes);
    store_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_cluster(cluster_address(&sm.receives[w], blockIdx.y - 1));
}

/* The sums o of a segment, with the weights `own`, become those of all segments to this one. */
template <class S>
static __device__ __forceinline__ void merge_segment(given_forward_shared<S> &sm, given_forward_sums<S> &sums,
                                                     segment_weights &own)
{
    const segment_state &state = sm.segment[threadIdx.x];
    const unsigned awaited = warp_uniform(state.awaited);
    if (awaited != NOTHING_AWAITED)
        barrier_wait_cluster(&sm.received[warp_uniform(threadIdx.x / THREADS)], awaited);
    merge_segments(sums.o, own, state.total, sm.saved[threadIdx.x / 32].part);
}

/* The sums are those of a segment, and another one begins. */
template <class S>
static __device__ __forceinline__ void close_segment(given_forward_shared<S> &sm, given_forward_sums<S> &sums)
{
    segment_weights own = { { sums.m[0], sums.m[1] }, { sums.omega[0], sums.omega[1] } };
    merge_segment(sm, sums, own);
    store_wait<0>();
    __syncwarp();
    put_segments(sm.saved[threadIdx.x / 32].part, sums.o);
    sm.segment[threadIdx.x].total = own;
    clear_forward_sums(sums);
}

/* Hands sums to the next block of the cluster, as number `sent`. */
template <class S>
static __device__ __forceinline__ void send_segments(given_forward_shared<S> &sm,
                                                     const given_forward_sums<S> &sums,
                                                     const segment_weights &own, unsigned sent)
{
    const unsigned w = warp_uniform(threadIdx.x / THREADS), next = blockIdx.y + 1;
    const uint32_t barrier = cluster_address(&sm.received[w], next);
    barrier_wait_cluster(&sm.receives[w], warp_uniform(sent % 2));
    store_cluster(cluster_address(&sm.segment[threadIdx.x].total, next),
                  { own.m[0], own.m[1], own.omega[0], own.omega[1] }, barrier);
#pragma unroll
    for (int n = 0; n < S::columns / 8; n++) {
        const float(&x)[4] = sums.o[n / 8][n % 8];
        store_cluster(cluster_address(&sm.saved[threadIdx.x / 32].part[n][threadIdx.x % 32], next),
                      { x[0], x[1], x[2], x[3] }, barrier);
    }
}

/* At the end of a task that merges segments: its last segment, and sums that are handed on where others do
 * the rest. Returns whether it is so, else `sums` and omega of row_state are of all keys. */
template <class S>
static __device__ __forceinline__ bool end_segments(given_forward_shared<S> &sm, given_forward_sums<S> &sums,
                                                    bool sends, unsigned &sent)
{
    row_state &state = sm.state[threadIdx.x];
    segment_weights own = { { sums.m[0], sums.m[1] }, { state.omega[0], state.omega[1] } };
    merge_segment(sm, sums, own);
    if (sends) send_segments(sm, sums, own, sent++);
#pragma unroll
    for (int row = 0; row < 2; row++)
        sums.m[row] = own.m[row], state.omega[row] = own.omega[row];
    return sends;
}

/* ------------------------------------------------------------------ results */

/* The sums of the thread's rows become vbar, in o, and value_shift = vbar - o, in b. */
template <class S>
static __device__ __forceinline__ void finish_sums(given_forward_sums<S> &sums, const row_state &state,
                                                   const given_row (&g)[2])
{
    const float inverse[2] = { g[0].inverse, g[1].inverse };
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++)
        scale_rows(sums.o[n], inverse);
    if constexpr (S::probed) {
        float unfold[2] = { inverse[0], inverse[1] };
        if constexpr (given_forward_sums<S>::folded) unfold[0] /= state.fold[0], unfold[1] /= state.fold[1];
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums.b[n / 8][n % 8][e] = sums.b[n / 8][n % 8][e] * unfold[e / 2] -
                                          sums.o[n / 8][n % 8][e] * g[e / 2].rest;
        }
    }
}

/* Saves them for the backward pass; column: the first of theirs. */
template <class S>
static __device__ __forceinline__ void save_sums(const given_forward_sums<S> &sums, const loam_problem &p,
                                                 const local_saved &saved, const row_block &block,
                                                 const row_pair &r, int column)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = local_row(&p, &block.s, block.h, block.i0 + r.at[row]);
        if (!r.real[row]) continue;
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const float(&o)[4] = sums.o[n / 8][n % 8];
            const int c = column + column_of(n, 0);
            save_pair(saved.vbar, line, c, p.dim_v, o[2 * row], o[2 * row + 1]);
            if constexpr (S::probed) {
                const float(&b)[4] = sums.b[n / 8][n % 8];
                save_pair(saved.value_shift, line, c, p.dim_v, b[2 * row], b[2 * row + 1]);
            }
        }
    }
}

/* Whether they are saved by way of shared memory, whose rows bulk copies take to memory during the next
 * block: stores of threads wait for each other. */
template <class S>
static __device__ __forceinline__ bool stages_sums(const loam_problem &p, const loam_args &a)
{
    return S::stages_saved && a.saved && p.dim_v % 4 == 0; /* rows are whole pieces of 16 bytes */
}

template <class S>
static __device__ __forceinline__ void stage_sums(const given_forward_sums<S> &sums,
                                                  given_forward_shared<S> &sm, const row_pair &r)
{
    store_wait<0>();
    __syncwarp();
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const float(&o)[4] = sums.o[n / 8][n % 8];
            *(float2 *)&sm.saved[r.at[row] / 16].row[r.at[row] % 16][column_of(n, 0)] = { o[2 * row],
                                                                                          o[2 * row + 1] };
        }
    }
}

/* A lane copies each of the warp's rows. */
template <class S>
static __device__ __forceinline__ void store_sums(given_forward_shared<S> &sm, const loam_problem &p,
                                                  const local_saved &saved, const row_block &block)
{
    const int lane = threadIdx.x % 32, at = threadIdx.x / 32 * 16 + lane;
    if (lane < 16 && at < block.rows) {
        float *const to = (float *)saved.vbar + local_row(&p, &block.s, block.h, block.i0 + at) * p.dim_v;
        store_bytes(to, sm.saved[at / 16].row[lane], (unsigned)p.dim_v * 4);
    }
    store_commit();
}

/* The outputs, of finished sums, into the tile of the queries. */
template <class S>
static __device__ __forceinline__ void put_output_tile(const given_forward_sums<S> &sums,
                                                       typename S::type *tile, const row_pair &r)
{
#pragma unroll
    for (int n = 0; n < S::columns / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            float2 out = { sums.o[n / 8][n % 8][e], sums.o[n / 8][n % 8][e + 1] };
            if constexpr (S::probed) out.x -= sums.b[n / 8][n % 8][e], out.y -= sums.b[n / 8][n % 8][e + 1];
            *(uint32_t *)(tile + swizzled(r.at[e / 2] % ROWS, column_of(n, 0))) = pack_pair<typename S::type>(
                out.x, out.y);
        }
    }
}

/* Eight numbers of a tile at `out` to `to`, of which `left` are within the array. */
static __device__ __forceinline__ void put_numbers(uint16_t *to, const uint4 &out, int left)
{
    const uint32_t pairs[4] = { out.x, out.y, out.z, out.w };
#pragma unroll
    for (int s = 0; s < 8; s++)
        if (s < left) to[s] = (uint16_t)(pairs[s / 2] >> s % 2 * 16);
}

/* The 16 rows of a warp from the tile of outputs to o, from column `column` on, as boxes. Rows beyond a
 * sequence of its own are beyond the tensor. */
template <class S>
static __device__ __forceinline__ void store_outputs(const typename S::type *tile,
                                                     const given_forward_maps &maps, const row_block &block,
                                                     int dim_v, int column)
{
    if (threadIdx.x % 32 != 0) return;
    const int at = threadIdx.x / 32 * 16;
    tile += at % ROWS * TILE_SIDE;
#pragma unroll
    for (int n = 0; n < S::columns; n += TILE_SIDE) {
        if (column + n < dim_v)
            store_box(&maps.o, tile + n * ROWS, column + n, (int)(block.s.q0 + block.i0) + at, (int)block.h,
                      (int)block.s.b);
    }
    store_commit();
}

/* The same by the lanes. */
template <class S>
static __device__ __forceinline__ void put_outputs(const typename S::type *tile, const loam_problem &p,
                                                   const loam_args &a, const row_block &block, int column)
{
    constexpr int step = 4; /* rows of an access: 8 lanes have 64 columns of one */
    const bool aligned = (uintptr_t)a.o.data % 16 == 0 && a.o.batch % 8 == 0 && a.o.head % 8 == 0 &&
                         a.o.token % 8 == 0 && p.dim_v % 8 == 0;
    const int lane = threadIdx.x % 32, c = lane % 8 * 8, at = threadIdx.x / 32 * 16 + lane / 8;
    const int left = (int)p.dim_v - column - c;
    uint16_t *to = (uint16_t *)a.o.data + LOCAL_AT(a.o, block.s.b, block.h, block.s.q0 + block.i0 + at) +
                   column + c;
#pragma unroll
    for (int k = 0; k < 16; k += step, to += step * a.o.token) {
        if (at + k >= block.rows) break;
#pragma unroll
        for (int n = 0; n < S::columns; n += TILE_SIDE) {
            const uint4 out = *(const uint4 *)(tile + swizzled((at + k) % ROWS, n + c));
            if (!aligned)
                put_numbers(to + n, out, left - n);
            else if (n < left)
                *(uint4 *)(to + n) = out;
        }
    }
}

/* The pair of rows whose state it is. */
static __device__ __forceinline__ row_pair row_pair_again(const row_state &state, const row_block &block)
{
    row_pair r;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        r.at[e] = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * e;
        r.real[e] = r.at[e] < block.rows;
        r.lo[e] = state.lo[e], r.hi[e] = state.hi[e];
        r.position[e] = 0;
    }
    return r;
}

/* Of both rows of the thread, without branches, so that one goes beside the other: the end of a block is a
 * chain that nothing overlaps with. */
template <class S>
static __device__ __forceinline__ void finish_rows(given_row (&g)[2], const given_forward_sums<S> &sums,
                                                   const row_state &state, const loam_problem &p,
                                                   const loam_args &a, int64_t h)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float omega = quad_sum(state.omega[row]);
        const float lse = (sums.m[row] + __log2f(omega)) * (float)LN2;
        const bool any = omega > 0;
        g[row].inverse = any ? __fdividef(1, omega) : 0;
        g[row].rest = S::probed ? quad_sum(sums.tsum[row]) * g[row].inverse : 0;
        g[row].lse = g[row].full_lse = any ? lse : -INFINITY;
        given_sink(g[row], 0, p, a, h);
    }
}

/* Writes what a row has once: info, lse, and what is saved of it. The keys are as they lie, so that the two
 * lse are one. */
template <class S>
static __device__ __forceinline__ void put_rows(const given_row (&g)[2], const float (&centre)[2],
                                                const loam_problem &p, const loam_args &a,
                                                const local_saved &saved, const row_block &x,
                                                const row_pair &r)
{
    const int64_t i = x.i0 + r.at[0], line = local_row(&p, &x.s, x.h, i);
    float *const lse = (float *)a.lse.data + LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i);
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const bool empty = r.lo[row] >= r.hi[row];
        const loam_row_info info = { empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
        if (!r.real[row]) continue;
        put_info(a, x, i + 8 * row, info);
        if (a.lse.data) lse[8 * row * a.lse.token] = g[row].lse;
        if (a.saved) ((float *)saved.lse)[line + 8 * row] = g[row].lse;
        if (S::probed && a.saved) ((float2 *)saved.tbar)[line + 8 * row] = { centre[row], g[row].rest };
    }
}

/* The outputs of a warp from the tile in which they are, and what is saved. */
template <class S>
static __device__ __forceinline__ void put_tiles(given_forward_shared<S> &sm, const loam_problem &p,
                                                 const loam_args &a, const local_saved &saved,
                                                 const given_forward_maps &maps, const given_task<S> &task,
                                                 const typename S::type *tile)
{
    const row_block &block = task.block;
    const int left = block.rows - (int)threadIdx.x / 32 * 16;
    if (left <= 0) return;
    if (maps.stores_boxes && (left >= 16 || !sequence_packed(&p)))
        store_outputs<S>(tile, maps, block, (int)p.dim_v, task.column);
    else
        put_outputs<S>(tile, p, a, block, task.column);
    if constexpr (S::stages_saved) {
        if (stages_sums<S>(p, a)) store_sums(sm, p, saved, block);
    }
}

template <class S>
static __device__ __forceinline__ void epilogue(given_forward_sums<S> &sums, given_forward_shared<S> &sm,
                                                const loam_problem &p, const loam_args &a,
                                                const local_saved &saved, const given_forward_maps &maps,
                                                given_task<S> &task, unsigned stage)
{
    const row_block &block = task.block;
    const int w = threadIdx.x / THREADS;
    const row_state &state = sm.state[threadIdx.x];
    const row_pair r = row_pair_again(state, block);
    given_row g[2];
    finish_rows(g, sums, state, p, a, block.h);
    finish_sums(sums, state, g);
    if constexpr (given_forward_sums<S>::folded) {
        if (!task.folds && __any_sync(0xffffffffu, !all_finite(sums.b))) {
            task.overflows = true;
            return;
        }
    }
    if constexpr (S::stages_saved) {
        if (stages_sums<S>(p, a)) stage_sums(sums, sm, r);
    }
    if (a.saved && !stages_sums<S>(p, a)) save_sums(sums, p, saved, block, r, task.column);
    put_output_tile(sums, sm.query[w][stage], r);
    fence_async_proxy();
    __syncwarp();
    put_tiles(sm, p, a, saved, maps, task, sm.query[w][stage]);
    if (task.column != 0) return;
    put_rows<S>(g, sums.centre, p, a, saved, block, r);
#pragma unroll
    for (int row = 0; row < 2 && a.rho.data; row++) {
        if (!r.real[row]) continue;
        put_given_probe<S::probed>(p, a, block, r, row, [&](int c) {
            return sm.probe[S::probed ? w : 0][stage][swizzled(r.at[row] % ROWS, c)];
        });
    }
}

/* Releases the queries of block number `count`, in whose place outputs were. staged: a group of stores of
 * what is saved follows that of the outputs. */
template <class S>
static __device__ __forceinline__ void release_rows(given_forward_shared<S> &sm, int w, unsigned count,
                                                    bool staged)
{
    if (threadIdx.x % 32 == 0) {
        if (staged)
            store_wait<1>();
        else
            store_wait<0>();
    }
    fence_async_proxy();
    ring_release(sm.row_ring[w], count);
}

#endif
