/* SPDX-License-Identifier: MIT
 * Backward on CPUs, shared by both passes (local/cpu/backward.c): the block of a thread, the arrays over rows
 * that the first pass writes for the second, and the gradient terms of one pair of query and key.
 */
#ifndef LOAM_LOCAL_CPU_BACKWARD_BLOCK_H
#define LOAM_LOCAL_CPU_BACKWARD_BLOCK_H

#include "src/local/cpu/ladder.h"
#include "src/local/cpu/row_double.h"

/* May dq be summed in the pass over keys (local/cpu/backward_group.h)? Numbers that are sums over the keys of
 * a row are not made there, and the norms of RBF's keys have other bits, as compilers are free to give the
 * terms of a probe. A thread then has whole heads, with 5 products a pair where two passes do 7: most threads
 * must have work to the end. */
static inline bool fits_one_pass(const loam_problem *p)
{
    const int64_t tasks = p->heads_kv * (sequence_packed(p) ? 1 : p->batch), threads = p->threads,
                  rounds = (tasks + threads - 1) / threads;
    return p->mechanism == LOAM_SOFTMAX && p->score == LOAM_DOT && !local_mapped(p) && !p->sink &&
           !p->slope && !p->decay && 6 * rounds * threads <= 7 * tasks;
}

typedef struct row_record {
    float lse;
    float gbar, gbar_rest;    /* do . vbar, and the weighted mean of the g_ij minus that */
    float rho_kbar, rho_rest; /* rho . kbar = rho_kbar + rho_rest: see sweep_centres */
    float y_kbar, y_rest;
    float x0;            /* as in struct lanes */
    float e;             /* of ds = p ((1 - u) E + e) */
    float spread, trace; /* trace unit of the ridge: e / unit, and trace / dim */
    float kbar2;         /* |kbar|^2 */
    int32_t peak;        /* max unit of the ridge: its key; else -1 */
    int32_t lo, hi;
} row_record;

/* Arrays over rows, shared by all threads. */
typedef struct row_arrays {
    row_record *record;
    float *y, *rho_u; /* [rows][dim_qk], LLA; rho_u: the probe that u is computed from, see span_probes */
    local_row_sums sums;
} row_arrays;

static inline row_arrays row_arrays_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = (size_t)local_rows(p);
    row_arrays x;
    x.record = arena_take(pool, rows, sizeof(row_record));
    x.y = arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, (size_t)p->dim_qk) : 0, sizeof(float));
    x.rho_u = arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, (size_t)p->dim_qk) : 0,
                         sizeof(float));
    x.sums = local_row_sums_carve(p, pool);
    return x;
}

typedef struct block {
    head hd;
    scoring sc;
    bool probed, solved, by_max, by_trace;
    lanes l;
    key_tile tile;
    float lse[LANES], gbar[LANES], gbar_rest[LANES], rho_kbar[LANES], rho_rest[LANES], y_kbar[LANES],
        y_rest[LANES], e[LANES], spread[LANES], trace[LANES], kbar2[LANES], inverse[LANES], unit[LANES];
    int32_t peak[LANES];
    float *values;                   /* [TILE_KEYS][dim_v] */
    float *s, *t, *u, *g, *w;        /* [TILE_KEYS][LANES] */
    float *query, *probe, *y, *grad; /* [dim_qk][LANES]; grad: of q or k */
    float *grad_o, *grad_v;          /* [dim_v][LANES]; grad_v with lanes as keys */
    float *kbar, *lambda;            /* [dim_qk][LANES], LLA */
    float *weights;                  /* [len_kv][LANES], LLA */
    /* One pass: for each block of queries of the heads that share keys a panel [dim_qk][LANES] of sums for dq
     * and a row of weights of the origin in it; those of the head at hand. NULL in two passes. */
    float *group_sums, *head_sums;
    float *rows_q, *rows_rho, *rows_u, *rows_y,
        *rows_kbar; /* [TILE_KEYS][dim_qk]: a tile of queries, streamed past the keys */
    float *rows_do; /* [TILE_KEYS][dim_v] */
    /* Operands as bfloat16 pairs. Where lanes are queries: panels of query, probe and grad_o, and key tiles.
     * Where lanes are keys: panels of key and value, and tiles of queries, probes and grad_o. */
    int32_t *query_pairs, *probe_pairs, *grad_o_pairs, *tile_pairs;
    uint16_t *key_tokens, *query_tokens, *probe_tokens, *do_tokens;
    uint16_t *query_copy, *probe_copy, *value_copy;
    solver solver;
    row_double row;
} block;

/* Floats of the sums for dq of a head, and of one of its blocks. */
static inline size_t block_sums_size(const loam_problem *p) { return ((size_t)p->dim_qk + 1) * LANES; }

static inline size_t head_sums_size(const loam_problem *p)
{
    return size_mul(((size_t)p->len_q + LANES - 1) / LANES, block_sums_size(p));
}

static inline void block_carve(block *blk, const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, wide = d > dv ? d : dv, f = sizeof(float);
    const bool solved = p->mechanism == LOAM_LLA, probed = p->mechanism != LOAM_SOFTMAX;
    float **const tiles[] = { &blk->s, &blk->t, &blk->u, &blk->g, &blk->w };
    float **const panels[] = { &blk->query, &blk->probe, &blk->y, &blk->grad, &blk->kbar, &blk->lambda };
    float **const rows[] = { &blk->rows_q, &blk->rows_rho, &blk->rows_u, &blk->rows_y, &blk->rows_kbar };
    blk->tile.keys = arena_take(pool, TILE_KEYS * wide, f);
    blk->values = arena_take(pool, TILE_KEYS * dv, f);
    for (size_t n = 0; n < sizeof tiles / sizeof *tiles; n++)
        *tiles[n] = arena_take(pool, TILE_KEYS * LANES, f);
    for (size_t n = 0; n < sizeof panels / sizeof *panels; n++)
        *panels[n] = arena_take(pool, d * LANES, f);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        *rows[n] = arena_take(pool, probed || n == 0 ? TILE_KEYS * d : 0, f);
    blk->grad_o = arena_take(pool, dv * LANES, f);
    blk->grad_v = arena_take(pool, dv * LANES, f);
    blk->rows_do = arena_take(pool, TILE_KEYS * dv, f);
    blk->tile.copy = arena_take(pool, raw_copy_size(p->dim_qk), sizeof(uint16_t));
    blk->query_copy = arena_take(pool, raw_copy_size(p->dim_qk), sizeof(uint16_t));
    blk->probe_copy = arena_take(pool, raw_copy_size(p->dim_qk), sizeof(uint16_t));
    blk->value_copy = arena_take(pool, raw_copy_size(p->dim_v), sizeof(uint16_t));
    blk->query_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    blk->probe_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    blk->grad_o_pairs = arena_take(pool, pair_panel_size(p->dim_v), sizeof(int32_t));
    blk->tile_pairs = arena_take(pool, pair_panel_size(TILE_KEYS), sizeof(int32_t));
    blk->key_tokens = arena_take(pool, token_pairs_size(p->dim_qk), sizeof(uint16_t));
    blk->query_tokens = arena_take(pool, token_pairs_size(p->dim_qk), sizeof(uint16_t));
    blk->probe_tokens = arena_take(pool, token_pairs_size(p->dim_qk), sizeof(uint16_t));
    blk->do_tokens = arena_take(pool, token_pairs_size(p->dim_v), sizeof(uint16_t));
    blk->group_sums = arena_take(
        pool, fits_one_pass(p) ? size_mul(head_sums_size(p), (size_t)(p->heads_q / p->heads_kv)) : 0, f);
    blk->head_sums = NULL;
    blk->weights = arena_take(pool, solved ? size_mul((size_t)p->len_kv, LANES) : 0, f);
    if (solved) {
        blk->solver = solver_carve(p, pool);
        blk->row = row_double_carve(p, pool);
    }
}

static inline size_t block_bytes(const loam_problem *p)
{
    block blk;
    arena pool = { 0 };
    block_carve(&blk, p, &pool);
    return pool.used;
}

static inline void block_begin(block *blk, const loam_problem *p, const loam_args *a, const local_seq *s,
                               int64_t h)
{
    head_begin(&blk->hd, p, a, s, h);
    blk->sc = scoring_of(&blk->hd);
    blk->probed = p->mechanism != LOAM_SOFTMAX;
    blk->solved = p->mechanism == LOAM_LLA;
    blk->by_max = blk->solved && p->ridge_unit == LOAM_RIDGE_MAX;
    blk->by_trace = blk->solved && p->ridge_unit == LOAM_RIDGE_TRACE;
}

/* The gradient terms of one pair: ds = d loss / d s, and the factors that dk and dv need. */
typedef struct pair_terms {
    vec ds, error, kept, spread; /* error: p E; kept: p (1 - u); spread: p e / unit of the trace unit */
} pair_terms;

VEC_INLINE pair_terms pair_of(bool by_max, bool by_trace, vec p, vec u, vec g, vec t, vec e, vmask at_peak,
                              vec spread, vec excess)
{
    const vec error = g + t, kept = p * (1.0f - u);
    pair_terms out = { kept * error, p * error, kept, p * spread };
    out.ds += by_max ? v_select(at_peak, e, v_set(0)) : p * e;
    if (by_trace) out.ds += out.spread * excess;
    return out;
}

#endif
