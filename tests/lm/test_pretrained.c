/* SPDX-License-Identifier: MIT
 * Models of files as models of train/: what they say of a text is what lm/ says, and what is put beside their
 * attention changes nothing at its start. */
#include "lm/pretrained.h"
#include "lm/score.h"

#include "io/npy.h"
#include "lm/tuned.h"
#include "lm/write.h"
#include "random/random.h"
#include "tests/lm/featured.h"
#include "tests/lm/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static const char *model_path(char path[4096], const char *name)
{
    return path_of(path, name, strcmp(name, "llama-gguf") == 0 ? "model.gguf" : "");
}

static void open_at(scene *s, const char *at)
{
    char path[4096];
    io_error error;
    int64_t *ids, count;
    *s = (scene){ .on = machine_cpu(LOAM_F32, THREADS) };
    if (lm_files_open(&s->files, at, &error)) fail_msg("%s", error.text);
    if (npy_read_integers(&ids, &count, path_of(path, "", "tokens.npy"), &error)) fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        s->ids[i] = (int32_t)ids[i], s->tokens[i] = (uint16_t)ids[i];
    free(ids);
}

static void open_files(scene *s, const char *name)
{
    char path[4096];
    open_at(s, model_path(path, name));
}

/* Of the scene's files: STACK models of the mixer `named`, with the tokens as their only example. */
static void open_moving(scene *s, const char *named, const mixer_options *beside, const char *const *moving)
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
    shape->models = STACK, shape->batch = 1, shape->moving = moving;
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

static void open_model(scene *s, const char *named, const mixer_options *beside)
{
    open_moving(s, named, beside, NULL);
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
    lm_options options = lm_options_default();
    options.own = true;
    io_error error;
    lm_model *model;
    scorer *by;
    if (lm_model_open(&model, &s->on, s->files, &options, &error)) fail_msg("%s", error.text);
    if (scorer_open(&by, model, LENGTH, &error)) fail_msg("%s", error.text);
    if (scorer_run(by, s->ids, LENGTH, s->ids + 1, LENGTH, nll, &error)) fail_msg("%s", error.text);
    scorer_close(by);
    lm_model_close(model);
}

/* The model at `path`, as lm/ reads it, and as train/ does by its own mixer. */
static double apart(const char *path, double bound)
{
    static const mixer_options plain = { 0 };
    double want[LENGTH], worst = 0;
    scene s;
    open_at(&s, path);
    open_model(&s, lm_pretrained_mixer(lm_files_config(s.files))->name, &plain);
    score(&s, want);
    for (int i = 0; i < STACK * LENGTH; i++)
        worst = fmax(worst, fabs(loss_of(&s, i / LENGTH, i % LENGTH) - want[i % LENGTH]) / want[i % LENGTH]);
    printf("%s: off by %.2g\n", path, worst);
    if (!(worst < bound)) fail_msg("%s: off by %g", path, worst);
    close_model(&s);
    lm_files_close(s.files);
    return worst;
}

/* Token by token: sums of float32 in another order. */
static void test_losses(void **state)
{
    (void)state;
    for (int n = 0; n < MODELS; n++) {
        char path[4096];
        apart(model_path(path, models[n]), 1e-5);
    }
}

/* Students: features in all layers or but for the first, of each query head or shared. */
static void test_students(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2", "neox", "neox-serial", "llama" };
    char path[4096];
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int shared = 0; shared < 2; shared++) {
            assert_int_equal(mkdir("student", 0777), 0);
            write_featured("student", model_path(path, names[n]), shared ? 0 : 11, shared);
            apart("student", 1e-4);
            folder_remove("student");
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

/* Whatever moves of the first model of the stack does. */
static void stir(scene *s)
{
    int count;
    loam_error reason;
    const parameter *list = model_parameters(s->net, &count);
    for (int n = 0; n < count; n++)
        for (int64_t i = 0; i < list[n].x.model && !list[n].frozen; i++) {
            double x;
            random_normals((random_stream){ 7, (uint64_t)n }, (uint64_t)i, 1, &x);
            ((float *)list[n].x.data)[i] += (float)(0.02 * x);
        }
    if (model_test(s->net, &s->data, &reason)) fail_msg("%s", reason.text);
}

/* What is written says what the model says that was trained, and is not what it was. */
static void expect_written(const char *path, const mixer_options *beside, const char *const *moving)
{
    double want[LENGTH], before[LENGTH];
    scene s, again;
    io_error error;
    open_at(&s, path);
    const lm_config *c = lm_files_config(s.files);
    open_moving(&s, lm_pretrained_mixer(c)->name, beside, moving);
    stir(&s);
    lm_tuned_part last = { 0 };
    const lm_tuned from = { s.net, &s.on, s.files, &last };
    assert_int_equal(mkdir("tuned", 0777), 0);
    if (lm_config_write(c, "tuned/config.json", &error) ||
        lm_write("tuned/model.safetensors", c, LOAM_F32, lm_tuned_read, &from, &error))
        fail_msg("%s", error.text);
    lm_tuned_close(&from);
    open_at(&again, "tuned");
    score(&again, want), score(&s, before);
    double worst = 0, moved = 0;
    for (int i = 0; i < LENGTH; i++) {
        worst = fmax(worst, fabs(loss_of(&s, 0, i) - want[i]));
        moved = fmax(moved, fabs(before[i] - want[i]));
    }
    printf("%s: off by %.2g, moved by %.2g\n", path, worst, moved);
    if (!(worst < 5e-5 && moved > 1e-3)) fail_msg("%s: off by %g, moved by %g", path, worst, moved);
    close_model(&s);
    lm_files_close(again.files), lm_files_close(s.files);
    folder_remove("tuned");
}

static void test_written(void **state)
{
    (void)state;
    static const mixer_options plain = { 0 },
                               low = { .low = 1 << LOW_Q | 1 << LOW_K | 1 << LOW_V | 1 << LOW_OUT,
                                       .rank = 2 };
    static const char *const factors[] = { "layer*.[AB]_[qkvo]", NULL }, *const features[] = {
        "layer*.z", "layer*.log_alpha", NULL
    };
    char path[4096];
    for (int n = 0; n < MODELS; n++) {
        expect_written(model_path(path, models[n]), &low, factors);
        expect_written(model_path(path, models[n]), &plain, NULL);
    }
    assert_int_equal(mkdir("student", 0777), 0);
    write_featured("student", model_path(path, "llama"), 11, false);
    expect_written("student", &low, factors);
    expect_written("student", &plain, features);
    expect_written("student", &low, NULL);
    folder_remove("student");
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
    /* Features where they are not expected, and the other way round; scores that have another scale. */
    trainer_options o = trainer_options_default(mixer_find("softmax"));
    lm_config student = { .architecture = LM_GPT2, .layers = 2, .mechanism = LOAM_LINEAR };
    io_error why;
    assert_int_equal(lm_pretrained_options(&o, &student, "s", &why), EXIT_INPUT);
    assert_string_equal(why.text, "s: it has attention of its own; expected softmax");
    o.row = mixer_find("features"), student.scale_by_layer = true;
    assert_int_equal(lm_pretrained_options(&o, &student, "s", &why), EXIT_INPUT);
    assert_non_null(strstr(why.text, "divided by the number of the layer"));
    student.scale_by_layer = false, student.features_untied = true;
    assert_int_equal(lm_pretrained_options(&o, &student, "s", &why), EXIT_INPUT);
    assert_non_null(strstr(why.text, "features of their own; expected the same"));
    student.mechanism = LOAM_SOFTMAX;
    assert_int_equal(lm_pretrained_options(&o, &student, "s", &why), EXIT_INPUT);
    assert_string_equal(why.text, "s: it has no features");
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
        cmocka_unit_test(test_losses),  cmocka_unit_test(test_starts),  cmocka_unit_test(test_students),
        cmocka_unit_test(test_written), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
