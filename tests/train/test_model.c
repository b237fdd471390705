/* SPDX-License-Identifier: MIT
 * Whole models: gradients of every array of every mixer against central differences, float32 against float64,
 * counts of parameters, and what a model's bits must not depend on. */
#include "tests/train/differences.h"
#include "tests/train/fixture.h"
#include "tests/train/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seeds[SCENE_MODELS] = { 3, 8, 1, 5 };

static void test_gradients(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 3);
    for (const mixer *row = mixers; row->name; row++)
        differences_check(row->name, &scene_options, &words, seeds);
}

static void test_regression_gradients(void **state)
{
    (void)state;
    const model_shape pairs = scene_regression(2, 3);
    differences_check("softmax", &scene_options, &pairs, seeds);
    differences_check("lla", &scene_options, &pairs, seeds);
}

/* Queries, keys and probes that are turned, before and after silu; and no positions at all. */
static void test_position_gradients(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 3);
    mixer_options options = scene_options;
    options.positions = POSITIONS_ROPE;
    differences_check("parallax", &options, &words, seeds);
    differences_check("gated-delta", &options, &words, seeds);
    options.positions = POSITIONS_NONE;
    differences_check("softmax", &options, &words, seeds);
}

static void test_layer_norm_gradients(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 3), pairs = scene_regression(2, 3);
    mixer_options options = scene_options;
    options.layer_norm = true;
    differences_check("softmax", &options, &words, seeds);
    differences_check("hyena", &options, &pairs, seeds);
}

static void test_no_rope(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 1);
    const model_shape words = scene_words(1, 2);
    mixer_options options = scene_options;
    train_model *net;
    loam_error error;
    options.positions = POSITIONS_ROPE;
    assert_int_equal(model_create(&net, &on, mixer_find("hyena"), &words, &options, seeds, &error),
                     LOAM_EUNSUPPORTED);
    assert_null(net);
}

/* The last answers are judged as they are in a batch of their own. */
static void expect_last_results(const scene *all)
{
    enum { LAST = 3 };
    const model_shape few = scene_words(1, LAST);
    scene s;
    scene_open(&s, LOAM_F64, 1, "softmax", &few, seeds, 1 + SCENE_BATCH - LAST);
    scene_stir(&s);
    scene_pass(&s, false);
    const matrix got = model_results(all->net), want = model_results(s.net);
    for (int64_t i = 0; i < matrix_elements(want); i++) {
        const double x = fixture_get(got, matrix_elements(got) - matrix_elements(want) + i);
        assert_true(fabs(x - fixture_get(want, i)) < 1e-10);
    }
    scene_close(&s);
}

/* More answers than logits exist at a time. */
static void test_blocks(void **state)
{
    (void)state;
    const model_shape words = scene_words(1, SCENE_BATCH);
    scene s;
    int count;
    assert_true(words.batch * source_answers(&words.from) > 8192);
    scene_open(&s, LOAM_F64, 2, "softmax", &words, seeds, 1);
    scene_stir(&s);
    scene_pass(&s, true);
    expect_last_results(&s);
    const parameter *list = model_parameters(s.net, &count);
    differences_check_array(&s, "softmax", &list[0], list[0].g, 0);
    differences_check_array(&s, "softmax", &list[count - 1], list[count - 1].g, 0);
    scene_close(&s);
}

static void test_float(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 6), pairs = scene_regression(2, 6);
    for (const mixer *row = mixers; row->name; row++)
        differences_check_float(row->name, &scene_options, &words, seeds);
    differences_check_float("lla", &scene_options, &pairs, seeds);
}

/* A model in a stack, alone, in another place beside others, and with other threads. */
static void test_neighbours(void **state)
{
    (void)state;
    static const uint64_t turned[3] = { 1, 3, 8 };
    const model_shape stack = scene_words(3, 4), single = scene_words(1, 4);
    for (const mixer *row = mixers; row->name; row++) {
        scene all, other, alone;
        scene_open(&all, LOAM_F32, 2, row->name, &stack, seeds, 1);
        scene_open(&other, LOAM_F32, 3, row->name, &stack, turned, 1);
        scene_pass(&all, true), scene_pass(&other, true);
        for (int64_t m = 0; m < 3; m++) {
            scene_open(&alone, LOAM_F32, 1, row->name, &single, seeds + m, 1);
            scene_pass(&alone, true);
            assert_true(scene_loss(&alone, 0) == scene_loss(&all, m));
            differences_expect_same(row->name, &alone, 0, &all, m);
            differences_expect_same(row->name, &alone, 0, &other, (m + 1) % 3);
            scene_close(&alone);
        }
        scene_close(&all), scene_close(&other);
    }
}

static int64_t parameters_of(train_model *net, const char *begin)
{
    int count;
    int64_t sum = 0;
    const parameter *list = model_parameters(net, &count);
    for (int n = 0; n < count; n++)
        if (strncmp(list[n].name, begin, strlen(begin)) == 0) sum += list[n].x.rows * list[n].x.width;
    return sum;
}

static model_shape full_size(train_source from, int64_t batch)
{
    return (model_shape){ .from = from, .models = 1, .batch = batch, .layers = 2, .width = 128, .heads = 2 };
}

/* Recall of length 64 with a sixteenth, an eighth and a quarter as many pairs. */
static const train_source recall_64 = {
    .task = TRAIN_RECALL,
    .recall = { .length = 64, .words = 8192, .fill = true },
    .part = { { 4, { 20000, 1000 } }, { 8, { 40000, 1000 } }, { 16, { 60000, 1000 } } }
};
static const train_source swaps_16 = { .task = TRAIN_SWAPS, .swaps = { 16, 8192 } };
static const train_source regression_64 = { .task = TRAIN_REGRESSION,
                                            .regression = { 64, 8, 32, 32, 16, 0.1 } };

static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t more; /* than softmax, a layer */
    } rows[] = {
        { "softmax", 0 },
        { "lla", 256 },
        { "parallax", 16384 },
        { "linear", 64 },
        { "gla", 16384 + 4224 + 64 },
        { "gated-delta", 16384 + 512 + 4 + 64 },
        { "mesa", 512 + 4 + 128 + 64 },
        { "fox", 256 },
        { "path", 2 * 128 * 32 + 256 },
        { "gated-delta-2", 16384 + 512 + 4 + 64 },
        { "retention", 16384 + 64 },
        { "delta", 256 + 64 },
        { "kda", 16384 + 256 + 2 + 2 * 128 * 16 + 128 + 64 },
        { "mamba-2", 115468 + 128 - 65664 },
        { "hyena", 16960 },
        { "lla-heads", 2 },
        { "features", 64 * 128 + 128 + 128 + 2 * 64 * 128 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scene s;
        const model_shape shape = full_size(recall_64, 1);
        assert_string_equal(mixers[i].name, rows[i].name);
        scene_open(&s, LOAM_F32, 1, rows[i].name, &shape, seeds, 0);
        assert_int_equal(parameters_of(s.net, "layer0."), 65664 + rows[i].more);
        assert_int_equal(parameters_of(s.net, ""), 1188224 + 2 * rows[i].more);
        scene_close(&s);
    }
    assert_null(mixers[sizeof rows / sizeof *rows].name);
    scene s;
    const model_shape shape = full_size(regression_64, 1);
    scene_open(&s, LOAM_F32, 1, "softmax", &shape, seeds, 0);
    assert_int_equal(parameters_of(s.net, ""), 153856);
    scene_close(&s);
}

static double first_loss(train_source from, int64_t batch)
{
    scene s;
    const model_shape shape = full_size(from, batch);
    scene_open(&s, LOAM_F32, 2, "lla", &shape, seeds, 0);
    scene_pass(&s, false);
    const double loss = scene_loss(&s, 0);
    scene_close(&s);
    return loss;
}

/* ln 8192 = 9.01, ln 8320 = 9.03; of regression what saying 0 costs, 1, and as much for a guess of size 1. */
static void test_first_loss(void **state)
{
    (void)state;
    const double recall = first_loss(recall_64, 32), swaps = first_loss(swaps_16, 32);
    const double pairs = first_loss(regression_64, 32);
    printf("first losses: recall %.4f, swaps %.4f, regression %.4f\n", recall, swaps, pairs);
    assert_true(recall > 9.0 && recall < 9.1);
    assert_true(swaps > 9.0 && swaps < 9.15);
    assert_true(pairs > 1.2 && pairs < 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_regression_gradients),
        cmocka_unit_test(test_blocks),    cmocka_unit_test(test_position_gradients),
        cmocka_unit_test(test_no_rope),   cmocka_unit_test(test_layer_norm_gradients),
        cmocka_unit_test(test_float),     cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_counts),    cmocka_unit_test(test_first_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
