/* SPDX-License-Identifier: MIT
 *
 * Decode on CPUs: few queries, many keys. The keys that a chunk of rows sees are cut into splits, which
 * depend on the problem alone. Each split is reduced to a partial state per row (local/state.c), and the
 * states of a chunk are merged in order. The threads share the splits of a wave of chunks, then the merges:
 * the bits do not depend on the number of threads.
 *
 * Softmax and Parallax need one phase, GIVEN. LLA needs two: MOMENTS gives the probe of each row, then GIVEN
 * as for Parallax. Rows whose system is too badly conditioned for float32 moments go through a third phase,
 * EXACT.
 */
#include "src/local/cpu/decode_block.h"
#include "src/simd/gram.h"

#include <omp.h>

/* ------------------------------------------------------------------ known probes
 * The partial state, over one split, of rows whose probe is known (none, given, or solved for before): two
 * products with each tile of keys and values, each read once for up to four rows. Weights w are relative to
 * the running maximum of the scores. Sums within a tile are float32, sums over tiles float64. With
 * t = probe . k and c the weighted mean of t in a tile, a tile adds
 *
 *     sum w v,    sum w (t - c) + omega c  to sum w t,    sum w (t - c) v + c sum w v  to sum w t v
 *
 * so that no large c cancels in the float32 sums. */

/* During a split a state holds sums in place of means: m, omega, [sum w t], sum w v, [sum w t v].
 * Rescales it to m. */
static inline void scale_state(double *state, int64_t doubles, double m)
{
    const double factor = state[0] > -INFINITY ? exp(state[0] - m) : 0;
    state[0] = m;
    for (int64_t e = 1; e < doubles; e++)
        state[e] *= factor;
}

/* t <- w (t - mean), with the weighted mean of t in the tile, which is returned; adds the sum of w
 * t to *sum. */
static inline float centre_products_of(const float *restrict w, float *restrict t, int64_t n, double omega,
                                       double *restrict sum)
{
    vec total = v_set(0), left = v_set(0);
    for (int64_t e = n; e < whole_vectors(n); e++)
        t[e] = 0;
    for (int64_t e = 0; e < n; e += VL)
        total += v_load(w + e) * v_load(t + e);
    const float mean = v_sum(total) / (float)omega;
    for (int64_t e = 0; e < n; e += VL) {
        const vec wt = v_load(w + e) * (v_load(t + e) - mean);
        left += wt;
        v_store(t + e, wt);
    }
    *sum += (double)v_sum(left) + omega * (double)mean;
    return mean;
}

/* Adds keys j .. j + n - 1 to the states of rows slot .. slot + rows - 1 of the chunk. */
static inline void given_tile(block *blk, int64_t slot, int64_t rows, int64_t j, int64_t n, double *states,
                              int64_t size)
{
    const bool probed = blk->hd.p->mechanism != LOAM_SOFTMAX;
    const int64_t dv = blk->hd.p->dim_v;
    const table keys = keys_of(blk, j, n), values = values_of(blk, j, n);
    float mean[SHARE_ROWS] = { 0 };
    table_dots(&keys, blk->origin, blk->row[slot].sc.rbf, rows,
               (table_rows){ blk->query + slot * blk->stride, blk->w, blk->stride, blk->keys });
    if (probed) {
        table_dots(&keys, blk->origin, false, rows,
                   (table_rows){ blk->probe + slot * blk->stride, blk->w + rows * blk->keys, blk->stride,
                                 blk->keys });
    }
    for (int64_t r = 0; r < rows; r++) {
        float *w = blk->w + r * blk->keys, *t = w + rows * blk->keys;
        double *state = states + (slot + r) * size;
        const float best = tile_scores(blk, &blk->row[slot + r], j, n, w);
        if (!(best > -INFINITY)) {
            memset(w, 0, (size_t)n * sizeof(float));
            memset(t, 0, probed ? (size_t)n * sizeof(float) : 0);
            continue;
        }
        if ((double)best > state[0]) scale_state(state, size, (double)best);
        const double omega = tile_weights(w, n, (float)state[0], false);
        state[1] += omega;
        if (probed && omega > 0)
            mean[r] = centre_products_of(w, t, n, omega, &state[2]);
        else if (probed)
            memset(t, 0, (size_t)n * sizeof(float));
    }
    table_weigh(&values, probed ? 2 * rows : rows,
                (table_rows){ blk->w, blk->sums, blk->keys, blk->stride_v });
    for (int64_t r = 0; r < rows; r++) {
        const float *sum = blk->sums + r * blk->stride_v, *sum_t = sum + rows * blk->stride_v;
        double *v = states + (slot + r) * size + 2 + probed;
        for (int64_t c = 0; c < dv; c++)
            v[c] += (double)sum[c];
        for (int64_t c = 0; probed && c < dv; c++)
            v[dv + c] += (double)sum_t[c] + (double)mean[r] * (double)sum[c];
    }
}

/* Converts the sums into the means and centred sums of loam.h. */
static inline void given_end(const block *blk, int64_t slot, double *state)
{
    const bool probed = blk->hd.p->mechanism != LOAM_SOFTMAX;
    const int64_t dv = blk->hd.p->dim_v;
    double *v = state + 2 + probed;
    if (!(state[1] > 0)) return;
    state[0] += blk->row[slot].dropped;
    if (probed) {
        const double mean = state[2] / state[1];
        for (int64_t c = 0; c < dv; c++)
            v[dv + c] -= mean * v[c];
        state[2] = mean + dot64(blk->probe + slot * blk->stride, blk->origin, blk->hd.p->dim_qk);
    }
    for (int64_t c = 0; c < dv; c++)
        v[c] /= state[1];
}

/* The states of the chunk over keys begin .. end - 1. On entry they are clear. */
static inline void given_split(block *blk, int64_t begin, int64_t end, double *states, int64_t size)
{
    for (int64_t j = begin; j < end; j += blk->keys) {
        const int64_t n = end - j < blk->keys ? end - j : blk->keys;
        for (int64_t slot = 0; slot < blk->c.rows; slot += SHARE_ROWS) {
            const int64_t left = blk->c.rows - slot;
            given_tile(blk, slot, left < SHARE_ROWS ? left : SHARE_ROWS, j, n, states, size);
        }
    }
    for (int64_t slot = 0; slot < blk->c.rows; slot++)
        given_end(blk, slot, states + slot * size);
}

/* ------------------------------------------------------------------ moments
 * Mean and second moment of the keys only, by float32 products over small tiles, summed in float64. They
 * determine the probe. A second pass over keys and values with that probe costs 2 (dim_qk + dim_v) operations
 * per key, against dim_qk dim_v for sum w v' k'^T. The price is float32 rounding: an entry of the second
 * moment has an error of about 2^-24 times the largest entry, independent from tile to tile. So the state
 * carries
 *
 *     noise^2 = (largest second moment)^2 (sum over tiles of omega_tile^2) / omega^2
 *
 * which merges like a sum of squares; 2^-24 noise / (omega pivot) is the relative error of the probe. Rows
 * where that is too large are computed again. */

/* The largest noise / (omega pivot) at which a probe from float32 moments is accepted. Measured on normal,
 * shifted, anisotropic, rotated, clustered and self-retrieving keys, 40 to 20000 of them: the error of the
 * output is at most 4e-7 times this number, 2e-5. */
#define MOST_NOISE 50.0

/* Below this least pivot, products of keys may underflow in float32; above this probe, its products with keys
 * may overflow. */
#define LEAST_PIVOT 1e-24
#define MOST_PROBE 1e18

typedef struct moments {
    double m, omega, omega2; /* omega2: sum over tiles of omega_tile^2 */
} moments;

static inline void scale_moments(block *blk, moments *s, double m)
{
    const double factor = s->m > -INFINITY ? exp(s->m - m) : 0;
    s->m = m, s->omega *= factor, s->omega2 *= factor * factor;
    for (int64_t e = 0; e < blk->stride * blk->stride; e++)
        blk->gram[e] *= factor;
    for (int64_t c = 0; c < blk->stride; c++)
        blk->mean[c] *= factor;
}

/* Adds one tile to the moments of a row. next: the tile that follows, to prefetch. */
static inline void moments_tile(block *blk, int64_t slot, int64_t j, int64_t n, const table *next, moments *s)
{
    const table keys = keys_of(blk, j, n);
    const table scaled = { (const char *)blk->scaled, blk->stride * (int64_t)sizeof(float), n, blk->stride,
                           LOAM_F32 };
    table_dots(&keys, blk->origin, blk->row[slot].sc.rbf, 1,
               (table_rows){ blk->query + slot * blk->stride, blk->w, blk->stride, blk->keys });
    const float best = tile_scores(blk, &blk->row[slot], j, n, blk->w);
    if (!(best > -INFINITY)) return;
    if ((double)best > s->m) scale_moments(blk, s, (double)best);
    const double omega = tile_weights(blk->w, n, (float)s->m, true);
    s->omega += omega, s->omega2 += omega * omega;
    table_scaled(&keys, blk->origin, blk->w, blk->scaled, blk->stride);
    table_weigh(&scaled, 1, (table_rows){ blk->w, blk->sums, blk->keys, blk->stride });
    for (int64_t c = 0; c < blk->stride; c++)
        blk->mean[c] += (double)blk->sums[c];
    gram_add(blk->gram, blk->scaled, blk->stride, n, next);
}

/* Writes the state of loam.h with dim_v = 0, and noise^2 after it. */
static inline void moments_end(const block *blk, int64_t slot, const moments *s, double *state)
{
    const int64_t d = blk->hd.p->dim_qk, stride = blk->stride;
    double *kbar = state + 2, *kk = kbar + d, largest = 0;
    for (int64_t r = 0; r < d; r++) {
        const double mean = blk->mean[r];
        largest = fmax(largest, blk->gram[r * stride + r]);
        for (int64_t c = 0; c <= r; c++)
            *kk++ = blk->gram[r * stride + c] - mean * (blk->mean[c] / s->omega);
        kbar[r] = (double)blk->origin[r] + mean / s->omega;
    }
    state[0] = s->m + blk->row[slot].dropped;
    state[1] = s->omega;
    *kk = largest * largest * (s->omega2 / (s->omega * s->omega));
}

/* Row by row: the time goes into products, not into loading the keys. */
static inline void moments_split(block *blk, int64_t begin, int64_t end, double *states, int64_t size)
{
    for (int64_t slot = 0; slot < blk->c.rows; slot++) {
        moments s = { -INFINITY, 0, 0 };
        memset(blk->gram, 0, (size_t)(blk->stride * blk->stride) * sizeof(double));
        memset(blk->mean, 0, (size_t)blk->stride * sizeof(double));
        for (int64_t j = begin; j < end; j += blk->gram_keys) {
            const int64_t n = clamp_to(end - j, 0, blk->gram_keys);
            const table next = keys_of(blk, j + n, clamp_to(end - j - n, 0, blk->gram_keys));
            moments_tile(blk, slot, j, n, &next, &s);
        }
        if (s.omega > 0) moments_end(blk, slot, &s, states + slot * size);
    }
}

/* into += from, with noise^2. p has dim_v = 0. */
static inline void moments_merge(const loam_problem *p, double *into, const double *from)
{
    const size_t noise = local_state_doubles(p);
    const double before = into[0];
    local_state_merge(p, into, from);
    const double fa = into[1] > 0 && before > -INFINITY ? exp(2 * (before - into[0])) : 0;
    const double fb = from[1] > 0 ? exp(2 * (from[0] - into[0])) : 0;
    into[noise] = fa * into[noise] + fb * from[noise];
}

/* The probe from the merged moments; returns false where float32 is not accurate enough. scratch: of
 * local_state_probe. */
static inline bool moments_probe(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                                 int64_t i, const double *state, double *scratch, double *rho,
                                 loam_row_info *info)
{
    *info = local_state_probe(p, a, s, h, i, state, scratch, rho);
    if (info->code != LOAM_ROW_SOLVED) return info->code == LOAM_ROW_EMPTY;
    const double noise = sqrt(state[local_state_doubles(p)]) / state[1],
                 pivot = local_state_least_pivot(p, scratch);
    bool fits = pivot > LEAST_PIVOT && noise <= MOST_NOISE * pivot;
    for (int64_t c = 0; c < p->dim_qk; c++)
        fits = fits && fabs(rho[c]) < MOST_PROBE;
    return fits;
}

/* ------------------------------------------------------------------ exact
 * The whole partial state of loam.h, in float64 except for scores and weights. */

/* mean[c] <- weighted mean of the tile; rows <- tile - mean, 0 beyond n. */
static inline void centre(double *restrict rows, double *restrict mean, const float *restrict w,
                          const float *restrict tile, int64_t n, int64_t channels, double omega)
{
    for (int64_t c = 0; c < channels; c++)
        mean[c] = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < channels; c++)
            mean[c] += (double)w[r] * (double)tile[r * channels + c];
    for (int64_t c = 0; c < channels; c++)
        mean[c] /= omega;
    for (int64_t r = 0; r < TILE_KEYS; r++)
        for (int64_t c = 0; c < channels; c++)
            rows[r * channels + c] = r < n ? (double)tile[r * channels + c] - mean[c] : 0;
}

/* out[c] += sum over four rows of x[e] rows[e][c]. */
static inline void add_four(double *restrict out, const double x[4], const double *restrict rows,
                            int64_t stride, int64_t n)
{
    const double *r0 = rows, *r1 = rows + stride, *r2 = rows + 2 * stride, *r3 = rows + 3 * stride;
    for (int64_t c = 0; c < n; c++)
        out[c] += x[0] * r0[c] + x[1] * r1[c] + x[2] * r2[c] + x[3] * r3[c];
}

static inline void exact_tile(const block *blk, const float *restrict w, int64_t n, double omega,
                              double *restrict state)
{
    const int64_t d = blk->hd.p->dim_qk, dv = blk->hd.p->dim_v;
    double *kbar = state + 2, *vbar = kbar + d, *kk = vbar + dv, *vk = kk + d * (d + 1) / 2;
    centre(blk->kd, kbar, w, blk->tile_k, n, d, omega);
    centre(blk->vd, vbar, w, blk->tile_v, n, dv, omega);
    memset(kk, 0, (size_t)(d * (d + 1) / 2 + dv * d) * sizeof(double));
    for (int64_t r = 0; r < n; r += 4) {
        double x[4];
        for (int64_t c = 0; c < d; c++) {
            for (int64_t e = 0; e < 4; e++)
                x[e] = (r + e < n ? (double)w[r + e] : 0) * blk->kd[(r + e) * d + c];
            add_four(kk + c * (c + 1) / 2, x, blk->kd + r * d, d, c + 1);
        }
        for (int64_t c = 0; c < dv; c++) {
            for (int64_t e = 0; e < 4; e++)
                x[e] = (r + e < n ? (double)w[r + e] : 0) * blk->vd[(r + e) * dv + c];
            add_four(vk + c * d, x, blk->kd + r * d, d, d);
        }
    }
}

/* The state of one row of the chunk over keys begin .. end - 1. On entry it is clear. */
static inline void exact_split(block *blk, int64_t slot, int64_t begin, int64_t end, double *state)
{
    const loam_problem *p = blk->hd.p;
    const loam_args *a = blk->hd.a;
    for (int64_t j = begin; j < end; j += TILE_KEYS) {
        const int64_t n = end - j < TILE_KEYS ? end - j : TILE_KEYS, stored = j - blk->c.first;
        const table keys = keys_of(blk, j, n);
        table_dots(&keys, blk->origin, blk->row[slot].sc.rbf, 1,
                   (table_rows){ blk->query + slot * blk->stride, blk->w, blk->stride, blk->keys });
        const float best = tile_scores(blk, &blk->row[slot], j, n, blk->w);
        if (!(best > -INFINITY)) continue;
        load_rows(blk->tile_k, &a->k, p->dtype, blk->c.s.b, blk->c.h_kv, stored, n, p->dim_qk);
        load_rows(blk->tile_v, &a->v, p->dtype, blk->c.s.b, blk->c.h_kv, stored, n, p->dim_v);
        blk->tile_state[0] = (double)best + blk->row[slot].dropped;
        blk->tile_state[1] = tile_weights(blk->w, n, best, false);
        exact_tile(blk, blk->w, n, blk->tile_state[1], blk->tile_state);
        local_state_merge(p, state, blk->tile_state);
    }
}

enum { SPLIT_KEYS = 1024, CHUNK_DOUBLES = 1 << 15, WAVE_DOUBLES = 1 << 17 };

/* ------------------------------------------------------------------ phases */

typedef enum method { GIVEN, MOMENTS, EXACT } method;

typedef struct phase {
    method how;
    loam_problem p; /* the problem of its states: MOMENTS has dim_v = 0, a solved probe is a given one */
    int64_t size;   /* doubles of a state */
    int64_t rows;   /* the most rows of a chunk */
    int64_t per_head, chunks;
    int64_t splits, wave; /* the most splits of a chunk, and the most chunks of a wave */
    int64_t parts;        /* the number of states of a wave, in units of a chunk's rows */
} phase;

/* A split is whole tiles of keys, and there are at most as many splits as the workspace has room for. */
static int64_t most_splits(const phase *ph) { return clamp_to(WAVE_DOUBLES / ph->size, 32, 256); }

static int64_t split_keys(const phase *ph, int64_t keys)
{
    const int64_t most = most_splits(ph), even = (keys + most - 1) / most;
    return (even > SPLIT_KEYS ? even + MOST_KEYS - 1 : SPLIT_KEYS) / MOST_KEYS * MOST_KEYS;
}

static int64_t split_count(const phase *ph, int64_t keys)
{
    return (keys + split_keys(ph, keys) - 1) / split_keys(ph, keys);
}

static phase phase_of(const loam_problem *p, method how)
{
    phase ph = { .how = how, .p = *p };
    if (how == MOMENTS)
        ph.p.dim_v = 0;
    else if (how == GIVEN && p->mechanism == LOAM_LLA)
        ph.p.mechanism = LOAM_PARALLAX;
    ph.size = (int64_t)local_state_doubles(&ph.p) + (how == MOMENTS);
    const int64_t fit = clamp_to(CHUNK_DOUBLES / ph.size, 1, CHUNK_ROWS), group = group_rows(p);
    ph.rows = how == EXACT ? 1 : clamp_to(group, 1, fit);
    ph.per_head = (group + ph.rows - 1) / ph.rows;
    ph.chunks = p->batch * p->heads_kv * ph.per_head;
    /* An upper bound for any number of keys in use: more keys may mean fewer splits. */
    ph.splits = clamp_to((p->len_kv + SPLIT_KEYS - 1) / SPLIT_KEYS, 1, most_splits(&ph));
    ph.parts = p->threads * clamp_to(WAVE_DOUBLES / (ph.size * ph.rows), 1, 16);
    ph.parts = ph.parts > ph.splits ? ph.parts : ph.splits;
    ph.wave = clamp_to(ph.chunks, 1, ph.parts / ph.splits);
    return ph;
}

/* ------------------------------------------------------------------ the workspace */

typedef struct decode_work {
    char *blocks; /* one for each thread */
    size_t block_bytes;
    double *parts;       /* states: [chunk of the wave][split][row] */
    float *probes;       /* solved probes: [row][whole_vectors(dim_qk)] */
    loam_row_info *info; /* of the solved probes, [row] */
    uint8_t *again;      /* [row]: 1 where the exact phase must compute the row */
} decode_work;

static size_t part_doubles(const phase *ph)
{
    return size_mul((size_t)ph->parts, (size_t)(ph->rows * ph->size));
}

static decode_work work_carve(const loam_problem *p, arena *pool)
{
    const bool solved = p->mechanism == LOAM_LLA;
    const size_t rows = solved ? (size_t)local_rows(p) : 0;
    size_t parts = 0;
    for (method how = GIVEN; how <= (solved ? EXACT : GIVEN); how++) {
        const phase ph = phase_of(p, how);
        parts = part_doubles(&ph) > parts ? part_doubles(&ph) : parts;
    }
    decode_work w;
    block blk;
    arena of_block = { 0 };
    block_carve(&blk, p, &of_block);
    w.block_bytes = of_block.used;
    w.blocks = arena_take(pool, (size_t)p->threads, w.block_bytes);
    w.parts = arena_take(pool, parts, sizeof(double));
    w.probes = arena_take(pool, size_mul(rows, (size_t)whole_vectors(p->dim_qk)), sizeof(float));
    w.info = arena_take(pool, rows, sizeof(loam_row_info));
    w.again = arena_take(pool, rows, 1);
    return w;
}

/* One call: keys first .. first + count - 1. The result is the partial state of every row in `states`, or, if
 * that is NULL, the outputs. */
typedef struct decode_call {
    const loam_problem *p;
    const loam_args *a;
    int64_t first, count;
    double *states;
    decode_work w;
} decode_call;

/* ------------------------------------------------------------------ one chunk */

static chunk chunk_of(const decode_call *call, const phase *ph, int64_t n)
{
    const loam_problem *p = call->p;
    const int64_t group = n / ph->per_head, rows = group_rows(p), row = n % ph->per_head * ph->rows;
    chunk c = { .s = local_seq_at(p, call->a, group / p->heads_kv),
                .h_kv = group % p->heads_kv,
                .row = row,
                .rows = rows - row < ph->rows ? rows - row : ph->rows,
                .index = group * rows + row,
                .first = call->first,
                .begin = INT64_MAX };
    for (int64_t r = 0; r < c.rows; r++) {
        int64_t lo, hi;
        local_visible(p, &c.s, (c.row + r) % p->len_q, &lo, &hi);
        if (lo < hi) {
            c.begin = lo < c.begin ? lo : c.begin;
            c.end = hi > c.end ? hi : c.end;
        }
    }
    c.end = clamp_to(c.end, call->first, call->first + call->count);
    c.begin = clamp_to(c.begin, call->first, c.end);
    return c;
}

/* A row of LLA is computed by GIVEN or by EXACT, never by both. */
static bool row_wanted(const decode_call *call, const phase *ph, int64_t row)
{
    const bool whole = call->p->mechanism != LOAM_LLA || ph->how == MOMENTS || call->states;
    return whole || (ph->how == EXACT) == (call->w.again[row] != 0);
}

static bool chunk_wanted(const decode_call *call, const phase *ph, const chunk *c)
{
    for (int64_t r = 0; r < c->rows; r++)
        if (row_wanted(call, ph, c->index + r)) return true;
    return false;
}

static void set_probes(block *blk, const decode_call *call)
{
    for (int64_t slot = 0; slot < blk->c.rows; slot++) {
        float *probe = blk->probe + slot * blk->stride;
        if (call->p->mechanism == LOAM_LLA) {
            memcpy(probe, call->w.probes + (blk->c.index + slot) * blk->stride,
                   (size_t)blk->stride * sizeof(float));
        } else if (call->p->mechanism == LOAM_PARALLAX) {
            load_padded(probe, &call->a->probe, blk, &blk->row[slot]);
        }
    }
}

/* The states of a chunk over one split. */
static void chunk_split(block *blk, const decode_call *call, const phase *ph, int64_t split, double *states)
{
    const int64_t step = split_keys(ph, blk->c.end - blk->c.begin), begin = blk->c.begin + split * step;
    const int64_t end = begin + step < blk->c.end ? begin + step : blk->c.end;
    for (int64_t r = 0; r < blk->c.rows; r++) {
        local_state_clear(&ph->p, states + r * ph->size);
        states[(r + 1) * ph->size - 1] = 0;
    }
    if (begin >= end) return;
    split_begin(blk, begin, end);
    switch (ph->how) {
    case GIVEN:
        set_probes(blk, call);
        given_split(blk, begin, end, states, ph->size);
        break;
    case MOMENTS: moments_split(blk, begin, end, states, ph->size); break;
    case EXACT: exact_split(blk, 0, begin, end, states); break;
    }
}

/* Stores the result of the merged state of one row: state, probe, or outputs. */
static void row_end(block *blk, const decode_call *call, const phase *ph, int64_t row, double *state)
{
    const loam_problem *p = call->p;
    const int64_t index = blk->c.index + row, in_group = blk->c.row + row;
    const int64_t h = blk->c.h_kv * (p->heads_q / p->heads_kv) + in_group / p->len_q, i = in_group % p->len_q;
    double *rho = blk->scratch + local_state_scratch(p);
    float *probe = call->w.probes + index * blk->stride;
    if (call->states) {
        memcpy(call->states + index * ph->size, state, (size_t)ph->size * sizeof(double));
    } else if (ph->how == MOMENTS) {
        call->w.again[index] = !moments_probe(&ph->p, call->a, &blk->c.s, h, i, state, blk->scratch, rho,
                                              &call->w.info[index]);
        for (int64_t c = 0; c < blk->stride; c++)
            probe[c] = c < p->dim_qk ? (float)rho[c] : 0;
    } else if (ph->how == GIVEN && p->mechanism == LOAM_LLA) {
        for (int64_t c = 0; c < p->dim_qk; c++)
            rho[c] = (double)probe[c];
        local_state_put(&ph->p, call->a, &blk->c.s, h, i, state, rho, call->w.info[index]);
    } else {
        local_state_finish(p, call->a, &blk->c.s, h, i, state, blk->scratch);
    }
}

/* Merges the states of the splits (row r of a split at parts + (split ph->rows + r) ph->size)
 * and finishes the rows. */
static void chunk_end(block *blk, const decode_call *call, const phase *ph, double *parts)
{
    const int64_t splits = split_count(ph, blk->c.end - blk->c.begin);
    for (int64_t r = 0; r < blk->c.rows; r++) {
        double *state = parts + r * ph->size;
        if (splits == 0) local_state_clear(&ph->p, state);
        for (int64_t split = 1; split < splits; split++) {
            const double *from = state + split * ph->rows * ph->size;
            if (ph->how == MOMENTS)
                moments_merge(&ph->p, state, from);
            else
                local_state_merge(&ph->p, state, from);
        }
        if (row_wanted(call, ph, blk->c.index + r)) row_end(blk, call, ph, r, state);
    }
}

/* ------------------------------------------------------------------ all chunks */

/* Sets the block to chunk n of the phase; returns whether the phase computes any of its rows. */
static bool block_begin(block *blk, const decode_call *call, const phase *ph, int64_t n)
{
    blk->c = chunk_of(call, ph, n);
    blk->hd.p = call->p, blk->hd.a = call->a, blk->hd.s = blk->c.s, blk->hd.h_kv = blk->c.h_kv;
    return chunk_wanted(call, ph, &blk->c);
}

/* Called by every thread of a parallel region. */
static void phase_run(block *blk, const decode_call *call, method how)
{
    const phase ph = phase_of(call->p, how);
    for (int64_t from = 0; from < ph.chunks; from += ph.wave) {
        const int64_t chunks = ph.chunks - from < ph.wave ? ph.chunks - from : ph.wave;
        const int64_t doubles = ph.splits * ph.rows * ph.size;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * ph.splits; task++) {
            const int64_t n = task / ph.splits, split = task % ph.splits;
            if (block_begin(blk, call, &ph, from + n))
                chunk_split(blk, call, &ph, split, call->w.parts + n * doubles + split * ph.rows * ph.size);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < chunks; n++)
            if (block_begin(blk, call, &ph, from + n)) chunk_end(blk, call, &ph, call->w.parts + n * doubles);
    }
}

static loam_status decode(decode_call call, loam_error *error)
{
    arena pool = { call.a->work, 0 };
    call.w = work_carve(call.p, &pool);
#pragma omp parallel num_threads(call.p->threads)
    {
        arena own = { call.w.blocks + call.w.block_bytes * (size_t)omp_get_thread_num(), 0 };
        block blk;
        block_carve(&blk, call.p, &own);
        if (call.p->mechanism != LOAM_LLA) {
            phase_run(&blk, &call, GIVEN);
        } else if (call.states) {
            phase_run(&blk, &call, EXACT);
        } else {
            phase_run(&blk, &call, MOMENTS);
            phase_run(&blk, &call, GIVEN);
            phase_run(&blk, &call, EXACT);
        }
    }
    return loam_succeed(error);
}

loam_status ISA(local_partial)(const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                               double *states, loam_error *error)
{
    return decode((decode_call){ .p = p, .a = a, .first = first, .count = count, .states = states }, error);
}

size_t LOCAL_JOIN(ISA(local_decode), work)(const loam_problem *p)
{
    arena pool = { 0 };
    work_carve(p, &pool);
    return pool.used;
}

loam_status ISA(local_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return decode((decode_call){ .p = p, .a = a, .count = p->len_kv }, error);
}
