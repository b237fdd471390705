/* SPDX-License-Identifier: MIT
 * The pass over rows of the backward of softmax and Parallax on Hopper: the shapes of its tiles, what a
 * thread knows of its two rows, and what it does to the pairs of a tile. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_GIVEN_PAIRS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_GIVEN_PAIRS_CUH

#include "src/gpu/ring.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/operand_fall.cuh"

enum {
    GIVEN_GROUPS = 2,
    GIVEN_THREADS = (GIVEN_GROUPS + 1) * THREADS,
    TASKS = 2, /* blocks that are told ahead */
};

/* Weights of float16 are raised by powers of 2 of each row, its lift: so many that |do| would be 2^LIFT_TOP,
 * but at most LIFT_MOST. */
enum { LIFT_TOP = 10, LIFT_MOST = 30 };

/* Of a kernel: numbers of type T, tiles of DIM channels, a probe or none, whether the gradient of the scale
 * is wanted, whether scores decay, whether thread blocks stay; whether it is for the blocks of another in
 * which operands of float16 were infinite. */
template <class T, int DIM, bool PROBED, bool SCALED, bool DECAYED, bool STAYS, bool AGAIN = false>
struct given_backward {
    typedef T type;
    typedef given_backward<T, DIM, PROBED, SCALED, DECAYED, false, true> same_again;
    static constexpr int dim = DIM;
    static constexpr bool probed = PROBED, scaled = SCALED, decayed = DECAYED, stays = STAYS, again = AGAIN;
    static constexpr bool loops = STAYS || AGAIN; /* do thread blocks take several blocks? */
    static constexpr bool folded = is_half<T>;
    /* Both consumers have the same 64 rows, and each half of the columns of their gradients, which all
     * together do not fit registers; both compute the scores. */
    static constexpr bool shared_rows = PROBED && DIM > 128;
    static constexpr int columns = shared_rows ? DIM / 2 : DIM;
    static constexpr int groups = shared_rows ? 1 : GIVEN_GROUPS, rows = groups * TILE_SIDE;
    /* Keys of a tile, as many as leave registers for the accumulators of 64 rows. */
    static constexpr int probed_keys = DIM == 64 ? 64 : 48,
                         plain_keys = DIM == 256   ? 48
                                      : DIM == 192 ? 64
                                                   : 128,
                         keys = PROBED ? probed_keys : plain_keys;
    static constexpr int blocks = keys / 8, steps = keys / 16;
    static constexpr int key_stages = DIM == 256 && !PROBED ? 2
                                      : DIM > 128           ? 3
                                      : PROBED || DIM == 64 ? 4
                                                            : 2,
                         value_stages = key_stages == 3 ? 2 : key_stages;
    /* Nothing but dq is wanted: pairs that are not seen may then be NaN until their ds becomes 0. And there
     * are registers for the weights of a tile during the products of the next, and for own keys. */
    static constexpr bool lean = !PROBED && !SCALED && !DECAYED, roomy = lean && DIM <= 192;
    static constexpr int row_tiles = PROBED ? 3 : 2;
    static constexpr int row_stages = STAYS ? 2 : 1; /* blocks whose rows are in shared memory at once */
    /* Of `saved`, arrays that bulk copies bring. */
    static constexpr int copied = STAYS ? row_tiles - 1 : 0;
};

/* Rows of a block: queries, do, the probe. */
enum { ROWS_Q, ROWS_GRAD_O, ROWS_PROBE };

template <class S> struct given_backward_rows {
    alignas(1024) typename S::type tile[S::row_tiles][S::groups][S::dim * TILE_SIDE];
};

/* A block, as a warp of the producers tells the consumers, and lse of its rows. No rows: there are no more
 * blocks. */
template <class S> struct given_backward_task {
    row_block block;
    unsigned number;
    float lse[S::rows];
};

template <class S> struct given_backward_barriers {
    ring_barriers<TASKS> tasks;
    ring_barriers<1> saved;
    ring_barriers<S::row_stages> rows;
    ring_barriers<S::key_stages> keys;
    ring_barriers<S::value_stages> values;
};

template <class S> struct given_backward_shared {
    given_backward_rows<S> rows[S::row_stages];
    typename S::type keys[S::key_stages][S::dim * S::keys], values[S::value_stages][S::dim * S::keys];
    decay_tile<S::decayed, S::keys> decay[S::key_stages];
    /* Where thread blocks stay: vbar and vbar - o of the rows of a block, dense. */
    alignas(16) float saved[S::copied > 0 ? S::copied : 1][S::copied > 0 ? S::rows *S::dim : 4];
    given_backward_task<S> task[S::stays ? TASKS : 1];
    given_backward_barriers<S> barriers;
};

/* ------------------------------------------------------------------ the rows of a thread */

/* Constants of the thread's two rows. */
struct row_constants {
    float scale2;                     /* of scores, to base 2 */
    float lse[2], lse2[2];            /* to base e and 2; 0 for rows that see no key */
    float gbar[2], e[2];              /* do . vbar, do . (vbar - o) */
    float one_plus_tbar[2];           /* 1 + tbar, so that 1 - t = beside - rho . k */
    float lift[2];                    /* powers of 2 in p, which lse2 leaves out */
    float most2;                      /* at least the largest (1 - t)^2 of the thread's pairs */
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

/* The thread's share of a row of `saved`, of which it has `channels`: four of every sixteen, from channel
 * 16 first on. */
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

/* The lift of a row at first; the four lanes of the row call it. */
template <class S>
static __device__ __forceinline__ float first_lift(const typename S::type *grad_o, int r, bool real)
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < S::dim / 16; n++) {
        const uint2 y = *(const uint2 *)(grad_o + swizzled(r, 16 * n + threadIdx.x % 4 * 4));
        const float2 low = unpack_pair<typename S::type>(y.x), high = unpack_pair<typename S::type>(y.y);
        sum += low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
    }
    const float all = quad_sum(sum), norm2 = real ? all : 0;
    const int exponent = ((int)(__float_as_uint(norm2) >> 23) - 127) >> 1; /* of the norm */
    return (float)min(LIFT_TOP - exponent, (int)LIFT_MOST);
}

/* Whether bulk copies bring vbar and vbar - o: rows of whole pieces of 16 bytes. */
template <class S> static __device__ __forceinline__ bool saved_is_copied(const loam_problem &p)
{
    return S::copied > 0 && p.dim_v % 4 == 0;
}

/* The row of the block that the thread reads: rows beyond the sequence read the last one, to no effect. */
static __device__ __forceinline__ int line_of(const row_block &block, const row_pair &r, int row)
{
    return r.real[row] ? r.at[row] : block.rows - 1;
}

/* The constants of a warpgroup's rows; waits for the tile of do. */
template <class S>
static __device__ __forceinline__ row_constants
row_constants_of(const typename S::type *grad_o, const given_backward_shared<S> &sm,
                 given_backward_barriers<S> &bar, unsigned row_count, const loam_problem &p,
                 const local_saved &saved, const row_block &block, const row_pair &r, const float (&lse)[2])
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
    asm("" : "+f"(rows.scale2)); /* else the compiler multiplies in float64 again for each tile */
    float4 vbar[2][ahead], value_shift[S::probed ? 2 : 1][ahead];
    const bool copied = saved_is_copied<S>(p);
    if (copied) ring_wait(bar.saved, row_count);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int line = line_of(block, r, row);
        at[row] = local_row(&p, &block.s, block.h, block.i0 + line);
        rows.one_plus_tbar[row] = 0;
        if constexpr (S::probed) {
            rows.one_plus_tbar[row] = 1 + ((const float *)saved.tbar)[2 * at[row]] +
                                      ((const float *)saved.tbar)[2 * at[row] + 1];
        }
        if (copied) {
            load_row(vbar[row], sm.saved[0], line, p.dim_v, 0);
            if constexpr (S::probed) load_row(value_shift[row], sm.saved[S::copied - 1], line, p.dim_v, 0);
        } else {
            load_row(vbar[row], saved.vbar, at[row], p.dim_v, 0);
            if constexpr (S::probed) load_row(value_shift[row], saved.value_shift, at[row], p.dim_v, 0);
        }
    }
    ring_wait(bar.rows, row_count);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int line = r.at[row] % TILE_SIDE;
        const float gbar = grad_o_product<S>(grad_o, line, vbar[row], saved.vbar, at[row], p.dim_v);
        rows.lo[row] = r.lo[row], rows.hi[row] = r.hi[row];
        rows.lift[row] = S::folded ? first_lift<S>(grad_o, line, r.real[row]) : 0, rows.most2 = 0;
        rows.lse[row] = finite_or_zero(lse[row]);
        rows.lse2[row] = lse_of_weights(rows.lse[row]) - rows.lift[row];
        rows.gbar[row] = r.real[row] ? gbar : 0;
        rows.e[row] = 0;
        if constexpr (S::probed) {
            const float e = grad_o_product<S>(grad_o, line, value_shift[row], saved.value_shift, at[row],
                                              p.dim_v);
            rows.e[row] = r.real[row] ? e : 0;
        }
    }
    if (copied) ring_release(bar.saved, row_count);
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
    return exp2_fast(product * rows.scale2 - rows.lse2[row]);
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
    float beside2[2] = { 0, 0 }; /* sums cost less than maxima */
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
                if constexpr (S::folded) beside2[row] += beside * beside;
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
    if constexpr (S::folded && S::probed) rows.most2 = fmaxf(rows.most2, fmaxf(beside2[0], beside2[1]));
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
    multiply_rows<S::dim>(tile.s, rows.tile[ROWS_Q][group], keys, false);
    wgmma_commit();
    if constexpr (S::probed) {
        multiply_rows<S::dim>(tile.u, rows.tile[ROWS_PROBE][group], keys, false);
        wgmma_commit();
    }
}

/* What a thread has summed follows where weights would leave the range of their type: from now on they are
 * raised less. */
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

/* The named barrier by which the warpgroup decides. */
static __device__ __forceinline__ int vote_barrier()
{
    return 1 + 2 * GIVEN_GROUPS + (int)threadIdx.x / THREADS;
}

/* Operands of a tile: ds, and p gam. */
template <class S> struct tile_operands {
    weights_operand<1, S::steps, typename S::type> ds, error;
};

/* Makes the operands: of s, which is ds, and of g, which is p gam. */
template <class S>
static __device__ __forceinline__ void make_operands(tile_operands<S> &w, const tile_products<S> &tile)
{
    split_weights(w.ds, tile.s);
    if constexpr (S::probed) split_weights(w.error, tile.g);
}

/* Sums the weights as rounded. */
template <class S>
static __device__ __forceinline__ void add_operands(row_gradients<S> &f, const tile_operands<S> &w)
{
    add_rounded(f.inner, w.ds);
    if constexpr (S::probed) add_rounded(f.total, w.error);
}

/* With float16: would the operands of all rows of the warpgroup be finite? If not, s and g are scaled by
 * `by`, where the row needs it. */
template <class S> static __device__ __forceinline__ bool within_half(tile_products<S> &tile, float (&by)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float ds = row_largest(tile.s, row),
                    largest = S::probed ? fmaxf(ds, row_largest(tile.g, row)) : ds;
        by[row] = largest < HALF_INFINITY ? 1 : half_fall(largest);
    }
    if (!named_barrier_or<THREADS>(vote_barrier(), by[0] < 1 || by[1] < 1)) return true;
    scale_rows(tile.s, by);
    if constexpr (S::probed) scale_rows(tile.g, by);
    return false;
}

/* Issues dq += ds k and drho += p gam k. `keys` are those of the warpgroup's columns. */
template <class S>
static __device__ __forceinline__ void issue_gradients(row_gradients<S> &f, const tile_operands<S> &w,
                                                       const typename S::type *keys)
{
    multiply_weights<S::columns>(f.dq, w.ds.part[0], keys);
    if constexpr (S::probed) multiply_weights<S::columns>(f.drho, w.error.part[0], keys);
    wgmma_commit();
}

#endif
