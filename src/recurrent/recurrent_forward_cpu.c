/* SPDX-License-Identifier: MIT
 * The forward pass by chunks of 64 tokens, one after the other; heads and sequences are shared among the threads. Compiled
 * once per instruction set. MesaNet is not here: its read has a system for every token. */
#include "src/recurrent/recurrent_chunk.h"

#include <omp.h>

static size_t chunk_bytes(const loam_problem *p)
{
    chunk x;
    arena pool = { 0 };
    chunk_carve(&x, p, NULL, &pool);
    return pool.used;
}

/* Row r of a state: where channel c of it is. */
static float *state_at(const chunk *x, int64_t r, int64_t c)
{
    return r < x->p->dim_v ? &x->state[(r / LANES * x->width + c) * LANES + r % LANES] : &x->mass[c];
}

static void load_state(const chunk *x)
{
    const loam_const_view *in = &x->a->state_in;
    memset(x->state, 0, (size_t)(x->panels * x->width * LANES) * sizeof *x->state);
    memset(x->mass, 0, (size_t)x->width * sizeof *x->mass);
    for (int64_t r = 0; in->data && r < recurrent_state_rows(x->p); r++) {
        const float *row = (const float *)in->data + RECURRENT_AT(*in, x->s.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++) {
            *state_at(x, r, c) = row[c];
        }
    }
}

static void store_state(const chunk *x)
{
    const loam_view *out = &x->a->state_out;
    for (int64_t r = 0; out->data && r < recurrent_state_rows(x->p); r++) {
        float *row = (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++) {
            row[c] = *state_at(x, r, c);
        }
    }
}

static void put_info(const chunk *x)
{
    const loam_view *info = &x->a->info;
    for (int64_t t = 0; info->data && t < x->tokens; t++) {
        const bool empty = x->p->normalise && x->weight[t] == 0;
        loam_row_info *row = (loam_row_info *)info->data +
                             RECURRENT_AT(*info, x->s.b, x->h, x->s.first + x->first + t);
        *row = (loam_row_info){ empty ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
    }
}

static void one_head(chunk *x)
{
    load_state(x);
    for (int64_t first = 0; first < x->s.len; first += CHUNK) {
        chunk_load(x, first, x->s.len - first < CHUNK ? x->s.len - first : CHUNK);
        chunk_pairs(x);
        if (x->p->normalise) {
            chunk_weights(x);
        }
        for (int64_t panel = 0; panel < x->panels; panel++) {
            chunk_values(x, panel);
        }
        put_info(x);
    }
    store_state(x);
}

size_t RECURRENT_JOIN(ISA(recurrent_forward), work)(const loam_problem *p)
{
    return size_mul(chunk_bytes(p), (size_t)p->threads);
}

loam_status ISA(recurrent_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = chunk_bytes(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        chunk x;
        chunk_carve(&x, p, a, &pool);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t b = 0; b < p->batch; b++) {
            for (int64_t h = 0; h < p->heads_v; h++) {
                x.s = recurrent_seq_at(p, a, b);
                x.h = h;
                one_head(&x);
            }
        }
    }
    return loam_succeed(error);
}
