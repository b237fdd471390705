/* SPDX-License-Identifier: MIT
 *
 * Forward with a given probe (0 or args.probe) on Hopper: the sums of local/cuda/given.cuh, for bf16, dot
 * scores that may decay but have no other bias, and head dimensions 64 and 128.
 *
 * Persistent blocks, one on each multiprocessor, go through blocks of 128 rows. Two consumer warpgroups have
 * 64 rows each, from the scores to the output. Each goes through the tiles at its own pace: the exponentials
 * of one overlap with the products of the other. Without a probe, the product of a tile's weights with its
 * values also overlaps with the weights of the next tile. The last warpgroup produces: one warp copies keys
 * and values, one thread the rows, and one warp computes decays. Scores and their maxima are to base 2.
 */
#include "src/gpu/blocks.cuh"
#include "src/gpu/ring.cuh"
#include "src/local/cuda/forward.h"
#include "src/local/cuda/given.cuh"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/maps.cuh"

template <int DIM, bool PROBED> struct given_forward_shape {
    static constexpr int consumers = 2;                          /* warpgroups of 64 rows */
    static constexpr int keys = PROBED && DIM == 128 ? 64 : 128; /* of a tile */
    static constexpr int stages = DIM == 64 || PROBED ? 4 : 2;
    static constexpr int rows = consumers * ROWS;
    static constexpr int threads = (consumers + 1) * THREADS;
};

/* What a thread keeps of its two rows in shared memory: keys lo .. hi - 1 that they see, for the few tiles
 * that need a mask, and omega of its columns. The store of omega with every tile also serves scheduling: the
 * compiler moves arithmetic beyond a wait for products, but no volatile store, so that the arithmetic which
 * leads to the store overlaps with the products. */
struct row_state {
    int lo[2], hi[2];
    volatile float omega[2];
};

template <int DIM, bool PROBED, bool DECAYED> struct given_forward_shared {
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    /* The rows of each warpgroup; their outputs overwrite their queries. */
    alignas(1024) __nv_bfloat16 query[tile_shape::consumers][DIM * TILE_SIDE];
    __nv_bfloat16 probe[PROBED ? tile_shape::consumers : 1][PROBED ? DIM * TILE_SIDE : 512];
    __nv_bfloat16 keys[tile_shape::stages][DIM * tile_shape::keys],
        values[tile_shape::stages][DIM * tile_shape::keys];
    ring_barriers<tile_shape::stages> key_ring, value_ring;
    ring_barriers<1> row_ring[tile_shape::consumers];
    uint64_t tail;
    row_state state[tile_shape::consumers * THREADS];
    relative_decay<DECAYED, tile_shape::keys> decay[tile_shape::stages]; /* of the keys in each stage */
};

struct given_forward_maps {
    CUtensorMap q, k, v, probe;
};

/* ------------------------------------------------------------------ copies */

/* The producer thread of rows: queries and probes of each warpgroup, when it has released those before. */
template <int DIM, bool PROBED, bool DECAYED>
static __device__ __forceinline__ void produce_rows(given_forward_shared<DIM, PROBED, DECAYED> &sm,
                                                    const loam_problem &p, const loam_args &a,
                                                    const given_forward_maps &maps, unsigned blocks)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    unsigned row_count = 0;
    for_each_block(blocks, [&](unsigned n) {
        const row_block block = row_block_at<tile_shape::rows>(p, a, n);
        if (block.rows <= 0) return;
        for (int w = 0; w < tile_shape::consumers; w++) {
            const int64_t token = block.s.q0 + block.i0 + w * ROWS;
            uint64_t *full = ring_acquire(sm.row_ring[w], row_count, (PROBED ? 2 : 1) * DIM * ROWS * 2);
            load_tile<DIM>(sm.query[w], maps.q, full, (int)token, (int)block.h, (int)block.s.b);
            if (PROBED)
                load_tile<DIM>(sm.probe[w], maps.probe, full, (int)token, (int)block.h, (int)block.s.b);
        }
        row_count++;
    });
}

/* Rows `from` .. KEYS - 1 of a tile become 0; the lanes of a warp share the work. */
template <int DIM, int KEYS> static __device__ __forceinline__ void clear_tail(__nv_bfloat16 *tile, int from)
{
    const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int c = 0; c < DIM; c += TILE_SIDE) {
#pragma unroll 1
        for (int e = from * TILE_SIDE + threadIdx.x % 32 * 8; e < KEYS * TILE_SIDE; e += 32 * 8)
            *(uint4 *)(tile + c * KEYS + e) = zeros;
    }
}

/* The producer warp of keys and values. Values beyond the last key that the block sees may be NaN (beyond the
 * sequence, anything), which weights of 0 do not cancel. So the last tile of values completes on `tail`
 * first; the warp clears the rows beyond the last key and then arrives at the full barrier. */
template <int DIM, bool PROBED, bool DECAYED>
static __device__ __forceinline__ void produce_tiles(given_forward_shared<DIM, PROBED, DECAYED> &sm,
                                                     const loam_problem &p, const loam_args &a,
                                                     const given_forward_maps &maps, unsigned blocks)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    constexpr unsigned bytes = DIM * tile_shape::keys * 2;
    const bool first = threadIdx.x % 32 == 0;
    unsigned count = 0, tails = 0;
    for_each_block(blocks, [&](unsigned n) {
        const row_block block = row_block_at<tile_shape::rows>(p, a, n);
        for (int j = block.first; j < block.last; j += tile_shape::keys, count++) {
            const unsigned stage = count % tile_shape::stages;
            const int64_t token = block.s.k0 + j;
            const bool full_tile = block.last - j >= tile_shape::keys;
            if (first) {
                uint64_t *full = ring_acquire(sm.key_ring, count, bytes);
                load_tile<DIM, tile_shape::keys>(sm.keys[stage], maps.k, full, (int)token, (int)block.h_kv,
                                                 (int)block.s.b);
                if (full_tile) {
                    full = ring_acquire(sm.value_ring, count, bytes);
                } else {
                    barrier_wait(&sm.value_ring.empty[stage], count / tile_shape::stages % 2 ^ 1);
                    barrier_expect(full = &sm.tail, bytes);
                }
                load_tile<DIM, tile_shape::keys>(sm.values[stage], maps.v, full, (int)token, (int)block.h_kv,
                                                 (int)block.s.b);
            }
            if (!full_tile) {
                __syncwarp();
                barrier_wait(&sm.tail, tails++ % 2);
                clear_tail<DIM, tile_shape::keys>(sm.values[stage], block.last - j);
                fence_async_proxy();
                __syncwarp();
                if (first) barrier_arrive(&sm.value_ring.full[stage]);
            }
            __syncwarp();
        }
    });
}

/* The producer warp of decays: fills the relative_decay of each tile of keys, and each lane arrives at the
 * full barrier of its stage. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void produce_decay(given_forward_shared<DIM, PROBED, true> &sm,
                                                     const loam_problem &p, const loam_args &a,
                                                     unsigned blocks)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    unsigned count = 0;
    for_each_block(blocks, [&](unsigned n) {
        const row_block block = row_block_at<tile_shape::rows>(p, a, n);
        const local_decay_pair *const sums = decay_sums(a, block.s, block.h);
        for (int j = block.first; j < block.last; j += tile_shape::keys, count++) {
            const relative_decay_keys<tile_shape::keys> keys(sums, j, block.last);
            barrier_wait(&sm.key_ring.empty[count % tile_shape::stages], count / tile_shape::stages % 2 ^ 1);
            keys.store(sm.decay[count % tile_shape::stages]);
            barrier_arrive(&sm.key_ring.full[count % tile_shape::stages]);
        }
    });
}

/* ------------------------------------------------------------------ sums */

/* The running maximum of a row moves only where it grows by more than this, to base 2: sums are as exact
 * relative to any number near it, and for most tiles the accumulators then need no rescaling. With a probe
 * the centre moves with the maximum, to the mean of t at that time; it must not stay behind keys that have
 * most of the weight, so that the slack is smaller. */
template <bool PROBED> constexpr float maximum_slack = PROBED ? 2.0f : 8.0f;

/* Sums of a warpgroup's rows, named as in local/cuda/given.cuh: o is A, b is B, tsum is T. m is the running
 * maximum to base 2, that is of scale2 q . k. omega and tsum are of the thread's columns. */
template <int DIM, bool PROBED> struct given_forward_sums {
    float o[DIM / TILE_SIDE][8][4];
    float b[PROBED ? DIM / TILE_SIDE : 1][8][4];
    float m[2], omega[2], centre[2], tsum[2];
};

template <int DIM, bool PROBED>
static __device__ __forceinline__ void clear_forward_sums(given_forward_sums<DIM, PROBED> &g)
{
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++) {
        clear(g.o[n]);
        if constexpr (PROBED) clear(g.b[n]);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        g.m[row] = -INFINITY, g.omega[row] = 0, g.centre[row] = 0, g.tsum[row] = 0;
}

/* The mask: x of the tile from key j on becomes other[row] where the row does not see the key. */
template <int BLOCKS>
static __device__ __forceinline__ void mask_tile(float (&x)[BLOCKS][4], const row_state &state, int j,
                                                 const float (&other)[2])
{
    const int at = j + column_of(0, 0);
    const int from[2] = { state.lo[0] - at, state.lo[1] - at };
    const unsigned count[2] = { (unsigned)(state.hi[0] - state.lo[0]),
                                (unsigned)(state.hi[1] - state.lo[1]) };
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const unsigned back = (unsigned)(8 * n + e % 2 - from[e / 2]);
            x[n][e] = back < count[e / 2] ? x[n][e] : other[e / 2];
        }
    }
}

/* Scores become weights, w = 2^(scale2 s + offset - m), which are added to omega; offset[row] is the part of
 * the row's scores to base 2 that s lacks. Returns whether the maximum of any of the warp's rows moved;
 * rescale[row] is then the factor for all that the row has accumulated. Whether a row's maximum moves depends
 * on that row alone, so that other rows do not change its bits. */
template <int DIM, bool PROBED, int BLOCKS>
static __device__ __forceinline__ bool online_softmax(given_forward_sums<DIM, PROBED> &g, row_state &state,
                                                      float (&s)[BLOCKS][4], float (&rescale)[2],
                                                      float scale2, const float (&offset)[2])
{
    float top[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        top[row] = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
#pragma unroll
        for (int n = 1; n < BLOCKS; n++)
            top[row] = fmaxf(top[row], fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        top[row] = top[row] * scale2 + offset[row];
        rescale[row] = 1;
    }
    constexpr float slack = maximum_slack<PROBED>;
    const bool moves = __any_sync(0xffffffffu, top[0] > g.m[0] + slack || top[1] > g.m[1] + slack);
    if (moves) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float m = quad_max(top[row]);
            if (m > g.m[row] + slack) {
                rescale[row] = exp2_fast(g.m[row] - m);
                g.m[row] = m;
                g.omega[row] *= rescale[row];
            }
        }
    }
    const float base[2] = { finite_or_zero(g.m[0]) - offset[0], finite_or_zero(g.m[1]) - offset[1] };
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -base[e / 2]));
            g.omega[e / 2] += s[n][e];
        }
    }
    state.omega[0] = g.omega[0], state.omega[1] = g.omega[1];
    return moves;
}

/* Scales the accumulators to the maximum that has moved. */
template <int DIM>
static __device__ __forceinline__ void rescale_sums(given_forward_sums<DIM, false> &g,
                                                    const float (&rescale)[2])
{
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++)
        scale_rows(g.o[n], rescale);
}

/* The products t = probe . k become w (t - c), which are added to tsum. */
template <int DIM, int BLOCKS>
static __device__ __forceinline__ void probe_weights(given_forward_sums<DIM, true> &g, float (&t)[BLOCKS][4],
                                                     const float (&w)[BLOCKS][4], const float (&rescale)[2])
{
    g.tsum[0] *= rescale[0], g.tsum[1] *= rescale[1];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            t[n][e] = w[n][e] * (t[n][e] - g.centre[e / 2]);
            g.tsum[e / 2] += t[n][e];
        }
    }
}

/* Scales the accumulators to the maximum that has moved. Where a row's maximum moved, its centre moves to the
 * mean of t so far, and with it B and w (t - c) of this tile. */
template <int DIM, int BLOCKS>
static __device__ __forceinline__ void recentre_sums(given_forward_sums<DIM, true> &g, float (&t)[BLOCKS][4],
                                                     const float (&w)[BLOCKS][4], const float (&rescale)[2])
{
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float mass = quad_sum(g.omega[row]), sum = quad_sum(g.tsum[row]);
        shift[row] = rescale[row] != 1 && mass > 0 ? sum / mass : 0;
        g.centre[row] += shift[row];
        g.tsum[row] -= shift[row] * g.omega[row];
    }
#pragma unroll
    for (int n = 0; n < DIM / TILE_SIDE; n++) {
        scale_rows(g.o[n], rescale);
        scale_rows(g.b[n], rescale);
#pragma unroll
        for (int c = 0; c < 8; c++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                g.b[n][c][e] -= shift[e / 2] * g.o[n][c][e];
        }
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[n][e] -= shift[e / 2] * w[n][e];
    }
}

/* The sweep of a warpgroup over the keys of its rows. */
template <int DIM, bool PROBED, bool DECAYED> struct forward_consumer {
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    given_forward_shared<DIM, PROBED, DECAYED> &sm;
    given_forward_sums<DIM, PROBED> &acc;
    float scale2;
    int unmasked_begin, unmasked_end; /* all rows of the warpgroup see all keys between */
    /* Where scores decay: G of the sequence's keys, and of the two rows. */
    const local_decay_pair *decay_keys;
    local_decay_pair decay_rows[2];

    __device__ __forceinline__ int index() const { return warp_uniform(threadIdx.x / THREADS); }
    __device__ __forceinline__ bool unmasked(int j) const
    {
        return j >= unmasked_begin && j + tile_shape::keys <= unmasked_end;
    }
    __device__ __forceinline__ row_state &state() const { return sm.state[threadIdx.x]; }

    __device__ __forceinline__ const __nv_bfloat16 *keys(unsigned count) const
    {
        return sm.keys[warp_uniform(count % tile_shape::stages)];
    }
    __device__ __forceinline__ const __nv_bfloat16 *values(unsigned count) const
    {
        return sm.values[warp_uniform(count % tile_shape::stages)];
    }
};

/* Issues the products s = q . k of a tile and commits them; more products may follow without a
 * wgmma_fence. */
template <int DIM, bool PROBED, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void issue_scores(const forward_consumer<DIM, PROBED, DECAYED> &wg,
                                                    float (&s)[BLOCKS][4], unsigned count)
{
    wgmma_fence();
    more_rows<DIM>(s, wg.sm.query[wg.index()], wg.keys(count), false);
    wgmma_commit();
}

/* Where scores decay: s, the products q . k of tile `count`, which begins at key j, become scores to base 2
 * less `offset`. Where all rows see every key of the tile, decay is counted from its last key
 * (relative_scores): nothing cancels, and a pair costs one addition more than without decay. */
template <int DIM, bool PROBED, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void decayed_scores(const forward_consumer<DIM, PROBED, DECAYED> &wg,
                                                      float (&s)[BLOCKS][4], int j, unsigned count,
                                                      float (&offset)[2])
{
    offset[0] = offset[1] = 0;
    if constexpr (DECAYED) {
        if (wg.unmasked(j)) {
            relative_scores(s, wg.sm.decay[count % given_forward_shape<DIM, PROBED>::stages], wg.decay_rows,
                            wg.scale2, offset);
        } else {
            decay_scores(s, wg.decay_keys + j, wg.decay_rows, { wg.scale2, wg.scale2 });
        }
    }
}

/* s, which is the products q . k of the tile from key j on or comes from decayed_scores, becomes
 * weights. */
template <int DIM, bool PROBED, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ bool softmax_tile(const forward_consumer<DIM, PROBED, DECAYED> &wg,
                                                    float (&s)[BLOCKS][4], int j, float (&rescale)[2],
                                                    const float (&offset)[2])
{
    const float nothing[2] = { -INFINITY, -INFINITY };
    if (!wg.unmasked(j)) mask_tile(s, wg.state(), j, nothing);
    return online_softmax(wg.acc, wg.state(), s, rescale, DECAYED ? 1.0f : wg.scale2, offset);
}

/* Tiles count .. end - 1, of which the first begins at key j. The product o += w v of a tile overlaps with
 * the weights of the next. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void sweep(const forward_consumer<DIM, false, DECAYED> &wg, int j,
                                             unsigned count, unsigned end)
{
    typedef given_forward_shape<DIM, false> tile_shape;
    float s[tile_shape::keys / 8][4], rescale[2], offset[2];
    weights_operand<1, tile_shape::keys / 16> w;
    ring_wait(wg.sm.key_ring, count);
    issue_scores(wg, s, count);
    wgmma_wait<0>();
    wgmma_results(s);
    decayed_scores(wg, s, j, count, offset);
    ring_release(wg.sm.key_ring, count);
    softmax_tile(wg, s, j, rescale, offset);
    split_weights(w, s);
#pragma unroll 1
    for (; count + 1 != end; count++) {
        ring_wait(wg.sm.key_ring, count + 1);
        ring_wait(wg.sm.value_ring, count);
        issue_scores(wg, s, count + 1);
        more_weights<DIM>(wg.acc.o, w.part[0], wg.values(count));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        decayed_scores(wg, s, j += tile_shape::keys, count + 1, offset);
        ring_release(wg.sm.key_ring, count + 1);
        const bool moves = softmax_tile(wg, s, j, rescale, offset);
        wgmma_wait<0>();
        wgmma_results(wg.acc.o);
        ring_release(wg.sm.value_ring, count);
        if (moves) rescale_sums(wg.acc, rescale);
        split_weights(w, s);
    }
    ring_wait(wg.sm.value_ring, count);
    multiply_weights<DIM>(wg.acc.o, w.part[0], wg.values(count));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(wg.acc.o);
    ring_release(wg.sm.value_ring, count);
}

/* The same with a probe, one tile after another, since there are no registers for two: the weights overlap
 * with the products t = probe . k, all else with the other warpgroup. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void sweep(const forward_consumer<DIM, true, DECAYED> &wg, int j,
                                             unsigned count, unsigned end)
{
    typedef given_forward_shape<DIM, true> tile_shape;
#pragma unroll 1
    for (; count != end; count++, j += tile_shape::keys) {
        float s[tile_shape::keys / 8][4], t[tile_shape::keys / 8][4], rescale[2], offset[2];
        weights_operand<1, tile_shape::keys / 16> w, u;
        ring_wait(wg.sm.key_ring, count);
        issue_scores(wg, s, count);
        more_rows<DIM>(t, wg.sm.probe[wg.index()], wg.keys(count), false);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        decayed_scores(wg, s, j, count, offset);
        const bool moves = softmax_tile(wg, s, j, rescale, offset);
        wgmma_wait<0>();
        wgmma_results(t);
        ring_release(wg.sm.key_ring, count);
        if (!wg.unmasked(j)) mask_tile(t, wg.state(), j, wg.acc.centre); /* t may be NaN there */
        probe_weights(wg.acc, t, s, rescale);
        if (moves) recentre_sums(wg.acc, t, s, rescale);
        split_weights(w, s);
        split_weights(u, t);
        ring_wait(wg.sm.value_ring, count);
        multiply_weights<DIM>(wg.acc.o, w.part[0], wg.values(count));
        more_weights<DIM>(wg.acc.b, u.part[0], wg.values(count));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(wg.acc.o);
        wgmma_results(wg.acc.b);
        ring_release(wg.sm.value_ring, count);
    }
}

/* Releases tiles count .. end - 1, of which the warpgroup's rows see no key. */
template <int STAGES>
static __device__ __forceinline__ void skip_tiles(ring_barriers<STAGES> &keys, ring_barriers<STAGES> &values,
                                                  unsigned count, unsigned end)
{
#pragma unroll 1
    for (; count != end; count++) {
        ring_wait(keys, count);
        ring_release(keys, count);
        ring_wait(values, count);
        ring_release(values, count);
    }
}

/* ------------------------------------------------------------------ results */

/* Writes o, through the tile of the warpgroup's queries, and saves vbar and value_shift = vbar - o. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void put_outputs(const given_forward_sums<DIM, PROBED> &sums,
                                                   __nv_bfloat16 *tile, const loam_args &a,
                                                   const local_saved &saved, const row_block &block,
                                                   const row_pair &r, const int64_t (&line)[2],
                                                   const given_row (&g)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const int c = column_of(n, 0), e = 2 * row;
            float2 mean = { sums.o[n / 8][n % 8][e] * g[row].inverse,
                            sums.o[n / 8][n % 8][e + 1] * g[row].inverse };
            if (a.saved && r.real[row]) *(float2 *)((float *)saved.vbar + line[row] * DIM + c) = mean;
            if constexpr (PROBED) {
                const float2 value_shift = { sums.b[n / 8][n % 8][e] * g[row].inverse - mean.x * g[row].rest,
                                             sums.b[n / 8][n % 8][e + 1] * g[row].inverse -
                                                 mean.y * g[row].rest };
                if (a.saved && r.real[row])
                    *(float2 *)((float *)saved.value_shift + line[row] * DIM + c) = value_shift;
                mean.x -= value_shift.x, mean.y -= value_shift.y;
            }
            *(__nv_bfloat162 *)(tile + swizzled(r.at[row] % ROWS, c)) = __floats2bfloat162_rn(mean.x, mean.y);
        }
    }
    __syncwarp();
    const bool aligned = (uintptr_t)a.o.data % 16 == 0 && a.o.batch % 8 == 0 && a.o.head % 8 == 0 &&
                         a.o.token % 8 == 0;
    const int first = threadIdx.x / 32 * 16;
#pragma unroll 1
    for (int e = threadIdx.x % 32; e < 16 * (DIM / 8); e += 32) {
        const int at = first + e / (DIM / 8), c = e % (DIM / 8) * 8;
        if (at >= block.rows) break;
        const uint4 out = *(const uint4 *)(tile + swizzled(at % ROWS, c));
        uint16_t *to = (uint16_t *)a.o.data + LOCAL_AT(a.o, block.s.b, block.h, block.s.q0 + block.i0 + at) +
                       c;
        if (aligned) {
            *(uint4 *)to = out;
        } else {
            const uint32_t pairs[4] = { out.x, out.y, out.z, out.w };
#pragma unroll
            for (int s = 0; s < 8; s++)
                to[s] = (uint16_t)(pairs[s / 2] >> s % 2 * 16);
        }
    }
}

template <int DIM, bool PROBED, bool DECAYED>
static __device__ __forceinline__ void epilogue(given_forward_sums<DIM, PROBED> &sums,
                                                given_forward_shared<DIM, PROBED, DECAYED> &sm,
                                                const loam_problem &p, const loam_args &a,
                                                const local_saved &saved, const row_block &block,
                                                const row_pair &r)
{
    const int w = threadIdx.x / THREADS;
    const row_state &state = sm.state[threadIdx.x];
    int64_t line[2];
    given_row g[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        online o;
        o.m[row] = sums.m[row] * 0.693147181f, o.omega[row] = state.omega[row];
        g[row] = given_finish(o, sums.tsum[row], 0, row, p, a, block.h);
        line[row] = local_row(&p, &block.s, block.h, block.i0 + r.at[row]);
        if (r.real[row]) {
            put_given_row<PROBED>(p, a, saved, block, r, row, g[row], sums.centre[row]);
            put_given_probe<PROBED>(p, a, block, r, row, [&](int c) {
                return sm.probe[PROBED ? w : 0][swizzled(r.at[row] % ROWS, c)];
            });
        }
    }
    put_outputs(sums, sm.query[w], a, saved, block, r, line, g);
}

/* ------------------------------------------------------------------ the kernel */

/* The first and the last row that warpgroup w has; none where last < first. */
struct row_span {
    int64_t first, last;
};

static __device__ __forceinline__ row_span row_span_of(const row_block &block, int w)
{
    return { block.i0 + w * ROWS, block.i0 + min(block.rows, (w + 1) * ROWS) - 1 };
}

static __device__ __forceinline__ void row_state_begin(row_state &state, const loam_problem &p,
                                                       const row_block &block)
{
    const row_pair r = row_pair_of(p, block);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        state.lo[row] = r.lo[row], state.hi[row] = r.hi[row];
        state.omega[row] = 0;
    }
}

/* Of the `tiles` tiles of a block, those in which the rows of a warpgroup see keys: begin .. end - 1. All
 * these rows see keys unmasked_begin .. unmasked_end - 1. */
struct tile_range {
    int begin, end, tiles, unmasked_begin, unmasked_end;
};

template <int KEYS>
static __device__ __forceinline__ tile_range tiles_of(const loam_problem &p, const row_block &block, int w)
{
    const row_span span = row_span_of(block, w);
    int64_t lo, hi, unmasked_begin, unmasked_end;
    local_visible(&p, &block.s, span.first, &lo, &unmasked_end);
    local_visible(&p, &block.s, span.last, &unmasked_begin, &hi);
    tile_range range = { 0, 0, (block.last - block.first + KEYS - 1) / KEYS, (int)unmasked_begin,
                         (int)unmasked_end };
    if (span.first <= span.last && lo < hi) {
        range.begin = ((int)lo - block.first) / KEYS;
        range.end = ((int)hi - block.first + KEYS - 1) / KEYS;
    }
    return range;
}

/* A consumer: warpgroup w computes rows 64 w .. 64 w + 63 of each block of rows. */
template <int DIM, bool PROBED, bool DECAYED>
static __device__ __forceinline__ void consume_rows(given_forward_shared<DIM, PROBED, DECAYED> &sm,
                                                    const loam_problem &p, const loam_args &a,
                                                    const local_saved &saved, unsigned blocks, float scale2)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    const int w = threadIdx.x / THREADS;
    unsigned row_count = 0, count = 0;
    for_each_block(blocks, [&](unsigned n) {
        given_forward_sums<DIM, PROBED> sums;
        clear_forward_sums(sums);
        {
            const row_block block = row_block_at<tile_shape::rows>(p, a, n);
            if (block.rows <= 0) return;
            row_state_begin(sm.state[threadIdx.x], p, block);
            const tile_range range = tiles_of<tile_shape::keys>(p, block, w);
            const unsigned begin = count + range.begin, end = count + range.end;
            count += range.tiles;
            ring_wait(sm.row_ring[w], row_count);
            skip_tiles(sm.key_ring, sm.value_ring, begin - range.begin, begin);
            if (begin != end) {
                forward_consumer<DIM, PROBED, DECAYED> wg = {
                    sm, sums, scale2, range.unmasked_begin, range.unmasked_end, NULL, {}
                };
                if constexpr (DECAYED) {
                    wg.decay_keys = decay_sums(a, block.s, block.h);
                    wg.decay_rows[0] = row_decay(wg.decay_keys, wg.state().hi[0]);
                    wg.decay_rows[1] = row_decay(wg.decay_keys, wg.state().hi[1]);
                }
                sweep(wg, block.first + range.begin * tile_shape::keys, begin, end);
            }
            skip_tiles(sm.key_ring, sm.value_ring, end, count);
        }
        /* Computed again, so that it takes no registers during the sweep. */
        asm volatile("" : "+r"(n));
        const row_block block = row_block_at<tile_shape::rows>(p, a, n);
        warpgroup_sync(1 + w);
        epilogue(sums, sm, p, a, saved, block, row_pair_of(p, block));
        fence_async_proxy();
        ring_release(sm.row_ring[w], row_count);
        row_count++;
    });
}

template <int DIM, bool PROBED, bool DECAYED>
__global__ void __launch_bounds__(given_forward_shape<DIM, PROBED>::threads, 1)
    given_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const local_saved saved, const unsigned blocks, const float scale2,
                        const __grid_constant__ given_forward_maps maps)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    given_forward_shared<DIM, PROBED, DECAYED> &sm = *(
        given_forward_shared<DIM, PROBED, DECAYED> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.key_ring, tile_shape::consumers * THREADS / 32);
        for (int n = 0; n < tile_shape::stages && DECAYED; n++)
            barrier_init(&sm.key_ring.full[n], 1 + 32); /* the copies, and each lane of produce_decay */
        ring_init(sm.value_ring, tile_shape::consumers * THREADS / 32);
        for (int w = 0; w < tile_shape::consumers; w++)
            ring_init(sm.row_ring[w], THREADS / 32);
        barrier_init(&sm.tail, 1);
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x / THREADS == tile_shape::consumers) {
        registers_release<40>();
        if (threadIdx.x / 32 == tile_shape::consumers * 4) {
            produce_tiles(sm, p, a, maps, blocks);
        } else if (threadIdx.x == tile_shape::consumers * THREADS + 32) {
            produce_rows(sm, p, a, maps, blocks);
        } else if (DECAYED && threadIdx.x / 32 == tile_shape::consumers * 4 + 2) {
            if constexpr (DECAYED) produce_decay(sm, p, a, blocks);
        }
    } else {
        registers_acquire<232>();
        consume_rows(sm, p, a, saved, blocks, scale2);
    }
}

/* ------------------------------------------------------------------ the launches */

template <int DIM, bool PROBED, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    const int64_t blocks = (p->len_q + tile_shape::rows - 1) / tile_shape::rows * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_forward_shared<DIM, PROBED, DECAYED>);
    given_forward_maps maps;
    int most = 0;
    TRY(cuda_multiprocessors(&most, error));
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, ROWS, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, tile_shape::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, tile_shape::keys, error));
    if (PROBED) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, ROWS, error));
    TRY(cuda_allow_shared((const void *)given_kernel_hopper<DIM, PROBED, DECAYED>, shared, error));
    given_kernel_hopper<DIM, PROBED, DECAYED>
        <<<(unsigned)(blocks < most ? blocks : most), tile_shape::threads, shared, (cudaStream_t)a->stream>>>(
            *p, *a, saved, (unsigned)blocks, (float)(p->scale * 1.4426950408889634), maps);
    return cuda_launched("given_kernel_hopper", error);
}

template <int DIM, bool PROBED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->decay ? launch<DIM, PROBED, true>(p, a, error) : launch<DIM, PROBED, false>(p, a, error);
}

/* The kernel takes the maximum of products q . k for that of scores, which needs a positive scale. */
bool local_given_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && p->scale > 0 && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) &&
           key_map_fits(p, &a->v) && (p->mechanism != LOAM_PARALLAX || query_map_fits(p, &a->probe));
}

loam_status local_given_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->mechanism == LOAM_PARALLAX) {
        return p->dim_qk == 64 ? launch_decayed<64, true>(p, a, error)
                               : launch_decayed<128, true>(p, a, error);
    }
    return p->dim_qk == 64 ? launch_decayed<64, false>(p, a, error) : launch_decayed<128, false>(p, a, error);
}
