/* SPDX-License-Identifier: MIT
 * FoX (Lin et al. 2025): what scores that decay are where something else is known to be the same. */
#include "tests/algebra/engine.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef void property(const engine *e, loam_mechanism mechanism, loam_pass pass);

static void for_all(property *check)
{
    for (int index = 0; index < ENGINES; index++) {
        for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
            for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
                const engine e = engine_at(index, (loam_pass)pass);
                check(&e, (loam_mechanism)mechanism, (loam_pass)pass);
            }
        }
    }
}

static spec decayed(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    spec s = engine_spec(e, mechanism, pass);
    s.decay = 1;
    return s;
}

static void set_gates(values *v, double gate)
{
    for (int64_t i = 0; i < slot_size(v, SLOT_LOG_DECAY); i++)
        v->x[SLOT_LOG_DECAY][i] = gate;
}

/* All outputs that both have. */
static void expect_like(const char *what, const engine *e, const values *got, const values *want)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        if (got->x[which] && want->x[which]) {
            expect_near(
                what, got, (slot)which, want->x[which],
                10 * engine_tolerance(e, (loam_mechanism)got->spec.mechanism, (loam_pass)got->spec.pass),
                0.1);
        }
    }
}

static void check_open(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    const spec s = decayed(e, mechanism, pass), plain = engine_spec(e, mechanism, pass);
    values v = values_make(&s), want = values_like(&plain, &v);
    set_gates(&v, 0);
    expect_run(&v);
    expect_run(&want);
    expect_like("gates of 0", e, &v, &want);
    values_free(&v);
    values_free(&want);
}

/* Equal gates are a slope (ALiBi), and its gradient is that of all of them. */
static void check_slope(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    const double gate = -0.0625;
    const spec s = decayed(e, mechanism, pass);
    spec sloped = engine_spec(e, mechanism, pass);
    sloped.slope = 1;
    values v = values_make(&s), want = values_like(&sloped, &v);
    set_gates(&v, gate);
    for (int64_t h = 0; h < s.heads_q; h++)
        want.x[SLOT_SLOPE][h] = -gate;
    expect_run(&v);
    expect_run(&want);
    expect_like("equal gates", e, &v, &want);
    for (int64_t h = 0; pass == LOAM_BACKWARD && h < s.heads_q; h++) {
        const double *own = slot_at(&v, SLOT_GRAD_LOG_DECAY, 0, h, 0);
        double sum = 0, size = 0;
        for (int64_t j = 0; j < s.len_kv; j++) {
            sum -= own[j];
            size += fabs(own[j]);
        }
        assert_true(fabs(sum - want.x[SLOT_GRAD_SLOPE][h]) <=
                    10 * engine_tolerance(e, mechanism, pass) * (size + 1));
        assert_true(own[0] == 0); /* no score has the first gate */
    }
    values_free(&v);
    values_free(&want);
}

/* A gate of -inf, or one that no score outweighs: what follows is a sequence of its own. */
static void check_wall(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    const spec s = decayed(e, mechanism, LOAM_FORWARD);
    spec late = s;
    const int64_t wall = s.len_q / 3;
    late.len_q = late.len_kv = s.len_q - wall;
    values v = values_make(&s), alone = values_make(&late);
    for (int64_t h = 0; h < s.heads_q; h++)
        *slot_at(&v, SLOT_LOG_DECAY, 0, h, wall) = pass == LOAM_FORWARD ? -HUGE_VAL : -1000;
    for (int which = SLOT_Q; which < SLOT_FIRST_OUTPUT; which++) {
        const shape a = slot_shape(&alone, (slot)which);
        for (int64_t h = 0; alone.x[which] && a.tokens > 1 && h < a.heads; h++) {
            memcpy(slot_at(&alone, (slot)which, 0, h, 0), slot_at(&v, (slot)which, 0, h, wall),
                   (size_t)(a.tokens * a.channels) * sizeof(double));
        }
    }
    expect_run(&v);
    expect_run(&alone);
    const shape a = slot_shape(&alone, SLOT_O);
    double *want = memory_zeroed((size_t)slot_size(&alone, SLOT_O), sizeof *want);
    for (int64_t h = 0; h < a.heads; h++) {
        memcpy(want + h * a.tokens * a.channels, slot_at(&v, SLOT_O, 0, h, wall),
               (size_t)(a.tokens * a.channels) * sizeof(double));
    }
    expect_near("behind a wall", &alone, SLOT_O, want, 10 * engine_tolerance(e, mechanism, LOAM_FORWARD), 0);
    free(want);
    values_free(&v);
    values_free(&alone);
}

/* Gates and keys behind a query change none of its bits, and have no gradient from it. */
static void check_future(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    const spec s = decayed(e, mechanism, pass);
    const int64_t now = s.len_q / 2;
    values v = values_make(&s), other = values_like(&s, &v);
    static const slot changed[] = { SLOT_K, SLOT_V, SLOT_LOG_DECAY };
    for (int n = 0; n < 3; n++) {
        const shape a = slot_shape(&v, changed[n]);
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t x = 0; x < (a.tokens - now - 1) * a.channels; x++)
                slot_at(&other, changed[n], 0, h, now + 1)[x] -= 0.5;
    }
    for (int which = 0; which < 2 && pass == LOAM_BACKWARD; which++) {
        const values *of = which ? &other : &v;
        const shape a = slot_shape(of, SLOT_GRAD_O);
        for (int64_t h = 0; h < a.heads; h++) {
            memset(slot_at(of, SLOT_GRAD_O, 0, h, now + 1), 0,
                   (size_t)((a.tokens - now - 1) * a.channels) * sizeof(double));
        }
    }
    expect_run(&v);
    expect_run(&other);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        const shape a = slot_shape(&v, (slot)which);
        for (int64_t h = 0; v.x[which] && which != SLOT_GRAD_SCALE && which != SLOT_GRAD_RIDGE && h < a.heads;
             h++) {
            expect_same_rows("the past", &other, (slot)which, h * a.tokens, slot_at(&v, (slot)which, 0, h, 0),
                             now + 1);
        }
    }
    for (int64_t h = 0; pass == LOAM_BACKWARD && h < s.heads_q; h++) {
        const double *own = slot_at(&v, SLOT_GRAD_LOG_DECAY, 0, h, 0);
        assert_true(compare_norm(own + now + 1, s.len_kv - now - 1) <=
                    engine_tolerance(e, mechanism, pass) * compare_norm(own, now + 1));
    }
    values_free(&v);
    values_free(&other);
}

/* A sum in float32 over all gates before would be wrong by 1e-2 here. */
static void check_far(const engine *e, loam_mechanism mechanism, loam_pass pass)
{
    spec s = decayed(e, mechanism, pass), exact = s;
    s.omit = ~(spec_omit(SLOT_O) | spec_omit(SLOT_GRAD_LOG_DECAY)) | SPEC_OMIT_SAVED;
    exact.omit = s.omit;
    exact.dtype = LOAM_F64;
    exact.backend = LOAM_BACKEND_REFERENCE;
    values v = values_make(&s);
    for (int64_t h = 0; h < s.heads_q; h++) {
        double *gates = slot_at(&v, SLOT_LOG_DECAY, 0, h, 0);
        for (int64_t j = 0; j < s.len_kv / 2; j++)
            gates[j] = (double)(float)(-1000.3 * (1 + (double)(j % 3)));
    }
    values want = values_like(&exact, &v);
    expect_run(&v);
    expect_run(&want);
    const slot output = pass == LOAM_FORWARD ? SLOT_O : SLOT_GRAD_LOG_DECAY;
    expect_near("far from the first key", &v, output, want.x[output],
                10 * engine_tolerance(e, mechanism, pass), 0);
    values_free(&v);
    values_free(&want);
}

static void gates_of_0_are_none(void **state) { (void)state, for_all(check_open); }
static void equal_gates_are_a_slope(void **state) { (void)state, for_all(check_slope); }
static void a_closed_gate_begins_a_sequence(void **state) { (void)state, for_all(check_wall); }
static void nothing_comes_from_the_future(void **state) { (void)state, for_all(check_future); }
static void long_sums_lose_nothing(void **state) { (void)state, for_all(check_far); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_of_0_are_none),
        cmocka_unit_test(equal_gates_are_a_slope),
        cmocka_unit_test(a_closed_gate_begins_a_sequence),
        cmocka_unit_test(nothing_comes_from_the_future),
        cmocka_unit_test(long_sums_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
