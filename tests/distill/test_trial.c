/* SPDX-License-Identifier: MIT
 * Means by token, and differences in pairs with their errors over windows; windows that are read side by side
 * are those that are read alone. */
#define _XOPEN_SOURCE 700
#include "cli/distill/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FEATURES = 8, DIM = 64 };

static void test_values(void **state)
{
    ridge_window windows[3] = { { .at.scored = 2 }, { .at.scored = 2 }, { .at.scored = 4 } };
    double base[3] = { 4, 6, 10 }, other[3] = { 5, 6, 17 };
    ridge_plan p = { .windows = windows, .window_count = 3 };
    const trial t = { .plan = &p, .count = 2, .sums = { base, other } };
    (void)state;
    const trial_value none = trial_value_of(&t, 0), more = trial_value_of(&t, 1);
    assert_true(fabs(none.mean - 2.5) < 1e-12 && fabs(none.more) < 1e-12 && fabs(none.error) < 1e-12);
    /* One more by token: the windows are off by -1, -2 and 3. */
    assert_true(fabs(more.mean - 3.5) < 1e-12 && fabs(more.more - 1) < 1e-12);
    assert_true(fabs(more.error - sqrt(14 * 3 / 2.0) / 8) < 1e-12);
    p.window_count = 1;
    assert_true(isnan(trial_value_of(&t, 1).error));
}

/* ---- windows */

typedef struct scene {
    machine on;
    lm_files *files;
    lm_model *model;
    tokenizer *tokens;
    ridge_plan plan;
    lm_features *features; /* [layers], of all query heads */
    float z[DIM * FEATURES * DIM], zero[DIM * DIM], one[DIM * DIM * DIM], gain[DIM];
} scene;

/* Of 5 windows of 16 tokens and one that is shorter. */
static void open_plan(scene *s)
{
    char path[] = "/tmp/loam-trial-XXXXXX";
    const ridge_choice choice = { .tokens = 1000, .context = 16 };
    io_error error;
    const int made = mkstemp(path);
    assert_true(made >= 0);
    FILE *out = fdopen(made, "w");
    assert_non_null(out);
    for (int i = 0; i < 29; i++)
        fprintf(out, "%s", i % 3 ? "the cat, " : "a dog that ");
    fclose(out);
    if (ridge_plan_open(&s->plan, &choice, s->model, s->tokens, path, &error)) fail_msg("%s", error.text);
    unlink(path);
    assert_true(s->plan.window_count >= 6);
}

static void open_features(scene *s)
{
    const lm_config *c = lm_model_config(s->model);
    const int64_t d = c->head_dim;
    assert_true(c->heads_q <= DIM && d <= DIM);
    for (int64_t i = 0; i < c->heads_q * FEATURES * d; i++)
        s->z[i] = (float)sin(0.7 * (double)i);
    for (int64_t i = 0; i < c->heads_q * d; i++)
        s->one[i * d + i % d] = 1;
    for (int64_t i = 0; i < c->heads_q; i++)
        s->gain[i] = 0.3F * (float)i;
    s->features = calloc((size_t)c->layers, sizeof *s->features);
    assert_non_null(s->features);
    for (int64_t i = 0; i < c->layers; i++)
        s->features[i] = (lm_features){ .features = FEATURES,
                                        .z = s->z,
                                        .log_alpha = s->zero,
                                        .shift = s->zero,
                                        .balance = s->one,
                                        .balance_keys = s->one,
                                        .gain = s->gain };
}

static scene *open_scene(const char *model)
{
    char path[1024];
    io_error error;
    const lm_options options = lm_options_default();
    scene *const s = calloc(1, sizeof *s);
    assert_non_null(s);
    snprintf(path, sizeof path, "%s/%s", LM_TEST_DATA, model);
    s->on = machine_cpu(LOAM_F32, 2);
    assert_int_equal(lm_files_open(&s->files, path, &error), 0);
    assert_int_equal(lm_model_open(&s->model, &s->on, s->files, &options, &error), 0);
    assert_int_equal(tokenizer_open(&s->tokens, LM_TEST_DATA "/tokenizer.json", &error), 0);
    open_plan(s);
    open_features(s);
    return s;
}

static void close_scene(scene *s)
{
    ridge_plan_close(&s->plan);
    tokenizer_close(s->tokens);
    lm_model_close(s->model);
    lm_files_close(s->files);
    machine_close(&s->on);
    free(s->features);
    free(s);
}

/* Sums of all windows and places, so many windows at once. */
static void read_all(scene *s, const lm_options *options, int64_t together, double *sums, double *places)
{
    trial t;
    io_error error;
    s->plan.together = together;
    assert_int_equal(trial_open(&t, &s->plan, s->model, &error), 0);
    t.places = places;
    if (trial_run(&t, "one", options, NULL, NULL, &error)) fail_msg("%s", error.text);
    memcpy(sums, t.sums[0], (size_t)s->plan.window_count * sizeof *sums);
    trial_close(&t);
}

static void compare(scene *s, const lm_options *options)
{
    const size_t windows = (size_t)s->plan.window_count, count = windows * TRIAL_PLACES;
    double *const alone = calloc(windows, sizeof *alone), *const beside = calloc(windows, sizeof *beside),
                  *const places = calloc(2 * count, sizeof *places);
    assert_true(alone && beside && places);
    read_all(s, options, 1, alone, places);
    read_all(s, options, 4, beside, places + count);
    for (size_t n = 0; n < windows; n++) {
        double sum = 0;
        for (int i = 0; i < TRIAL_PLACES; i++)
            sum += places[n * TRIAL_PLACES + (size_t)i];
        assert_true(alone[n] > 0 && fabs(alone[n] - beside[n]) < 1e-4 * alone[n]);
        assert_true(fabs(sum - alone[n]) < 1e-12 * sum);
    }
    for (size_t i = 0; i < count; i++)
        assert_true(fabs(places[i] - places[count + i]) < 1e-4);
    free(alone), free(beside), free(places);
}

static void test_side_by_side(void **state)
{
    static const char *const models[] = { "gpt2", "llama" };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        scene *s = open_scene(models[i]);
        lm_options options = lm_options_default();
        compare(s, &options);
        options.mechanism = LOAM_LINEAR;
        compare(s, &options);
        options = lm_options_default();
        options.features = s->features;
        compare(s, &options);
        options.sinks = 2, options.window = 5;
        compare(s, &options);
        options.features = NULL;
        compare(s, &options);
        close_scene(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values), cmocka_unit_test(test_side_by_side) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
