/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward on Hopper, its producer: which tiles of queries a block of keys sees,
 * rho and y in two bf16 parts, and the warpgroup that fills the ring with tiles of queries and the terms of
 * their rows. local/hopper/backward_key.cu has the consumers. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_KEY_STREAM_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_KEY_STREAM_CUH

#include "src/gpu/ring.cuh"
#include "src/local/cuda/backward_key.cuh"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/operand_fall.cuh"
#include "src/local/hopper/solve.cuh"

enum {
    KEY_GROUPS = 2, /* of consumers */
    KEY_THREADS = (KEY_GROUPS + 1) * 128,
};

/* The tiles of a stage. */
enum { TILE_Q, TILE_GRAD_O, TILE_RHO, TILE_Y };

/* Terms: what a pair needs of its row besides products. lse to base 2, less key_raise; the centre of do . v
 * + y . k; 1 + rho . kbar; e. Where the unit of the ridge is the largest p, TERM_E is 0: e is for the key
 * with this p alone, which is TERM_PEAK, and e itself is TERM_PEAK_E. In two bf16 parts and in float16 the
 * sum of 1 and a large rho . kbar would lose what weights need: there TERM_UNIT is rho . kbar, and TERM_REST
 * is 1 plus what products with rho have as their mean beyond that. */
enum {
    TERM_LSE,
    TERM_CENTRE,
    TERM_UNIT,
    TERM_E,
    GIVEN_TERMS,
    TERM_PEAK = GIVEN_TERMS,
    TERM_PEAK_E,
    TERM_REST,
    TERMS
};

template <class T> constexpr float key_raise = is_half<T> ? KEY_RAISE : 0;

/* Powers of two that hold operands of float16 within its range: factors of ds and p E, and of p (1 - u)
 * where there is a probe. Where it is solved, of E, and of p (1 - u); error: of p E instead of the latter;
 * probe: of products with rho. */
struct key_folds {
    float dk, dv, error, probe;
};

/* What the pass over rows found of the head (key_falls): falls, or where a probe is solved its scales. */
struct key_range {
    int32_t dk, dv;
    key_scale own;
};

/* Of a kernel: numbers of type T, tiles of DIM channels, what probe there is, scores that decay or do not. */
template <class T, int DIM, int DIRECTIONS, bool DECAYED> struct key_shape {
    typedef T type;
    static constexpr int dim = DIM;
    static constexpr bool decayed = DECAYED, probed = DIRECTIONS > NO_DIRECTION,
                          solved = DIRECTIONS == SOLVED_PROBE, folded = is_half<T>;
    static constexpr bool bounded = solved || decayed; /* else lse_of_weights keeps p to 1 */
    /* The consumers share 64 keys, and one sums dk, the other dv: these do not fit the registers of one. */
    static constexpr bool shared_keys = DIM > 128;
    static constexpr bool apart = shared_keys && solved; /* rho and y have a ring beside that of q and do */
    static constexpr int groups = shared_keys ? 1 : KEY_GROUPS; /* of 64 keys, in a block */
    static constexpr int rows = groups * TILE_SIDE;
    static constexpr int queries = DIM == 64 ? 64 : 32; /* of a tile; as many as registers allow */
    static constexpr int blocks = queries / 8, steps = queries / 16;
    static constexpr int tiles = 2 + DIRECTIONS, terms = solved ? TERMS : GIVEN_TERMS;
    static constexpr int tile = DIM * queries, exchanged = probed ? 2 : 1;
    static constexpr int stages = DIM == 192 ? 6 : DIM == 256 && probed ? (solved ? 2 : 3) : 4;
    /* Warps that write the terms of rows, a tile each in turn. A barrier tells a round of the ring only from
     * the next one, so that from one wait to its next a warp may not skip a whole round. Three warps, of
     * tiles in two parts, two stages each, would. */
    static constexpr unsigned term_warps = solved ? 1 : 3;
    /* Operands from registers where there is room: reading them from shared memory would take all its
     * bandwidth. */
    static constexpr bool keys_held = DIM == 64 || (DIM == 128 && !probed),
                          values_held = DIM == 64 && !probed;
};

template <class S> struct key_task;
enum { KEY_TASKS = 2 };

template <class S> struct key_pass_shared {
    typedef typename S::type T;
    alignas(1024) T keys[S::groups][S::dim * TILE_SIDE];
    T values[S::groups][S::dim * TILE_SIDE];
    T stage[S::stages][S::tiles][S::tile];
    /* What the consumers of shared keys exchange (backward_key_shared.cu): p and 1 - u of each thread's
     * pairs. */
    float4 exchange[S::shared_keys ? S::exchanged : 1][S::blocks][S::shared_keys ? 128 : 1];
    alignas(16) float terms[S::stages][S::terms][S::queries];
    ring_barriers<S::stages> ring;
    ring_barriers<1> key_ring;      /* keys and values of a block */
    ring_barriers<4> exchange_ring; /* a stage for each pair of warps */
    key_task<S> task[KEY_TASKS];
    float decay[S::decayed ? S::stages : 1][2]
               [S::queries]; /* G of the rows, hi and lo (local/decay.h), where scores decay */
    ring_barriers<S::apart ? S::stages : 1> direction_ring;
    bool two_parts[S::stages]; /* where directions have that ring: whether those of a tile have two stages */
};

/* Undoes a fold (where the probe is solved, both), and key_raise. */
template <class S> static __device__ __forceinline__ float unraised(const key_folds &all, float fold)
{
    return !S::folded ? 1 : exp2f(-key_raise<typename S::type>) / (S::solved ? all.dk * all.dv : fold);
}

template <class S>
static __device__ __forceinline__ key_range key_range_of(const loam_problem &p, const row_arrays &arrays,
                                                         const key_block &block)
{
    key_range x = {};
    if (S::folded && S::solved) {
        x.own = local_key_scales(&p, arrays.state)[block.head];
    } else if (S::folded) {
        x.dk = arrays.state[block.head];
        if (S::probed) x.dv = arrays.state[key_falls(p) / 2 + block.head];
    }
    return x;
}

/* The folds; ds here has the scale where there is a probe. Its first use waits for the range: where something
 * is loaded meanwhile it comes after those loads. */
template <class S>
static __device__ __forceinline__ key_folds key_folds_of(const loam_problem &p, const key_range &range)
{
    if (!S::folded) return { 1, 1, 1, 1 };
    if (S::solved) {
        const key_scale &own = range.own;
        return { own.grad, own.fold, own.fold / own.probe, 1 / own.probe };
    }
    const float scale = fabsf((float)p.scale);
    const int by_scale = S::probed && scale > 1 ? ilogbf(scale) + 1 : 0;
    return { exp2f(-(float)(opaque(range.dk) + by_scale)), S::probed ? exp2f(-(float)opaque(range.dv)) : 1, 1,
             1 };
}

struct key_maps {
    CUtensorMap k, v, query[4], lo[4]; /* of the tiles of a stage; lo: of their lo parts */
};

/* rho and y in two parts of 16 bits, hi and lo, [rows][channels of a tile]; centre: the products of the hi
 * parts of rho and y with kbar, [rows]. In fp16 directions and do have the powers of two of their head;
 * centre is for both parts where a tile has two, and products of a row with rho have the mean centre.x +
 * rest; lse is that of keys as they lie. */
struct key_directions {
    uint16_t *rho[2], *y[2], *grad_o;
    float2 *centre;
    float *rest;
    const float *lse;
};

/* ------------------------------------------------------------------ which queries see which keys */

/* Query i sees key j where i + low <= j <= i + up, within the lengths. */
struct key_view {
    int nq, nk, low, up;
    bool packed;
    /* The state (ROWS_ONE_PART ..) of the first 64 rows of the sequence in the first head of the group; that
     * of each next 64 rows is `step` entries before. NULL where no probe is solved, or, beyond 128
     * channels, all rows are pending. */
    const int32_t *state;
    int step;
};

static __device__ __forceinline__ key_view key_view_of(const loam_problem &p, const local_seq &s,
                                                       const int32_t *state)
{
    const int64_t unbounded = 1 << 30, shift = s.nk - s.nq,
                  reach = p.window > 0 && p.window < unbounded ? p.window - 1 : unbounded;
    const int64_t up = p.causal ? shift : shift + reach;
    return { (int)s.nq,
             (int)s.nk,
             (int)sequence_clamp(shift - reach, -unbounded, unbounded),
             (int)sequence_clamp(up, -unbounded, unbounded),
             sequence_packed(&p),
             state,
             (int)(p.batch * p.heads_q) };
}

/* A tile of queries in the walk over the heads of the group. */
struct tile_walk {
    int i, head, left; /* first query, head within the group, tiles left with this one */
};

/* Advances by `count` tiles of this head. */
template <int QUERIES>
static __device__ __forceinline__ void advance(tile_walk &t, const key_block &block, int count = 1)
{
    t.i += count * QUERIES, t.left -= count;
    if (t.i >= block.first + (int)block.tiles * QUERIES) t.i = block.first, t.head++;
}

/* Did the pass over rows need more than one part for query i of a head of the group? */
template <class S> static __device__ __forceinline__ bool needs_two_parts(const key_view &v, int head, int i)
{
    return (S::apart && !v.state) || v.state[head - (int64_t)(i / ROWS) * v.step] != ROWS_ONE_PART;
}

/* Does any query of the tile from query i on see any of the keys j .. j + 63? */
template <int QUERIES> static __device__ __forceinline__ bool tile_seen(const key_view &v, int i, int j)
{
    const int last = min(i + QUERIES, v.nq) - 1;
    return j < v.nk && j <= last + v.up && j + TILE_SIDE - 1 >= i + v.low;
}

/* Does every query of the tile see all of them? */
template <int QUERIES> static __device__ __forceinline__ bool tile_whole(const key_view &v, int i, int j)
{
    return j + TILE_SIDE <= v.nk && i + QUERIES <= v.nq && j + TILE_SIDE - 1 <= i + v.up &&
           j >= i + QUERIES - 1 + v.low;
}

/* ------------------------------------------------------------------ the directions in parts */

template <int N> struct alignas(4 * N) float_vector {
    float x[N];
};
template <int N> struct alignas(2 * N) pair_vector {
    uint32_t pair[N / 2];
};

/* Channels c .. c + N - 1 of row `row` of an array of `dim`; zeros beyond them. */
template <int N>
static __device__ __forceinline__ float_vector<N> load_channels(const void *array, int64_t row, int c,
                                                                int dim)
{
    const float *const from = (const float *)array + row * dim + c;
    if (dim % N == 0 && c < dim) return *(const float_vector<N> *)from;
    float_vector<N> out;
#pragma unroll
    for (int n = 0; n < N; n++)
        out.x[n] = c + n < dim ? from[n] : 0;
    return out;
}

/* Splits rho and y of 64 rows of a head: a row for each warp at a time, DIM / 32 channels for each lane. lo
 * parts are for tiles in two parts alone. `centre` is for the hi parts: tiles in one part have no more. */
template <int DIM>
__global__ void __launch_bounds__(256)
    split_directions_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const local_saved saved, const row_arrays arrays, const key_directions out)
{
    constexpr int channels = DIM / 32;
    const row_block block = row_block_at(p, a, blockIdx.x);
    const bool two_parts = block.rows > 0 &&
                           ((DIM > 128 && !arrays.state) || arrays.state[blockIdx.x] != ROWS_ONE_PART);
    const int64_t first = block.rows > 0 ? local_row(&p, &block.s, block.h, block.i0) : 0;
#pragma unroll 2
    for (int r = threadIdx.x / 32; r < block.rows; r += 8) {
        const int c = threadIdx.x % 32 * channels, dim = (int)p.dim_qk;
        const int64_t row = first + r, at = row * DIM + c;
        const auto kbar = load_channels<channels>(saved.kbar, row, c, dim),
                   rho = load_channels<channels>(saved.rho, row, c, dim),
                   y = load_channels<channels>(arrays.y, row, c, dim);
        float lo_kbar[2] = { 0, 0 };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            pair_vector<channels> part[2];
#pragma unroll
            for (int c = 0; c < channels; c++) {
                const float value = n ? y.x[c] : rho.x[c];
                lo_kbar[n] += (value - rounded<1>(value)) * kbar.x[c];
            }
#pragma unroll
            for (int c = 0; c < channels; c += 2) {
                uint32_t pair[2];
                split_pair(pair, n ? y.x[c] : rho.x[c], n ? y.x[c + 1] : rho.x[c + 1]);
                part[0].pair[c / 2] = pair[0], part[1].pair[c / 2] = pair[1];
            }
            *(pair_vector<channels> *)((n ? out.y : out.rho)[0] + at) = part[0];
            if (two_parts) *(pair_vector<channels> *)((n ? out.y : out.rho)[1] + at) = part[1];
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            lo_kbar[0] += __shfl_xor_sync(0xffffffffu, lo_kbar[0], step);
            lo_kbar[1] += __shfl_xor_sync(0xffffffffu, lo_kbar[1], step);
        }
        if (threadIdx.x % 32 == 0) {
            const row_scalars &rec = arrays.record[row];
            out.centre[row] = make_float2(rec.rho_kbar + (rec.rho_rest - lo_kbar[0]),
                                          rec.y_kbar + (rec.y_rest - lo_kbar[1]));
        }
    }
}

/* ------------------------------------------------------------------ the producer */

/* Issues the copies of tiles first .. end - 1 of the queries at t into stage number `count` of the ring. */
template <class S>
static __device__ __forceinline__ void load_queries(key_pass_shared<S> &sm, ring_barriers<S::stages> &ring,
                                                    const CUtensorMap *maps, const key_block &block,
                                                    const tile_walk &t, int first, int end, unsigned count)
{
    uint64_t *const full = ring_acquire(ring, count, (end - first) * S::tile * 2);
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
        if (n >= first && n < end) {
            load_tile<S::dim, S::queries>(sm.stage[count % S::stages][n], maps[n], full,
                                          (int)block.s.q0 + t.i, (int)block.first_head + t.head,
                                          (int)block.s.b);
        }
    }
}

/* The copies of the tiles of queries at t, from stage number `count` on. Where the directions have two parts,
 * the next stage has the lo parts. `directions`: that of their own ring. */
template <class S>
static __device__ __forceinline__ void load_stages(key_pass_shared<S> &sm, const key_maps &maps,
                                                   const key_block &block, const tile_walk &t, bool two_parts,
                                                   unsigned &count, unsigned &directions)
{
    if constexpr (S::apart) {
        load_queries<S>(sm, sm.ring, maps.query, block, t, 0, TILE_RHO, count++);
        load_queries<S>(sm, sm.direction_ring, maps.query, block, t, TILE_RHO, S::tiles, directions++);
        if (two_parts)
            load_queries<S>(sm, sm.direction_ring, maps.lo, block, t, TILE_RHO, S::tiles, directions++);
    } else {
        load_queries<S>(sm, sm.ring, maps.query, block, t, 0, S::tiles, count++);
        if (two_parts) load_queries<S>(sm, sm.ring, maps.lo, block, t, TILE_RHO, S::tiles, count++);
    }
}

/* The producer thread: the keys and values of block number `block_count`, then all tiles of queries, from
 * stage number `count` on. */
template <class S>
static __device__ __forceinline__ void produce_tiles(key_pass_shared<S> &sm, const key_maps &maps,
                                                     const key_block &block, const key_view &v, tile_walk t,
                                                     unsigned block_count, unsigned &count)
{
    uint64_t *const full = ring_acquire(sm.key_ring, block_count, S::rows * S::dim * 4);
    for (int n = 0; n < S::groups; n++) {
        const int token = (int)block.s.k0 + block.j0 + n * TILE_SIDE;
        load_tile<S::dim>(sm.keys[n], maps.k, full, token, (int)block.h_kv, (int)block.s.b);
        load_tile<S::dim>(sm.values[n], maps.v, full, token, (int)block.h_kv, (int)block.s.b);
    }
    unsigned directions = 0;
    for (; t.left > 0; advance<S::queries>(t, block)) {
        const bool two_parts = S::solved && needs_two_parts<S>(v, t.head, t.i);
        load_stages(sm, maps, block, t, two_parts, count, directions);
    }
}

/* The first four terms of a row, without the folds; zeros beyond the sequence. */
template <class S>
static __device__ __forceinline__ float4 row_terms(const row_arrays &arrays, const key_directions &directions,
                                                   int64_t row, bool real, bool two_parts)
{
    if (!real) return make_float4(0, 0, 0, 0);
    /* the first words of row_scalars: lse, gbar, gbar_rest, rho_kbar; rho_rest, y_kbar, y_rest, e */
    const float4 a = ((const float4 *)(arrays.record + row))[0],
                 b = ((const float4 *)(arrays.record + row))[1];
    float rho = S::solved ? a.w : a.w + b.x, y = b.y + b.z;
    if (S::solved && (S::folded || !two_parts)) {
        const float2 centre = directions.centre[row];
        rho = centre.x, y = centre.y;
    }
    const float centre = a.y + a.z + (S::solved ? y : 0);
    const float lse = S::folded && S::solved ? finite_or_zero(directions.lse[row]) : a.x;
    const float one = S::solved && (S::folded || two_parts) ? 0 : 1;
    return { S::bounded ? lse * 1.44269504f : lse_of_weights(lse), centre, one + rho, S::probed ? b.w : 0 };
}

static __device__ __forceinline__ void fold_terms(float4 &terms, const key_folds &fold)
{
    terms.y *= fold.dk, terms.z *= fold.dv, terms.w *= fold.dk * fold.dv;
}

/* TERM_REST of a row; 0 beyond the sequence. */
template <class S>
static __device__ __forceinline__ float row_rest(const row_arrays &arrays, const key_directions &directions,
                                                 int64_t row, bool real)
{
    if (!real) return 0;
    return 1 + (S::folded ? directions.rest[row] : arrays.record[row].rho_rest);
}

/* A stage of lo parts gets no terms. */
template <class S>
static __device__ __forceinline__ void give_no_terms(key_pass_shared<S> &sm, unsigned count)
{
    barrier_wait(&sm.ring.empty[count % S::stages], count / S::stages % 2 ^ 1);
    barrier_arrive(&sm.ring.full[count % S::stages]);
}

/* A producer warp of terms: those of tiles `turn`, turn + TERM_WARPS, ... from this block's first on, since
 * what it loads of one tile comes late; then turn is that of the next block. A lane has rows lane + 32 n of a
 * tile. */
template <class S, unsigned TERM_WARPS>
static __device__ __forceinline__ void produce_terms(key_pass_shared<S> &sm, const loam_problem &p,
                                                     const loam_args &a, const row_arrays &arrays,
                                                     const key_directions &directions, const key_block &block,
                                                     const key_view &v, bool by_max, const key_range &range,
                                                     tile_walk t, unsigned &turn, unsigned &count)
{
    const int lane = threadIdx.x % 32;
    for (; t.left > 0; advance<S::queries>(t, block)) {
        const bool two_parts = S::solved && needs_two_parts<S>(v, t.head, t.i);
        const unsigned stage = count % S::stages;
        if (turn > 0) {
            turn--, count += 1 + (two_parts && !S::apart);
            continue;
        }
        turn = TERM_WARPS - 1;
        const int64_t row = local_row(&p, &block.s, block.first_head + t.head, t.i + lane);
        float4 own[S::queries / 32];
        float rest[S::queries / 32];
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            const bool real = t.i + lane + 32 * n < v.nq;
            own[n] = row_terms<S>(arrays, directions, row + 32 * n, real, two_parts);
            if constexpr (S::solved) rest[n] = row_rest<S>(arrays, directions, row + 32 * n, real);
        }
        local_decay_pair decay[S::queries / 32] = {};
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            const int i = t.i + lane + 32 * n;
            if (S::decayed && i < v.nq)
                decay[n] = row_decay(decay_sums(a, block.s, block.first_head + t.head), i + v.up + 1);
        }
        const key_folds fold = key_folds_of<S>(p, range);
        barrier_wait(&sm.ring.empty[stage], count / S::stages % 2 ^ 1);
#pragma unroll
        for (int n = 0; n < S::queries / 32; n++) {
            if (S::folded) fold_terms(own[n], fold);
            sm.terms[stage][TERM_LSE][lane + 32 * n] = own[n].x - key_raise<typename S::type>;
            sm.terms[stage][TERM_CENTRE][lane + 32 * n] = own[n].y;
            sm.terms[stage][TERM_UNIT][lane + 32 * n] = own[n].z;
            sm.terms[stage][TERM_E][lane + 32 * n] = S::solved && by_max ? 0 : own[n].w;
            if constexpr (S::solved) sm.terms[stage][TERM_REST][lane + 32 * n] = rest[n] * fold.dv;
            if (S::solved && by_max) {
                const bool real = t.i + lane + 32 * n < v.nq;
                sm.terms[stage][TERM_PEAK][lane + 32 * n] = __int_as_float(
                    real ? arrays.record[row + 32 * n].peak : -1);
                sm.terms[stage][TERM_PEAK_E][lane + 32 * n] = own[n].w;
            }
            if (S::apart && lane == 0) sm.two_parts[stage] = two_parts;
            if constexpr (S::decayed) {
                sm.decay[stage][0][lane + 32 * n] = decay[n].hi;
                sm.decay[stage][1][lane + 32 * n] = decay[n].lo;
            }
        }
        barrier_arrive(&sm.ring.full[stage]);
        count++;
        if (two_parts && !S::apart) give_no_terms(sm, count++);
    }
}

#endif
