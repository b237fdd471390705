/* SPDX-License-Identifier: MIT
 * Exact attention to sinks and a window with positive features for the rest: against its equation over all
 * pairs, central differences of every input, what it becomes in special cases, itself in steps, and on any
 * machine. */
#include "tests/recurrent/hybrid_scene.h"
#include "tests/support/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_equation(scene *s, double tolerance)
{
    scene_run_forward(s);
    const double off = scene_miss(s, 0);
    if (!(off < tolerance))
        fail_msg("%lld tokens, %lld sinks, window %lld: off by %g", (long long)s->len, (long long)s->sinks,
                 (long long)s->window, off);
}

/* Scene `number` of many: lengths about sinks + window, heads, and every switch. */
static scene varied(int number, loam_dtype dtype, loam_backend backend)
{
    static const int64_t over[] = { -3, 0, 1, 2, 30, 75 };
    scene s = { .batch = 2, .heads_q = 4, .heads_kv = 2, .dtype = dtype, .backend = backend, .threads = 2 };
    s.sinks = number % 3 * 2, s.window = 1 + number % 4 * 3;
    s.len = s.sinks + s.window + over[number % 6];
    s.len = s.len > 0 ? s.len : 0;
    s.d = 2 + number % 5, s.dv = 1 + number % 4, s.features = 1 + number % 9;
    s.heads_kv = number % 2 ? 4 : 2;
    s.shared = number / 2 % 2, s.alpha = number / 3 % 2, s.shift = number / 4 % 2, s.balance = number / 5 % 2;
    s.scale = number % 7 == 0 ? 0.4 : 0;
    scene_fill(&s, (uint64_t)number);
    return s;
}

static int machines(loam_backend *backends)
{
    loam_kernel_info row;
    backends[0] = LOAM_BACKEND_CPU;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        if (row.available && strcmp(row.backend, "cuda") == 0) return backends[1] = LOAM_BACKEND_CUDA, 2;
    return 1;
}

static void outputs_follow_the_equation(void **state)
{
    (void)state;
    static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    static const double tolerances[] = { 1e-5, 4e-2, 4e-3 };
    loam_backend backends[2];
    const int count = machines(backends);
    for (int number = 0; number < 60; number++) {
        scene s = varied(number, LOAM_F64, LOAM_BACKEND_REFERENCE);
        expect_equation(&s, 1e-12);
        scene_free(&s);
        for (int m = 0; m < count; m++) {
            scene fast = varied(number, dtypes[number % 3], backends[m]);
            expect_equation(&fast, tolerances[number % 3]);
            scene_free(&fast);
        }
    }
}

/* ------------------------------------------------------------------ gradients */

static double loss(scene *s)
{
    scene_run_forward(s);
    return scene_dot(s->x[O], s->x[GRAD_O], scene_count(s, O));
}

static void expect_gradient(scene *s, array input, array gradient)
{
    const double step = 1e-3;
    double *grad = memory_zeroed((size_t)scene_count(s, gradient), sizeof *grad);
    memcpy(grad, s->x[gradient], (size_t)scene_count(s, gradient) * sizeof *grad);
    for (int64_t i = 0; i < scene_count(s, input); i++) {
        static const double shifts[] = { 1, -1, 2, -2 };
        const double before = s->x[input][i];
        double at[4];
        for (int n = 0; n < 4; n++) {
            s->x[input][i] = before + shifts[n] * step;
            at[n] = loss(s);
        }
        s->x[input][i] = before;
        const double want = (8 * (at[0] - at[1]) - at[2] + at[3]) / (12 * step);
        if (!(fabs(grad[i] - want) < 1e-7 * (1 + fabs(want))))
            fail_msg("gradient of array %d, element %lld: %.12g, expected %.12g", (int)input, (long long)i,
                     grad[i], want);
    }
    free(grad);
}

static void gradients_are_differences(void **state)
{
    (void)state;
    for (int number = 0; number < 6; number++) {
        scene s = {
            .batch = 1 + number % 2, .heads_q = 2, .heads_kv = 1 + number / 2 % 2, .len = 9, .d = 2, .dv = 2
        };
        s.features = 3, s.sinks = number % 3, s.window = 2 + number % 2;
        s.shared = number / 3, s.alpha = number % 4 != 0, s.shift = number % 2, s.balance = number > 1;
        s.threads = 1, s.dtype = LOAM_F64, s.backend = LOAM_BACKEND_REFERENCE;
        scene_fill(&s, 100 + (uint64_t)number);
        scene_run_both(&s);
        expect_gradient(&s, Q, GRAD_Q);
        expect_gradient(&s, K, GRAD_K);
        expect_gradient(&s, V, GRAD_V);
        expect_gradient(&s, Z, GRAD_Z);
        if (s.alpha) expect_gradient(&s, ALPHA, GRAD_ALPHA);
        expect_gradient(&s, GAIN, GRAD_GAIN);
        scene_free(&s);
    }
}

/* sqrt(sum (x - want)^2 / sum want^2) */
static double relative(const double *x, const double *want, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++)
        off += (x[i] - want[i]) * (x[i] - want[i]), size += want[i] * want[i];
    return size > 0 ? sqrt(off / size) : off == 0 ? 0 : HUGE_VAL;
}

static void gradients_agree_on_machines(void **state)
{
    (void)state;
    loam_backend backends[2];
    const int count = machines(backends);
    for (int number = 0; number < 24; number++) {
        scene want = varied(number, LOAM_F64, LOAM_BACKEND_REFERENCE);
        scene rounded = varied(number, LOAM_F32, LOAM_BACKEND_REFERENCE); /* the same inputs, float32 */
        for (int a = Q; a <= GAIN; a++)
            memcpy(want.x[a], rounded.x[a], (size_t)scene_count(&want, (array)a) * sizeof(double));
        scene_run_both(&want);
        for (int m = 0; m < count; m++) {
            scene fast = varied(number, LOAM_F32, backends[m]);
            scene_run_both(&fast);
            for (int a = O; a <= GRAD_GAIN; a++) {
                const double off = relative(fast.x[a], want.x[a], scene_count(&want, (array)a));
                if (!(off < 2e-5 || scene_count(&want, (array)a) == 0))
                    fail_msg("scene %d, machine %d, array %d: off by %g", number, m, a, off);
            }
            scene_free(&fast);
        }
        scene_free(&want), scene_free(&rounded);
    }
}

/* ------------------------------------------------------------------ special cases */

/* The library's own softmax. */
static void run_softmax(const scene *s, int64_t window, double *o)
{
    loam_problem p = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
    loam_plan *plan;
    p.dtype = LOAM_F64, p.backend = LOAM_BACKEND_REFERENCE, p.batch = s->batch, p.window = window;
    p.heads_q = s->heads_q, p.heads_kv = s->heads_kv;
    p.len_q = p.len_kv = s->len, p.dim_qk = s->d, p.dim_v = s->dv;
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    loam_args a = { .q = loam_dense(s->x[Q], s->heads_q, s->len, s->d),
                    .k = loam_dense(s->x[K], s->heads_kv, s->len, s->d),
                    .v = loam_dense(s->x[V], s->heads_kv, s->len, s->dv),
                    .o = loam_dense_out(o, s->heads_q, s->len, s->dv),
                    .work = scene_room(loam_plan_work_bytes(plan)) };
    assert_int_equal(loam_run(plan, &a, NULL), LOAM_OK);
    free(a.work);
    loam_plan_destroy(plan);
}

static void expect_softmax(scene *s, int64_t window)
{
    double *o = memory_zeroed((size_t)scene_count(s, O), sizeof *o);
    run_softmax(s, window, o);
    scene_run_forward(s);
    for (int64_t i = 0; i < scene_count(s, O); i++)
        if (!(fabs(s->x[O][i] - o[i]) < 1e-14))
            fail_msg("element %lld: %.17g, softmax %.17g", (long long)i, s->x[O][i], o[i]);
    free(o);
}

static void a_wide_window_is_softmax(void **state)
{
    (void)state;
    scene s = scene_make(12, 0, 12, 1), wider = scene_make(12, 3, 1 << 20, 1),
          sinks = scene_make(12, 12, 1, 1);
    expect_softmax(&s, 0);
    expect_softmax(&wider, 0);
    expect_softmax(&sinks, 0);
    scene_free(&s), scene_free(&wider), scene_free(&sinks);
}

static void nothing_far_is_a_window(void **state)
{
    (void)state;
    scene s = scene_make(15, 0, 4, 2), sunk = scene_make(15, 2, 4, 2);
    s.x[GAIN][0] = s.x[GAIN][1] = sunk.x[GAIN][0] = sunk.x[GAIN][1] = -HUGE_VAL;
    expect_softmax(&s, 4);
    expect_equation(&sunk, 1e-13);
    for (int n = 0; n < 2; n++)
        sunk.x[GAIN][n] = -60;
    expect_equation(&sunk, 1e-13);
    scene_run_both(&sunk);
    assert_true(fabs(sunk.x[GRAD_GAIN][0]) < 1e-20);
    scene_free(&s), scene_free(&sunk);
}

/* Small keys and queries: the error of many features is that of few over the root of their number, about. */
static double error_of(int64_t features)
{
    scene s = { .batch = 1, .heads_q = 4, .heads_kv = 4, .len = 40, .d = 4, .dv = 3, .features = features };
    s.sinks = 2, s.window = 5;
    s.threads = 1, s.dtype = LOAM_F64, s.backend = LOAM_BACKEND_REFERENCE;
    scene_fill(&s, 3);
    for (int64_t i = 0; i < scene_count(&s, Q); i++)
        s.x[Q][i] *= 0.3, s.x[K][i] *= 0.3;
    memset(s.x[GAIN], 0, sizeof(double) * 4);
    scene_run_forward(&s);
    const double off = scene_miss(&s, 1);
    scene_free(&s);
    return off;
}

static void many_features_are_softmax(void **state)
{
    (void)state;
    const double few = error_of(8), many = error_of(LOAM_MAX_DIM - 1);
    if (!(many < few / 3 && many < 0.03)) fail_msg("%g with 8 features, %g with many", few, many);
}

static void large_norms_are_finite(void **state)
{
    (void)state;
    loam_backend backends[2];
    const int count = machines(backends);
    for (int m = 0; m < count; m++)
        for (int number = 0; number < 2; number++) {
            scene s = { .batch = 1, .heads_q = 2, .heads_kv = 2, .len = 70, .d = 16, .dv = 4, .features = 8 };
            s.sinks = 2, s.window = 8, s.shift = s.balance = number;
            s.threads = 1, s.dtype = LOAM_F32, s.backend = backends[m];
            scene_fill(&s, 7);
            for (int64_t i = 0; i < scene_count(&s, Q); i++)
                s.x[Q][i] *= 14, s.x[K][i] *= 14; /* |x'|^2 of some 800, 25 times that of real heads */
            expect_equation(&s, 1e-5);
            for (int64_t i = 0; i < scene_count(&s, Q); i++)
                s.x[Q][i] *= 1e8, s.x[K][i] *= 1e8;
            scene_run_both(&s);
            for (int a = O; a <= GRAD_GAIN; a++)
                for (int64_t i = 0; i < scene_count(&s, (array)a); i++)
                    assert_true(isfinite(s.x[a][i]));
            scene_free(&s);
        }
}

/* Queries and keys are one long vector, and the gain gives what is near and far about the same weight: then
 * the logarithms of both, of some 1000, must be as exact as their difference. */
static void logarithms_keep_their_digits(void **state)
{
    (void)state;
    loam_backend backends[2];
    const int count = machines(backends);
    for (int m = 0; m < count; m++) {
        scene s = scene_make(40, 2, 8, 5);
        scene_free(&s);
        s.dtype = LOAM_F32, s.backend = backends[m];
        scene_fill(&s, 5);
        for (int64_t i = 0; i < scene_count(&s, Q); i++)
            s.x[Q][i] = s.x[K][i] = 25;
        for (int64_t h = 0; h < s.heads_q; h++) {
            const double far = scene_far_score(&s, h, s.x[Q], s.x[K]);
            s.x[GAIN][h] = (double)(float)(sqrt(3) * 25 * 25 - far);
        }
        expect_equation(&s, 1e-6);
        scene_free(&s);
    }
}

/* ------------------------------------------------------------------ steps */

static void expect_steps(scene *s, int64_t prefill, int64_t step, double tolerance)
{
    const int64_t ahead[] = { prefill, prefill > 2 ? prefill - 2 : prefill };
    scene_run_forward(s);
    double *whole = s->x[O];
    s->x[O] = memory_zeroed((size_t)scene_count(s, O), sizeof *whole);
    for (int64_t b = 0; b < s->batch; b++) { /* each as far as it is */
        part begin = { LOAM_FORWARD, b, 1, ahead[b], { 0 }, 1 };
        if (ahead[b] > 0) scene_run_part(s, &begin), scene_drop_saved(s);
    }
    part next = { LOAM_DECODE, 0, s->batch, step, { ahead[0], ahead[1] }, 0 };
    while (next.at[0] + step <= s->len && next.at[1] + step <= s->len) {
        scene_run_part(s, &next);
        next.at[0] += step, next.at[1] += step;
    }
    for (int64_t row = 0; row < s->batch * s->heads_q * s->len; row++) {
        const int64_t t = row % s->len, b = row / s->len / s->heads_q;
        for (int64_t c = 0; t < next.at[b] && c < s->dv; c++) {
            const double got = s->x[O][row * s->dv + c], want = whole[row * s->dv + c];
            if (!(fabs(got - want) < tolerance))
                fail_msg("token %lld of sequence %lld: %g, in one pass %g", (long long)t, (long long)b, got,
                         want);
        }
    }
    free(whole);
}

static void steps_are_the_whole(void **state)
{
    (void)state;
    loam_backend backends[2];
    const int count = machines(backends);
    for (int number = 0; number < 24; number++)
        for (int m = -1; m < count; m++) {
            static const int64_t prefills[] = { 0, 1, 7, 14 };
            scene s = varied(number, m < 0 ? LOAM_F64 : LOAM_F32,
                             m < 0 ? LOAM_BACKEND_REFERENCE : backends[m]);
            expect_steps(&s, prefills[number / 2 % 4] < s.len ? prefills[number / 2 % 4] : 0, 1 + number % 3,
                         m < 0 ? 1e-12 : 1e-5);
            scene_free(&s);
        }
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    scene want = varied(11, LOAM_F32, LOAM_BACKEND_CPU);
    want.threads = 1;
    scene_run_both(&want);
    for (int threads = 2; threads <= 5; threads++) {
        scene s = varied(11, LOAM_F32, LOAM_BACKEND_CPU);
        s.threads = threads;
        scene_run_both(&s);
        for (int a = O; a <= GRAD_GAIN; a++)
            assert_memory_equal(s.x[a], want.x[a], (size_t)scene_count(&s, (array)a) * sizeof(double));
        scene_free(&s);
    }
    scene_free(&want);
}

/* ------------------------------------------------------------------ mistakes */

static void expect_refused(const loam_problem *p, int64_t sinks, int64_t window, loam_status status,
                           const char *text)
{
    loam_hybrid *i = (loam_hybrid *)&status;
    loam_error error;
    assert_int_equal(loam_hybrid_create(&i, p, sinks, window, &error), status);
    assert_null(i);
    if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
}

static void wrong_problems_are_named(void **state)
{
    (void)state;
    scene s = scene_make(9, 1, 3, 4);
    const loam_problem right = scene_problem(&s, LOAM_FORWARD);
    loam_problem p = right;
    expect_refused(NULL, 1, 3, LOAM_EARG, "NULL");
    expect_refused(&p, -1, 3, LOAM_ESHAPE, "sinks: -1");
    expect_refused(&p, 1, 0, LOAM_ESHAPE, "window: 0");
    p.feature_map = LOAM_FEATURES_ELU;
    expect_refused(&p, 1, 3, LOAM_EARG, "feature_map");
    p = right, p.features = LOAM_MAX_DIM;
    expect_refused(&p, 1, 3, LOAM_ESHAPE, "features: 512");
    p = right, p.dim_qk = LOAM_MAX_DIM - 1;
    expect_refused(&p, 1, 3, LOAM_ESHAPE, "dim_qk: 511");
    p = right, p.dim_v = LOAM_MAX_DIM;
    expect_refused(&p, 1, 3, LOAM_ESHAPE, "dim_v: 512");
    p = right, p.total_q = p.total_kv = 9;
    expect_refused(&p, 1, 3, LOAM_EUNSUPPORTED, "packed");
    p = right, p.normalise = 0;
    expect_refused(&p, 1, 3, LOAM_EUNSUPPORTED, "normalise");
    p = right, p.scale = -1;
    expect_refused(&p, 1, 3, LOAM_EVALUE, "scale");
    assert_int_equal(loam_hybrid_create(NULL, &right, 1, 3, NULL), LOAM_EARG);
    loam_hybrid_destroy(NULL);
    scene_free(&s);
}

static void expect_run_refused(const loam_hybrid *i, const loam_args *a, const loam_hybrid_args *h,
                               const char *text)
{
    loam_error error;
    assert_true(loam_hybrid_run(i, a, h, &error) != LOAM_OK);
    if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
}

static void wrong_arguments_are_named(void **state)
{
    (void)state;
    scene s = scene_make(9, 1, 3, 4);
    const part all = { .pass = LOAM_FORWARD, .batch = s.batch, .count = s.len, .carried = 1 };
    const loam_problem p = scene_problem(&s, LOAM_FORWARD);
    const double o = s.x[O][0] = 1234;
    scene_memory m = scene_send(&s);
    loam_hybrid *i;
    assert_int_equal(loam_hybrid_create(&i, &p, s.sinks, s.window, NULL), LOAM_OK);
    const int64_t seen[] = { 0, 0 };
    assert_int_equal(loam_plan_state_rows(loam_hybrid_read(i)), s.dv + 3);
    const loam_args right = scene_args(&s, &all, &m);
    loam_args a = right;
    loam_hybrid_args h = scene_hybrid_args(&s, &all, &m);
    expect_run_refused(NULL, &a, &h, "hybrid: NULL");
    expect_run_refused(i, &a, NULL, "hybrid_args: NULL");
    expect_run_refused(i, &a, &h, "work");
    void *work = a.work = scene_room(loam_hybrid_work_bytes(i));
    a.z.data = NULL;
    expect_run_refused(i, &a, &h, "z: NULL");
    a = right, a.work = work, a.state_in = scene_const(a.state_out);
    expect_run_refused(i, &a, &h, "state_in");
    a = right, a.work = work, a.state_out.token = s.features;
    expect_run_refused(i, &a, &h, "state_out: token stride");
    a = right, a.work = work, h.keys.data = NULL;
    expect_run_refused(i, &a, &h, "keys, values");
    h = scene_hybrid_args(&s, &all, &m), h.seen = seen;
    expect_run_refused(i, &a, &h, "seen: given");
    h = scene_hybrid_args(&s, &all, &m), h.grad_gain = m.memory[GRAD_GAIN];
    expect_run_refused(i, &a, &h, "grad_gain: given");
    h.grad_gain = NULL, ((double *)m.memory[GAIN])[1] = NAN;
    expect_run_refused(i, &a, &h, "gain");
    scene_fetch(&s, &m);
    assert_true(s.x[O][0] == o);
    free(work);
    loam_hybrid_destroy(i);
    scene_free(&s);
}

static void wrong_steps_are_named(void **state)
{
    (void)state;
    scene s = scene_make(9, 1, 3, 4);
    const part step = { .pass = LOAM_DECODE, .batch = s.batch, .count = 1 };
    const int64_t seen[] = { 4, -1 };
    loam_problem p = scene_problem(&s, LOAM_DECODE);
    loam_hybrid *i;
    p.len_q = p.len_kv = 1;
    assert_int_equal(loam_hybrid_create(&i, &p, s.sinks, s.window, NULL), LOAM_OK);
    assert_int_equal(loam_hybrid_saved_bytes(i), 0);
    scene_memory m = scene_send(&s);
    loam_args a = scene_args(&s, &step, &m);
    loam_hybrid_args h = scene_hybrid_args(&s, &step, &m);
    void *work = a.work = scene_room(loam_hybrid_work_bytes(i));
    expect_run_refused(i, &a, &h, "seen: NULL");
    h.seen = seen;
    expect_run_refused(i, &a, &h, "seen[1]: -1");
    a.state_in.data = NULL;
    expect_run_refused(i, &a, &h, "state_in");
    a = scene_args(&s, &step, &m), a.work = work, a.state_out.data = NULL;
    expect_run_refused(i, &a, &h, "state_out: NULL");
    a = scene_args(&s, &step, &m), a.work = work, h.values.token = 1;
    h.seen = (int64_t[]){ 4, 0 };
    expect_run_refused(i, &a, &h, "values: token stride 1");
    scene_fetch(&s, &m);
    free(work);
    loam_hybrid_destroy(i);
    scene_free(&s);
}

static void saved_is_of_the_same_call(void **state)
{
    (void)state;
    scene s = scene_make(9, 1, 3, 4);
    const part back = { .pass = LOAM_BACKWARD, .batch = s.batch, .count = s.len };
    const loam_problem p = scene_problem(&s, LOAM_BACKWARD);
    loam_hybrid *i;
    scene_run(&s, LOAM_FORWARD);
    scene_memory m = scene_send(&s);
    loam_args a = scene_args(&s, &back, &m);
    const loam_hybrid_args h = scene_hybrid_args(&s, &back, &m);
    for (int64_t window = 3; window < 5; window++) {
        assert_int_equal(loam_hybrid_create(&i, &p, s.sinks, window, NULL), LOAM_OK);
        a.work = scene_room(loam_hybrid_work_bytes(i));
        a.saved = NULL;
        expect_run_refused(i, &a, &h, "saved: NULL");
        a.saved = s.saved;
        if (window == s.window)
            assert_int_equal(loam_hybrid_run(i, &a, &h, NULL), LOAM_OK);
        else
            expect_run_refused(i, &a, &h, "saved: of another problem");
        free(a.work);
        loam_hybrid_destroy(i);
    }
    scene_fetch(&s, &m);
    scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_follow_the_equation), cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(gradients_agree_on_machines), cmocka_unit_test(a_wide_window_is_softmax),
        cmocka_unit_test(nothing_far_is_a_window),     cmocka_unit_test(many_features_are_softmax),
        cmocka_unit_test(large_norms_are_finite),      cmocka_unit_test(logarithms_keep_their_digits),
        cmocka_unit_test(steps_are_the_whole),         cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(wrong_problems_are_named),    cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(wrong_steps_are_named),       cmocka_unit_test(saved_is_of_the_same_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
