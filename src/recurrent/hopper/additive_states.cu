/* SPDX-License-Identifier: MIT
 * GATES and STATES of additive rules on Hopper (src/recurrent/hopper/additive.cuh). A thread block of STATES
 * has a tile of 64 x 64 of the state of one head: a warpgroup computes, a warp copies keys and values into a
 * ring. */
#include "src/recurrent/hopper/additive.cuh"
#include "src/recurrent/hopper/decays.cuh"

enum { GATES_WARPS = 4, STATES_CONSUMERS = 128, STATES_THREADS = STATES_CONSUMERS + 32, STATES_STAGES = 8 };

/* A warp has a chunk, a lane two of its tokens. */
__global__ void __launch_bounds__(32 * GATES_WARPS)
    additive_gates_kernel(const __grid_constant__ additive_launch l)
{
    const unsigned slot = blockIdx.x * GATES_WARPS + threadIdx.x / 32;
    launch_dependents();
    if (slot >= l.chunks.slots) return;
    const chunk_place chunk = chunk_of_slot(l.p, l.a, l.chunks, slot);
    if (chunk.tokens == 0) return;
    const lane_decays x = lane_decays_of(l.a.log_decay, chunk);
    const loam_const_view &beta = l.a.beta;
    additive_gates &to = l.gates[slot];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = threadIdx.x % 32 * 2 + n;
        float weight = t < chunk.tokens;
        if (beta.data && t < chunk.tokens)
            weight = ((const float *)beta.data)[RECURRENT_AT(beta, chunk.b, chunk.h, chunk.first + t)];
        to.pre_log2[t] = x.pre_log2[n], to.pre[t] = x.pre[n];
        to.weight[t] = weight * x.suf[n], to.beta[t] = weight;
    }
}

struct states_shared {
    alignas(1024) __nv_bfloat16 k[STATES_STAGES][TILE_ELEMENTS], v[STATES_STAGES][TILE_ELEMENTS];
    additive_gates gates[STATES_STAGES];
    ring_barriers<STATES_STAGES> ring;
};

/* The tile of a block, and the chunks that it passes: those of all segments but the last. */
struct states_place {
    chunk_sequence s;
    int64_t h;
    int row, column;
    unsigned chunks;
};

template <int DIM> static __device__ __forceinline__ states_place states_place_at(const additive_launch &l)
{
    constexpr unsigned side = DIM / TILE_SIDE;
    const unsigned tile = blockIdx.x % (side * side), rest = blockIdx.x / (side * side),
                   heads = (unsigned)l.p.heads_v;
    states_place u;
    u.h = rest % heads;
    u.s = chunk_sequence_at(l.p, l.a, l.chunks, rest / heads);
    u.row = (int)(tile % side) * TILE_SIDE, u.column = (int)(tile / side) * TILE_SIDE;
    const int64_t chunks = (u.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
                  passed = max(chunks - 1, (int64_t)0) / ADDITIVE_SEGMENT * ADDITIVE_SEGMENT;
    u.chunks = __shfl_sync(0xffffffffu, (unsigned)passed, 0);
    return u;
}

template <bool GATED>
static __device__ __forceinline__ void states_load(states_shared &sm, const additive_launch &l,
                                                   const states_place &u)
{
    const chunk_place first = chunk_of_sequence(l.chunks, u.s, u.h, 0);
    chunk_boxes<1> k = chunk_boxes_at<1>(l.k, u.column, 0, first, 1),
                   v = chunk_boxes_at<1>(l.v, u.row, 0, first, 1);
    const additive_gates *gates = l.gates + first.slot;
    constexpr unsigned bytes = 4 * TILE_ELEMENTS + (GATED ? sizeof *gates : 0);
#pragma unroll 1
    for (unsigned n = 0; n < u.chunks; n++) {
        const unsigned stage = n % STATES_STAGES;
        uint64_t *full = ring_acquire(sm.ring, n, bytes);
        v.copy(sm.v[stage], full);
        k.copy(sm.k[stage], full);
        if (GATED) load_bytes(&sm.gates[stage], gates + n, sizeof *gates, full);
    }
}

/* The transposed values of chunk n, times their weights, as operand A; returns the decay of the chunk. */
template <bool GATED>
static __device__ __forceinline__ float states_operand(uint32_t (&a)[4][4], states_shared &sm, unsigned n)
{
    const unsigned stage = n % STATES_STAGES;
    ring_wait(sm.ring, n);
    load_transposed(a, sm.v[stage]);
    if (!GATED) return 1;
    additive_weigh(a, a, sm.gates[stage]);
    return sm.gates[stage].pre[CHUNK_TOKENS - 1];
}

template <int DIM>
static __device__ __forceinline__ void states_store(const additive_launch &l, const states_place &u,
                                                    int64_t chunk, float (&state)[8][4])
{
    float *to = l.states + additive_state_at<DIM>(l, u.s, u.h, chunk) + u.row * DIM + u.column;
    for_each_element(state, [&](float x, int row, int column) { to[row * DIM + column] = x; });
}

template <int DIM, bool GATED>
static __device__ __forceinline__ void states_carry(states_shared &sm, const additive_launch &l,
                                                    const states_place &u)
{
    float state[8][4], x[1][8][4], decay[2];
    uint32_t operand[2][4][4]; /* of this chunk and of the next */
    const loam_const_view &in = l.a.state_in;
    const float *from = (const float *)in.data + RECURRENT_AT(in, u.s.index, u.h, u.row) + u.column;
    const int rows = in.data ? (int)l.p.dim_v - u.row : 0, columns = (int)l.p.dim_qk - u.column;
    for_each_element(state, [&](float &e, int row, int column) {
        e = row < rows && column < columns ? from[row * in.token + column] : 0;
    });
    states_store<DIM>(l, u, 0, state);
    decay[0] = states_operand<GATED>(operand[0], sm, 0);
#pragma unroll 1
    for (unsigned pair = 0; pair < u.chunks; pair += 2) {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned n = pair + i;
            wgmma_fence();
            more_weights<TILE_SIDE>(x, operand[i], sm.k[n % STATES_STAGES], false);
            wgmma_commit();
            /* The last one is loaded twice, so that there is no branch around the products. */
            decay[i ^ 1] = states_operand<GATED>(operand[i ^ 1], sm, n + 1 < u.chunks ? n + 1 : n);
            wgmma_wait<0>();
            wgmma_results(x);
            ring_release(sm.ring, n);
            additive_update(state, x[0], decay[i]);
        }
        if ((pair + 2) % ADDITIVE_SEGMENT == 0) states_store<DIM>(l, u, pair + 2, state);
    }
}

template <int DIM, bool GATED>
__global__ void __launch_bounds__(STATES_THREADS, 1)
    additive_states_kernel(const __grid_constant__ additive_launch l)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    states_shared &sm = *(states_shared *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.ring, STATES_CONSUMERS / 32);
        fence_async_proxy();
    }
    __syncthreads();
    wait_for_previous_launch();
    launch_dependents();
    const states_place u = states_place_at<DIM>(l);
    if (u.chunks == 0) return;
    if (threadIdx.x < STATES_CONSUMERS)
        states_carry<DIM, GATED>(sm, l, u);
    else if (threadIdx.x == STATES_CONSUMERS)
        states_load<GATED>(sm, l, u);
}

/* ------------------------------------------------------------------ launches */

loam_status additive_gates_hopper(const additive_launch *l, loam_error *error)
{
    const int64_t blocks = (l->chunks.slots + GATES_WARPS - 1) / GATES_WARPS;
    if (!additive_gated(&l->p) || blocks == 0) return LOAM_OK;
    return cuda_launch("additive_gates_kernel", additive_gates_kernel, blocks, 32 * GATES_WARPS, 0,
                       l->a.stream, false, error, *l);
}

template <int DIM> static loam_status launch(const additive_launch *l, loam_error *error)
{
    constexpr int64_t side = DIM / TILE_SIDE;
    const int64_t blocks = l->p.batch * l->p.heads_v * side * side;
    const auto kernel = additive_gated(&l->p) ? additive_states_kernel<DIM, true>
                                              : additive_states_kernel<DIM, false>;
    return cuda_launch("additive_states_kernel", kernel, blocks, STATES_THREADS, sizeof(states_shared),
                       l->a.stream, true, error, *l);
}

loam_status additive_states_hopper(const additive_launch *l, loam_error *error)
{
    if (l->segments <= 1 || l->p.batch == 0 || l->p.heads_v == 0) return LOAM_OK;
    return chunk_width(&l->p) == 64 ? launch<64>(l, error) : launch<128>(l, error);
}
