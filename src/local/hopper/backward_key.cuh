/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward on Hopper: the kernel around its consumers, and its launch. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_KEY_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_KEY_CUH

#include "src/gpu/blocks.cuh"
#include "src/local/hopper/backward_key_pairs.cuh"
#include "src/local/hopper/maps.cuh"

/* The state of the first 64 rows of the block's sequence in the first head of its group: row_arrays.state
 * counts such blocks from the sequence's end. */
static __device__ __forceinline__ const int32_t *first_state(const loam_problem &p, const row_arrays &arrays,
                                                             const key_block &block)
{
    const int64_t last = (p.len_q + ROWS - 1) / ROWS - 1, group = (unsigned)p.heads_q / (unsigned)p.heads_kv;
    return arrays.state + last * p.batch * p.heads_q + block.head * group;
}

template <class S> static __device__ __forceinline__ void init_barriers(key_pass_shared<S> &sm)
{
    for (int n = 0; n < S::stages; n++) {
        barrier_init(&sm.ring.full[n], 1 + 32); /* the copies, and each lane of produce_terms */
        barrier_init(&sm.ring.empty[n], KEY_GROUPS * 4);
    }
    ring_init(sm.key_ring, KEY_GROUPS * 4);
    ring_init(sm.exchange_ring, 1);
    if (S::apart) ring_init(sm.direction_ring, KEY_GROUPS * 4);
    fence_async_proxy();
}

/* What all roles know of block n. Where thread blocks stay, the thread that asks for its keys tells the
 * consumers, before it does: 64-bit divisions take a microsecond. */
template <class S> struct key_task {
    key_block block;
    key_view v;
    tile_walk t;
    key_range range;

    __device__ __forceinline__ key_task(const loam_problem &p, const loam_args &a, const row_arrays &arrays,
                                        unsigned n)
        : block(key_block_at<S::rows>(p, a, n, S::queries)),
          v(key_view_of(p, block.s,
                        S::solved && (!S::apart || arrays.state) ? first_state(p, arrays, block) : NULL)),
          t{ block.first, 0, (int)(block.tiles * ((unsigned)p.heads_q / (unsigned)p.heads_kv)) },
          range(key_range_of<S>(p, arrays, block))
    {
    }
    /* Has the block keys that have gradients to write, and is its head for these kernels? */
    __device__ __forceinline__ bool taken() const
    {
        return block.stored > 0 && (!(S::folded && S::solved) || range.own.tame);
    }
};

/* Tells the consumers that number `block_count` is no block. */
template <class S>
static __device__ __forceinline__ void tell_end(key_pass_shared<S> &sm, unsigned block_count)
{
    sm.task[block_count % KEY_TASKS].block.stored = 0;
    ring_acquire(sm.key_ring, block_count, 0);
}

/* A consumer of keys 64 `group` .. of the block, from stage number `count` on. */
template <class S>
static __device__ __forceinline__ key_consumer<S> key_consumer_of(key_pass_shared<S> &sm,
                                                                  const loam_problem &p,
                                                                  const key_task<S> &task, bool by_max,
                                                                  unsigned group, unsigned count)
{
    const int j = task.block.j0 + (int)group * TILE_SIDE,
              row = j + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const key_folds fold = key_folds_of<S>(p, task.range);
    key_consumer<S> wg = { sm,
                           task.block,
                           task.v,
                           task.t,
                           0,
                           group,
                           0,
                           count,
                           j,
                           { row, row + 8 },
                           (float)p.scale,
                           (float)(p.scale * 1.4426950408889634),
                           by_max,
                           {},
                           fold,
                           (float)p.scale / (S::solved ? 1 : fold.dv) };
    if constexpr (S::decayed) wg.decay.head = -1;
    return wg;
}

template <class C>
__global__ void __launch_bounds__(KEY_THREADS, 1)
    key_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const row_arrays arrays, const key_directions directions, const unsigned blocks,
                      const __grid_constant__ key_maps maps)
{
    typedef typename C::shape S;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    key_pass_shared<S> &sm = *(key_pass_shared<S> *)swizzled_memory;
    if (threadIdx.x == 0) init_barriers(sm);
    __syncthreads();
    if constexpr (S::folded) wait_for_previous_launch();
    const bool by_max = S::solved && p.ridge_unit == LOAM_RIDGE_MAX;
    const unsigned group = warp_uniform(threadIdx.x / 128), warp = warp_uniform(threadIdx.x % 128 / 32);
    constexpr unsigned term_warps = C::stays ? S::term_warps : 1;
    unsigned block_count = 0, count = 0, turn = warp - 1;
    if (group == KEY_GROUPS) {
        registers_release<24>();
        if (warp == 0 ? threadIdx.x % 32 != 0 : warp > term_warps) return;
        for_each_block<C::stays>(blocks, [&](unsigned n) {
            const key_task<S> task(p, a, arrays, n);
            if (!task.taken()) return;
            if (warp == 0) {
                if (C::stays) sm.task[block_count % KEY_TASKS] = task;
                produce_tiles(sm, maps, task.block, task.v, task.t, block_count++, count);
            } else {
                produce_terms<S, term_warps>(sm, p, a, arrays, directions, task.block, task.v, by_max,
                                             task.range, task.t, turn, count);
            }
        });
        if (C::stays && warp == 0) tell_end(sm, block_count);
        return;
    }
    registers_acquire<240>();
    if constexpr (C::stays) {
        for (;; block_count++) {
            ring_wait(sm.key_ring, block_count);
            const key_task<S> task = sm.task[block_count % KEY_TASKS];
            if (task.block.stored <= 0) return;
            C::consume_block(sm, p, a, task, by_max, group, block_count, count);
        }
    } else {
        const key_task<S> task(p, a, arrays, blockIdx.x);
        if (task.taken()) C::consume_block(sm, p, a, task, by_max, group, 0, count);
    }
}

/* ------------------------------------------------------------------ the launch */

static key_directions key_directions_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = p->mechanism == LOAM_LLA ? (size_t)local_rows(p) : 0,
                 numbers = size_mul(rows, (size_t)local_padded_dim(p));
    key_directions x = {};
    for (int part = 0; part < 2; part++) {
        x.rho[part] = (uint16_t *)arena_take(pool, numbers, sizeof(uint16_t));
        x.y[part] = (uint16_t *)arena_take(pool, numbers, sizeof(uint16_t));
    }
    x.grad_o = (uint16_t *)arena_take(pool, p->dtype == LOAM_F16 ? numbers : 0, sizeof(uint16_t));
    x.centre = (float2 *)arena_take(pool, rows, sizeof(float2));
    x.rest = (float *)arena_take(pool, p->dtype == LOAM_F16 ? rows : 0, sizeof(float));
    return x;
}

/* A view of dense rows of whole tiles in the order of local_row. */
static loam_const_view rows_view_of(const loam_problem *p, const void *data)
{
    const int64_t d = local_padded_dim(p), tokens = extents_of(p).queries;
    return loam_const_view{ data, p->heads_q * tokens * d, tokens * d, d };
}

template <class S>
static loam_status make_maps(key_maps *maps, const loam_problem *p, const loam_args *a,
                             const key_directions *directions, loam_error *error)
{
    constexpr int rows = S::queries;
    TRY(key_map_make(&maps->k, p, &a->k, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps->v, p, &a->v, p->dim_v, TILE_SIDE, error));
    TRY(query_map_make(&maps->query[TILE_Q], p, &a->q, p->dim_qk, rows, error));
    TRY(query_map_make(&maps->query[TILE_GRAD_O], p, &a->grad_o, p->dim_v, rows, error));
    if (S::folded && S::solved) {
        const loam_const_view grad_o = rows_view_of(p, directions->grad_o);
        TRY(query_map_make(&maps->query[TILE_GRAD_O], p, &grad_o, S::dim, rows, error));
    }
    if (S::probed && !S::solved)
        TRY(query_map_make(&maps->query[TILE_RHO], p, &a->probe, p->dim_qk, rows, error));
    for (int part = 0; part < 2 && S::solved; part++) {
        CUtensorMap *const to = part ? maps->lo : maps->query;
        const loam_const_view rho = rows_view_of(p, directions->rho[part]),
                              y = rows_view_of(p, directions->y[part]);
        TRY(query_map_make(to + TILE_RHO, p, &rho, S::dim, rows, error));
        TRY(query_map_make(to + TILE_Y, p, &y, S::dim, rows, error));
    }
    return LOAM_OK;
}

template <class S> static int64_t key_blocks(const loam_problem *p)
{
    return (p->len_kv + S::rows - 1) / S::rows * p->batch * p->heads_kv;
}

/* C: the consumers. Its shape: a key_shape; stays: whether thread blocks stay; consume_block. */
template <class C>
static loam_status launch_keys(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               void *memory, loam_error *error)
{
    typedef typename C::shape S;
    const int64_t blocks = key_blocks<S>(p);
    int64_t grid;
    TRY(cuda_grid_that_stays(blocks, C::stays, &grid, error));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)memory, 0 };
    key_directions directions = key_directions_carve(p, &pool);
    directions.lse = (const float *)saved.lse;
    if constexpr (S::solved && !S::folded) {
        split_directions_kernel<S::dim><<<(unsigned)local_row_states(p), 256, 0, (cudaStream_t)a->stream>>>(
            *p, *a, saved, *rows, directions);
        TRY(cuda_launched("split_directions_kernel", error));
    }
    key_maps maps;
    TRY(make_maps<S>(&maps, p, a, &directions, error));
    return cuda_launch("key_kernel_hopper", key_kernel_hopper<C>, grid, KEY_THREADS,
                       sizeof(key_pass_shared<S>), a->stream, S::folded, error, *p, *a, *rows, directions,
                       (unsigned)blocks, maps);
}

#endif
