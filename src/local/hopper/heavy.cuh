/* SPDX-License-Identifier: MIT
 *
 * For each row of a block, a matrix near Cov + Lambda that costs a fraction of it: what the preconditioner of
 * local/hopper/pcg.cuh is made of. A row of a trained model has most of its weight on a few of its keys,
 * which are the row's own, and what the others add differs little from their plain covariance. So
 *
 *     A_i ~ sum_heavy p_ij kappa_ij kappa_ij^T + mass_i C + Lambda_i,
 *
 * heavy: the keys of the row's largest weights; mass_i: the weight of the others; C: the covariance, by equal
 * weights, of all keys that the block's first row sees. Nothing here depends on later rows of the block.
 *
 * Two passes: one counts each row's weights by powers of two, and finds the mean of the keys; the next lists
 * the heavy keys and sums C.
 */
#ifndef LOAM_LOCAL_HOPPER_HEAVY_CUH
#define LOAM_LOCAL_HOPPER_HEAVY_CUH

#include "src/local/hopper/heavy_work.cuh"
#include "src/local/hopper/row_factor_wide.cuh"
#include "src/local/hopper/solve.cuh"

#include <cfloat>

/* Weights 2^-(n + LEVEL_FIRST + 1) .. 2^-(n + LEVEL_FIRST) are on level n; larger ones on the first, smaller
 * ones on the last. A list has room for all of the first level, since weights are at most 1 in sum. Counters
 * of 8 bits, four to a word, hold COUNTED_TILES tiles. */
enum { LEVELS = 12, LEVEL_FIRST = 6, COUNTED_TILES = 15 };
static_assert(heavy_keys<64> > 1 << (LEVEL_FIRST + 1), "a list has room for the first level");

/* Levels begin by this much below a power of two, so that rounding does not part equal weights of a power of
 * two from their level. */
#define LEVEL_MARGIN 0x1p-10f

/* In the place of the direction, during the passes. */
template <int DIM> struct level_shared {
    uint32_t count[ROWS][LEVELS];
    float mean[THREADS / 32][DIM];
};

/* In the place of the ring, after them, with 64 channels: C of the keys of each warp. */
struct tail_shared {
    float part[THREADS / 32][tail_elements<64>];
};

/* The level of which not all keys of a row fit on its list, and for how many there is room. */
struct list_limit {
    int level, room;
};

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ level_shared<DIM> &levels_of(const block_system<DIM, DECAYED, T> &sys)
{
    static_assert(sizeof(level_shared<DIM>) <= sizeof sys.sm.direction, "levels in the direction's memory");
    return *(level_shared<DIM> *)sys.sm.direction;
}

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ tail_shared &tails_of(const block_system<DIM, DECAYED, T> &sys)
{
    static_assert(sizeof(tail_shared) <= sizeof sys.sm.stage, "tails lie in the ring's memory");
    return *(tail_shared *)sys.sm.stage;
}

/* The keys that the first row of the block sees, from the first one of the tile that begins at key j on: a
 * word of ones and zeros, times `one`, for keys `at` and at + 1 of the tile. */
struct first_row {
    int lo, hi;

    __device__ __forceinline__ uint32_t pair(int j, int at, float one) const
    {
        const int key = j + at;
        return pack_pair<__half>(key >= lo && key < hi ? one : 0, key + 1 >= lo && key + 1 < hi ? one : 0);
    }
    /* The same for key j, twice. */
    __device__ __forceinline__ uint32_t both(int j, float one) const
    {
        const float x = j >= lo && j < hi ? one : 0;
        return pack_pair<__half>(x, x);
    }
};

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ first_row first_row_of(const block_system<DIM, DECAYED, T> &sys)
{
    int64_t lo, hi;
    local_visible(&sys.p, &sys.block.s, sys.block.i0, &lo, &hi);
    return { (int)lo, (int)hi };
}

/* log2 p of the pairs of a tile; -inf where a row does not see the key. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void tile_log_weights(float (&s)[8][4],
                                                        const block_system<DIM, DECAYED, T> &sys,
                                                        const kv_tile<T> &t)
{
    multiply_rows<DIM>(s, sys.sm.query, t.keys, false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(s);
    add_decay(s, sys, t.j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float base = sys.lse2[e / 2] + (is_half<T> ? sys.weight_log2[e / 2] : 0);
            s[n][e] = DECAYED ? s[n][e] - base : s[n][e] * sys.scale2[e / 2] - base;
        }
    }
    if (DECAYED || !sys.lse_exact || !sys.unmasked(t.j)) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = sys.seen(e / 2, t.j + column_of(n, e)) ? fminf(s[n][e], 0) : -INFINITY;
        }
    }
}

/* The level of a weight plus LEVEL_FIRST, in the low byte: that much added to 2^23 is rounded to a whole
 * number. */
static __device__ __forceinline__ uint32_t level_bits(float log_weight)
{
    const float level = fminf(fmaxf(-log_weight, LEVEL_FIRST + 0.5f), LEVEL_FIRST + LEVELS - 0.5f);
    return __float_as_uint(level + (LEVEL_MARGIN - 0.5f) + 0x1p23f);
}

/* ------------------------------------------------------------------ the first pass */

/* Adds the counters of the thread's rows, which become 0, to those in shared memory. */
template <int DIM>
static __device__ __forceinline__ void add_counters(level_shared<DIM> &sm, uint32_t (&counter)[2][LEVELS / 4],
                                                    const row_pair &r)
{
#pragma unroll
    for (int n = 0; n < 2 * LEVELS / 4; n++) {
        uint32_t &word = counter[n / (LEVELS / 4)][n % (LEVELS / 4)];
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            uint32_t sum = word >> 8 * odd & 0x00ff00ffu;
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (threadIdx.x % 4 == 0) {
                uint32_t *const to = &sm.count[r.at[n / (LEVELS / 4)]][n % (LEVELS / 4) * 4 + odd];
                to[0] += sum & 0xffffu, to[2] += sum >> 16;
            }
        }
        word = 0;
    }
}

static __device__ __forceinline__ void count_levels(uint32_t (&counter)[2][LEVELS / 4],
                                                    const float (&s)[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t level = level_bits(s[n][e]) - LEVEL_FIRST, base = __float_as_uint(0x1p23f);
            const uint32_t one = __funnelshift_l(1, 1, level * 8) & 0x01010101u;
#pragma unroll
            for (int word = 0; word < LEVELS / 4; word++) {
                const bool here = level < base + 4 * (word + 1) && (word == 0 || level >= base + 4 * word);
                counter[e / 2][word] += here ? one : 0;
            }
        }
    }
}

/* sum += this warp's 16 keys of a tile of 64 channels: element 0 of fragment n is channel 8 n + g. */
static __device__ __forceinline__ void sum_keys(float (*sum)[4], const void *tile, const first_row &first,
                                                int j)
{
    const int t = threadIdx.x % 4;
    uint32_t x[SQUARES][4];
    load_keys_transposed(x, tile);
#pragma unroll
    for (int i = 0; i < SQUARES; i++)
        mma_half(sum[i], x[i], first.pair(j, 2 * t, 1), first.pair(j, 2 * t + 8, 1));
}

/* Channels of which each thread centres keys: 8 n + g of its warp's 16 keys, or eight side by side. */
template <int DIM> static __device__ __forceinline__ int centred_channel(int n)
{
    return DIM == 64 ? 8 * n + (int)threadIdx.x % 32 / 4 : (int)threadIdx.x % WIDE_CHUNKS * 8 + n;
}

/* Of the thread's rows, the level that the list takes in part; counters of keys that a row does not see are
 * on the last level. */
template <int DIM>
static __device__ __forceinline__ void choose_level(list_limit (&limit)[2], const level_shared<DIM> &sm,
                                                    const row_pair &r)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        int level = 0, room = heavy_keys<DIM>;
        while (level < LEVELS && (int)sm.count[r.at[row]][level] <= room)
            room -= (int)sm.count[r.at[row]][level++];
        limit[row] = { level, room };
    }
}

/* The tile of a warp's 16 keys. */
template <class T> static __device__ __forceinline__ const T *warp_keys(const kv_tile<T> &t)
{
    return t.keys + threadIdx.x / 32 * SQUARE * TILE_SIDE;
}

/* mean: of the keys that the first row sees, centred_channel(n). */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void count_pass(const block_system<DIM, DECAYED, T> &sys,
                                                  list_limit (&limit)[2], float (&mean)[8])
{
    level_shared<DIM> &sm = levels_of(sys);
    const first_row first = first_row_of(sys);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    uint32_t counter[2][LEVELS / 4] = {};
    float sum[DIM / SQUARE][4] = {};
    for (int n = threadIdx.x; n < ROWS * LEVELS; n += THREADS)
        sm.count[n / LEVELS][n % LEVELS] = 0;
    __syncthreads();
    stream_tiles<DIM, false>(sys.ring(), sys.count, sys.maps, sys.block, [&](const kv_tile<T> &t) {
        float s[8][4];
        tile_log_weights(s, sys, t);
        count_levels(counter, s);
#pragma unroll
        for (int half = 0; half < DIM / TILE_SIDE; half++)
            sum_keys(sum + half * SQUARES, warp_keys(t) + half * TILE_ELEMENTS, first, t.j + warp * SQUARE);
        if ((t.j - sys.block.first) / TILE_SIDE % COUNTED_TILES == COUNTED_TILES - 1)
            add_counters(sm, counter, sys.r);
    });
    add_counters(sm, counter, sys.r);
    if (lane % 4 == 0) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            sm.mean[warp][8 * n + g] = sum[n / 2][n % 2 * 2];
    }
    __syncthreads();
    choose_level(limit, sm, sys.r);
    const float inverse = 1.0f / (float)max(first.hi - first.lo, 1);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int c = centred_channel<DIM>(n);
        mean[n] = (sm.mean[0][c] + sm.mean[1][c] + sm.mean[2][c] + sm.mean[3][c]) * inverse;
    }
    __syncthreads();
}

/* ------------------------------------------------------------------ the second pass */

/* Sums before this lane, and over the four lanes of a row, of two counts in one word. */
static __device__ __forceinline__ uint32_t quad_before(uint32_t x, uint32_t &all)
{
    const int t = threadIdx.x % 4;
    const uint32_t one = __shfl_xor_sync(0xffffffffu, x, 1), two = x + one,
                   other = __shfl_xor_sync(0xffffffffu, two, 2);
    all = two + other;
    return (t % 2 ? one : 0) + (t / 2 ? other : 0);
}

/* Where the list of a row stands: keys in it, and those of the level that it takes in part. */
struct list_end {
    int count, partial;
    float weight;
};

/* log2 p of keys that the list takes is above `sure`; of keys of the level that it takes in part, above
 * `partial`. */
struct list_bounds {
    float sure, partial;
};

static __device__ __forceinline__ list_bounds list_bounds_of(int level)
{
    const float least = -FLT_MAX;
    return { level == 0        ? INFINITY
             : level == LEVELS ? least
                               : LEVEL_MARGIN - (float)(level + LEVEL_FIRST),
             level >= LEVELS - 1 ? least : LEVEL_MARGIN - (float)(level + LEVEL_FIRST + 1) };
}

/* Lists the heavy keys of one of the thread's rows in a tile. log_p: where the thread can put its 16 numbers,
 * THREADS apart, to take out the few that are heavy. */
template <int MOST>
static __device__ __forceinline__ void list_keys(list_end &end, const float (&s)[8][4], int row, int j,
                                                 const list_bounds &bounds, int room, int32_t *key,
                                                 __half *root, float *log_p)
{
    uint32_t sure = 0, level = 0, all; /* bit n: number n */
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float x = s[n / 2][2 * row + n % 2];
        log_p[n * THREADS] = x;
        sure |= x > bounds.sure ? 1u << n : 0;
        level |= x > bounds.partial ? 1u << n : 0;
    }
    level &= ~sure;
    const uint32_t before = quad_before(__popc(sure) | __popc(level) << 16, all);
    const int kept_before = min(end.partial, room);
    int rank = end.partial + (int)(before >> 16),
        to = end.count + (int)(before & 0xffffu) + min(rank, room) - kept_before;
    for (uint32_t left = sure | level; left; left &= left - 1) {
        const int n = __ffs(left) - 1;
        const bool partial = level >> n & 1, take = (!partial || rank < room) && to < MOST;
        rank += partial;
        if (!take) continue;
        const float p_root = exp2_fast(0.5f * log_p[n * THREADS]);
        key[to] = j + column_of(n / 2, n % 2), root[to] = __float2half_rn(p_root * ROOT_SCALE);
        end.weight += p_root * p_root;
        to++;
    }
    end.partial += (int)(all >> 16);
    end.count = min(end.count + (int)(all & 0xffffu) + min(end.partial, room) - kept_before, MOST);
}

/* Fills the list of a row to a multiple of 16 keys. */
template <int DIM>
static __device__ __forceinline__ void end_list(const list_end &end, const heavy_slot<DIM> &slot, int at)
{
    const int whole = whole_squares(end.count);
    for (int n = end.count + (int)(threadIdx.x % 4); n < whole; n += 4)
        slot.keys(at)[n] = 0, slot.roots(at)[n] = __float2half_rn(0);
}

/* C = sum k k^T of centred keys, by equal weights. All threads of the block call its functions. */
template <int DIM> struct tail_sum;

/* Each warp sums its 16 keys of a tile. */
template <> struct tail_sum<64> {
    square_sums sum[LOWER_SQUARES];
    uint32_t centre[2 * SQUARES];

    __device__ __forceinline__ tail_sum(const float (&mean)[8]) : sum{}
    {
#pragma unroll
        for (int n = 0; n < 2 * SQUARES; n++)
            centre[n] = centre_of(mean[n]);
    }
    template <class SYSTEM, class T>
    __device__ __forceinline__ void add(const SYSTEM &, const kv_tile<T> &t, const first_row &first)
    {
        const int t4 = threadIdx.x % 4, j = t.j + (int)threadIdx.x / 32 * SQUARE;
        const uint32_t ones[2] = { first.pair(j, 2 * t4, ROOT_SCALE), first.pair(j, 2 * t4 + 8, ROOT_SCALE) };
        uint32_t x[SQUARES][4];
        centred_keys(x, warp_keys(t), centre, ones);
        add_keys(sum, x);
    }
    /* The sum over the warps, the four numbers of a lane side by side; `share`: one over the number of its
     * keys. */
    template <class SYSTEM>
    __device__ __forceinline__ void put(const SYSTEM &sys, float share, float *to) const
    {
        tail_shared &sm = tails_of(sys);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < LOWER_SQUARES * 8; n++)
            sm.part[warp][(n / 4 * 32 + lane) * 4 + n % 4] = sum[n / 8].tile[n / 4 % 2][n % 4];
        __syncthreads();
        for (int n = threadIdx.x; n < tail_elements<64>; n += THREADS)
            to[n] = (sm.part[0][n] + sm.part[1][n] + sm.part[2][n] + sm.part[3][n]) * share;
        fence_async_proxy();
        __syncthreads();
    }
};

/* The warpgroup sums centred copies, in the memory of the direction's lo part. */
template <> struct tail_sum<128> {
    wide_sums sum;
    uint32_t centre[4];

    __device__ __forceinline__ tail_sum(const float (&mean)[8]) : sum{}
    {
#pragma unroll
        for (int n = 0; n < 4; n++)
            centre[n] = pack_pair<__half>(-CENTRED_SCALE * mean[2 * n], -CENTRED_SCALE * mean[2 * n + 1]);
    }
    template <class SYSTEM, class T>
    __device__ __forceinline__ void add(const SYSTEM &sys, const kv_tile<T> &t, const first_row &first)
    {
        const int chunk = threadIdx.x % WIDE_CHUNKS;
        T *const copy = sys.sm.direction[1];
#pragma unroll
        for (int key = (int)threadIdx.x / WIDE_CHUNKS; key < TILE_SIDE; key += THREADS / WIDE_CHUNKS) {
            const int at = swizzled(key, 8 * chunk);
            *(uint4 *)(copy + at) = centred_chunk(*(const uint4 *)(t.keys + at), centre,
                                                  first.both(t.j + key, ROOT_SCALE));
        }
        wgmma_results(sum.part);
        multiply_keys(sum, copy);
        wgmma_wait<0>();
        wgmma_results(sum.part);
    }
    template <class SYSTEM> __device__ __forceinline__ void put(const SYSTEM &, float share, float *to) const
    {
        const int lane = threadIdx.x % 32;
        each_wide_square(sum, threadIdx.x / 32, [&](int square, const float(&x)[4], const float(&y)[4]) {
            float4 *const at = (float4 *)to + square * 2 * 32 + lane;
            at[0] = make_float4(x[0] * share, x[1] * share, x[2] * share, x[3] * share);
            at[32] = make_float4(y[0] * share, y[1] * share, y[2] * share, y[3] * share);
        });
    }
};

/* Lists the heavy keys of the rows that are `wanted`, and writes what else their matrices are made of. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void list_pass(const block_system<DIM, DECAYED, T> &sys,
                                                 const list_limit (&limit)[2], const bool (&wanted)[2],
                                                 const float (&mean)[8], const heavy_slot<DIM> &slot)
{
    const first_row first = first_row_of(sys);
    tail_sum<DIM> tail(mean);
    list_end end[2] = {};
    const list_bounds bounds[2] = { list_bounds_of(limit[0].level), list_bounds_of(limit[1].level) };
    int32_t *const key[2] = { slot.keys(sys.r.at[0]), slot.keys(sys.r.at[1]) };
    __half *const root[2] = { slot.roots(sys.r.at[0]), slot.roots(sys.r.at[1]) };
    float *const log_p = (float *)sys.sm.direction + threadIdx.x;
    static_assert(sizeof sys.sm.direction[0] >= 16 * THREADS * sizeof *log_p,
                  "numbers of a row of each thread");
    stream_tiles<DIM, false>(sys.ring(), sys.count, sys.maps, sys.block, [&](const kv_tile<T> &t) {
        float s[8][4];
        tile_log_weights(s, sys, t);
#pragma unroll
        for (int row = 0; row < 2; row++)
            list_keys<heavy_keys<DIM>>(end[row], s, row, t.j - sys.block.first, bounds[row], limit[row].room,
                                       key[row], root[row], log_p);
        tail.add(sys, t, first);
    });
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float mass = fmaxf(1 - quad_sum(end[row].weight), 0);
        end_list(end[row], slot, sys.r.at[row]);
        if (threadIdx.x % 4 == 0)
            slot.row[sys.r.at[row]] = { wanted[row] ? end[row].count : NO_MATRIX, mass };
    }
    tail.put(sys, 1.0f / (float)max(first.hi - first.lo, 1), slot.tail);
}

#endif
