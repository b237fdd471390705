/* SPDX-License-Identifier: MIT
 * Steps of training, one after another: mechanisms that are special cases of others train as these do, and a
 * model of a stack as it does alone. */
#include "tests/train/fixture.h"
#include "tests/train/scene.h"
#include "train/optimiser.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/train/golden_steps.inc"

enum { STEPS = 100 };

static const uint64_t seeds[SCENE_MODELS] = { 3, 8, 1, 5 };

typedef struct training {
    scene s;
    optimiser o;
} training;

static void training_open(training *t, const mixer_options *how, const char *name, const model_shape *shape,
                          const uint64_t *from, int threads, bool muon)
{
    static const double peak[SCENE_MODELS] = { 3e-3, 3e-3, 3e-3, 3e-3 };
    static const double muon_peak[SCENE_MODELS] = { 0.02, 0.02, 0.02, 0.02 };
    const optimiser_options options = { .warm = 10, .steps = STEPS, .decay = 0.1, .clip = 1, .muon = muon };
    int count;
    scene_open_with(&t->s, how, LOAM_F32, threads, name, shape, from, 0);
    parameter *list = model_parameters(t->s.net, &count);
    assert_true(optimiser_open(&t->o, &t->s.on, list, count, &options, peak, muon_peak));
}

static void training_close(training *t)
{
    optimiser_close(&t->o);
    scene_close(&t->s);
}

static void training_step(training *t, const uint64_t *from, int step)
{
    scene_fill(&t->s, from, (int32_t)(step * t->s.shape.batch));
    scene_pass(&t->s, true);
    optimiser_step(&t->o);
}

/* The arrays that both have, by name; what softmax does not have keeps its start, or nothing at all. */
static void copy_weights(const training *from, const training *to, const char *frozen)
{
    int count, others;
    parameter *list = model_parameters(to->s.net, &count), *other = model_parameters(from->s.net, &others);
    for (int n = 0; n < count; n++) {
        for (int i = 0; i < others; i++)
            if (strcmp(list[n].name, other[i].name) == 0) to->s.on.op->copy(&to->s.on, list[n].x, other[i].x);
        list[n].frozen = strstr(list[n].name, frozen) != NULL;
    }
}

/* The numbers of arrays, and with them the weights, depend on the mechanism: they are made equal, and large
 * enough that a mechanism matters. */
static void check_identity(const char *name, const mixer_options *options, const char *frozen,
                           double tolerance)
{
    const model_shape shape = scene_words(1, 16);
    training softmax, other;
    training_open(&softmax, &scene_options, "softmax", &shape, seeds, 2, false);
    training_open(&other, options, name, &shape, seeds, 2, false);
    scene_stir(&softmax.s);
    copy_weights(&softmax, &other, frozen);
    double first = 0, worst = 0;
    for (int step = 0; step < STEPS; step++) {
        training_step(&softmax, seeds, step);
        training_step(&other, seeds, step);
        const double loss = scene_loss(&softmax.s, 0);
        if (step == 0) first = loss;
        worst = fmax(worst, fabs(scene_loss(&other.s, 0) - loss));
    }
    printf("%s: loss %.4f to %.4f, off by %.2g\n", name, first, scene_loss(&softmax.s, 0), worst);
    assert_true(scene_loss(&softmax.s, 0) < first - 0.1);
    assert_true(worst < tolerance);
    training_close(&softmax), training_close(&other);
}

static void test_parallax_is_softmax(void **state)
{
    (void)state;
    mixer_options options = scene_options;
    options.probe_zero = true;
    check_identity("parallax", &options, "W_r", 1e-5);
}

static void test_lla_is_softmax(void **state)
{
    (void)state;
    mixer_options options = scene_options;
    options.ridge_least = options.ridge_most = 1e6;
    check_identity("lla", &options, "W_lambda", 1e-3);
}

static void expect_same(const char *what, const training *all, int64_t m, const training *alone)
{
    int count;
    const parameter *list = model_parameters(all->s.net, &count),
                    *one = model_parameters(alone->s.net, &count);
    for (int n = 0; n < count; n++) {
        const float *x = (const float *)list[n].x.data + m * list[n].x.model;
        if (memcmp(x, one[n].x.data, (size_t)list[n].x.model * sizeof *x) != 0)
            fail_msg("%s, %s: other bits in a stack", what, list[n].name);
    }
}

static void check_stack(const char *name, bool muon)
{
    const model_shape stack = scene_words(2, 4), single = scene_words(1, 4);
    training all, alone;
    training_open(&all, &scene_options, name, &stack, seeds, 2, muon);
    for (int step = 0; step < 5; step++)
        training_step(&all, seeds, step);
    for (int64_t m = 0; m < 2; m++) {
        training_open(&alone, &scene_options, name, &single, seeds + m, 1, muon);
        for (int step = 0; step < 5; step++)
            training_step(&alone, seeds + m, step);
        expect_same(name, &all, m, &alone);
        training_close(&alone);
    }
    training_close(&all);
}

static void test_stack(void **state)
{
    (void)state;
    check_stack("softmax", true);
    check_stack("lla", false);
    check_stack("mesa", false);
}

/* Ten steps of an independent implementation (make_steps.py): data, start, passes and optimiser together. */
static void check_steps(size_t row, loam_dtype dtype, double tolerance)
{
    static const uint64_t seed = 1;
    static const double peak = 0.002;
    static const train_source recall = { .task = TRAIN_RECALL,
                                         .recall = { .length = 16, .words = 64, .fill = true },
                                         .part = { { 4, { 1000, 0 } } } };
    static const train_source pairs = { .task = TRAIN_REGRESSION, .regression = { 12, 3, 4, 3, 4, 0.1 } };
    const mixer_options how = golden_steps[row].how;
    const model_shape shape = {
        .from = how.blind ? pairs : recall, .models = 1, .batch = 8, .layers = 2, .width = 32, .heads = 2
    };
    const optimiser_options options = { .warm = 3, .steps = 20, .decay = 0.1, .clip = 1 };
    training t;
    int count;
    scene_open_with(&t.s, &how, dtype, 2, golden_steps[row].mixer, &shape, &seed, 0);
    parameter *list = model_parameters(t.s.net, &count);
    assert_true(optimiser_open(&t.o, &t.s.on, list, count, &options, &peak, NULL));
    for (int step = 0; step < 10; step++) {
        training_step(&t, &seed, step);
        const double got = scene_loss(&t.s, 0), want = golden_steps[row].loss[step];
        if (!(fabs(got - want) < tolerance))
            fail_msg("row %d, %s, %s, step %d: loss %.12g, expected %.12g", (int)row, golden_steps[row].mixer,
                     loam_dtype_name(dtype), step, got, want);
    }
    training_close(&t);
}

static void test_golden_steps(void **state)
{
    (void)state;
    for (size_t row = 0; row < sizeof golden_steps / sizeof *golden_steps; row++) {
        check_steps(row, LOAM_F64, 1e-9);
        check_steps(row, LOAM_F32, 1e-3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallax_is_softmax),
        cmocka_unit_test(test_lla_is_softmax),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_golden_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
