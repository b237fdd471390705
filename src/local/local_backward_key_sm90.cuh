/* SPDX-License-Identifier: MIT
 *
 * Backward on Hopper, second pass: a block of 128 keys, 64 to each of two warpgroups, past which stream the queries of all heads
 * of its group that see them. A third warpgroup fills the ring of tiles: one thread by bulk copies, one warp with the terms of
 * their rows. Products come out as [key][query], so that weights are operands out of registers and dk and dv stay there.
 *
 * The directions of LLA have more digits than bf16. Tiles take one part of them and of the
 * weights ("plain"). Where the pass over rows wanted two, as for
 * rows that see few keys, rho and y are large and what they add to dk cancels: two parts ("fine").
 *
 * A warpgroup goes through plain tiles of which it sees all in a run: sums of one tile are under way while the scores of the next
 * are asked for, and element-wise work falls between products. All other tiles, which need masks, it takes one at a time.
 */
#ifndef LOAM_LOCAL_LOCAL_BACKWARD_KEY_SM90_CUH
#define LOAM_LOCAL_LOCAL_BACKWARD_KEY_SM90_CUH

#include "src/gpu/ring.cuh"
#include "src/local/local_backward_key_cuda.cuh"
#include "src/local/local_decay_sm90.cuh"
#include "src/local/local_solved_sm90.cuh"

enum { KEY_GROUPS = 2, KEY_ROWS = KEY_GROUPS * SIDE, KEY_THREADS = (KEY_GROUPS + 1) * 128, KEY_SLOTS = 4 };

/* Tiles of a slot of the ring. */
enum { TILE_Q, TILE_GRAD_O, TILE_RHO, TILE_Y };

/* What a pair needs of its row beside products: lse to base 2, the centre of do.v + y.k, 1 + rho.kbar, e; where the ridge is
 * relative to the largest weight e is for the peak alone: which that is, and its e. */
enum { TERM_LSE, TERM_CENTRE, TERM_UNIT, TERM_E, TERM_PEAK, TERM_PEAK_E, TERMS };

/* Where scores decay, and no ridge is: G of the row (local_decay.h, to base 2). */
enum { TERM_HI = TERM_PEAK, TERM_LO = TERM_PEAK_E };

template <int DIM, int DIRECTIONS> struct key_shape_sm90 {
    static constexpr int queries = DIM == 64 ? 64 : 32; /* as registers allow */
    static constexpr int blocks = queries / 8, steps = queries / 16;
    static constexpr int tiles = 2 + DIRECTIONS;
    static constexpr int tile = DIM * queries;
    static constexpr bool solved = DIRECTIONS == SOLVED_PROBE;
    /* Operands in registers, where there is room: from shared memory they would take all its bandwidth. */
    static constexpr bool keys_held = DIM == 64 || DIRECTIONS == NO_DIRECTION,
                          values_held = DIM == 64 && DIRECTIONS == NO_DIRECTION;
};

template <int DIM, int DIRECTIONS> struct key_shared_sm90 {
    typedef key_shape_sm90<DIM, DIRECTIONS> of;
    alignas(1024) __nv_bfloat16 keys[KEY_GROUPS][DIM * SIDE];
    __nv_bfloat16 values[KEY_GROUPS][DIM * SIDE];
    __nv_bfloat16 slot[KEY_SLOTS][of::tiles][of::tile];
    alignas(16) float terms[KEY_SLOTS][TERMS][of::queries];
    ring_barriers<KEY_SLOTS> ring;
    uint64_t keys_full;
};

struct key_maps_sm90 {
    CUtensorMap k, v, query[4], rest[4]; /* of the tiles of a slot; their second parts */
};

/* Directions in two bf16 parts, [rows][dim]; the products of the first parts with kbar, [rows]: rho's and y's. */
struct key_directions {
    __nv_bfloat16 *rho[2], *y[2];
    float2 *centre;
};

/* ------------------------------------------------------------------ which tiles, and what is seen of them */

/* Key j is seen by query i where i + low <= j <= i + up, beside the lengths. */
struct key_view {
    int nq, nk, low, up;
    bool packed;
    const int32_t *
        state; /* of the first 64 rows of the sequence, first head of the group; NULL: no probe that is solved */
    int step; /* back to the next 64 */
};

static __device__ __forceinline__ key_view key_view_of(const loam_problem &p, const local_seq &s,
                                                       const int32_t *state)
{
    const int64_t far = 1 << 30, shift = s.nk - s.nq,
                  reach = p.window > 0 && p.window < far ? p.window - 1 : far;
    const int64_t up = p.causal ? shift : shift + reach;
    return { (int)s.nq,
             (int)s.nk,
             (int)local_clamp(shift - reach, -far, far),
             (int)local_clamp(up, -far, far),
             local_packed(&p),
             state,
             (int)(p.batch * p.heads_q) };
}

/* A tile on its way through the heads of the group. */
struct tile_walk {
    int i, head, left; /* first query, head of the group, tiles left with it */
};

/* On by `count` tiles of this head. */
template <int QUERIES>
static __device__ __forceinline__ void walk_on(tile_walk &t, const key_block &x, int count = 1)
{
    t.i += count * QUERIES, t.left -= count;
    if (t.i >= x.first + (int)x.tiles * QUERIES) {
        t.i = x.first, t.head++;
    }
}

/* How the pass over rows went with query i of a head of the group. */
static __device__ __forceinline__ bool rows_fine(const key_view &v, int head, int i)
{
    return v.state[head - (int64_t)(i / ROWS) * v.step] != ROWS_CHEAP;
}

template <int QUERIES> static __device__ __forceinline__ bool tile_seen(const key_view &v, int i, int j)
{
    const int last = min(i + QUERIES, v.nq) - 1;
    return j < v.nk && j <= last + v.up && j + SIDE - 1 >= i + v.low;
}

template <int QUERIES> static __device__ __forceinline__ bool tile_whole(const key_view &v, int i, int j)
{
    return j + SIDE <= v.nk && i + QUERIES <= v.nq && j + SIDE - 1 <= i + v.up &&
           j >= i + QUERIES - 1 + v.low;
}

/* ------------------------------------------------------------------ the directions in parts */

template <int N> struct alignas(4 * N) float_vector {
    float x[N];
};
template <int N> struct alignas(2 * N) pair_vector {
    uint32_t pair[N / 2];
};

/* 64 rows of a head; a warp takes a row, a lane DIM / 32 channels. Second parts are for fine tiles alone. A rounded direction has
 * another product with kbar. */
template <int DIM>
__global__ void __launch_bounds__(256)
    split_directions_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const local_saved saved, const row_arrays arrays, const key_directions out)
{
    constexpr int channels = DIM / 32;
    const row_block x = row_block_at(p, a, blockIdx.x);
    const bool fine = x.rows > 0 && arrays.state[blockIdx.x] != ROWS_CHEAP;
    const int64_t first = x.rows > 0 ? local_row(&p, &x.s, x.h, x.i0) : 0;
#pragma unroll 2
    for (int r = threadIdx.x / 32; r < x.rows; r += 8) {
        const int64_t row = first + r, at = row * DIM + threadIdx.x % 32 * channels;
        const float_vector<channels> kbar = *(const float_vector<channels> *)((const float *)saved.kbar + at),
                                     rho = *(const float_vector<channels> *)((const float *)saved.rho + at),
                                     y = *(const float_vector<channels> *)(arrays.y + at);
        float lost[2] = { 0, 0 };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            pair_vector<channels> part[2];
#pragma unroll
            for (int c = 0; c < channels; c++) {
                const float value = n ? y.x[c] : rho.x[c];
                lost[n] += (value - rounded<1>(value)) * kbar.x[c];
            }
#pragma unroll
            for (int c = 0; c < channels; c += 2) {
                uint32_t pair[2];
                split_pair(pair, n ? y.x[c] : rho.x[c], n ? y.x[c + 1] : rho.x[c + 1]);
                part[0].pair[c / 2] = pair[0], part[1].pair[c / 2] = pair[1];
            }
            *(pair_vector<channels> *)((n ? out.y : out.rho)[0] + at) = part[0];
            if (fine) {
                *(pair_vector<channels> *)((n ? out.y : out.rho)[1] + at) = part[1];
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            lost[0] += __shfl_xor_sync(0xffffffffu, lost[0], step);
            lost[1] += __shfl_xor_sync(0xffffffffu, lost[1], step);
        }
        if (threadIdx.x % 32 == 0) {
            const row_record &rec = arrays.record[row];
            out.centre[row] = make_float2(rec.rho_kbar + (rec.rho_rest - lost[0]),
                                          rec.y_kbar + (rec.y_rest - lost[1]));
        }
    }
}

/* ------------------------------------------------------------------ the producer */

template <int DIM, int DIRECTIONS>
static __device__ __forceinline__ void copy_queries(key_shared_sm90<DIM, DIRECTIONS> &sm,
                                                    const CUtensorMap *maps, const key_block &x,
                                                    const tile_walk &t, int first, unsigned count)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    uint64_t *const full = ring_fill(sm.ring, count, (S::tiles - first) * S::tile * 2);
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int c = 0; c < DIM; c += SIDE) {
            if (n >= first) {
                copy_box(sm.slot[count % KEY_SLOTS][n] + c * S::queries, maps + n, full, c, (int)x.s.q0 + t.i,
                         (int)x.first_head + t.head, (int)x.s.b);
            }
        }
    }
}

template <int DIM, int DIRECTIONS>
static __device__ __forceinline__ void fill_slots(key_shared_sm90<DIM, DIRECTIONS> &sm,
                                                  const key_maps_sm90 &maps, const key_block &x,
                                                  const key_view &v, tile_walk t)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    barrier_expect(&sm.keys_full, KEY_ROWS * DIM * 4);
    for (int n = 0; n < KEY_GROUPS; n++) {
        for (int c = 0; c < DIM; c += SIDE) {
            const int token = (int)x.s.k0 + x.j0 + n * SIDE;
            copy_box(sm.keys[n] + c * SIDE, &maps.k, &sm.keys_full, c, token, (int)x.h_kv, (int)x.s.b);
            copy_box(sm.values[n] + c * SIDE, &maps.v, &sm.keys_full, c, token, (int)x.h_kv, (int)x.s.b);
        }
    }
    for (unsigned count = 0; t.left > 0; walk_on<S::queries>(t, x)) {
        copy_queries<DIM, DIRECTIONS>(sm, maps.query, x, t, 0, count++);
        if (S::solved && rows_fine(v, t.head, t.i)) {
            copy_queries<DIM, DIRECTIONS>(sm, maps.rest, x, t, TILE_RHO, count++);
        }
    }
}

/* The terms of a row; zeros beyond the sequence. */
template <int DIRECTIONS>
static __device__ __forceinline__ float4 row_terms(const row_arrays &arrays, const key_directions &directions,
                                                   int64_t row, bool real, bool fine)
{
    if (!real) {
        return make_float4(0, 0, 0, 0);
    }
    /* lse, gbar, gbar_rest, rho_kbar; rho_rest, y_kbar, y_rest, e */
    const float4 a = ((const float4 *)(arrays.record + row))[0],
                 b = ((const float4 *)(arrays.record + row))[1];
    float rho = a.w + b.x, y = b.y + b.z;
    if (DIRECTIONS == SOLVED_PROBE && !fine) {
        const float2 centre = directions.centre[row];
        rho = centre.x, y = centre.y;
    }
    return make_float4(a.x * 1.44269504f, a.y + a.z + (DIRECTIONS == SOLVED_PROBE ? y : 0), 1 + rho,
                       DIRECTIONS > NO_DIRECTION ? b.w : 0);
}

template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void fill_terms(key_shared_sm90<DIM, DIRECTIONS> &sm, const loam_problem &p,
                                                  const loam_args &a, const row_arrays &arrays,
                                                  const key_directions &directions, const key_block &x,
                                                  const key_view &v, bool by_max, tile_walk t)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    const int lane = threadIdx.x % 32;
    for (unsigned count = 0; t.left > 0; walk_on<S::queries>(t, x)) {
        const bool fine = S::solved && rows_fine(v, t.head, t.i);
        const unsigned slot = count % KEY_SLOTS;
        const int64_t row = local_row(&p, &x.s, x.first_head + t.head, t.i + lane);
        float4 own[S::queries / 32];
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            own[n] = row_terms<DIRECTIONS>(arrays, directions, row + 32 * n, t.i + lane + 32 * n < v.nq,
                                           fine);
        }
        local_decay_pair decay[S::queries / 32] = {};
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            const int i = t.i + lane + 32 * n;
            if (DECAYED && i < v.nq) {
                decay[n] = row_decay(decay_sums(a, x.s, x.first_head + t.head), i + v.up + 1);
            }
        }
        barrier_wait(&sm.ring.empty[slot], count / KEY_SLOTS % 2 ^ 1);
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            sm.terms[slot][TERM_LSE][lane + 32 * n] = own[n].x;
            sm.terms[slot][TERM_CENTRE][lane + 32 * n] = own[n].y;
            sm.terms[slot][TERM_UNIT][lane + 32 * n] = own[n].z;
            sm.terms[slot][TERM_E][lane + 32 * n] = by_max ? 0 : own[n].w;
            if (by_max) {
                const bool real = t.i + lane + 32 * n < v.nq;
                sm.terms[slot][TERM_PEAK][lane + 32 * n] = __int_as_float(
                    real ? arrays.record[row + 32 * n].peak : -1);
                sm.terms[slot][TERM_PEAK_E][lane + 32 * n] = own[n].w;
            }
            if constexpr (DECAYED) {
                sm.terms[slot][TERM_HI][lane + 32 * n] = decay[n].hi;
                sm.terms[slot][TERM_LO][lane + 32 * n] = decay[n].lo;
            }
        }
        barrier_arrive(&sm.ring.full[slot]);
        count++;
        if (fine) {
            barrier_wait(&sm.ring.empty[count % KEY_SLOTS], count / KEY_SLOTS % 2 ^ 1);
            barrier_arrive(&sm.ring.full[count % KEY_SLOTS]);
            count++;
        }
    }
}

/* ------------------------------------------------------------------ a tile and 64 keys */

/* 64 rows as the first operand of products: HELD in registers, or where they lie. */
template <int DIM, bool HELD> struct first_operand {
    __device__ __forceinline__ void take(const __nv_bfloat16 *) {}
    template <int BLOCKS>
    __device__ __forceinline__ void times(float (&s)[BLOCKS][4], const __nv_bfloat16 *at,
                                          const __nv_bfloat16 *tile, bool add) const
    {
        more_rows<DIM>(s, at, tile, add);
    }
};
template <int DIM> struct first_operand<DIM, true> {
    uint32_t rows[DIM / 16][4];
    __device__ __forceinline__ void take(const __nv_bfloat16 *at) { load_rows<DIM>(rows, at); }
    template <int BLOCKS>
    __device__ __forceinline__ void times(float (&s)[BLOCKS][4], const __nv_bfloat16 *,
                                          const __nv_bfloat16 *tile, bool add) const
    {
        more_rows<DIM>(s, rows, tile, add);
    }
};

/* The thread's two keys where scores decay: G of the head at hand, and the sums of ds. */
template <bool DECAYED> struct key_decay {
    int head; /* of the group; -1: none yet */
    local_decay_pair own[2];
    float sum[2];
};
template <> struct key_decay<false> {
};

/* What a warpgroup has, and where it is. */
template <int DIM, int DIRECTIONS, bool DECAYED> struct key_group {
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    key_shared_sm90<DIM, DIRECTIONS> &sm;
    const key_block &x;
    const key_view &v;
    tile_walk t;
    int cheap;                   /* cheap_rows */
    unsigned group, slot, count; /* slot: where the tile at hand lies; slots used so far */
    int j, at[2];                /* its first key, and the thread's two */
    float scale, scale2;         /* scale2: to base 2 */
    bool by_max;
    first_operand<DIM, S::keys_held> keys;
    first_operand<DIM, S::values_held> values;
    key_decay<DECAYED> decay;

    __device__ __forceinline__ const __nv_bfloat16 *tile(int which) const { return sm.slot[slot][which]; }
    __device__ __forceinline__ const __nv_bfloat16 *rest(int which) const
    {
        return sm.slot[(slot + 1) % KEY_SLOTS][which];
    }
};

/* A term of the columns 2 (lane % 4) and the next one of each block. */
template <int BLOCKS> struct column_terms {
    float2 x[BLOCKS];
    __device__ __forceinline__ float at(int n, int e) const { return e % 2 ? x[n].y : x[n].x; }
};

template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ auto terms_of(const key_group<DIM, DIRECTIONS, DECAYED> &g, int which)
{
    constexpr int blocks = key_shape_sm90<DIM, DIRECTIONS>::blocks;
    column_terms<blocks> out;
#pragma unroll
    for (int n = 0; n < blocks; n++) {
        out.x[n] = *(const float2 *)(g.sm.terms[g.slot][which] + 8 * n + threadIdx.x % 4 * 2);
    }
    return out;
}

/* x, which is the same in all lanes, as the compiler then knows: descriptors made from it cost the lanes nothing. */
static __device__ __forceinline__ unsigned uniform(unsigned x) { return __reduce_max_sync(0xffffffffu, x); }

template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void await_slot(key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    ring_await(g.sm.ring, g.count);
    g.group = uniform(g.group), g.slot = uniform(g.count % KEY_SLOTS);
}

template <int BLOCKS> struct key_scores {
    float s[BLOCKS][4], u[BLOCKS][4], e[BLOCKS][4];
};

template <int DIM> struct key_sums_sm90 {
    float dk[DIM / SIDE][8][4], dv[DIM / SIDE][8][4];
};

/* Three groups of products (two, where there is no direction): k.q, k.rho, v.do + k.y. */
template <bool FINE, int DIM, int DIRECTIONS, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void ask_scores(key_scores<BLOCKS> &x,
                                                  const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    const __nv_bfloat16 *const keys = g.sm.keys[g.group];
    products_begin();
    g.keys.times(x.s, keys, g.tile(TILE_Q), false);
    products_commit();
    if constexpr (DIRECTIONS > NO_DIRECTION) {
        if (FINE) {
            g.keys.times(x.u, keys, g.rest(TILE_RHO), false);
        }
        g.keys.times(x.u, keys, g.tile(TILE_RHO), FINE);
        products_commit();
    }
    g.values.times(x.e, g.sm.values[g.group], g.tile(TILE_GRAD_O), false);
    if constexpr (DIRECTIONS == SOLVED_PROBE) {
        if (FINE) {
            g.keys.times(x.e, keys, g.rest(TILE_Y), true);
        }
        g.keys.times(x.e, keys, g.tile(TILE_Y), true);
    }
    products_commit();
}

/* s: p */
template <int DIM, int DIRECTIONS, int BLOCKS>
static __device__ __forceinline__ void weigh_keys(float (&s)[BLOCKS][4], const column_terms<BLOCKS> &lse,
                                                  const key_group<DIM, DIRECTIONS, true> &g)
{
    const column_terms<BLOCKS> hi = terms_of(g, TERM_HI), lo = terms_of(g, TERM_LO);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const local_decay_pair &key = g.decay.own[e / 2];
            const float lost = (hi.at(n, e) - key.hi) + (lo.at(n, e) - key.lo);
            s[n][e] = exp2_fast(fminf(fmaf(s[n][e], g.scale2, lost) - lse.at(n, e), 0));
        }
    }
}
template <int DIM, int DIRECTIONS, int BLOCKS>
static __device__ __forceinline__ void weigh_keys(float (&s)[BLOCKS][4], const column_terms<BLOCKS> &lse,
                                                  const key_group<DIM, DIRECTIONS, false> &g)
{
    const float scale2 = g.scale2;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fminf(s[n][e] * scale2 - lse.at(n, e), 0));
        }
    }
}

/* u: 1 - u */
template <int BLOCKS>
static __device__ __forceinline__ void centre_probe(float (&u)[BLOCKS][4], const column_terms<BLOCKS> &unit)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[n][e] = unit.at(n, e) - u[n][e];
        }
    }
}

template <int BLOCKS>
static __device__ __forceinline__ void centre_error(float (&x)[BLOCKS][4], const column_terms<BLOCKS> &centre)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[n][e] -= centre.at(n, e);
        }
    }
}

/* Pairs that are not seen become zeros in all that they enter, whatever the memory holds. */
template <int DIM, int DIRECTIONS, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void mask_pairs(key_scores<BLOCKS> &x,
                                                  const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = g.t.i + column_of(n, e), j = g.at[e / 2];
            const bool seen = i < g.v.nq && j < g.v.nk && j <= i + g.v.up && j >= i + g.v.low;
            x.s[n][e] = seen ? x.s[n][e] : 0;
            x.u[n][e] = seen && DIRECTIONS > NO_DIRECTION ? x.u[n][e] : 0;
            x.e[n][e] = seen ? x.e[n][e] : 0;
        }
    }
}

/* p (1 - u) as an operand: what v, and y, are weighed with. */
template <int PARTS, int DIRECTIONS, int STEPS, int BLOCKS>
static __device__ __forceinline__ void keep_weights(weights_operand<PARTS, STEPS> &kept,
                                                    const key_scores<BLOCKS> &x)
{
    float w[BLOCKS][4];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] = DIRECTIONS > NO_DIRECTION ? x.s[n][e] * x.u[n][e] : x.s[n][e];
        }
    }
    split_weights(kept, w);
}

/* s: scale ds, without scale where there is no direction; e: -p E */
template <int DIM, int DIRECTIONS, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void score_gradient(key_scores<BLOCKS> &x,
                                                      key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    column_terms<BLOCKS> own;
    if (DIRECTIONS > NO_DIRECTION) {
        own = terms_of(g, TERM_E);
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = x.s[n][e], error = x.e[n][e];
            x.s[n][e] = DIRECTIONS > NO_DIRECTION ? p * g.scale * (x.u[n][e] * error + own.at(n, e))
                                                  : p * error;
            x.e[n][e] = -p * error;
            if constexpr (DECAYED) {
                g.decay.sum[e / 2] += x.s[n][e];
            }
        }
    }
}

/* What the largest weight of a row adds to the gradient of its score. */
template <int DIM, int DIRECTIONS, bool DECAYED, int BLOCKS>
static __device__ __forceinline__ void add_peaks(float (&ds)[BLOCKS][4],
                                                 const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    const column_terms<BLOCKS> peak = terms_of(g, TERM_PEAK), own = terms_of(g, TERM_PEAK_E);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ds[n][e] += g.at[e / 2] == __float_as_int(peak.at(n, e)) ? g.scale * own.at(n, e) : 0;
        }
    }
}

/* sum += weights tile, in the parts that both have. */
template <int DIM, int PARTS, int STEPS>
static __device__ __forceinline__ void add_weighted(float (&sum)[DIM / SIDE][8][4],
                                                    const weights_operand<PARTS, STEPS> &w,
                                                    const __nv_bfloat16 *tile, const __nv_bfloat16 *rest)
{
    if (PARTS > 1) {
        if (rest) {
            multiply_weights<DIM>(sum, w.part[0], rest);
        }
        multiply_weights<DIM>(sum, w.part[PARTS - 1], tile);
    }
    multiply_weights<DIM>(sum, w.part[0], tile);
}

template <int DIM> static __device__ __forceinline__ void sums_arrived(key_sums_sm90<DIM> &sum)
{
    products_arrived(sum.dk);
    products_arrived(sum.dv);
}

/* Rows of a tile beyond the sequence, where the next one lies: zero times them must be zero. Both warpgroups call it. */
template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void clear_beyond(const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    const int real = g.v.nq - g.t.i, words = (S::queries - real) * (SIDE / 2);
    uint32_t *const slot = (uint32_t *)g.sm.slot[g.count % KEY_SLOTS][0];
    for (int n = 0; n < S::tiles * (DIM / SIDE); n++) {
        for (int e = threadIdx.x; e < words; e += KEY_GROUPS * 128) {
            slot[(n * S::queries + real) * (SIDE / 2) + e] = 0;
        }
    }
    fence_async_proxy();
    asm volatile("bar.sync 1, %0;" ::"n"(KEY_GROUPS * 128) : "memory");
}

template <bool FINE, int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void single_tile(key_sums_sm90<DIM> &sum,
                                                   key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    constexpr int parts = FINE ? 2 : 1;
    key_scores<S::blocks> x;
    weights_operand<parts, S::steps> w;
    ask_scores<FINE>(x, g);
    products_wait<0>();
    products_arrived(x.s);
    products_arrived(x.e);
    weigh_keys(x.s, terms_of(g, TERM_LSE), g);
    if constexpr (DIRECTIONS > NO_DIRECTION) {
        products_arrived(x.u);
        centre_probe(x.u, terms_of(g, TERM_UNIT));
    }
    centre_error(x.e, terms_of(g, TERM_CENTRE));
    mask_pairs(x, g);
    keep_weights<parts, DIRECTIONS>(w, x);
    add_weighted<DIM>(sum.dv, w, g.tile(TILE_GRAD_O), NULL);
    if constexpr (S::solved) {
        add_weighted<DIM>(sum.dk, w, g.tile(TILE_Y), FINE ? g.rest(TILE_Y) : NULL);
    }
    products_commit();
    products_wait<0>();
    sums_arrived(sum);
    score_gradient(x, g);
    if (S::solved && g.by_max) {
        add_peaks(x.s, g);
    }
    split_weights(w, x.s);
    add_weighted<DIM>(sum.dk, w, g.tile(TILE_Q), NULL);
    products_commit();
    products_wait<0>();
    sums_arrived(sum);
    if constexpr (DIRECTIONS > NO_DIRECTION) {
        split_weights(w, x.e);
        add_weighted<DIM>(sum.dk, w, g.tile(TILE_RHO), FINE ? g.rest(TILE_RHO) : NULL);
        products_commit();
        products_wait<0>();
        sums_arrived(sum);
    }
}

/* Rows of the head at hand, from its tile on, whose directions have one part: of the next 32 blocks of 64, one for each lane. */
template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ int cheap_rows(const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    const int i = g.t.i + (int)(threadIdx.x % 32) * ROWS;
    const bool fine = i < g.v.nq && rows_fine(g.v, g.t.head, i);
    const unsigned any = __ballot_sync(0xffffffffu, fine);
    return uniform((any ? __ffs((int)any) - 1 : 32) * ROWS - (any % 2 ? 0 : g.t.i % ROWS));
}

/* Tiles from the one at hand on, of the same head, that make a run: plain, and all of them seen. */
template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ int run_length(const key_group<DIM, DIRECTIONS, DECAYED> &g)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    if ((S::solved && (g.by_max || g.cheap <= 0)) || !tile_whole<S::queries>(g.v, g.t.i, g.j)) {
        return 0;
    }
    /* The first rows of later tiles: within the sequence, not beyond the window of the last key, and with one part. */
    int last = min(g.v.nq - S::queries, g.j - (S::queries - 1) - g.v.low);
    if (S::solved) {
        last = min(last, g.t.i + g.cheap - S::queries);
    }
    return (last - g.t.i) / S::queries + 1;
}

/* `length` tiles, at least one. */
template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void run_tiles(key_sums_sm90<DIM> &sum,
                                                 key_group<DIM, DIRECTIONS, DECAYED> &g, int length)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    constexpr int groups = DIRECTIONS > NO_DIRECTION ? 3 : 2;
    key_scores<S::blocks> x;
    walk_on<S::queries>(g.t, g.x, length);
    await_slot(g);
    ask_scores<false>(x, g);
    for (;;) {
        weights_operand<1, S::steps> kept, ds, error;
        g.slot = uniform(g.slot);
        column_terms<S::blocks> term = terms_of(g, TERM_LSE);
        products_wait<groups - 1>();
        products_arrived(x.s);
        weigh_keys(x.s, term, g);
        if constexpr (DIRECTIONS > NO_DIRECTION) {
            term = terms_of(g, TERM_UNIT);
            products_wait<1>();
            products_arrived(x.u);
            centre_probe(x.u, term);
        }
        keep_weights<1, DIRECTIONS>(kept, x);
        multiply_weights<DIM>(sum.dv, kept.part[0], g.tile(TILE_GRAD_O));
        if constexpr (S::solved) {
            more_weights<DIM>(sum.dk, kept.part[0], g.tile(TILE_Y));
        }
        products_commit();
        term = terms_of(g, TERM_CENTRE);
        products_wait<1>();
        products_arrived(x.e);
        centre_error(x.e, term);
        score_gradient(x, g);
        split_weights(ds, x.s);
        if constexpr (DIRECTIONS > NO_DIRECTION) {
            split_weights(error, x.e);
        }
        multiply_weights<DIM>(sum.dk, ds.part[0], g.tile(TILE_Q));
        if constexpr (DIRECTIONS > NO_DIRECTION) {
            more_weights<DIM>(sum.dk, error.part[0], g.tile(TILE_RHO));
        }
        products_commit();
        if constexpr (S::keys_held && DIRECTIONS > NO_DIRECTION) {
            products_wait<1>();
        }
        const unsigned used = g.count++;
        if (--length == 0) {
            products_wait<0>();
            sums_arrived(sum);
            ring_release(g.sm.ring, used);
            return;
        }
        await_slot(g);
        ask_scores<false>(x, g);
        products_wait<groups>();
        ring_release(g.sm.ring, used);
    }
}

/* The sums of ds of the head that was at hand: what the gradient of the decay is made of. */
template <int DIM, int DIRECTIONS>
static __device__ __forceinline__ void put_decay_sums(const key_group<DIM, DIRECTIONS, true> &g, int head,
                                                      const loam_args &a)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(g.decay.sum[row]) * (DIRECTIONS > NO_DIRECTION ? 1 / g.scale : 1);
        if (a.grad_log_decay.data && threadIdx.x % 4 == 0 && g.at[row] - g.x.j0 < g.x.stored) {
            ((float *)a.grad_log_decay.data)[LOCAL_AT(a.grad_log_decay, g.x.s.b, g.x.first_head + head,
                                                      g.x.s.k0 + g.at[row])] = sum;
        }
    }
}

/* Of the last head at hand; all heads of keys that no query sees have sums of 0. */
template <int DIM, int DIRECTIONS>
static __device__ __forceinline__ void put_last_decay_sums(key_group<DIM, DIRECTIONS, true> &g, int heads,
                                                           const loam_args &a)
{
    if (g.decay.head >= 0) {
        put_decay_sums(g, g.decay.head, a);
        return;
    }
    g.decay.sum[0] = g.decay.sum[1] = 0;
    for (int head = 0; head < heads; head++) {
        put_decay_sums(g, head, a);
    }
}

/* Before the tile at hand. */
template <int DIM, int DIRECTIONS>
static __device__ __forceinline__ void decay_of_head(key_group<DIM, DIRECTIONS, true> &g, const loam_args &a)
{
    if (g.t.head == g.decay.head) {
        return;
    }
    if (g.decay.head >= 0) {
        put_decay_sums(g, g.decay.head, a);
    }
    g.decay.head = g.t.head;
    const local_decay_pair *const sums = decay_sums(a, g.x.s, g.x.first_head + g.t.head);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        g.decay.own[row] = row_decay(sums, min(g.at[row] + 1, g.v.nk));
        g.decay.sum[row] = 0;
    }
}

template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void use_slots(key_sums_sm90<DIM> &sum,
                                                 key_group<DIM, DIRECTIONS, DECAYED> &g, const loam_args &a)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    while (g.t.left > 0) {
        if constexpr (DECAYED) {
            decay_of_head(g, a);
        }
        g.cheap = S::solved ? cheap_rows(g) : 0;
        const int length = run_length(g);
        if (length > 0) {
            run_tiles(sum, g, length);
            continue;
        }
        const bool fine = S::solved && g.cheap <= 0;
        await_slot(g);
        if (fine) {
            ring_await(g.sm.ring, g.count + 1);
        }
        if (g.v.packed && g.t.i + S::queries > g.v.nq) {
            clear_beyond(g);
            if (fine) {
                g.count++;
                clear_beyond(g);
                g.count--;
            }
        }
        if (tile_seen<S::queries>(g.v, g.t.i, g.j)) {
            if (S::solved && fine) {
                single_tile<true>(sum, g);
            } else {
                single_tile<false>(sum, g);
            }
        }
        ring_release(g.sm.ring, g.count++);
        if (fine) {
            ring_release(g.sm.ring, g.count++);
        }
        walk_on<S::queries>(g.t, g.x);
    }
}

/* ------------------------------------------------------------------ the kernel */

/* Two channels of a row, one access where the view allows it. */
static __device__ __forceinline__ void put_pair(const loam_view &to, int64_t at, float x, float y)
{
    __nv_bfloat16 *const out = (__nv_bfloat16 *)to.data + at;
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    if ((uintptr_t)out % 4 == 0) {
        *(__nv_bfloat162 *)out = pair;
    } else {
        out[0] = pair.x, out[1] = pair.y;
    }
}

template <int DIM, int DIRECTIONS, bool DECAYED>
static __device__ __forceinline__ void put_key_sums(const key_sums_sm90<DIM> &sum,
                                                    const key_group<DIM, DIRECTIONS, DECAYED> &g,
                                                    const loam_args &a)
{
    const float scale = DIRECTIONS > NO_DIRECTION ? 1 : g.scale;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (g.at[row] - g.x.j0 >= g.x.stored) {
            continue;
        }
        const int64_t token = g.x.s.k0 + g.at[row];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const float(&dk)[4] = sum.dk[n / 8][n % 8], (&dv)[4] = sum.dv[n / 8][n % 8];
            const int c = column_of(n, 0);
            if (a.grad_k.data) {
                put_pair(a.grad_k, LOCAL_AT(a.grad_k, g.x.s.b, g.x.h_kv, token) + c, scale * dk[2 * row],
                         scale * dk[2 * row + 1]);
            }
            if (a.grad_v.data) {
                put_pair(a.grad_v, LOCAL_AT(a.grad_v, g.x.s.b, g.x.h_kv, token) + c, dv[2 * row],
                         dv[2 * row + 1]);
            }
        }
    }
}

template <int DIM, int DIRECTIONS, bool DECAYED>
__global__ void __launch_bounds__(KEY_THREADS, 1)
    key_kernel_sm90(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                    const row_arrays arrays, const key_directions directions,
                    const __grid_constant__ key_maps_sm90 maps)
{
    typedef key_shape_sm90<DIM, DIRECTIONS> S;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    key_shared_sm90<DIM, DIRECTIONS> &sm = *(key_shared_sm90<DIM, DIRECTIONS> *)swizzled_memory;
    const key_block x = key_block_at<KEY_ROWS>(p, a, blockIdx.x, S::queries);
    if (x.stored <= 0) {
        return;
    }
    /* Blocks of 64 rows are counted from the last of each sequence on. */
    const int64_t last = (p.len_q + ROWS - 1) / ROWS - 1, sequence = blockIdx.x / p.heads_kv % p.batch;
    const key_view v = key_view_of(
        p, x.s, S::solved ? arrays.state + (last * p.batch + sequence) * p.heads_q + x.first_head : NULL);
    const tile_walk t = { x.first, 0, (int)(x.tiles * (p.heads_q / p.heads_kv)) };
    if (threadIdx.x == 0) {
        for (int n = 0; n < KEY_SLOTS; n++) {
            barrier_init(&sm.ring.full[n], 1 + 32); /* the copies, and each thread that fills in terms */
            barrier_init(&sm.ring.empty[n], KEY_GROUPS * 4);
        }
        barrier_init(&sm.keys_full, 1);
        fence_async_proxy();
    }
    __syncthreads();
    const bool by_max = S::solved && p.ridge_unit == LOAM_RIDGE_MAX;
    const unsigned group = uniform(threadIdx.x / 128);
    if (group == KEY_GROUPS) {
        registers_give_up<24>();
        if (threadIdx.x == KEY_GROUPS * 128) {
            fill_slots<DIM, DIRECTIONS>(sm, maps, x, v, t);
        } else if (threadIdx.x / 32 == KEY_GROUPS * 4 + 1) {
            fill_terms<DIM, DIRECTIONS, DECAYED>(sm, p, a, arrays, directions, x, v, by_max, t);
        }
        return;
    }
    registers_take<240>();
    const int j = x.j0 + (int)group * SIDE, row = j + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float scale = (float)p.scale;
    key_group<DIM, DIRECTIONS, DECAYED> g = {
        sm,     x,  v,  t, 0, group, 0, 0, j, { row, row + 8 }, scale, (float)(p.scale * 1.4426950408889634),
        by_max, {}, {}, {}
    };
    if constexpr (DECAYED) {
        g.decay.head = -1;
    }
    key_sums_sm90<DIM> sum;
    clear_sums<DIM>(sum.dk);
    clear_sums<DIM>(sum.dv);
    barrier_wait(&sm.keys_full, 0);
    g.keys.take(sm.keys[group]);
    g.values.take(sm.values[group]);
    use_slots(sum, g, a);
    put_key_sums(sum, g, a);
    if constexpr (DECAYED) {
        put_last_decay_sums(g, (int)(p.heads_q / p.heads_kv), a);
    }
}

#endif
