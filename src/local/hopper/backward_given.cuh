/* SPDX-License-Identifier: MIT
 *
 * Backward of softmax and Parallax on Hopper, first pass: dq, the gradient of the probe and row_scalars of
 * each row, in one sweep over the keys. With g = do . v, gam = g - do . vbar, t = rho . k - tbar and
 * e = do . (vbar - o):
 *
 *     softmax:   ds = p gam
 *     Parallax:  ds = p (gam (1 - t) + e),  drho = -sum p gam k
 *     dq = scale sum ds k
 *
 * e = sum p gam t, so that neither mechanism needs a sweep before this one.
 *
 * Two consumer warpgroups have 64 queries each; one thread of a third produces the tiles. Where sequences are
 * short, thread blocks stay: rows of the next block are copied during this one. Weights have one part. Those
 * of float16 are raised (LIFT_TOP); blocks in which some then are infinite are done again by a launch of
 * their own, which looks for such weights in each tile, and raises the weights of their rows less.
 * Where a sum of weights is 0 in exact arithmetic, its rounding error is taken out of the gradient at the key
 * of the row's own position.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_GIVEN_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_GIVEN_CUH

#include "src/local/hopper/backward_given_pairs.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/row_store.cuh"
#include "src/local/hopper/stay.cuh"

/* Tensor maps of the arrays. */
struct given_backward_maps {
    CUtensorMap q, grad_o, probe, k, v;
};

/* ------------------------------------------------------------------ the producer */

template <class S>
static __device__ __forceinline__ void load_rows_of_groups(typename S::type (*tile)[S::dim * TILE_SIDE],
                                                           const CUtensorMap &map, const row_block &block,
                                                           uint64_t *full)
{
#pragma unroll
    for (int group = 0; group < S::groups; group++) {
        load_tile<S::dim>(tile[group], map, full, (int)(block.s.q0 + block.i0) + group * TILE_SIDE,
                          (int)block.h, (int)block.s.b);
    }
}

/* Copies what forward saved of a block's rows. */
template <class S>
static __device__ __forceinline__ void load_saved(given_backward_shared<S> &sm,
                                                  given_backward_barriers<S> &bar, const loam_problem &p,
                                                  const local_saved &saved, const row_block &block,
                                                  unsigned row_count)
{
    const int64_t at = local_row(&p, &block.s, block.h, block.i0) * p.dim_v;
    const unsigned bytes = (unsigned)(block.rows * p.dim_v * 4);
    uint64_t *const full = ring_acquire(bar.saved, row_count, S::copied * bytes);
    load_bytes(sm.saved[0], (const float *)saved.vbar + at, bytes, full);
    if constexpr (S::probed)
        load_bytes(sm.saved[S::copied - 1], (const float *)saved.value_shift + at, bytes, full);
}

/* The rows of a block, then its tiles. */
template <class S>
static __device__ __forceinline__ void produce_block(given_backward_shared<S> &sm,
                                                     given_backward_barriers<S> &bar,
                                                     const given_backward_maps &maps, const loam_problem &p,
                                                     const loam_args &a, const local_saved &saved,
                                                     const row_block &block, unsigned row_count,
                                                     unsigned &count)
{
    constexpr unsigned tile_bytes = S::dim * S::keys * 2,
                       decay_bytes = decay_tile<S::decayed, S::keys>::bytes;
    given_backward_rows<S> &rows = sm.rows[row_count % S::row_stages];
    uint64_t *full = ring_acquire(bar.rows, row_count, sizeof rows.tile);
    load_rows_of_groups<S>(rows.tile[ROWS_Q], maps.q, block, full);
    load_rows_of_groups<S>(rows.tile[ROWS_GRAD_O], maps.grad_o, block, full);
    if constexpr (S::probed) load_rows_of_groups<S>(rows.tile[ROWS_PROBE], maps.probe, block, full);
    if (saved_is_copied<S>(p)) load_saved(sm, bar, p, saved, block, row_count);
    const int64_t origin = S::decayed ? decay_origin(a, block.s, block.h) : 0;
    for (int j = block.first; j < block.last; j += S::keys, count++) {
        const int token = (int)block.s.k0 + j;
        full = ring_acquire(bar.keys, count, tile_bytes + decay_bytes);
        copy_decay(sm.decay[count % S::key_stages], a, origin + j, full);
        load_tile<S::dim, S::keys>(sm.keys[count % S::key_stages], maps.k, full, token, (int)block.h_kv,
                                   (int)block.s.b);
        full = ring_acquire(bar.values, count, tile_bytes);
        load_tile<S::dim, S::keys>(sm.values[count % S::value_stages], maps.v, full, token, (int)block.h_kv,
                                   (int)block.s.b);
    }
}

/* Tells the consumers block number `told`, the n-th; a warp calls it. */
template <class S>
static __device__ __forceinline__ void tell_block(given_backward_shared<S> &sm,
                                                  given_backward_barriers<S> &bar, const row_block &block,
                                                  const float (&lse)[S::rows / 32], unsigned n, unsigned told)
{
    const unsigned lane = threadIdx.x % 32;
    given_backward_task<S> &task = sm.task[told % TASKS];
    barrier_wait(&bar.tasks.empty[told % TASKS], told / TASKS % 2 ^ 1);
#pragma unroll
    for (int k = 0; k < S::rows / 32; k++)
        task.lse[32 * k + lane] = lse[k];
    if (lane == 0) task.block = block, task.number = n;
    barrier_arrive(&bar.tasks.full[told % TASKS]);
}

/* The warp that tells of all blocks. */
template <class S>
static __device__ __forceinline__ void tell_blocks(given_backward_shared<S> &sm,
                                                   given_backward_barriers<S> &bar, const loam_problem &p,
                                                   const loam_args &a, const local_saved &saved,
                                                   unsigned blocks)
{
    unsigned told = 0;
    for_each_block<S::stays>(blocks, [&](unsigned n) {
        const row_block block = row_block_at<S::rows>(p, a, n);
        if (block.rows <= 0) return;
        const float *const from = (const float *)saved.lse + local_row(&p, &block.s, block.h, block.i0);
        float lse[S::rows / 32];
#pragma unroll
        for (int k = 0; k < S::rows / 32; k++)
            lse[k] = from[min(32 * k + (int)threadIdx.x % 32, block.rows - 1)];
        tell_block(sm, bar, block, lse, n, told++);
    });
    tell_block<S>(sm, bar, row_block(), {}, 0, told);
}

/* ------------------------------------------------------------------ the sweep */

/* Ping-pong: the two consumers alternate in issuing the products of a tile, and the first one begins. While
 * the products of one run, the other computes its weights. */
static __device__ __forceinline__ void pingpong_wait(int group)
{
    named_barrier_sync<GIVEN_GROUPS * THREADS>(1 + GIVEN_GROUPS + group);
}
static __device__ __forceinline__ void pingpong_arrive(int group)
{
    named_barrier_arrive<GIVEN_GROUPS * THREADS>(2 * GIVEN_GROUPS - group);
}

/* Releases the tiles from key j on, which none of the warpgroup's rows sees, and keeps the turns. */
template <class S>
static __device__ __forceinline__ void skip_tiles(given_backward_barriers<S> &bar, unsigned &count, int j,
                                                  int last, int group)
{
    for (; j < last; j += S::keys, count++) {
        ring_wait(bar.keys, count);
        ring_release(bar.keys, count);
        ring_wait(bar.values, count);
        ring_release(bar.values, count);
        pingpong_wait(group);
        pingpong_arrive(group);
    }
}

/* The sweep of a consumer warpgroup over the tiles of the block from key j on, tile number `count` on. True
 * where it stops at a tile whose operands w are scaled by `by` and wait for what was summed before to be;
 * no product then is in flight. */
template <class S>
static __device__ __forceinline__ bool sweep_tiles(row_gradients<S> &f, scale_sums &sums,
                                                   given_backward_shared<S> &sm,
                                                   given_backward_barriers<S> &bar, const row_block &block,
                                                   row_constants &rows, const given_backward_rows<S> &own,
                                                   int &j, unsigned &count, tile_operands<S> &w,
                                                   float (&by)[2])
{
    constexpr int in_flight = S::probed ? 2 : 1;
    const int group = (int)warp_uniform(threadIdx.x / THREADS), own_tile = S::shared_rows ? 0 : group;
    tile_products<S> tile;
    for (; j < rows.last; j += S::keys, count++) {
        const unsigned stage = warp_uniform(count % S::key_stages);
        typename S::type *const keys = sm.keys[stage];
        const typename S::type *const values = sm.values[warp_uniform(count % S::value_stages)];
        const auto *const decay = decay_of(sm.decay[stage]);
        const bool masked = j < rows.unmasked_begin || j + S::keys > rows.unmasked_end;
        ring_wait(bar.keys, count);
        if (j + S::keys > block.last) clear_tail_warpgroup<S::dim, S::keys>(keys, block.last - j);
        pingpong_wait(group);
        issue_scores(tile, own, own_tile, keys);
        wgmma_wait<in_flight>();
        if (j > block.first) ring_release(bar.keys, count - 1);
        ring_wait(bar.values, count);
        multiply_rows<S::dim>(tile.g, own.tile[ROWS_GRAD_O][own_tile], values, false);
        wgmma_commit();
        pingpong_arrive(group);
        if constexpr (S::roomy) add_operands(f, w); /* of the tile before, while products run */
        wgmma_wait<in_flight>();
        wgmma_results(tile.s);
        if constexpr (!S::scaled) {
            weights_of(tile.s, rows, decay, j);
            if (masked && !S::lean) clear_unseen(tile.s, rows, j);
        }
        wgmma_wait<0>();
        wgmma_results(tile.g);
        ring_release(bar.values, count);
        if constexpr (S::probed) wgmma_results(tile.u);
        if (masked && !S::lean) {
            clear_unseen(tile.g, rows, j);
            clear_unseen_probe(tile, rows, j);
        }
        probe_score_gradients<S>(tile.s, tile.g, tile.u, sums, rows, decay, j);
        if (S::lean && masked) clear_unseen(tile.s, rows, j);
        const bool stops = S::again && !within_half(tile, by);
        make_operands(w, tile);
        if (stops) return true;
        if constexpr (!S::roomy) add_operands(f, w);
        issue_gradients(f, w, keys + own_columns<S>());
    }
    return false;
}

/* The whole sweep; before_end() comes when the last products have been issued. */
template <class S, class F>
static __device__ __forceinline__ void sweep_rows(row_gradients<S> &f, scale_sums &sums,
                                                  given_backward_shared<S> &sm,
                                                  given_backward_barriers<S> &bar, const row_block &block,
                                                  row_constants &rows, unsigned row_count, unsigned &count,
                                                  F before_end)
{
    const given_backward_rows<S> &own = sm.rows[row_count % S::row_stages];
    tile_operands<S> w;
    if constexpr (S::roomy) w = {};
    float by[2];
    int j = block.first;
    while (sweep_tiles(f, sums, sm, bar, block, rows, own, j, count, w, by)) {
        wgmma_wait<0>();
        wgmma_results(f);
        lower_lift(f, sums, rows, by);
        if constexpr (!S::roomy) add_operands(f, w);
        issue_gradients(f, w, sm.keys[count % S::key_stages] + own_columns<S>());
        wgmma_wait<0>();
        wgmma_results(f);
        j += S::keys, count++;
    }
    before_end();
    if constexpr (S::roomy) add_operands(f, w);
    wgmma_wait<0>();
    wgmma_results(f);
    ring_release(bar.rows, row_count);
    if (j > block.first) ring_release(bar.keys, count - 1);
    skip_tiles(bar, count, j, block.last, (int)threadIdx.x / THREADS);
}

/* ------------------------------------------------------------------ results of a row */

/* middle: an x between the mean and the largest of the row, from its lse. */
static __device__ __forceinline__ scale_sums scale_sums_begin(const row_constants &rows,
                                                              const loam_problem &p)
{
    scale_sums sum = {};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int keys = rows.hi[row] - rows.lo[row];
        const float x = !p.sink && p.scale != 0 && keys > 0
                            ? (rows.lse[row] - logf((float)keys)) / (float)p.scale
                            : 0;
        sum.middle[row] = fabsf(x) < 1e30f ? x : 0;
    }
    return sum;
}

/* The gradient of the scale from one row. sum ds is 0 but for rounding, where there is no sink: the
 * difference is taken out at the mean x. Where the sum overflows, `large` has it. */
static __device__ __forceinline__ double scale_sum(const scale_sums &sum, int row, const loam_problem &p)
{
    const float rest = quad_sum(sum.inner[row]) * quad_sum(sum.mean[row]);
    const float scale = quad_sum(sum.scale[row]) - (!p.sink && fabsf(rest) < INFINITY ? rest : 0),
                large = quad_sum(sum.large[row]);
    return fabsf(scale) < INFINITY ? (double)scale : (double)large * 0x1p100;
}

static __device__ __forceinline__ row_scalars record_of(const row_constants &rows, int row)
{
    row_scalars rec = {};
    rec.lse = rows.lse[row];
    rec.gbar = rows.gbar[row], rec.e = rows.e[row];
    rec.peak = -1, rec.lo = rows.lo[row], rec.hi = rows.hi[row];
    return rec;
}

/* The key at the row's own position, or the nearest that the row sees; 0 where it sees none. */
static __device__ __forceinline__ int64_t own_key(const row_block &block, const row_pair &r, int row)
{
    const int64_t at = block.i0 + r.at[row] + block.s.nk - block.s.nq, last = r.hi[row] - 1;
    return r.lo[row] > last ? 0 : at < r.lo[row] ? r.lo[row] : at < last ? at : last;
}

/* Element `at` of `to` on: times (f - excess key), channels from `column` on, of `channels`. excess: what
 * rounding adds to a sum of weights; where keys have a common part, it would bring that part into the
 * gradient. `key` is one of those with weight: turned by position (RoPE), keys far away do not have that
 * part in common with them (RoPE-like data: error of dq 2e-3; 4e-3 with the first key). */
template <class S>
static __device__ __forceinline__ void put_gradient(const float (&f)[S::columns / TILE_SIDE][8][4], int row,
                                                    float times, float excess,
                                                    const uint32_t (&key)[S::columns / 8],
                                                    const loam_view &to, int64_t at, bool stored, int column,
                                                    int channels)
{
    typedef typename S::type T;
    float2 x[S::columns / 8];
#pragma unroll
    for (int n = 0; n < S::columns / 8; n++) {
        const float2 own = unpack_pair<T>(key[n]);
        const float(&sum)[4] = f[n / 8][n % 8];
        x[n].x = times * (sum[2 * row] - excess * own.x);
        x[n].y = times * (sum[2 * row + 1] - excess * own.y);
    }
    store_row((T *)to.data + at, stored, rows_are_pieces(to, channels), column, channels, x);
}

/* The first of the warpgroup's columns of gradients. */
template <class S> static __device__ __forceinline__ int first_column()
{
    return S::shared_rows ? (int)threadIdx.x / THREADS * S::columns : 0;
}

/* The thread's channels of own_key of its two rows, from `column` on. */
template <class S>
static __device__ __forceinline__ void load_own_keys(uint32_t (&own)[2][S::columns / 8],
                                                     const loam_problem &p, const loam_args &a,
                                                     const row_block &block, const row_pair &r, int column)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t token = block.s.nk > 0 ? block.s.k0 + own_key(block, r, row) : 0;
        const uint16_t *const key = (const uint16_t *)a.k.data + LOCAL_AT(a.k, block.s.b, block.h_kv, token);
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const int c = column + column_of(n, 0);
            own[row][n] = c + 1 < p.dim_qk ? *(const uint32_t *)(key + c) : c < p.dim_qk ? key[c] : 0;
        }
    }
}

/* What operands of the pass over keys need to stay within the range of float16 (key_falls): ds that was
 * finite here is at most half of what is there, where products may be rounded otherwise. */
template <class S>
static __device__ __forceinline__ void put_falls(const row_constants &rows, const loam_problem &p,
                                                 const row_arrays &arrays, const row_block &block, unsigned n)
{
    int fall = KEY_RAISE + 1 - (int)fminf(rows.lift[0], rows.lift[1]),
        probe = rows.most2 > 1 && rows.most2 < INFINITY ? ilogbf(rows.most2) / 2 + 1 : 0;
    fall = __reduce_max_sync(0xffffffffu, fall), probe = __reduce_max_sync(0xffffffffu, probe);
    if (threadIdx.x % 32 != 0) return;
    const int64_t sequence = n / (unsigned)p.heads_q % (unsigned)p.batch,
                  at = sequence * p.heads_kv + block.h_kv;
    if (fall > 0) atomicMax(arrays.state + at, fall);
    if (S::probed && probe > 0) atomicMax(arrays.state + key_falls(p) / 2 + at, probe);
}

/* The row's sums without the lift. */
static __device__ __forceinline__ void unlift(scale_sums &sums, int row, float inverse)
{
    sums.inner[row] *= inverse, sums.scale[row] *= inverse, sums.large[row] *= inverse;
    sums.mean[row] *= inverse, sums.total[row] *= inverse;
}

template <class S>
static __device__ __forceinline__ void put_rows(const row_gradients<S> &f, scale_sums &sums,
                                                const row_constants &rows, const loam_problem &p,
                                                const loam_args &a, const local_saved &saved,
                                                const row_arrays &arrays, const row_block &block,
                                                const row_pair &r, const uint32_t (&own)[2][S::columns / 8])
{
    const int column = first_column<S>();
    const float sink = p.sink ? ((const float *)a.sink)[block.h] : 0;
    row_scalars rec[2];
    int64_t at[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        at[row] = local_row(&p, &block.s, block.h, block.i0 + (r.real[row] ? r.at[row] : 0));
        rec[row] = record_of(rows, row);
        if constexpr (S::probed) {
            rec[row].rho_kbar = ((const float *)saved.tbar)[2 * at[row]];
            rec[row].rho_rest = ((const float *)saved.tbar)[2 * at[row] + 1];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float lift = S::folded ? exp2f(rows.lift[row]) : 1, inverse = S::folded ? 1 / lift : 1;
        if constexpr (S::folded) unlift(sums, row, inverse);
        const float inner = quad_sum(f.inner[2 * row] + f.inner[2 * row + 1]);
        const float total = S::probed ? quad_sum(f.total[2 * row] + f.total[2 * row + 1]) : 0;
        const double scale = S::scaled ? scale_sum(sums, row, p) : 0;
        const float ds = S::decayed ? quad_sum(sums.total[row]) : 0;
        const int64_t token = block.s.q0 + block.i0 + r.at[row];
        /* sum ds in exact arithmetic: 0, or gbar times the mass of the sink. */
        const float expected = p.sink ? rows.gbar[row] * expf(sink - rec[row].lse) * lift : 0;
        if (a.grad_q.data) {
            put_gradient<S>(f.dq, row, (float)p.scale * inverse, inner - expected, own[row], a.grad_q,
                            LOCAL_AT(a.grad_q, block.s.b, block.h, token), r.real[row], column,
                            (int)p.dim_qk);
        }
        if constexpr (S::probed) {
            if (a.grad_probe.data) {
                put_gradient<S>(f.drho, row, -inverse, total, own[row], a.grad_probe,
                                LOCAL_AT(a.grad_probe, block.s.b, block.h, token), r.real[row], column,
                                (int)p.dim_qk);
            }
        }
        if (r.real[row] && threadIdx.x % 4 == 0 && column == 0) {
            arrays.record[at[row]] = rec[row];
            if (S::scaled && a.grad_scale) arrays.sums.scale[at[row]] = scale;
            if (S::decayed) arrays.sums.inner[at[row]] = (double)ds;
            if (p.sink) {
                arrays.sums.sink[at[row]] = -exp((double)sink - (double)rec[row].lse) *
                                            (double)rows.gbar[row];
            }
        }
    }
}

/* ------------------------------------------------------------------ the kernel */

/* The rows of the thread in the block. Where the consumers share rows, those of the second are the first's.
 */
template <class S>
static __device__ __forceinline__ row_pair given_rows_of(const loam_problem &p, row_block block)
{
    const int before = S::shared_rows ? (int)threadIdx.x / THREADS * TILE_SIDE : 0;
    block.i0 -= before, block.rows += before;
    row_pair r = row_pair_of(p, block);
    r.at[0] -= before, r.at[1] -= before;
    return r;
}

/* With float16: a block in which operands of the warpgroup's rows were infinite, as sums of rounded weights
 * tell, goes on the list of those to be done again. */
template <class S>
static __device__ __forceinline__ void list_overflow(const row_gradients<S> &f, const loam_problem &p,
                                                     const row_arrays &arrays, unsigned n)
{
    float nothing = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        nothing += 0 * f.inner[k] + (S::probed ? 0 * f.total[k] : 0);
    const bool infinite = named_barrier_or<THREADS>(vote_barrier(), nothing != 0);
    if (!infinite || threadIdx.x % THREADS != 0) return;
    int32_t *const list = overflow_list(p, arrays);
    list[1 + atomicAdd(list, 1)] = (int32_t)n;
}

/* The number of the n-th block of a launch. */
template <class S>
static __device__ __forceinline__ unsigned block_number(const loam_problem &p, const row_arrays &arrays,
                                                        unsigned n)
{
    return S::again ? (unsigned)overflow_list(p, arrays)[1 + n] : n;
}

/* A block of a consumer warpgroup, number n, and its two rows with their lse. */
struct given_block {
    row_block block;
    row_pair r;
    float lse[2];
    unsigned n;
};

/* The next block; false where there is none. */
template <class S>
static __device__ __forceinline__ bool next_block(given_block &x, given_backward_shared<S> &sm,
                                                  given_backward_barriers<S> &bar, const loam_problem &p,
                                                  const loam_args &a, const local_saved &saved,
                                                  const row_arrays &arrays, unsigned blocks, unsigned round)
{
    const float *lse;
    if constexpr (S::stays) {
        ring_wait(bar.tasks, round);
        const given_backward_task<S> &task = sm.task[round % TASKS];
        x.block = task.block, x.n = task.number, lse = task.lse;
    } else {
        const unsigned n = block_of_round(blocks, round);
        if (n >= blocks) return false;
        x.n = block_number<S>(p, arrays, n);
        x.block = row_block_at<S::rows>(p, a, x.n);
        lse = (const float *)saved.lse + local_row(&p, &x.block.s, x.block.h, x.block.i0);
    }
    if (x.block.rows <= 0) return false;
    x.r = given_rows_of<S>(p, x.block);
    x.lse[0] = lse[line_of(x.block, x.r, 0)], x.lse[1] = lse[line_of(x.block, x.r, 1)];
    if constexpr (S::stays) ring_release(bar.tasks, round);
    return true;
}

/* All blocks of a consumer warpgroup. */
template <class S>
static __device__ __forceinline__ void consume_rows(given_backward_shared<S> &sm,
                                                    given_backward_barriers<S> &bar, const loam_problem &p,
                                                    const loam_args &a, const local_saved &saved,
                                                    const row_arrays &arrays, unsigned blocks)
{
    const int group = S::shared_rows ? 0 : (int)threadIdx.x / THREADS;
    unsigned count = 0;
    for (unsigned round = 0; S::stays || has_round<S::loops>(blocks, round); round++) {
        given_block x;
        if (!next_block(x, sm, bar, p, a, saved, arrays, blocks, round)) break;
        row_constants rows = row_constants_of<S>(sm.rows[round % S::row_stages].tile[ROWS_GRAD_O][group], sm,
                                                 bar, round, p, saved, x.block, x.r, x.lse);
        if constexpr (S::decayed) {
            const local_decay_pair *const sums = decay_sums(a, x.block.s, x.block.h);
            rows.first_odd = (int)(decay_origin(a, x.block.s, x.block.h) % 2);
            rows.decay[0] = row_decay(sums, rows.hi[0]), rows.decay[1] = row_decay(sums, rows.hi[1]);
        }
        scale_sums sums = {};
        if (S::scaled) sums = scale_sums_begin(rows, p);
        row_gradients<S> f = {};
        uint32_t own[2][S::columns / 8];
        /* The loads are under way while the last products are, where there are registers for it. */
        sweep_rows(f, sums, sm, bar, x.block, rows, round, count, [&]() {
            if constexpr (S::roomy) load_own_keys<S>(own, p, a, x.block, x.r, first_column<S>());
        });
        if constexpr (!S::roomy) load_own_keys<S>(own, p, a, x.block, x.r, first_column<S>());
        if constexpr (S::folded && !S::again) list_overflow(f, p, arrays, x.n);
        put_rows(f, sums, rows, p, a, saved, arrays, x.block, x.r, own);
        if constexpr (S::folded) put_falls<S>(rows, p, arrays, x.block, x.n);
    }
}

template <class S>
__global__ void __launch_bounds__(GIVEN_THREADS, 1)
    given_rows_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                             const local_saved saved, const row_arrays arrays, const unsigned all_blocks,
                             const __grid_constant__ given_backward_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    given_backward_shared<S> &sm = *(given_backward_shared<S> *)swizzled_memory;
    given_backward_barriers<S> &bar = sm.barriers;
    if constexpr (S::folded) {
        launch_dependents();
        wait_for_previous_launch();
    }
    const unsigned blocks = S::again ? (unsigned)*overflow_list(p, arrays) : all_blocks;
    if (blocks == 0) return;
    if (threadIdx.x == 0) {
        ring_init(bar.rows, GIVEN_GROUPS * 4);
        ring_init(bar.keys, GIVEN_GROUPS * 4);
        ring_init(bar.values, GIVEN_GROUPS * 4);
        ring_init(bar.saved, GIVEN_GROUPS * 4);
        for (int n = 0; n < TASKS; n++) {
            barrier_init(&bar.tasks.full[n], 32); /* each lane of tell_block */
            barrier_init(&bar.tasks.empty[n], GIVEN_GROUPS * 4);
        }
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x >= GIVEN_GROUPS * THREADS) {
        registers_release<S::stays ? 40 : 24>();
        if (S::stays && threadIdx.x / 32 == GIVEN_GROUPS * 4 + 1) tell_blocks(sm, bar, p, a, saved, blocks);
        if (threadIdx.x != GIVEN_GROUPS * THREADS) return;
        unsigned row_count = 0, count = 0;
        for_each_block<S::loops>(blocks, [&](unsigned n) {
            const row_block block = row_block_at<S::rows>(p, a, block_number<S>(p, arrays, n));
            if (block.rows <= 0) return;
            produce_block(sm, bar, maps, p, a, saved, block, row_count++, count);
        });
    } else {
        registers_acquire<S::stays ? 232 : 240>();
        if (threadIdx.x >= THREADS) pingpong_arrive(1);
        consume_rows(sm, bar, p, a, saved, arrays, blocks);
    }
}

/* ------------------------------------------------------------------ the launches */

template <class S> static int64_t row_blocks(const loam_problem *p)
{
    return (p->len_q + S::rows - 1) / S::rows * p->batch * p->heads_q;
}

template <class S>
static loam_status launch_kernel(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 const given_backward_maps &maps, loam_error *error)
{
    const int64_t blocks = row_blocks<S>(p);
    int64_t grid;
    TRY(cuda_grid_that_stays(blocks, S::loops, &grid, error));
    return cuda_launch("given_rows_kernel_hopper", given_rows_kernel_hopper<S>, grid, GIVEN_THREADS,
                       sizeof(given_backward_shared<S>), a->stream, S::folded, error, *p, *a,
                       local_saved_carve(p, a->saved, NULL), *rows, (unsigned)blocks, maps);
}

template <class S>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    given_backward_maps maps = {};
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, TILE_SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, p->dim_v, TILE_SIDE, error));
    if (S::probed) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, S::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, S::keys, error));
    TRY(launch_kernel<S>(p, a, rows, maps, error));
    if constexpr (S::folded) return launch_kernel<typename S::same_again>(p, a, rows, maps, error);
    return LOAM_OK;
}

/* Where scores decay, only bfloat16 to 128 channels has instances that leave out the gradient of the scale.
 * Thread blocks stay only with 64 channels: with more there is no room for the rows of two blocks. */
template <class T, int DIM, bool PROBED, bool SCALED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  loam_error *error)
{
    constexpr bool always_scaled = is_half<T> || DIM > 128;
    if (p->decay)
        return launch<given_backward<T, DIM, PROBED, SCALED || always_scaled, true, false>>(p, a, rows,
                                                                                            error);
    if constexpr (DIM == 64) {
        typedef given_backward<T, DIM, PROBED, SCALED, false, true> S;
        bool stay = false;
        TRY(blocks_stay(&stay, p, p->len_q, INT64_MAX, row_blocks<S>(p), error));
        if (stay) return launch<S>(p, a, rows, error);
    }
    return launch<given_backward<T, DIM, PROBED, SCALED, false, false>>(p, a, rows, error);
}

template <class T, int DIM, bool PROBED>
static loam_status launch_scaled(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return a->grad_scale ? launch_decayed<T, DIM, PROBED, true>(p, a, rows, error)
                         : launch_decayed<T, DIM, PROBED, false>(p, a, rows, error);
}

template <class T, bool PROBED>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                              loam_error *error)
{
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if (dim <= 64) return launch_scaled<T, 64, PROBED>(p, a, rows, error);
    if (dim <= 128) return launch_scaled<T, 128, PROBED>(p, a, rows, error);
    if constexpr (!PROBED)
        if (dim <= 192) return launch_scaled<T, 192, PROBED>(p, a, rows, error);
    return launch_scaled<T, 256, PROBED>(p, a, rows, error);
}

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               loam_error *error)
{
    if (p->len_q == 0) return LOAM_OK;
    return p->mechanism == LOAM_PARALLAX ? launch_dim<T, true>(p, a, rows, error)
                                         : launch_dim<T, false>(p, a, rows, error);
}

#endif
