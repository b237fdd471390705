/* SPDX-License-Identifier: MIT
 *
 * PaTH forward on CPUs, compiled once for each instruction set: 64 queries walk the tiles from their own to
 * the first (local/cpu/path_tile.h), with the sums of online softmax as in local/cpu/forward.c, c the running
 * centre of t:
 *     omega = sum w,  T = sum w (t - c),  A = sum w v,  B = sum w (t - c) v,   w = exp(s - m),  t = rho . k
 *     o = (A (1 + T / omega) - B) / omega
 */
#include "src/local/cpu/path_tile.h"
#include "src/local/local.h"

#include <omp.h>

typedef struct walk {
    path_rows rows;
    path_making making;
    float *query, *probe;      /* wide: as the current tile sees them */
    float *values;             /* wide */
    float *mean, *value_shift; /* wide: A, B; finish makes them vbar, vbar - o */
    float *s, *t, *cross;      /* squares */
    float m[EDGE], omega[EDGE], centre[EDGE], tsum[EDGE];
} walk;

static walk walk_carve(const loam_problem *p, arena *pool)
{
    const size_t wide = (size_t)blocks_of(p->dim_qk) * SQUARE, values = (size_t)blocks_of(p->dim_v) * SQUARE;
    walk k = { .making = path_making_carve(p, pool) };
    k.query = arena_take(pool, wide, sizeof(float));
    k.probe = arena_take(pool, wide, sizeof(float));
    k.values = arena_take(pool, values, sizeof(float));
    k.mean = arena_take(pool, values, sizeof(float));
    k.value_shift = arena_take(pool, values, sizeof(float));
    k.s = arena_take(pool, SQUARE, sizeof(float));
    k.t = arena_take(pool, SQUARE, sizeof(float));
    k.cross = arena_take(pool, SQUARE, sizeof(float));
    return k;
}

static bool probed(const walk *k) { return k->rows.p->mechanism == LOAM_PARALLAX; }

/* The products s and t of queries and probes with their own tile. */
static void begin(walk *k)
{
    const path_rows *rows = &k->rows;
    path_own_keys(rows, k->making.keys, k->making.transposed);
    path_load_rows(rows, k->query, &rows->a->q, rows->p->dim_qk);
    path_enter(rows, k->query, k->s, k->cross, k->making.transposed);
    if (probed(k)) {
        path_load_rows(rows, k->probe, &rows->a->probe, rows->p->dim_qk);
        path_enter(rows, k->probe, k->t, k->cross, k->making.transposed);
    }
}

/* The products s and t with tile n; then query and probe are reflected by it. */
static void step(walk *k, int64_t n)
{
    const path_tile t = path_tile_of(&k->rows, n);
    const int64_t blocks = blocks_of(k->rows.p->dim_qk);
    wide_dots(k->s, k->query, t.keys_transposed, blocks, false);
    path_cross(&k->rows, k->query, k->cross, n);
    if (probed(k)) {
        wide_dots(k->t, k->probe, t.keys_transposed, blocks, false);
        path_cross(&k->rows, k->probe, k->cross, n);
    }
}

static void row_scale(float *x, int64_t r, float factor, int64_t blocks)
{
    for (int64_t n = 0; n < blocks; n++)
        for (int64_t c = 0; c < EDGE; c++)
            x[n * SQUARE + r * EDGE + c] *= factor;
}

static void row_axpy(float *restrict y, int64_t r, float factor, const float *restrict x, int64_t blocks)
{
    for (int64_t n = 0; n < blocks; n++)
        for (int64_t c = 0; c < EDGE; c++)
            y[n * SQUARE + r * EDGE + c] += factor * x[n * SQUARE + r * EDGE + c];
}

static float row_top(const float *s, float top)
{
    for (int64_t j = 0; j < EDGE; j++)
        top = s[j] > top ? s[j] : top;
    return top;
}

/* Row r: s becomes weights, t becomes w (t - c), with c shifted to the mean of t so far. */
static void weigh_row(walk *k, int64_t r, int64_t n)
{
    const int64_t blocks = blocks_of(k->rows.p->dim_v);
    float *s = k->s + r * EDGE, *t = k->t + r * EDGE;
    path_scores(&k->rows, r, n, s);
    const float m = row_top(s, k->m[r]), keep = k->m[r] > -INFINITY ? expf(k->m[r] - m) : 0;
    vec sum = v_set(0), drift = v_set(0);
    FOR_LANES(lane)
    {
        const vec w = v_exp(v_load(s + lane) - m);
        sum += w;
        v_store(s + lane, w);
        if (probed(k)) drift += w * (v_load(t + lane) - k->centre[r]);
    }
    const float before = k->omega[r] * keep;
    k->m[r] = m;
    k->omega[r] = before;
    for (int e = 0; e < VL; e++)
        k->omega[r] += sum[e];
    if (keep != 1) row_scale(k->mean, r, keep, blocks);
    if (!probed(k)) return;
    float tsum = k->tsum[r] * keep, shift = tsum;
    for (int e = 0; e < VL; e++)
        shift += drift[e];
    shift /= k->omega[r];
    if (keep != 1) row_scale(k->value_shift, r, keep, blocks);
    row_axpy(k->value_shift, r, -shift, k->mean, blocks);
    k->centre[r] += shift;
    tsum -= shift * before;
    vec rest = v_set(0);
    FOR_LANES(lane)
    {
        const vec wt = v_load(s + lane) * (v_load(t + lane) - k->centre[r]);
        rest += wt;
        v_store(t + lane, wt);
    }
    for (int e = 0; e < VL; e++)
        tsum += rest[e];
    k->tsum[r] = tsum;
}

static void take_tile(walk *k, int64_t n)
{
    const int64_t blocks = blocks_of(k->rows.p->dim_v);
    for (int64_t r = 0; r < EDGE; r++)
        weigh_row(k, r, n);
    path_values(&k->rows, k->values, n);
    wide_add(k->mean, k->s, k->values, blocks);
    if (probed(k)) wide_add(k->value_shift, k->t, k->values, blocks);
}

/* tsum <- T / omega, mean <- vbar, value_shift <- vbar - o. */
static void finish(walk *k)
{
    const int64_t blocks = blocks_of(k->rows.p->dim_v);
    for (int64_t r = 0; r < EDGE; r++) {
        const float inverse = 1 / k->omega[r];
        k->tsum[r] *= inverse;
        row_scale(k->mean, r, inverse, blocks);
        row_scale(k->value_shift, r, inverse, blocks);
        row_axpy(k->value_shift, r, -k->tsum[r], k->mean, blocks);
    }
}

/* ------------------------------------------------------------------ results */

static void put_saved(const walk *k, int64_t r)
{
    const loam_problem *p = k->rows.p;
    const local_saved saved = local_saved_carve(p, k->rows.a->saved, NULL);
    const int64_t at = local_row(p, &k->rows.s, k->rows.h, k->rows.first + r);
    ((float *)saved.lse)[at] = k->m[r] + logf(k->omega[r]);
    wide_row_get((float *)saved.vbar + at * p->dim_v, k->mean, r, p->dim_v);
    if (probed(k)) {
        ((float *)saved.tbar)[2 * at] = k->centre[r];
        ((float *)saved.tbar)[2 * at + 1] = k->tsum[r];
        wide_row_get((float *)saved.value_shift + at * p->dim_v, k->value_shift, r, p->dim_v);
    }
}

static void put_row(walk *k, int64_t r)
{
    const loam_problem *p = k->rows.p;
    const loam_args *a = k->rows.a;
    const local_seq *s = &k->rows.s;
    const int64_t h = k->rows.h, i = k->rows.first + r, token = s->q0 + i;
    const bool empty = k->rows.n * EDGE + r < 0;
    float row[LOAM_MAX_DIM], rest[LOAM_MAX_DIM];
    wide_row_get(row, k->mean, r, p->dim_v);
    wide_row_get(rest, k->value_shift, r, p->dim_v);
    for (int64_t c = 0; c < p->dim_v; c++)
        row[c] -= rest[c];
    store_floats(a->o.data, p->dtype, LOCAL_AT(a->o, s->b, h, token), row, p->dim_v);
    if (a->lse.data) ((float *)a->lse.data)[LOCAL_AT(a->lse, s->b, h, token)] = k->m[r] + logf(k->omega[r]);
    if (a->rho.data) {
        memset(row, 0, sizeof row);
        if (probed(k) && !empty)
            load_floats(row, a->probe.data, p->dtype, LOCAL_AT(a->probe, s->b, h, token), p->dim_qk);
        memcpy((float *)a->rho.data + LOCAL_AT(a->rho, s->b, h, token), row, (size_t)p->dim_qk * sizeof *row);
    }
    if (a->saved) put_saved(k, r);
    local_put_info(a, s, h, i,
                   (loam_row_info){ empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 });
}

/* Writes p (1 - u) of tile n, from the products s and t. */
static void put_weights_tile(walk *k, int64_t n)
{
    const loam_view *view = &k->rows.a->weights;
    const int64_t left = k->rows.s.nk - n * EDGE;
    for (int64_t r = k->rows.from; r < k->rows.to; r++) {
        float *s = k->s + r * EDGE,
              *to = (float *)view->data + n * EDGE +
                    LOCAL_AT(*view, k->rows.s.b, k->rows.h, k->rows.s.q0 + k->rows.first + r);
        path_scores(&k->rows, r, n, s);
        for (int64_t j = 0; j < EDGE && j < left; j++) {
            const float w = expf(fminf(0, s[j] - k->m[r] - logf(k->omega[r])));
            const float u = probed(k) ? k->t[r * EDGE + j] - k->centre[r] - k->tsum[r] : 0;
            to[j] = w > 0 ? w * (1 - u) : 0;
        }
    }
}

/* A second walk for the weights; meant for small inputs. */
static void put_weights(walk *k)
{
    const loam_view *view = &k->rows.a->weights;
    for (int64_t r = k->rows.from; r < k->rows.to; r++) {
        memset((float *)view->data +
                   LOCAL_AT(*view, k->rows.s.b, k->rows.h, k->rows.s.q0 + k->rows.first + r),
               0, (size_t)k->rows.p->len_kv * sizeof(float));
    }
    if (k->rows.n >= 0) {
        begin(k);
        put_weights_tile(k, k->rows.n);
    }
    for (int64_t n = k->rows.n - 1; n >= 0; n--) {
        step(k, n);
        put_weights_tile(k, n);
    }
}

static void forward_rows(walk *k)
{
    const int64_t values = blocks_of(k->rows.p->dim_v) * SQUARE;
    floats_clear(k->mean, values);
    floats_clear(k->value_shift, values);
    for (int64_t r = 0; r < EDGE; r++) {
        k->m[r] = -INFINITY;
        k->omega[r] = k->centre[r] = k->tsum[r] = 0;
    }
    if (k->rows.n >= 0) {
        begin(k);
        take_tile(k, k->rows.n);
        for (int64_t n = k->rows.n - 1; n >= 0; n--) {
            step(k, n);
            take_tile(k, n);
        }
        finish(k);
    }
    if (k->rows.a->weights.data) put_weights(k);
    for (int64_t r = k->rows.from; r < k->rows.to; r++)
        put_row(k, r);
}

static size_t walk_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    walk_carve(p, &pool);
    return pool.used;
}

size_t LOCAL_JOIN(ISA(local_path_forward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    path_tiles_carve(p, &pool);
    return size_add(pool.used, size_mul(walk_bytes(p), (size_t)p->threads));
}

loam_status ISA(local_path_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = path_row_blocks(p);
    const size_t each = walk_bytes(p);
    arena shared = { a->work, 0 };
    float *tiles = path_tiles_carve(p, &shared);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        walk k = walk_carve(p, &pool);
        path_tiles_make(p, a, tiles, &k.making);
        /* Late blocks see the most keys: they are scheduled first, so that all threads finish together. */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t back = 0; back < blocks; back++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_q; h++)
                    if (path_rows_at(&k.rows, p, a, tiles, b, h, back)) forward_rows(&k);
            }
        }
    }
    return loam_succeed(error);
}
