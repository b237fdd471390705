/* SPDX-License-Identifier: MIT
 * OUTPUT of additive rules on Hopper (src/recurrent/hopper/additive.cuh). Of a thread block one warpgroup
 * computes the pairs of each chunk, (q_i . k_j) e^seg_ij beta_j; for each 64 channels of values another one
 * carries their rows of the state and computes o; a warp copies q, k and v into a ring. */
#include "src/recurrent/hopper/additive.cuh"
#include "src/recurrent/hopper/decays.cuh"

template <int DIM> struct output_shape {
    static constexpr int tiles = DIM / TILE_SIDE, stages = tiles > 1 ? 3 : 4, buffers = 2;
    /* Warpgroups: pairs, states, copies. */
    static constexpr int threads = 128 * (2 + tiles);
};

template <int DIM> struct output_shared {
    typedef output_shape<DIM> shape;
    /* q, k and v of a stage. */
    alignas(1024) __nv_bfloat16 ring_tiles[shape::stages][3][DIM * TILE_SIDE];
    __nv_bfloat16 pairs[shape::buffers][TILE_ELEMENTS], o[shape::tiles][TILE_ELEMENTS];
    additive_gates gates[shape::stages];
    ring_barriers<shape::stages> ring;
    ring_barriers<shape::buffers> products; /* of pairs */
    uint64_t cleared;
};

/* The segment of a block: `chunks` of sequence s from chunk `first`. Chunk number `partial` (~0: none) is the
 * last one of a packed sequence, where rows of the next sequence follow. */
struct output_place {
    chunk_sequence s;
    int64_t h, first;
    unsigned chunks, partial;
    bool exists, last;
};

static __device__ __forceinline__ output_place output_place_at(const additive_launch &l)
{
    const unsigned segments = (unsigned)l.segments, segment = blockIdx.x % segments,
                   rest = blockIdx.x / segments, heads = (unsigned)l.p.heads_v;
    output_place u;
    u.h = rest % heads;
    u.s = chunk_sequence_at(l.p, l.a, l.chunks, rest / heads);
    u.first = (int64_t)segment * ADDITIVE_SEGMENT;
    const int64_t left = (u.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS - u.first;
    u.exists = left > 0 || segment == 0;
    u.last = left <= ADDITIVE_SEGMENT;
    u.chunks = __shfl_sync(0xffffffffu, (unsigned)min(left, (int64_t)ADDITIVE_SEGMENT), 0);
    u.partial = sequence_packed(&l.p) && u.last && u.s.len % CHUNK_TOKENS != 0 ? u.chunks - 1 : ~0u;
    return u;
}

/* ------------------------------------------------------------------ copies */

/* One warp. The rows after the last token of a packed sequence belong to the next sequence. Their weights are
 * 0, but 0 times inf or NaN is not 0: they are set to 0 in k and v. */
template <int DIM, bool GATED>
static __device__ __forceinline__ void output_load(output_shared<DIM> &sm, const additive_launch &l,
                                                   const output_place &u)
{
    typedef output_shape<DIM> shape;
    const chunk_place first = chunk_of_sequence(l.chunks, u.s, u.h, u.first);
    chunk_boxes<shape::tiles> q = chunk_boxes_at<shape::tiles>(l.q, 0, 0, first, 1),
                              k = chunk_boxes_at<shape::tiles>(l.k, 0, 0, first, 1),
                              v = chunk_boxes_at<shape::tiles>(l.v, 0, 0, first, 1);
    const additive_gates *gates = l.gates + first.slot;
    constexpr unsigned bytes = 3 * DIM * TILE_SIDE * 2 + (GATED ? sizeof *gates : 0);
#pragma unroll 1
    for (unsigned n = 0; n < u.chunks; n++) {
        const unsigned stage = n % shape::stages;
        if (threadIdx.x % 32 == 0) {
            uint64_t *full = ring_acquire(sm.ring, n, bytes);
            q.copy(sm.ring_tiles[stage][0], full);
            k.copy(sm.ring_tiles[stage][1], full);
            if (GATED) load_bytes(&sm.gates[stage], gates + n, sizeof *gates, full);
            v.copy(sm.ring_tiles[stage][2], full);
        }
        __syncwarp();
        if (n == u.partial) {
            ring_wait(sm.ring, n);
            clear_rows<2 * shape::tiles>(sm.ring_tiles[stage][1], (int)(u.s.len % CHUNK_TOKENS),
                                         threadIdx.x % 32, 32);
            fence_async_proxy();
            barrier_arrive(&sm.cleared);
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void output_wait(output_shared<DIM> &sm, const output_place &u, unsigned n)
{
    ring_wait(sm.ring, n);
    if (n == u.partial) barrier_wait(&sm.cleared, 0);
}

/* ------------------------------------------------------------------ pairs */

/* s becomes s o e^seg beta up to the diagonal, and 0 above it. */
template <bool GATED>
static __device__ __forceinline__ void decay_pairs(float (&s)[8][4], const additive_gates &gates)
{
    const int warp = threadIdx.x % 128 / 32, i = warp * 16 + threadIdx.x % 32 / 4, j = threadIdx.x % 4 * 2;
    const float2 row[2] = { gates.pre_log2[i], gates.pre_log2[i + 8] };
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n >= 2 * warp + 2) { /* all above the diagonal */
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = 8 * n + j + e % 2;
            float weight = 1;
            if (GATED) weight = decay_between(row[e / 2], gates.pre_log2[column]) * gates.beta[column];
            s[n][e] = i + e / 2 * 8 >= column ? s[n][e] * weight : 0;
        }
    }
}

template <int DIM, bool GATED>
static __device__ __forceinline__ void output_pairs(output_shared<DIM> &sm, const additive_launch &l,
                                                    const output_place &u)
{
    typedef output_shape<DIM> shape;
#pragma unroll 1
    for (unsigned n = 0; n < u.chunks; n++) {
        const unsigned stage = n % shape::stages, buffer = n % shape::buffers;
        float s[1][8][4];
        uint32_t rounded[4][4];
        report_solved(l.p, l.a, chunk_of_sequence(l.chunks, u.s, u.h, u.first + n));
        output_wait(sm, u, n);
        multiply_rows<DIM>(s[0], sm.ring_tiles[stage][0], sm.ring_tiles[stage][1], false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(s[0]);
        decay_pairs<GATED>(s[0], sm.gates[stage]);
        ring_release(sm.ring, n);
        round_to_operand(rounded, s);
        barrier_wait(&sm.products.empty[buffer], n / shape::buffers % 2 ^ 1);
        store_operands(sm.pairs[buffer], rounded);
        fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(&sm.products.full[buffer]);
    }
}

/* ------------------------------------------------------------------ states and o */

/* Columns times e^pre: what the tokens read of the state before the chunk. 0 times inf is not 0. */
static __device__ __forceinline__ void decay_columns(float (&out)[8][4], const additive_gates &gates)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 pre = *(const float2 *)(gates.pre + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float factor = e % 2 ? pre.y : pre.x;
            out[n][e] = factor > 0 ? out[n][e] * factor : 0;
        }
    }
}

/* Stores the transpose of `out`, 64 channels from `channel` of the tokens of a chunk; `barrier` is one of the
 * warpgroup's. */
static __device__ __forceinline__ void store_output(const additive_launch &l, const chunk_place &chunk,
                                                    float (&out)[1][8][4], __nv_bfloat16 *tile, int channel,
                                                    int barrier)
{
    uint32_t rounded[4][4];
    const float scale = (float)l.p.scale;
#pragma unroll
    for (int n = 0; n < 32; n++)
        out[0][n / 4][n % 4] *= scale;
    round_to_operand(rounded, out);
    warpgroup_sync(barrier); /* all have read the chunk before */
    store_transposed(tile, rounded, 0);
    warpgroup_sync(barrier);
    const int c = threadIdx.x % 8 * 8;
#pragma unroll
    for (int r = threadIdx.x % 128 / 8; r < CHUNK_TOKENS; r += 16) {
        if (r >= chunk.tokens || channel + c >= (int)l.p.dim_v) continue;
        const uint4 row = *(const uint4 *)(tile + swizzled(r, c));
        uint16_t *to = (uint16_t *)l.a.o.data + RECURRENT_AT(l.a.o, chunk.b, chunk.h, chunk.first + r) +
                       channel + c;
        if (l.aligned) {
            *(uint4 *)to = row;
        } else {
            const uint32_t pairs[4] = { row.x, row.y, row.z, row.w };
#pragma unroll
            for (int n = 0; n < 8; n++)
                to[n] = (uint16_t)(pairs[n / 2] >> n % 2 * 16);
        }
    }
}

/* A warpgroup's rows of the state, from `row`. */
template <int DIM> struct output_state {
    static constexpr int tiles = DIM / TILE_SIDE;
    float x[tiles][8][4];

    /* state_out may be state_in: a block that writes it, and is not the only one of its sequence, leaves the
     * reading of it to STATES. */
    __device__ __forceinline__ void load(const additive_launch &l, const output_place &u, int row)
    {
        const loam_const_view &in = l.a.state_in;
        const bool whole = u.first == 0 && u.last;
        const int64_t stride = whole ? in.token : DIM;
        const float *from = whole ? (const float *)in.data + RECURRENT_AT(in, u.s.index, u.h, row)
                                  : l.states + additive_state_at<DIM>(l, u.s, u.h, u.first) + row * DIM;
        const int rows = !whole    ? DIM
                         : in.data ? (int)l.p.dim_v - row
                                   : 0,
                  columns = whole ? (int)l.p.dim_qk : DIM;
#pragma unroll
        for (int n = 0; n < tiles; n++)
            for_each_element(x[n], [&](float &e, int r, int c) {
                c += n * TILE_SIDE;
                e = r < rows && c < columns ? from[r * stride + c] : 0;
            });
    }
    __device__ __forceinline__ void store(const additive_launch &l, const output_place &u, int row)
    {
        const loam_view &out = l.a.state_out;
        if (!out.data || !u.last) return;
        float *to = (float *)out.data + RECURRENT_AT(out, u.s.index, u.h, row);
#pragma unroll
        for (int n = 0; n < tiles; n++)
            for_each_element(x[n], [&](float e, int r, int c) {
                c += n * TILE_SIDE;
                if (row + r < (int)l.p.dim_v && c < (int)l.p.dim_qk) to[r * out.token + c] = e;
            });
    }
};

template <int DIM, bool GATED>
static __device__ __forceinline__ void output_carry(output_shared<DIM> &sm, const additive_launch &l,
                                                    const output_place &u, int tile)
{
    typedef output_shape<DIM> shape;
    output_state<DIM> state;
    state.load(l, u, tile * TILE_SIDE);
#pragma unroll 1
    for (unsigned n = 0; n < u.chunks; n++) {
        const unsigned stage = n % shape::stages, buffer = n % shape::buffers;
        const __nv_bfloat16 *k = sm.ring_tiles[stage][1];
        const additive_gates &gates = sm.gates[stage];
        uint32_t before[DIM / 16][4], v[4][4], weighed[4][4];
        float out[1][8][4], x[1][8][4];
        round_to_operand(before, state.x);
        output_wait(sm, u, n);
        load_transposed(v, sm.ring_tiles[stage][2] + tile * TILE_ELEMENTS);
        wgmma_fence();
        more_rows<DIM>(out[0], before, sm.ring_tiles[stage][0], false);
        wgmma_commit();
        if (GATED)
            additive_weigh(weighed, v, gates);
        else
            memcpy(weighed, v, sizeof v);
        const float decay = GATED ? gates.pre[CHUNK_TOKENS - 1] : 1;
        wgmma_wait<0>();
        wgmma_results(out);
        if (GATED) decay_columns(out[0], gates);
        barrier_wait(&sm.products.full[buffer], n / shape::buffers % 2);
        wgmma_fence();
        more_rows<TILE_SIDE>(out[0], v, sm.pairs[buffer], true);
        more_weights<TILE_SIDE>(x, weighed, k, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(out);
        wgmma_results(x);
        ring_release(sm.products, n);
        additive_update(state.x[0], x[0], decay);
#pragma unroll
        for (int t = 1; t < shape::tiles; t++) {
            wgmma_fence();
            more_weights<TILE_SIDE>(x, weighed, k + t * TILE_ELEMENTS, false);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_results(x);
            additive_update(state.x[t], x[0], decay);
        }
        ring_release(sm.ring, n);
        store_output(l, chunk_of_sequence(l.chunks, u.s, u.h, u.first + n), out, sm.o[tile], tile * TILE_SIDE,
                     1 + tile);
    }
    state.store(l, u, tile * TILE_SIDE);
}

/* ------------------------------------------------------------------ the kernel */

template <int DIM, bool GATED>
__global__ void __launch_bounds__(output_shape<DIM>::threads, 1)
    additive_output_kernel(const __grid_constant__ additive_launch l)
{
    typedef output_shape<DIM> shape;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    output_shared<DIM> &sm = *(output_shared<DIM> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.ring, 4 * (1 + shape::tiles));
        for (int n = 0; n < shape::buffers; n++) {
            barrier_init(&sm.products.full[n], 4);
            barrier_init(&sm.products.empty[n], 4 * shape::tiles);
        }
        barrier_init(&sm.cleared, 32);
        fence_async_proxy();
    }
    __syncthreads();
    wait_for_previous_launch();
    const output_place u = output_place_at(l);
    if (!u.exists) return;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    if (group == 1 + shape::tiles) {
        if (shape::tiles > 1) registers_release<24>();
        if (threadIdx.x % 128 < 32) output_load<DIM, GATED>(sm, l, u);
    } else if (group == 0) {
        if (shape::tiles > 1) registers_release<96>();
        output_pairs<DIM, GATED>(sm, l, u);
    } else {
        if (shape::tiles > 1) registers_acquire<192>();
        output_carry<DIM, GATED>(sm, l, u, group - 1);
    }
}

/* ------------------------------------------------------------------ launches */

template <int DIM> static loam_status launch(const additive_launch *l, int64_t blocks, loam_error *error)
{
    const auto kernel = additive_gated(&l->p) ? additive_output_kernel<DIM, true>
                                              : additive_output_kernel<DIM, false>;
    const bool first = !additive_gated(&l->p) && l->segments <= 1; /* launch of this call, but for features */
    return cuda_launch("additive_output_kernel", kernel, blocks, output_shape<DIM>::threads,
                       sizeof(output_shared<DIM>), l->a.stream, !first, error, *l);
}

loam_status additive_output_hopper(const additive_launch *l, loam_error *error)
{
    const int64_t blocks = l->p.batch * l->p.heads_v * l->segments;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    if (blocks == 0) return LOAM_OK;
    return chunk_width(&l->p) == 64 ? launch<64>(l, blocks, error) : launch<128>(l, blocks, error);
}
