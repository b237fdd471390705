/* SPDX-License-Identifier: MIT
 * Parts of loam experiment ridge: windows that share layers against whole runs of a model, paired errors and
 * the first order against their formulas. */
#include "cli/ridge/law.h"
#include "cli/ridge/results.h"
#include "tests/lm/ridge_texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- paired errors */

/* The mean is a ratio of sums; its error by the jackknife's first order, from the residuals of windows. */
static void test_paired(void **state)
{
    static const double values[] = { 3, NAN, -1, 4, 2.5 };
    static const int64_t scored[] = { 8, 8, 8, 4, 8 };
    (void)state;
    const paired x = paired_of(values, scored, 5);
    const double mean = (3 - 1 + 4 + 2.5) / 28;
    const double squares = pow(3 - 8 * mean, 2) + pow(-1 - 8 * mean, 2) + pow(4 - 4 * mean, 2) +
                           pow(2.5 - 8 * mean, 2);
    assert_int_equal(x.windows, 4);
    assert_int_equal(x.tokens, 28);
    assert_true(fabs(x.mean - mean) < 1e-15);
    assert_true(fabs(x.error - sqrt(squares * 4 / 3) / 28) < 1e-15);
    /* Windows of one size: the standard error of a mean. */
    static const int64_t same[] = { 2, 2, 2, 2, 2 };
    const paired y = paired_of(values, same, 5);
    double variance = 0;
    for (int i = 0; i < 5; i++)
        if (i != 1) variance += pow(values[i] / 2 - 8.5 / 8, 2) / 3;
    assert_true(fabs(y.error - sqrt(variance / 4)) < 1e-15);
    assert_true(isnan(paired_of(values, same, 1).error));
}

/* ---- the first order */

/* LLA in float64 by the library, of one query, against what the law says of it. */
static void test_law(void **state)
{
    enum { KEYS = 9, DIM = 4 };
    float q[DIM], k[KEYS * DIM], v[KEYS * DIM];
    double q64[DIM], k64[KEYS * DIM], v64[KEYS * DIM], o[DIM], weights[KEYS], vbar[DIM], first[DIM];
    (void)state;
    for (int i = 0; i < KEYS * DIM; i++) {
        k[i] = (float)sin(1.7 * i + 1), v[i] = (float)cos(2.3 * i);
        k64[i] = (double)k[i], v64[i] = (double)v[i];
    }
    for (int c = 0; c < DIM; c++)
        q[c] = (float)cos(c + 0.5), q64[c] = (double)q[c];
    law_row(q, k, v, KEYS, DIM, DIM, 0.7, weights, vbar, first);
    for (double ridge = 1e2; ridge < 2e4; ridge *= 100) {
        loam_problem p = loam_problem_default(LOAM_LLA, LOAM_FORWARD);
        loam_plan *plan;
        loam_error error;
        p.dtype = LOAM_F64, p.backend = LOAM_BACKEND_REFERENCE;
        p.heads_q = p.heads_kv = p.len_q = 1, p.len_kv = KEYS, p.dim_qk = p.dim_v = DIM;
        p.scale = 0.7, p.ridge = ridge;
        assert_int_equal(loam_plan_create(&plan, &p, &error), 0);
        void *work = aligned_alloc(64, (loam_plan_work_bytes(plan) / 64 + 1) * 64);
        const loam_args args = { .q = { q64, DIM, DIM, DIM },
                                 .k = { k64, KEYS * DIM, KEYS * DIM, DIM },
                                 .v = { v64, KEYS * DIM, KEYS * DIM, DIM },
                                 .o = { o, DIM, DIM, DIM },
                                 .work = work };
        if (loam_run(plan, &args, &error)) fail_msg("%s", error.text);
        double left = 0, said = 0;
        for (int c = 0; c < DIM; c++) {
            left += pow(ridge * (o[c] - vbar[c]) - first[c], 2);
            said += first[c] * first[c];
        }
        printf("ridge %g: %.2e of the first order is left\n", ridge, sqrt(left / said));
        assert_true(sqrt(left / said) < 2 / ridge && sqrt(left / said) > 1e-3 / ridge);
        free(work);
        loam_plan_destroy(plan);
    }
}

/* ---- what windows are read with */

typedef struct scene {
    machine on;
    lm_files *files;
    tokenizer *tokens;
    lm_model *model;
    ridge_plan plan;
    engine *engine;
} scene;

/* together: windows that are read at once. */
static void open_scene(scene *s, const char *model, int64_t together)
{
    const ridge_choice choice = { .normalised = { { 1e5, 1e4, 5 }, 3 },
                                  .trace = { { 2 }, 1 },
                                  .parts = { { 5 }, 1 },
                                  .layers = true,
                                  .heads = true,
                                  .context = 16,
                                  .tokens = 128,
                                  .layer_tokens = 66,
                                  .head_tokens = 34 };
    const lm_options softmax = lm_options_default();
    io_error error;
    make_texts();
    *s = (scene){ .on = machine_cpu(LOAM_F32, 2) };
    if (lm_files_open(&s->files, model, &error)) fail_msg("%s", error.text);
    if (tokenizer_open(&s->tokens, TOKENIZER, &error)) fail_msg("%s", error.text);
    if (lm_model_open(&s->model, &s->on, s->files, &softmax, &error)) fail_msg("%s", error.text);
    if (ridge_plan_open(&s->plan, &choice, s->model, s->tokens, TEXTS, &error)) fail_msg("%s", error.text);
    s->plan.together = together;
    if (engine_open(&s->engine, &s->plan, s->model, &error)) fail_msg("%s", error.text);
}

static void close_scene(scene *s)
{
    engine_close(s->engine);
    ridge_plan_close(&s->plan);
    lm_model_close(s->model);
    tokenizer_close(s->tokens);
    lm_files_close(s->files);
    machine_close(&s->on);
}

/* The same number as of a model that is opened with this attention and reads the window as a whole. */
static double whole_value(const scene *s, const ridge_arm *a, const ridge_window *w)
{
    const lm_options options = ridge_options(a);
    int32_t inputs[32];
    double nll[32], sum = 0;
    io_error error;
    lm_model *model;
    scorer *scores;
    ridge_inputs(&s->plan, w, inputs);
    if (lm_model_open(&model, &s->on, s->files, &options, &error)) fail_msg("%s", error.text);
    assert_int_equal(scorer_open(&scores, model, 16, &error), 0);
    assert_int_equal(
        scorer_run(scores, inputs, w->at.inputs, ridge_targets(&s->plan, w), w->at.scored, nll, &error), 0);
    for (int64_t i = 0; i < w->at.scored; i++)
        sum += nll[i];
    scorer_close(scores);
    lm_model_close(model);
    return sum;
}

/* Bit by bit, though layers are shared; and in another order, as a run that goes on has it. */
static void test_engine(void **state)
{
    static const char *const models[] = { "llama", "gpt2-scaled", "neox" };
    (void)state;
    for (int m = 0; m < 3; m++) {
        char path[4096];
        scene s;
        snprintf(path, sizeof path, MODELS "%s", models[m]);
        open_scene(&s, path, 1);
        double forward[64];
        io_error error;
        int64_t parts[2] = { 0 };
        assert_true(s.plan.arm_count > s.plan.curve_count && s.plan.arm_count <= 64);
        for (int64_t n = 0; n < s.plan.window_count; n += 3) {
            const ridge_window *w = &s.plan.windows[n];
            assert_int_equal(engine_begin(s.engine, n, 1, &error), 0);
            for (int a = 0; a < s.plan.arm_count; a++)
                if (engine_values(s.engine, &s.plan.arms[a], &forward[a], &error)) fail_msg("%s", error.text);
            assert_int_equal(engine_begin(s.engine, n, 1, &error), 0);
            for (int a = s.plan.arm_count - 1; a >= 0; a--) {
                double value;
                assert_int_equal(engine_values(s.engine, &s.plan.arms[a], &value, &error), 0);
                assert_memory_equal(&value, &forward[a], sizeof value);
                value = whole_value(&s, &s.plan.arms[a], w);
                assert_memory_equal(&value, &forward[a], sizeof value);
                /* Every setting is another; far ridges are softmax. */
                const double change = fabs(forward[a] - forward[0]) / (double)w->at.scored;
                const bool far = s.plan.arms[a].ridge > 1e4 && a > 0;
                assert_true(a == 0 || (far ? change < 2e-4 : change > 1e-9));
            }
        }
        for (int64_t n = 0; n < s.plan.window_count; n++)
            parts[0] += s.plan.windows[n].layers, parts[1] += s.plan.windows[n].heads;
        assert_true(parts[1] > 0 && parts[1] < parts[0] && parts[0] < s.plan.window_count);
        close_scene(&s);
    }
}

/* Groups hold every window once, and give each the value that it has alone. */
static void test_groups(void **state)
{
    static const char *const models[] = { "llama", "gpt2-scaled", "neox", "bert" };
    (void)state;
    for (int m = 0; m < 4; m++) {
        char path[4096];
        scene one, many;
        io_error error;
        int64_t count, largest = 0;
        snprintf(path, sizeof path, MODELS "%s", models[m]);
        open_scene(&one, path, 1);
        open_scene(&many, path, 3);
        for (int64_t first = 0; first < many.plan.window_count; first += count) {
            double values[3], alone;
            count = ridge_group(&many.plan, first);
            const int64_t next = first + count;
            assert_true(next == many.plan.window_count || count == 3 ||
                        many.plan.windows[next].at.inputs != many.plan.windows[first].at.inputs ||
                        many.plan.windows[next].layers != many.plan.windows[first].layers ||
                        many.plan.windows[next].heads != many.plan.windows[first].heads);
            largest = count > largest ? count : largest;
            assert_true(count >= 1 && count <= 3 && first + count <= many.plan.window_count);
            assert_int_equal(engine_begin(many.engine, first, count, &error), 0);
            for (int a = 0; a < many.plan.arm_count; a++) {
                if (engine_values(many.engine, &many.plan.arms[a], values, &error))
                    fail_msg("%s", error.text);
                for (int64_t n = 0; n < count; n++) {
                    assert_int_equal(ridge_has(&many.plan, first + n, a), ridge_has(&many.plan, first, a));
                    assert_int_equal(engine_begin(one.engine, first + n, 1, &error), 0);
                    assert_int_equal(engine_values(one.engine, &one.plan.arms[a], &alone, &error), 0);
                    assert_true(fabs(values[n] - alone) < 1e-5 * fmax(1, fabs(alone)));
                }
            }
        }
        assert_true(m == 3 || largest > 1);
        close_scene(&one);
        close_scene(&many);
    }
}

/* At the outputs of models: 1 % at 1e4, and about in proportion to one over the ridge. */
static void test_outputs(void **state)
{
    static const char *const models[] = { "llama", "gpt2-scaled", "neox", "bert" };
    (void)state;
    for (int m = 0; m < 4; m++) {
        char path[4096];
        double ratios[8][LAW_RIDGES];
        io_error error;
        scene s;
        snprintf(path, sizeof path, MODELS "%s", models[m]);
        open_scene(&s, path, 1);
        assert_true(s.plan.layers < 8);
        if (law_measure(s.engine, &s.plan, ratios, &error)) fail_msg("%s", error.text);
        for (int64_t layer = 0; layer <= s.plan.layers; layer++) {
            printf("%-12s %d: %.2e %.2e %.2e\n", models[m], (int)layer, ratios[layer][0], ratios[layer][1],
                   ratios[layer][2]);
            assert_true(ratios[layer][0] < 0.01);
        }
        assert_true(ratios[s.plan.layers][2] > 1.5 * ratios[s.plan.layers][1]);
        close_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_paired), cmocka_unit_test(test_law),
                                        cmocka_unit_test(test_engine), cmocka_unit_test(test_groups),
                                        cmocka_unit_test(test_outputs) };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
