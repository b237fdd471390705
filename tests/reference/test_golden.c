/* SPDX-License-Identifier: MIT
 * The reference against vectors that another implementation computed. */
#include "tests/reference/golden.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 37, DIM = 8, DIM_V = 6 };
#define TOLERANCE 1e-10

static golden vectors;

static double *take(const char *group, const char *name, int64_t count)
{
    char full[64];
    int64_t found = -1;
    snprintf(full, sizeof full, "%s.%s", group, name);
    double *x = golden_array(&vectors, full, &found);
    if (!x || found != count) {
        fail_msg("golden vectors: %s has %lld numbers, expected %lld", full, (long long)found,
                 (long long)count);
    }
    return x;
}

/* The last `count` numbers of an input of the golden case. */
static void fill(values *v, slot input, const char *name, int64_t all)
{
    const int64_t count = slot_size(v, input);
    double *x = take("in", name, all);
    memcpy(v->x[input], x + all - count, (size_t)count * sizeof *x);
    free(x);
}

static values golden_inputs(spec *s)
{
    static const char *const ridges[] = { "ridge_number", "", "ridge_token", "ridge_channel" };
    double *h = take("in", "h", 1);
    s->scale = 1 / h[0];
    free(h);
    s->ridge_array = s->ridge_axes == LOAM_RIDGE_NUMBER;
    values v = values_make(s);
    fill(&v, SLOT_Q, "q", TOKENS * DIM);
    fill(&v, SLOT_K, "k", TOKENS * DIM);
    fill(&v, SLOT_V, "v", TOKENS * DIM_V);
    if (v.x[SLOT_PROBE]) fill(&v, SLOT_PROBE, "probe", TOKENS * DIM);
    if (v.x[SLOT_GRAD_O]) fill(&v, SLOT_GRAD_O, "grad_o", TOKENS * DIM_V);
    if (v.x[SLOT_RIDGE]) fill(&v, SLOT_RIDGE, ridges[s->ridge_axes], slot_size(&v, SLOT_RIDGE));
    return v;
}

/* Runs one pass and compares the outputs that the group has. */
static void check_group(const char *group, spec s, loam_pass pass, const slot *outputs, int count)
{
    s.pass = pass;
    values v = golden_inputs(&s);
    expect_run(&v);
    for (int i = 0; i < count; i++) {
        double *want = take(group, slot_names[outputs[i]], slot_size(&v, outputs[i]));
        expect_near("golden vectors", &v, outputs[i], want, TOLERANCE, 0);
        free(want);
    }
    values_free(&v);
}

#define CHECK(group, s, pass, ...) \
    do { \
        const slot outputs[] = { __VA_ARGS__ }; \
        check_group(group, s, pass, outputs, sizeof outputs / sizeof *outputs); \
    } while (0)

static void lla_vectors(void **state)
{
    (void)state;
    static const char *const axes[] = { "number", "", "token", "channel" };
    static const char *const units[] = { "normalised", "max" };
    for (int unit = 0; unit < 2; unit++) {
        for (int causal = 0; causal < 2; causal++) {
            for (int axis = 0; axis < 4; axis++) {
                if (axis == LOAM_RIDGE_HEAD) continue;
                char group[48];
                snprintf(group, sizeof group, "lla_%s_%s_%s", units[unit], causal ? "causal" : "full",
                         axes[axis]);
                spec s = spec_default(LOAM_LLA, LOAM_FORWARD, TOKENS, DIM, DIM_V);
                s.ridge_unit = unit;
                s.ridge_axes = axis;
                s.causal = causal;
                CHECK(group, s, LOAM_FORWARD, SLOT_O, SLOT_LSE, SLOT_RHO);
                CHECK(group, s, LOAM_DECODE, SLOT_O, SLOT_LSE, SLOT_RHO);
                CHECK(group, s, LOAM_BACKWARD, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_RIDGE,
                      SLOT_GRAD_SCALE);
            }
        }
    }
}

static void lla_queries_at_the_end(void **state)
{
    (void)state;
    spec s = spec_default(LOAM_LLA, LOAM_FORWARD, TOKENS, DIM, DIM_V);
    s.len_q = 5;
    s.ridge_unit = LOAM_RIDGE_MAX;
    CHECK("lla_max_tail5_number", s, LOAM_FORWARD, SLOT_O);
    CHECK("lla_max_tail5_number", s, LOAM_DECODE, SLOT_O);
}

static void parallax_and_softmax_vectors(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        spec s = spec_default(LOAM_PARALLAX, LOAM_FORWARD, TOKENS, DIM, DIM_V);
        s.causal = causal;
        const char *group = causal ? "parallax_causal" : "parallax_full";
        CHECK(group, s, LOAM_FORWARD, SLOT_O, SLOT_LSE);
        CHECK(group, s, LOAM_DECODE, SLOT_O, SLOT_LSE);
        CHECK(group, s, LOAM_BACKWARD, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_PROBE,
              SLOT_GRAD_SCALE);
        s.mechanism = LOAM_SOFTMAX;
        CHECK(causal ? "softmax_causal" : "softmax_full", s, LOAM_FORWARD, SLOT_O);
        CHECK(causal ? "softmax_causal" : "softmax_full", s, LOAM_DECODE, SLOT_O);
    }
}

static values decode_inputs(const spec *s)
{
    values v = values_make(s);
    static const struct {
        slot input;
        const char *name;
    } inputs[] = { { SLOT_Q, "q" }, { SLOT_K, "k" }, { SLOT_V, "v" } };
    for (int i = 0; i < 3; i++) {
        free(v.x[inputs[i].input]);
        v.x[inputs[i].input] = take("decode", inputs[i].name, slot_size(&v, inputs[i].input));
    }
    return v;
}

static spec decode_spec(int unit)
{
    spec s = spec_default(LOAM_LLA, LOAM_DECODE, 300, 64, 64);
    s.len_q = 1;
    s.ridge_unit = unit;
    s.scale = 1.0 / 8;
    return s;
}

static void decode_vectors(void **state)
{
    (void)state;
    for (int unit = 0; unit < 2; unit++) {
        const spec s = decode_spec(unit);
        values v = decode_inputs(&s);
        expect_run(&v);
        double *want = take("decode", unit ? "o_max" : "o_normalised", 64);
        expect_near("golden vectors", &v, SLOT_O, want, TOLERANCE, 0);
        free(want);
        values_free(&v);
    }
}

/* The state of all keys, as loam.h lays it out: m, omega, kbar, vbar, ... */
static void decode_state(void **state)
{
    (void)state;
    const spec s = decode_spec(0);
    values v = decode_inputs(&s);
    arrays m;
    arrays_make(&m, &v);
    const loam_problem problem = values_problem(&v);
    loam_plan *plan;
    loam_error error;
    assert_int_equal(loam_plan_create(&plan, &problem, &error), LOAM_OK);
    arrays_work(&m, plan);
    assert_int_equal(loam_state_doubles(plan), 2 + 64 + 64 + 64 * 65 / 2 + 64 * 64);
    double *x = memory_zeroed(loam_states_doubles(plan), sizeof *x);
    assert_int_equal(loam_state_partial(plan, &m.args, 0, 300, x, &error), LOAM_OK);
    static const struct {
        const char *name;
        int at, count;
    } parts[] = { { "m", 0, 1 }, { "omega", 1, 1 }, { "kbar", 2, 64 }, { "vbar", 66, 64 } };
    double *m_want = take("decode", "m", 1);
    const double unit = exp(x[0] - m_want[0]); /* any m that is no less than the scores would do */
    for (int i = 0; i < 4; i++) {
        double *want = take("decode", parts[i].name, parts[i].count);
        x[parts[i].at] *= i == 1 ? unit : 1;
        const difference d = compare(want, x + parts[i].at, 1, parts[i].count);
        assert_true(i == 0 || d.relative < TOLERANCE);
        free(want);
    }
    free(m_want);
    free(x);
    loam_plan_destroy(plan);
    arrays_free(&m);
    values_free(&v);
}

int main(int argc, char **argv)
{
    if (argc != 2 || golden_open(&vectors, argv[1])) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lla_vectors),
        cmocka_unit_test(lla_queries_at_the_end),
        cmocka_unit_test(parallax_and_softmax_vectors),
        cmocka_unit_test(decode_vectors),
        cmocka_unit_test(decode_state),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    golden_close(&vectors);
    return failed;
}
