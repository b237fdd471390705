/* SPDX-License-Identifier: MIT
 *
 * Backward of softmax and Parallax on Hopper, first pass: dq, the gradient of the probe and row_scalars of
 * each row, in one sweep over the keys. With g = do . v, gam = g - do . vbar, t = rho . k - tbar and
 * e = do . (vbar - o):
 *
 *     softmax:   ds = p gam
 *     Parallax:  ds = p (gam (1 - t) + e),  drho = -sum p gam k
 *     dq = scale sum ds k
 *
 * e = sum p gam t, so that neither mechanism needs a sweep before this one.
 *
 * Two consumer warpgroups have 64 queries each; one thread of a third produces the tiles. Where sequences are
 * short, thread blocks stay: rows of the next block are copied during this one. Weights have one bf16 part.
 * Where a sum of weights is 0 in exact arithmetic, its rounding error is taken out of the gradient at the key
 * of the row's own position.
 */
#include "src/gpu/blocks.cuh"
#include "src/gpu/ring.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/maps.cuh"

enum {
    GIVEN_GROUPS = 2,
    GIVEN_ROWS = GIVEN_GROUPS * TILE_SIDE,
    GIVEN_THREADS = (GIVEN_GROUPS + 1) * THREADS,
    GIVEN_SHORT = 1024 /* up to so many queries thread blocks stay */
};

/* keys: of a tile, as many as leave registers for the accumulators of 64 rows. stages: of the ring,
 * each for a tile of keys or of values. */
template <int DIM, bool PROBED> struct given_backward_shape {
    static constexpr int keys = !PROBED ? 128 : DIM == 64 ? 64 : 48;
    static constexpr int blocks = keys / 8, steps = keys / 16;
    static constexpr int stages = !PROBED && DIM == 128 ? 4 : 8;
    static constexpr int row_tiles = PROBED ? 3 : 2;
};

/* Blocks whose rows are in shared memory at once, where thread blocks stay. */
template <bool STAYS> constexpr int row_stages = STAYS ? 2 : 1;

/* Rows of a block. */
template <int DIM, bool PROBED> struct given_backward_rows {
    alignas(1024) __nv_bfloat16 query[GIVEN_GROUPS][DIM * TILE_SIDE];
    __nv_bfloat16 grad_o[GIVEN_GROUPS][DIM * TILE_SIDE];
    __nv_bfloat16 probe[PROBED ? GIVEN_GROUPS : 1][PROBED ? DIM * TILE_SIDE : TILE_SIDE * 8];
};

template <int DIM, bool PROBED, bool DECAYED, bool STAYS> struct given_backward_shared {
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    given_backward_rows<DIM, PROBED> rows[row_stages<STAYS>];
    __nv_bfloat16 stage[tile_shape::stages][DIM * tile_shape::keys];
    decay_tile<DECAYED, tile_shape::keys>
        decay[tile_shape::stages / 2]; /* of the keys, in every other stage */
};

template <int DIM, bool PROBED, bool STAYS> struct given_backward_barriers {
    ring_barriers<row_stages<STAYS>> rows;
    ring_barriers<given_backward_shape<DIM, PROBED>::stages> ring;
};

/* Tensor maps of the arrays. */
struct given_backward_maps {
    CUtensorMap q, grad_o, probe, k, v;
};

/* ------------------------------------------------------------------ the producer */

template <int DIM>
static __device__ __forceinline__ void load_rows_of_groups(__nv_bfloat16 (*tile)[DIM * TILE_SIDE],
                                                           const CUtensorMap &map, const row_block &block,
                                                           uint64_t *full)
{
#pragma unroll
    for (int group = 0; group < GIVEN_GROUPS; group++) {
        load_tile<DIM>(tile[group], map, full, (int)(block.s.q0 + block.i0) + group * TILE_SIDE, (int)block.h,
                       (int)block.s.b);
    }
}

/* What forward saved of a block's rows, into the L2 cache. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void prefetch_saved(const loam_problem &p, const local_saved &saved,
                                                      const row_block &block)
{
    const int64_t at = local_row(&p, &block.s, block.h, block.i0) * DIM;
    prefetch_l2((const float *)saved.vbar + at, block.rows * DIM * 4);
    if constexpr (PROBED) prefetch_l2((const float *)saved.value_shift + at, block.rows * DIM * 4);
}

/* The rows of a block, then its tiles. */
template <int DIM, bool PROBED, bool DECAYED, bool STAYS>
static __device__ __forceinline__ void produce_block(given_backward_shared<DIM, PROBED, DECAYED, STAYS> &sm,
                                                     given_backward_barriers<DIM, PROBED, STAYS> &bar,
                                                     const given_backward_maps &maps, const loam_args &a,
                                                     const row_block &block, unsigned row_count,
                                                     unsigned &count)
{
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    given_backward_rows<DIM, PROBED> &rows = sm.rows[row_count % row_stages<STAYS>];
    uint64_t *const rows_full = ring_acquire(bar.rows, row_count, tile_shape::row_tiles * sizeof rows.query);
    load_rows_of_groups<DIM>(rows.query, maps.q, block, rows_full);
    load_rows_of_groups<DIM>(rows.grad_o, maps.grad_o, block, rows_full);
    if constexpr (PROBED) load_rows_of_groups<DIM>(rows.probe, maps.probe, block, rows_full);
    const int64_t origin = DECAYED ? decay_origin(a, block.s, block.h) : 0;
    for (int j = block.first; j < block.last; j += tile_shape::keys) {
#pragma unroll
        for (int which = 0; which < 2; which++, count++) {
            const unsigned decay_bytes = which == 0 ? decay_tile<DECAYED, tile_shape::keys>::bytes : 0;
            uint64_t *const full = ring_acquire(bar.ring, count, sizeof sm.stage[0] + decay_bytes);
            if (which == 0) copy_decay(sm.decay[count % tile_shape::stages / 2], a, origin + j, full);
            load_tile<DIM, tile_shape::keys>(sm.stage[count % tile_shape::stages],
                                             which == 0 ? maps.k : maps.v, full, (int)block.s.k0 + j,
                                             (int)block.h_kv, (int)block.s.b);
        }
    }
}

/* ------------------------------------------------------------------ the consumers */

/* Constants of the thread's two rows. */
struct row_constants {
    float scale2;                     /* of scores, to base 2 */
    float lse[2], lse2[2];            /* to base e and 2; 0 for rows that see no key */
    float gbar[2], e[2];              /* do . vbar, do . (vbar - o) */
    float one_plus_tbar[2];           /* 1 + tbar, so that 1 - t = beside - rho . k */
    int lo[2], hi[2];                 /* keys lo .. hi - 1 are seen */
    int unmasked_begin, unmasked_end; /* all rows of the warpgroup see all keys between; */
    int last;                         /* no row sees keys from here on */
    int first_odd; /* where scores decay: the index of G of the first key, modulo 2; G of the rows */
    local_decay_pair decay[2];

    __device__ __forceinline__ bool seen(int row, int j) const { return j >= lo[row] && j < hi[row]; }
};

/* Sums for the gradient of the scale, of this thread's columns, with x = q . k: inner = sum ds, scale = sum
 * ds (x - middle), large = scale / 2^100 for where scale overflows, mean = sum p (x - middle). */
struct scale_sums {
    float inner[2], scale[2], large[2], mean[2], middle[2];
    float total[2]; /* sum ds, where scores decay */
};

/* The thread's share of a row of `saved`: four channels of every sixteen. */
template <int DIM>
static __device__ __forceinline__ void load_row(float4 (&part)[DIM / 16], const void *rows, int64_t at)
{
#pragma unroll
    for (int n = 0; n < DIM / 16; n++)
        part[n] = *(const float4 *)((const float *)rows + at * DIM + 16 * n + threadIdx.x % 4 * 4);
}

/* do . a row of `saved`; the four lanes of the row call it. */
template <int DIM>
static __device__ __forceinline__ float grad_o_times(const __nv_bfloat16 *grad_o, int r,
                                                     const float4 (&part)[DIM / 16])
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
        const uint2 y = *(const uint2 *)(grad_o + swizzled(r, 16 * n + threadIdx.x % 4 * 4));
        __nv_bfloat162 pair[2];
        memcpy(pair, &y, sizeof pair);
        const float2 low = __bfloat1622float2(pair[0]), high = __bfloat1622float2(pair[1]);
        sum += low.x * part[n].x + low.y * part[n].y + high.x * part[n].z + high.y * part[n].w;
    }
    return quad_sum(sum);
}

/* The constants of a warpgroup's rows; waits for the tile of do. */
template <int DIM, bool PROBED, int STAGES>
static __device__ __forceinline__ row_constants row_constants_of(const __nv_bfloat16 *grad_o,
                                                                 ring_barriers<STAGES> &ring,
                                                                 unsigned row_count, const loam_problem &p,
                                                                 const local_saved &saved,
                                                                 const row_block &block, const row_pair &r)
{
    row_constants rows;
    const int group = threadIdx.x / THREADS, left = block.rows - group * TILE_SIDE;
    int64_t lo = 0, to = 0, last = 0, unused;
    if (left > 0) {
        const int64_t i = block.i0 + group * TILE_SIDE;
        local_visible(&p, &block.s, i, &unused, &to);
        local_visible(&p, &block.s, i + (left < TILE_SIDE ? left : TILE_SIDE) - 1, &lo, &last);
    }
    rows.unmasked_begin = (int)lo, rows.unmasked_end = left < TILE_SIDE ? 0 : (int)to,
    rows.last = (int)(last > to ? last : to);
    rows.scale2 = (float)(p.scale * 1.4426950408889634);
    float4 vbar[2][DIM / 16], value_shift[PROBED ? 2 : 1][DIM / 16];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        /* Rows beyond the sequence read the last row, to no effect. */
        const int64_t at = local_row(&p, &block.s, block.h,
                                     block.i0 + (r.real[row] ? r.at[row] : block.rows - 1));
        load_row<DIM>(vbar[row], saved.vbar, at);
        rows.lse[row] = finite_or_zero(((const float *)saved.lse)[at]);
        rows.one_plus_tbar[row] = 0;
        if constexpr (PROBED) {
            load_row<DIM>(value_shift[row], saved.value_shift, at);
            rows.one_plus_tbar[row] = 1 + ((const float *)saved.tbar)[2 * at] +
                                      ((const float *)saved.tbar)[2 * at + 1];
        }
    }
    ring_wait(ring, row_count);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float gbar = grad_o_times<DIM>(grad_o, r.at[row] % TILE_SIDE, vbar[row]);
        rows.lo[row] = r.lo[row], rows.hi[row] = r.hi[row];
        rows.lse2[row] = rows.lse[row] * 1.44269504f;
        rows.gbar[row] = r.real[row] ? gbar : 0;
        rows.e[row] = 0;
        if constexpr (PROBED) {
            const float e = grad_o_times<DIM>(grad_o, r.at[row] % TILE_SIDE, value_shift[row]);
            rows.e[row] = r.real[row] ? e : 0;
        }
    }
    return rows;
}

/* Keys `count` .. of a tile, which the block does not see, become 0: they may be NaN in memory. */
template <int DIM, int KEYS>
static __device__ __forceinline__ void clear_tail_warpgroup(__nv_bfloat16 *tile, int count)
{
    for (int e = threadIdx.x % THREADS; e < (KEYS - count) * (DIM / 8); e += THREADS) {
        const int row = count + e / (DIM / 8), piece = e % (DIM / 8);
        *(uint4 *)(tile + (piece / 8 * KEYS + row) * TILE_SIDE + piece % 8 * 8) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    warpgroup_sync(1 + threadIdx.x / THREADS);
}

/* p of one pair from its product q . k. c: the column in the tile that begins at key j. */
static __device__ __forceinline__ float weight_at(const row_constants &rows, int row, float product,
                                                  const no_decay *, int, int)
{
    return exp2_fast(fminf(product * rows.scale2 - rows.lse2[row], 0));
}
static __device__ __forceinline__ float weight_at(const row_constants &rows, int row, float product,
                                                  const local_decay_pair *keys, int j, int c)
{
    const local_decay_pair key = keys[(rows.first_odd + j) % 2 + c];
    const float decay = (rows.decay[row].hi - key.hi) + (rows.decay[row].lo - key.lo);
    return exp2_fast(fminf(fmaf(product, rows.scale2, decay) - rows.lse2[row], 0));
}

/* The products q . k become p, without a mask. */
template <class DECAY, int BLOCKS>
static __device__ __forceinline__ void weights_of(float (&s)[BLOCKS][4], const row_constants &rows,
                                                  const DECAY *decay, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = weight_at(rows, e / 2, s[n][e], decay, j, column_of(n, e));
    }
}

/* x becomes 0 where the row does not see the key. */
template <int BLOCKS>
static __device__ __forceinline__ void clear_unseen(float (&x)[BLOCKS][4], const row_constants &rows, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = rows.seen(e / 2, j + column_of(n, e)) ? x[n][e] : 0;
    }
}

/* s = p becomes ds and g = do . v becomes p gam; u = rho . k. SCALED: s is q . k on entry. */
template <bool PROBED, bool SCALED, bool DECAYED, class DECAY, int BLOCKS, int PROBE_BLOCKS>
static __device__ __forceinline__ void probe_score_gradients(float (&s)[BLOCKS][4], float (&g)[BLOCKS][4],
                                                             const float (&u)[PROBE_BLOCKS][4],
                                                             scale_sums &sum, const row_constants &rows,
                                                             const DECAY *decay, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            const bool seen = !SCALED || rows.seen(row, j + column_of(n, e));
            const float x = s[n][e], p = !SCALED ? x
                                         : seen  ? weight_at(rows, row, x, decay, j, column_of(n, e))
                                                 : 0;
            float ds = p * (g[n][e] - rows.gbar[row]);
            g[n][e] = ds;
            if constexpr (PROBED) ds = ds * (rows.one_plus_tbar[row] - u[n][e]) + p * rows.e[row];
            s[n][e] = ds;
            if constexpr (DECAYED) sum.total[row] += ds;
            if constexpr (SCALED) {
                const float y = seen ? clamp_score(x) - sum.middle[row] : 0;
                sum.inner[row] += ds;
                sum.scale[row] += ds * y;
                sum.large[row] += ds * (y * 0x1p-100f);
                sum.mean[row] += p * y;
            }
        }
    }
}

/* Adds the weights, as rounded for the products, to sum[2 row] and sum[2 row + 1]. */
template <int STEPS>
static __device__ __forceinline__ void add_rounded(float (&sum)[4], const weights_operand<1, STEPS> &w)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum[e % 2 * 2] += __uint_as_float(w.part[0][k][e] << 16);
            sum[e % 2 * 2 + 1] += __uint_as_float(w.part[0][k][e] & 0xffff0000);
        }
    }
}

/* Ping-pong: the two consumers alternate in issuing the products of a tile, and the first one begins. While
 * the products of one run, the other computes its weights. Named barriers 1 and 2 are those of
 * clear_tail_warpgroup. */
static __device__ __forceinline__ void pingpong_wait(int group)
{
    named_barrier_sync<GIVEN_GROUPS * THREADS>(1 + GIVEN_GROUPS + group);
}
static __device__ __forceinline__ void pingpong_arrive(int group)
{
    named_barrier_arrive<GIVEN_GROUPS * THREADS>(2 * GIVEN_GROUPS - group);
}

/* Accumulators over all keys. inner and total are sums of this thread's columns, two for each row. */
template <int DIM, bool PROBED> struct row_gradients {
    float dq[DIM / TILE_SIDE][8][4], drho[PROBED ? DIM / TILE_SIDE : 1][8][4];
    float inner[4], total[4]; /* of ds and of p gam, as rounded for the products */
};

template <int DIM, bool PROBED>
static __device__ __forceinline__ void wgmma_results(row_gradients<DIM, PROBED> &f)
{
    wgmma_results(f.dq);
    if constexpr (PROBED) wgmma_results(f.drho);
}

/* Products of a tile: s = q . k, u = probe . k, g = do . v. */
template <int DIM, bool PROBED> struct tile_products {
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    float s[tile_shape::blocks][4], g[tile_shape::blocks][4], u[PROBED ? tile_shape::blocks : 1][4];
};

/* u, where there is a probe, becomes 0 where the row does not see the key. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void clear_unseen_probe(tile_products<DIM, PROBED> &tile,
                                                          const row_constants &rows, int j)
{
    if constexpr (PROBED) clear_unseen(tile.u, rows, j);
}

/* Issues s and u, each in a group of its own. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void issue_scores(tile_products<DIM, PROBED> &tile,
                                                    const given_backward_rows<DIM, PROBED> &rows, int group,
                                                    const __nv_bfloat16 *keys)
{
    multiply_rows<DIM>(tile.s, rows.query[group], keys, false);
    wgmma_commit();
    if constexpr (PROBED) {
        multiply_rows<DIM>(tile.u, rows.probe[group], keys, false);
        wgmma_commit();
    }
}

/* Issues dq += ds k and drho += p gam k, and sums their weights as rounded. s: ds, g: p gam. */
template <int DIM, bool PROBED>
static __device__ __forceinline__ void issue_gradients(row_gradients<DIM, PROBED> &f,
                                                       const tile_products<DIM, PROBED> &tile,
                                                       const __nv_bfloat16 *keys)
{
    weights_operand<1, given_backward_shape<DIM, PROBED>::steps> ds, error;
    split_weights(ds, tile.s);
    add_rounded(f.inner, ds);
    multiply_weights<DIM>(f.dq, ds.part[0], keys);
    if constexpr (PROBED) {
        split_weights(error, tile.g);
        add_rounded(f.total, error);
        multiply_weights<DIM>(f.drho, error.part[0], keys);
    }
    wgmma_commit();
}

/* Releases the tiles from key j on, which none of the warpgroup's rows sees, and keeps the turns. */
template <int KEYS, int STAGES>
static __device__ __forceinline__ void skip_tiles(ring_barriers<STAGES> &ring, unsigned &count, int j,
                                                  int last, int group)
{
    for (; j < last; j += KEYS, count += 2) {
        ring_wait(ring, count);
        ring_release(ring, count);
        ring_wait(ring, count + 1);
        ring_release(ring, count + 1);
        pingpong_wait(group);
        pingpong_arrive(group);
    }
}

/* The sweep of a consumer warpgroup over the tiles of the block, from stage number `count` on. */
template <int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS>
static __device__ __forceinline__ void sweep_rows(row_gradients<DIM, PROBED> &f, scale_sums &sums,
                                                  given_backward_shared<DIM, PROBED, DECAYED, STAYS> &sm,
                                                  given_backward_barriers<DIM, PROBED, STAYS> &bar,
                                                  const row_block &block, const row_constants &rows,
                                                  unsigned row_count, unsigned &count)
{
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    constexpr int in_flight = PROBED ? 2 : 1;
    const int group = threadIdx.x / THREADS;
    const given_backward_rows<DIM, PROBED> &own = sm.rows[row_count % row_stages<STAYS>];
    tile_products<DIM, PROBED> tile;
    int j = block.first;
    for (; j < rows.last; j += tile_shape::keys, count += 2) {
        __nv_bfloat16 *const keys = sm.stage[count % tile_shape::stages];
        const __nv_bfloat16 *const values = sm.stage[(count + 1) % tile_shape::stages];
        const auto *const decay = decay_of(sm.decay[count % tile_shape::stages / 2]);
        const bool masked = j < rows.unmasked_begin || j + tile_shape::keys > rows.unmasked_end;
        ring_wait(bar.ring, count);
        if (j + tile_shape::keys > block.last)
            clear_tail_warpgroup<DIM, tile_shape::keys>(keys, block.last - j);
        pingpong_wait(group);
        issue_scores(tile, own, group, keys);
        wgmma_wait<in_flight>();
        if (j > block.first) ring_release(bar.ring, count - 2);
        ring_wait(bar.ring, count + 1);
        multiply_rows<DIM>(tile.g, own.grad_o[group], values, false);
        wgmma_commit();
        pingpong_arrive(group);
        wgmma_wait<in_flight>();
        wgmma_results(tile.s);
        if constexpr (!SCALED) {
            weights_of(tile.s, rows, decay, j);
            if (masked) clear_unseen(tile.s, rows, j);
        }
        wgmma_wait<0>();
        wgmma_results(tile.g);
        ring_release(bar.ring, count + 1);
        if constexpr (PROBED) wgmma_results(tile.u);
        if (masked) {
            clear_unseen(tile.g, rows, j);
            clear_unseen_probe(tile, rows, j);
        }
        probe_score_gradients<PROBED, SCALED, DECAYED>(tile.s, tile.g, tile.u, sums, rows, decay, j);
        issue_gradients(f, tile, keys);
    }
    wgmma_wait<0>();
    wgmma_results(f);
    ring_release(bar.rows, row_count);
    if (j > block.first) ring_release(bar.ring, count - 2);
    skip_tiles<tile_shape::keys>(bar.ring, count, j, block.last, group);
}

/* ------------------------------------------------------------------ results of a row */

/* middle: an x between the mean and the largest of the row, from its lse. */
static __device__ __forceinline__ scale_sums scale_sums_begin(const row_constants &rows,
                                                              const loam_problem &p)
{
    scale_sums sum = {};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int keys = rows.hi[row] - rows.lo[row];
        const float x = !p.sink && p.scale != 0 && keys > 0
                            ? (rows.lse[row] - logf((float)keys)) / (float)p.scale
                            : 0;
        sum.middle[row] = fabsf(x) < 1e30f ? x : 0;
    }
    return sum;
}

/* The gradient of the scale from one row. sum ds is 0 but for rounding, where there is no sink: the
 * difference is taken out at the mean x. Where the sum overflows, `large` has it. */
static __device__ __forceinline__ double scale_sum(const scale_sums &sum, int row, const loam_problem &p)
{
    const float rest = quad_sum(sum.inner[row]) * quad_sum(sum.mean[row]);
    const float scale = quad_sum(sum.scale[row]) - (!p.sink && fabsf(rest) < INFINITY ? rest : 0),
                large = quad_sum(sum.large[row]);
    return fabsf(scale) < INFINITY ? (double)scale : (double)large * 0x1p100;
}

static __device__ __forceinline__ row_scalars record_of(const row_constants &rows, int row)
{
    row_scalars rec = {};
    rec.lse = rows.lse[row];
    rec.gbar = rows.gbar[row], rec.e = rows.e[row];
    rec.peak = -1, rec.lo = rows.lo[row], rec.hi = rows.hi[row];
    return rec;
}

/* The key at the row's own position, or the nearest that the row sees; 0 where it sees none. */
static __device__ __forceinline__ int64_t own_key(const row_block &block, const row_pair &r, int row)
{
    const int64_t at = block.i0 + r.at[row] + block.s.nk - block.s.nq, last = r.hi[row] - 1;
    return r.lo[row] > last ? 0 : at < r.lo[row] ? r.lo[row] : at < last ? at : last;
}

/* to = times (f - excess key). excess: what rounding adds to a sum of weights; where keys have a common part,
 * it would bring that part into the gradient. `key` is one of those with weight: turned by position (RoPE),
 * keys far away do not have that part in common with them (RoPE-like data: error of dq 2e-3; 4e-3 with the
 * first key). */
template <int DIM>
static __device__ __forceinline__ void put_gradient(const float (&f)[DIM / TILE_SIDE][8][4], int row,
                                                    float times, float excess,
                                                    const __nv_bfloat162 (&key)[DIM / 8], __nv_bfloat16 *to)
{
    const bool pairs = (uintptr_t)to % 4 == 0;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        const int c = column_of(n, 0);
        const float2 own = __bfloat1622float2(key[n]);
        const float(&sum)[4] = f[n / 8][n % 8];
        const __nv_bfloat162 y = __floats2bfloat162_rn(times * (sum[2 * row] - excess * own.x),
                                                       times * (sum[2 * row + 1] - excess * own.y));
        if (pairs)
            *(__nv_bfloat162 *)(to + c) = y;
        else
            to[c] = y.x, to[c + 1] = y.y;
    }
}

/* The thread's channels of own_key of its two rows. */
template <int DIM>
static __device__ __forceinline__ void load_own_keys(__nv_bfloat162 (&own)[2][DIM / 8], const loam_args &a,
                                                     const row_block &block, const row_pair &r)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t token = block.s.nk > 0 ? block.s.k0 + own_key(block, r, row) : 0;
        const __nv_bfloat16 *const key = (const __nv_bfloat16 *)a.k.data +
                                         LOCAL_AT(a.k, block.s.b, block.h_kv, token);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            own[row][n] = *(const __nv_bfloat162 *)(key + column_of(n, 0));
    }
}

template <int DIM, bool PROBED, bool SCALED, bool DECAYED>
static __device__ __forceinline__ void put_rows(const row_gradients<DIM, PROBED> &f, const scale_sums &sums,
                                                const row_constants &rows, const loam_problem &p,
                                                const loam_args &a, const local_saved &saved,
                                                const row_arrays &arrays, const row_block &block,
                                                const row_pair &r)
{
    /* Loads come first: the compiler does not move them above stores. */
    __nv_bfloat162 own[2][DIM / 8];
    load_own_keys<DIM>(own, a, block, r);
    const float sink = p.sink ? ((const float *)a.sink)[block.h] : 0;
    row_scalars rec[2];
    int64_t at[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        at[row] = local_row(&p, &block.s, block.h, block.i0 + (r.real[row] ? r.at[row] : 0));
        rec[row] = record_of(rows, row);
        if constexpr (PROBED) {
            rec[row].rho_kbar = ((const float *)saved.tbar)[2 * at[row]];
            rec[row].rho_rest = ((const float *)saved.tbar)[2 * at[row] + 1];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float inner = quad_sum(f.inner[2 * row] + f.inner[2 * row + 1]);
        const float total = PROBED ? quad_sum(f.total[2 * row] + f.total[2 * row + 1]) : 0;
        const double scale = SCALED ? scale_sum(sums, row, p) : 0;
        const float ds = DECAYED ? quad_sum(sums.total[row]) : 0;
        if (!r.real[row]) continue;
        const int64_t token = block.s.q0 + block.i0 + r.at[row];
        /* sum ds in exact arithmetic: 0, or gbar times the mass of the sink. */
        const float expected = p.sink ? rows.gbar[row] * expf(sink - rec[row].lse) : 0;
        if (a.grad_q.data) {
            put_gradient<DIM>(f.dq, row, (float)p.scale, inner - expected, own[row],
                              (__nv_bfloat16 *)a.grad_q.data + LOCAL_AT(a.grad_q, block.s.b, block.h, token));
        }
        if constexpr (PROBED) {
            if (a.grad_probe.data) {
                put_gradient<DIM>(f.drho, row, -1, total, own[row],
                                  (__nv_bfloat16 *)a.grad_probe.data +
                                      LOCAL_AT(a.grad_probe, block.s.b, block.h, token));
            }
        }
        if (threadIdx.x % 4 == 0) {
            arrays.record[at[row]] = rec[row];
            if (SCALED) arrays.sums.scale[at[row]] = scale;
            if (DECAYED) arrays.sums.inner[at[row]] = (double)ds;
            if (p.sink) {
                arrays.sums.sink[at[row]] = -exp((double)sink - (double)rec[row].lse) *
                                            (double)rows.gbar[row];
            }
        }
    }
}

/* All blocks of a consumer warpgroup. */
template <int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS>
static __device__ __forceinline__ void consume_rows(given_backward_shared<DIM, PROBED, DECAYED, STAYS> &sm,
                                                    given_backward_barriers<DIM, PROBED, STAYS> &bar,
                                                    const loam_problem &p, const loam_args &a,
                                                    const local_saved &saved, const row_arrays &arrays,
                                                    unsigned blocks)
{
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    const int group = threadIdx.x / THREADS;
    unsigned row_count = 0, count = 0;
    for (unsigned round = 0; has_round<STAYS>(blocks, round); round++) {
        const unsigned n = block_of_round(blocks, round);
        if (n >= blocks) continue;
        const row_block block = row_block_at<GIVEN_ROWS>(p, a, n);
        if (block.rows <= 0) continue;
        const row_pair r = row_pair_of(p, block);
        row_constants rows = row_constants_of<DIM, PROBED>(
            sm.rows[row_count % row_stages<STAYS>].grad_o[group], bar.rows, row_count, p, saved, block, r);
        if constexpr (DECAYED) {
            const local_decay_pair *const sums = decay_sums(a, block.s, block.h);
            rows.first_odd = (int)(decay_origin(a, block.s, block.h) % 2);
            rows.decay[0] = row_decay(sums, rows.hi[0]), rows.decay[1] = row_decay(sums, rows.hi[1]);
        }
        scale_sums sums = {};
        if (SCALED) sums = scale_sums_begin(rows, p);
        row_gradients<DIM, PROBED> f = {};
        sweep_rows<DIM, PROBED, SCALED, DECAYED, STAYS>(f, sums, sm, bar, block, rows, row_count++, count);
        put_rows<DIM, PROBED, SCALED, DECAYED>(f, sums, rows, p, a, saved, arrays, block, r);
    }
}

template <int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS>
__global__ void __launch_bounds__(GIVEN_THREADS, 1)
    given_rows_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                             const local_saved saved, const row_arrays arrays, const unsigned blocks,
                             const __grid_constant__ given_backward_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    __shared__ given_backward_barriers<DIM, PROBED, STAYS> bar;
    given_backward_shared<DIM, PROBED, DECAYED, STAYS> &sm = *(
        given_backward_shared<DIM, PROBED, DECAYED, STAYS> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(bar.rows, GIVEN_GROUPS * 4);
        ring_init(bar.ring, GIVEN_GROUPS * 4);
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x >= GIVEN_GROUPS * THREADS) {
        registers_release<24>();
        if (threadIdx.x != GIVEN_GROUPS * THREADS) return;
        unsigned row_count = 0, count = 0;
        for_each_block<STAYS>(blocks, [&](unsigned n) {
            const row_block block = row_block_at<GIVEN_ROWS>(p, a, n);
            if (block.rows <= 0) return;
            if (STAYS && row_count > 0) prefetch_saved<DIM, PROBED>(p, saved, block);
            produce_block(sm, bar, maps, a, block, row_count++, count);
        });
    } else {
        registers_acquire<240>();
        if (threadIdx.x >= THREADS) pingpong_arrive(1);
        consume_rows<DIM, PROBED, SCALED, DECAYED, STAYS>(sm, bar, p, a, saved, arrays, blocks);
    }
}

/* ------------------------------------------------------------------ the launches */

template <int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    const int64_t blocks = (p->len_q + GIVEN_ROWS - 1) / GIVEN_ROWS * p->batch * p->heads_q;
    int64_t grid;
    TRY(cuda_grid_that_stays(blocks, STAYS, &grid, error));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    given_backward_maps maps = {};
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, TILE_SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, p->dim_v, TILE_SIDE, error));
    if (PROBED) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, tile_shape::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, tile_shape::keys, error));
    constexpr size_t shared = sizeof(given_backward_shared<DIM, PROBED, DECAYED, STAYS>);
    TRY(cuda_allow_shared((const void *)given_rows_kernel_hopper<DIM, PROBED, SCALED, DECAYED, STAYS>, shared,
                          error));
    given_rows_kernel_hopper<DIM, PROBED, SCALED, DECAYED, STAYS>
        <<<(unsigned)grid, GIVEN_THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows,
                                                                             (unsigned)blocks, maps);
    return cuda_launched("given_rows_kernel_hopper", error);
}

template <int DIM, bool PROBED, bool SCALED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  loam_error *error)
{
    if (p->decay) return launch<DIM, PROBED, SCALED, true, false>(p, a, rows, error);
    /* With 128 channels there is no room for the rows of two blocks. */
    if constexpr (DIM == 64)
        if (p->len_q <= GIVEN_SHORT) return launch<DIM, PROBED, SCALED, false, true>(p, a, rows, error);
    return launch<DIM, PROBED, SCALED, false, false>(p, a, rows, error);
}

template <int DIM, bool PROBED>
static loam_status launch_scaled(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return a->grad_scale ? launch_decayed<DIM, PROBED, true>(p, a, rows, error)
                         : launch_decayed<DIM, PROBED, false>(p, a, rows, error);
}

template <int DIM>
static loam_status launch_probed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return p->mechanism == LOAM_PARALLAX ? launch_scaled<DIM, true>(p, a, rows, error)
                                         : launch_scaled<DIM, false>(p, a, rows, error);
}

loam_status local_rows_given_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                    loam_error *error)
{
    if (p->len_q == 0) return LOAM_OK;
    return p->dim_qk == 64 ? launch_probed<64>(p, a, rows, error) : launch_probed<128>(p, a, rows, error);
}
