/* SPDX-License-Identifier: MIT
 * Time: sequences that are split, decoded token by token, packed;
 * what does not depend on the future; long hostile ones. */
#include "tests/recurrent/cases.h"
#include "tests/support/compare.h"

#include <math.h>
#include <string.h>

enum { LEN = 19, DIM = 6, DIM_V = 5 };

static spec base(loam_mechanism mechanism, loam_pass pass)
{
    spec s = recurrent_spec(mechanism, pass, LEN, DIM, DIM_V);
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    s.batch = 2;
    s.data = DATA_STEEP;
    s.seed = 9;
    return s;
}

static void split_anywhere(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            const spec s = base((loam_mechanism)mechanism, (loam_pass)pass);
            values whole = values_make(&s);
            expect_run(&whole);
            for (int64_t at = 0; at <= LEN; at++)
                expect_split(&whole, at);
            values_free(&whole);
        }
    }
}

/* One plan for a token; the state stays where it is. */
static void decode_is_prefill(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        spec s = base((loam_mechanism)mechanism, LOAM_FORWARD);
        s.batch = 1;
        values whole = values_make(&s);
        expect_run(&whole);
        s.pass = LOAM_DECODE;
        values kept = values_like(&s, &whole);
        for (int64_t t = 0; t < LEN; t++) {
            values step = part_of(&kept, t, 1);
            arrays m;
            arrays_make(&m, &step);
            const loam_problem problem = values_problem(&step);
            loam_plan *plan;
            loam_error error;
            assert_int_equal(loam_plan_create(&plan, &problem, &error), LOAM_OK);
            assert_int_equal(loam_plan_state_rows(plan), spec_state_rows(&s));
            arrays_work(&m, plan);
            m.args.state_in = (loam_const_view){ m.args.state_out.data, m.args.state_out.batch,
                                                 m.args.state_out.head, m.args.state_out.token };
            memcpy(m.args.state_out.data, kept.x[SLOT_STATE_IN],
                   (size_t)slot_size(&kept, SLOT_STATE_IN) * sizeof(double));
            assert_int_equal(loam_run(plan, &m.args, &error), LOAM_OK);
            arrays_read(&m, &step);
            expect_part("a step", &whole, &step, SLOT_O, t);
            carry(&kept, SLOT_STATE_IN, &step, SLOT_STATE_OUT);
            loam_plan_destroy(plan);
            arrays_free(&m);
            values_free(&step);
        }
        expect_same("the last state", &whole, SLOT_STATE_OUT, kept.x[SLOT_STATE_IN]);
        values_free(&whole);
        values_free(&kept);
    }
}

static void packed_is_separate(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = base((loam_mechanism)mechanism, (loam_pass)pass);
            s.packed = 1;
            s.batch = 5;
            expect_separate(&s);
        }
    }
}

/* Other tokens from `at` on change nothing before it; a
 * gradient that comes in at one token goes to none after it. */
static void nothing_from_the_future(void **state)
{
    (void)state;
    const int64_t at = 11;
    static const slot inputs[] = { SLOT_Q, SLOT_K, SLOT_V, SLOT_BETA };
    static const slot gradients[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_BETA };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_FORWARD, LEN, DIM, DIM_V);
        values v = values_make(&s), other = values_like(&s, &v);
        for (size_t i = 0; i < 4; i++) {
            const shape a = slot_shape(&v, inputs[i]);
            for (int64_t e = at * a.channels; v.x[inputs[i]] && e < LEN * a.channels; e++)
                other.x[inputs[i]][e] *= 0.5;
        }
        expect_run(&v);
        expect_run(&other);
        expect_same_rows("tokens before a change", &other, SLOT_O, 0, v.x[SLOT_O], at);
        assert_true(compare_bits(v.x[SLOT_O] + at * DIM_V, other.x[SLOT_O] + at * DIM_V, DIM_V) >= 0);
        s.pass = LOAM_BACKWARD;
        values back = values_like(&s, &v);
        fill(&back, SLOT_GRAD_STATE_OUT, 0);
        back.x[SLOT_GRAD_O][at * DIM_V] = 1;
        expect_run(&back);
        for (size_t i = 0; i < 4; i++) {
            const shape a = slot_shape(&back, gradients[i]);
            if (back.x[gradients[i]]) {
                const double *x = back.x[gradients[i]];
                assert_true(compare_norm(x, (at + 1) * a.channels) > 0);
                assert_true(compare_norm(x + (at + 1) * a.channels, (LEN - at - 1) * a.channels) == 0);
            }
        }
        values_free(&v);
        values_free(&other);
        values_free(&back);
    }
}

/* Gates of 0, -1000 and -inf and beta of 0, 1 and 2 side by side over many tokens. */
static void hostile_gates_stay_finite(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            spec s = recurrent_spec((loam_mechanism)mechanism, (loam_pass)pass, 1500, 16, 12);
            s.data = DATA_STEEP;
            values v = values_make(&s);
            expect_run(&v);
            for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
                for (int64_t i = 0; v.x[which] && i < slot_size(&v, (slot)which); i++)
                    assert_true(fabs(v.x[which][i]) < 1e9);
            values_free(&v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_anywhere),
        cmocka_unit_test(decode_is_prefill),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(nothing_from_the_future),
        cmocka_unit_test(hostile_gates_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
