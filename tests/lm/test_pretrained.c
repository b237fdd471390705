/* SPDX-License-Identifier: MIT
 * Models of files as models of train/: what they say of a text is what lm/ says, and what is put beside their
 * attention changes nothing at its start. */
#include "lm/pretrained.h"
#include "lm/score.h"

#include "io/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const models[] = { "gpt2",  "gpt2-scaled",   "neox",      "neox-serial",
                                      "llama", "llama-sharded", "llama-gguf" };
enum { MODELS = sizeof models / sizeof *models, TOKENS = 12, LENGTH = TOKENS - 1, STACK = 2, THREADS = 2 };

typedef struct scene {
    machine on;
    lm_files *files;
    int32_t ids[TOKENS];
    uint16_t tokens[TOKENS];
    trainer_options options;
    train_model *net;
    train_batch data;
} scene;

static const char *path_of(char path[4096], const char *name, const char *file)
{
    snprintf(path, 4096, "%s/%s%s%s", LM_TEST_DATA, name, *file ? "/" : "", file);
    return path;
}

static void open_files(scene *s, const char *name)
{
    char path[4096];
    io_error error;
    int64_t *ids, count;
    *s = (scene){ .on = machine_cpu(LOAM_F32, THREADS) };
    if (lm_files_open(&s->files, path_of(path, name, strcmp(name, "llama-gguf") == 0 ? "model.gguf" : ""),
                      &error))
        fail_msg("%s", error.text);
    if (npy_read_integers(&ids, &count, path_of(path, "", "tokens.npy"), &error)) fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        s->ids[i] = (int32_t)ids[i], s->tokens[i] = (uint16_t)ids[i];
    free(ids);
}

/* Of the scene's files: STACK models of the mixer `named`, with the tokens as their only example. */
static void open_model(scene *s, const char *named, const mixer_options *beside)
{
    static const uint64_t seeds[STACK] = { 1, 2 };
    static const int32_t example[1] = { 0 };
    const lm_config *c = lm_files_config(s->files);
    io_error error;
    loam_error reason;
    s->options = trainer_options_default(mixer_find(named));
    s->options.mixing = *beside;
    if (lm_pretrained_options(&s->options, c, "model", &error)) fail_msg("%s", error.text);
    model_shape *shape = &s->options.shape;
    shape->models = STACK, shape->batch = 1;
    shape->from = (train_source){
        .task = TRAIN_TEXT,
        .text = { LENGTH, c->vocabulary, { s->tokens, s->tokens }, { TOKENS, TOKENS }, 0 },
        .part = { { 0, { 1, 1 } } }
    };
    if (model_create(&s->net, &s->on, mixer_find(named), shape, &s->options.mixing, seeds, &reason))
        fail_msg("%s", reason.text);
    if (lm_pretrained_fill(s->net, &s->on, s->files, &error)) fail_msg("%s", error.text);
    assert_true(batch_open(&s->data, &s->on, &shape->from, STACK, 1));
    for (int64_t m = 0; m < STACK; m++)
        batch_fill(&s->data, m, &shape->from, seeds[m], TRAIN_SPLIT_TEST, example);
    batch_send(&s->data);
    if (model_test(s->net, &s->data, &reason)) fail_msg("%s", reason.text);
}

static void close_model(scene *s)
{
    batch_close(&s->data);
    model_destroy(s->net);
}

static double loss_of(const scene *s, int64_t model, int i)
{
    return (double)((const float *)model_results(s->net).data)[2 * (model * LENGTH + i)];
}

static void score(const scene *s, double nll[LENGTH])
{
    const lm_options options = lm_options_default();
    io_error error;
    lm_model *model;
    scorer *by;
    if (lm_model_open(&model, &s->on, s->files, &options, &error)) fail_msg("%s", error.text);
    if (scorer_open(&by, model, LENGTH, &error)) fail_msg("%s", error.text);
    if (scorer_run(by, s->ids, LENGTH, s->ids + 1, LENGTH, nll, &error)) fail_msg("%s", error.text);
    scorer_close(by);
    lm_model_close(model);
}

/* Token by token: sums of float32 in another order. */
static void test_losses(void **state)
{
    (void)state;
    static const mixer_options plain = { 0 };
    for (int n = 0; n < MODELS; n++) {
        double want[LENGTH], worst = 0;
        scene s;
        open_files(&s, models[n]);
        open_model(&s, "softmax", &plain);
        score(&s, want);
        for (int i = 0; i < STACK * LENGTH; i++)
            worst = fmax(worst,
                         fabs(loss_of(&s, i / LENGTH, i % LENGTH) - want[i % LENGTH]) / want[i % LENGTH]);
        printf("%s: off by %.2g\n", models[n], worst);
        if (!(worst < 1e-5)) fail_msg("%s: off by %g", models[n], worst);
        close_model(&s);
        lm_files_close(s.files);
    }
}

/* The largest difference of a loss to that of softmax alone. */
static double away(const char *model, const char *named, const mixer_options *beside)
{
    static const mixer_options plain = { 0 };
    double want[LENGTH], worst = 0;
    scene s;
    open_files(&s, model);
    open_model(&s, "softmax", &plain);
    for (int i = 0; i < LENGTH; i++)
        want[i] = loss_of(&s, 0, i);
    close_model(&s);
    open_model(&s, named, beside);
    for (int i = 0; i < LENGTH; i++)
        worst = fmax(worst, fabs(loss_of(&s, 0, i) - want[i]));
    close_model(&s);
    lm_files_close(s.files);
    return worst;
}

static void test_starts(void **state)
{
    static const mixer_options warm = { .temperature = true };
    static const mixer_options low = { .low = 1 << LOW_Q | 1 << LOW_K | 1 << LOW_V | 1 << LOW_OUT,
                                       .rank = 2 };
    static const mixer_options probe = { .low = 1 << LOW_PROBE, .rank = 2 };
    static const mixer_options far = { .ridge_start = 1e8 }, near = { .ridge_start = 1e-2 };
    (void)state;
    for (int n = 0; n < MODELS; n++) {
        assert_true(away(models[n], "softmax", &warm) <= 0);
        assert_true(away(models[n], "softmax", &low) <= 0);
        assert_true(away(models[n], "parallax", &probe) <= 0);
        /* Another kernel, whose sums have another order: roundings of a loss of 4 to 5, one is 5e-7. */
        const double apart = away(models[n], "lla-heads", &far);
        if (!(apart < 1e-5)) fail_msg("%s: %g from softmax at ridge 1e8", models[n], apart);
        assert_true(away(models[n], "lla-heads", &near) > 1e-4);
    }
}

static void expect_refused(const char *name, const char *text)
{
    trainer_options o = trainer_options_default(mixer_find("softmax"));
    io_error error;
    scene s;
    open_files(&s, name);
    assert_int_equal(lm_pretrained_options(&o, lm_files_config(s.files), name, &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, text));
    lm_files_close(s.files);
}

static void test_refused(void **state)
{
    (void)state;
    static const mixer_options plain = { 0 };
    expect_refused("bert", "bert: it sees the whole text");
    /* Files of another model than the one that is trained. */
    scene s, other;
    io_error error;
    open_files(&s, "llama");
    open_files(&other, "llama-sharded");
    open_model(&s, "softmax", &plain);
    assert_int_equal(lm_pretrained_fill(s.net, &s.on, other.files, &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "the model to train has no such array"));
    close_model(&s);
    lm_files_close(s.files), lm_files_close(other.files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_starts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
