/* SPDX-License-Identifier: MIT
 * Batches that a GPU makes beside those of the CPU: integers are the same, reals but for the last bits. */
#include "cli/device.h"
#include "tests/support/memory.h"
#include "train/batch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SKIPPED = 77, MODELS = 3, SIZE = 5 };

static void check_integers(const machine *gpu, const char *what, const int32_t *there, const int32_t *want,
                           int64_t count)
{
    loam_error error;
    int32_t *got = memory_zeroed((size_t)count, sizeof *got);
    if (machine_download(gpu, got, there, (size_t)count * sizeof *got, &error)) fail_msg("%s", error.text);
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("%s: element %d is %d, expected %d", what, (int)i, (int)got[i], (int)want[i]);
    free(got);
}

/* Of numbers up to 10: two units in the last place of 8. */
static void check_reals(const machine *gpu, const char *what, matrix there, matrix want)
{
    const int64_t count = matrix_elements(want);
    loam_error error;
    float *got = memory_zeroed((size_t)count, sizeof *got);
    if (machine_download(gpu, got, there.data, (size_t)count * sizeof *got, &error))
        fail_msg("%s", error.text);
    for (int64_t i = 0; i < count; i++) {
        const double x = (double)((const float *)want.data)[i];
        if (!(fabs((double)got[i] - x) < 1e-6))
            fail_msg("%s: element %d is %.9g, expected %.9g", what, (int)i, (double)got[i], x);
    }
    free(got);
}

/* The segment of a model's source doubles from model to model. */
static void check_source(const char *what, const train_source *from, train_split split)
{
    static const int32_t examples[MODELS][SIZE] = { { 0, 1, 2, 3, 4 }, { 4, 2, 9, 0, 7 }, { 8, 8, 1, 5, 3 } };
    const machine cpu = machine_cpu(LOAM_F32, 2);
    machine gpu;
    loam_error error;
    train_batch want, got;
    if (machine_cuda(&gpu, LOAM_BF16, &error)) fail_msg("%s", error.text);
    assert_true(batch_open(&want, &cpu, from, MODELS, SIZE) && batch_open(&got, &gpu, from, MODELS, SIZE));
    for (int m = 0; m < MODELS; m++) {
        train_source own = *from;
        own.regression.segment <<= m;
        const uint64_t seed = 100 + (uint64_t)(m % 2);
        batch_fill(&want, m, &own, seed, split, examples[m]);
        batch_fill(&got, m, &own, seed, split, examples[m]);
    }
    batch_send(&want);
    batch_send(&got);
    const int64_t rows = MODELS * SIZE * source_length(from), answers = MODELS * SIZE * source_answers(from);
    const bool words = source_words(from) > 0;
    for (int m = 0; m < MODELS; m++)
        assert_int_equal(got.here.counts[m], want.here.counts[m]);
    check_integers(&gpu, what, got.there.at, want.there.at, answers);
    if (words) {
        check_integers(&gpu, what, got.there.tokens, want.there.tokens, rows);
        check_integers(&gpu, what, got.there.targets, want.there.targets, answers);
    } else {
        check_reals(&gpu, what, got.there.x, want.there.x);
        check_reals(&gpu, what, got.there.y, want.there.y);
    }
    batch_close(&want), batch_close(&got);
    machine_close(&gpu);
}

static void test_recall(void **state)
{
    (void)state;
    for (int64_t length = 16; length <= 512; length *= 2)
        for (int fill = 0; fill < 2; fill++) {
            const train_source from = {
                .task = TRAIN_RECALL,
                .recall = { .length = length, .words = length == 16 ? 64 : 8192, .fill = fill > 0 },
                .part = { { length / 16, { 2, 1 } }, { length / 8, { 3, 2 } }, { length / 4, { 60, 60 } } }
            };
            check_source("recall", &from, TRAIN_SPLIT_TRAIN);
            check_source("recall, test", &from, TRAIN_SPLIT_TEST);
        }
}

static void test_swaps(void **state)
{
    static const int64_t places[] = { 8, 16, 24, 48, 96, 124 };
    (void)state;
    for (int i = 0; i < 6; i++) {
        const train_source from = { .task = TRAIN_SWAPS,
                                    .swaps = { places[i], 8192 },
                                    .part = { { 0, { 60, 60 } } } };
        check_source("swaps", &from, TRAIN_SPLIT_TRAIN);
        check_source("swaps, test", &from, TRAIN_SPLIT_TEST);
    }
}

static void test_regression(void **state)
{
    static const regression_shape shapes[] = { { 64, 8, 32, 32, 16, 0.1 },
                                               { 8, 2, 4, 3, 4, 0.1 },
                                               { 512, 64, 32, 32, 16, 0.1 },
                                               { 32, 4, 5, 7, 8, 0.5 } };
    (void)state;
    for (int i = 0; i < 4; i++) {
        const train_source from = { .task = TRAIN_REGRESSION,
                                    .regression = shapes[i],
                                    .part = { { 0, { 60, 60 } } } };
        check_source("regression", &from, TRAIN_SPLIT_TRAIN);
        check_source("regression, test", &from, TRAIN_SPLIT_TEST);
    }
}

static void test_text(void **state)
{
    static const uint16_t text[] = u"Tokens that no function of numbers alone makes are sent.";
    static const int64_t count = sizeof text / sizeof *text;
    const train_source from = { .task = TRAIN_TEXT,
                                .text = { 5, 128, { text, text }, { count, count }, 0 },
                                .part = { { 0, { 60, 10 } } } };
    (void)state;
    check_source("text", &from, TRAIN_SPLIT_TRAIN);
    check_source("text, test", &from, TRAIN_SPLIT_TEST);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall),
        cmocka_unit_test(test_swaps),
        cmocka_unit_test(test_regression),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
