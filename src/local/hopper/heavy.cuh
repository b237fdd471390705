/* SPDX-License-Identifier: MIT
 *
 * For each row of a block, a matrix near Cov + Lambda that costs a fraction of it, and its inverse: the
 * preconditioner of local/hopper/pcg.cuh. A row of a trained model has most of its weight on a few of its
 * keys, which are the row's own, and what the others add differs little from their plain covariance. So
 *
 *     A_i ~ sum_heavy p_ij kappa_ij kappa_ij^T + mass_i C + Lambda_i,
 *
 * heavy: the keys of the row's largest weights; mass_i: the weight of the others; C: the covariance, by equal
 * weights, of all keys that the block's first row sees. Nothing here depends on later rows of the block.
 *
 * Three steps: a pass that counts each row's weights by powers of two, and finds the mean of the keys; a pass
 * that lists the heavy keys and sums C; and for each row, by one warp, the matrix and its inverse.
 */
#ifndef LOAM_LOCAL_HOPPER_HEAVY_CUH
#define LOAM_LOCAL_HOPPER_HEAVY_CUH

#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/row_factor.cuh"
#include "src/local/hopper/solve.cuh"

#include <cfloat>

/* Head dimensions with such matrices: those that one warp can hold. */
template <int DIM> constexpr bool has_row_matrices = DIM == TILE_SIDE;

/* Weights 2^-(n + LEVEL_FIRST + 1) .. 2^-(n + LEVEL_FIRST) are on level n; larger ones on the first, smaller
 * ones on the last. Counters of 8 bits, four to a word, hold COUNTED_TILES tiles. */
enum { HEAVY_KEYS = 192, LEVELS = 16, LEVEL_FIRST = 2, COUNTED_TILES = 15 };

/* In the workspace, `scratches` times: [ROWS][HEAVY_KEYS] twice, [ROWS][FACTOR_WORDS]. */
struct heavy_work {
    int32_t *key; /* from the first key of the block on */
    __half *root;
    uint32_t *factor;
    int64_t scratches;

    __device__ __forceinline__ heavy_work of(int64_t scratch) const
    {
        return { key + scratch * ROWS * HEAVY_KEYS, root + scratch * ROWS * HEAVY_KEYS,
                 factor + scratch * ROWS * FACTOR_WORDS, 1 };
    }
};

/* One for each thread block that the device holds at once, or for each block of rows if these are fewer. */
static inline heavy_work heavy_work_carve(const loam_problem *p, const solve_work *work, arena *pool)
{
    const int64_t resident = BLOCKS_PER_SM * solve_multiprocessors(), blocks = (int64_t)row_blocks(p);
    heavy_work w = {};
    w.scratches = resident < blocks ? resident : blocks;
    if (work->scratches < w.scratches) w.scratches = work->scratches;
    if (local_padded_dim(p) != TILE_SIDE) return w;
    const size_t rows = (size_t)w.scratches * ROWS;
    w.key = (int32_t *)arena_take(pool, rows, HEAVY_KEYS * sizeof(int32_t));
    w.root = (__half *)arena_take(pool, rows, HEAVY_KEYS * sizeof(__half));
    w.factor = (uint32_t *)arena_take(pool, rows, FACTOR_WORDS * sizeof(uint32_t));
    return w;
}

/* In the place of the direction, during the passes. */
struct level_shared {
    uint32_t count[ROWS][LEVELS];
    float mean[THREADS / 32][TILE_SIDE];
};

/* In the place of the ring, after them. */
struct matrix_shared {
    union {
        unsigned char stage[THREADS / 32][GATHER_STAGES * GATHER_BYTES];
        float part[THREADS / 32][LOWER_SQUARES * 8][32];
    };
    float tail[LOWER_SQUARES * 8][32]; /* C times the keys that it is of, as accumulators */
    int32_t key[THREADS / 32][HEAVY_KEYS];
    __half root[THREADS / 32][HEAVY_KEYS];
};

/* What the passes find of the thread's rows: the level of which not all keys fit in the list, and for how
 * many there is room; the heavy keys, and the weight of the others. */
struct heavy_rows {
    int level[2], room[2], count[2];
    float mass[2];
};

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ level_shared &levels_of(const block_system<DIM, DECAYED, T> &sys)
{
    static_assert(sizeof(level_shared) <= sizeof sys.sm.direction, "levels lie in the direction's memory");
    return *(level_shared *)sys.sm.direction;
}

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ matrix_shared &matrices_of(const block_system<DIM, DECAYED, T> &sys)
{
    static_assert(sizeof(matrix_shared) <= sizeof sys.sm.stage, "matrices lie in the ring's memory");
    return *(matrix_shared *)sys.sm.stage;
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
            const float score = DECAYED ? s[n][e] - base : s[n][e] * sys.scale2[e / 2] - base;
            s[n][e] = sys.seen(e / 2, t.j + column_of(n, e)) ? fminf(score, 0) : -INFINITY;
        }
    }
}

static __device__ __forceinline__ int level_of(float log_weight)
{
    return min(max((int)-log_weight - LEVEL_FIRST, 0), LEVELS - 1);
}

/* ------------------------------------------------------------------ the first pass */

/* Adds the counters of the thread's rows, which become 0, to those in shared memory. */
static __device__ __forceinline__ void add_counters(level_shared &sm, uint32_t (&counter)[2][LEVELS / 4],
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
            const int level = level_of(s[n][e]);
            const uint32_t one = 1u << level % 4 * 8;
#pragma unroll
            for (int word = 0; word < LEVELS / 4; word++)
                counter[e / 2][word] += level / 4 == word ? one : 0;
        }
    }
}

/* sum += this warp's 16 keys of the tile: element 0 of fragment n is channel 8 n + g. */
static __device__ __forceinline__ void sum_keys(float (&sum)[SQUARES][4], const void *tile,
                                                const first_row &first, int j)
{
    const int t = threadIdx.x % 4;
    uint32_t x[SQUARES][4];
    load_keys_transposed(x, tile);
#pragma unroll
    for (int i = 0; i < SQUARES; i++)
        mma_half(sum[i], x[i], first.pair(j, 2 * t, 1), first.pair(j, 2 * t + 8, 1));
}

/* Of the thread's rows, the level that the list takes in part; counters of keys that a row does not see are
 * on the last level. */
static __device__ __forceinline__ void choose_level(heavy_rows &heavy, const level_shared &sm,
                                                    const row_pair &r)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        int level = 0, room = HEAVY_KEYS;
        while (level < LEVELS && (int)sm.count[r.at[row]][level] <= room)
            room -= (int)sm.count[r.at[row]][level++];
        heavy.level[row] = level, heavy.room[row] = room;
    }
}

/* The tile of a warp's 16 keys. */
template <class T> static __device__ __forceinline__ const T *warp_keys(const kv_tile<T> &t)
{
    return t.keys + threadIdx.x / 32 * SQUARE * TILE_SIDE;
}

/* mean: of the keys that the first row sees, channels 8 n + g. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void count_pass(const block_system<DIM, DECAYED, T> &sys, heavy_rows &heavy,
                                                  float (&mean)[2 * SQUARES])
{
    level_shared &sm = levels_of(sys);
    const first_row first = first_row_of(sys);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    uint32_t counter[2][LEVELS / 4] = {};
    float sum[SQUARES][4] = {};
    for (int n = threadIdx.x; n < ROWS * LEVELS; n += THREADS)
        sm.count[n / LEVELS][n % LEVELS] = 0;
    __syncthreads();
    stream_tiles<DIM, false>(sys.ring(), sys.count, sys.maps, sys.block, [&](const kv_tile<T> &t) {
        float s[8][4];
        tile_log_weights(s, sys, t);
        count_levels(counter, s);
        sum_keys(sum, warp_keys(t), first, t.j + warp * SQUARE);
        if ((t.j - sys.block.first) / TILE_SIDE % COUNTED_TILES == COUNTED_TILES - 1)
            add_counters(sm, counter, sys.r);
    });
    add_counters(sm, counter, sys.r);
    if (lane % 4 == 0) {
#pragma unroll
        for (int n = 0; n < 2 * SQUARES; n++)
            sm.mean[warp][8 * n + g] = sum[n / 2][n % 2 * 2];
    }
    __syncthreads();
    choose_level(heavy, sm, sys.r);
    const float inverse = 1.0f / (float)max(first.hi - first.lo, 1);
#pragma unroll
    for (int n = 0; n < 2 * SQUARES; n++) {
        const int c = 8 * n + g;
        mean[n] = (sm.mean[0][c] + sm.mean[1][c] + sm.mean[2][c] + sm.mean[3][c]) * inverse;
    }
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
                               : -(float)(level + LEVEL_FIRST),
             level >= LEVELS - 1 ? least : -(float)(level + LEVEL_FIRST + 1) };
}

/* A branch for each pair of a tile would cost more than all else in the pass. */
static __device__ __forceinline__ void put_key_if(bool put, int32_t *key, int32_t j, __half *root, float x)
{
    const __half half = __float2half_rn(x);
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n"
                 "@p st.global.b16 [%3], %4;\n}\n" ::"r"((int)put),
                 "l"(key), "r"(j), "l"(root), "h"(bits)
                 : "memory");
}

/* Lists the heavy keys of one of the thread's rows in a tile. */
static __device__ __forceinline__ void list_keys(list_end &end, const float (&s)[8][4], int row, int j,
                                                 const list_bounds &bounds, int room, int32_t *key,
                                                 __half *root)
{
    uint32_t counts = 0, all;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float x = s[n / 2][2 * row + n % 2];
        counts += x > bounds.sure ? 1u : x > bounds.partial ? 1u << 16 : 0;
    }
    const uint32_t before = quad_before(counts, all);
    const int kept_before = min(end.partial, room);
    int rank = end.partial + (int)(before >> 16),
        to = end.count + (int)(before & 0xffffu) + min(rank, room) - kept_before;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float x = s[n / 2][2 * row + n % 2];
        const bool sure = x > bounds.sure, partial = !sure && x > bounds.partial,
                   take = (sure || (partial && rank < room)) && to < HEAVY_KEYS;
        const float p_root = exp2_fast(0.5f * x);
        rank += partial;
        put_key_if(take, key + to, j + column_of(n / 2, n % 2), root + to, p_root * ROOT_SCALE);
        end.weight += take ? p_root * p_root : 0;
        to += take;
    }
    end.partial += (int)(all >> 16);
    end.count = min(end.count + (int)(all & 0xffffu) + min(end.partial, room) - kept_before, (int)HEAVY_KEYS);
}

static __device__ __forceinline__ int whole_squares(int keys)
{
    return (keys + SQUARE - 1) / SQUARE * SQUARE;
}

/* Fills a list to a multiple of 16 keys, and sets what is known of the row. */
static __device__ __forceinline__ void end_list(heavy_rows &heavy, const list_end &end, int row, int32_t *key,
                                                __half *root)
{
    const int t = threadIdx.x % 4;
    for (int n = end.count + t; n < whole_squares(end.count); n += 4)
        key[n] = 0, root[n] = __float2half_rn(0);
    heavy.count[row] = end.count;
    heavy.mass[row] = fmaxf(1 - quad_sum(end.weight), 0);
}

/* The sum of C over the warps, in shared memory. */
static __device__ __forceinline__ void sum_tail(matrix_shared &sm, const square_sums (&tail)[LOWER_SQUARES])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < LOWER_SQUARES * 8; n++)
        sm.part[warp][n][lane] = tail[n / 8].tile[n / 4 % 2][n % 4];
    __syncthreads();
#pragma unroll 4
    for (int n = warp; n < LOWER_SQUARES * 8; n += THREADS / 32)
        sm.tail[n][lane] = sm.part[0][n][lane] + sm.part[1][n][lane] + sm.part[2][n][lane] +
                           sm.part[3][n][lane];
    __syncthreads();
}

template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void list_pass(const block_system<DIM, DECAYED, T> &sys, heavy_rows &heavy,
                                                 const float (&mean)[2 * SQUARES], const heavy_work &work)
{
    const first_row first = first_row_of(sys);
    const int warp = threadIdx.x / 32, t4 = threadIdx.x % 4;
    square_sums tail[LOWER_SQUARES] = {};
    uint32_t centre[2 * SQUARES];
    list_end end[2] = {};
    const list_bounds bounds[2] = { list_bounds_of(heavy.level[0]), list_bounds_of(heavy.level[1]) };
    int32_t *const key[2] = { work.key + sys.r.at[0] * HEAVY_KEYS, work.key + sys.r.at[1] * HEAVY_KEYS };
    __half *const root[2] = { work.root + sys.r.at[0] * HEAVY_KEYS, work.root + sys.r.at[1] * HEAVY_KEYS };
#pragma unroll
    for (int n = 0; n < 2 * SQUARES; n++)
        centre[n] = centre_of(mean[n]);
    stream_tiles<DIM, false>(sys.ring(), sys.count, sys.maps, sys.block, [&](const kv_tile<T> &t) {
        float s[8][4];
        uint32_t x[SQUARES][4];
        tile_log_weights(s, sys, t);
#pragma unroll
        for (int row = 0; row < 2; row++)
            list_keys(end[row], s, row, t.j - sys.block.first, bounds[row], heavy.room[row], key[row],
                      root[row]);
        const int j = t.j + warp * SQUARE;
        const uint32_t ones[2] = { first.pair(j, 2 * t4, ROOT_SCALE), first.pair(j, 2 * t4 + 8, ROOT_SCALE) };
        centred_keys(x, warp_keys(t), centre, ones);
        add_keys(tail, x);
    });
    end_list(heavy, end[0], 0, key[0], root[0]);
    end_list(heavy, end[1], 1, key[1], root[1]);
    sum_tail(matrices_of(sys), tail);
}

/* ------------------------------------------------------------------ the matrices */

/* The number of a lane that holds one of row i of a warp; `first` of rows 0 to 7, `second` of the others. */
template <class X> static __device__ __forceinline__ X of_row(X first, X second, int i)
{
    return __shfl_sync(0xffffffffu, i / 8 ? second : first, i % 8 * 4);
}

/* Channel 8 n + g of row i of this warp, of a vector in the scratch. */
static __device__ __forceinline__ float vector_of_row(const lane_vector &v, int i, int n)
{
    const int g = threadIdx.x % 32 / 4, owner = i % 8 * 4 + g / 2, element = 4 * n + i / 8 * 2 + g % 2;
    return v.at[(int64_t)element * THREADS + owner - (int)(threadIdx.x % 32)];
}

/* The list of row i of the warp to shared memory. */
static __device__ __forceinline__ key_list load_list(matrix_shared &sm, const heavy_work &work, int row,
                                                     int count)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncwarp();
    for (int n = lane * 4; n < whole_squares(count); n += 128)
        *(int4 *)&sm.key[warp][n] = *(const int4 *)&work.key[row * HEAVY_KEYS + n];
    for (int n = lane * 8; n < whole_squares(count); n += 256)
        *(int4 *)&sm.root[warp][n] = *(const int4 *)&work.root[row * HEAVY_KEYS + n];
    __syncwarp();
    return { sm.key[warp], sm.root[warp], count };
}

/* V of row i of the warp, to the workspace. keys: from the first key of the block on. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void row_factor(const block_system<DIM, DECAYED, T> &sys,
                                                  const heavy_rows &heavy, const heavy_work &work,
                                                  const __half *keys, float first_inverse, int i)
{
    matrix_shared &sm = matrices_of(sys);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16 + i;
    const float square = CENTRED_SCALE * CENTRED_SCALE * ROOT_SCALE * ROOT_SCALE;
    const float share = of_row(heavy.mass[0], heavy.mass[1], i) * first_inverse,
                number = of_row(sys.ridge.number[0], sys.ridge.number[1], i);
    const lane_vector kbar = sys.vector(VECTOR_KBAR), channels = sys.vector(VECTOR_RIDGE);
    square_sums s[LOWER_SQUARES];
    uint32_t centre[2 * SQUARES];
    float ridge[2 * SQUARES];
#pragma unroll
    for (int n = 0; n < 2 * SQUARES; n++) {
        centre[n] = centre_of(vector_of_row(kbar, i, n));
        ridge[n] = fmaxf(square * (sys.ridge.channels ? vector_of_row(channels, i, n) : number), LEAST_PIVOT);
    }
    const key_list list = load_list(sm, work, row, of_row(heavy.count[0], heavy.count[1], i));
#pragma unroll
    for (int n = 0; n < LOWER_SQUARES * 8; n++)
        s[n / 8].tile[n / 4 % 2][n % 4] = share * sm.tail[n][lane];
    add_list(s, keys, DIM, list, centre, sm.stage[warp]);
    add_diagonal(s, ridge);
    uint32_t *const factor = work.factor + row * FACTOR_WORDS;
    invert_matrix(s, LEAST_PIVOT, [&](int to, int from, const square_parts &v) {
        *(uint4 *)(factor + (lower_square(to, from) * 32 + lane) * 4) = make_uint4(v.hi[0], v.hi[1], v.hi[2],
                                                                                   v.hi[3]);
    });
}

/* The rows of this warp that are live: bit i is row i. */
static __device__ __forceinline__ unsigned live_rows(const bool (&live)[2])
{
    unsigned rows = 0;
    const unsigned first = __ballot_sync(0xffffffffu, live[0]), second = __ballot_sync(0xffffffffu, live[1]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        rows |= (first >> 4 * i & 1) << i | (second >> 4 * i & 1) << (i + 8);
    return rows;
}

/* Writes V of the rows that are live to the workspace. Not inlined, as pcg_run: one function would spill. */
template <int DIM, bool DECAYED, class T>
static __device__ __noinline__ void make_factors(const block_system<DIM, DECAYED, T> &stored,
                                                 const bool (&live)[2], const heavy_work &work,
                                                 const __half *keys)
{
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const block_system<DIM, DECAYED, T> sys = system_in_registers(stored, r, ridge);
    heavy_rows heavy;
    float mean[2 * SQUARES];
    put_ridge(sys);
    count_pass(sys, heavy, mean);
    list_pass(sys, heavy, mean, work);
    const first_row first = first_row_of(sys);
    const float inverse = 1.0f / (float)max(first.hi - first.lo, 1);
    const unsigned rows = live_rows(live);
#pragma unroll 1
    for (int i = 0; i < 16; i++)
        if (rows >> i & 1) row_factor(sys, heavy, work, keys, inverse, i);
    fence_async_proxy();
    __syncthreads();
}

#endif
