/* SPDX-License-Identifier: MIT
 * Positive features as a mixer: layers that differ, features that are not used; models that are taught. */
#include "tests/train/differences.h"
#include "tests/train/fixture.h"
#include "tests/train/scene.h"
#include "train/optimiser.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MODELS = 2, TOKENS = 300, LENGTH = 20, WORDS = 11, STEPS = 5 };

static const uint64_t seeds[SCENE_MODELS] = { 3, 8, 1, 5 };
static const mixer_options usual = { .mlp = true, .positions = POSITIONS_ROPE, .features = 4 };

static uint16_t tokens[TOKENS];

static model_shape text_of(int64_t models, const int16_t *features)
{
    for (uint64_t i = 0; i < TOKENS; i++) {
        uint64_t word;
        random_words((random_stream){ 12, 0 }, i, 1, &word);
        tokens[i] = (uint16_t)random_below(word, WORDS);
    }
    return (model_shape){ .from = { .task = TRAIN_TEXT,
                                    .text = { LENGTH, WORDS, { tokens, tokens }, { TOKENS, TOKENS }, 0 },
                                    .part = { { 0, { 64, 4 } } } },
                          .models = models,
                          .batch = 3,
                          .layers = 3,
                          .width = 16,
                          .heads = 4,
                          .heads_kv = 2,
                          .head_dim = 6,
                          .features = features };
}

static parameter *find(const scene *s, const char *name)
{
    int count;
    parameter *list = model_parameters(s->net, &count);
    for (int n = 0; n < count; n++)
        if (strcmp(list[n].name, name) == 0) return &list[n];
    return NULL;
}

static void open_text(scene *s, loam_dtype dtype, const char *named, const model_shape *shape)
{
    mixer_options how = usual;
    if (strcmp(named, "softmax") == 0) how.features = 0;
    scene_open_with(s, &how, dtype, 2, named, shape, seeds, 1);
    scene_stir(s);
}

/* ---- layers that differ */

static void test_layers(void **state)
{
    (void)state;
    static const int16_t mixed[] = { 5, 0, 2 }, alike[] = { 4, 4, 4 }, none_first[] = { 0, 3, 3 };
    const model_shape first = text_of(MODELS, mixed), second = text_of(MODELS, none_first);
    const model_shape listed = text_of(MODELS, alike), all = text_of(MODELS, NULL);
    scene a, b;
    differences_check("features", &usual, &first, seeds);
    differences_check_float("features", &usual, &first, seeds);
    differences_check("features", &usual, &second, seeds);
    open_text(&a, LOAM_F32, "features", &first);
    assert_null(find(&a, "layer1.z"));
    assert_int_equal(find(&a, "layer0.z")->x.rows, 4 * 5);
    assert_int_equal(find(&a, "layer2.log_alpha")->x.width, 2);
    scene_close(&a);
    open_text(&a, LOAM_F32, "features", &listed), open_text(&b, LOAM_F32, "features", &all);
    scene_pass(&a, true), scene_pass(&b, true);
    for (int m = 0; m < MODELS; m++)
        differences_expect_same("features", &a, m, &b, m);
    scene_close(&a), scene_close(&b);
}

/* Shift and matrices as they begin change nothing, and shared features are a head's of the keys. */
static void test_starts(void **state)
{
    (void)state;
    const model_shape shape = text_of(1, NULL);
    mixer_options shared = usual;
    scene s;
    shared.features_shared = true;
    scene_open_with(&s, &shared, LOAM_F64, 1, "features", &shape, seeds, 1);
    const parameter *z = find(&s, "layer0.z"), *balance = find(&s, "layer2.balance_keys"),
                    *shift = find(&s, "layer0.shift");
    assert_int_equal(z->x.rows, 2 * 4);
    assert_int_equal(balance->x.rows, 2 * 6);
    assert_true(balance->frozen && !balance->g.data && !balance->m.data && shift->frozen && !shift->g.data);
    assert_false(z->decay || find(&s, "layer0.log_alpha")->decay);
    double squares = 0;
    for (int64_t i = 0; i < matrix_elements(balance->x); i++)
        assert_true(fabs(fixture_get(balance->x, i) - (i / 6 % 6 == i % 6)) <= 0);
    for (int64_t i = 0; i < matrix_elements(z->x); i++)
        squares += pow(fixture_get(z->x, i), 2);
    /* 48 numbers of N(0, 1). */
    assert_true(squares > 20 && squares < 100);
    scene_close(&s);
}

/* ---- features that are not used */

static void copy_features(const scene *from, const scene *to)
{
    int count, others;
    const parameter *list = model_parameters(to->net, &count), *other = model_parameters(from->net, &others);
    assert_int_equal(count, others);
    for (int n = 0; n < count; n++) {
        const matrix x = list[n].x, y = other[n].x;
        const int64_t heads = 4, rows = x.rows / heads, more = y.rows / heads;
        const bool z = strstr(list[n].name, ".z"), weights = strstr(list[n].name, "log_alpha");
        if (!z && !weights) to->on.op->copy(&to->on, x, y);
        for (int64_t head = 0; z && head < heads; head++)
            to->on.op->copy(&to->on, matrix_rows(x, head * rows, rows), matrix_rows(y, head * more, rows));
        if (weights) to->on.op->copy(&to->on, x, matrix_columns(y, 0, x.width));
    }
}

/* Feature 4 of five has no weight: all is as with four, and it stays as it is. */
static void test_unused(void **state)
{
    (void)state;
    static const int16_t five[] = { 5, 5, 5 }, four[] = { 4, 4, 4 };
    static const double peak[1] = { 0.05 };
    const model_shape more = text_of(1, five), fewer = text_of(1, four);
    const optimiser_options how = { .warm = 1, .steps = STEPS, .decay = 0.1, .clip = 1 };
    scene a, b;
    optimiser o;
    int count;
    open_text(&a, LOAM_F64, "features", &more), open_text(&b, LOAM_F64, "features", &fewer);
    for (int l = 0; l < 3; l++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.log_alpha", l);
        for (int64_t head = 0; head < 4; head++)
            fixture_set(find(&a, name)->x, head * 5 + 4, -1e4);
    }
    copy_features(&a, &b);
    scene_pass(&a, true), scene_pass(&b, true);
    assert_true(fabs(scene_loss(&a, 0) - scene_loss(&b, 0)) < 1e-12);
    assert_true(fixture_distance(find(&a, "layer0.W_q")->g, find(&b, "layer0.W_q")->g) < 1e-10);
    parameter *list = model_parameters(a.net, &count);
    assert_true(optimiser_open(&o, &a.on, list, count, &how, peak, NULL));
    const double z = fixture_get(find(&a, "layer1.z")->x, 4 * 6),
                 used = fixture_get(find(&a, "layer1.z")->x, 0);
    for (int step = 0; step < STEPS; step++) {
        scene_fill(&a, seeds, step);
        scene_pass(&a, true);
        optimiser_step(&o);
    }
    assert_true(fixture_get(find(&a, "layer1.z")->x, 4 * 6) == z);
    assert_true(fixture_get(find(&a, "layer1.z")->x, 0) != used);
    assert_true(fixture_get(find(&a, "layer1.log_alpha")->x, 4) == -1e4);
    assert_true(fixture_get(find(&a, "layer1.log_alpha")->x, 3) !=
                fixture_get(find(&b, "layer1.log_alpha")->x, 3));
    optimiser_close(&o);
    scene_close(&a), scene_close(&b);
}

/* ---- a teacher */

static void teach(scene *s, scene *by, double weight)
{
    loam_error error;
    if (model_teach(s->net, by->net, weight, &error)) fail_msg("%s", error.text);
}

static double divergence(const scene *s, int64_t model)
{
    const matrix each = model_divergence(s->net);
    double sum = 0;
    for (int64_t i = 0; i < each.rows; i++)
        sum += fixture_get(each, model * each.rows + i);
    return sum / (double)each.rows;
}

static void test_teacher(void **state)
{
    (void)state;
    const model_shape shape = text_of(MODELS, NULL);
    scene s, by;
    int count;
    open_text(&s, LOAM_F64, "features", &shape), open_text(&by, LOAM_F64, "softmax", &shape);
    scene_pass(&s, false);
    const double alone[MODELS] = { scene_loss(&s, 0), scene_loss(&s, 1) };
    assert_null(model_divergence(s.net).data);
    teach(&s, &by, 0.7);
    scene_pass(&s, true);
    for (int m = 0; m < MODELS; m++) {
        assert_true(divergence(&s, m) > 1e-3);
        assert_true(fabs(scene_loss(&s, m) - alone[m] - 0.7 * divergence(&s, m)) < 1e-12);
    }
    const parameter *list = model_parameters(s.net, &count);
    for (int n = 0; n < count; n++)
        if (!list[n].fixed) differences_check_array(&s, "taught", &list[n], list[n].g, 0);
    scene_close(&s), scene_close(&by);
}

/* A model that says what its teacher says; and one without a weight, whose gradients are those without a
 * teacher. */
static void test_likeness(void **state)
{
    (void)state;
    const model_shape shape = text_of(1, NULL);
    scene s, plain, by;
    open_text(&s, LOAM_F32, "softmax", &shape), open_text(&by, LOAM_F32, "softmax", &shape);
    open_text(&plain, LOAM_F32, "softmax", &shape);
    teach(&s, &by, 0);
    scene_pass(&s, true), scene_pass(&plain, true);
    assert_true(divergence(&s, 0) < 1e-6);
    assert_true(scene_loss(&s, 0) == scene_loss(&plain, 0));
    assert_true(fixture_distance(find(&s, "E")->g, find(&plain, "E")->g) < 1e-5);
    scene_close(&s), scene_close(&plain), scene_close(&by);
}

static void test_refused(void **state)
{
    (void)state;
    const model_shape text = text_of(1, NULL), two = text_of(2, NULL), recall = scene_words(1, 3);
    mixer_options blind = scene_options;
    scene s, by, other;
    loam_error error;
    open_text(&s, LOAM_F32, "features", &text), open_text(&by, LOAM_F32, "softmax", &two);
    scene_open_with(&other, &scene_options, LOAM_F32, 1, "softmax", &recall, seeds, 1);
    assert_int_equal(model_teach(s.net, by.net, 1, &error), LOAM_ESHAPE);
    assert_int_equal(model_teach(other.net, other.net, 1, &error), LOAM_ESHAPE);
    assert_string_equal(error.text, "a teacher of other words, batches or models");
    scene_close(&s), scene_close(&by), scene_close(&other);
    const model_shape pairs = scene_regression(1, 3);
    train_model *net;
    blind.blind = true;
    assert_int_equal(model_create(&net, &s.on, mixer_find("features"), &pairs, &blind, seeds, &error),
                     LOAM_EUNSUPPORTED);
    assert_non_null(strstr(error.text, "no blind queries"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),  cmocka_unit_test(test_starts),   cmocka_unit_test(test_unused),
        cmocka_unit_test(test_teacher), cmocka_unit_test(test_likeness), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
