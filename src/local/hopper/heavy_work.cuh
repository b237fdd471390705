/* SPDX-License-Identifier: MIT
 *
 * Blocks of rows that plain conjugate gradients would take too long for, in the workspace: what the launches
 * that meet them leave, and what the launches that solve them, with a matrix for each row, hand on. These
 * take the list in waves of as many blocks as there are slots.
 */
#ifndef LOAM_LOCAL_HOPPER_HEAVY_WORK_CUH
#define LOAM_LOCAL_HOPPER_HEAVY_WORK_CUH

#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/claim.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/row_factor.cuh"

/* Keys on the list of a row; numbers of the covariance of all keys; and blocks for each multiprocessor that
 * have a place in a wave. */
template <int DIM> constexpr int heavy_keys = DIM == 64 ? 192 : 256;
template <int DIM> constexpr int tail_elements = lower_squares<DIM> * 8 * 32;
template <int DIM> constexpr int wave_slots = DIM == 64 ? 12 : 6;

/* Do rows of listed blocks get a matrix each? Wider ones would not fit a multiprocessor. */
template <int DIM> constexpr bool has_row_matrices = DIM <= 128;
static inline bool may_have_row_matrices(const loam_problem *p) { return local_padded_dim(p) <= 128; }

/* Two vectors of each of the rows of a block, as a scratch has them. */
template <int DIM> constexpr int listed_vector = DIM / 2 * THREADS;
template <int DIM> constexpr int listed_vectors = 2 * listed_vector<DIM>;

/* lse of a row, to base 2, and its largest p. */
struct row_weight {
    float lse2, largest;
};

/* Keys on the list of a row, NO_MATRIX where it needs none, and the weight of all other keys. */
enum { NO_MATRIX = -1 };
struct heavy_row {
    int32_t count;
    float mass;
};

/* The place of a block during a wave. A row's list lies where its factor will be. */
template <int DIM> struct heavy_slot {
    uint32_t *factor; /* [ROWS][factor_words] */
    float *tail;      /* [lower_squares * 2][32][4]: C, as accumulators */
    heavy_row *row;   /* [ROWS] */

    /* Keys from the first one of the block on, and sqrt(p) of each times ROOT_SCALE: [heavy_keys]. */
    __device__ __forceinline__ int32_t *keys(int at) const
    {
        return (int32_t *)factor + at * factor_words<DIM>;
    }
    __device__ __forceinline__ __half *roots(int at) const { return (__half *)(keys(at) + heavy_keys<DIM>); }
};

/* What the adjoint solve passes by: the sum of p (g - gbar), the key of the largest score, the unit of b. */
struct adjoint_row {
    float rest;
    int32_t peak;
    float unit;
};

struct heavy_work {
    int32_t *listed;      /* numbers of blocks, as many as solve_work.heavy_count says */
    float *vectors;       /* [listed][listed_vectors]: kbar, in units of the keys, then x; vbar, or b */
    row_weight *weight;   /* [listed][ROWS] */
    adjoint_row *adjoint; /* likewise */
    uint32_t *factor;     /* these: [slots] */
    float *tail;
    heavy_row *row;
    int64_t slots;

    template <int DIM> __device__ __forceinline__ heavy_slot<DIM> slot(int64_t n) const
    {
        return { factor + n * ROWS * factor_words<DIM>, tail + n * tail_elements<DIM>, row + n * ROWS };
    }
};

template <int DIM> static inline heavy_work heavy_work_carve_dim(const loam_problem *p, arena *pool)
{
    const int64_t most = wave_slots<DIM> * solve_multiprocessors(), blocks = (int64_t)row_blocks(p);
    const size_t listed = row_blocks(p);
    heavy_work w = {};
    w.slots = most < blocks ? most : blocks;
    const size_t rows = (size_t)w.slots * ROWS;
    w.listed = (int32_t *)arena_take(pool, listed, sizeof(int32_t));
    w.vectors = (float *)arena_take(pool, listed, listed_vectors<DIM> * sizeof(float));
    w.weight = (row_weight *)arena_take(pool, listed, ROWS * sizeof(row_weight));
    if (p->pass == LOAM_BACKWARD)
        w.adjoint = (adjoint_row *)arena_take(pool, listed, ROWS * sizeof(adjoint_row));
    w.factor = (uint32_t *)arena_take(pool, rows, factor_words<DIM> * sizeof(uint32_t));
    w.tail = (float *)arena_take(pool, (size_t)w.slots, tail_elements<DIM> * sizeof(float));
    w.row = (heavy_row *)arena_take(pool, rows, sizeof(heavy_row));
    return w;
}

/* As many slots as a wave has blocks, or as there are blocks; nothing where rows have no matrices. */
static inline heavy_work heavy_work_carve(const loam_problem *p, arena *pool)
{
    switch (local_padded_dim(p)) {
    case 64: return heavy_work_carve_dim<64>(p, pool);
    case 128: return heavy_work_carve_dim<128>(p, pool);
    default: return heavy_work{};
    }
}

/* Writes what place n of the list has of the thread's rows: two vectors, the first one times `scale`, where
 * that is 0, 0; and weights. */
template <int DIM, class VECTOR>
static __device__ __forceinline__ void put_place(const heavy_work &heavy, int64_t n, const row_pair &r,
                                                 const row_weight (&weight)[2], const VECTOR &first,
                                                 const float (&scale)[2], const VECTOR &second)
{
    float *const to = heavy.vectors + n * listed_vectors<DIM> + threadIdx.x;
#pragma unroll 8
    for (int i = 0; i < DIM / 2; i++) {
        const float factor = scale[i / 2 % 2];
        to[i * THREADS] = factor != 0 ? factor * first.get(i) : 0;
        to[listed_vector<DIM> + i * THREADS] = second.get(i);
    }
    if (threadIdx.x % 4 == 0) {
        heavy.weight[n * ROWS + r.at[0]] = weight[0];
        heavy.weight[n * ROWS + r.at[1]] = weight[1];
    }
}

/* Puts a block on the list, with two vectors, the first one times `scale`, and the weights of the thread's
 * rows. All threads of the block call it; sm.listed is its place. */
template <int DIM, class SHARED, class VECTOR>
static __device__ __forceinline__ void put_listed(SHARED &sm, const solve_launch &all, const row_pair &r,
                                                  const row_weight (&weight)[2], const VECTOR &first,
                                                  float scale, const VECTOR &second)
{
    const heavy_work &heavy = *all.heavy;
    __syncthreads();
    if (threadIdx.x == 0) {
        sm.listed = (int64_t)atomicAdd(all.work.heavy_count, 1ull);
        heavy.listed[sm.listed] = (int32_t)sm.block;
    }
    __syncthreads();
    const float scales[2] = { scale, scale };
    put_place<DIM>(heavy, sm.listed, r, weight, first, scales, second);
}

/* Blocks `base` .. of the list, as many as there are slots. */
struct heavy_wave {
    int64_t base, number;
};

/* Blocks of the list in this wave. */
static __device__ __forceinline__ int64_t wave_blocks(const heavy_work &heavy, const solve_work &work,
                                                      const heavy_wave &wave)
{
    const int64_t left = (int64_t)*work.heavy_count - wave.base;
    return left < heavy.slots ? left : heavy.slots;
}

/* The slot of the next block of this wave for this launch; -1 where there is none. Each thread block of a
 * wave has asked once in vain when the next wave begins. */
static __device__ __forceinline__ int64_t claim_slot(int64_t *counter, int64_t blocks, const heavy_wave &wave)
{
    const int64_t n = (int64_t)atomicAdd((unsigned long long *)counter, 1ull) - wave.base -
                      wave.number * gridDim.x;
    return n < blocks ? n : -1;
}

/* Queues the solution of the listed blocks. forward: o, and all else that the forward pass writes. adjoint:
 * x, in the place of kbar; 0 of rows that are for float64. maps: of the copies in fp16. */
loam_status heavy_forward(const loam_problem *p, const loam_args *a, const local_saved *saved,
                          const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                          const qkv_maps *maps, loam_error *error);
loam_status heavy_adjoint(const loam_problem *p, const loam_args *a, const solve_work *work,
                          const half_copy *copy, const heavy_work *heavy, const qkv_maps *maps,
                          loam_error *error);

#endif
