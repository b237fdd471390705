/* SPDX-License-Identifier: MIT
 * Each allocation of a model, a batch, an optimiser, of a trainer and its checkpoint, and of what is measured
 * of a model fails once: a status, and nothing is left behind. */
#include "tests/support/alloc_fail.h"
#include "train/checkpoint.h"
#include "train/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t seeds[1] = { 3 };
static const struct {
    const char *mixer;
    mixer_options how;
    train_source from;
} cases[] = {
    { "mesa",
      { .ridge_least = 0.01, .ridge_most = 1 },
      { .task = TRAIN_RECALL,
        .recall = { .length = 12, .words = 16, .fill = true },
        .part = { { 3, { 2, 0 } } } } },
    { "parallax",
      { .ridge_least = 0.01, .ridge_most = 1, .blind = true },
      { .task = TRAIN_REGRESSION, .regression = { 8, 4, 3, 2, 4, 0.1 } } },
};

/* True where memory suffices. */
static bool measure(const train_model *net)
{
    probe_rows rows;
    double ranks[2];
    loam_error error;
    if (probe_measure(net, 0, 0, &rows, &error) || probe_stable_ranks(net, 0, 0, ROLE_Q, ranks, &error)) {
        assert_int_equal(error.status, LOAM_EMEMORY);
        return false;
    }
    return true;
}

/* A step, if memory suffices. */
static bool take_step(size_t which)
{
    const model_shape shape = {
        .from = cases[which].from, .models = 1, .batch = 2, .layers = 2, .width = 16, .heads = 2
    };
    static const optimiser_options options = { .warm = 1, .steps = 2, .clip = 1, .muon = true };
    static const double peak = 1e-3;
    static const int32_t examples[2] = { 0, 1 };
    const machine on = machine_cpu(LOAM_F32, 1);
    loam_error error;
    train_model *net;
    train_batch data = { 0 };
    optimiser o = { 0 };
    if (model_create(&net, &on, mixer_find(cases[which].mixer), &shape, &cases[which].how, seeds, &error)) {
        assert_null(net);
        assert_int_equal(error.status, LOAM_EMEMORY);
        return false;
    }
    int count;
    parameter *list = model_parameters(net, &count);
    bool whole = batch_open(&data, &on, &shape.from, 1, shape.batch);
    whole = whole && optimiser_open(&o, &on, list, count, &options, &peak, &peak);
    if (whole) {
        batch_fill(&data, 0, &cases[which].from, seeds[0], TRAIN_SPLIT_TRAIN, examples);
        whole = model_gradients(net, &data, &error) == LOAM_OK;
        optimiser_step(&o);
        if (which == 1) whole = measure(net) && whole;
    }
    optimiser_close(&o);
    batch_close(&data);
    model_destroy(net);
    return whole;
}

/* Gradients of layers with other features, taught, if memory suffices. */
static bool teach_step(void)
{
    static const uint16_t tokens[] = { 1, 2, 3, 4, 3, 2, 1, 0 };
    static const int16_t features[] = { 3, 0, 5 };
    static const int32_t examples[2] = { 0, 1 };
    const mixer_options plain = { .mlp = true };
    model_shape shape = { .from = { .task = TRAIN_TEXT,
                                    .text = { 4, 5, { tokens, tokens }, { 8, 8 }, 0 },
                                    .part = { { 0, { 2, 1 } } } },
                          .models = 1,
                          .batch = 2,
                          .layers = 3,
                          .width = 16,
                          .heads = 2 };
    const machine on = machine_cpu(LOAM_F32, 1);
    loam_error error = { 0 };
    train_model *teacher = NULL, *net = NULL;
    train_batch data = { 0 };
    bool whole = model_create(&teacher, &on, mixer_find("softmax"), &shape, &plain, seeds, &error) == LOAM_OK;
    shape.features = features;
    whole = whole && !model_create(&net, &on, mixer_find("features"), &shape, &plain, seeds, &error) &&
            !model_teach(net, teacher, 1, &error);
    if (!whole) assert_int_equal(error.status, LOAM_EMEMORY);
    whole = whole && batch_open(&data, &on, &shape.from, 1, shape.batch);
    if (whole) {
        batch_fill(&data, 0, &shape.from, seeds[0], TRAIN_SPLIT_TRAIN, examples);
        whole = model_gradients(net, &data, &error) == LOAM_OK;
    }
    batch_close(&data);
    model_destroy(net);
    model_destroy(teacher);
    return whole;
}

/* A step of a trainer, saved and loaded again, if memory suffices. */
static bool save_step(void)
{
    const machine on = machine_cpu(LOAM_F32, 1);
    trainee one = { 3, cases[0].from, 1e-3, 0 };
    trainer_options options = trainer_options_default(mixer_find("lla"));
    trainer t, other;
    loam_error reason;
    io_error error = { .exit_status = EXIT_INTERNAL, .text = "out of memory" };
    bool found = false;
    options.shape.batch = 2, options.shape.width = 16, options.steps = 1;
    one.from.part[0].examples[TRAIN_SPLIT_TEST] = 1;
    if (trainer_open(&t, &on, &options, &one, 1, &reason)) {
        assert_int_equal(reason.status, LOAM_EMEMORY);
        return false;
    }
    bool whole = trainer_advance(&t, 1, 1, &reason) == LOAM_OK;
    whole = whole && checkpoint_save(&t, "alloc.st", &error) == EXIT_OK;
    assert_true((access("alloc.st", F_OK) == 0) == whole);
    trainer_close(&t);
    if (whole && trainer_open(&other, &on, &options, &one, 1, &reason) == LOAM_OK) {
        whole = checkpoint_load(&other, "alloc.st", &found, &error) == EXIT_OK;
        assert_int_equal(other.step, whole);
        trainer_close(&other);
    } else {
        whole = false;
    }
    unlink("alloc.st");
    if (!whole) assert_non_null(strstr(error.text, "out of memory"));
    return whole;
}

static bool step_mesa(void) { return take_step(0); }
static bool step_parallax(void) { return take_step(1); }

static void fail_each(const char *what, bool (*action)(void), int at_least)
{
    bool happened = true;
    int nth = 0;
    while (happened) {
        alloc_fail_at(++nth);
        const bool whole = action();
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (whole == happened) fail_msg("allocation %d: %s", nth, whole ? "not noticed" : "a step failed");
    }
    printf("%s: %d allocations\n", what, nth - 1);
    assert_true(nth > at_least);
}

static void test_each(void **state)
{
    (void)state;
    fail_each("a step of mesa", step_mesa, 4);
    fail_each("a step of parallax", step_parallax, 4);
    fail_each("a step that is taught", teach_step, 8);
    fail_each("a checkpoint", save_step, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_each) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
