/* SPDX-License-Identifier: MIT
 * Every call that loam_run and the state functions refuse: the status, a text that names the argument and the
 * value, and nothing written. */
#include "tests/support/element.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"
#include "tests/support/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum call { CALL_RUN, CALL_PARTIAL, CALL_MERGE, CALL_FINISH } call;

/* A call that would succeed. */
typedef struct scene {
    spec spec;
    values v;
    arrays m;
    loam_plan *plan;
    double *states;
    guard written; /* the states that a call would write */
} scene;

static scene scene_make(const spec *s)
{
    scene x = { .spec = *s };
    loam_error error;
    x.v = values_make(s);
    arrays_make(&x.m, &x.v);
    const loam_problem problem = values_problem(&x.v);
    if (loam_plan_create(&x.plan, &problem, &error)) fail_msg("%s", error.text);
    arrays_work(&x.m, x.plan);
    if (s->pass != LOAM_DECODE) arrays_saved(&x.m, x.plan);
    if (s->pass == LOAM_DECODE) {
        const size_t doubles = loam_states_doubles(x.plan);
        x.states = memory_zeroed(doubles, sizeof *x.states);
        x.written = guard_make(doubles * sizeof *x.states, 1);
    }
    return x;
}

static void scene_free(scene *x)
{
    loam_plan_destroy(x->plan);
    arrays_free(&x->m);
    values_free(&x->v);
    guard_free(&x->written);
    free(x->states);
}

/* One past the arguments, for the calls on states. */
typedef struct extra {
    int64_t first, count;
    int null_states;
} extra;

static loam_status perform(scene *x, call which, const loam_args *args, extra e, loam_error *error)
{
    double *written = e.null_states ? NULL : (double *)(void *)x->written.data;
    switch (which) {
    case CALL_RUN: return loam_run(x->plan, args, error);
    case CALL_PARTIAL: return loam_state_partial(x->plan, args, e.first, e.count, written, error);
    case CALL_MERGE: return loam_state_merge(x->plan, written, x->states, error);
    case CALL_FINISH: return loam_state_finish(x->plan, args, e.null_states ? NULL : x->states, error);
    }
    return LOAM_OK;
}

static void refuse_call(scene *x, call which, const loam_args *args, extra e, loam_status status,
                        const char *name, const char *more)
{
    loam_error error;
    memset(&error, 0x55, sizeof error);
    const loam_status got = perform(x, which, args, e, &error);
    if (got != status || error.status != status || !strstr(error.text, name) || !strstr(error.text, more)) {
        fail_msg("%s (%s): status %d (%d in error), text '%.255s'", name, more, (int)got, (int)error.status,
                 error.text);
    }
    assert_int_equal(perform(x, which, args, e, NULL), status);
    for (int a = SLOT_FIRST_OUTPUT; a < SLOT_COUNT; a++)
        assert_true(guard_untouched(&x->m.array[a]) && guard_intact(&x->m.array[a]));
    assert_true(guard_untouched(&x->m.work));
    assert_true(guard_untouched(&x->m.saved));
    assert_true(x->written.map == NULL || guard_untouched(&x->written));
}

/* Runs the scene once with `change` made to its arguments, which must be refused. */
#define REFUSE(s, change, status, name, more) \
    do { \
        scene scene_ = scene_make(s); \
        loam_args args = scene_.m.args; \
        change; \
        refuse_call(&scene_, CALL_RUN, &args, (extra){ 0, 0, 0 }, status, name, more); \
        scene_free(&scene_); \
    } while (0)

static spec basic(loam_mechanism mechanism, loam_pass pass)
{
    spec s = spec_default(mechanism, pass, 7, 5, 6);
    s.batch = 2;
    s.heads_q = 4;
    s.heads_kv = 2;
    s.omit = 0;
    return s;
}

static void missing_inputs(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = basic(LOAM_SOFTMAX, (loam_pass)pass);
        s.slope = s.key_bias = s.sink = 1;
        REFUSE(&s, args.q.data = NULL, LOAM_EARG, "q", "NULL");
        REFUSE(&s, args.k.data = NULL, LOAM_EARG, "k", "NULL");
        REFUSE(&s, args.v.data = NULL, LOAM_EARG, "v", "NULL");
        REFUSE(&s, args.slope = NULL, LOAM_EARG, "slope", "NULL");
        REFUSE(&s, args.key_bias.data = NULL, LOAM_EARG, "key_bias", "NULL");
        REFUSE(&s, args.sink = NULL, LOAM_EARG, "sink", "NULL");
        s = basic(LOAM_PARALLAX, (loam_pass)pass);
        REFUSE(&s, args.probe.data = NULL, LOAM_EARG, "probe", "NULL");
        REFUSE(&s, args.log_decay = args.k, LOAM_EARG, "log_decay", "no decay");
        s.decay = 1;
        REFUSE(&s, args.log_decay.data = NULL, LOAM_EARG, "log_decay", "NULL");
        s = basic(LOAM_LLA, (loam_pass)pass);
        for (s.ridge_axes = LOAM_RIDGE_HEAD; s.ridge_axes <= LOAM_RIDGE_CHANNEL; s.ridge_axes++)
            REFUSE(&s, args.ridge.data = NULL, LOAM_EARG, "ridge", "NULL");
    }
    spec s = basic(LOAM_LLA, LOAM_BACKWARD);
    REFUSE(&s, args.grad_o.data = NULL, LOAM_EARG, "grad_o", "NULL");
    REFUSE(&s, args.saved = NULL, LOAM_EARG, "saved", "NULL");
    s = basic(LOAM_LLA, LOAM_FORWARD);
    REFUSE(&s, args.o.data = NULL, LOAM_EARG, "o", "NULL");
}

static void workspace(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = basic(LOAM_LLA, (loam_pass)pass);
        REFUSE(&s, args.work = NULL, LOAM_EARG, "work", "NULL");
        REFUSE(&s, args.work = (char *)args.work + 8, LOAM_EARG, "work", "64");
        scene x = scene_make(&s);
        loam_error error;
        assert_int_equal(loam_run(x.plan, NULL, &error), LOAM_EARG);
        assert_non_null(strstr(error.text, "args"));
        assert_int_equal(loam_run(NULL, &x.m.args, &error), LOAM_EARG);
        assert_non_null(strstr(error.text, "plan"));
        assert_int_equal(loam_plan_work_bytes(x.plan) % LOAM_ALIGN, 0);
        scene_free(&x);
    }
}

static void outputs_that_overlap(void **state)
{
    (void)state;
    spec s = basic(LOAM_LLA, LOAM_FORWARD);
    REFUSE(&s, args.o.token = 5, LOAM_ESHAPE, "o", "5");
    REFUSE(&s, args.o.head = 0, LOAM_ESHAPE, "o", "head");
    REFUSE(&s, args.o.batch = 0, LOAM_ESHAPE, "o", "batch");
    REFUSE(&s, args.lse.token = 0, LOAM_ESHAPE, "lse", "token");
    REFUSE(&s, args.rho.token = 4, LOAM_ESHAPE, "rho", "4");
    REFUSE(&s, args.info.token = 0, LOAM_ESHAPE, "info", "token");
    REFUSE(&s, args.weights.token = 6, LOAM_ESHAPE, "weights", "6");
    s = basic(LOAM_LLA, LOAM_BACKWARD);
    s.key_bias = s.decay = 1;
    s.ridge_axes = LOAM_RIDGE_CHANNEL;
    REFUSE(&s, args.grad_log_decay.token = 0, LOAM_ESHAPE, "grad_log_decay", "token");
    REFUSE(&s, args.grad_q.token = 1, LOAM_ESHAPE, "grad_q", "token");
    REFUSE(&s, args.grad_k.head = 2, LOAM_ESHAPE, "grad_k", "head");
    REFUSE(&s, args.grad_v.batch = 3, LOAM_ESHAPE, "grad_v", "batch");
    REFUSE(&s, args.grad_key_bias.token = 0, LOAM_ESHAPE, "grad_key_bias", "token");
    REFUSE(&s, args.grad_ridge.token = 4, LOAM_ESHAPE, "grad_ridge", "4");
    s.ridge_axes = LOAM_RIDGE_HEAD;
    REFUSE(&s, args.grad_ridge.head = 0, LOAM_ESHAPE, "grad_ridge", "head");
    s = basic(LOAM_PARALLAX, LOAM_BACKWARD);
    REFUSE(&s, args.grad_probe.token = 0, LOAM_ESHAPE, "grad_probe", "token");
}

static void outputs_that_the_problem_does_not_have(void **state)
{
    (void)state;
    double x[4];
    const loam_view view = { x, 1, 1, 1 };
    spec s = basic(LOAM_SOFTMAX, LOAM_BACKWARD);
    REFUSE(&s, args.grad_probe = view, LOAM_EARG, "grad_probe", "softmax has none");
    REFUSE(&s, args.grad_ridge = view, LOAM_EARG, "grad_ridge", "softmax has none");
    REFUSE(&s, args.grad_slope = x, LOAM_EARG, "grad_slope", "slope");
    REFUSE(&s, args.grad_key_bias = view, LOAM_EARG, "grad_key_bias", "key bias");
    REFUSE(&s, args.grad_sink = x, LOAM_EARG, "grad_sink", "sink");
    REFUSE(&s, args.grad_log_decay = view, LOAM_EARG, "grad_log_decay", "no decay");
    REFUSE(&s, args.grad_beta = view, LOAM_EARG, "grad_beta", "no path");
    REFUSE(&s, args.grad_w = view, LOAM_EARG, "grad_w", "no path");
    s = basic(LOAM_SOFTMAX, LOAM_DECODE);
    REFUSE(&s, args.weights = view, LOAM_EARG, "weights", "decode");
    REFUSE(&s, args.saved = args.work, LOAM_EARG, "saved", "decode");
}

/* Where the arguments are in loam_args; views begin with a pointer. */
static const size_t places[SLOT_COUNT] = {
    offsetof(loam_args, q),
    offsetof(loam_args, k),
    offsetof(loam_args, v),
    offsetof(loam_args, probe),
    offsetof(loam_args, ridge),
    offsetof(loam_args, slope),
    offsetof(loam_args, key_bias),
    offsetof(loam_args, sink),
    offsetof(loam_args, grad_o),
    offsetof(loam_args, log_decay),
    offsetof(loam_args, beta),
    offsetof(loam_args, state_in),
    offsetof(loam_args, grad_state_out),
    offsetof(loam_args, w),
    offsetof(loam_args, z),
    offsetof(loam_args, log_alpha),
    offsetof(loam_args, shift),
    offsetof(loam_args, balance),
    offsetof(loam_args, balance_keys),
    offsetof(loam_args, o),
    offsetof(loam_args, lse),
    offsetof(loam_args, rho),
    offsetof(loam_args, weights),
    offsetof(loam_args, info),
    offsetof(loam_args, grad_q),
    offsetof(loam_args, grad_k),
    offsetof(loam_args, grad_v),
    offsetof(loam_args, grad_probe),
    offsetof(loam_args, grad_ridge),
    offsetof(loam_args, grad_scale),
    offsetof(loam_args, grad_slope),
    offsetof(loam_args, grad_key_bias),
    offsetof(loam_args, grad_sink),
    offsetof(loam_args, state_out),
    offsetof(loam_args, grad_log_decay),
    offsetof(loam_args, grad_beta),
    offsetof(loam_args, grad_state_in),
    offsetof(loam_args, grad_w),
    offsetof(loam_args, grad_z),
    offsetof(loam_args, grad_log_alpha),
};

/* The scene with one more argument, which it has no use for. */
static void refuse_more(const spec *s, size_t place, const char *name)
{
    static const _Alignas(LOAM_ALIGN) int64_t memory[16];
    scene x = scene_make(s);
    const void *pointer = memory;
    char begin[40];
    loam_args args = x.m.args;
    memcpy((char *)&args + place, &pointer, sizeof pointer);
    snprintf(begin, sizeof begin, "%s: given, but ", name);
    refuse_call(&x, CALL_RUN, &args, (extra){ 0, 0, 0 }, LOAM_EARG, begin, "");
    scene_free(&x);
}

static void arguments_that_are_not_used(void **state)
{
    (void)state;
    for (int mechanism = 0; mechanism < spec_mechanisms(); mechanism++) {
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            spec s = basic((loam_mechanism)mechanism, (loam_pass)pass);
            const int recurrent = spec_recurrent(&s);
            s.heads_kv = recurrent ? s.heads_q : s.heads_kv;
            for (int which = 0; which < SLOT_COUNT; which++)
                if (!slot_used(&s, (slot)which) && !(which == SLOT_RIDGE && mechanism == LOAM_LLA) &&
                    !(which == SLOT_RIDGE && mechanism == LOAM_MESA) &&
                    !(which == SLOT_STATE_IN && recurrent) &&
                    !(which == SLOT_GRAD_STATE_OUT && recurrent && pass == LOAM_BACKWARD))
                    refuse_more(&s, places[which], slot_names[which]);
            refuse_more(&s, offsetof(loam_args, cu_q), "cu_q");
            refuse_more(&s, offsetof(loam_args, cu_kv), "cu_kv");
            refuse_more(&s, offsetof(loam_args, stream), "stream");
            if (recurrent) refuse_more(&s, offsetof(loam_args, lens_kv), "lens_kv");
            if (pass == LOAM_DECODE) refuse_more(&s, offsetof(loam_args, saved), "saved");
        }
    }
}

/* ------------------------------------------------------------------ what forward left for backward */

static loam_status run_problem(const loam_problem *p, const loam_args *from, void *saved, loam_error *error)
{
    loam_args args = *from;
    loam_plan *plan;
    if (loam_plan_create(&plan, p, error)) fail_msg("%s", error->text);
    args.saved = saved;
    args.work = memory_zeroed(loam_plan_work_bytes(plan) / LOAM_ALIGN + 2, LOAM_ALIGN);
    void *whole = args.work;
    args.work = (char *)whole + (LOAM_ALIGN - (uintptr_t)whole % LOAM_ALIGN);
    const loam_status status = loam_run(plan, &args, error);
    free(whole);
    loam_plan_destroy(plan);
    return status;
}

/* A forward's arguments, then a backward's. */
typedef struct both {
    scene forward, backward;
    loam_problem problem; /* of the backward */
    void *saved;
} both;

static both both_make(loam_mechanism mechanism)
{
    spec s = basic(mechanism, LOAM_FORWARD);
    s.backend = LOAM_BACKEND_AUTO, s.dtype = LOAM_F32;
    both x = { .forward = scene_make(&s) };
    loam_error error;
    s.pass = LOAM_BACKWARD;
    x.backward = scene_make(&s);
    x.problem = values_problem(&x.backward.v);
    x.saved = x.forward.m.args.saved;
    const loam_problem p = values_problem(&x.forward.v);
    if (run_problem(&p, &x.forward.m.args, x.saved, &error)) fail_msg("%s", error.text);
    return x;
}

static void both_free(both *x)
{
    scene_free(&x->forward);
    scene_free(&x->backward);
}

static void expect_saved(const both *x, const loam_problem *p, void *saved, const char *text)
{
    loam_error error;
    const loam_status status = run_problem(p, &x->backward.m.args, saved, &error);
    if (status != (text ? LOAM_EARG : LOAM_OK) ||
        (text && (!strstr(error.text, "saved") || !strstr(error.text, text))))
        fail_msg("%s: status %d, '%s'", text ? text : "accepted", (int)status, error.text);
}

#define EXPECT_OTHER(member, value) \
    do { \
        loam_problem p_ = x.problem; \
        p_.member = value; \
        expect_saved(&x, &p_, x.saved, "another problem"); \
    } while (0)

#define EXPECT_OTHER_MAP(name, member, ...) EXPECT_OTHER(member, 5);

static void saved_is_of_a_forward_of_the_problem(void **state)
{
    (void)state;
    for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
        both x = both_make((loam_mechanism)mechanism);
        loam_problem same = x.problem;
        expect_saved(&x, &same, x.saved, NULL);
        same.threads = 3;
        same.backend = LOAM_BACKEND_REFERENCE;
        expect_saved(&x, &same, x.saved, NULL);
        EXPECT_OTHER(scale, 0.25);
        SPEC_MAPS(EXPECT_OTHER_MAP)
        EXPECT_OTHER(causal, 0);
        EXPECT_OTHER(window, 3);
        EXPECT_OTHER(score, LOAM_RBF);
        EXPECT_OTHER(batch, 1);
        EXPECT_OTHER(len_kv, 6);
        EXPECT_OTHER(dim_v, 5);
        EXPECT_OTHER(dim_qk, 4);
        if (mechanism == LOAM_LLA) {
            EXPECT_OTHER(ridge, 0.2);
            EXPECT_OTHER(ridge_unit, LOAM_RIDGE_MAX);
        }
        expect_saved(&x, &x.problem, x.backward.m.args.saved, "nothing that a forward wrote");
        ((unsigned char *)x.saved)[8] ^= 1; /* the version */
        expect_saved(&x, &x.problem, x.saved, "version");
        both_free(&x);
    }
}

/* ------------------------------------------------------------------ values */

static void set(arrays *m, slot which, int64_t at, double to)
{
    element_set(m->array[which].data, slot_dtype(&m->values->spec, which), at, to);
}

static void numbers(void **state)
{
    (void)state;
    for (int dtype = LOAM_F32; dtype <= LOAM_F64; dtype++) {
        spec s = basic(LOAM_LLA, LOAM_FORWARD);
        s.dtype = dtype;
        for (s.ridge_axes = LOAM_RIDGE_NUMBER; s.ridge_axes <= LOAM_RIDGE_CHANNEL; s.ridge_axes++) {
            s.ridge_array = s.ridge_axes == LOAM_RIDGE_NUMBER;
            values v = values_make(&s);
            const int64_t last = slot_size(&v, SLOT_RIDGE) - 1;
            values_free(&v);
            REFUSE(&s, set(&scene_.m, SLOT_RIDGE, last, (double)NAN), LOAM_EVALUE, "ridge", "nan");
            REFUSE(&s, set(&scene_.m, SLOT_RIDGE, 0, -0.5), LOAM_EVALUE, "ridge", "-0.5");
            REFUSE(&s, set(&scene_.m, SLOT_RIDGE, last / 2, HUGE_VAL), LOAM_EVALUE, "ridge", "inf");
        }
        s = basic(LOAM_SOFTMAX, LOAM_FORWARD);
        s.dtype = dtype;
        s.slope = s.sink = 1;
        REFUSE(&s, set(&scene_.m, SLOT_SLOPE, 3, (double)NAN), LOAM_EVALUE, "slope", "nan");
        REFUSE(&s, set(&scene_.m, SLOT_SINK, 1, HUGE_VAL), LOAM_EVALUE, "sink", "inf");
        s = basic(LOAM_SOFTMAX, LOAM_FORWARD);
        s.dtype = dtype;
        s.decay = 1;
        REFUSE(&s, set(&scene_.m, SLOT_LOG_DECAY, 3, (double)NAN), LOAM_EVALUE, "log_decay", "nan");
        REFUSE(&s, set(&scene_.m, SLOT_LOG_DECAY, 5, 0.5), LOAM_EVALUE, "log_decay", "0.5");
    }
}

/* Rows of w: length 1 to the rounding of their type, or 0; not beyond the keys in use. */
static void reflections(void **state)
{
    (void)state;
    static const double least[] = { 1e-5, 0.02, 0.005, 0.02 }; /* off 1 by this and more is refused */
    for (int dtype = LOAM_F32; dtype <= LOAM_F64; dtype++) {
        spec s = basic(LOAM_SOFTMAX, LOAM_FORWARD);
        s.dtype = dtype;
        s.path = 1;
        s.dim_qk = 1;
        const int64_t row = (1 * s.heads_kv + 1) * s.len_kv + 4; /* batch 1, head 1, token 4 */
        REFUSE(&s, set(&scene_.m, SLOT_W, row, 1 + least[dtype]), LOAM_EVALUE, "w: length 1.0",
               "batch 1, head 1, token 4");
        REFUSE(&s, set(&scene_.m, SLOT_W, row, -1 + least[dtype]), LOAM_EVALUE, "w: length 0.9", "token 4");
        REFUSE(&s, set(&scene_.m, SLOT_W, row, (double)NAN), LOAM_EVALUE, "w: length", "token 4");
        REFUSE(&s, set(&scene_.m, SLOT_BETA, row, 2.5), LOAM_EVALUE, "beta", "token 4");
        s.pass = LOAM_DECODE;
        scene x = scene_make(&s);
        const int64_t lens[2] = { 7, 4 };
        loam_error error;
        set(&x.m, SLOT_W, row, 1.5),
            set(&x.m, SLOT_BETA, row, (double)NAN); /* beyond the keys of sequence 1 */
        set(&x.m, SLOT_W, 3, 0);
        x.m.args.lens_kv = lens;
        if (loam_run(x.plan, &x.m.args, &error)) fail_msg("%s", error.text);
        scene_free(&x);
        s.dim_qk = 64; /* normalised in its own type, summed in order */
        for (s.seed = 1; s.seed < 20; s.seed++) {
            values v = values_make(&s);
            expect_run(&v);
            values_free(&v);
        }
    }
}

static void lengths(void **state)
{
    (void)state;
    int64_t lens[3] = { 0, 0, 0 };
    spec s = basic(LOAM_SOFTMAX, LOAM_FORWARD);
    REFUSE(&s, (args.lens_kv = lens, lens[1] = 8), LOAM_ESHAPE, "lens_kv", "8");
    REFUSE(&s, (args.lens_kv = lens, lens[1] = -1), LOAM_ESHAPE, "lens_kv", "-1");
    REFUSE(&s, args.cu_q = lens, LOAM_EARG, "cu_q", "packed");
    REFUSE(&s, args.cu_kv = lens, LOAM_EARG, "cu_kv", "packed");
    s.packed = 1;
    REFUSE(&s, args.lens_kv = lens, LOAM_EARG, "lens_kv", "packed");
    REFUSE(&s, args.cu_q = NULL, LOAM_EARG, "cu_q", "NULL");
    REFUSE(&s, args.cu_kv = NULL, LOAM_EARG, "cu_kv", "NULL");
    const int64_t shifted[3] = { 1, 2, 3 }, falling[3] = { 0, 5, 4 },
                  hostile[3] = { 0, INT64_MIN, INT64_MAX };
    const int64_t other_total[3] = { 0, 0, 1 };
    REFUSE(&s, args.cu_q = shifted, LOAM_ESHAPE, "cu_q[0]", "1");
    REFUSE(&s, args.cu_kv = shifted, LOAM_ESHAPE, "cu_kv[0]", "1");
    REFUSE(&s, args.cu_q = falling, LOAM_ESHAPE, "cu_q", "expected");
    REFUSE(&s, args.cu_kv = hostile, LOAM_ESHAPE, "cu_kv[1]", "expected");
    REFUSE(&s, args.cu_q = other_total, LOAM_ESHAPE, "cu_q", "expected");
}

/* More tokens than the longest sequence may have. */
static void packed_sequence_too_long(void **state)
{
    (void)state;
    spec s = basic(LOAM_SOFTMAX, LOAM_FORWARD);
    loam_problem p = spec_problem(&s);
    p.total_q = p.total_kv = 14;
    const int64_t uneven[3] = { 0, 3, 14 };
    loam_plan *plan;
    loam_error error;
    assert_int_equal(loam_plan_create(&plan, &p, &error), LOAM_OK);
    scene x = scene_make(&s);
    loam_args args = x.m.args;
    args.cu_q = args.cu_kv = uneven;
    loam_plan_destroy(x.plan);
    x.plan = plan;
    refuse_call(&x, CALL_RUN, &args, (extra){ 0, 0, 0 }, LOAM_ESHAPE, "cu_q[2]", "14 after 3");
    scene_free(&x);
}

#define REFUSE_STATE(which, change, status, name, more) \
    do { \
        scene scene_ = scene_make(&s); \
        loam_args args = scene_.m.args; \
        extra e = { 0, 7, 0 }; \
        change; \
        refuse_call(&scene_, which, &args, e, status, name, more); \
        scene_free(&scene_); \
    } while (0)

static void states(void **state)
{
    (void)state;
    spec s = basic(LOAM_LLA, LOAM_DECODE);
    s.omit = 0;
    REFUSE_STATE(CALL_PARTIAL, e.first = -1, LOAM_ESHAPE, "first", "-1");
    REFUSE_STATE(CALL_PARTIAL, e.count = 8, LOAM_ESHAPE, "count", "8");
    REFUSE_STATE(CALL_PARTIAL, (e.first = 8, e.count = 0), LOAM_ESHAPE, "first", "8");
    REFUSE_STATE(CALL_PARTIAL, e.count = -1, LOAM_ESHAPE, "count", "-1");
    REFUSE_STATE(CALL_PARTIAL, (e.first = INT64_MAX, e.count = INT64_MAX), LOAM_ESHAPE, "first", "expected");
    REFUSE_STATE(CALL_PARTIAL, e.null_states = 1, LOAM_EARG, "states", "NULL");
    REFUSE_STATE(CALL_PARTIAL, args.k.data = NULL, LOAM_EARG, "k", "NULL");
    REFUSE_STATE(CALL_PARTIAL, args.work = NULL, LOAM_EARG, "work", "NULL");
    REFUSE_STATE(CALL_MERGE, e.null_states = 1, LOAM_EARG, "into", "NULL");
    REFUSE_STATE(CALL_FINISH, e.null_states = 1, LOAM_EARG, "states", "NULL");
    REFUSE_STATE(CALL_FINISH, args.o.data = NULL, LOAM_EARG, "o", "NULL");
    REFUSE_STATE(CALL_FINISH, args.q.data = NULL, LOAM_EARG, "q", "NULL");
    REFUSE_STATE(CALL_FINISH, args.o.token = 1, LOAM_ESHAPE, "o", "token");
    scene x = scene_make(&s);
    double *mine = (double *)(void *)x.written.data;
    loam_error error;
    assert_int_equal(loam_state_merge(x.plan, mine, NULL, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "from"));
    assert_int_equal(loam_state_merge(x.plan, mine, mine, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "into"));
    scene_free(&x);
}

static void states_need_a_decode_plan(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        spec s = basic(LOAM_LLA, (loam_pass)pass);
        scene x = scene_make(&s);
        double a[2000], b[2000];
        loam_error error;
        assert_int_equal(loam_state_partial(x.plan, &x.m.args, 0, 1, a, &error), LOAM_EARG);
        assert_non_null(strstr(error.text, "decode"));
        assert_int_equal(loam_state_merge(x.plan, a, b, &error), LOAM_EARG);
        assert_int_equal(loam_state_finish(x.plan, &x.m.args, a, &error), LOAM_EARG);
        scene_free(&x);
    }
    loam_error error;
    assert_int_equal(loam_state_partial(NULL, NULL, 0, 1, NULL, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "plan"));
    assert_int_equal(loam_state_merge(NULL, NULL, NULL, &error), LOAM_EARG);
    assert_int_equal(loam_state_finish(NULL, NULL, NULL, &error), LOAM_EARG);
}

/* A size of 0 needs no arrays at all. */
static void nothing_to_do(void **state)
{
    (void)state;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        spec s = basic(LOAM_LLA, (loam_pass)pass);
        s.batch = 0;
        scene x = scene_make(&s);
        loam_args args = { .work = x.m.args.work };
        loam_error error;
        assert_int_equal(loam_run(x.plan, &args, &error), LOAM_OK);
        assert_string_equal(error.text, "");
        scene_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_inputs),
        cmocka_unit_test(workspace),
        cmocka_unit_test(outputs_that_overlap),
        cmocka_unit_test(outputs_that_the_problem_does_not_have),
        cmocka_unit_test(arguments_that_are_not_used),
        cmocka_unit_test(saved_is_of_a_forward_of_the_problem),
        cmocka_unit_test(numbers),
        cmocka_unit_test(reflections),
        cmocka_unit_test(lengths),
        cmocka_unit_test(packed_sequence_too_long),
        cmocka_unit_test(states),
        cmocka_unit_test(states_need_a_decode_plan),
        cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
