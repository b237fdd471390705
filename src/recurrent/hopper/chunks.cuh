/* SPDX-License-Identifier: MIT
 *
 * Chunks, slots and the arrays over slots of the chunk kernels on GPUs. A chunk is 64 tokens of one sequence,
 * fewer at its end. A slot is the place of one chunk of one value head in the workspace arrays through which
 * a kernel passes its results to the next:
 *
 *     slot = head * per_head + base_b + c     chunk c of sequence b, per_head slots for each value head
 *
 * with base_b = b ceil(len / 64) or, for packed sequences, cu_q[b] / 64 + b. The packed form depends on the
 * beginning of sequence b alone, and no two sequences share a slot, whatever their lengths. Some slots of
 * packed sequences are unused: they have no chunk.
 */
#ifndef LOAM_RECURRENT_HOPPER_CHUNKS_CUH
#define LOAM_RECURRENT_HOPPER_CHUNKS_CUH

#include "src/gpu/hopper.cuh"
#include "src/recurrent/recurrent.h"

enum { CHUNK_TOKENS = 64, BLOCK_TOKENS = 16, CHUNK_BLOCKS = CHUNK_TOKENS / BLOCK_TOKENS };

/* Where the rows of a chunk are read: in a view of an argument, or in an array over slots, [64][width] for
 * each slot, whose rows beyond the end of the sequence are 0, as are channels that the arguments do not have.
 * head_group: value heads that read one head of the view, as in grouped-query attention. channels: of a row
 * of the view. */
struct chunk_source {
    const __nv_bfloat16 *data;
    int64_t batch, head, token;
    int head_group;
    bool by_slot;
    int channels;
};

/* Channels of the tiles and of arrays over slots, for keys and for values: the kernels have instances for 64
 * and 128, some for 256, and take what is missing up to there as 0. */
static inline int64_t chunk_width(const loam_problem *p)
{
    const int64_t most = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    return most <= TILE_SIDE ? TILE_SIDE : most <= 2 * TILE_SIDE ? 2 * TILE_SIDE : 4 * TILE_SIDE;
}

/* The arrays over slots; NULL where the problem does not need one. Members that later kernels only read are
 * chunk_sources, because they may be arguments that need no preparation: without gates, for example, q_in is
 * q. Notation of docs/recurrent.md; `scale` is in none of the arrays of PREPARE and PASS, it multiplies o and
 * what is computed from grad_o. */
struct recurrent_chunks {
    int64_t per_head, slots; /* slots of one value head, of all value heads */
    int64_t per_sequence;    /* chunks of a sequence, where sequences are not packed */
    /* A launch of PREPARE, PASS or OUTPUT has chunks from .. to - 1 of each sequence; all of packed ones. */
    int64_t from, to;

    chunk_source q_given, k_given, v, grad_o; /* arguments; grad_o: backward */
    /* Features of q and k. A gated forward pass does not store them: without a feature map they are the
     * arguments, else data is NULL. */
    chunk_source q, k;
    chunk_source q_in, k_out; /* q e^pre, k e^suf */
    /* u_hat = beta v, with a delta rule Linv Diag(beta) v. u = u_hat, with a delta rule u_hat - w S0^T, which
     * overwrites u_hat. S0 is the state at the beginning of the chunk. */
    chunk_source u_hat, u;
    /* The memory of q, k, q_in, k_out, and of u_hat and u. */
    __nv_bfloat16 *q_features, *k_features, *q_decayed, *k_decayed, *values;
    __nv_bfloat16 *weighed; /* additive, backward, with a gate for a token: beta e^suf v, which PASS reads */
    /* Delta rule: the lo parts of k_out, and of u_hat or u, because the state would carry rounding errors of
     * the hi parts from chunk to chunk. k_lo is NULL where the pass reads the argument k itself. In a
     * backward pass u has no lo part. */
    __nv_bfloat16 *k_lo, *values_lo;
    __nv_bfloat16 *pairs; /* [64][64]: q_i . (k_j e^seg_ij), 0 above the diagonal */
    float *chunk_decay;   /* [width]: e^(sum of the gates) of each channel */
    float *suf_decay; /* [64]: e^suf, where the forward pass reads k without decay and decays u; else NULL */
    float *pre_decay; /* [64]: e^pre, where OUTPUT reads q without decay and decays q_in S0^T; else NULL */
    __nv_bfloat16 *w; /* delta rule, [64][width]: Linv Diag(beta) (k e^pre) */
    __nv_bfloat16 *states; /* [width][width], rows are channels of values: at the beginning of the chunk */
    float *inverse;        /* delta rule, backward, [64][64]: Linv = (I + Diag(beta) A)^-1 */
    __nv_bfloat16 *du;     /* backward, [64][width] */
    __nv_bfloat16 *grad_states; /* backward, [width][width]: gradient of the state at the end of the chunk */
    /* Backward where value heads share a key head, [64][width]: the contribution of one value head to the
     * gradients of the features. */
    __nv_bfloat16 *grad_q, *grad_k;
    /* Backward, one number per slot: the sum of q . dq; the sum of the gradients of the gates,
     * where a head has one gate. */
    float *grad_scale, *grad_decay;
};

/* Are additive rules passed on by weights of values, with keys as they are? So forward does by segments, and
 * backward makes the same states. Gates of channels multiply keys; features of length 1 have two factors, of
 * which one is rounded. */
static inline bool chunk_weighs_values(const loam_problem *p)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    return !form->delta && form->gate != GATE_CHANNEL && p->feature_map != LOAM_FEATURES_UNIT;
}

/* ------------------------------------------------------------------ allocation */

static inline chunk_source chunk_source_of_view(const loam_const_view *view, int64_t head_group,
                                                int64_t channels)
{
    return { (const __nv_bfloat16 *)view->data,
             view->batch,
             view->head,
             view->token,
             (int)head_group,
             false,
             (int)channels };
}

/* The array over slots if `stored`, else `other`. */
static inline chunk_source chunk_source_or(const __nv_bfloat16 *array, bool stored, const chunk_source &other)
{
    return stored ? chunk_source{ array, 0, 0, 0, 1, true, 0 } : other;
}

/* The numbers of slots, without arrays. */
static inline recurrent_chunks recurrent_chunks_count(const loam_problem *p)
{
    recurrent_chunks x = {};
    x.per_sequence = (p->len_q + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    x.per_head = sequence_packed(p) ? p->total_q / CHUNK_TOKENS + p->batch
                                    : (int64_t)size_mul((size_t)p->batch, (size_t)x.per_sequence);
    x.slots = (int64_t)size_mul((size_t)p->heads_v, (size_t)x.per_head);
    x.to = x.per_sequence;
    return x;
}

/* Allocates the arrays of a pass in `pool` and sets the sources. `a` is NULL where
 * only the size is wanted. */
static inline recurrent_chunks recurrent_chunks_carve(const loam_problem *p, const loam_args *a,
                                                      bool backward, arena *pool)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool gated = form->gate != GATE_NONE, mapped = p->feature_map != LOAM_FEATURES_IDENTITY;
    const bool features = mapped && (backward || !gated), weighted = form->beta;
    /* e^suf is one number per token and multiplies u, which has a lo part, so that k stays
     * exact and needs no lo part. */
    const bool decay_on_u = form->delta && form->gate == GATE_TOKEN && !mapped;
    const int64_t head_group = p->heads_v / p->heads_q;
    recurrent_chunks x = recurrent_chunks_count(p);
    const size_t slots = (size_t)x.slots, width = (size_t)chunk_width(p);
    const auto take = [&](bool wanted, size_t each, size_t bytes) {
        return wanted ? arena_take(pool, size_mul(slots, each), bytes) : NULL;
    };
    const auto take_bf16 = [&](bool wanted, size_t each) {
        return (__nv_bfloat16 *)take(wanted, each, sizeof(__nv_bfloat16));
    };
    x.q_features = take_bf16(features, CHUNK_TOKENS * width);
    x.k_features = take_bf16(features, CHUNK_TOKENS * width);
    x.q_decayed = take_bf16(gated && (!decay_on_u || backward), CHUNK_TOKENS * width);
    x.k_decayed = take_bf16(gated && (!decay_on_u || backward), CHUNK_TOKENS * width);
    x.values = take_bf16(weighted, CHUNK_TOKENS * width);
    x.weighed = take_bf16(backward && gated && chunk_weighs_values(p), CHUNK_TOKENS * width);
    x.k_lo = take_bf16(form->delta && (gated || mapped) && !decay_on_u, CHUNK_TOKENS * width);
    x.values_lo = take_bf16(form->delta, CHUNK_TOKENS * width);
    x.pairs = take_bf16(true, CHUNK_TOKENS * CHUNK_TOKENS);
    x.chunk_decay = (float *)take(true, width, sizeof(float));
    x.suf_decay = (float *)take(decay_on_u, CHUNK_TOKENS, sizeof(float));
    x.pre_decay = (float *)take(decay_on_u && !backward, CHUNK_TOKENS, sizeof(float));
    x.w = take_bf16(form->delta, CHUNK_TOKENS * width);
    x.states = take_bf16(true, width * width);
    x.inverse = (float *)take(form->delta && backward, CHUNK_TOKENS * CHUNK_TOKENS, sizeof(float));
    x.du = take_bf16(backward, CHUNK_TOKENS * width);
    x.grad_states = take_bf16(backward, width * width);
    x.grad_q = take_bf16(backward && head_group > 1, CHUNK_TOKENS * width);
    x.grad_k = take_bf16(backward && head_group > 1, CHUNK_TOKENS * width);
    x.grad_scale = (float *)take(backward, 1, sizeof(float));
    x.grad_decay = (float *)take(backward && form->gate == GATE_HEAD, 1, sizeof(float));
    if (a) {
        x.q_given = chunk_source_of_view(&a->q, head_group, p->dim_qk);
        x.k_given = chunk_source_of_view(&a->k, head_group, p->dim_qk);
        x.v = chunk_source_of_view(&a->v, 1, p->dim_v);
        x.grad_o = chunk_source_of_view(&a->grad_o, 1, p->dim_v);
        x.q = chunk_source_or(x.q_features, mapped, x.q_given);
        x.k = chunk_source_or(x.k_features, mapped, x.k_given);
        x.q_in = chunk_source_or(x.q_decayed, gated && (!decay_on_u || backward), x.q);
        x.k_out = chunk_source_or(x.k_decayed, gated && (!decay_on_u || backward), x.k);
        x.u_hat = x.u = chunk_source_or(x.values, weighted, x.v);
    }
    return x;
}

/* True if 16-byte accesses can read and write the rows of a view; `elements` are 16 bytes. */
static inline bool chunk_view_aligned(const void *data, int64_t batch, int64_t head, int64_t token,
                                      int64_t elements)
{
    return (uintptr_t)data % 16 == 0 && batch % elements == 0 && head % elements == 0 &&
           token % elements == 0;
}

/* ------------------------------------------------------------------ sequences and chunks */

/* Sequence `index`: token t is row first + t of the token axis at batch index b of the views; chunk c has
 * slot base + c of its head. */
struct chunk_sequence {
    int64_t b, first, len, index, base;
};

/* cu_q is in device memory, where the host has not checked it: it is clamped to the
 * size of the arrays here. */
static __device__ __forceinline__ chunk_sequence chunk_sequence_at(const loam_problem &p, const loam_args &a,
                                                                   const recurrent_chunks &x, int64_t index)
{
    if (p.total_q < 0) return { index, 0, p.len_q, index, index * x.per_sequence };
    const int64_t first = min(max(a.cu_q[index], (int64_t)0), p.total_q);
    const int64_t end = min(max(a.cu_q[index + 1], first), p.total_q);
    return { 0, first, min(end - first, p.len_q), index, first / CHUNK_TOKENS + index };
}

/* The chunk of a slot: its rows are first .. first + tokens - 1 of the token axis. tokens
 * = 0: the slot is unused. */
struct chunk_place {
    int64_t slot, h, b, first;
    int64_t index, c, chunks; /* chunk c of the `chunks` of sequence `index` */
    int tokens;
};

static __device__ __forceinline__ chunk_place chunk_of_sequence(const recurrent_chunks &x,
                                                                const chunk_sequence &s, int64_t h, int64_t c)
{
    const int64_t rest = s.len - c * CHUNK_TOKENS;
    return { h * x.per_head + s.base + c,
             h,
             s.b,
             s.first + c * CHUNK_TOKENS,
             s.index,
             c,
             (s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
             (int)max(min(rest, (int64_t)CHUNK_TOKENS), (int64_t)0) };
}

/* Division of 64 bits is long. */
static __device__ __forceinline__ chunk_place chunk_of_slot(const loam_problem &p, const loam_args &a,
                                                            const recurrent_chunks &x, unsigned slot)
{
    const unsigned h = slot / (unsigned)x.per_head, at = slot % (unsigned)x.per_head;
    int64_t index;
    if (p.total_q < 0) {
        index = at / (unsigned)x.per_sequence;
    } else { /* binary search for the last sequence whose base is at most `at`: bases ascend */
        int64_t low = 0, high = p.batch - 1;
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (chunk_sequence_at(p, a, x, middle).base <= at)
                low = middle;
            else
                high = middle - 1;
        }
        index = low;
    }
    const chunk_sequence s = chunk_sequence_at(p, a, x, index);
    return chunk_of_sequence(x, s, h, at - s.base);
}

/* The thread blocks of a launch that has one for each of its chunks. */
static inline int64_t chunk_blocks(const recurrent_chunks &x)
{
    const int64_t count = x.to - x.from;
    return count < x.per_sequence ? x.slots / x.per_sequence * count : x.slots;
}

/* The chunk of thread block `block`. */
static __device__ __forceinline__ chunk_place chunk_of_block(const loam_problem &p, const loam_args &a,
                                                             const recurrent_chunks &x, unsigned block)
{
    const unsigned count = (unsigned)(x.to - x.from), all = (unsigned)x.per_sequence;
    const unsigned slot = count < all ? block / count * all + (unsigned)x.from + block % count : block;
    return chunk_of_slot(p, a, x, slot);
}

/* For the end of a kernel that does not wait for the previous one before: it ends later, so that what comes
 * next begins after both. One thread block waits, the others leave. */
static __device__ __forceinline__ void end_after_previous_launch()
{
    if (blockIdx.x == gridDim.x - 1) wait_for_previous_launch();
}

/* ------------------------------------------------------------------ tiles of chunks */

/* Row r of a chunk is at first + r * stride and has this many channels. */
struct chunk_rows {
    const __nv_bfloat16 *first;
    int64_t stride;
    int channels;
};

template <int DIM>
static __device__ __forceinline__ chunk_rows chunk_rows_of(const chunk_source &s, const chunk_place &chunk)
{
    if (s.by_slot) return { s.data + chunk.slot * CHUNK_TOKENS * DIM, DIM, DIM };
    const int64_t head = (unsigned)chunk.h / (unsigned)s.head_group; /* 64-bit division is long */
    return { s.data + chunk.b * s.batch + head * s.head + chunk.first * s.token, s.token, s.channels };
}

/* Copies rows into tiles of ROWS rows; rows from `tokens` on and channels that are not there become 0.
 * Asynchronous: commit and wait before use. */
template <int DIM, int THREADS, int ROWS>
static __device__ __forceinline__ void load_tiles(__nv_bfloat16 *tiles, const chunk_rows &from, int tokens)
{
    constexpr int pieces = DIM / 8, step = THREADS / pieces;
    const int first = threadIdx.x / pieces, c = threadIdx.x % pieces * 8;
    const __nv_bfloat16 *row = from.first + first * from.stride + c;
    __nv_bfloat16 *to = tiles + c / TILE_SIDE * (ROWS * TILE_SIDE) + first * TILE_SIDE +
                        (c % TILE_SIDE / 8 ^ first % 8) * 8;
    static_assert(step % 8 == 0, "all rows of a thread have the same swizzle");
#pragma unroll
    for (int n = 0; n < ROWS / step; n++) {
        const bool real = first + n * step < tokens && c < from.channels;
        copy_async_16_or_zero(to + n * step * TILE_SIDE, real ? row + n * step * from.stride : from.first,
                              real);
    }
}

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_rows_of(__nv_bfloat16 *tiles, const chunk_source &s,
                                                    const chunk_place &chunk)
{
    constexpr int width = DIM < 2 * TILE_SIDE ? DIM : 2 * TILE_SIDE; /* of what load_tiles takes */
    const chunk_rows rows = chunk_rows_of<DIM>(s, chunk);
#pragma unroll
    for (int c = 0; c < DIM; c += width) {
        load_tiles<width, THREADS, CHUNK_TOKENS>(
            tiles + c * TILE_SIDE,
            { rows.first + (c < rows.channels ? c : 0), rows.stride, rows.channels - c }, chunk.tokens);
    }
}

/* Reports every row as solved, without a solver: these mechanisms have no system to solve. */
static __device__ __forceinline__ void report_solved(const loam_problem &p, const loam_args &a,
                                                     const chunk_place &chunk)
{
    const loam_view &view = a.info;
    if (p.pass == LOAM_FORWARD && view.data && (int)threadIdx.x < chunk.tokens) {
        loam_row_info *row = (loam_row_info *)view.data +
                             RECURRENT_AT(view, chunk.b, chunk.h, chunk.first + threadIdx.x);
        *row = { LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
    }
}

#endif
