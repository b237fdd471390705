/* SPDX-License-Identifier: MIT
 *
 * PaTH scores by tiles of 64 keys (Yang et al. 2025). A key is multiplied by the reflections of all tokens
 * after it, M_t = I - beta_t w_t w_t^T. With the w of a tile as rows of N, strict and lower the
 * triangles without and with the diagonal,
 *
 *     R = (I + diag(beta) strict(N N^T))^-1,  Lam = R diag(beta),  W = Lam N,  B = Lam strict(N K^T)
 *
 * the product of all M of a tile maps a row x to x - (x N^T) W (the WY representation), and
 *
 *     Kr = K - B^T N                  keys as seen from the end of their tile
 *     Ql = Q - a W,  a = lower(Q N^T) queries as they see the tiles before their own
 *     A  = lower(Q K^T - a B)         products within the tile
 *
 * A query walks the tiles from its own to the first: in each, products with Kr, then the reflections of that
 * tile. A probe walks like a query, as rho . k is a product with the same keys. Tiles begin at multiples of
 * 64 in each sequence. Rows beyond the ends are 0, which changes nothing. Shapes: a square is [64][64]; a
 * wide matrix has 64 rows, channels in blocks: [blocks][64][64].
 */
#ifndef LOAM_LOCAL_CPU_PATH_TILE_H
#define LOAM_LOCAL_CPU_PATH_TILE_H

#include "src/local/cpu/tile.h"
#include "src/local/decay.h"

enum { EDGE = LANES, SQUARE = EDGE * EDGE };

static inline int64_t blocks_of(int64_t channels) { return (channels + EDGE - 1) / EDGE; }

/* ------------------------------------------------------------------ products of squares and wide matrices */

static inline void square_transpose(float *restrict out, const float *restrict x)
{
    for (int64_t r = 0; r < EDGE; r++)
        for (int64_t c = 0; c < EDGE; c++)
            out[c * EDGE + r] = x[r * EDGE + c];
}

/* c (+)= a b. */
static inline void square_product(float *restrict c, const float *restrict a, const float *restrict b,
                                  bool add)
{
    panel_product(c, EDGE, a, EDGE, 1, b, EDGE, add);
}

/* c (+)= a^T b. */
static inline void square_product_transposed(float *restrict c, const float *restrict a,
                                             const float *restrict b, bool add)
{
    panel_product(c, EDGE, a, 1, EDGE, b, EDGE, add);
}

static inline void square_negate(float *x)
{
    for (int64_t e = 0; e < SQUARE; e++)
        x[e] = -x[e];
}

/* Zeroes all but the lower triangle, c <= r, or the strict one, c < r. */
static inline void square_lower(float *x, bool strict)
{
    for (int64_t r = 0; r < EDGE; r++)
        for (int64_t c = r + !strict; c < EDGE; c++)
            x[r * EDGE + c] = 0;
}

/* Transposes each block of a wide matrix; its own inverse. */
static inline void wide_transpose(float *restrict out, const float *restrict x, int64_t blocks)
{
    for (int64_t n = 0; n < blocks; n++)
        square_transpose(out + n * SQUARE, x + n * SQUARE);
}

/* s (+)= x y^T; y is given with transposed blocks. */
static inline void wide_dots(float *restrict s, const float *restrict x, const float *restrict y_transposed,
                             int64_t blocks, bool add)
{
    for (int64_t n = 0; n < blocks; n++)
        square_product(s, x + n * SQUARE, y_transposed + n * SQUARE, add || n > 0);
}

/* x += s y. */
static inline void wide_add(float *restrict x, const float *restrict s, const float *restrict y,
                            int64_t blocks)
{
    for (int64_t n = 0; n < blocks; n++)
        square_product(x + n * SQUARE, s, y + n * SQUARE, true);
}

/* x += s^T y. */
static inline void wide_add_transposed(float *restrict x, const float *restrict s, const float *restrict y,
                                       int64_t blocks)
{
    for (int64_t n = 0; n < blocks; n++)
        square_product_transposed(x + n * SQUARE, s, y + n * SQUARE, true);
}

static inline void floats_clear(float *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Row r of a wide matrix to and from contiguous channels. */
static inline void wide_row_set(float *restrict x, int64_t r, const float *restrict row, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        x[c / EDGE * SQUARE + r * EDGE + c % EDGE] = row[c];
}

static inline void wide_row_get(float *restrict row, const float *restrict x, int64_t r, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        row[c] = x[c / EDGE * SQUARE + r * EDGE + c % EDGE];
}

/* Row r of x <- token `token` + r for from <= r < to; all other rows are 0. */
static inline void wide_load(float *x, const loam_const_view *view, loam_dtype dtype, int64_t b, int64_t h,
                             int64_t token, int64_t from, int64_t to, int64_t channels)
{
    float row[LOAM_MAX_DIM];
    floats_clear(x, blocks_of(channels) * SQUARE);
    for (int64_t r = from; r < to; r++) {
        load_floats(row, view->data, dtype, LOCAL_AT(*view, b, h, token + r), channels);
        wide_row_set(x, r, row, channels);
    }
}

static inline void wide_store_row(const loam_view *view, loam_dtype dtype, int64_t b, int64_t h,
                                  int64_t token, const float *x, int64_t r, int64_t channels)
{
    float row[LOAM_MAX_DIM];
    wide_row_get(row, x, r, channels);
    store_floats(view->data, dtype, LOCAL_AT(*view, b, h, token), row, channels);
}

/* ------------------------------------------------------------------ the tiles of keys */

/* One tile of one key-value head, as the walks of queries and probes read it. */
typedef struct path_tile {
    float *keys, *keys_transposed; /* wide: Kr, and its transposed blocks */
    float *n, *n_transposed;       /* wide: N */
    float *w, *w_transposed;       /* wide: -W */
    float *within;                 /* square: -B */
} path_tile;

static inline int64_t path_tiles(const loam_problem *p) { return (p->len_kv + EDGE - 1) / EDGE; }
static inline int64_t path_tile_count(const loam_problem *p)
{
    return p->batch * p->heads_kv * path_tiles(p);
}
static inline int64_t path_tile_index(const loam_problem *p, int64_t b, int64_t h_kv, int64_t n)
{
    return (b * p->heads_kv + h_kv) * path_tiles(p) + n;
}

/* Floats of a tile: six wide matrices and a square. */
static inline size_t path_tile_floats(const loam_problem *p)
{
    return (6 * (size_t)blocks_of(p->dim_qk) + 1) * SQUARE;
}

static inline float *path_tiles_carve(const loam_problem *p, arena *pool)
{
    return arena_take(pool, size_mul((size_t)path_tile_count(p), path_tile_floats(p)), sizeof(float));
}

static inline path_tile path_tile_at(const loam_problem *p, float *tiles, int64_t index)
{
    const int64_t wide = blocks_of(p->dim_qk) * SQUARE;
    float *at = tiles + index * (int64_t)path_tile_floats(p);
    return (path_tile){ at,           at + wide, at + 2 * wide, at + 3 * wide, at + 4 * wide, at + 5 * wide,
                        at + 6 * wide };
}

/* Intermediate results of making a tile, which its backward reads, too. */
typedef struct path_making {
    float *keys, *transposed;    /* wide: K, scratch */
    float *nn, *r, *lam, *cross; /* squares: strict(N N^T), R, Lam, strict(N K^T) */
    float beta[EDGE];
} path_making;

static inline path_making path_making_carve(const loam_problem *p, arena *pool)
{
    const size_t wide = (size_t)blocks_of(p->dim_qk) * SQUARE;
    path_making m;
    m.keys = arena_take(pool, wide, sizeof(float));
    m.transposed = arena_take(pool, wide, sizeof(float));
    m.nn = arena_take(pool, SQUARE, sizeof(float));
    m.r = arena_take(pool, SQUARE, sizeof(float));
    m.lam = arena_take(pool, SQUARE, sizeof(float));
    m.cross = arena_take(pool, SQUARE, sizeof(float));
    return m;
}

/* R by forward substitution, row by row: R_i = e_i - beta_i sum_{j < i} (n_i . n_j) R_j.
 * Lam = R diag(beta). */
static inline void invert_reflections(path_making *m)
{
    for (int64_t i = 0; i < EDGE; i++) {
        float *row = m->r + i * EDGE;
        floats_clear(row, EDGE);
        row[i] = 1;
        for (int64_t j = 0; j < i; j++) {
            const float x = -m->beta[i] * m->nn[i * EDGE + j];
            FOR_LANES(lane) { v_store(row + lane, v_load(row + lane) + x * v_load(m->r + j * EDGE + lane)); }
        }
    }
    for (int64_t i = 0; i < EDGE; i++)
        for (int64_t j = 0; j < EDGE; j++)
            m->lam[i * EDGE + j] = m->r[i * EDGE + j] * m->beta[j];
}

static inline void path_tile_make(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h_kv,
                                  int64_t n, const path_tile *t, path_making *m)
{
    const int64_t blocks = blocks_of(p->dim_qk), first = n * EDGE, left = s->nk - first;
    const int64_t count = left < EDGE ? left : EDGE;
    wide_load(m->keys, &a->k, p->dtype, s->b, h_kv, s->k0 + first, 0, count, p->dim_qk);
    wide_load(t->n, &a->w, p->dtype, s->b, h_kv, s->k0 + first, 0, count, p->dim_qk);
    for (int64_t r = 0; r < EDGE; r++) {
        m->beta[r] = r < count
                         ? ((const float *)a->beta.data)[LOCAL_AT(a->beta, s->b, h_kv, s->k0 + first + r)]
                         : 0;
    }
    wide_transpose(t->n_transposed, t->n, blocks);
    wide_dots(m->nn, t->n, t->n_transposed, blocks, false);
    square_lower(m->nn, true);
    invert_reflections(m);
    wide_transpose(m->transposed, m->keys, blocks);
    wide_dots(m->cross, t->n, m->transposed, blocks, false);
    square_lower(m->cross, true);
    square_product(t->within, m->lam, m->cross, false);
    square_negate(t->within);
    memcpy(t->keys, m->keys, (size_t)(blocks * SQUARE) * sizeof(float));
    wide_add_transposed(t->keys, t->within, t->n, blocks);
    wide_transpose(t->keys_transposed, t->keys, blocks);
    floats_clear(t->w, blocks * SQUARE);
    wide_add(t->w, m->lam, t->n, blocks);
    for (int64_t block = 0; block < blocks; block++)
        square_negate(t->w + block * SQUARE);
    wide_transpose(t->w_transposed, t->w, blocks);
}

/* Makes all tiles; they are distributed over the threads of the enclosing parallel region. */
static inline void path_tiles_make(const loam_problem *p, const loam_args *a, float *tiles, path_making *m)
{
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < path_tile_count(p); index++) {
        const int64_t n = index % path_tiles(p), h_kv = index / path_tiles(p) % p->heads_kv;
        const local_seq s = local_seq_at(p, a, index / path_tiles(p) / p->heads_kv);
        if (n * EDGE < s.nk) {
            const path_tile t = path_tile_at(p, tiles, index);
            path_tile_make(p, a, &s, h_kv, n, &t, m);
        }
    }
}

/* ------------------------------------------------------------------ a block of rows */

/* The rows at positions 64 n .. 64 n + 63 of a sequence: row r is query first + r, which exists for
 * from <= r < to. */
typedef struct path_rows {
    const loam_problem *p;
    const loam_args *a;
    float *tiles;
    local_seq s;
    int64_t b, h, h_kv, n;
    int64_t first, from, to;
} path_rows;

/* The first block of rows of a sequence; negative where queries lie before all keys. */
static inline int64_t path_first_block(const local_seq *s)
{
    const int64_t at = s->nk - s->nq;
    return at >= 0 ? at / EDGE : -((-at + EDGE - 1) / EDGE);
}

/* The most blocks of rows of any sequence. */
static inline int64_t path_row_blocks(const loam_problem *p) { return (p->len_q + EDGE - 1) / EDGE + 1; }

/* Block `back` of head h, counted from the last; false where there is none. */
static inline bool path_rows_at(path_rows *x, const loam_problem *p, const loam_args *a, float *tiles,
                                int64_t b, int64_t h, int64_t back)
{
    const local_seq s = local_seq_at(p, a, b);
    const int64_t n = (s.nk + EDGE - 1) / EDGE - 1 - back;
    *x = (path_rows){ p, a, tiles, s, b, h, local_kv_head(p, h), n, n * EDGE - s.nk + s.nq, 0, EDGE };
    x->from = x->first < 0 ? -x->first : 0;
    x->to = s.nq - x->first < EDGE ? s.nq - x->first : EDGE;
    return s.nq > 0 && n >= path_first_block(&s) && x->from < x->to;
}

static inline path_tile path_tile_of(const path_rows *x, int64_t n)
{
    return path_tile_at(x->p, x->tiles, path_tile_index(x->p, x->b, x->h_kv, n));
}

/* s <- the products of x, the rows' queries or probes, with the keys of their own tile; a <- lower(X N^T);
 * x <- the rows as they see the tiles before. own_keys_transposed: the tile's K with transposed blocks. */
static inline void path_enter(const path_rows *rows, float *restrict x, float *restrict s, float *restrict a,
                              const float *restrict own_keys_transposed)
{
    const int64_t blocks = blocks_of(rows->p->dim_qk);
    const path_tile t = path_tile_of(rows, rows->n);
    wide_dots(a, x, t.n_transposed, blocks, false);
    square_lower(a, false);
    wide_dots(s, x, own_keys_transposed, blocks, false);
    square_product(s, a, t.within, true);
    wide_add(x, a, t.w, blocks);
}

/* Applies the reflections of tile n to the rows x; s <- X N^T. */
static inline void path_cross(const path_rows *rows, float *restrict x, float *restrict s, int64_t n)
{
    const int64_t blocks = blocks_of(rows->p->dim_qk);
    const path_tile t = path_tile_of(rows, n);
    wide_dots(s, x, t.n_transposed, blocks, false);
    wide_add(x, s, t.w, blocks);
}

/* transposed <- the keys of the rows' own tile with transposed blocks; keys: the same, not transposed. */
static inline void path_own_keys(const path_rows *rows, float *restrict keys, float *restrict transposed)
{
    const loam_problem *p = rows->p;
    const int64_t first = rows->n * EDGE, left = rows->s.nk - first;
    wide_load(keys, &rows->a->k, p->dtype, rows->s.b, rows->h_kv, rows->s.k0 + first, 0,
              left < EDGE ? left : EDGE, p->dim_qk);
    wide_transpose(transposed, keys, blocks_of(p->dim_qk));
}

static inline void path_values(const path_rows *rows, float *restrict values, int64_t n)
{
    const loam_problem *p = rows->p;
    const int64_t first = n * EDGE, left = rows->s.nk - first;
    wide_load(values, &rows->a->v, p->dtype, rows->s.b, rows->h_kv, rows->s.k0 + first, 0,
              left < EDGE ? left : EDGE, p->dim_v);
}

static inline void path_load_rows(const path_rows *rows, float *restrict x, const loam_const_view *view,
                                  int64_t channels)
{
    wide_load(x, view, rows->p->dtype, rows->s.b, rows->h, rows->s.q0 + rows->first, rows->from, rows->to,
              channels);
}

/* out [64] <- the log decay between each key of tile n and row r; 0 without a decay. */
static inline void path_decay(const path_rows *rows, int64_t r, int64_t n, float *restrict out)
{
    const loam_const_view *view = &rows->a->log_decay;
    floats_clear(out, EDGE);
    if (rows->p->decay) {
        const local_decay_pair *sum = (const local_decay_pair *)view->data +
                                      LOCAL_AT(*view, rows->s.b, rows->h, rows->s.k0);
        const int64_t left = rows->s.nk - n * EDGE, count = left < EDGE ? left : EDGE;
        const local_decay_pair at = sum[(rows->n * EDGE + r) * view->token];
        for (int64_t j = 0; j < count; j++) {
            const local_decay_pair key = sum[(n * EDGE + j) * view->token];
            out[j] = (at.hi - key.hi) + (at.lo - key.lo);
        }
    }
}

/* Products of row r with tile n become scores; -inf where the row does not see the key (causal mask). */
static inline void path_scores(const path_rows *rows, int64_t r, int64_t n, float *restrict s)
{
    float decay[EDGE];
    const float scale = (float)rows->p->scale;
    path_decay(rows, r, n, decay);
    FOR_LANES(lane)
    {
        v_store(s + lane, v_clamp(v_load(s + lane) * scale, SCORE_LIMIT) + v_load(decay + lane));
    }
    for (int64_t j = r + 1; n == rows->n && j < EDGE; j++)
        s[j] = -INFINITY;
}

#endif
