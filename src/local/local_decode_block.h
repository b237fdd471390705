/* SPDX-License-Identifier: MIT
 *
 * Decode on CPUs: chunks of rows, what a thread needs to work on one, and the scores of its rows.
 *
 * A chunk is some rows of one key-value head: its query heads and their queries, which so share each tile of keys while it
 * is in cache. Its keys are cut into splits; within a split keys are held relative to the mean of its first keys, so that
 * keys far from zero cost no precision.
 */
#ifndef LOAM_LOCAL_LOCAL_DECODE_BLOCK_H
#define LOAM_LOCAL_LOCAL_DECODE_BLOCK_H

#include "src/local/local_tile.h"
#include "src/simd/table.h"

enum { CHUNK_ROWS = 64, SHARE_ROWS = 4, ORIGIN_KEYS = 64, MOST_KEYS = 256 };

/* Row r of a group is query r % len_q of its query head r / len_q. */
static inline int64_t group_rows(const loam_problem *p) { return p->heads_q / p->heads_kv * p->len_q; }

typedef struct chunk {
    local_seq s;
    int64_t h_kv, row, rows; /* rows row .. row + rows - 1 of the group */
    int64_t index;           /* of the first among all rows */
    int64_t first;           /* row 0 of k is key `first` */
    int64_t begin, end;      /* the keys that count */
} chunk;

typedef struct decode_row {
    int64_t h, i, lo, hi;
    scoring sc;
    float constant; /* x of the origin, where the soft cap must see it; else */
    double dropped; /* scores are too low by this */
    float decay_hi, decay_lo;
} decode_row;

typedef struct block {
    head x; /* its h is that of the row at hand; its origin is not used */
    chunk c;
    decode_row row[CHUNK_ROWS];
    int64_t stride, stride_v; /* of float rows of dim_qk and dim_v channels */
    int64_t keys, gram_keys;  /* of a tile, and of one where the moments of keys are wanted */
    float *origin;            /* [stride] */
    float *query, *probe;     /* [CHUNK_ROWS][stride] */
    float *w;    /* [2 SHARE_ROWS][keys]: weights of rows, then weights times products with the probe */
    float *bias; /* [MOST_KEYS] */
    float *decay_hi, *decay_lo; /* likewise */
    float *sums;                /* [2 SHARE_ROWS][stride or stride_v] */
    float *scaled;              /* [gram_keys][stride]; this and the rest: LLA */
    double *gram, *mean;        /* [stride][stride], [stride] */
    float *tile_k, *tile_v;     /* [TILE][dim_qk], [TILE][dim_v]: of the exact sums, as the rest */
    double *kd, *vd;            /* the same, centred */
    double *tile_state;
    double *scratch; /* of local_state_probe, and a probe */
} block;

static inline int64_t clamp_to(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Tiles of 64 KiB of float keys, and of 32 KiB where they are read again and again; whole vectors. */
static inline void block_carve(block *k, const loam_problem *p, arena *pool)
{
    const int64_t d = whole_vectors(p->dim_qk), dv = whole_vectors(p->dim_v), wider = d > dv ? d : dv;
    const size_t f = sizeof(float), f64 = sizeof(double), tile = TILE;
    const size_t solved = p->mechanism == LOAM_LLA, rows = (size_t)clamp_to(group_rows(p), 1, CHUNK_ROWS);
    k->stride = d, k->stride_v = dv;
    k->keys = clamp_to((1 << 14) / wider / 64 * 64, 64, MOST_KEYS);
    k->gram_keys = clamp_to((1 << 13) / d / 16 * 16, 64, 128);
    const size_t sizes = (size_t)(2 * SHARE_ROWS * wider), keys = (size_t)k->keys, sd = (size_t)d;
    k->origin = arena_take(pool, sd, f);
    k->query = arena_take(pool, rows * sd, f);
    k->probe = arena_take(pool, p->mechanism == LOAM_SOFTMAX ? 0 : rows * sd, f);
    k->w = arena_take(pool, 2 * SHARE_ROWS * keys, f);
    k->bias = arena_take(pool, MOST_KEYS, f);
    k->decay_hi = arena_take(pool, MOST_KEYS, f);
    k->decay_lo = arena_take(pool, MOST_KEYS, f);
    k->sums = arena_take(pool, sizes, f);
    k->scaled = arena_take(pool, solved * (size_t)k->gram_keys * sd, f);
    k->gram = arena_take(pool, solved * sd * sd, f64);
    k->mean = arena_take(pool, solved * sd, f64);
    k->tile_k = arena_take(pool, solved * tile * (size_t)p->dim_qk, f);
    k->tile_v = arena_take(pool, solved * tile * (size_t)p->dim_v, f);
    k->kd = arena_take(pool, solved * tile * (size_t)p->dim_qk, f64);
    k->vd = arena_take(pool, solved * tile * (size_t)p->dim_v, f64);
    k->tile_state = arena_take(pool, solved * local_state_doubles(p), f64);
    k->scratch = arena_take(pool, local_state_scratch(p) + (size_t)p->dim_qk, f64);
}

/* Keys j .. j + n - 1 of the chunk, or their values, where they lie. */
static inline table rows_of(const block *k, const loam_const_view *view, int64_t channels, int64_t j,
                            int64_t n)
{
    const loam_dtype dtype = k->x.p->dtype;
    const int64_t bytes = (int64_t)dtype_bytes(dtype),
                  at = LOCAL_AT(*view, k->c.s.b, k->c.h_kv, j - k->c.first);
    return (table){ (const char *)view->data + at * bytes, view->token * bytes, n, channels, dtype };
}

static inline table keys_of(const block *k, int64_t j, int64_t n)
{
    return rows_of(k, &k->x.a->k, k->x.p->dim_qk, j, n);
}

static inline table values_of(const block *k, int64_t j, int64_t n)
{
    return rows_of(k, &k->x.a->v, k->x.p->dim_v, j, n);
}

/* ------------------------------------------------------------------ the rows of a split */

static inline double dot64(const float *restrict x, const float *restrict y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++) {
        sum += (double)x[c] * (double)y[c];
    }
    return sum;
}

/* The mean of the first keys of a split, as far as every row sees them that sees any of the split: no result depends on
 * keys of the future. */
static inline void set_origin(block *k, int64_t begin, int64_t end)
{
    float weight[ORIGIN_KEYS];
    int64_t n = end - begin < ORIGIN_KEYS ? end - begin : ORIGIN_KEYS;
    for (int64_t r = 0; r < k->c.rows; r++) {
        const int64_t seen = k->row[r].hi - begin;
        n = seen > 0 && seen < n ? seen : n;
    }
    for (int64_t e = 0; e < n; e++) {
        weight[e] = 1 / (float)n;
    }
    const table t = keys_of(k, begin, n);
    table_weigh(&t, 1, (table_rows){ weight, k->origin, ORIGIN_KEYS, k->stride });
}

static inline void load_padded(float *restrict to, const loam_const_view *view, const block *k,
                               const decode_row *r)
{
    const loam_problem *p = k->x.p;
    memset(to, 0, (size_t)k->stride * sizeof(float));
    load_floats(to, view->data, p->dtype, LOCAL_AT(*view, k->c.s.b, r->h, r->i), p->dim_qk);
}

static inline void set_query(block *k, int64_t slot)
{
    const loam_problem *p = k->x.p;
    decode_row *r = &k->row[slot];
    float *query = k->query + slot * k->stride;
    load_padded(query, &k->x.a->q, k, r);
    r->constant = 0, r->dropped = 0;
    if (r->sc.rbf) {
        return;
    }
    const double x = fmin(fmax(dot64(query, k->origin, p->dim_qk), (double)-SCORE_LIMIT),
                          (double)SCORE_LIMIT);
    if (r->sc.capped) {
        r->constant = (float)x;
    } else {
        r->dropped = fmin(fmax(p->scale * x, (double)-SCORE_LIMIT), (double)SCORE_LIMIT);
    }
}

/* Makes the rows of the chunk ready for keys begin .. end - 1, of which there is at least one. */
static inline void split_begin(block *k, int64_t begin, int64_t end)
{
    const loam_problem *p = k->x.p;
    for (int64_t slot = 0; slot < k->c.rows; slot++) {
        decode_row *r = &k->row[slot];
        const int64_t row = k->c.row + slot;
        r->h = k->c.h_kv * (p->heads_q / p->heads_kv) + row / p->len_q, r->i = row % p->len_q;
        local_visible(p, &k->c.s, r->i, &r->lo, &r->hi);
        k->x.h = r->h;
        r->sc = scoring_of(&k->x);
        load_decay(&r->decay_hi, &r->decay_lo, &k->x, local_position(&k->c.s, r->i), 1);
    }
    set_origin(k, begin, end);
    for (int64_t slot = 0; slot < k->c.rows; slot++) {
        set_query(k, slot);
    }
}

/* ------------------------------------------------------------------ scores and weights of one row on one tile */

/* s: products with keys j .. j + n - 1 become scores, -inf where the row does not see the key and up to the next whole
 * vector. Their maximum. */
static inline float tile_scores(block *k, const decode_row *r, int64_t j, int64_t n, float *restrict s)
{
    const vmask lo = v_set_int((int32_t)clamp_to(r->lo - j, 0, n)),
                hi = v_set_int((int32_t)clamp_to(r->hi - j, 0, n));
    const float at = (float)(r->i + k->c.s.nk - k->c.s.nq - j);
    const vec lane = __builtin_convertvector(v_iota(), vec);
    vec top = v_set(-INFINITY);
    if (r->sc.biased) {
        k->x.h = r->h;
        load_bias(k->bias, &k->x, j - k->c.first, n);
        load_decay(k->decay_hi, k->decay_lo, &k->x, j, n);
    }
    for (int64_t e = 0; e < n; e += VL) {
        const vmask place = v_iota() + (int32_t)e, seen = (place >= lo) & (place < hi);
        vec factor;
        vec bias = r->sc.biased ? v_load(k->bias + e) : v_set(0);
        if (r->sc.decayed) {
            bias += decay_between(v_set(r->decay_hi), v_set(r->decay_lo), v_load(k->decay_hi + e),
                                  v_load(k->decay_lo + e));
        }
        const vec score = score_of(&r->sc, v_load(s + e) + r->constant, v_abs((at - (float)e) - lane), bias,
                                   &factor);
        const vec masked = v_select(seen, score, v_set(-INFINITY));
        v_store(s + e, masked);
        top = v_max(masked, top);
    }
    return v_top(top);
}

/* s <- exp(half (s - best)), and the sum of exp(s - best); half is 1 or 1/2. */
static inline double tile_weights(float *restrict s, int64_t n, float best, const bool root)
{
    vec omega = v_set(0);
    for (int64_t e = 0; e < n; e += VL) {
        const vec z = v_load(s + e) - best, w = v_exp(root ? 0.5f * z : z);
        omega += root ? w * w : w;
        v_store(s + e, w);
    }
    return (double)v_sum(omega);
}

#endif
