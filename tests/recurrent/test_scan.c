/* SPDX-License-Identifier: MIT
 * The additive recurrences as a parallel scan (Blelloch 1990): what a chunk does to the state is a pair
 * of a decay and what it writes, pairs combine associatively, and a tree over the chunks gives the
 * state at the beginning of each. With the quadratic form inside the chunks that is every output. */
#include "tests/recurrent/cases.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEN = 77, DIM = 6, DIM_V = 5, CHUNK = 8, LEAVES = 16, STATE = DIM * DIM_V };
#define TOLERANCE 1e-13

/* S -> S Diag(decay) + write */
typedef struct item {
    double decay[DIM], write[STATE];
} item;

/* What `later` does to what `earlier` has left. */
static item combine(const item *earlier, const item *later)
{
    item both;
    for (int c = 0; c < DIM; c++) {
        both.decay[c] = earlier->decay[c] * later->decay[c];
        for (int r = 0; r < DIM_V; r++) {
            both.write[r * DIM + c] = earlier->write[r * DIM + c] * later->decay[c] +
                                      later->write[r * DIM + c];
        }
    }
    return both;
}

static item nothing(void)
{
    item none = { .decay = { 0 } };
    for (int c = 0; c < DIM; c++)
        none.decay[c] = 1;
    return none;
}

/* x[n] <- what x[0] .. x[n - 1] do one after the other: sums of pairs up a tree, prefixes down. */
static void scan(item x[LEAVES])
{
    for (int step = 1; step < LEAVES; step *= 2)
        for (int n = 2 * step - 1; n < LEAVES; n += 2 * step)
            x[n] = combine(&x[n - step], &x[n]);
    x[LEAVES - 1] = nothing();
    for (int step = LEAVES / 2; step > 0; step /= 2) {
        for (int n = 2 * step - 1; n < LEAVES; n += 2 * step) {
            const item left = x[n - step];
            x[n - step] = x[n];
            x[n] = combine(&x[n], &left);
        }
    }
}

/* e^g of channel c of the token. */
static double decay_at(const values *v, int64_t t, int c)
{
    switch (spec_recurrence_of(&v->spec).gate) {
    case SPEC_NO_GATE: return 1;
    case SPEC_GATE_HEAD: return exp(v->x[SLOT_LOG_DECAY][0]);
    case SPEC_GATE_TOKEN: return exp(v->x[SLOT_LOG_DECAY][t]);
    case SPEC_GATE_CHANNEL: break;
    }
    return exp(v->x[SLOT_LOG_DECAY][t * DIM + c]);
}

static item token_item(const values *v, int64_t t)
{
    item x;
    const double beta = v->x[SLOT_BETA] ? v->x[SLOT_BETA][t] : 1;
    for (int c = 0; c < DIM; c++) {
        x.decay[c] = decay_at(v, t, c);
        for (int r = 0; r < DIM_V; r++)
            x.write[r * DIM + c] = beta * v->x[SLOT_V][t * DIM_V + r] * v->x[SLOT_K][t * DIM + c];
    }
    return x;
}

/* What the chunk does, each token's write with the product of the decays after it. */
static item chunk_item(const values *v, int64_t n)
{
    item x = nothing();
    for (int64_t t = (n + 1) * CHUNK < LEN ? (n + 1) * CHUNK - 1 : LEN - 1; t >= n * CHUNK; t--) {
        const item token = token_item(v, t);
        for (int e = 0; e < STATE; e++)
            x.write[e] += token.write[e] * x.decay[e % DIM];
        for (int c = 0; c < DIM; c++)
            x.decay[c] *= token.decay[c];
    }
    return x;
}

/* Outputs of the chunk from the state at its beginning: all pairs of its tokens. */
static void read_chunk(const values *v, int64_t n, const item *before, double scale, double *o)
{
    for (int64_t t = n * CHUNK; t < (n + 1) * CHUNK && t < LEN; t++) {
        const double *q = v->x[SLOT_Q] + t * DIM;
        double decay[DIM];
        for (int c = 0; c < DIM; c++)
            decay[c] = scale * q[c];
        for (int64_t i = t; i >= n * CHUNK; i--) {
            const item token = token_item(v, i);
            for (int e = 0; e < STATE; e++)
                o[t * DIM_V + e / DIM] += token.write[e] * decay[e % DIM];
            for (int c = 0; c < DIM; c++)
                decay[c] *= token.decay[c];
        }
        for (int e = 0; e < STATE; e++) {
            const double start = v->x[SLOT_STATE_IN][e] * before->decay[e % DIM] + before->write[e];
            o[t * DIM_V + e / DIM] += start * decay[e % DIM];
        }
    }
}

static void scan_is_the_recurrence(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        if (!is_additive(mechanism)) continue;
        for (int hostile = 0; hostile < 2; hostile++) {
            spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, DIM, DIM_V);
            s.scale = 0.4;
            s.data = hostile ? DATA_STEEP : DATA_NORMAL;
            values v = values_make(&s);
            expect_run(&v);
            item before[LEAVES];
            double o[LEN * DIM_V] = { 0 };
            for (int n = 0; n < LEAVES; n++)
                before[n] = n * CHUNK < LEN ? chunk_item(&v, n) : nothing();
            scan(before);
            for (int64_t n = 0; n * CHUNK < LEN; n++)
                read_chunk(&v, n, &before[n], s.scale, o);
            expect_near("the scan", &v, SLOT_O, o, TOLERANCE, 0.01);
            for (int e = 0; e < STATE; e++) { /* the last leaf sees all that is before it: every chunk */
                const item *all = &before[LEAVES - 1];
                const double want = v.x[SLOT_STATE_IN][e] * all->decay[e % DIM] + all->write[e];
                assert_true(fabs(v.x[SLOT_STATE_OUT][e] - want) <= TOLERANCE * (1 + fabs(want)));
            }
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(scan_is_the_recurrence) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
