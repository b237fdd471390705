/* SPDX-License-Identifier: MIT
 *
 * Decode on CPUs: few queries, many keys. The keys of a sequence are cut into splits that depend on their number
 * alone; each split reduces to a state per row (local_state.c), the states merge in order, and each row is then
 * solved from its state. All query heads that share a key-value head, and all queries, use a tile of keys while
 * it is in cache, so the cache is read once. Lanes are channels here.
 *
 * Where there are at least as many key-value heads as threads, a thread takes whole heads; else the threads
 * share the splits of a head. Both merge in the same order: the bits are the same.
 */
#include "src/local/local_tile.h"

#include <omp.h>

enum { SPLIT_KEYS = 1024, MOST_SPLITS = 32 };

/* Keys of a split: whole tiles, so that the tiles of a sequence are the same for any slice of its keys. */
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

/* ------------------------------------------------------------------ one split of a key-value head */

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

static void block_begin(block *k, const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv)
{
    k->x.p = p, k->x.a = a, k->x.s = *s, k->x.h_kv = h_kv, k->x.h = h_kv * (p->heads_q / p->heads_kv);
}

/* The states of the group's rows over keys begin .. end - 1, where row 0 of k is key `first`. */
static void split_states(block *k, int64_t first, int64_t begin, int64_t end, double *states)
{
    const loam_problem *p = k->x.p;
    const int64_t group = p->heads_q / p->heads_kv, size = (int64_t)local_state_doubles(p),
                  token = k->x.s.k0 - first;
    for (int64_t row = 0; row < group_rows(p); row++) {
        local_state_clear(p, states + row * size);
    }
    for (int64_t j = begin; j < end; j += TILE) {
        const int64_t n = end - j < TILE ? end - j : TILE;
        load_rows(k->keys, &k->x.a->k, p->dtype, k->x.s.b, k->x.h_kv, token + j, n, p->dim_qk);
        load_rows(k->values, &k->x.a->v, p->dtype, k->x.s.b, k->x.h_kv, token + j, n, p->dim_v);
        for (int64_t row = 0; row < group * k->x.s.nq; row++) {
            const int64_t h = k->x.h + row / k->x.s.nq, i = row % k->x.s.nq;
            row_tile(k, h, i, j, j - first, n, states + row * size);
        }
    }
}

/* ------------------------------------------------------------------ all splits of all heads */

/* Which keys of a sequence a call is about. */
typedef struct key_range {
    int64_t first, begin, end; /* row 0 of k is key `first`; keys begin .. end - 1 count */
} key_range;

static key_range range_of(const local_seq *s, int64_t first, int64_t count)
{
    const int64_t end = first + count < s->nk ? first + count : s->nk;
    return (key_range){ first, first < end ? first : end, end };
}

static void merge_rows(const loam_problem *p, double *into, const double *from)
{
    const int64_t size = (int64_t)local_state_doubles(p);
    for (int64_t row = 0; row < group_rows(p); row++) {
        local_state_merge(p, into + row * size, from + row * size);
    }
}

/* One key-value head by one thread; `part` holds the states of one split. */
static void head_states(block *k, const key_range *r, double *part, double *states)
{
    const int64_t step = split_keys(r->end - r->begin);
    split_states(k, r->first, r->begin, r->begin + step < r->end ? r->begin + step : r->end, states);
    for (int64_t j = r->begin + step; j < r->end; j += step) {
        split_states(k, r->first, j, j + step < r->end ? j + step : r->end, part);
        merge_rows(k->x.p, states, part);
    }
}

/* The workspace: a block for each thread, the states of a split of a group for each thread or each split, and the
 * states of all rows. */
typedef struct decode_work {
    char *blocks;
    size_t block_bytes;
    double *parts, *states;
    int64_t part_doubles;
} decode_work;

static decode_work work_carve(const loam_problem *p, arena *pool)
{
    const size_t size = local_state_doubles(p), group = size_mul(size, (size_t)group_rows(p));
    const int64_t splits = split_count(p->len_kv), parts = splits > p->threads ? splits : p->threads;
    decode_work w;
    w.block_bytes = block_bytes(p);
    w.blocks = arena_take(pool, (size_t)p->threads, w.block_bytes);
    w.parts = arena_take(pool, size_mul(group, (size_t)parts), sizeof(double));
    w.states = arena_take(pool, size_mul(size, (size_t)local_rows(p)), sizeof(double));
    w.part_doubles = (int64_t)group;
    return w;
}

static block thread_block(const loam_problem *p, const decode_work *w)
{
    arena pool = { w->blocks + w->block_bytes * (size_t)omp_get_thread_num(), 0 };
    block k;
    block_carve(&k, p, &pool);
    return k;
}

static void states_by_heads(const loam_problem *p, const loam_args *a, const decode_work *w, int64_t first,
                            int64_t count, double *states)
{
#pragma omp parallel num_threads(p->threads)
    {
        block k = thread_block(p, w);
        double *part = w->parts + w->part_doubles * omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < p->batch * p->heads_kv; n++) {
            const local_seq s = local_seq_at(p, a, n / p->heads_kv);
            const key_range r = range_of(&s, first, count);
            block_begin(&k, p, a, &s, n % p->heads_kv);
            head_states(&k, &r, part, states + n * w->part_doubles);
        }
    }
}

static void states_by_splits(const loam_problem *p, const loam_args *a, const decode_work *w, int64_t first,
                             int64_t count, double *states)
{
    for (int64_t n = 0; n < p->batch * p->heads_kv; n++) {
        const local_seq s = local_seq_at(p, a, n / p->heads_kv);
        const key_range r = range_of(&s, first, count);
        const int64_t step = split_keys(r.end - r.begin), splits = split_count(r.end - r.begin);
        double *into = states + n * w->part_doubles;
#pragma omp parallel num_threads(p->threads)
        {
            block k = thread_block(p, w);
            block_begin(&k, p, a, &s, n % p->heads_kv);
#pragma omp for schedule(dynamic, 1)
            for (int64_t split = 0; split < splits; split++) {
                const int64_t j = r.begin + split * step;
                split_states(&k, first, j, j + step < r.end ? j + step : r.end,
                             w->parts + split * w->part_doubles);
            }
        }
        for (int64_t row = 0; row < group_rows(p); row++) {
            local_state_clear(p, into + row * (int64_t)local_state_doubles(p));
        }
        for (int64_t split = 0; split < splits; split++) {
            merge_rows(p, into, w->parts + split * w->part_doubles);
        }
    }
}

/* Row n * group_rows + r of the states is row r of the n-th key-value head, which is row local_row. */
static void all_states(const loam_problem *p, const loam_args *a, const decode_work *w, int64_t first,
                       int64_t count, double *states)
{
    if (p->batch * p->heads_kv >= p->threads) {
        states_by_heads(p, a, w, first, count, states);
    } else {
        states_by_splits(p, a, w, first, count, states);
    }
}

loam_status ISA(local_partial)(const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                               double *states, loam_error *error)
{
    arena pool = { a->work, 0 };
    const decode_work w = work_carve(p, &pool);
    all_states(p, a, &w, first, count, states);
    return loam_succeed(error);
}

size_t LOCAL_JOIN(ISA(local_decode), work)(const loam_problem *p)
{
    arena pool = { 0 };
    work_carve(p, &pool);
    return pool.used;
}

loam_status ISA(local_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t size = (int64_t)local_state_doubles(p);
    arena pool = { a->work, 0 };
    const decode_work w = work_carve(p, &pool);
    all_states(p, a, &w, 0, p->len_kv, w.states);
#pragma omp parallel num_threads(p->threads)
    {
        block k = thread_block(p, &w);
#pragma omp for schedule(dynamic, 1)
        for (int64_t row = 0; row < local_rows(p); row++) {
            const int64_t h = row / p->len_q % p->heads_q;
            const local_seq s = local_seq_at(p, a, row / p->len_q / p->heads_q);
            local_state_finish(p, a, &s, h, row % p->len_q, w.states + row * size, k.scratch);
        }
    }
    return loam_succeed(error);
}
