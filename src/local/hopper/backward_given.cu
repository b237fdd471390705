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
#include "src/local/hopper/channels.cuh"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/operand_fall.cuh"

enum {
    GIVEN_GROUPS = 2,
    GIVEN_THREADS = (GIVEN_GROUPS + 1) * THREADS,
    GIVEN_SHORT = 1024 /* up to so many queries thread blocks stay */
};

/* Weights of float16 are raised by so many powers of 2 at first: that, and how far rows lower it, is their lift. */
enum { GIVEN_RAISE = 14 };

/* Of a kernel: numbers of type T, tiles of DIM channels, a probe or none, whether the gradient of the scale is
 * wanted, whether scores decay, whether thread blocks stay. */
template <class T, int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS> struct given_backward {
    typedef T type;
    static constexpr int dim = DIM;
    static constexpr bool probed = PROBED, scaled = SCALED, decayed = DECAYED, stays = STAYS;
    static constexpr bool folded = is_half<T>;
    /* Both consumers have the same 64 rows, and each half of the columns of their gradients, which all together do
     * not fit registers; both compute the scores. */
    static constexpr bool shared_rows = PROBED && DIM > 128;
    static constexpr int columns = shared_rows ? DIM / 2 : DIM;
    static constexpr int groups = shared_rows ? 1 : GIVEN_GROUPS, rows = groups * TILE_SIDE;
    /* Keys of a tile, as many as leave registers for the accumulators of 64 rows. */
    static constexpr int keys = PROBED ? DIM == 64 ? 64 : 48 : DIM == 256 ? 48 : DIM > 128 ? 64 : 128;
    static constexpr int blocks = keys / 8, steps = keys / 16;
    static constexpr int key_stages = DIM == 256 && !PROBED ? 2
                                      : DIM > 128           ? 3
                                      : PROBED || DIM == 64 ? 4
                                                            : 2,
                         value_stages = key_stages == 3 ? 2 : key_stages;
    static constexpr int row_tiles = PROBED ? 3 : 2;
    static constexpr int row_stages = STAYS ? 2 : 1; /* blocks whose rows are in shared memory at once */
};

/* Rows of a block. */
template <class S> struct given_backward_rows {
    typedef typename S::type T;
    alignas(1024) T query[S::groups][S::dim * TILE_SIDE];
    T grad_o[S::groups][S::dim * TILE_SIDE];
    T probe[S::probed ? S::groups : 1][S::probed ? S::dim * TILE_SIDE : TILE_SIDE * 8];
};

template <class S> struct given_backward_shared {
    given_backward_rows<S> rows[S::row_stages];
    typename S::type keys[S::key_stages][S::dim * S::keys], values[S::value_stages][S::dim * S::keys];
    decay_tile<S::decayed, S::keys> decay[S::key_stages];
};

template <class S> struct given_backward_barriers {
    ring_barriers<S::row_stages> rows;
    ring_barriers<S::key_stages> keys;
    ring_barriers<S::value_stages> values;
};

/* Tensor maps of the arrays. */
struct given_backward_maps {
    CUtensorMap q, grad_o, probe, k, v;
};

/* ------------------------------------------------------------------ the producer */

template <class S>
static __device__ __forceinline__ void load_rows_of_groups(typename S::type (*tile)[S::dim * TILE_SIDE],
                                                           const CUtensorMap &map, const row_block &block,
                                                           uint64_t *full)
{
#pragma unroll
    for (int group = 0; group < S::groups; group++) {
        load_tile<S::dim>(tile[group], map, full, (int)(block.s.q0 + block.i0) + group * TILE_SIDE,
                          (int)block.h, (int)block.s.b);
    }
}

/* What forward saved of a block's rows, into the L2 cache. */
template <class S>
static __device__ __forceinline__ void prefetch_saved(const loam_problem &p, const local_saved &saved,
                                                      const row_block &block)
{
    if (p.dim_v % 4 != 0) return;
    const int64_t at = local_row(&p, &block.s, block.h, block.i0) * p.dim_v;
    const unsigned bytes = (unsigned)(block.rows * p.dim_v * 4);
    prefetch_l2((const float *)saved.vbar + at, bytes);
    if constexpr (S::probed) prefetch_l2((const float *)saved.value_shift + at, bytes);
}

/* The rows of a block, then its tiles. */
template <class S>
static __device__ __forceinline__ void produce_block(given_backward_shared<S> &sm,
                                                     given_backward_barriers<S> &bar,
                                                     const given_backward_maps &maps, const loam_args &a,
                                                     const row_block &block, unsigned row_count,
                                                     unsigned &count)
{
    constexpr unsigned tile_bytes = S::dim * S::keys * 2,
                       decay_bytes = decay_tile<S::decayed, S::keys>::bytes;
    given_backward_rows<S> &rows = sm.rows[row_count % S::row_stages];
    uint64_t *full = ring_acquire(bar.rows, row_count, S::row_tiles * sizeof rows.query);
    load_rows_of_groups<S>(rows.query, maps.q, block, full);
    load_rows_of_groups<S>(rows.grad_o, maps.grad_o, block, full);
    if constexpr (S::probed) load_rows_of_groups<S>(rows.probe, maps.probe, block, full);
    const int64_t origin = S::decayed ? decay_origin(a, block.s, block.h) : 0;
    for (int j = block.first; j < block.last; j += S::keys, count++) {
        const int token = (int)block.s.k0 + j;
        full = ring_acquire(bar.keys, count, tile_bytes + decay_bytes);
        copy_decay(sm.decay[count % S::key_stages], a, origin + j, full);
        load_tile<S::dim, S::keys>(sm.keys[count % S::key_stages], maps.k, full, token, (int)block.h_kv,
                                   (int)block.s.b);
        full = ring_acquire(bar.values, count, tile_bytes);
        load_tile<S::dim, S::keys>(sm.values[count % S::value_stages], maps.v, full, token, (int)block.h_kv,
                                   (int)block.s.b);
    }
}

/* ------------------------------------------------------------------ the consumers */

/* Constants of the thread's two rows. */
struct row_constants {
    float scale2;                     /* of scores, to base 2 */
    float lse[2], lse2[2];            /* to base e and 2; 0 for rows that see no key */
    float gbar[2], e[2];              /* do . vbar, do . (vbar - o) */
    float one_plus_tbar[2];           /* 1 + tbar, so that 1 - t = beside - rho . k */
    float lift[2];                    /* powers of 2 in p, which lse2 leaves out */
    float most[2];                    /* the largest |1 - t| of the thread's columns */
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

/* The thread's share of a row of `saved`, of which it has `channels`: four of every sixteen, from channel 16 first
 * on. */
template <int COUNT>
static __device__ __forceinline__ void load_row(float4 (&part)[COUNT], const void *rows, int64_t at,
                                                int64_t channels, int first)
{
    const float *const row = (const float *)rows + at * channels;
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        const int c = 16 * (first + n) + (int)threadIdx.x % 4 * 4;
        if (channels % 4 == 0) {
            part[n] = c < channels ? *(const float4 *)(row + c) : make_float4(0, 0, 0, 0);
        } else {
            part[n] = make_float4(c < channels ? row[c] : 0, c + 1 < channels ? row[c + 1] : 0,
                                  c + 2 < channels ? row[c + 2] : 0, c + 3 < channels ? row[c + 3] : 0);
        }
    }
}

/* The thread's share of do . a row of `saved`. */
template <class T, int COUNT>
static __device__ __forceinline__ float grad_o_times(const T *grad_o, int r, const float4 (&part)[COUNT],
                                                     int first)
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        const uint2 y = *(const uint2 *)(grad_o + swizzled(r, 16 * (first + n) + threadIdx.x % 4 * 4));
        const float2 low = unpack_pair<T>(y.x), high = unpack_pair<T>(y.y);
        sum += low.x * part[n].x + low.y * part[n].y + high.x * part[n].z + high.y * part[n].w;
    }
    return sum;
}

/* do . a row of `saved`, of which `part` has the first channels; the four lanes of the row call it. */
template <class S, int COUNT>
static __device__ __forceinline__ float grad_o_product(const typename S::type *grad_o, int r,
                                                       const float4 (&part)[COUNT], const void *rows,
                                                       int64_t at, int64_t channels)
{
    float sum = grad_o_times(grad_o, r, part, 0);
#pragma unroll
    for (int first = COUNT; first < S::dim / 16; first += 4) {
        float4 more[4];
        load_row(more, rows, at, channels, first);
        sum += grad_o_times(grad_o, r, more, first);
    }
    return quad_sum(sum);
}

/* The constants of a warpgroup's rows; waits for the tile of do. */
template <class S>
static __device__ __forceinline__ row_constants row_constants_of(const typename S::type *grad_o,
                                                                 ring_barriers<S::row_stages> &ring,
                                                                 unsigned row_count, const loam_problem &p,
                                                                 const local_saved &saved,
                                                                 const row_block &block, const row_pair &r)
{
    constexpr int ahead = S::dim > 128 ? 4 : S::dim / 16; /* of the shares, loaded while the tile is copied */
    row_constants rows;
    const int first = r.at[0] / TILE_SIDE * TILE_SIDE, left = block.rows - first;
    int64_t lo = 0, to = 0, last = 0, unused, at[2];
    if (left > 0) {
        const int64_t i = block.i0 + first;
        local_visible(&p, &block.s, i, &unused, &to);
        local_visible(&p, &block.s, i + (left < TILE_SIDE ? left : TILE_SIDE) - 1, &lo, &last);
    }
    rows.unmasked_begin = (int)lo, rows.unmasked_end = left < TILE_SIDE ? 0 : (int)to,
    rows.last = (int)(last > to ? last : to);
    rows.scale2 = (float)(p.scale * 1.4426950408889634);
    float4 vbar[2][ahead], value_shift[S::probed ? 2 : 1][ahead];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        /* Rows beyond the sequence read the last row, to no effect. */
        at[row] = local_row(&p, &block.s, block.h, block.i0 + (r.real[row] ? r.at[row] : block.rows - 1));
        load_row(vbar[row], saved.vbar, at[row], p.dim_v, 0);
        rows.lse[row] = finite_or_zero(((const float *)saved.lse)[at[row]]);
        rows.one_plus_tbar[row] = 0;
        if constexpr (S::probed) {
            load_row(value_shift[row], saved.value_shift, at[row], p.dim_v, 0);
            rows.one_plus_tbar[row] = 1 + ((const float *)saved.tbar)[2 * at[row]] +
                                      ((const float *)saved.tbar)[2 * at[row] + 1];
        }
    }
    ring_wait(ring, row_count);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int line = r.at[row] % TILE_SIDE;
        const float gbar = grad_o_product<S>(grad_o, line, vbar[row], saved.vbar, at[row], p.dim_v);
        rows.lo[row] = r.lo[row], rows.hi[row] = r.hi[row];
        rows.lift[row] = S::folded ? GIVEN_RAISE : 0, rows.most[row] = 0;
        rows.lse2[row] = rows.lse[row] * 1.44269504f - rows.lift[row];
        rows.gbar[row] = r.real[row] ? gbar : 0;
        rows.e[row] = 0;
        if constexpr (S::probed) {
            const float e = grad_o_product<S>(grad_o, line, value_shift[row], saved.value_shift, at[row],
                                              p.dim_v);
            rows.e[row] = r.real[row] ? e : 0;
        }
    }
    return rows;
}

/* Keys `count` .. of a tile, which the block does not see, become 0: they may be NaN in memory. */
template <int DIM, int KEYS, class T>
static __device__ __forceinline__ void clear_tail_warpgroup(T *tile, int count)
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
    return exp2_fast(fminf(product * rows.scale2 - rows.lse2[row], rows.lift[row]));
}
static __device__ __forceinline__ float weight_at(const row_constants &rows, int row, float product,
                                                  const local_decay_pair *keys, int j, int c)
{
    const local_decay_pair key = keys[(rows.first_odd + j) % 2 + c];
    const float decay = (rows.decay[row].hi - key.hi) + (rows.decay[row].lo - key.lo);
    return exp2_fast(fminf(fmaf(product, rows.scale2, decay) - rows.lse2[row], rows.lift[row]));
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

/* s = p becomes ds and g = do . v becomes p gam; u = rho . k. S::scaled: s is q . k on entry. */
template <class S, class DECAY, int BLOCKS, int PROBE_BLOCKS>
static __device__ __forceinline__ void probe_score_gradients(float (&s)[BLOCKS][4], float (&g)[BLOCKS][4],
                                                             const float (&u)[PROBE_BLOCKS][4],
                                                             scale_sums &sum, row_constants &rows,
                                                             const DECAY *decay, int j)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2;
            const bool seen = !S::scaled || rows.seen(row, j + column_of(n, e));
            const float x = s[n][e], p = !S::scaled ? x
                                         : seen     ? weight_at(rows, row, x, decay, j, column_of(n, e))
                                                    : 0;
            float ds = p * (g[n][e] - rows.gbar[row]);
            g[n][e] = ds;
            if constexpr (S::probed) {
                const float beside = rows.one_plus_tbar[row] - u[n][e];
                if constexpr (S::folded) rows.most[row] = fmaxf(rows.most[row], fabsf(beside));
                ds = ds * beside + p * rows.e[row];
            }
            s[n][e] = ds;
            if constexpr (S::decayed) sum.total[row] += ds;
            if constexpr (S::scaled) {
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
template <int STEPS, class T>
static __device__ __forceinline__ void add_rounded(float (&sum)[4], const weights_operand<1, STEPS, T> &w)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 pair = unpack_pair<T>(w.part[0][k][e]);
            sum[e % 2 * 2] += pair.x;
            sum[e % 2 * 2 + 1] += pair.y;
        }
    }
}

/* Ping-pong: the two consumers alternate in issuing the products of a tile, and the first one begins. While
 * the products of one run, the other computes its weights. Named barriers 1 and 2 are those of
 * clear_tail_warpgroup, 5 and 6 those by which a warpgroup decides. */
static __device__ __forceinline__ int vote_barrier()
{
    return 1 + 2 * GIVEN_GROUPS + (int)threadIdx.x / THREADS;
}
static __device__ __forceinline__ void pingpong_wait(int group)
{
    named_barrier_sync<GIVEN_GROUPS * THREADS>(1 + GIVEN_GROUPS + group);
}
static __device__ __forceinline__ void pingpong_arrive(int group)
{
    named_barrier_arrive<GIVEN_GROUPS * THREADS>(2 * GIVEN_GROUPS - group);
}

/* Accumulators over all keys. inner and total are sums of this thread's columns, two for each row. */
template <class S> struct row_gradients {
    float dq[S::columns / TILE_SIDE][8][4], drho[S::probed ? S::columns / TILE_SIDE : 1][8][4];
    float inner[4], total[4]; /* of ds and of p gam, as rounded for the products */
};

template <class S> static __device__ __forceinline__ void wgmma_results(row_gradients<S> &f)
{
    wgmma_results(f.dq);
    if constexpr (S::probed) wgmma_results(f.drho);
}

/* Products of a tile: s = q . k, u = probe . k, g = do . v. */
template <class S> struct tile_products {
    float s[S::blocks][4], g[S::blocks][4], u[S::probed ? S::blocks : 1][4];
};

/* u, where there is a probe, becomes 0 where the row does not see the key. */
template <class S>
static __device__ __forceinline__ void clear_unseen_probe(tile_products<S> &tile, const row_constants &rows,
                                                          int j)
{
    if constexpr (S::probed) clear_unseen(tile.u, rows, j);
}

/* Issues s and u, each in a group of its own. */
template <class S>
static __device__ __forceinline__ void issue_scores(tile_products<S> &tile,
                                                    const given_backward_rows<S> &rows, int group,
                                                    const typename S::type *keys)
{
    multiply_rows<S::dim>(tile.s, rows.query[group], keys, false);
    wgmma_commit();
    if constexpr (S::probed) {
        multiply_rows<S::dim>(tile.u, rows.probe[group], keys, false);
        wgmma_commit();
    }
}

/* What a thread has summed follows where weights would leave the range of their type: from now on they are raised
 * less. */
template <class S>
static __device__ __forceinline__ void lower_lift(row_gradients<S> &f, scale_sums &sums, row_constants &rows,
                                                  const float (&by)[2])
{
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++) {
        scale_rows(f.dq[n], by);
        if constexpr (S::probed) scale_rows(f.drho[n], by);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float fall = (float)(127 - (int)(__float_as_uint(by[row]) >> 23));
        rows.lift[row] -= fall, rows.lse2[row] += fall;
        f.inner[2 * row] *= by[row], f.inner[2 * row + 1] *= by[row];
        f.total[2 * row] *= by[row], f.total[2 * row + 1] *= by[row];
        sums.inner[row] *= by[row], sums.scale[row] *= by[row], sums.large[row] *= by[row];
        sums.mean[row] *= by[row], sums.total[row] *= by[row];
    }
}

/* Where the warpgroup's columns begin in a tile of keys. */
template <class S> static __device__ __forceinline__ int own_columns()
{
    return S::shared_rows ? (int)threadIdx.x / THREADS * S::columns * S::keys : 0;
}

/* Operands of a tile: ds, and p gam. */
template <class S> struct tile_operands {
    weights_operand<1, S::steps, typename S::type> ds, error;
};

/* Makes the operands: of s, which is ds, and of g, which is p gam. True where float16 could not hold them: they then
 * are scaled by `by`, and what was summed before is not. */
template <class S>
static __device__ __forceinline__ bool make_operands(tile_operands<S> &w, tile_products<S> &tile,
                                                     float (&by)[2])
{
    split_weights(w.ds, tile.s);
    if constexpr (S::probed) split_weights(w.error, tile.g);
    if constexpr (S::folded && S::probed)
        return fall_of_operands(by, w.ds, tile.s, w.error, tile.g, vote_barrier());
    if constexpr (S::folded && !S::probed) return fall_of_operand(by, w.ds, tile.s, vote_barrier());
    return false;
}

/* Issues dq += ds k and drho += p gam k, and sums their weights as rounded. `keys` are those of the warpgroup's
 * columns. */
template <class S>
static __device__ __forceinline__ void issue_gradients(row_gradients<S> &f, const tile_operands<S> &w,
                                                       const typename S::type *keys)
{
    add_rounded(f.inner, w.ds);
    multiply_weights<S::columns>(f.dq, w.ds.part[0], keys);
    if constexpr (S::probed) {
        add_rounded(f.total, w.error);
        multiply_weights<S::columns>(f.drho, w.error.part[0], keys);
    }
    wgmma_commit();
}

/* Releases the tiles from key j on, which none of the warpgroup's rows sees, and keeps the turns. */
template <class S>
static __device__ __forceinline__ void skip_tiles(given_backward_barriers<S> &bar, unsigned &count, int j,
                                                  int last, int group)
{
    for (; j < last; j += S::keys, count++) {
        ring_wait(bar.keys, count);
        ring_release(bar.keys, count);
        ring_wait(bar.values, count);
        ring_release(bar.values, count);
        pingpong_wait(group);
        pingpong_arrive(group);
    }
}

/* The sweep of a consumer warpgroup over the tiles of the block from key j on, tile number `count` on. True where it
 * stops at a tile whose operands w are scaled by `by` and wait for what was summed before to be; no product then is in
 * flight. */
template <class S>
static __device__ __forceinline__ bool sweep_tiles(row_gradients<S> &f, scale_sums &sums,
                                                   given_backward_shared<S> &sm,
                                                   given_backward_barriers<S> &bar, const row_block &block,
                                                   row_constants &rows, const given_backward_rows<S> &own,
                                                   int &j, unsigned &count, tile_operands<S> &w,
                                                   float (&by)[2])
{
    constexpr int in_flight = S::probed ? 2 : 1;
    const int group = threadIdx.x / THREADS, own_tile = S::shared_rows ? 0 : group;
    tile_products<S> tile;
    for (; j < rows.last; j += S::keys, count++) {
        typename S::type *const keys = sm.keys[count % S::key_stages];
        const typename S::type *const values = sm.values[count % S::value_stages];
        const auto *const decay = decay_of(sm.decay[count % S::key_stages]);
        const bool masked = j < rows.unmasked_begin || j + S::keys > rows.unmasked_end;
        ring_wait(bar.keys, count);
        if (j + S::keys > block.last) clear_tail_warpgroup<S::dim, S::keys>(keys, block.last - j);
        pingpong_wait(group);
        issue_scores(tile, own, own_tile, keys);
        wgmma_wait<in_flight>();
        if (j > block.first) ring_release(bar.keys, count - 1);
        ring_wait(bar.values, count);
        multiply_rows<S::dim>(tile.g, own.grad_o[own_tile], values, false);
        wgmma_commit();
        pingpong_arrive(group);
        wgmma_wait<in_flight>();
        wgmma_results(tile.s);
        if constexpr (!S::scaled) {
            weights_of(tile.s, rows, decay, j);
            if (masked) clear_unseen(tile.s, rows, j);
        }
        wgmma_wait<0>();
        wgmma_results(tile.g);
        ring_release(bar.values, count);
        if constexpr (S::probed) wgmma_results(tile.u);
        if (masked) {
            clear_unseen(tile.g, rows, j);
            clear_unseen_probe(tile, rows, j);
        }
        probe_score_gradients<S>(tile.s, tile.g, tile.u, sums, rows, decay, j);
        if (make_operands(w, tile, by)) return true;
        issue_gradients(f, w, keys + own_columns<S>());
    }
    return false;
}

/* The whole sweep. */
template <class S>
static __device__ __forceinline__ void sweep_rows(row_gradients<S> &f, scale_sums &sums,
                                                  given_backward_shared<S> &sm,
                                                  given_backward_barriers<S> &bar, const row_block &block,
                                                  row_constants &rows, unsigned row_count, unsigned &count)
{
    const given_backward_rows<S> &own = sm.rows[row_count % S::row_stages];
    tile_operands<S> w;
    float by[2];
    int j = block.first;
    while (sweep_tiles(f, sums, sm, bar, block, rows, own, j, count, w, by)) {
        wgmma_wait<0>();
        wgmma_results(f);
        lower_lift(f, sums, rows, by);
        issue_gradients(f, w, sm.keys[count % S::key_stages] + own_columns<S>());
        wgmma_wait<0>();
        wgmma_results(f);
        j += S::keys, count++;
    }
    wgmma_wait<0>();
    wgmma_results(f);
    ring_release(bar.rows, row_count);
    if (j > block.first) ring_release(bar.keys, count - 1);
    skip_tiles(bar, count, j, block.last, (int)threadIdx.x / THREADS);
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

/* to = times (f - excess key), of the thread's channels from `column` on, of `channels`. excess: what rounding adds
 * to a sum of weights; where keys have a common part, it would bring that part into the gradient. `key` is one of
 * those with weight: turned by position (RoPE), keys far away do not have that part in common with them (RoPE-like
 * data: error of dq 2e-3; 4e-3 with the first key). */
template <class S>
static __device__ __forceinline__ void put_gradient(const float (&f)[S::columns / TILE_SIDE][8][4], int row,
                                                    float times, float excess,
                                                    const uint32_t (&key)[S::columns / 8],
                                                    typename S::type *to, int column, int channels)
{
#pragma unroll
    for (int n = 0; n < S::columns / 8; n++) {
        const float2 own = unpack_pair<typename S::type>(key[n]);
        const float(&sum)[4] = f[n / 8][n % 8];
        store_channels(to, column + column_of(n, 0), channels, times * (sum[2 * row] - excess * own.x),
                       times * (sum[2 * row + 1] - excess * own.y));
    }
}

/* The thread's channels of own_key of its two rows, from `column` on. */
template <class S>
static __device__ __forceinline__ void load_own_keys(uint32_t (&own)[2][S::columns / 8],
                                                     const loam_problem &p, const loam_args &a,
                                                     const row_block &block, const row_pair &r, int column)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t token = block.s.nk > 0 ? block.s.k0 + own_key(block, r, row) : 0;
        const uint16_t *const key = (const uint16_t *)a.k.data + LOCAL_AT(a.k, block.s.b, block.h_kv, token);
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const int c = column + column_of(n, 0);
            own[row][n] = c + 1 < p.dim_qk ? *(const uint32_t *)(key + c) : c < p.dim_qk ? key[c] : 0;
        }
    }
}

/* What operands of the pass over keys need to stay within the range of float16 (key_falls). */
template <class S>
static __device__ __forceinline__ void put_falls(const row_constants &rows, const loam_problem &p,
                                                 const row_arrays &arrays, const row_block &block, unsigned n)
{
    int fall = 0, probe = 0;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        fall = max(fall, GIVEN_RAISE - (int)rows.lift[row]);
        probe = max(probe, rows.most[row] < INFINITY ? ilogbf(rows.most[row]) + 1 : 0);
    }
    fall = __reduce_max_sync(0xffffffffu, fall), probe = __reduce_max_sync(0xffffffffu, probe);
    if (threadIdx.x % 32 != 0) return;
    const int64_t at = n / p.heads_q % p.batch * p.heads_kv + block.h_kv;
    if (fall > 0) atomicMax(arrays.state + at, fall);
    if (S::probed && probe > 0) atomicMax(arrays.state + key_falls(p) / 2 + at, probe);
}

/* The row's sums without the lift. */
static __device__ __forceinline__ void unlift(scale_sums &sums, int row, float inverse)
{
    sums.inner[row] *= inverse, sums.scale[row] *= inverse, sums.large[row] *= inverse;
    sums.mean[row] *= inverse, sums.total[row] *= inverse;
}

template <class S>
static __device__ __forceinline__ void put_rows(const row_gradients<S> &f, scale_sums &sums,
                                                const row_constants &rows, const loam_problem &p,
                                                const loam_args &a, const local_saved &saved,
                                                const row_arrays &arrays, const row_block &block,
                                                const row_pair &r)
{
    typedef typename S::type T;
    const int column = S::shared_rows ? (int)threadIdx.x / THREADS * S::columns : 0;
    /* Loads come first: the compiler does not move them above stores. */
    uint32_t own[2][S::columns / 8];
    load_own_keys<S>(own, p, a, block, r, column);
    const float sink = p.sink ? ((const float *)a.sink)[block.h] : 0;
    row_scalars rec[2];
    int64_t at[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        at[row] = local_row(&p, &block.s, block.h, block.i0 + (r.real[row] ? r.at[row] : 0));
        rec[row] = record_of(rows, row);
        if constexpr (S::probed) {
            rec[row].rho_kbar = ((const float *)saved.tbar)[2 * at[row]];
            rec[row].rho_rest = ((const float *)saved.tbar)[2 * at[row] + 1];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float lift = S::folded ? exp2f(rows.lift[row]) : 1, inverse = S::folded ? 1 / lift : 1;
        if constexpr (S::folded) unlift(sums, row, inverse);
        const float inner = quad_sum(f.inner[2 * row] + f.inner[2 * row + 1]);
        const float total = S::probed ? quad_sum(f.total[2 * row] + f.total[2 * row + 1]) : 0;
        const double scale = S::scaled ? scale_sum(sums, row, p) : 0;
        const float ds = S::decayed ? quad_sum(sums.total[row]) : 0;
        if (!r.real[row]) continue;
        const int64_t token = block.s.q0 + block.i0 + r.at[row];
        /* sum ds in exact arithmetic: 0, or gbar times the mass of the sink. */
        const float expected = p.sink ? rows.gbar[row] * expf(sink - rec[row].lse) * lift : 0;
        if (a.grad_q.data) {
            put_gradient<S>(f.dq, row, (float)p.scale * inverse, inner - expected, own[row],
                            (T *)a.grad_q.data + LOCAL_AT(a.grad_q, block.s.b, block.h, token), column,
                            (int)p.dim_qk);
        }
        if constexpr (S::probed) {
            if (a.grad_probe.data) {
                put_gradient<S>(f.drho, row, -inverse, total, own[row],
                                (T *)a.grad_probe.data + LOCAL_AT(a.grad_probe, block.s.b, block.h, token),
                                column, (int)p.dim_qk);
            }
        }
        if (threadIdx.x % 4 == 0 && column == 0) {
            arrays.record[at[row]] = rec[row];
            if (S::scaled && a.grad_scale) arrays.sums.scale[at[row]] = scale;
            if (S::decayed) arrays.sums.inner[at[row]] = (double)ds;
            if (p.sink) {
                arrays.sums.sink[at[row]] = -exp((double)sink - (double)rec[row].lse) *
                                            (double)rows.gbar[row];
            }
        }
    }
}

/* The rows of the thread in the block. Where the consumers share rows, those of the second are the first's. */
template <class S>
static __device__ __forceinline__ row_pair given_rows_of(const loam_problem &p, row_block block)
{
    const int before = S::shared_rows ? (int)threadIdx.x / THREADS * TILE_SIDE : 0;
    block.i0 -= before, block.rows += before;
    row_pair r = row_pair_of(p, block);
    r.at[0] -= before, r.at[1] -= before;
    return r;
}

/* All blocks of a consumer warpgroup. */
template <class S>
static __device__ __forceinline__ void consume_rows(given_backward_shared<S> &sm,
                                                    given_backward_barriers<S> &bar, const loam_problem &p,
                                                    const loam_args &a, const local_saved &saved,
                                                    const row_arrays &arrays, unsigned blocks)
{
    const int group = S::shared_rows ? 0 : (int)threadIdx.x / THREADS;
    unsigned row_count = 0, count = 0;
    for (unsigned round = 0; has_round<S::stays>(blocks, round); round++) {
        const unsigned n = block_of_round(blocks, round);
        if (n >= blocks) continue;
        const row_block block = row_block_at<S::rows>(p, a, n);
        if (block.rows <= 0) continue;
        const row_pair r = given_rows_of<S>(p, block);
        row_constants rows = row_constants_of<S>(sm.rows[row_count % S::row_stages].grad_o[group], bar.rows,
                                                 row_count, p, saved, block, r);
        if constexpr (S::decayed) {
            const local_decay_pair *const sums = decay_sums(a, block.s, block.h);
            rows.first_odd = (int)(decay_origin(a, block.s, block.h) % 2);
            rows.decay[0] = row_decay(sums, rows.hi[0]), rows.decay[1] = row_decay(sums, rows.hi[1]);
        }
        scale_sums sums = {};
        if (S::scaled) sums = scale_sums_begin(rows, p);
        row_gradients<S> f = {};
        sweep_rows(f, sums, sm, bar, block, rows, row_count++, count);
        put_rows(f, sums, rows, p, a, saved, arrays, block, r);
        if constexpr (S::folded) put_falls<S>(rows, p, arrays, block, n);
    }
}

template <class S>
__global__ void __launch_bounds__(GIVEN_THREADS, 1)
    given_rows_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                             const local_saved saved, const row_arrays arrays, const unsigned blocks,
                             const __grid_constant__ given_backward_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    __shared__ given_backward_barriers<S> bar;
    given_backward_shared<S> &sm = *(given_backward_shared<S> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(bar.rows, GIVEN_GROUPS * 4);
        ring_init(bar.keys, GIVEN_GROUPS * 4);
        ring_init(bar.values, GIVEN_GROUPS * 4);
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x >= GIVEN_GROUPS * THREADS) {
        registers_release<24>();
        if (threadIdx.x != GIVEN_GROUPS * THREADS) return;
        unsigned row_count = 0, count = 0;
        for_each_block<S::stays>(blocks, [&](unsigned n) {
            const row_block block = row_block_at<S::rows>(p, a, n);
            if (block.rows <= 0) return;
            if (S::stays && row_count > 0) prefetch_saved<S>(p, saved, block);
            produce_block(sm, bar, maps, a, block, row_count++, count);
        });
    } else {
        registers_acquire<240>();
        if (threadIdx.x >= THREADS) pingpong_arrive(1);
        consume_rows(sm, bar, p, a, saved, arrays, blocks);
    }
}

/* ------------------------------------------------------------------ the launches */

template <class S>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    const int64_t blocks = (p->len_q + S::rows - 1) / S::rows * p->batch * p->heads_q;
    int64_t grid;
    TRY(cuda_grid_that_stays(blocks, S::stays, &grid, error));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    given_backward_maps maps = {};
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, TILE_SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, p->dim_v, TILE_SIDE, error));
    if (S::probed) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, S::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, S::keys, error));
    constexpr size_t shared = sizeof(given_backward_shared<S>);
    TRY(cuda_allow_shared((const void *)given_rows_kernel_hopper<S>, shared, error));
    given_rows_kernel_hopper<S><<<(unsigned)grid, GIVEN_THREADS, shared, (cudaStream_t)a->stream>>>(
        *p, *a, saved, *rows, (unsigned)blocks, maps);
    return cuda_launched("given_rows_kernel_hopper", error);
}

/* Only bfloat16 in narrow tiles has instances that leave out the gradient of the scale where scores decay, and that
 * stay where sequences are short; with 128 channels there is no room for the rows of two blocks. */
template <class T, int DIM, bool PROBED, bool SCALED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  loam_error *error)
{
    constexpr bool all = !is_half<T> && DIM <= 128;
    if (p->decay)
        return launch<given_backward<T, DIM, PROBED, SCALED || !all, true, false>>(p, a, rows, error);
    if constexpr (all && DIM == 64) {
        if (p->len_q <= GIVEN_SHORT)
            return launch<given_backward<T, DIM, PROBED, SCALED, false, true>>(p, a, rows, error);
    }
    return launch<given_backward<T, DIM, PROBED, SCALED, false, false>>(p, a, rows, error);
}

template <class T, int DIM, bool PROBED>
static loam_status launch_scaled(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return a->grad_scale ? launch_decayed<T, DIM, PROBED, true>(p, a, rows, error)
                         : launch_decayed<T, DIM, PROBED, false>(p, a, rows, error);
}

template <class T, bool PROBED>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                              loam_error *error)
{
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if (dim <= 64) return launch_scaled<T, 64, PROBED>(p, a, rows, error);
    if (dim <= 128) return launch_scaled<T, 128, PROBED>(p, a, rows, error);
    if constexpr (!PROBED)
        if (dim <= 192) return launch_scaled<T, 192, PROBED>(p, a, rows, error);
    return launch_scaled<T, 256, PROBED>(p, a, rows, error);
}

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               loam_error *error)
{
    return p->mechanism == LOAM_PARALLAX ? launch_dim<T, true>(p, a, rows, error)
                                         : launch_dim<T, false>(p, a, rows, error);
}

loam_status local_rows_given_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                    loam_error *error)
{
    if (p->len_q == 0) return LOAM_OK;
    return p->dtype == LOAM_F16 ? launch_type<__half>(p, a, rows, error)
                                : launch_type<__nv_bfloat16>(p, a, rows, error);
}
