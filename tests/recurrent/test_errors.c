/* SPDX-License-Identifier: MIT
 * Every problem and every call of the recurrent family that is refused: the
 * status, a text that names the argument and the value, and nothing written. */
#include "tests/recurrent/cases.h"
#include "tests/support/element.h"

#include <math.h>
#include <string.h>

static loam_problem problem_of(int mechanism)
{
    loam_problem p = loam_problem_default((loam_mechanism)mechanism, LOAM_FORWARD);
    p.heads_q = p.heads_kv = 2;
    p.len_q = p.len_kv = 8;
    p.dim_qk = 5;
    p.dim_v = 6;
    return p;
}

static void refuse_problem(const loam_problem *p, loam_status status, const char *name, const char *more)
{
    loam_error error;
    loam_plan *plan = (loam_plan *)(void *)&error;
    const loam_status got = loam_plan_create(&plan, p, &error);
    if (got != status || error.status != status || plan || !strstr(error.text, name) ||
        !strstr(error.text, more))
        fail_msg("%s (%s): status %d, text '%s'", name, more, (int)got, error.text);
}

#define REFUSE_PROBLEM(mechanism, member, bad, status, more) \
    do { \
        loam_problem p_ = problem_of(mechanism); \
        p_.member = bad; \
        refuse_problem(&p_, status, #member, more); \
    } while (0)

#define REFUSE_MAP(name, member, ...) REFUSE_PROBLEM(m, member, 2, LOAM_EUNSUPPORTED, "2");

static void problems(void **state)
{
    (void)state;
    for (int m = LOAM_LINEAR; m < spec_mechanisms(); m++) {
        REFUSE_PROBLEM(m, score, LOAM_RBF, LOAM_EUNSUPPORTED, "dot");
        SPEC_MAPS(REFUSE_MAP)
        REFUSE_PROBLEM(m, causal, 0, LOAM_EUNSUPPORTED, "recurrence");
        REFUSE_PROBLEM(m, window, 3, LOAM_EUNSUPPORTED, "3");
        REFUSE_PROBLEM(m, slope, 1, LOAM_EUNSUPPORTED, "expected 0");
        REFUSE_PROBLEM(m, key_bias, 1, LOAM_EUNSUPPORTED, "expected 0");
        REFUSE_PROBLEM(m, decay, 1, LOAM_EUNSUPPORTED, "expected 0");
        REFUSE_PROBLEM(m, path, 1, LOAM_EUNSUPPORTED, "expected 0");
        REFUSE_PROBLEM(m, sink, 1, LOAM_EUNSUPPORTED, "expected 0");
        REFUSE_PROBLEM(m, heads_kv, 1, LOAM_ESHAPE, "heads_q, 2");
        REFUSE_PROBLEM(m, len_kv, 9, LOAM_ESHAPE, "9");
        REFUSE_PROBLEM(m, heads_v, 3, LOAM_ESHAPE, "multiple of heads_q 2");
        REFUSE_PROBLEM(m, heads_v, -2, LOAM_ESHAPE, "-2");
        REFUSE_PROBLEM(m, feature_map, (loam_feature_map)4, LOAM_EARG, "4");
        REFUSE_PROBLEM(m, features, 8, LOAM_EUNSUPPORTED, "identity");
        REFUSE_PROBLEM(m, features_shared, 1, LOAM_EUNSUPPORTED, "identity");
        REFUSE_PROBLEM(m, features_shared, 2, LOAM_EARG, "0 or 1");
        REFUSE_PROBLEM(m, normalise, 2, LOAM_EARG, "0 or 1");
        REFUSE_PROBLEM(m, scale, HUGE_VAL, LOAM_EVALUE, "inf");
        loam_problem back = problem_of(m);
        back.pass = LOAM_BACKWARD;
        back.backend = LOAM_BACKEND_CPU;
        back.dtype = LOAM_F64;
        refuse_problem(&back, LOAM_EUNSUPPORTED, "backend", "no kernel");
    }
    for (int m = LOAM_LINEAR; m < spec_mechanisms(); m++)
        if (!is_additive(m)) REFUSE_PROBLEM(m, normalise, 1, LOAM_EUNSUPPORTED, "expected 0");
    loam_problem p = problem_of(LOAM_LINEAR);
    p.normalise = 1;
    p.scale = 0.5;
    refuse_problem(&p, LOAM_EUNSUPPORTED, "scale", "0.5");
    REFUSE_PROBLEM(LOAM_MESA, ridge, 0, LOAM_EVALUE, "> 0");
    REFUSE_PROBLEM(LOAM_MESA, ridge, (double)NAN, LOAM_EVALUE, "nan");
    REFUSE_PROBLEM(LOAM_MESA, ridge_axes, LOAM_RIDGE_TOKEN, LOAM_EUNSUPPORTED, "per token");
    REFUSE_PROBLEM(LOAM_MESA, ridge_axes, LOAM_RIDGE_CHANNEL, LOAM_EUNSUPPORTED, "per channel");
    REFUSE_PROBLEM(LOAM_MESA, ridge_unit, LOAM_RIDGE_TRACE, LOAM_EUNSUPPORTED, "trace");
}

#define REFUSE_POSITIVE(member, bad, status, more) \
    do { \
        loam_problem p_ = positive; \
        p_.member = bad; \
        refuse_problem(&p_, status, #member, more); \
    } while (0)

static void positive_features(void **state)
{
    (void)state;
    loam_problem positive = problem_of(LOAM_LINEAR);
    positive.feature_map = LOAM_FEATURES_POSITIVE;
    refuse_problem(&positive, LOAM_EUNSUPPORTED, "feature_map", "normalise 0");
    positive.normalise = 1;
    REFUSE_POSITIVE(features, -1, LOAM_ESHAPE, "-1");
    REFUSE_POSITIVE(features, LOAM_MAX_DIM + 1, LOAM_ESHAPE, "513");
    REFUSE_POSITIVE(scale, -0.5, LOAM_EVALUE, "> 0");
    REFUSE_POSITIVE(heads_v, 4, LOAM_ESHAPE, "heads_kv heads");
    REFUSE_POSITIVE(kernel, "recurrent_forward_ref", LOAM_EUNSUPPORTED, "feature_map: positive");
    positive.mechanism = LOAM_GLA;
    refuse_problem(&positive, LOAM_EUNSUPPORTED, "feature_map", "gla");
    REFUSE_PROBLEM(LOAM_LINEAR, kernel, "positive_forward_ref", LOAM_EUNSUPPORTED, "feature_map: identity");
    loam_plan *plan;
    positive.mechanism = LOAM_LINEAR;
    positive.heads_q = 6;
    assert_int_equal(loam_plan_create(&plan, &positive, NULL), LOAM_OK);
    assert_true(loam_plan_problem(plan)->features == 5 && loam_plan_state_rows(plan) == 8);
    assert_true(loam_plan_problem(plan)->scale == 1 / sqrt(5.0));
    loam_plan_destroy(plan);
}

static void the_other_family_has_none_of_it(void **state)
{
    (void)state;
    for (int m = LOAM_SOFTMAX; m <= LOAM_LLA; m++) {
        REFUSE_PROBLEM(m, heads_v, 2, LOAM_EUNSUPPORTED, "2");
        REFUSE_PROBLEM(m, feature_map, LOAM_FEATURES_ELU, LOAM_EUNSUPPORTED, "1");
        REFUSE_PROBLEM(m, normalise, 1, LOAM_EUNSUPPORTED, "1");
        REFUSE_PROBLEM(m, features, 8, LOAM_EUNSUPPORTED, "8");
    }
    REFUSE_PROBLEM(LOAM_LLA, ridge_axes, LOAM_RIDGE_HEAD_CHANNEL, LOAM_EUNSUPPORTED, "lla");
}

static void sizes_that_overflow(void **state)
{
    (void)state;
    loam_problem p = problem_of(LOAM_MESA);
    p.batch = INT32_MAX;
    p.len_q = p.len_kv = 1 << 18;
    p.heads_v = 1 << 20;
    refuse_problem(&p, LOAM_EMEMORY, "heads_v", "too large");
    p = problem_of(LOAM_KDA);
    p.pass = LOAM_BACKWARD;
    p.len_q = p.len_kv = INT32_MAX / 4;
    p.dim_qk = p.dim_v = 512;
    p.threads = 1024;
    loam_plan *plan;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK); /* 4 PB, but a size */
    assert_true(loam_plan_work_bytes(plan) > (size_t)1 << 50);
    loam_plan_destroy(plan);
}

/* ------------------------------------------------------------------ calls */

static spec basic(int mechanism, int pass)
{
    spec s = recurrent_spec((loam_mechanism)mechanism, (loam_pass)pass, 7, 5, 6);
    s.batch = 2;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    return s;
}

typedef struct scene {
    values v;
    arrays m;
    loam_plan *plan;
} scene;

static scene *scene_make(scene *x, const spec *s)
{
    loam_error error;
    x->v = values_make(s);
    arrays_make(&x->m, &x->v);
    const loam_problem problem = values_problem(&x->v);
    if (loam_plan_create(&x->plan, &problem, &error)) fail_msg("%s", error.text);
    arrays_work(&x->m, x->plan);
    return x;
}

static void scene_free(scene *x)
{
    loam_plan_destroy(x->plan);
    arrays_free(&x->m);
    values_free(&x->v);
}

static void refuse_call(const scene *x, const loam_args *args, loam_status status, const char *name,
                        const char *more)
{
    loam_error error;
    const loam_status got = loam_run(x->plan, args, &error);
    if (got != status || error.status != status || !strstr(error.text, name) || !strstr(error.text, more))
        fail_msg("%s (%s): status %d, text '%s'", name, more, (int)got, error.text);
    assert_int_equal(loam_run(x->plan, args, NULL), status);
    for (int a = SLOT_FIRST_OUTPUT; a < SLOT_COUNT; a++)
        assert_true(guard_untouched(&x->m.array[a]) && guard_intact(&x->m.array[a]));
    assert_true(guard_untouched(&x->m.work));
}

#define REFUSE(change, status, name, more) \
    do { \
        scene scene_; \
        arrays *m = &scene_make(&scene_, &s)->m; \
        loam_args args = m->args; \
        change; \
        refuse_call(&scene_, &args, status, name, more); \
        scene_free(&scene_); \
    } while (0)

static void missing_arrays(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = basic(LOAM_KDA, pass);
        REFUSE(args.q.data = NULL, LOAM_EARG, "q", "NULL");
        REFUSE(args.k.data = NULL, LOAM_EARG, "k", "NULL");
        REFUSE(args.v.data = NULL, LOAM_EARG, "v", "NULL");
        REFUSE(args.log_decay.data = NULL, LOAM_EARG, "log_decay", "NULL");
        REFUSE(args.beta.data = NULL, LOAM_EARG, "beta", "NULL");
        REFUSE(args.work = NULL, LOAM_EARG, "work", "NULL");
        s = basic(LOAM_MESA, pass);
        s.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
        REFUSE(args.ridge.data = NULL, LOAM_EARG, "ridge", "NULL");
    }
    spec s = basic(LOAM_DELTA, LOAM_FORWARD);
    REFUSE(args.o.data = NULL, LOAM_EARG, "o", "NULL");
    s.pass = LOAM_DECODE;
    REFUSE(args.state_out.data = NULL, LOAM_EARG, "state_out", "NULL");
    s.pass = LOAM_BACKWARD;
    REFUSE(args.grad_o.data = NULL, LOAM_EARG, "grad_o", "NULL");
}

static void set(arrays *m, slot which, int64_t at, double to)
{
    element_set(m->array[which].data, slot_dtype(&m->values->spec, which), at, to);
}

static void numbers(void **state)
{
    (void)state;
    for (int dtype = LOAM_F32; dtype <= LOAM_F64; dtype++) {
        for (int mechanism = LOAM_RETENTION; mechanism < spec_mechanisms(); mechanism++) {
            spec s = basic(mechanism, LOAM_FORWARD);
            s.dtype = dtype;
            if (slot_used(&s, SLOT_LOG_DECAY)) {
                REFUSE(set(m, SLOT_LOG_DECAY, 3, 0.25), LOAM_EVALUE, "log_decay", "0.25");
                REFUSE(set(m, SLOT_LOG_DECAY, 2, (double)NAN), LOAM_EVALUE, "log_decay", "nan");
                REFUSE(set(m, SLOT_LOG_DECAY, 0, HUGE_VAL), LOAM_EVALUE, "log_decay", "inf");
            }
            if (slot_used(&s, SLOT_BETA)) {
                REFUSE(set(m, SLOT_BETA, 50, -0.5), LOAM_EVALUE, "beta", "batch 1, head 3, token 1");
                REFUSE(set(m, SLOT_BETA, 2, (double)NAN), LOAM_EVALUE, "beta", "nan");
                REFUSE(set(m, SLOT_BETA, 2, HUGE_VAL), LOAM_EVALUE, "beta", "inf");
            }
            if (spec_recurrence_of(&s).delta)
                REFUSE(set(m, SLOT_BETA, 55, 2.5), LOAM_EVALUE, "beta", "0 to 2");
        }
        spec s = basic(LOAM_MESA, LOAM_FORWARD);
        s.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
        REFUSE(set(m, SLOT_RIDGE, 7, 0), LOAM_EVALUE, "ridge", "head 1, channel 2");
        s.ridge_axes = LOAM_RIDGE_HEAD;
        REFUSE(set(m, SLOT_RIDGE, 3, (double)NAN), LOAM_EVALUE, "ridge", "nan");
        s.ridge_axes = LOAM_RIDGE_NUMBER;
        s.ridge_array = 1;
        REFUSE(set(m, SLOT_RIDGE, 0, -1), LOAM_EVALUE, "ridge", "-1");
    }
}

static void arrays_that_the_mechanism_does_not_have(void **state)
{
    (void)state;
    double x[4] = { 0 };
    const loam_view out = { x, 1, 1, 1 };
    const loam_const_view in = { x, 1, 1, 1 };
    spec s = basic(LOAM_LINEAR, LOAM_FORWARD);
    REFUSE(args.log_decay = in, LOAM_EARG, "log_decay", "linear");
    REFUSE(args.beta = in, LOAM_EARG, "beta", "linear");
    REFUSE(args.lse = out, LOAM_EARG, "lse", "linear");
    REFUSE(args.rho = out, LOAM_EARG, "rho", "linear");
    REFUSE(args.weights = out, LOAM_EARG, "weights", "linear");
    s.pass = LOAM_BACKWARD;
    REFUSE(args.grad_log_decay = out, LOAM_EARG, "grad_log_decay", "linear");
    REFUSE(args.grad_beta = out, LOAM_EARG, "grad_beta", "linear");
    REFUSE(args.grad_ridge = out, LOAM_EARG, "grad_ridge", "linear");
    REFUSE(args.grad_probe = out, LOAM_EARG, "grad_probe", "linear");
    REFUSE(args.grad_slope = x, LOAM_EARG, "grad_slope", "linear");
    REFUSE(args.grad_sink = x, LOAM_EARG, "grad_sink", "linear");
    REFUSE(args.grad_key_bias = out, LOAM_EARG, "grad_key_bias", "linear");
    s = spec_default(LOAM_SOFTMAX, LOAM_FORWARD, 7, 5, 6);
    REFUSE(args.log_decay = in, LOAM_EARG, "log_decay", "no decay");
    REFUSE(args.beta = in, LOAM_EARG, "beta", "no path");
    REFUSE(args.state_in = in, LOAM_EARG, "state_in", "recurrent");
    REFUSE(args.state_out = out, LOAM_EARG, "state_out", "recurrent");
    REFUSE(args.grad_state_out = in, LOAM_EARG, "grad_state_out", "recurrent");
    REFUSE(args.grad_log_decay = out, LOAM_EARG, "grad_log_decay", "no decay");
    REFUSE(args.grad_beta = out, LOAM_EARG, "grad_beta", "no path");
    REFUSE(args.grad_state_in = out, LOAM_EARG, "grad_state_in", "recurrent");
}

static void outputs_that_overlap(void **state)
{
    (void)state;
    spec s = basic(LOAM_KDA, LOAM_FORWARD);
    REFUSE(args.o.token = 5, LOAM_ESHAPE, "o", "5");
    REFUSE(args.info.token = 0, LOAM_ESHAPE, "info", "token");
    REFUSE(args.state_out.token = 4, LOAM_ESHAPE, "state_out", "4");
    REFUSE(args.state_out.head = 1, LOAM_ESHAPE, "state_out", "head");
    REFUSE((args.state_in.data = args.state_out.data, args.state_in.head = 0), LOAM_ESHAPE, "state_out",
           "memory of state_in");
    s.pass = LOAM_BACKWARD;
    REFUSE(args.grad_q.token = 4, LOAM_ESHAPE, "grad_q", "4");
    REFUSE(args.grad_k.head = 0, LOAM_ESHAPE, "grad_k", "head");
    REFUSE(args.grad_v.batch = 0, LOAM_ESHAPE, "grad_v", "batch");
    REFUSE(args.grad_beta.token = 0, LOAM_ESHAPE, "grad_beta", "token");
    REFUSE(args.grad_log_decay.token = 4, LOAM_ESHAPE, "grad_log_decay", "4");
    REFUSE(args.grad_state_in.head = 0, LOAM_ESHAPE, "grad_state_in", "head");
    s = basic(LOAM_MESA, LOAM_BACKWARD);
    s.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
    REFUSE(args.grad_ridge.head = 4, LOAM_ESHAPE, "grad_ridge", "4");
    s = basic(LOAM_RETENTION, LOAM_BACKWARD);
    REFUSE(args.grad_log_decay.head = 0, LOAM_ESHAPE, "grad_log_decay", "head");
}

static void positive_arrays(void **state)
{
    (void)state;
    double x[4] = { 0 };
    const loam_view out = { x, 1, 1, 1 };
    const loam_const_view in = { x, 1, 1, 1 };
    spec s = positive_spec(LOAM_FORWARD, 7, 5, 6, 9);
    REFUSE(args.z.data = NULL, LOAM_EARG, "z", "NULL");
    REFUSE(args.balance.data = NULL, LOAM_EARG, "balance", "both or neither");
    REFUSE(args.balance_keys.data = NULL, LOAM_EARG, "balance", "both or neither");
    REFUSE(args.state_out.token = 8, LOAM_ESHAPE, "state_out", "8");
    REFUSE(args.grad_z = out, LOAM_EARG, "grad_z", "forward");
    s.pass = LOAM_BACKWARD;
    REFUSE(args.grad_z.token = 4, LOAM_ESHAPE, "grad_z", "4");
    REFUSE(args.grad_log_alpha.head = 8, LOAM_ESHAPE, "grad_log_alpha", "8");
    REFUSE(args.grad_v.head = 0, LOAM_ESHAPE, "grad_v", "head");
    REFUSE(args.grad_scale = x, LOAM_EARG, "grad_scale", "no gradient of the scale");
    s = basic(LOAM_LINEAR, LOAM_FORWARD);
    REFUSE(args.z = in, LOAM_EARG, "z", "not positive");
    REFUSE(args.log_alpha = in, LOAM_EARG, "log_alpha", "not positive");
    REFUSE(args.shift = in, LOAM_EARG, "shift", "not positive");
    REFUSE(args.balance = in, LOAM_EARG, "balance", "not positive");
    REFUSE(args.balance_keys = in, LOAM_EARG, "balance_keys", "not positive");
}

static void lengths(void **state)
{
    (void)state;
    const int64_t lens[3] = { 0, 0, 0 }, shifted[3] = { 1, 2, 3 };
    spec s = basic(LOAM_GLA, LOAM_FORWARD);
    REFUSE(args.lens_kv = lens, LOAM_EARG, "lens_kv", "one length");
    REFUSE(args.cu_kv = lens, LOAM_EARG, "cu_kv", "cu_q");
    REFUSE(args.cu_q = lens, LOAM_EARG, "cu_q", "packed");
    s.packed = 1;
    REFUSE(args.cu_q = NULL, LOAM_EARG, "cu_q", "NULL");
    REFUSE(args.cu_q = shifted, LOAM_ESHAPE, "cu_q[0]", "1");
    REFUSE(args.cu_q = lens, LOAM_ESHAPE, "cu_q", "expected the total");
}

/* States that merge are those of the local family. */
static void partial_states(void **state)
{
    (void)state;
    const spec s = basic(LOAM_DELTA, LOAM_DECODE);
    scene x;
    double a[8], b[8];
    loam_error error;
    scene_make(&x, &s);
    assert_true(loam_state_doubles(x.plan) == 0 && loam_states_doubles(x.plan) == 0);
    assert_int_equal(loam_state_partial(x.plan, &x.m.args, 0, 1, a, &error), LOAM_EUNSUPPORTED);
    assert_non_null(strstr(error.text, "delta"));
    assert_int_equal(loam_state_merge(x.plan, a, b, &error), LOAM_EUNSUPPORTED);
    assert_int_equal(loam_state_finish(x.plan, &x.m.args, a, &error), LOAM_EUNSUPPORTED);
    scene_free(&x);
    spec local = spec_default(LOAM_LLA, LOAM_FORWARD, 7, 5, 6);
    scene_make(&x, &local);
    assert_int_equal(loam_plan_state_rows(x.plan), 0);
    scene_free(&x);
}

static void nothing_to_do(void **state)
{
    (void)state;
    for (int mechanism = LOAM_LINEAR; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = basic(mechanism, pass);
            s.batch = 0;
            scene x;
            scene_make(&x, &s);
            const loam_args args = { .work = x.m.args.work };
            loam_error error;
            assert_int_equal(loam_run(x.plan, &args, &error), LOAM_OK);
            scene_free(&x);
        }
        spec s = basic(mechanism, LOAM_FORWARD); /* no tokens: the state goes through */
        s.len_q = s.len_kv = 0;
        values v = values_make(&s);
        expect_run(&v);
        expect_same("no tokens", &v, SLOT_STATE_OUT, v.x[SLOT_STATE_IN]);
        values_free(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems),
        cmocka_unit_test(positive_features),
        cmocka_unit_test(the_other_family_has_none_of_it),
        cmocka_unit_test(sizes_that_overflow),
        cmocka_unit_test(missing_arrays),
        cmocka_unit_test(numbers),
        cmocka_unit_test(arrays_that_the_mechanism_does_not_have),
        cmocka_unit_test(outputs_that_overlap),
        cmocka_unit_test(positive_arrays),
        cmocka_unit_test(lengths),
        cmocka_unit_test(partial_states),
        cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
