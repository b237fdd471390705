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
#include "src/local/cpu/decode_given.h"
#include "src/local/cpu/decode_solved.h"

#include <omp.h>

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
    block k;
    arena of_block = { 0 };
    block_carve(&k, p, &of_block);
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

static void set_probes(block *k, const decode_call *call)
{
    for (int64_t slot = 0; slot < k->c.rows; slot++) {
        float *probe = k->probe + slot * k->stride;
        if (call->p->mechanism == LOAM_LLA) {
            memcpy(probe, call->w.probes + (k->c.index + slot) * k->stride,
                   (size_t)k->stride * sizeof(float));
        } else if (call->p->mechanism == LOAM_PARALLAX) {
            load_padded(probe, &call->a->probe, k, &k->row[slot]);
        }
    }
}

/* The states of a chunk over one split. */
static void chunk_split(block *k, const decode_call *call, const phase *ph, int64_t split, double *states)
{
    const int64_t step = split_keys(ph, k->c.end - k->c.begin), begin = k->c.begin + split * step;
    const int64_t end = begin + step < k->c.end ? begin + step : k->c.end;
    for (int64_t r = 0; r < k->c.rows; r++) {
        local_state_clear(&ph->p, states + r * ph->size);
        states[(r + 1) * ph->size - 1] = 0;
    }
    if (begin >= end) return;
    split_begin(k, begin, end);
    switch (ph->how) {
    case GIVEN:
        set_probes(k, call);
        given_split(k, begin, end, states, ph->size);
        break;
    case MOMENTS: moments_split(k, begin, end, states, ph->size); break;
    case EXACT: exact_split(k, 0, begin, end, states); break;
    }
}

/* Stores the result of the merged state of one row: state, probe, or outputs. */
static void row_end(block *k, const decode_call *call, const phase *ph, int64_t row, double *state)
{
    const loam_problem *p = call->p;
    const int64_t index = k->c.index + row, in_group = k->c.row + row;
    const int64_t h = k->c.h_kv * (p->heads_q / p->heads_kv) + in_group / p->len_q, i = in_group % p->len_q;
    double *rho = k->scratch + local_state_scratch(p);
    float *probe = call->w.probes + index * k->stride;
    if (call->states) {
        memcpy(call->states + index * ph->size, state, (size_t)ph->size * sizeof(double));
    } else if (ph->how == MOMENTS) {
        call->w.again[index] = !moments_probe(&ph->p, call->a, &k->c.s, h, i, state, k->scratch, rho,
                                              &call->w.info[index]);
        for (int64_t c = 0; c < k->stride; c++)
            probe[c] = c < p->dim_qk ? (float)rho[c] : 0;
    } else if (ph->how == GIVEN && p->mechanism == LOAM_LLA) {
        for (int64_t c = 0; c < p->dim_qk; c++)
            rho[c] = (double)probe[c];
        local_state_put(&ph->p, call->a, &k->c.s, h, i, state, rho, call->w.info[index]);
    } else {
        local_state_finish(p, call->a, &k->c.s, h, i, state, k->scratch);
    }
}

/* Merges the states of the splits (row r of a split at parts + (split ph->rows + r) ph->size)
 * and finishes the rows. */
static void chunk_end(block *k, const decode_call *call, const phase *ph, double *parts)
{
    const int64_t splits = split_count(ph, k->c.end - k->c.begin);
    for (int64_t r = 0; r < k->c.rows; r++) {
        double *state = parts + r * ph->size;
        if (splits == 0) local_state_clear(&ph->p, state);
        for (int64_t split = 1; split < splits; split++) {
            const double *from = state + split * ph->rows * ph->size;
            if (ph->how == MOMENTS)
                moments_merge(&ph->p, state, from);
            else
                local_state_merge(&ph->p, state, from);
        }
        if (row_wanted(call, ph, k->c.index + r)) row_end(k, call, ph, r, state);
    }
}

/* ------------------------------------------------------------------ all chunks */

/* Sets the block to chunk n of the phase; returns whether the phase computes any of its rows. */
static bool block_begin(block *k, const decode_call *call, const phase *ph, int64_t n)
{
    k->c = chunk_of(call, ph, n);
    k->x.p = call->p, k->x.a = call->a, k->x.s = k->c.s, k->x.h_kv = k->c.h_kv;
    return chunk_wanted(call, ph, &k->c);
}

/* Called by every thread of a parallel region. */
static void phase_run(block *k, const decode_call *call, method how)
{
    const phase ph = phase_of(call->p, how);
    for (int64_t from = 0; from < ph.chunks; from += ph.wave) {
        const int64_t chunks = ph.chunks - from < ph.wave ? ph.chunks - from : ph.wave;
        const int64_t doubles = ph.splits * ph.rows * ph.size;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * ph.splits; task++) {
            const int64_t n = task / ph.splits, split = task % ph.splits;
            if (block_begin(k, call, &ph, from + n))
                chunk_split(k, call, &ph, split, call->w.parts + n * doubles + split * ph.rows * ph.size);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < chunks; n++)
            if (block_begin(k, call, &ph, from + n)) chunk_end(k, call, &ph, call->w.parts + n * doubles);
    }
}

static loam_status decode(decode_call call, loam_error *error)
{
    arena pool = { call.a->work, 0 };
    call.w = work_carve(call.p, &pool);
#pragma omp parallel num_threads(call.p->threads)
    {
        arena own = { call.w.blocks + call.w.block_bytes * (size_t)omp_get_thread_num(), 0 };
        block k;
        block_carve(&k, call.p, &own);
        if (call.p->mechanism != LOAM_LLA) {
            phase_run(&k, &call, GIVEN);
        } else if (call.states) {
            phase_run(&k, &call, EXACT);
        } else {
            phase_run(&k, &call, MOMENTS);
            phase_run(&k, &call, GIVEN);
            phase_run(&k, &call, EXACT);
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
