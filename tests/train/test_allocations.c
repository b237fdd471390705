/* SPDX-License-Identifier: MIT
 * Each allocation of a model, a batch, an optimiser and what is measured of a model fails once: a status, and
 * nothing is left behind. */
#include "tests/support/alloc_fail.h"
#include "train/model.h"
#include "train/optimiser.h"
#include "train/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

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
        batch_fill(&data, 0, seeds[0], TRAIN_SPLIT_TRAIN, examples);
        whole = model_gradients(net, &data, &error) == LOAM_OK;
        optimiser_step(&o);
        if (which == 1) whole = measure(net) && whole;
    }
    optimiser_close(&o);
    batch_close(&data);
    model_destroy(net);
    return whole;
}

static void check_each(size_t which)
{
    bool happened = true;
    int nth = 0;
    while (happened) {
        alloc_fail_at(++nth);
        const bool whole = take_step(which);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (whole == happened) fail_msg("allocation %d: %s", nth, whole ? "not noticed" : "a step failed");
    }
    printf("%d allocations\n", nth - 1);
    assert_true(nth > 4);
}

static void test_each(void **state)
{
    (void)state;
    check_each(0);
    check_each(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_each) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
