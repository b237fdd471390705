/* SPDX-License-Identifier: MIT
 * The read of positive random features on Hopper: o of a chunk, from the state before it and its keys. */
#include "src/recurrent/hopper/positive_weigh.cuh"

/* B from the accumulator of a state: features 16 f .. 16 f + 15, of the warp's channels the first or
 * second 8. */
template <int TILES>
static __device__ __forceinline__ void state_operand(operand_b<2> &b, const float (&state)[2 * TILES][4],
                                                     int f, int side)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        uint32_t part[2];
        split_pair(part, state[2 * f + e][2 * side], state[2 * f + e][2 * side + 1]);
        b.part[0][e] = part[0], b.part[1][e] = part[1];
    }
}

/* The warp's 16 channels of o times the divisor: from the state and, with weights w, from the step. */
template <int TILES>
static __device__ __forceinline__ void read_values(const positive_chunk &u, const positive_shared &s,
                                                   const __nv_bfloat16 *values,
                                                   const float (&state)[2 * TILES][4], const float (&w)[2][4],
                                                   float (&o)[2][4])
{
    operand_a<2> weights;
    operand_b<1> v[2];
    clear(o);
#pragma unroll
    for (int f = 0; f < TILES; f++) {
        if (16 * f >= u.features) continue;
        operand_a<2> queries;
        positive_load_a(queries, s.queries, u.pitch, 16 * f);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            operand_b<2> b;
            state_operand<TILES>(b, state, f, side);
            mma(o[side], queries, b);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[2];
        split_pair(part, w[e / 2][e % 2 * 2], w[e / 2][e % 2 * 2 + 1]);
        weights.part[0][e] = part[0], weights.part[1][e] = part[1];
    }
    load_b<POSITIVE_PITCH>(v, values, 0, (int)threadIdx.x / 32 * 16);
    mma(o[0], weights, v[0]);
    mma(o[1], weights, v[1]);
}

/* `token`: of the sequence, the step's first. divisor: of rows g and g + 8. */
static __device__ void store_output(const positive_chunk &u, int r, int token, int count,
                                    const float (&divisor)[2], const float (&o)[2][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, channel = (int)threadIdx.x / 32 * 16 + 2 * t;
    const loam_view &to = u.x.a->o;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = g + 8 * e;
        if (i >= count) continue;
        const float factor = divisor[e] > 0 ? 1 / divisor[e] : 0;
        __nv_bfloat16 *row = (__nv_bfloat16 *)to.data + RECURRENT_AT(to, u.seq.b,
                                                                     positive_query_head(&u.x, u.n, r),
                                                                     u.seq.first + token + i);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const uint32_t pair = pack_pair<__nv_bfloat16>(o[side][2 * e] * factor,
                                                           o[side][2 * e + 1] * factor);
            *(uint32_t *)(row + channel + 8 * side) = pair;
        }
    }
}

/* By one warp. */
static __device__ void store_info(const positive_chunk &u, int r, int token, int count,
                                  const float (&divisor)[2])
{
    const loam_view &info = u.x.a->info;
    if (!info.data || threadIdx.x / 32 > 0 || threadIdx.x % 4 > 0) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (int)threadIdx.x / 4 + 8 * e;
        const int64_t at = RECURRENT_AT(info, u.seq.b, positive_query_head(&u.x, u.n, r),
                                        u.seq.first + token + i);
        if (i < count) {
            ((loam_row_info *)info.data)[at] = { divisor[e] > 0 ? LOAM_ROW_SOLVED : LOAM_ROW_SINGULAR,
                                                 LOAM_SOLVER_NONE, 0, 0 };
        }
    }
}

/* o of an item: read r of the step whose first token is `at`. */
template <int TILES>
static __device__ __forceinline__ void read_item(const positive_chunk &u, const positive_shared &s,
                                                 const __nv_bfloat16 *values,
                                                 const float (&state)[2 * TILES][4], int r, int at,
                                                 bool apart)
{
    float o[2][4], w[2][4], divisor[2];
    positive_pair_weights(u, s, apart, w);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float pairs = (w[0][2 * e] + w[0][2 * e + 1]) + (w[1][2 * e] + w[1][2 * e + 1]);
        divisor[e] = s.divisor[threadIdx.x % 32 / 4 + 8 * e] + quad_sum(pairs);
    }
    read_values<TILES>(u, s, values, state, w, o);
    store_info(u, r, u.first + at, u.count - at, divisor);
    store_output(u, r, u.first + at, u.count - at, divisor, o);
}

/* S, s and c before the chunk, its keys and values, and the first queries. */
template <int TILES>
static __device__ __forceinline__ void begin(const positive_launch &l, const positive_chunk &u,
                                             const positive_shared &s, float (&state)[2 * TILES][4])
{
    const float *from = l.states + positive_state_at(u);
    positive_load_chunk(l, u, s);
    positive_load_queries(u, s, 0);
    if (positive_warp_works(u)) positive_load_state<TILES>(u, from, state);
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS) {
        s.c_1[m] = l.before[u.at * u.features + m];
        s.s_1[m] = from[l.p.dim_v * u.features + m];
    }
    copy_async_wait<0>();
    __syncthreads();
}

/* The step's values and keys are rows at .. at + 15 of the chunk. */
template <int TILES>
__global__ void __launch_bounds__(POSITIVE_THREADS, 16 / TILES)
    positive_output_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    const positive_chunk u = positive_chunk_at(l);
    positive_shared s;
    float state[2 * TILES][4];
    positive_shared_carve(positive_memory, u.features, POSITIVE_READ, &s);
    if (u.count <= 0) return;
    begin<TILES>(l, u, s, state);
    int item = 0, apart = 0;
    for (int at = 0; at < u.count; at += POSITIVE_STEP) {
        const __nv_bfloat16 *values = s.v + at * POSITIVE_PITCH;
        positive_products<true>(u, s.k + at * POSITIVE_PITCH, s.half + at, s.a);
        for (int r = 0; r < (int)u.x.reads; r++, item++) {
            positive_load_queries(u, s, item + 1);
            positive_products<false>(u, s.q + item % 2 * POSITIVE_STEP * POSITIVE_PITCH, NULL, s.b);
            __syncthreads();
            if (r == 0) apart = __syncthreads_or(positive_scan(u, s, u.count - at));
            positive_weigh<false>(u, s, apart);
            copy_async_wait<0>();
            __syncthreads();
            if (positive_warp_works(u)) read_item<TILES>(u, s, values, state, r, at, apart);
            __syncthreads(); /* s.b is of this item up to here */
        }
        positive_add<TILES>(u, s, values, state);
    }
}

loam_status positive_output_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t blocks = l->p.batch * l->x.heads * l->chunks;
    positive_shared s;
    const size_t shared = positive_shared_carve(NULL, (int)l->p.features, POSITIVE_READ, &s);
    return blocks == 0 ? LOAM_OK : POSITIVE_LAUNCH(positive_output_kernel, blocks, shared, error, *l);
}
