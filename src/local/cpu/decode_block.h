/* SPDX-License-Identifier: MIT
 *
 * Decode on CPUs: chunks of rows, the scratch of a thread for one chunk, and the scores of its rows.
 *
 * A chunk is up to CHUNK_ROWS rows of one key-value head: queries of its query heads, which share each tile
 * of keys while the tile is in cache. The keys of a chunk are cut into splits. Within a split keys are held
 * relative to the mean of its first keys (the origin), so that keys far from zero cost no precision.
 */
#ifndef LOAM_LOCAL_CPU_DECODE_BLOCK_H
#define LOAM_LOCAL_CPU_DECODE_BLOCK_H

#include "src/local/cpu/tile.h"
#include "src/simd/table.h"

enum { CHUNK_ROWS = 64, SHARE_ROWS = 4, ORIGIN_KEYS = 64, MOST_KEYS = 256 };

/* Row r of a group is query r % len_q of its query head r / len_q. */
static inline int64_t group_rows(const loam_problem *p) { return p->heads_q / p->heads_kv * p->len_q; }

typedef struct chunk {
    local_seq s;
    int64_t h_kv, row, rows; /* rows row .. row + rows - 1 of the group */
    int64_t index;           /* of the first row among all rows */
    int64_t first;           /* the key that row 0 of args.k holds */
    int64_t begin, end;      /* the keys that the chunk's rows see */
} chunk;

typedef struct decode_row {
    int64_t h, i, lo, hi;
    scoring sc;
    float constant; /* x of the origin, if a map needs the complete x; else */
    double dropped; /* the constant that scores leave out */
    float decay_hi, decay_lo;
} decode_row;

typedef struct block {
    head hd; /* its h is that of the current row; its origin is not used */
    chunk c;
    decode_row row[CHUNK_ROWS];
    int64_t stride, stride_v; /* of float rows of dim_qk and dim_v channels */
    int64_t keys, gram_keys;  /* keys of a tile; of a tile for the moments of LLA */
    float *origin;            /* [stride] */
    float *query, *probe;     /* [CHUNK_ROWS][stride] */
    float *w;    /* [2 SHARE_ROWS][keys]: weights of rows, then weights times the products with the probe */
    float *bias; /* [MOST_KEYS] */
    float *decay_hi, *decay_lo; /* [MOST_KEYS] each */
    float *sums;                /* [2 SHARE_ROWS][stride or stride_v] */
    float *scaled;              /* [gram_keys][stride]; from here on only for LLA */
    double *gram, *mean;        /* [stride][stride], [stride] */
    float *tile_k,
        *tile_v;     /* [TILE_KEYS][dim_qk], [TILE_KEYS][dim_v]; from here on only for the exact phase */
    double *kd, *vd; /* the same, centred */
    double *tile_state;
    double *scratch; /* of local_state_probe, and a probe */
} block;

static inline int64_t clamp_to(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Tiles hold 64 KiB of float keys, or 32 KiB where each tile is read many times; they are whole vectors. */
static inline void block_carve(block *blk, const loam_problem *p, arena *pool)
{
    const int64_t d = whole_vectors(p->dim_qk), dv = whole_vectors(p->dim_v), wider = d > dv ? d : dv;
    const size_t f = sizeof(float), f64 = sizeof(double), tile = TILE_KEYS;
    const size_t solved = p->mechanism == LOAM_LLA, rows = (size_t)clamp_to(group_rows(p), 1, CHUNK_ROWS);
    blk->stride = d, blk->stride_v = dv;
    blk->keys = clamp_to((1 << 14) / wider / 64 * 64, 64, MOST_KEYS);
    blk->gram_keys = clamp_to((1 << 13) / d / 16 * 16, 64, 128);
    const size_t sizes = (size_t)(2 * SHARE_ROWS * wider), keys = (size_t)blk->keys, sd = (size_t)d;
    blk->origin = arena_take(pool, sd, f);
    blk->query = arena_take(pool, rows * sd, f);
    blk->probe = arena_take(pool, p->mechanism == LOAM_SOFTMAX ? 0 : rows * sd, f);
    blk->w = arena_take(pool, 2 * SHARE_ROWS * keys, f);
    blk->bias = arena_take(pool, MOST_KEYS, f);
    blk->decay_hi = arena_take(pool, MOST_KEYS, f);
    blk->decay_lo = arena_take(pool, MOST_KEYS, f);
    blk->sums = arena_take(pool, sizes, f);
    blk->scaled = arena_take(pool, solved * (size_t)blk->gram_keys * sd, f);
    blk->gram = arena_take(pool, solved * sd * sd, f64);
    blk->mean = arena_take(pool, solved * sd, f64);
    blk->tile_k = arena_take(pool, solved * tile * (size_t)p->dim_qk, f);
    blk->tile_v = arena_take(pool, solved * tile * (size_t)p->dim_v, f);
    blk->kd = arena_take(pool, solved * tile * (size_t)p->dim_qk, f64);
    blk->vd = arena_take(pool, solved * tile * (size_t)p->dim_v, f64);
    blk->tile_state = arena_take(pool, solved * local_state_doubles(p), f64);
    blk->scratch = arena_take(pool, local_state_scratch(p) + (size_t)p->dim_qk, f64);
}

/* Rows j .. j + n - 1 of the chunk's keys or values, in place. */
static inline table rows_of(const block *blk, const loam_const_view *view, int64_t channels, int64_t j,
                            int64_t n)
{
    const loam_dtype dtype = blk->hd.p->dtype;
    const int64_t bytes = (int64_t)dtype_bytes(dtype),
                  at = LOCAL_AT(*view, blk->c.s.b, blk->c.h_kv, j - blk->c.first);
    return (table){ (const char *)view->data + at * bytes, view->token * bytes, n, channels, dtype };
}

static inline table keys_of(const block *blk, int64_t j, int64_t n)
{
    return rows_of(blk, &blk->hd.a->k, blk->hd.p->dim_qk, j, n);
}

static inline table values_of(const block *blk, int64_t j, int64_t n)
{
    return rows_of(blk, &blk->hd.a->v, blk->hd.p->dim_v, j, n);
}

/* ------------------------------------------------------------------ the rows of a split */

static inline double dot64(const float *restrict x, const float *restrict y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

/* origin <- the mean of the first keys of a split that every row with keys in the split sees: so no result
 * depends on later keys. */
static inline void set_origin(block *blk, int64_t begin, int64_t end)
{
    float weight[ORIGIN_KEYS];
    int64_t n = end - begin < ORIGIN_KEYS ? end - begin : ORIGIN_KEYS;
    for (int64_t r = 0; r < blk->c.rows; r++) {
        const int64_t seen = blk->row[r].hi - begin;
        n = seen > 0 && seen < n ? seen : n;
    }
    for (int64_t e = 0; e < n; e++)
        weight[e] = 1 / (float)n;
    const table t = keys_of(blk, begin, n);
    table_weigh(&t, 1, (table_rows){ weight, blk->origin, ORIGIN_KEYS, blk->stride });
}

static inline void load_padded(float *restrict to, const loam_const_view *view, const block *blk,
                               const decode_row *r)
{
    const loam_problem *p = blk->hd.p;
    memset(to, 0, (size_t)blk->stride * sizeof(float));
    load_floats(to, view->data, p->dtype, LOCAL_AT(*view, blk->c.s.b, r->h, r->i), p->dim_qk);
}

static inline void set_query(block *blk, int64_t slot)
{
    const loam_problem *p = blk->hd.p;
    decode_row *r = &blk->row[slot];
    float *query = blk->query + slot * blk->stride;
    load_padded(query, &blk->hd.a->q, blk, r);
    r->constant = 0, r->dropped = 0;
    if (r->sc.rbf) return;
    const double x = fmin(fmax(dot64(query, blk->origin, p->dim_qk), (double)-SCORE_LIMIT),
                          (double)SCORE_LIMIT);
    if (r->sc.mapped)
        r->constant = (float)x;
    else
        r->dropped = fmin(fmax(p->scale * x, (double)-SCORE_LIMIT), (double)SCORE_LIMIT);
}

/* Prepares the rows of the chunk for keys begin .. end - 1, at least one. */
static inline void split_begin(block *blk, int64_t begin, int64_t end)
{
    const loam_problem *p = blk->hd.p;
    for (int64_t slot = 0; slot < blk->c.rows; slot++) {
        decode_row *r = &blk->row[slot];
        const int64_t row = blk->c.row + slot;
        r->h = blk->c.h_kv * (p->heads_q / p->heads_kv) + row / p->len_q, r->i = row % p->len_q;
        local_visible(p, &blk->c.s, r->i, &r->lo, &r->hi);
        blk->hd.h = r->h;
        r->sc = scoring_of(&blk->hd);
        load_decay(&r->decay_hi, &r->decay_lo, &blk->hd, local_position(&blk->c.s, r->i), 1);
    }
    set_origin(blk, begin, end);
    for (int64_t slot = 0; slot < blk->c.rows; slot++)
        set_query(blk, slot);
}

/* ------------------------------------------------------------------ scores of one row on one tile */

/* Products s with keys j .. j + n - 1 become scores: -inf where the row does not see the key, and in the tail
 * of the last vector. Returns their maximum. */
static inline float tile_scores(block *blk, const decode_row *r, int64_t j, int64_t n, float *restrict s)
{
    const vmask lo = v_set_int((int32_t)clamp_to(r->lo - j, 0, n)),
                hi = v_set_int((int32_t)clamp_to(r->hi - j, 0, n));
    const float at = (float)(r->i + blk->c.s.nk - blk->c.s.nq - j);
    const vec lane = __builtin_convertvector(v_iota(), vec);
    vec top = v_set(-INFINITY);
    if (r->sc.biased) {
        blk->hd.h = r->h;
        load_bias(blk->bias, &blk->hd, j - blk->c.first, n);
        load_decay(blk->decay_hi, blk->decay_lo, &blk->hd, j, n);
    }
    for (int64_t e = 0; e < n; e += VL) {
        const vmask place = v_iota() + (int32_t)e, seen = (place >= lo) & (place < hi);
        vec factor;
        vec bias = r->sc.biased ? v_load(blk->bias + e) : v_set(0);
        if (r->sc.decayed) {
            bias += decay_between(v_set(r->decay_hi), v_set(r->decay_lo), v_load(blk->decay_hi + e),
                                  v_load(blk->decay_lo + e));
        }
        const vec score = score_of(&r->sc, v_load(s + e) + r->constant, v_abs((at - (float)e) - lane), bias,
                                   &factor);
        const vec masked = v_select(seen, score, v_set(-INFINITY));
        v_store(s + e, masked);
        top = v_max(masked, top);
    }
    return v_top(top);
}

/* s <- w = exp(s - best), or with `root` sqrt(w); returns the sum of w. */
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
