/* SPDX-License-Identifier: MIT
 *
 * Decode on CPUs: few queries, many keys. The keys of a sequence are cut into splits that depend on their number
 * alone; each split reduces to a state per row (local_state.c), the states merge in order, and each row is then
 * solved from its state. The query heads that share a key-value head, and their queries, form chunks of rows that use a
 * tile of keys while it is in cache; a chunk is as large as a bound on its states allows. Lanes are channels here.
 *
 * Where there are at least as many chunks as threads, a thread takes whole chunks; else the threads share the splits of a
 * chunk. Both merge in the same order: the bits are the same.
 */
#include "src/local/local_tile.h"

#include <omp.h>

enum { SPLIT_KEYS = 1024, MOST_SPLITS = 32, CHUNK_ROWS = 64, CHUNK_DOUBLES = 1 << 15 };

/* Keys of a split: whole tiles, and no more splits than the workspace has room for. */
static int64_t split_keys(int64_t keys)
{
    const int64_t even = (keys + MOST_SPLITS - 1) / MOST_SPLITS, size = even > SPLIT_KEYS ? even : SPLIT_KEYS;
    return (size + TILE - 1) / TILE * TILE;
}

static int64_t split_count(int64_t keys)
{
    return keys > 0 ? (keys + split_keys(keys) - 1) / split_keys(keys) : 0;
}

typedef struct block {
    head x;               /* of the first query head of the group; its origin is not used */
    float *keys, *values; /* [TILE][dim_qk], [TILE][dim_v] */
    float *query, *probe; /* [dim_qk] of one row */
    double *kd, *vd;      /* [TILE][dim_qk], [TILE][dim_v]: centred, LLA */
    double *tile_state;   /* of one row */
    double *scratch;      /* of local_state_finish */
} block;

static void block_carve(block *k, const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, f = sizeof(float), f64 = sizeof(double);
    const bool solved = p->mechanism == LOAM_LLA;
    k->keys = arena_take(pool, TILE * d, f);
    k->values = arena_take(pool, TILE * dv, f);
    k->query = arena_take(pool, d, f);
    k->probe = arena_take(pool, d, f);
    k->kd = arena_take(pool, solved ? TILE * d : 0, f64);
    k->vd = arena_take(pool, solved ? TILE * dv : 0, f64);
    k->tile_state = arena_take(pool, local_state_doubles(p), f64);
    k->scratch = arena_take(pool, local_state_scratch(p), f64);
}

static size_t block_bytes(const loam_problem *p)
{
    block k;
    arena pool = { 0 };
    block_carve(&k, p, &pool);
    return pool.used;
}

static int64_t group_rows(const loam_problem *p) { return p->heads_q / p->heads_kv * p->len_q; }

static int64_t chunk_rows(const loam_problem *p)
{
    const int64_t fit = CHUNK_DOUBLES / (int64_t)local_state_doubles(p);
    return fit < 1 ? 1 : fit < CHUNK_ROWS ? fit : CHUNK_ROWS;
}

/* ------------------------------------------------------------------ one row, one tile */

/* The scores of the tile's keys, -inf where the row does not see them; their maximum. j: the key's place in the
 * sequence; row r of the tile. */
static float tile_scores(const block *k, int64_t h, int64_t i, int64_t j, int64_t stored, int64_t n,
                         float *restrict s)
{
    const loam_problem *p = k->x.p;
    head x = { .p = p, .a = k->x.a, .s = k->x.s, .h = h, .h_kv = k->x.h_kv };
    const scoring sc = scoring_of(&x);
    float bias[TILE], best = -INFINITY;
    int64_t lo, hi;
    local_visible(p, &x.s, i, &lo, &hi);
    load_bias(bias, &x, stored, n);
    for (int64_t r = 0; r < n; r++) {
        float product = 0;
        const float *key = k->keys + r * p->dim_qk;
        if (sc.rbf) {
#pragma omp simd reduction(+ : product)
            for (int64_t c = 0; c < p->dim_qk; c++) {
                product -= 0.5f * (k->query[c] - key[c]) * (k->query[c] - key[c]);
            }
        } else {
            product = dot(k->query, key, p->dim_qk);
        }
        s[r] = product;
    }
    for (int64_t r = n; r < TILE; r++) {
        s[r] = 0, bias[r] = 0;
    }
    for (int64_t r = 0; r < TILE; r += VL) {
        float distance[VL];
        vec factor;
        for (int64_t e = 0; e < VL; e++) {
            distance[e] = fabsf((float)(i + x.s.nk - x.s.nq - (j + r + e)));
        }
        v_store(s + r, score_of(&sc, v_load(s + r), v_load(distance), v_load(bias + r), &factor));
    }
    for (int64_t r = 0; r < n; r++) {
        s[r] = j + r >= lo && j + r < hi ? s[r] : -INFINITY;
        best = s[r] > best ? s[r] : best;
    }
    return best;
}

/* Weights exp(s - best) in place; their sum. */
static double tile_weights(float *restrict s, int64_t n, float best)
{
    double omega = 0;
    for (int64_t r = n; r < TILE; r++) {
        s[r] = -INFINITY;
    }
    for (int64_t r = 0; r < TILE; r += VL) {
        v_store(s + r, v_exp(v_load(s + r) - best));
    }
    for (int64_t r = 0; r < n; r++) {
        omega += (double)s[r];
    }
    return omega;
}

/* out[c] = sum_r w_r tile[r][c] / omega, gathered in float within the tile. */
static void tile_mean(double *restrict out, const float *restrict w, const float *restrict tile, int64_t n,
                      int64_t channels, double omega)
{
    float sum[LOAM_MAX_DIM] = { 0 };
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < channels; c++) {
            sum[c] += w[r] * tile[r * channels + c];
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        out[c] = (double)sum[c] / omega;
    }
}

/* Keys are not centred here: probe . k may be large against its spread. */
static double dot64(const float *restrict x, const float *restrict y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++) {
        sum += (double)x[c] * (double)y[c];
    }
    return sum;
}

/* Softmax and Parallax: vbar, and with a probe also tbar and sum w t' v'. */
static void tile_given(const block *k, const float *restrict w, int64_t n, double omega,
                       double *restrict state)
{
    const loam_problem *p = k->x.p;
    const int64_t dv = p->dim_v;
    const bool probed = p->mechanism == LOAM_PARALLAX;
    float sum[LOAM_MAX_DIM] = { 0 };
    double t[TILE], tbar = 0, *vbar = state + 2 + probed;
    for (int64_t r = 0; probed && r < n; r++) {
        t[r] = dot64(k->probe, k->keys + r * p->dim_qk, p->dim_qk);
        tbar += (double)w[r] * t[r] / omega;
    }
    tile_mean(vbar, w, k->values, n, dv, omega);
    if (!probed) {
        return;
    }
    state[2] = tbar;
    for (int64_t r = 0; r < n; r++) {
        const float weight = w[r] * (float)(t[r] - tbar);
        for (int64_t c = 0; c < dv; c++) {
            sum[c] += weight * (k->values[r * dv + c] - (float)vbar[c]);
        }
    }
    for (int64_t c = 0; c < dv; c++) {
        vbar[dv + c] = (double)sum[c];
    }
}

/* out[c] = weighted mean of the tile in float64; rows <- tile - mean */
static void centre(double *restrict rows, double *restrict mean, const float *restrict w,
                   const float *restrict tile, int64_t n, int64_t channels, double omega)
{
    for (int64_t c = 0; c < channels; c++) {
        mean[c] = 0;
    }
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < channels; c++) {
            mean[c] += (double)w[r] * (double)tile[r * channels + c];
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        mean[c] /= omega;
    }
    for (int64_t r = 0; r < TILE; r++) {
        for (int64_t c = 0; c < channels; c++) {
            rows[r * channels + c] = r < n ? (double)tile[r * channels + c] - mean[c] : 0;
        }
    }
}

/* out[c] += sum over four rows of x[e] rows[e][c] */
static void add_four(double *restrict out, const double x[4], const double *restrict rows, int64_t stride,
                     int64_t n)
{
    const double *r0 = rows, *r1 = rows + stride, *r2 = rows + 2 * stride, *r3 = rows + 3 * stride;
    for (int64_t c = 0; c < n; c++) {
        out[c] += x[0] * r0[c] + x[1] * r1[c] + x[2] * r2[c] + x[3] * r3[c];
    }
}

/* LLA: means and centred second moments, in float64. */
static void tile_solved(const block *k, const float *restrict w, int64_t n, double omega,
                        double *restrict state)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    double *kbar = state + 2, *vbar = kbar + d, *kk = vbar + dv, *vk = kk + d * (d + 1) / 2;
    centre(k->kd, kbar, w, k->keys, n, d, omega);
    centre(k->vd, vbar, w, k->values, n, dv, omega);
    memset(kk, 0, (size_t)(d * (d + 1) / 2 + dv * d) * sizeof(double));
    for (int64_t r = 0; r < n; r += 4) {
        double x[4];
        for (int64_t c = 0; c < d; c++) {
            for (int64_t e = 0; e < 4; e++) {
                x[e] = (r + e < n ? (double)w[r + e] : 0) * k->kd[(r + e) * d + c];
            }
            add_four(kk + c * (c + 1) / 2, x, k->kd + r * d, d, c + 1);
        }
        for (int64_t c = 0; c < dv; c++) {
            for (int64_t e = 0; e < 4; e++) {
                x[e] = (r + e < n ? (double)w[r + e] : 0) * k->vd[(r + e) * dv + c];
            }
            add_four(vk + c * d, x, k->kd + r * d, d, d);
        }
    }
}

/* ------------------------------------------------------------------ one split of a chunk */

static void load_row(block *k, int64_t h, int64_t i)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    load_floats(k->query, a->q.data, p->dtype, LOCAL_AT(a->q, k->x.s.b, h, i), p->dim_qk);
    if (p->mechanism == LOAM_PARALLAX) {
        load_floats(k->probe, a->probe.data, p->dtype, LOCAL_AT(a->probe, k->x.s.b, h, i), p->dim_qk);
    }
}

/* Adds the tile of keys j .. j + n - 1 (row `stored` of k is key j) to the state of one row. */
static void row_tile(block *k, int64_t h, int64_t i, int64_t j, int64_t stored, int64_t n, double *state)
{
    float w[TILE];
    load_row(k, h, i);
    const float best = tile_scores(k, h, i, j, stored, n, w);
    if (!(best > -INFINITY)) {
        return;
    }
    const double omega = tile_weights(w, n, best);
    k->tile_state[0] = (double)best;
    k->tile_state[1] = omega;
    if (k->x.p->mechanism == LOAM_LLA) {
        tile_solved(k, w, n, omega, k->tile_state);
    } else {
        tile_given(k, w, n, omega, k->tile_state);
    }
    local_state_merge(k->x.p, state, k->tile_state);
}

/* Rows of one key-value head: row r of the group is query r % len_q of its query head r / len_q. */
typedef struct chunk {
    int64_t b, h_kv, row, rows;
    int64_t first, begin, end; /* row 0 of k is key `first`; keys begin .. end - 1 count */
} chunk;

static int64_t chunk_count(const loam_problem *p)
{
    return p->batch * p->heads_kv * ((group_rows(p) + chunk_rows(p) - 1) / chunk_rows(p));
}

/* Chunk n over keys first .. first + count - 1; the block's head becomes its. */
static chunk chunk_begin(block *k, const loam_problem *p, const loam_args *a, int64_t n, int64_t first,
                         int64_t count)
{
    const int64_t per_head = (group_rows(p) + chunk_rows(p) - 1) / chunk_rows(p), group = n / per_head;
    chunk c = { .b = group / p->heads_kv,
                .h_kv = group % p->heads_kv,
                .row = n % per_head * chunk_rows(p),
                .first = first };
    const int64_t left = group_rows(p) - c.row;
    k->x.p = p, k->x.a = a, k->x.s = local_seq_at(p, a, c.b), k->x.h_kv = c.h_kv;
    k->x.h = c.h_kv * (p->heads_q / p->heads_kv);
    c.rows = left < chunk_rows(p) ? left : chunk_rows(p);
    c.end = first + count < k->x.s.nk ? first + count : k->x.s.nk;
    c.begin = first < c.end ? first : c.end;
    return c;
}

/* The states of a chunk over keys begin .. end - 1. */
static void split_states(block *k, const chunk *c, int64_t begin, int64_t end, double *states)
{
    const loam_problem *p = k->x.p;
    const int64_t size = (int64_t)local_state_doubles(p), token = k->x.s.k0 - c->first;
    for (int64_t row = 0; row < c->rows; row++) {
        local_state_clear(p, states + row * size);
    }
    for (int64_t j = begin; j < end; j += TILE) {
        const int64_t n = end - j < TILE ? end - j : TILE;
        load_rows(k->keys, &k->x.a->k, p->dtype, k->x.s.b, k->x.h_kv, token + j, n, p->dim_qk);
        load_rows(k->values, &k->x.a->v, p->dtype, k->x.s.b, k->x.h_kv, token + j, n, p->dim_v);
        for (int64_t row = 0; row < c->rows; row++) {
            const int64_t h = k->x.h + (c->row + row) / p->len_q, i = (c->row + row) % p->len_q;
            row_tile(k, h, i, j, j - c->first, n, states + row * size);
        }
    }
}

static void merge_rows(const loam_problem *p, const chunk *c, double *into, const double *from)
{
    const int64_t size = (int64_t)local_state_doubles(p);
    for (int64_t row = 0; row < c->rows; row++) {
        local_state_merge(p, into + row * size, from + row * size);
    }
}

static void finish_rows(block *k, const chunk *c, const double *states)
{
    const loam_problem *p = k->x.p;
    const int64_t size = (int64_t)local_state_doubles(p);
    for (int64_t row = 0; row < c->rows; row++) {
        local_state_finish(p, k->x.a, &k->x.s, k->x.h + (c->row + row) / p->len_q, (c->row + row) % p->len_q,
                           states + row * size, k->scratch);
    }
}

/* ------------------------------------------------------------------ all chunks */

/* The workspace: a block and two chunks of states for each thread, and the states of a chunk for each split. */
typedef struct decode_work {
    char *blocks;
    size_t block_bytes;
    int64_t chunk_doubles;
    double *parts, *states;
} decode_work;

static decode_work work_carve(const loam_problem *p, arena *pool)
{
    const size_t threads = (size_t)p->threads, splits = (size_t)split_count(p->len_kv);
    const size_t rows = (size_t)chunk_rows(p), size = rows * local_state_doubles(p);
    decode_work w;
    w.block_bytes = block_bytes(p);
    w.chunk_doubles = (int64_t)size;
    w.blocks = arena_take(pool, threads, w.block_bytes);
    w.parts = arena_take(pool, size_mul(size, splits > threads ? splits : threads), sizeof(double));
    w.states = arena_take(pool, size_mul(size, threads), sizeof(double));
    return w;
}

static block thread_block(const loam_problem *p, const decode_work *w)
{
    arena pool = { w->blocks + w->block_bytes * (size_t)omp_get_thread_num(), 0 };
    block k;
    block_carve(&k, p, &pool);
    return k;
}

/* What a call is about: keys first .. first + count - 1, into `states` of all rows, or, where that is NULL, all the way
 * to the outputs. */
typedef struct decode_call {
    const loam_problem *p;
    const loam_args *a;
    int64_t first, count;
    double *states;
} decode_call;

/* Where the states of a chunk go: `own` serves until the rows are finished. */
static double *chunk_states(const decode_call *call, const chunk *c, double *own)
{
    const int64_t row = (c->b * call->p->heads_kv + c->h_kv) * group_rows(call->p) + c->row;
    return call->states ? call->states + row * (int64_t)local_state_doubles(call->p) : own;
}

static void decode_by_chunks(const decode_call *call, const decode_work *w)
{
    const loam_problem *p = call->p;
#pragma omp parallel num_threads(p->threads)
    {
        block k = thread_block(p, w);
        double *part = w->parts + w->chunk_doubles * omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < chunk_count(p); n++) {
            const chunk c = chunk_begin(&k, p, call->a, n, call->first, call->count);
            const int64_t step = split_keys(c.end - c.begin);
            double *states = chunk_states(call, &c, w->states + w->chunk_doubles * omp_get_thread_num());
            split_states(&k, &c, c.begin, c.begin + step < c.end ? c.begin + step : c.end, states);
            for (int64_t j = c.begin + step; j < c.end; j += step) {
                split_states(&k, &c, j, j + step < c.end ? j + step : c.end, part);
                merge_rows(p, &c, states, part);
            }
            if (!call->states) {
                finish_rows(&k, &c, states);
            }
        }
    }
}

static void decode_by_splits(const decode_call *call, const decode_work *w)
{
    const loam_problem *p = call->p;
    for (int64_t n = 0; n < chunk_count(p); n++) {
        block whole = thread_block(p, w);
        const chunk c = chunk_begin(&whole, p, call->a, n, call->first, call->count);
        const int64_t step = split_keys(c.end - c.begin), splits = split_count(c.end - c.begin);
        double *states = chunk_states(call, &c, w->states);
#pragma omp parallel num_threads(p->threads)
        {
            block k = thread_block(p, w);
            (void)chunk_begin(&k, p, call->a, n, call->first, call->count);
#pragma omp for schedule(dynamic, 1)
            for (int64_t split = 0; split < splits; split++) {
                const int64_t j = c.begin + split * step;
                split_states(&k, &c, j, j + step < c.end ? j + step : c.end,
                             w->parts + split * w->chunk_doubles);
            }
        }
        for (int64_t row = 0; row < c.rows; row++) {
            local_state_clear(p, states + row * (int64_t)local_state_doubles(p));
        }
        for (int64_t split = 0; split < splits; split++) {
            merge_rows(p, &c, states, w->parts + split * w->chunk_doubles);
        }
        if (!call->states) {
            finish_rows(&whole, &c, states);
        }
    }
}

static loam_status decode(const decode_call *call, loam_error *error)
{
    arena pool = { call->a->work, 0 };
    const decode_work w = work_carve(call->p, &pool);
    if (call->p->len_q > 0 && chunk_count(call->p) >= call->p->threads) {
        decode_by_chunks(call, &w);
    } else if (call->p->len_q > 0) {
        decode_by_splits(call, &w);
    }
    return loam_succeed(error);
}

loam_status ISA(local_partial)(const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                               double *states, loam_error *error)
{
    const decode_call call = { p, a, first, count, states };
    return decode(&call, error);
}

size_t LOCAL_JOIN(ISA(local_decode), work)(const loam_problem *p)
{
    arena pool = { 0 };
    work_carve(p, &pool);
    return pool.used;
}

loam_status ISA(local_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const decode_call call = { p, a, 0, p->len_kv, NULL };
    return decode(&call, error);
}
