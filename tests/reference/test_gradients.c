/* SPDX-License-Identifier: MIT
 * Every gradient of the reference against central differences of sum(grad_o * o), in float64. */
#include "tests/reference/small.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>

enum { CASES = 96 };
#define TOLERANCE 1e-6
#define STEP 1e-3
#define PATH_STEP 2e-4 /* products of many reflections have large higher derivatives */

/* The forward pass of a case on its dense arrays, which may be changed between runs. */
typedef struct loss {
    arrays m;
    values forward;
    const double *grad_o;
} loss;

static loss loss_make(const values *backward)
{
    loss l;
    spec s = backward->spec;
    s.pass = LOAM_FORWARD;
    s.omit = ~spec_omit(SLOT_O);
    l.forward = values_like(&s, backward);
    l.grad_o = backward->x[SLOT_GRAD_O];
    return l;
}

static double loss_value(loss *l, const loam_problem *problem)
{
    loam_plan *plan;
    loam_error error;
    assert_int_equal(loam_plan_create(&plan, problem, &error), LOAM_OK);
    arrays_work(&l->m, plan);
    assert_int_equal(loam_run(plan, &l->m.args, &error), LOAM_OK);
    loam_plan_destroy(plan);
    const double *o = (const double *)(const void *)l->m.array[SLOT_O].data;
    double sum = 0;
    for (int64_t i = 0; i < slot_size(&l->forward, SLOT_O); i++)
        sum += l->grad_o[i] * o[i];
    return sum;
}

/* The derivative by *x, with an error of fourth order in the step. */
static double difference_at(loss *l, const loam_problem *problem, double *x)
{
    const double at = *x, step = (problem->path ? PATH_STEP : STEP) * fmax(fabs(at), 0.01);
    double value[4];
    static const double places[4] = { -2, -1, 1, 2 };
    for (int i = 0; i < 4; i++) {
        *x = at + places[i] * step;
        value[i] = loss_value(l, problem);
    }
    *x = at;
    return (8 * (value[2] - value[1]) - (value[3] - value[0])) / (12 * step);
}

static void check_array(loss *l, const values *backward, slot input, slot gradient)
{
    const loam_problem problem = values_problem(&l->forward);
    const int64_t count = slot_size(backward, gradient);
    double *want = memory_zeroed((size_t)count, sizeof *want);
    double *x = (double *)(void *)l->m.array[input].data;
    for (int64_t i = 0; i < count; i++)
        want[i] = difference_at(l, &problem, &x[i]);
    expect_near("central differences", backward, gradient, want, TOLERANCE, 0.01);
    free(want);
}

/* Numbers that are part of the problem. */
static void check_number(loss *l, const values *backward, slot gradient)
{
    loam_problem problem = values_problem(&l->forward);
    double *x = gradient == SLOT_GRAD_SCALE ? &problem.scale : &problem.ridge;
    *x = *x != 0 ? *x : 1 / sqrt((double)problem.dim_qk);
    const double want = difference_at(l, &problem, x);
    expect_near("central differences", backward, gradient, &want, TOLERANCE, 0.01);
}

static void check_case(const spec *s)
{
    static const slot pairs[][2] = {
        { SLOT_Q, SLOT_GRAD_Q },
        { SLOT_K, SLOT_GRAD_K },
        { SLOT_V, SLOT_GRAD_V },
        { SLOT_PROBE, SLOT_GRAD_PROBE },
        { SLOT_RIDGE, SLOT_GRAD_RIDGE },
        { SLOT_SLOPE, SLOT_GRAD_SLOPE },
        { SLOT_KEY_BIAS, SLOT_GRAD_KEY_BIAS },
        { SLOT_SINK, SLOT_GRAD_SINK },
        { SLOT_LOG_DECAY, SLOT_GRAD_LOG_DECAY },
        { SLOT_W, SLOT_GRAD_W },
        { SLOT_BETA, SLOT_GRAD_BETA },
    };
    values backward = values_make(s);
    for (int64_t i = 0; s->decay && i < slot_size(&backward, SLOT_LOG_DECAY); i++)
        backward.x[SLOT_LOG_DECAY][i] -= 0.01; /* room for a step up: gates are at most 0 */
    for (int64_t i = 0; s->path && i < slot_size(&backward, SLOT_BETA); i++)
        backward.x[SLOT_BETA][i] = 0.02 + 0.98 * backward.x[SLOT_BETA][i]; /* within 0 .. 2 after a step */
    expect_run(&backward);
    loss l = loss_make(&backward);
    arrays_make(&l.m, &l.forward);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (backward.x[pairs[i][0]]) check_array(&l, &backward, pairs[i][0], pairs[i][1]);
    check_number(&l, &backward, SLOT_GRAD_SCALE);
    if (s->mechanism == LOAM_LLA && s->ridge_axes == LOAM_RIDGE_NUMBER && !s->ridge_array)
        check_number(&l, &backward, SLOT_GRAD_RIDGE);
    arrays_free(&l.m);
    values_free(&l.forward);
    values_free(&backward);
}

static void check_cases(loam_mechanism mechanism)
{
    for (int64_t number = 0; number < CASES; number++) {
        const spec s = small_case(mechanism, LOAM_BACKWARD, number);
        check_case(&s);
    }
}

static void softmax_gradients(void **state) { (void)state, check_cases(LOAM_SOFTMAX); }
static void parallax_gradients(void **state) { (void)state, check_cases(LOAM_PARALLAX); }
static void lla_gradients(void **state) { (void)state, check_cases(LOAM_LLA); }

/* Rows that see no key have no gradient, and give none, with and without a sink. */
static void rows_without_keys(void **state)
{
    (void)state;
    for (int64_t mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
        for (int sink = 0; sink <= (mechanism == LOAM_SOFTMAX); sink++) {
            spec s = spec_default((loam_mechanism)mechanism, LOAM_BACKWARD, 7, 3, 2);
            s.len_kv = 3;
            s.sink = sink;
            values v = values_make(&s);
            expect_run(&v);
            expect_no_nan(&v);
            assert_true(compare_norm(v.x[SLOT_GRAD_Q], 4 * 3) == 0);
            values_free(&v);
            check_case(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_gradients),
        cmocka_unit_test(parallax_gradients),
        cmocka_unit_test(lla_gradients),
        cmocka_unit_test(rows_without_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
