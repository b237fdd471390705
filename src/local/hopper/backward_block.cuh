/* SPDX-License-Identifier: MIT
 * A block of 64 rows in the backward pass of Local Linear Attention on Hopper: its shared memory, the sums of
 * its sweeps, and the tiles that stream past it. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_BLOCK_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_BLOCK_CUH

#include "src/local/cuda/backward.h"
#include "src/local/hopper/solve.cuh"

struct row_pass_maps {
    qkv_maps all;
    CUtensorMap grad_o;
};

/* ------------------------------------------------------------------ shared memory */

/* Stages of the ring in which the last sweep has tiles of rows: do in the last one, the lo parts of y and rho
 * in the two before. The hi parts of y and rho are where the solver has its direction. Keys and values
 * alternate in the other stages. */
template <int DIM> struct pair_stages {
    static constexpr unsigned grad_o = ring_stages<DIM> - 1, y = grad_o - 1, rho = grad_o - 2;
};

template <int DIM> struct pair_barriers {
    uint64_t full[ring_stages<DIM> - 1];
};

/* The offset of pair_barriers: behind all that the solver has in shared memory. */
template <int DIM> constexpr size_t pair_barriers_at = offsetof(solver_shared<DIM>, rows) + sizeof(row_block);
template <int DIM> constexpr size_t rows_shared_bytes = pair_barriers_at<DIM> + sizeof(pair_barriers<DIM>);

/* Entries that have gone through the solver's ring; fillings of the tiles of rows; a bit for each stage of
 * the last sweep, the parity of its next filling. */
struct rows_count {
    ring_count ring;
    unsigned rows, parity;
};

/* ------------------------------------------------------------------ a block of rows */

/* Sums of the sweeps for the thread's rows. */
struct rows_sums {
    float gbar[2];           /* do . vbar */
    float rest[2];           /* sum p (g - gbar): 0 but for rounding */
    float best[2];           /* the highest score to base 2, where it is wanted */
    int peak[2];             /* and the first key that has it */
    float scale[2], mean[2]; /* sum ds (x - middle), sum p (x - middle), x = q . k, of the thread's columns */
    float total[2];          /* sum ds of the thread's columns, where scores decay */
};

/* What all blocks of a launch share. */
struct rows_launch {
    const loam_problem &p;
    const loam_args &a;
    const local_saved &saved;
    const row_arrays &arrays;
    const solve_work &work;
    const row_pass_maps &maps;
};

/* A copy of the system for one pass (system_in_registers), and what else the passes of backward need. */
template <int DIM, bool DECAYED> struct rows_system {
    const row_pair r;
    const row_ridge ridge;
    const block_system<DIM, DECAYED> sys;
    const rows_launch &all;
    rows_count &count;

    __device__ __forceinline__ rows_system(const block_system<DIM, DECAYED> &from, const rows_launch &launch,
                                           rows_count &counts)
        : r(from.r), ridge(from.ridge), sys(system_in_registers(from, r, ridge)), all(launch), count(counts)
    {
    }
    __device__ __forceinline__ __nv_bfloat16 *stage(unsigned n) const { return sys.sm.stage[n]; }
    __device__ __forceinline__ uint64_t *full(unsigned n) const
    {
        return ((pair_barriers<DIM> *)((char *)&sys.sm + pair_barriers_at<DIM>))->full + n;
    }
    /* The index of the thread's row in arrays over rows. */
    __device__ __forceinline__ int64_t line(int row) const
    {
        return local_row(&sys.p, &sys.block.s, sys.block.h, sys.block.i0 + r.at[row]);
    }
    /* Channels c and c + 1 of the row in such an array; zeros beyond the sequence. */
    __device__ __forceinline__ float2 pair(const void *array, int row, int c) const
    {
        return r.real[row] ? *(const float2 *)((const float *)array + line(row) * DIM + c)
                           : make_float2(0, 0);
    }
    /* Lambda of element `at` of the thread's rows. */
    __device__ __forceinline__ float lambda(int at) const
    {
        return ridge.channels ? sys.vector(VECTOR_RIDGE).get(at) : ridge.number[at / 2 % 2];
    }
};

/* One thread issues the copies of the 64 rows into a tile; they complete on query_full. */
template <int DIM, bool DECAYED>
static __device__ __forceinline__ void load_row_tile(const block_system<DIM, DECAYED> &sys,
                                                     __nv_bfloat16 *tile, const CUtensorMap &map)
{
    const row_block &block = sys.block;
    load_tile<DIM>(tile, map, &sys.sm.query_full, (int)(block.s.q0 + block.i0), (int)block.h, (int)block.s.b);
}

/* Adds the weights, as rounded to their parts, to total: sums of the thread's columns. */
template <int PARTS>
static __device__ __forceinline__ void add_weights(float (&total)[2], const weights_operand<PARTS> &w)
{
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t pair = w.part[part][k][e];
                total[e % 2] += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
            }
        }
    }
}

/* The stream of tiles past the last sweep: values and keys in turn, or keys alone, through the first STAGES
 * stages of the ring. wait() waits for the next tile. */
template <int DIM, bool DECAYED, unsigned STAGES, bool VALUES> struct pair_stream {
    const rows_system<DIM, DECAYED> &rs;
    unsigned count, waited, released, parity;

    __device__ __forceinline__ pair_stream(const rows_system<DIM, DECAYED> &system)
        : rs(system), waited(0), released(0), parity(rs.count.parity)
    {
        const row_block &block = rs.sys.block;
        count = (unsigned)((block.last - block.first + TILE_SIDE - 1) / TILE_SIDE) * (VALUES ? 2 : 1);
        if (threadIdx.x == 0) {
            for (unsigned n = 0; n < STAGES && n < count; n++) {
                load(n);
            }
        }
    }
    __device__ __forceinline__ int key_of(unsigned n) const
    {
        return rs.sys.block.first + (int)(VALUES ? n / 2 : n) * TILE_SIDE;
    }
    __device__ __forceinline__ void load(unsigned n) const
    {
        const row_block &block = rs.sys.block;
        const unsigned stage = n % STAGES;
        const CUtensorMap &map = VALUES && n % 2 == 0 ? rs.all.maps.all.v : rs.all.maps.all.k;
        barrier_expect(rs.full(stage), DIM * TILE_SIDE * 2);
        load_tile<DIM>(rs.stage(stage), map, rs.full(stage), (int)block.s.k0 + key_of(n), (int)block.h_kv,
                       (int)block.s.b);
    }
    __device__ __forceinline__ const __nv_bfloat16 *wait()
    {
        const unsigned stage = waited % STAGES;
        barrier_wait(rs.full(stage), parity >> stage & 1);
        parity ^= 1u << stage;
        const int left = (int)rs.sys.block.s.nk - key_of(waited);
        if (left < TILE_SIDE) {
            clear_tail_block<DIM>(rs.stage(stage), left);
            fence_async_proxy();
            __syncthreads();
        }
        waited++;
        return rs.stage(stage);
    }
    /* All products with the first `used` tiles have ended: their stages are filled again. */
    __device__ __forceinline__ void release(unsigned used)
    {
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned n = released; n < used; n++) {
                if (n + STAGES < count) {
                    load(n + STAGES);
                }
            }
        }
        released = used;
    }
    __device__ __forceinline__ void finish() const { rs.count.parity = parity; }
};

#endif
