/* SPDX-License-Identifier: MIT
 * Every gradient against central differences of sum(grad_o * o) + sum(grad_state_out * state_out). */
#include "tests/recurrent/cases.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>

enum { CASES = 36 };
#define TOLERANCE 1e-6
#define STEP 1e-3

typedef struct loss {
    arrays m;
    values forward;
    const values *backward;
    loam_problem problem;
} loss;

static double product(const loss *l, slot gradient, slot output)
{
    const double *g = l->backward->x[gradient], *x = (const double *)(const void *)l->m.array[output].data;
    double sum = 0;
    for (int64_t i = 0; g && i < slot_size(&l->forward, output); i++)
        sum += g[i] * x[i];
    return sum;
}

static double loss_value(loss *l)
{
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, &l->problem, &error)) fail_msg("%s", error.text);
    arrays_work(&l->m, plan);
    if (loam_run(plan, &l->m.args, &error)) fail_msg("%s", error.text);
    loam_plan_destroy(plan);
    return product(l, SLOT_GRAD_O, SLOT_O) + product(l, SLOT_GRAD_STATE_OUT, SLOT_STATE_OUT);
}

/* The derivative by *x, with an error of fourth order in the step. */
static double difference_at(loss *l, double *x)
{
    const double at = *x, step = STEP * fmax(fabs(at), 0.01);
    static const double places[4] = { -2, -1, 1, 2 };
    double value[4];
    for (int i = 0; i < 4; i++) {
        *x = at + places[i] * step;
        value[i] = loss_value(l);
    }
    *x = at;
    return (8 * (value[2] - value[1]) - (value[3] - value[0])) / (12 * step);
}

static void check_array(loss *l, slot input, slot gradient)
{
    const int64_t count = slot_size(l->backward, gradient);
    double *want = memory_zeroed((size_t)count, sizeof *want);
    double *x = (double *)(void *)l->m.array[input].data;
    /* the logarithms that a state is relative to are constants */
    const shape a = slot_shape(l->backward, gradient);
    const int constant = input == SLOT_STATE_IN && spec_positive(&l->backward->spec);
    for (int64_t i = 0; i < count; i++)
        want[i] = constant && i / a.channels % a.tokens == a.tokens - 1 ? 0 : difference_at(l, &x[i]);
    expect_near("central differences", l->backward, gradient, want, TOLERANCE, 0.01);
    free(want);
}

static void check_numbers(loss *l)
{
    const spec *s = &l->backward->spec;
    if (!s->normalise) { /* where it cancels */
        l->problem.scale = l->problem.scale != 0               ? l->problem.scale
                           : l->problem.mechanism == LOAM_MESA ? 1
                                                               : 1 / sqrt((double)s->dim_qk);
        const double want = difference_at(l, &l->problem.scale);
        expect_near("central differences", l->backward, SLOT_GRAD_SCALE, &want, TOLERANCE, 0.01);
    }
    if (s->mechanism == LOAM_MESA && s->ridge_axes == LOAM_RIDGE_NUMBER && !s->ridge_array) {
        const double want = difference_at(l, &l->problem.ridge);
        expect_near("central differences", l->backward, SLOT_GRAD_RIDGE, &want, TOLERANCE, 0.01);
    }
}

static void check_values(const values *backward)
{
    static const slot pairs[][2] = {
        { SLOT_Q, SLOT_GRAD_Q },
        { SLOT_K, SLOT_GRAD_K },
        { SLOT_V, SLOT_GRAD_V },
        { SLOT_LOG_DECAY, SLOT_GRAD_LOG_DECAY },
        { SLOT_BETA, SLOT_GRAD_BETA },
        { SLOT_RIDGE, SLOT_GRAD_RIDGE },
        { SLOT_STATE_IN, SLOT_GRAD_STATE_IN },
        { SLOT_Z, SLOT_GRAD_Z },
        { SLOT_LOG_ALPHA, SLOT_GRAD_LOG_ALPHA },
    };
    spec s = backward->spec;
    s.pass = LOAM_FORWARD;
    loss l = { .backward = backward, .forward = values_like(&s, backward) };
    l.problem = values_problem(&l.forward);
    arrays_make(&l.m, &l.forward);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (backward->x[pairs[i][0]]) check_array(&l, pairs[i][0], pairs[i][1]);
    check_numbers(&l);
    arrays_free(&l.m);
    values_free(&l.forward);
}

/* The steps must not leave the range of what is allowed. */
static void hold_parameters(values *v)
{
    for (int64_t i = 0; v->x[SLOT_LOG_DECAY] && i < slot_size(v, SLOT_LOG_DECAY); i++)
        v->x[SLOT_LOG_DECAY][i] = fmin(v->x[SLOT_LOG_DECAY][i], -1e-4);
    for (int64_t i = 0; v->x[SLOT_BETA] && i < slot_size(v, SLOT_BETA); i++)
        v->x[SLOT_BETA][i] = 0.05 + 0.9 * v->x[SLOT_BETA][i];
}

static void gradients(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int64_t number = 0; number < CASES; number++) {
            const spec s = recurrent_case((loam_mechanism)mechanism, LOAM_BACKWARD, number);
            values v = values_make(&s);
            hold_parameters(&v);
            expect_run(&v);
            check_values(&v);
            values_free(&v);
        }
    }
}

/* More tokens than one block of kept states, the last of them not full. */
static void gradients_over_blocks(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        const spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_BACKWARD, 23, 3, 2);
        values v = values_make(&s);
        hold_parameters(&v);
        expect_run(&v);
        check_values(&v);
        values_free(&v);
    }
}

/* With and without what they may be given, heads that share their features, sequences one after another.
 * States are relative to whole numbers, which jump; none does within a step of these seeds. */
static void gradients_of_positive_features(void **state)
{
    (void)state;
    for (int64_t number = 0; number < 16; number++) {
        spec s = positive_spec(LOAM_BACKWARD, 3 + number % 5, 3 + number % 2, 2, 4 + number % 3);
        s.features_shared = number % 2;
        s.with_shift = number / 2 % 2, s.with_balance = number / 4 % 2;
        s.state = number / 8 % 2;
        s.packed = number % 3 == 1;
        s.batch = 1 + s.packed;
        s.scale = number % 4 == 3 ? 0.7 : 0;
        s.threads = 1;
        s.seed = number + 50;
        values v = values_make(&s);
        expect_run(&v);
        check_values(&v);
        values_free(&v);
    }
}

/* Where a gate is closed its own gradient is 0 for -inf, and those of everything else are what they are. */
static void gradients_at_closed_gates(void **state)
{
    (void)state;
    static const slot others[] = { SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_STATE_IN };
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        spec s = recurrent_spec((loam_mechanism)mechanism, LOAM_BACKWARD, 12, 4, 3);
        if (spec_recurrence_of(&s).gate < SPEC_GATE_TOKEN) continue;
        values closed = values_make(&s);
        const int64_t n = slot_shape(&closed, SLOT_LOG_DECAY).channels;
        for (int64_t c = 0; c < n; c++)
            closed.x[SLOT_LOG_DECAY][5 * n + c] = -HUGE_VAL;
        values strong = values_like(&s, &closed);
        for (int64_t c = 0; c < n; c++)
            strong.x[SLOT_LOG_DECAY][5 * n + c] = -1000;
        expect_run(&closed);
        expect_run(&strong);
        expect_no_nan(&closed);
        for (int64_t c = 0; c < n; c++)
            assert_true(closed.x[SLOT_GRAD_LOG_DECAY][5 * n + c] == 0);
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            expect_same("a gate of -1000 and one of -inf", &strong, others[i], closed.x[others[i]]);
        values_free(&closed);
        values_free(&strong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(gradients_over_blocks),
        cmocka_unit_test(gradients_of_positive_features),
        cmocka_unit_test(gradients_at_closed_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
