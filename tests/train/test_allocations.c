/* SPDX-License-Identifier: MIT
 * Each allocation of a model, a batch and an optimiser fails once: a status, and nothing is left behind. */
#include "tests/support/alloc_fail.h"
#include "train/model.h"
#include "train/optimiser.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const uint64_t seeds[1] = { 3 };
static const mixer_options usual = { .ridge_least = 0.01, .ridge_most = 1 };
static const model_shape shape = { .from = { .task = TRAIN_RECALL,
                                             .recall = { .length = 12, .words = 16, .fill = true },
                                             .part = { { 3, { 2, 0 } } } },
                                   .models = 1,
                                   .batch = 2,
                                   .layers = 2,
                                   .width = 16,
                                   .heads = 2 };

/* A step, if memory suffices. */
static bool take_step(void)
{
    static const optimiser_options options = { .warm = 1, .steps = 2, .clip = 1, .muon = true };
    static const double peak = 1e-3;
    static const int32_t examples[2] = { 0, 1 };
    const machine on = machine_cpu(LOAM_F32, 1);
    loam_error error;
    train_model *net;
    train_batch data = { 0 };
    optimiser o = { 0 };
    if (model_create(&net, &on, mixer_find("mesa"), &shape, &usual, seeds, &error)) {
        assert_null(net);
        assert_int_equal(error.status, LOAM_EMEMORY);
        return false;
    }
    int count;
    parameter *list = model_parameters(net, &count);
    bool whole = batch_open(&data, &on, &shape.from, 1, shape.batch);
    whole = whole && optimiser_open(&o, &on, list, count, &options, &peak, &peak);
    if (whole) {
        batch_fill(&data, 0, &shape.from, seeds[0], TRAIN_SPLIT_TRAIN, examples);
        whole = model_gradients(net, &data, &error) == LOAM_OK;
        optimiser_step(&o);
    }
    optimiser_close(&o);
    batch_close(&data);
    model_destroy(net);
    return whole;
}

static void test_each(void **state)
{
    (void)state;
    bool happened = true;
    int nth = 0;
    while (happened) {
        alloc_fail_at(++nth);
        const bool whole = take_step();
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (whole == happened) fail_msg("allocation %d: %s", nth, whole ? "not noticed" : "a step failed");
    }
    printf("%d allocations\n", nth - 1);
    assert_true(nth > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_each) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
