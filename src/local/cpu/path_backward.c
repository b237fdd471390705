/* SPDX-License-Identifier: MIT
 *
 * PaTH backward on CPUs, compiled once for each instruction set. Names as in local/cpu/path_tile.h and
 * local/reference/backward.c. Two passes over the key-value heads, a wave of heads at a time:
 *
 *   rows   each block of 64 rows walks to the first tile and stores how each tile sees it. Then it walks back
 *          with Y, the gradient of the rows as the current tile sees them: Y <- Y - (Y W^T) N + cx Kr. It
 *          adds the gradients of Kr, N, W, B and v to the sums of its part. Parts depend on the problem
 *          alone, so the bits do not depend on the threads.
 *   tiles  the sum over parts, then the adjoint of making the tile.
 *
 * cx = scale ds multiplies queries, cu = -p E multiplies probes; e = do . (vbar - o).
 */
#include "src/local/cpu/path_tile.h"
#include "src/local/local.h"

#include <omp.h>

enum { PARTS = 4 };

/* Sums of one part of one key-value head. */
typedef struct path_sums {
    float *keys, *own, *n, *w; /* [tiles] wide: gradients of Kr, of K (within its tile), of N, of -W */
    float *values;             /* [tiles] wide: gradient of the values */
    float *within;             /* [tiles] square: gradient of -B */
    float *decay;              /* [group][tiles * 64]: column sums of ds */
} path_sums;

static size_t decay_sums(const loam_problem *p)
{
    return p->decay ? size_mul((size_t)(p->heads_q / p->heads_kv), size_mul((size_t)path_tiles(p), EDGE)) : 0;
}

static path_sums path_sums_carve(const loam_problem *p, arena *pool, size_t *floats)
{
    const size_t tiles = (size_t)path_tiles(p);
    const size_t wide = size_mul(tiles, (size_t)blocks_of(p->dim_qk) * SQUARE);
    const size_t values = size_mul(tiles, (size_t)blocks_of(p->dim_v) * SQUARE),
                 square = size_mul(tiles, SQUARE);
    const size_t all = size_add(size_add(size_mul(4, wide), values), size_add(square, decay_sums(p)));
    path_sums s = { .keys = arena_take(pool, all, sizeof(float)) };
    if (s.keys) {
        s.own = s.keys + wide, s.n = s.own + wide, s.w = s.n + wide, s.values = s.w + wide;
        s.within = s.values + values, s.decay = s.within + square;
    }
    *floats = all;
    return s;
}

/* A block of queries or of probes on its walk. */
typedef struct follower {
    float *x;     /* wide: as loaded */
    float *trail; /* [tiles] wide: as each tile sees it */
    float *a;     /* square: lower(X N^T) */
    float *grad;  /* wide: Y */
    float *c;     /* square: the products with keys, then their gradient */
    float *own;   /* square: the products with the keys of the own tile */
} follower;

typedef struct walk {
    path_rows rows;
    path_making making;
    follower query, probe;
    float *grad_o, *values, *transposed; /* wide */
    float *g, *s, *t;                    /* squares: do . v, then p (1 - u); s, t: scratch */
    float lse[EDGE], gbar[EDGE], ubar[EDGE], urest[EDGE], e[EDGE];
    double scale[EDGE], inner[EDGE]; /* sums over keys of ds x and ds */
} walk;

static follower follower_carve(const loam_problem *p, arena *pool, bool used)
{
    const size_t wide = used ? (size_t)blocks_of(p->dim_qk) * SQUARE : 0, square = used ? SQUARE : 0;
    follower f;
    f.x = arena_take(pool, wide, sizeof(float));
    f.trail = arena_take(pool, size_mul((size_t)path_tiles(p), wide), sizeof(float));
    f.a = arena_take(pool, square, sizeof(float));
    f.grad = arena_take(pool, wide, sizeof(float));
    f.c = arena_take(pool, square, sizeof(float));
    f.own = arena_take(pool, square, sizeof(float));
    return f;
}

static walk walk_carve(const loam_problem *p, arena *pool)
{
    const size_t values = (size_t)blocks_of(p->dim_v) * SQUARE;
    walk k = { .making = path_making_carve(p, pool) };
    k.query = follower_carve(p, pool, true);
    k.probe = follower_carve(p, pool, p->mechanism == LOAM_PARALLAX);
    k.grad_o = arena_take(pool, values, sizeof(float));
    k.values = arena_take(pool, values, sizeof(float));
    k.transposed = arena_take(pool, values, sizeof(float));
    k.g = arena_take(pool, SQUARE, sizeof(float));
    k.s = arena_take(pool, SQUARE, sizeof(float));
    k.t = arena_take(pool, SQUARE, sizeof(float));
    return k;
}

static bool probed(const walk *k) { return k->rows.p->mechanism == LOAM_PARALLAX; }

/* ------------------------------------------------------------------ rows */

/* The walk from the own tile to the first, which fills trail. */
static void walk_out(walk *k, follower *f, const loam_const_view *view)
{
    const path_rows *rows = &k->rows;
    const int64_t wide = blocks_of(rows->p->dim_qk) * SQUARE;
    path_load_rows(rows, f->x, view, rows->p->dim_qk);
    memcpy(f->grad, f->x, (size_t)wide * sizeof(float));
    path_enter(rows, f->grad, f->own, f->a, k->making.transposed);
    for (int64_t n = rows->n - 1; n >= 0; n--) {
        memcpy(f->trail + n * wide, f->grad, (size_t)wide * sizeof(float));
        if (n > 0) path_cross(rows, f->grad, k->s, n);
    }
    floats_clear(f->grad, wide);
}

static void load_rows_of(walk *k)
{
    const path_rows *rows = &k->rows;
    const loam_problem *p = rows->p;
    const local_saved saved = local_saved_carve(p, rows->a->saved, NULL);
    float row[LOAM_MAX_DIM];
    path_load_rows(rows, k->grad_o, &rows->a->grad_o, p->dim_v);
    for (int64_t r = 0; r < EDGE; r++) {
        k->lse[r] = k->gbar[r] = k->ubar[r] = k->urest[r] = k->e[r] = 0;
        k->scale[r] = k->inner[r] = 0;
        if (r >= rows->from && r < rows->to) {
            const int64_t at = local_row(p, &rows->s, rows->h, rows->first + r);
            wide_row_get(row, k->grad_o, r, p->dim_v);
            k->lse[r] = ((const float *)saved.lse)[at];
            k->gbar[r] = dot(row, (const float *)saved.vbar + at * p->dim_v, p->dim_v);
            if (probed(k)) {
                k->ubar[r] = ((const float *)saved.tbar)[2 * at];
                k->urest[r] = ((const float *)saved.tbar)[2 * at + 1];
                k->e[r] = dot(row, (const float *)saved.value_shift + at * p->dim_v, p->dim_v);
            }
        }
    }
}

/* Row r with tile n: the products in query.c and probe.c become their gradients, g becomes p (1 - u). */
static void weigh_row(walk *k, int64_t r, int64_t n, float *decay)
{
    const float scale = (float)k->rows.p->scale;
    float *x = k->query.c + r * EDGE, *u = k->probe.c + r * EDGE, *g = k->g + r * EDGE;
    float s[EDGE];
    vec scale_sum = v_set(0), inner = v_set(0);
    memcpy(s, x, sizeof s);
    path_scores(&k->rows, r, n, s);
    FOR_LANES(lane)
    {
        const vec w = weight_of(v_load(s + lane), v_set(k->lse[r])), error = v_load(g + lane) - k->gbar[r];
        vec kept = w, ds = w * error;
        if (probed(k)) {
            kept = w * (1.0f - (v_load(u + lane) - k->ubar[r] - k->urest[r]));
            ds = kept * error + w * k->e[r];
            v_store(u + lane, -w * error);
        }
        const vec seen = v_load(x + lane);
        scale_sum += v_select(w > 0, ds * seen, v_set(0));
        inner += ds;
        v_store(decay + lane, v_load(decay + lane) + ds);
        v_store(x + lane, ds * scale);
        v_store(g + lane, kept);
    }
    for (int e = 0; e < VL; e++) {
        k->scale[r] += (double)scale_sum[e];
        k->inner[r] += (double)inner[e];
    }
}

/* On entry query.c and probe.c hold the products with tile n. */
static void weigh_tile(walk *k, const path_sums *sums, int64_t n)
{
    const path_rows *rows = &k->rows;
    const int64_t values = blocks_of(rows->p->dim_v);
    float unused[EDGE] = { 0 };
    float *decay = unused;
    if (rows->p->decay) {
        const int64_t group = rows->p->heads_q / rows->p->heads_kv;
        decay = sums->decay + (rows->h % group * path_tiles(rows->p) + n) * EDGE;
    }
    path_values(rows, k->values, n);
    wide_transpose(k->transposed, k->values, values);
    wide_dots(k->g, k->grad_o, k->transposed, values, false);
    for (int64_t r = 0; r < EDGE; r++)
        weigh_row(k, r, n, decay);
    wide_add_transposed(sums->values + n * values * SQUARE, k->g, k->grad_o, values);
}

/* The adjoint of the reflections of tile n, then of its products. */
static void follow_back(walk *k, follower *f, const path_sums *sums, int64_t n)
{
    const int64_t blocks = blocks_of(k->rows.p->dim_qk), at = n * blocks * SQUARE;
    const path_tile t = path_tile_of(&k->rows, n);
    const float *x = f->trail + at;
    if (n > 0) { /* nothing lies before the first tile */
        wide_dots(k->s, f->grad, t.w_transposed, blocks, false);
        wide_dots(k->t, x, t.n_transposed, blocks, false);
        wide_add_transposed(sums->n + at, k->s, x, blocks);
        wide_add_transposed(sums->w + at, k->t, f->grad, blocks);
        wide_add(f->grad, k->s, t.n, blocks);
    }
    wide_add(f->grad, f->c, t.keys, blocks);
    wide_add_transposed(sums->keys + at, f->c, x, blocks);
}

/* The adjoint of path_enter: grad becomes the gradient of the query or probe. */
static void leave(walk *k, follower *f, const path_sums *sums)
{
    const int64_t n = k->rows.n, blocks = blocks_of(k->rows.p->dim_qk), at = n * blocks * SQUARE;
    const path_tile t = path_tile_of(&k->rows, n);
    square_transpose(k->t, t.within);
    wide_dots(k->s, f->grad, t.w_transposed, blocks, false);
    square_product(k->s, f->c, k->t, true);
    square_lower(k->s, false);
    wide_add_transposed(sums->n + at, k->s, f->x, blocks);
    wide_add_transposed(sums->w + at, f->a, f->grad, blocks);
    square_product_transposed(sums->within + n * SQUARE, f->a, f->c, true);
    wide_add_transposed(sums->own + at, f->c, f->x, blocks);
    wide_add(f->grad, k->s, t.n, blocks);
    wide_add(f->grad, f->c, k->making.keys, blocks);
}

static void put_rows(walk *k, const follower *f, const loam_view *view)
{
    const path_rows *rows = &k->rows;
    for (int64_t r = rows->from; view->data && r < rows->to; r++) {
        wide_store_row(view, rows->p->dtype, rows->s.b, rows->h, rows->s.q0 + rows->first + r, f->grad, r,
                       rows->p->dim_qk);
    }
}

static void put_row_sums(const walk *k, const local_row_sums *sums)
{
    const path_rows *rows = &k->rows;
    for (int64_t r = rows->from; r < rows->to; r++) {
        const int64_t at = local_row(rows->p, &rows->s, rows->h, rows->first + r);
        sums->scale[at] = k->scale[r];
        if (rows->p->decay) sums->inner[at] = k->inner[r];
    }
}

static void backward_rows(walk *k, const path_sums *sums)
{
    const path_rows *rows = &k->rows;
    const int64_t blocks = blocks_of(rows->p->dim_qk);
    load_rows_of(k);
    floats_clear(k->query.grad, blocks * SQUARE);
    if (probed(k)) floats_clear(k->probe.grad, blocks * SQUARE);
    if (rows->n >= 0) {
        path_own_keys(rows, k->making.keys, k->making.transposed);
        walk_out(k, &k->query, &rows->a->q);
        if (probed(k)) walk_out(k, &k->probe, &rows->a->probe);
        for (int64_t n = 0; n < rows->n; n++) {
            const path_tile t = path_tile_of(rows, n);
            wide_dots(k->query.c, k->query.trail + n * blocks * SQUARE, t.keys_transposed, blocks, false);
            if (probed(k))
                wide_dots(k->probe.c, k->probe.trail + n * blocks * SQUARE, t.keys_transposed, blocks, false);
            weigh_tile(k, sums, n);
            follow_back(k, &k->query, sums, n);
            if (probed(k)) follow_back(k, &k->probe, sums, n);
        }
        memcpy(k->query.c, k->query.own, SQUARE * sizeof(float));
        if (probed(k)) memcpy(k->probe.c, k->probe.own, SQUARE * sizeof(float));
        weigh_tile(k, sums, rows->n);
        leave(k, &k->query, sums);
        if (probed(k)) leave(k, &k->probe, sums);
    }
    put_rows(k, &k->query, &rows->a->grad_q);
    if (probed(k)) put_rows(k, &k->probe, &rows->a->grad_probe);
}

/* The blocks of rows of one part: every PARTS-th block of each head. */
static void backward_part(walk *k, const loam_problem *p, const loam_args *a, float *tiles, int64_t b,
                          int64_t h_kv, int64_t part, const path_sums *sums, const local_row_sums *row_sums)
{
    const int64_t group = p->heads_q / p->heads_kv;
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++) {
        for (int64_t back = part; back < path_row_blocks(p); back += PARTS) {
            if (path_rows_at(&k->rows, p, a, tiles, b, h, back)) {
                backward_rows(k, sums);
                put_row_sums(k, row_sums);
            }
        }
    }
}

/* ------------------------------------------------------------------ tiles */

/* Scratch of the adjoint of a tile. */
typedef struct tile_grads {
    float *lam, *b, *cross, *s, *transposed; /* squares */
    float *wide;
} tile_grads;

static tile_grads tile_grads_carve(const loam_problem *p, arena *pool)
{
    tile_grads g;
    g.lam = arena_take(pool, SQUARE, sizeof(float));
    g.b = arena_take(pool, SQUARE, sizeof(float));
    g.cross = arena_take(pool, SQUARE, sizeof(float));
    g.s = arena_take(pool, SQUARE, sizeof(float));
    g.transposed = arena_take(pool, SQUARE, sizeof(float));
    g.wide = arena_take(pool, (size_t)blocks_of(p->dim_qk) * SQUARE, sizeof(float));
    return g;
}

/* Adds the sums of all parts to the first part. */
static void add_parts(float *first, size_t stride, int64_t at, int64_t count)
{
    for (int64_t part = 1; part < PARTS; part++) {
        const float *from = first + (size_t)part * stride + at;
        for (int64_t e = 0; e < count; e++)
            first[at + e] += from[e];
    }
}

/* dbeta, and the gradient of strict(N N^T) into g->lam, where the gradient of Lam is on entry:
 * Lam = R diag(beta), R^-1 = I + diag(beta) strict(N N^T), dL = -strict(R^T dR R^T). */
static void reflections_back(const path_making *m, tile_grads *g, float *dbeta)
{
    for (int64_t j = 0; j < EDGE; j++)
        dbeta[j] = 0;
    for (int64_t i = 0; i < EDGE; i++) {
        for (int64_t j = 0; j < EDGE; j++) {
            dbeta[j] += m->r[i * EDGE + j] * g->lam[i * EDGE + j];
            g->lam[i * EDGE + j] *= -m->beta[j];
        }
    }
    square_transpose(g->transposed, m->r);
    square_product(g->s, g->lam, g->transposed, false);
    square_product_transposed(g->lam, m->r, g->s, false);
    square_lower(g->lam, true);
    for (int64_t i = 0; i < EDGE; i++) {
        dbeta[i] += dot(g->lam + i * EDGE, m->nn + i * EDGE, EDGE);
        for (int64_t j = 0; j < EDGE; j++)
            g->lam[i * EDGE + j] *= m->beta[i];
    }
}

/* The adjoint of path_tile_make. On entry keys, own, n, w (of -W) and within (of -B) are gradients; own and n
 * become dk and dw. */
static void tile_back(const loam_problem *p, const path_tile *t, const path_making *m, tile_grads *g,
                      const float *keys, float *own, float *n, float *w, float *within, float *dbeta)
{
    const int64_t blocks = blocks_of(p->dim_qk);
    wide_transpose(g->wide, keys, blocks);
    wide_dots(within, t->n, g->wide, blocks, true);
    wide_add(n, t->within, keys, blocks);
    for (int64_t e = 0; e < blocks * SQUARE; e++) {
        own[e] += keys[e];
        w[e] = -w[e];
    }
    square_negate(within);
    wide_dots(g->lam, w, t->n_transposed, blocks, false);
    square_transpose(g->transposed, m->cross);
    square_product(g->lam, within, g->transposed, true);
    wide_add_transposed(n, m->lam, w, blocks);
    square_product_transposed(g->cross, m->lam, within, false);
    square_lower(g->cross, true);
    wide_add(n, g->cross, m->keys, blocks);
    wide_add_transposed(own, g->cross, t->n, blocks);
    reflections_back(m, g, dbeta);
    wide_add(n, g->lam, t->n, blocks);
    wide_add_transposed(n, g->lam, t->n, blocks);
}

/* Stores one row of a gradient by keys, or 0 for keys that are not in use. */
static void put_key(const loam_view *view, loam_dtype dtype, int64_t b, int64_t h, int64_t token,
                    const float *x, int64_t r, int64_t channels, bool used)
{
    float zero[LOAM_MAX_DIM] = { 0 };
    if (view->data && used)
        wide_store_row(view, dtype, b, h, token, x, r, channels);
    else if (view->data)
        store_floats(view->data, dtype, LOCAL_AT(*view, b, h, token), zero, channels);
}

static void backward_tile(walk *k, tile_grads *g, const loam_problem *p, const loam_args *a, float *tiles,
                          int64_t b, int64_t h_kv, int64_t n, const path_sums *sums, size_t stride)
{
    const local_seq s = local_seq_at(p, a, b);
    const int64_t stored = local_stored_keys(p, &s), group = p->heads_q / p->heads_kv;
    const int64_t wide = blocks_of(p->dim_qk) * SQUARE, values = blocks_of(p->dim_v) * SQUARE, at = n * wide;
    float dbeta[EDGE] = { 0 };
    if (n * EDGE < s.nk) {
        float *const by_key[] = { sums->keys, sums->own, sums->n, sums->w };
        for (int e = 0; e < 4; e++)
            add_parts(by_key[e], stride, at, wide);
        add_parts(sums->values, stride, n * values, values);
        add_parts(sums->within, stride, n * SQUARE, SQUARE);
        const path_tile t = path_tile_at(p, tiles, path_tile_index(p, b, h_kv, n));
        path_tile_make(p, a, &s, h_kv, n, &t, &k->making);
        tile_back(p, &t, &k->making, g, sums->keys + at, sums->own + at, sums->n + at, sums->w + at,
                  sums->within + n * SQUARE, dbeta);
    }
    for (int64_t r = 0; r < EDGE && n * EDGE + r < stored; r++) {
        const int64_t token = s.k0 + n * EDGE + r;
        const bool used = n * EDGE + r < s.nk;
        put_key(&a->grad_k, p->dtype, s.b, h_kv, token, sums->own + at, r, p->dim_qk, used);
        put_key(&a->grad_w, p->dtype, s.b, h_kv, token, sums->n + at, r, p->dim_qk, used);
        put_key(&a->grad_v, p->dtype, s.b, h_kv, token, sums->values + n * values, r, p->dim_v, used);
        if (a->grad_beta.data)
            ((float *)a->grad_beta.data)[LOCAL_AT(a->grad_beta, s.b, h_kv, token)] = used ? dbeta[r] : 0;
    }
    for (int64_t h = 0; p->decay && a->grad_log_decay.data && h < group; h++) {
        const int64_t first = (h * path_tiles(p) + n) * EDGE;
        add_parts(sums->decay, stride, first, EDGE);
        for (int64_t r = 0; r < EDGE && n * EDGE + r < stored; r++) {
            ((float *)a->grad_log_decay.data)[LOCAL_AT(a->grad_log_decay, s.b, h_kv * group + h,
                                                       s.k0 + n * EDGE + r)] = sums->decay[first + r];
        }
    }
}

/* ------------------------------------------------------------------ the pass */

/* The number of key-value heads in a wave: enough parts for all threads. */
static int64_t wave_of(const loam_problem *p) { return (p->threads + PARTS - 1) / PARTS; }

typedef struct path_work {
    float *tiles;
    local_row_sums rows;
    path_sums first; /* of the first part of a wave */
    size_t stride;   /* floats from part to part */
    size_t shared;   /* bytes of all of these */
} path_work;

static path_work path_work_carve(const loam_problem *p, void *work)
{
    arena pool = { work, 0 };
    path_work x;
    x.tiles = path_tiles_carve(p, &pool);
    x.rows = local_row_sums_carve(p, &pool);
    x.first = path_sums_carve(p, &pool, &x.stride);
    const size_t rest = size_mul((size_t)(wave_of(p) * PARTS - 1), x.stride);
    arena_take(&pool, rest, sizeof(float));
    x.shared = pool.used;
    return x;
}

/* The sums of part `index` of a wave. */
static path_sums part_sums(const path_work *x, int64_t index)
{
    const size_t by = (size_t)index * x->stride;
    path_sums s = x->first;
    s.keys += by, s.own += by, s.n += by, s.w += by, s.values += by, s.within += by, s.decay += by;
    return s;
}

static size_t walk_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    walk_carve(p, &pool);
    tile_grads_carve(p, &pool);
    return pool.used;
}

size_t LOCAL_JOIN(ISA(local_path_backward), work)(const loam_problem *p)
{
    return size_add(path_work_carve(p, NULL).shared, size_mul(walk_bytes(p), (size_t)p->threads));
}

loam_status ISA(local_path_backward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const path_work x = path_work_carve(p, a->work);
    const size_t each = walk_bytes(p);
    const int64_t pairs = p->batch * p->heads_kv, wave = wave_of(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + x.shared + each * (size_t)omp_get_thread_num(), 0 };
        walk k = walk_carve(p, &pool);
        tile_grads g = tile_grads_carve(p, &pool);
        path_tiles_make(p, a, x.tiles, &k.making);
        for (int64_t first = 0; first < pairs; first += wave) {
            const int64_t count = pairs - first < wave ? pairs - first : wave;
#pragma omp for schedule(dynamic, 1)
            for (int64_t unit = 0; unit < count * PARTS; unit++) {
                const path_sums sums = part_sums(&x, unit);
                const int64_t pair = first + unit / PARTS;
                floats_clear(sums.keys, (int64_t)x.stride);
                backward_part(&k, p, a, x.tiles, pair / p->heads_kv, pair % p->heads_kv, unit % PARTS, &sums,
                              &x.rows);
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t unit = 0; unit < count * path_tiles(p); unit++) {
                const int64_t pair = first + unit / path_tiles(p);
                const path_sums sums = part_sums(&x, unit / path_tiles(p) * PARTS);
                backward_tile(&k, &g, p, a, x.tiles, pair / p->heads_kv, pair % p->heads_kv,
                              unit % path_tiles(p), &sums, x.stride);
            }
        }
    }
    local_row_sums_reduce(p, a, &x.rows);
    return loam_succeed(error);
}
