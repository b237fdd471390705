/* SPDX-License-Identifier: MIT
 *
 * Backward of a chunk, float32. S0 is the state at the chunk's start, dS1 and dS0 are the gradients of the
 * state at its end and start, do the gradient of the output (divided by the denominator where reads are
 * normalised), and the rest is as in recurrent/cpu/chunk.h:
 *
 *     du = P^T do + (k e^suf) dS1^T,   delta rule: (I + A^T Diag(beta)) r = du, else r = du;   w = beta r
 *     dv = w,   dbeta = r . err,   err = v - [delta rule] (S0 k_in + A u)
 *     dP = do u^T (j <= i),   dA = -w u^T (j < i)
 *     dq_in = do S0,   dk_in = -w S0,   dk_out = u dS1
 *     dS0 = dS1 e^pre_last + do^T q_in - [delta rule] w^T k_in
 *
 * and from these dq, dk and the gradient of the gates. Gate t is a summand of every decay that spans it, so
 * its gradient is the sum of the gradients of these decays, each times the decayed quantity: pairs
 * i >= t > j, rows i >= t that read S0, keys j < t in S1, and S0 . dS1. All terms are summed directly; none
 * is a difference of sums over time.
 *
 * Arrays over tokens are [width][LANES] here, lanes are tokens, until they are transposed at the end. */
#ifndef LOAM_RECURRENT_CPU_CHUNK_GRADIENT_H
#define LOAM_RECURRENT_CPU_CHUNK_GRADIENT_H

#include "src/recurrent/cpu/chunk.h"

typedef struct gradient {
    float *grad_o, *err, *r;         /* [panels][CHUNK][LANES]; r begins as P^T do */
    float *w;                        /* [panels][CHUNK][LANES]; delta rule: -w, as all uses but dv need it */
    float *state;                    /* laid out as a state: dS1 */
    float *transposed[3];            /* [LANES][CHUNK]: do, u, w of one panel */
    float *dP, *dA;                  /* [CHUNK][LANES] */
    float *pairs, *pairs_transposed; /* [CHUNK][LANES]: scratch */
    float *q_lanes;                  /* [width][LANES] */
    float *q_in, *k_in, *k_out;      /* [width][LANES]: gradients */
    float *q, *k;                    /* [width][LANES]: gradients, transposed in the end into .. */
    float *q_rows, *k_rows, *gate;   /* .. [CHUNK][width]; gate: or [CHUNK] */
    float *state_dot;                /* [width]: sum over rows of S0 dS1; per channel then times e^pre_last */
    float *denominator, *beta;       /* [CHUNK]: gradients */
    float *inverse; /* [CHUNK]: 1 / denominator of normalised reads, 0 where that is 0; else 1 */
    /* One decay per channel, terms of the gradient of gates: keys of a block times their gradients, and rows
     * of a block times theirs, [width][LANES]; the same transposed, [CHUNK][width]. */
    float *key_terms, *row_terms, *key_terms_rows, *row_terms_rows;
    float *block_decay_to;            /* [width][LANES]: e^pre within the block */
    float *earlier_keys, *later_rows; /* [width]: sums over keys of earlier blocks, rows of later blocks */
} gradient;

static inline void gradient_carve(gradient *g, const chunk *x, arena *pool)
{
    const size_t width = (size_t)x->width, rows = CHUNK * width, square = CHUNK * LANES;
    const size_t panels = (size_t)x->panels * square, channels = x->form->gate == GATE_CHANNEL ? rows : 0;
    const struct {
        float **at;
        size_t floats;
    } parts[] = {
        { &g->grad_o, panels },
        { &g->err, panels },
        { &g->r, panels },
        { &g->w, panels },
        { &g->state, (size_t)chunk_state_floats(x) },
        { &g->transposed[0], square },
        { &g->transposed[1], square },
        { &g->transposed[2], square },
        { &g->dP, square },
        { &g->dA, square },
        { &g->pairs, square },
        { &g->pairs_transposed, square },
        { &g->q_lanes, rows },
        { &g->q_in, rows },
        { &g->k_in, rows },
        { &g->k_out, rows },
        { &g->q, rows },
        { &g->k, rows },
        { &g->q_rows, rows },
        { &g->k_rows, rows },
        { &g->gate, rows },
        { &g->state_dot, width },
        { &g->denominator, CHUNK },
        { &g->beta, CHUNK },
        { &g->inverse, CHUNK },
        { &g->key_terms, channels },
        { &g->row_terms, channels },
        { &g->key_terms_rows, channels },
        { &g->row_terms_rows, channels },
        { &g->block_decay_to, channels },
        { &g->earlier_keys, width },
        { &g->later_rows, width },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].at = arena_take(pool, parts[i].floats, sizeof(float));
}

/* Sum over lanes, first to last. */
static inline float lanes_sum(const float *row, int64_t lanes)
{
    float sum = 0;
    for (int64_t lane = 0; lane < lanes; lane++)
        sum += row[lane];
    return sum;
}

/* ------------------------------------------------------------------ of any chunk, from S0 alone */

/* err = v - S0 k_in - A u; only dbeta reads it. */
static inline void gradient_errors(gradient *g, const chunk *x, const float *state, int64_t panel)
{
    float *err = chunk_panel(g->err, panel);
    chunk_load_values(x, &x->a->v, g->inverse, panel, err);
    if (x->form->delta) {
        panel_product(x->correction, x->tokens, x->k_in, x->width, 1, state, x->d, false);
        panel_product(x->correction, x->tokens, x->A, LANES, 1, chunk_panel(x->u, panel), x->tokens, true);
        for (int64_t e = 0; e < x->tokens * LANES; e += VL)
            v_store(err + e, v_load(err + e) - v_load(x->correction + e));
    }
}

/* For o = n / z: dn = do / z, dz = -do . o / z, with z the denominator. Tokens of z = 0 have no gradients. */
static inline void gradient_normalised(gradient *g, const chunk *x, float *start)
{
    memset(g->denominator, 0, CHUNK * sizeof *g->denominator);
    chunk_denominators(x, x->q_in, chunk_normaliser(x, start), LANES);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        float *grad_o = chunk_panel(g->grad_o, panel);
        chunk_load_values(x, &x->a->grad_o, g->inverse, panel, grad_o);
        panel_product(x->o, x->tokens, x->q_in, x->width, 1, chunk_state_panel(x, start, panel), x->d, false);
        panel_product(x->o, x->tokens, x->P, LANES, 1, chunk_panel(x->u, panel), x->tokens, true);
        for (int64_t t = 0; t < x->tokens; t++)
            g->denominator[t] -= features_dot(grad_o + t * LANES, x->o + t * LANES, LANES);
    }
    for (int64_t t = 0; t < x->tokens; t++) {
        const float denominator = x->denominator[t];
        g->inverse[t] = denominator == 0 ? 0 : 1 / denominator;
        g->denominator[t] = denominator == 0 ? 0 : g->denominator[t] / denominator / denominator;
    }
}

/* u, err, do, and r <- P^T do. */
static inline void gradient_prepare(gradient *g, const chunk *x, float *start)
{
    for (int64_t t = 0; t < CHUNK; t++)
        g->inverse[t] = 1;
    for (int64_t panel = 0; panel < x->panels; panel++) {
        float *state = chunk_state_panel(x, start, panel);
        chunk_write(x, state, panel);
        if (x->form->beta) gradient_errors(g, x, state, panel);
    }
    if (x->p->normalise) gradient_normalised(g, x, start);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_load_values(x, &x->a->grad_o, g->inverse, panel, chunk_panel(g->grad_o, panel));
        panel_product(chunk_panel(g->r, panel), x->tokens, x->P, 1, LANES, chunk_panel(g->grad_o, panel),
                      x->tokens, false);
    }
}

/* ------------------------------------------------------------------ chunk after chunk: from dS1 to dS0 */

/* r_i += known_i for rows begin .. end - 1. */
static inline void gradient_add_correction(const chunk *x, float *r, int64_t begin, int64_t end)
{
    for (int64_t e = begin * LANES; e < end * LANES; e += VL)
        v_store(r + e, v_load(r + e) + v_load(x->correction + e));
}

static inline void gradient_scale_row(float *to, const float *from, float factor)
{
    FOR_LANES(lane) { v_store(to + lane, v_load(from + lane) * factor); }
}

/* Solves (I + A^T Diag(beta)) r = du by substitution, from the last block of rows to the first. */
static inline void gradient_back_substitution(const chunk *x, float *r, float *w)
{
    for (int64_t begin = (chunk_blocks(x) - 1) * BLOCK; begin >= 0; begin -= BLOCK) {
        const int64_t end = chunk_block_end(x, begin);
        if (end < x->tokens) {
            panel_product(x->correction + begin * LANES, end - begin, x->A + end * LANES + begin, 1, LANES,
                          w + end * LANES, x->tokens - end, false);
            gradient_add_correction(x, r, begin, end);
        }
        for (int64_t i = end - 1; i >= begin; i--) {
            panel_product(x->correction + i * LANES, 1, x->A + (i + 1) * LANES + i, 1, LANES,
                          w + (i + 1) * LANES, end - i - 1, false);
            gradient_add_correction(x, r, i, i + 1);
            gradient_scale_row(w + i * LANES, r + i * LANES, -x->beta[i]);
        }
    }
}

static inline void gradient_advance_normaliser(const gradient *g, const chunk *x, float *normaliser)
{
    for (int64_t c = 0; c < x->d; c++) {
        normaliser[c] *= x->total_decay[c];
        for (int64_t t = 0; t < x->tokens; t++)
            normaliser[c] += x->q_in[t * x->width + c] * g->denominator[t];
    }
}

/* On entry `state` is dS1, which is copied to g->state; `state` becomes dS0. */
static inline void gradient_advance(const gradient *g, const chunk *x, float *state)
{
    memcpy(g->state, state, (size_t)chunk_state_floats(x) * sizeof *state);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        float *r = chunk_panel(g->r, panel), *w = chunk_panel(g->w, panel);
        float *at = chunk_state_panel(x, state, panel);
        panel_product(r, x->tokens, x->k_out, 1, LANES, at, x->d, true);
        if (x->form->delta)
            gradient_back_substitution(x, r, w);
        else
            for (int64_t i = 0; i < x->tokens; i++)
                gradient_scale_row(w + i * LANES, r + i * LANES, x->beta[i]);
        chunk_clear_tail(x, w, LANES);
        for (int64_t c = 0; c < x->d; c++)
            gradient_scale_row(at + c * LANES, at + c * LANES, x->total_decay[c]);
        panel_product(at, x->d, x->q_in, 1, x->width, chunk_panel(g->grad_o, panel), x->tokens, true);
        if (x->form->delta) panel_product(at, x->d, x->k_in, 1, x->width, w, x->tokens, true);
    }
    if (x->p->normalise) gradient_advance_normaliser(g, x, chunk_normaliser(x, state));
}

/* ------------------------------------------------------------------ of any chunk, from S0 and dS1 */

/* state_dot += sum over the lanes of S0 dS1. */
static inline void gradient_state_dot(const gradient *g, const chunk *x, const float *state,
                                      const float *grad)
{
    for (int64_t c = 0; c < x->d; c++) {
        vec sum = v_set(0);
        float part[VL];
        FOR_LANES(lane) { sum += v_load(state + c * LANES + lane) * v_load(grad + c * LANES + lane); }
        v_store(part, sum);
        g->state_dot[c] += lanes_sum(part, VL);
    }
}

/* dP, dA, dq_in, dk_in, dk_out, state_dot. */
static inline void gradient_factors(const gradient *g, const chunk *x, float *start)
{
    float *const *transposed = g->transposed;
    memset(g->state_dot, 0, (size_t)x->width * sizeof *g->state_dot);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        const float *grad_o = chunk_panel(g->grad_o, panel), *u = chunk_panel(x->u, panel);
        const float *w = chunk_panel(g->w, panel), *state = chunk_state_panel(x, start, panel);
        const float *grad = chunk_state_panel(x, g->state, panel);
        transpose_tile(transposed[0], LANES, grad_o, LANES, CHUNK, LANES);
        transpose_tile(transposed[1], LANES, u, LANES, CHUNK, LANES);
        panel_product(g->dP, x->tokens, grad_o, LANES, 1, transposed[1], LANES, panel > 0);
        panel_product(g->q_in, x->d, state, LANES, 1, transposed[0], LANES, panel > 0);
        panel_product(g->k_out, x->d, grad, LANES, 1, transposed[1], LANES, panel > 0);
        if (x->form->delta) {
            transpose_tile(transposed[2], LANES, w, LANES, CHUNK, LANES);
            panel_product(g->dA, x->tokens, w, LANES, 1, transposed[1], LANES, panel > 0);
            panel_product(g->k_in, x->d, state, LANES, 1, transposed[2], LANES, panel > 0);
        }
        if (x->form->gate != GATE_NONE) gradient_state_dot(g, x, state, grad);
    }
}

/* The contribution of the normaliser, a channel of v that is 1 everywhere: its u is beta. */
static inline void gradient_factors_of_normaliser(const gradient *g, const chunk *x, float *start)
{
    const float *normaliser = chunk_normaliser(x, start), *grad = chunk_normaliser(x, g->state);
    for (int64_t i = 0; i < x->tokens; i++) {
        FOR_LANES(lane)
        {
            const int64_t e = i * LANES + lane;
            v_store(g->dP + e, v_load(g->dP + e) + v_load(x->beta + lane) * g->denominator[i]);
        }
    }
    for (int64_t c = 0; c < x->d; c++) {
        g->state_dot[c] += normaliser[c] * grad[c];
        FOR_LANES(lane)
        {
            const int64_t e = c * LANES + lane;
            v_store(g->q_in + e, v_load(g->q_in + e) + v_load(g->denominator + lane) * normaliser[c]);
            v_store(g->k_out + e, v_load(g->k_out + e) + v_load(x->beta + lane) * grad[c]);
        }
    }
}

/* dbeta = r . err, plus the contribution of the normaliser. */
static inline void gradient_beta(const gradient *g, const chunk *x)
{
    const float *normaliser = chunk_normaliser(x, g->state);
    for (int64_t t = 0; t < x->tokens; t++) {
        g->beta[t] = 0;
        for (int64_t panel = 0; panel < x->panels; panel++) {
            g->beta[t] += features_dot(chunk_panel(g->r, panel) + t * LANES,
                                       chunk_panel(g->err, panel) + t * LANES, LANES);
        }
        for (int64_t i = t; x->p->normalise && i < x->tokens; i++)
            g->beta[t] += x->P[i * LANES + t] * g->denominator[i];
        for (int64_t c = 0; x->p->normalise && c < x->d; c++)
            g->beta[t] += x->k_out[c * LANES + t] * normaliser[c];
    }
}

/* ------------------------------------------------------------------ one decay per token */

/* pairs <- dP e^seg (j <= i) or dA e^seg (j < i), also transposed; rows and lanes beyond the tokens are 0. */
static inline void gradient_pairs(const gradient *g, const chunk *x, const float *from, bool diagonal)
{
    for (int64_t e = 0; e < x->tokens * LANES; e += VL) {
        const vec decay = v_load(x->pair_decay + e);
        v_store(g->pairs + e, v_select(decay > 0, v_load(from + e) * decay, v_set(0)));
    }
    for (int64_t i = 0; !diagonal && i < x->tokens; i++)
        g->pairs[i * LANES + i] = 0;
    chunk_clear_tail(x, g->pairs, LANES);
    transpose_tile(g->pairs_transposed, LANES, g->pairs, LANES, CHUNK, LANES);
}

static inline void gradient_by_token(const gradient *g, const chunk *x)
{
    gradient_pairs(g, x, g->dP, true);
    panel_product(g->q, x->d, x->k, 1, x->width, g->pairs_transposed, x->tokens, false);
    panel_product(g->k, x->d, x->q, 1, x->width, g->pairs, x->tokens, false);
    panel_axpy(g->q, x->d, x->decay_to, g->q_in);
    panel_axpy(g->k, x->d, x->decay_from, g->k_out);
    if (x->form->delta) { /* both factors of A are k */
        gradient_pairs(g, x, g->dA, false);
        for (int64_t e = 0; e < CHUNK * LANES; e += VL)
            v_store(g->pairs + e, v_load(g->pairs + e) + v_load(g->pairs_transposed + e));
        panel_product(g->k, x->d, x->k, 1, x->width, g->pairs, x->tokens, true);
        panel_axpy(g->k, x->d, x->decay_to, g->k_in);
    }
}

/* Sums the terms whose decays span gate t. over[j]: the terms of pairs (i, j) with i >= t. */
static inline void gradient_gate_by_token(const gradient *g, const chunk *x)
{
    float reads[LANES] = { 0 }, keeps[LANES] = { 0 }, writes[LANES] = { 0 }, over[LANES] = { 0 };
    float state_term = 0, later = 0, earlier = 0;
    panel_dot(reads, g->q_lanes, g->q_in, x->d);
    panel_dot(keeps, x->k_lanes, g->k_out, x->d);
    if (x->form->delta) panel_dot(writes, x->k_lanes, g->k_in, x->d);
    for (int64_t c = 0; c < x->d; c++)
        state_term += x->total_decay[c] * g->state_dot[c];
    for (int64_t t = x->tokens - 1; t >= 0; t--) {
        FOR_LANES(lane)
        {
            const int64_t e = t * LANES + lane;
            vec sum = v_load(over + lane) + v_load(g->dP + e) * v_load(x->P + e);
            if (x->form->delta) sum += v_load(g->dA + e) * v_load(x->A + e);
            v_store(over + lane, sum);
        }
        later += x->decay_to[t] * (reads[t] + writes[t]);
        g->gate[t] = state_term + later + lanes_sum(over, t);
    }
    for (int64_t t = 0; t < x->tokens; t++) {
        g->gate[t] += earlier;
        earlier += x->decay_from[t] * keeps[t];
    }
}

/* ------------------------------------------------------------------ one decay per channel */

/* Pairs within tokens begin .. end - 1, for VL channels from c on: adds to rows of dq, dk and the gates. */
static inline void gradient_diagonal_block(const gradient *g, const chunk *x, int64_t begin, int64_t end,
                                           int64_t c)
{
    const int64_t width = x->width;
    const bool delta = x->form->delta;
    for (int64_t j = begin; j < end; j++) {
        const vec key = v_load(x->k + j * width + c), diagonal = v_set(g->dP[j * LANES + j]);
        vec decay[BLOCK], all = v_set(1), over = v_set(0);
        vec grad = diagonal * v_load(x->q + j * width + c);
        float *at = g->q_rows + j * width + c;
        v_store(at, v_load(at) + diagonal * key);
        for (int64_t i = j + 1; i < end; i++) {
            all *= v_load(x->decay + i * width + c);
            decay[i - begin] = all;
        }
        for (int64_t i = end - 1; i > j; i--) {
            const int64_t e = i * width + c;
            const vec now = decay[i - begin], p = v_set(g->dP[i * LANES + j]), decayed = now * key;
            vec from = p * v_load(x->q + e);
            v_store(g->q_rows + e, v_load(g->q_rows + e) + p * decayed);
            if (delta) {
                const vec a = v_set(g->dA[i * LANES + j]);
                from += a * v_load(x->k + e);
                v_store(g->k_rows + e, v_load(g->k_rows + e) + a * decayed);
            }
            from *= now;
            grad += from;
            over += from * key;
            v_store(g->gate + e, v_load(g->gate + e) + over);
        }
        at = g->k_rows + j * width + c;
        v_store(at, v_load(at) + grad);
    }
}

/* On entry g->k_out is the gradient of k_at_block[i + 1]. It becomes that of k_at_block[i]; the gradient of
 * the keys of block i goes to g->k. */
static inline void gradient_block_keys(const gradient *g, const chunk *x, int64_t i)
{
    const int64_t begin = i * BLOCK;
    for (int64_t c = 0; c < x->d; c++) {
        const int64_t at = c * LANES;
        const float *tail = x->k_at_block[i + 1] + at;
        float *grad = g->k_out + at, part[VL];
        vec older = v_set(0);
        const vec decay = v_set(x->block_decay[i * x->width + c]);
        for (int64_t lane = 0; lane < begin; lane += VL) {
            const vec now = v_load(grad + lane);
            older += now * v_load(tail + lane);
            v_store(grad + lane, now * decay);
        }
        v_store(part, older);
        g->earlier_keys[c] = lanes_sum(part, VL);
        for (int64_t lane = begin; lane < begin + BLOCK; lane += VL) {
            const vec now = v_load(grad + lane);
            v_store(g->key_terms + at + lane, now * v_load(tail + lane));
            v_store(g->k + at + lane, now * v_load(x->block_decay_from + at + lane));
        }
    }
}

/* The rows of block i, which read keys of earlier blocks and S0. */
static inline void gradient_block_rows(const gradient *g, const chunk *x, int64_t i, int64_t end)
{
    const int64_t begin = i * BLOCK, at = begin * x->width;
    const bool delta = x->form->delta;
    float *const of_q = g->transposed[0], *const of_k = g->transposed[1]; /* [CHUNK][LANES] at a time */
    for (int64_t from = 0; from < x->d; from += LANES) {
        const int64_t rows = x->d - from < LANES ? x->d - from : LANES;
        const float *tail = x->k_at_block[i] + from * LANES;
        lanes_product(of_q, rows, tail, LANES, 1, g->pairs_transposed + begin, begin, BLOCK, false);
        if (delta) lanes_product(of_k, rows, tail, LANES, 1, g->pairs + begin, begin, BLOCK, false);
        for (int64_t c = from; c < from + rows; c++) {
            const vec start = v_set(x->decay_to_block[i * x->width + c]);
            vec later = v_set(0);
            float part[VL];
            for (int64_t lane = 0; lane < BLOCK; lane += VL) {
                const int64_t e = c * LANES + begin + lane, n = (c - from) * LANES + lane;
                const vec decay_to = v_load(g->block_decay_to + e),
                          first = v_load(g->q_in + e) * start * decay_to;
                const vec dq = v_load(of_q + n) * decay_to + first;
                vec sum = dq * v_load(g->q_lanes + e);
                later += first * v_load(g->q_lanes + e);
                v_store(g->q + e, dq);
                if (delta) {
                    const vec second = v_load(g->k_in + e) * start * decay_to;
                    const vec dk = v_load(of_k + n) * decay_to + second;
                    sum += dk * v_load(x->k_lanes + e);
                    later += second * v_load(x->k_lanes + e);
                    v_store(g->k + e, v_load(g->k + e) + dk);
                }
                v_store(g->row_terms + e, sum);
            }
            v_store(part, later);
            g->later_rows[c] += lanes_sum(part, VL); /* for the gates of earlier blocks */
        }
    }
    if (begin > 0) {
        lanes_product(g->k_out, x->d, x->q_block + at, 1, x->width, g->dP + begin * LANES, end - begin, begin,
                      true);
        if (delta) {
            lanes_product(g->k_out, x->d, x->k_block + at, 1, x->width, g->dA + begin * LANES, end - begin,
                          begin, true);
        }
    }
}

/* Within a block: the gate at t gets rows i >= t and keys j < t. */
static inline void gradient_gate_by_channel(const gradient *g, const chunk *x, int64_t begin, int64_t end)
{
    FOR_WIDTH(c, x)
    {
        vec sum = v_set(0);
        for (int64_t t = begin; t < end; t++) {
            const int64_t e = t * x->width + c;
            v_store(g->gate + e, v_load(g->gate + e) + sum);
            sum += v_load(g->key_terms_rows + e);
        }
        sum = v_set(0);
        for (int64_t t = end - 1; t >= begin; t--) {
            const int64_t e = t * x->width + c;
            sum += v_load(g->row_terms_rows + e);
            v_store(g->gate + e, v_load(g->gate + e) + sum);
        }
    }
}

static inline void gradient_by_channel(const gradient *g, const chunk *x)
{
    const size_t lanes = (size_t)(x->width * LANES) * sizeof(float);
    chunk_clear_tail(x, x->block_decay_to, x->width);
    transpose_tile(g->block_decay_to, LANES, x->block_decay_to, x->width, CHUNK, x->width);
    chunk_clear_tail(x, g->dP, LANES);
    transpose_tile(g->pairs_transposed, LANES, g->dP, LANES, CHUNK, LANES);
    if (x->form->delta) {
        chunk_clear_tail(x, g->dA, LANES);
        transpose_tile(g->pairs, LANES, g->dA, LANES, CHUNK, LANES);
    }
    memset(g->q, 0, lanes);
    memset(g->k, 0, lanes);
    memset(g->key_terms, 0, lanes);
    memset(g->row_terms, 0, lanes);
    memset(g->later_rows, 0, (size_t)x->width * sizeof(float));
    for (int64_t c = 0; c < x->d; c++)
        g->state_dot[c] *= x->total_decay[c];
    for (int64_t i = chunk_blocks(x) - 1; i >= 0; i--) {
        const int64_t begin = i * BLOCK, end = chunk_block_end(x, begin);
        gradient_block_keys(g, x, i);
        for (int64_t t = begin; t < end; t++) {
            for (int64_t c = 0; c < x->width; c++) {
                g->gate[t * x->width + c] = c < x->d ? g->state_dot[c] + g->earlier_keys[c] + g->later_rows[c]
                                                     : 0;
            }
        }
        gradient_block_rows(g, x, i, end);
    }
}

/* ------------------------------------------------------------------ all gradients */

/* q_rows, k_rows [CHUNK][width], gate and beta, from S0 in `start`. */
static inline void gradient_finish(gradient *g, const chunk *x, float *start)
{
    gradient_factors(g, x, start);
    if (x->p->normalise) gradient_factors_of_normaliser(g, x, start);
    if (x->form->beta) gradient_beta(g, x);
    transpose_tile(g->q_lanes, LANES, x->q, x->width, CHUNK, x->width);
    const bool channels = x->form->gate == GATE_CHANNEL;
    if (channels)
        gradient_by_channel(g, x);
    else
        gradient_by_token(g, x);
    for (int64_t c = x->d; c < x->width; c++) {
        memset(g->q + c * LANES, 0, LANES * sizeof(float));
        memset(g->k + c * LANES, 0, LANES * sizeof(float));
    }
    transpose_tile(g->q_rows, x->width, g->q, LANES, x->width, CHUNK);
    transpose_tile(g->k_rows, x->width, g->k, LANES, x->width, CHUNK);
    if (channels) {
        transpose_tile(g->key_terms_rows, x->width, g->key_terms, LANES, x->width, CHUNK);
        transpose_tile(g->row_terms_rows, x->width, g->row_terms, LANES, x->width, CHUNK);
        for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
            const int64_t end = chunk_block_end(x, begin);
            FOR_WIDTH(c, x) { gradient_diagonal_block(g, x, begin, end, c); }
            gradient_gate_by_channel(g, x, begin, end);
        }
    } else if (x->form->gate != GATE_NONE) {
        gradient_gate_by_token(g, x);
    }
}

#endif
