/* SPDX-License-Identifier: MIT
 * How thread blocks of the solver's launches get blocks of 64 rows. */
#ifndef LOAM_LOCAL_HOPPER_CLAIM_CUH
#define LOAM_LOCAL_HOPPER_CLAIM_CUH

#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/solve.cuh"

struct heavy_work;

/* What all blocks of a launch share. copy and heavy: NULL for bf16. */
struct solve_launch {
    const loam_problem &p;
    const loam_args &a;
    const local_saved &saved;
    const solve_work &work;
    const qkv_maps &maps;
    const half_copy *copy;
    const heavy_work *heavy;
};

/* Thread blocks of a launch, at most: as many as the device can hold at once, each with a scratch. */
template <int DIM> static inline int64_t most_solver_blocks(const solve_work &work)
{
    const int64_t resident = solver_blocks<DIM> * solve_multiprocessors();
    return resident < work.scratches ? resident : work.scratches;
}

/* Tiles of keys that the block sees. */
static __device__ __forceinline__ int key_tiles(const row_block &block)
{
    return (block.last - block.first + TILE_SIDE - 1) / TILE_SIDE;
}

/* Do the keys of the block stay in shared memory (local/hopper/resident.cuh)? Lengths alone decide, so that
 * the bits of a sequence do not depend on its batch. In long sequences few blocks see so few keys. */
enum { RESIDENT_TILES = 2, RESIDENT_LENGTH = 512 };
template <int DIM>
static __device__ __forceinline__ bool is_resident(const loam_problem &p, const row_block &block)
{
    return DIM == TILE_SIDE && p.dim_qk == TILE_SIDE && p.dim_v == TILE_SIDE && !p.decay &&
           p.ridge_axes != LOAM_RIDGE_CHANNEL && block.s.nk <= RESIDENT_LENGTH &&
           key_tiles(block) <= RESIDENT_TILES;
}

/* Whether blocks of the problem may be such ones, and whether all are. */
static inline bool may_be_resident(const loam_problem *p, const loam_args *a)
{
    const bool may_be_short = p->len_kv <= RESIDENT_LENGTH || sequence_packed(p) || a->lens_kv;
    return p->dim_qk == TILE_SIDE && p->dim_v == TILE_SIDE && !p->decay &&
           p->ridge_axes != LOAM_RIDGE_CHANNEL && may_be_short;
}
static inline bool all_resident(const loam_problem *p, const loam_args *a)
{
    return may_be_resident(p, a) && p->len_kv <= RESIDENT_TILES * TILE_SIDE;
}

/* Does the first row of the block see too few keys for one part? */
template <int DIM>
static __device__ __forceinline__ bool sees_few(const loam_problem &p, const row_block &block)
{
    int64_t lo, hi;
    local_visible(&p, &block.s, block.i0, &lo, &hi);
    return hi - lo < FEW_KEYS * DIM;
}

/* A list of blocks, and the counter of the launch that takes them. */
struct block_list {
    int64_t *next;
    const int32_t *block;
    const unsigned long long *count;
};

/* Takes the next block of rows for this launch: its number, -1 where there is none, its rows, and its place
 * on the list. Without a list (next NULL) it takes those blocks whose first row sees few keys where it has
 * two parts, or the others, but (without ALL) none whose keys stay in shared memory; where scores decay, few
 * keys have weight and all blocks take two parts. One thread calls it. */
template <int PARTS, bool DECAYED, bool ALL = false, int DIM, class T>
static __device__ __forceinline__ void claim_block(solver_shared<DIM, T> &sm, const solve_launch &all,
                                                   int64_t blocks, const block_list &list)
{
    unsigned long long *counter = (unsigned long long *)(list.next    ? list.next
                                                         : PARTS == 2 ? all.work.next_few
                                                                      : all.work.next_block);
    const int64_t count = list.next ? (int64_t)*list.count : blocks;
    for (;;) {
        sm.listed = (int64_t)atomicAdd(counter, 1ull);
        sm.block = sm.listed >= count ? -1 : list.next ? list.block[sm.listed] : sm.listed;
        if (sm.block < 0) return;
        sm.rows = row_block_at(all.p, all.a, sm.block);
        if (sm.rows.rows <= 0) continue;
        if (list.next || DECAYED) return;
        if ((ALL || !is_resident<DIM>(all.p, sm.rows)) && sees_few<DIM>(all.p, sm.rows) == (PARTS == 2))
            return;
    }
}

/* Takes any scratch that is free: the launch of blocks with few keys overlaps with that of the others. */
static __device__ __forceinline__ int claim_scratch(const solve_work &work)
{
    int n = (int)(blockIdx.x % work.scratches);
    while (atomicCAS(&work.scratch_taken[n], 0, 1) != 0)
        n = n + 1 < (int)work.scratches ? n + 1 : 0;
    __threadfence();
    return n;
}

#endif
