/* SPDX-License-Identifier: MIT
 * The data of the trained experiments against an independent implementation (make_golden.py): integers
 * exactly, real numbers to the rounding of their sums. */
#include "tests/support/memory.h"
#include "train/batch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/train/golden_data.inc"

enum { BATCH = 256, REAL_BATCH = 16 };

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

/* FNV-1a, a number at a time. */
static const uint64_t mix_begin = 0xcbf29ce484222325u;
static uint64_t mix(uint64_t hash, int64_t x) { return (hash ^ (uint64_t)x) * 0x100000001b3u; }

static uint64_t mix_all(uint64_t hash, const int32_t *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        hash = mix(hash, x[i]);
    return hash;
}

/* Positions and targets in the order of the positions. */
static uint64_t mix_targets(uint64_t hash, int64_t length, const int32_t *at, const int32_t *target,
                            int64_t count)
{
    for (int64_t t = 0; t < length; t++)
        for (int64_t i = 0; i < count; i++)
            if (at[i] == t) hash = mix(mix(hash, t), target[i]);
    return hash;
}

static void test_recall(void **state)
{
    (void)state;
    for (size_t row = 0; row < COUNT(golden_recall); row++) {
        const recall_shape shape = { golden_recall[row].length, golden_recall[row].pairs,
                                     golden_recall[row].words, golden_recall[row].fill };
        int32_t *tokens = memory_zeroed((size_t)shape.length, sizeof *tokens), at[128], target[128];
        void *scratch = memory_zeroed(1, (size_t)recall_scratch(&shape));
        uint64_t all = mix_begin, answers = mix_begin;
        for (int64_t i = 0; i < BATCH; i++) {
            recall_example(&shape, golden_recall[row].seed, (train_split)golden_recall[row].split, i, tokens,
                           at, target, scratch);
            all = mix_all(all, tokens, shape.length);
            answers = mix_targets(answers, shape.length, at, target, shape.pairs);
        }
        assert_true(all == golden_recall[row].tokens);
        assert_true(answers == golden_recall[row].targets);
        free(tokens);
        free(scratch);
    }
}

static void test_swaps(void **state)
{
    (void)state;
    for (size_t row = 0; row < COUNT(golden_swaps); row++) {
        const swaps_shape shape = { golden_swaps[row].places, golden_swaps[row].items };
        const int64_t length = swaps_length(&shape);
        int32_t *tokens = memory_zeroed((size_t)length, sizeof *tokens);
        int32_t at[SWAPS_QUERIES], target[SWAPS_QUERIES];
        void *scratch = memory_zeroed(1, (size_t)swaps_scratch(&shape));
        uint64_t all = mix_begin, answers = mix_begin;
        for (int64_t i = 0; i < BATCH; i++) {
            swaps_example(&shape, golden_swaps[row].seed, (train_split)golden_swaps[row].split, i, tokens, at,
                          target, scratch);
            all = mix_all(all, tokens, length);
            answers = mix_targets(answers, length, at, target, SWAPS_QUERIES);
        }
        assert_true(all == golden_swaps[row].tokens);
        assert_true(answers == golden_swaps[row].targets);
        free(tokens);
        free(scratch);
    }
}

/* The sum of squares, and a sum that tells places apart. */
static void add_sums(double sums[2], const double *x, int64_t count, int64_t first)
{
    for (int64_t i = 0; i < count; i++) {
        sums[0] += x[i] * x[i];
        sums[1] += x[i] * (double)((first + i) * 7919 % 1009);
    }
}

/* Weights below 1009 and numbers of size 1: the second sum cancels, by as much as its terms are rounded. */
static void expect_sums(const double got[2], const double want[2])
{
    assert_true(fabs(got[0] - want[0]) <= 1e-12 * want[0]);
    assert_true(fabs(got[1] - want[1]) <= 1e-12 * 1009 * want[0]);
}

static void test_regression(void **state)
{
    (void)state;
    for (size_t row = 0; row < COUNT(golden_regression); row++) {
        const int dim = golden_regression[row].dim;
        const regression_shape shape = {
            golden_regression[row].length,  golden_regression[row].segment, dim, dim,
            golden_regression[row].queries, golden_regression[row].noise
        };
        const int64_t size = (shape.length + shape.queries) * 2 * dim, answers = shape.queries * dim;
        double *x = memory_zeroed((size_t)size, sizeof *x), *y = memory_zeroed((size_t)answers, sizeof *y);
        void *scratch = memory_zeroed(1, (size_t)regression_scratch(&shape));
        double sums_x[2] = { 0 }, sums_y[2] = { 0 };
        for (int64_t i = 0; i < REAL_BATCH; i++) {
            regression_example(&shape, golden_regression[row].seed, (train_split)golden_regression[row].split,
                               i, x, y, scratch);
            add_sums(sums_x, x, size, i * size);
            add_sums(sums_y, y, answers, i * answers);
        }
        expect_sums(sums_x, golden_regression[row].x);
        expect_sums(sums_y, golden_regression[row].y);
        free(x), free(y), free(scratch);
    }
}

static void test_regression_numbers(void **state)
{
    (void)state;
    const regression_shape shape = { 8, 2, 3, 2, 3, 0.1 };
    double x[11 * 5], y[3 * 2];
    void *scratch = memory_zeroed(1, (size_t)regression_scratch(&shape));
    assert_int_equal(COUNT(golden_x), COUNT(x));
    assert_int_equal(COUNT(golden_y), COUNT(y));
    regression_example(&shape, 3, TRAIN_SPLIT_TRAIN, 7, x, y, scratch);
    for (size_t i = 0; i < COUNT(x); i++)
        assert_true(fabs(x[i] - golden_x[i]) <= 1e-12);
    for (size_t i = 0; i < COUNT(y); i++)
        assert_true(fabs(y[i] - golden_y[i]) <= 1e-12);
    free(scratch);
}

static void test_order(void **state)
{
    (void)state;
    for (size_t row = 0; row < COUNT(golden_order); row++) {
        const int n = golden_order[row].n;
        int32_t *order = memory_zeroed((size_t)n, sizeof *order);
        train_epoch_order(golden_order[row].seed, (train_task)golden_order[row].task, golden_order[row].epoch,
                          n, order);
        assert_true(mix_all(mix_begin, order, n) == golden_order[row].order);
        free(order);
    }
}

/* Numbers that a person can compare: seed 1, training example 0. */
static void test_first_numbers(void **state)
{
    (void)state;
    static const int32_t words[] = { 2129, 8091, 2331, 7612, 4077, 8147, 2003, 4959, 2331, 6074, 3443, 4600 };
    static const int32_t swapped[] = { 19, 1,  6170, 0, 5, 12, 2, 13, 12, 2,    8, 13,
                                       2,  13, 6,    2, 4, 16, 0, 8,  1,  1593, 2, 15 };
    const recall_shape recall = { 64, 4, 8192, true };
    const swaps_shape swaps = { 16, 8192 };
    int32_t tokens[110], at[8], target[8], scratch[8300];
    assert_true(recall_scratch(&recall) <= (int64_t)sizeof scratch);
    assert_true(swaps_scratch(&swaps) <= (int64_t)sizeof scratch);
    assert_int_equal(swaps_length(&swaps), COUNT(tokens));
    recall_example(&recall, 1, TRAIN_SPLIT_TRAIN, 0, tokens, at, target, scratch);
    assert_memory_equal(tokens, words, sizeof words);
    swaps_example(&swaps, 1, TRAIN_SPLIT_TRAIN, 0, tokens, at, target, scratch);
    assert_memory_equal(tokens + 60, swapped, sizeof swapped);
}

/* ---- batches */

enum { MODELS = 2, SIZE = 3, LENGTH = 16, MOST = 4 };

/* Model 1 of a batch that begins in the part of two pairs and ends in that of four. */
static void test_recall_batch(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 2);
    const train_source from = { .task = TRAIN_RECALL,
                                .recall = { .length = LENGTH, .words = 64, .fill = true },
                                .part = { { 2, { 9, 5 } }, { MOST, { 2, 4 } }, { 1, { 1, 3 } } } };
    static const int64_t pairs[SIZE] = { 2, 1, MOST };
    static const int32_t examples[MODELS][SIZE] = { { 0, 1, 2 }, { 4, 9, 8 } };
    int32_t tokens[LENGTH], at[MOST], target[MOST], scratch[200];
    train_batch b;
    assert_true(batch_open(&b, &on, &from, MODELS, SIZE));
    for (int64_t m = 0; m < MODELS; m++)
        batch_fill(&b, m, &from, 6 + (uint64_t)m, TRAIN_SPLIT_TEST, examples[m]);
    assert_int_equal(b.here.counts[0], 6);
    assert_int_equal(b.here.counts[1], 7);
    for (int64_t i = 0; i < SIZE; i++) {
        const recall_shape shape = { LENGTH, pairs[i], 64, true };
        const int64_t row = SIZE + i;
        recall_example(&shape, 7, TRAIN_SPLIT_TEST, examples[1][i], tokens, at, target, scratch);
        assert_memory_equal(b.here.tokens + row * LENGTH, tokens, sizeof tokens);
        for (int64_t n = 0; n < MOST; n++) {
            assert_int_equal(b.here.at[row * MOST + n], n < pairs[i] ? at[n] + i * LENGTH : -1);
            assert_int_equal(b.here.targets[row * MOST + n], n < pairs[i] ? target[n] : -1);
        }
    }
    batch_close(&b);
}

static void test_regression_batch(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 2);
    const train_source from = { .task = TRAIN_REGRESSION, .regression = { 8, 2, 3, 2, 3, 0.1 } };
    static const int32_t examples[SIZE] = { 5, 7, 1 };
    train_batch b;
    assert_true(batch_open(&b, &on, &from, MODELS, SIZE));
    for (int64_t m = 0; m < MODELS; m++)
        batch_fill(&b, m, &from, 2 + (uint64_t)m, TRAIN_SPLIT_TRAIN, examples);
    /* Example 7 of seed 3: the second of model 1. */
    const float *x = (const float *)b.here.x.data + (SIZE + 1) * COUNT(golden_x);
    const float *y = (const float *)b.here.y.data + (SIZE + 1) * COUNT(golden_y);
    for (size_t i = 0; i < COUNT(golden_x); i++)
        assert_true(fabs((double)x[i] - golden_x[i]) <= 1e-7 * fabs(golden_x[i]));
    for (size_t i = 0; i < COUNT(golden_y); i++)
        assert_true(fabs((double)y[i] - golden_y[i]) <= 1e-7 * fabs(golden_y[i]));
    for (int i = 0; i < 3; i++)
        assert_int_equal(b.here.at[(SIZE + 1) * 3 + i], 11 + 8 + i);
    batch_close(&b);
}

/* Windows that follow each other in the test, and begin anywhere in the training: also at the first place and
 * the last, and elsewhere with another seed. */
static void test_text(void **state)
{
    enum { WINDOW = 5, TRAIN = 12, TEST = 13 };
    static const uint16_t train[TRAIN] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 },
                          test[TEST] = { 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32 };
    const text_shape shape = { WINDOW, 40, { train, test }, { TRAIN, TEST }, 0 };
    int32_t tokens[WINDOW], target[WINDOW];
    int places[TRAIN] = { 0 }, moved = 0;
    (void)state;
    assert_int_equal(text_windows(&shape), 2);
    for (int n = 0; n < 2; n++) {
        text_example(&shape, 3, TRAIN_SPLIT_TEST, n, tokens, target);
        for (int i = 0; i < WINDOW; i++)
            assert_true(tokens[i] == 20 + n * WINDOW + i && target[i] == tokens[i] + 1);
    }
    for (int n = 0; n < 200; n++) {
        text_example(&shape, 3, TRAIN_SPLIT_TRAIN, n, tokens, target);
        const int32_t first = tokens[0];
        for (int i = 0; i < WINDOW; i++)
            assert_true(tokens[i] == first + i && target[i] == tokens[i] + 1 && target[i] < TRAIN);
        places[first]++;
        text_example(&shape, 4, TRAIN_SPLIT_TRAIN, n, tokens, target);
        moved += tokens[0] != first;
    }
    for (int i = 0; i < TRAIN - WINDOW; i++)
        assert_true(places[i] > 10);
    assert_true(moved > 100);
}

static void test_text_batch(void **state)
{
    enum { WINDOW = 5 };
    static const uint16_t train[] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5 };
    const machine on = machine_cpu(LOAM_F32, 2);
    const train_source from = { .task = TRAIN_TEXT,
                                .text = { WINDOW, 10, { train, train }, { COUNT(train), COUNT(train) }, 0 },
                                .part = { { 0, { 9, 2 } } } };
    static const int32_t examples[2] = { 1, 0 };
    train_batch b;
    (void)state;
    assert_true(batch_open(&b, &on, &from, 1, 2));
    batch_fill(&b, 0, &from, 1, TRAIN_SPLIT_TEST, examples);
    assert_int_equal(b.here.counts[0], 2 * WINDOW);
    for (int i = 0; i < 2 * WINDOW; i++) {
        const int place = i < WINDOW ? WINDOW + i : i - WINDOW;
        assert_int_equal(b.there.tokens[i], train[place]);
        assert_int_equal(b.there.targets[i], train[place + 1]);
        assert_int_equal(b.there.at[i], i);
    }
    batch_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_numbers),
        cmocka_unit_test(test_recall),
        cmocka_unit_test(test_swaps),
        cmocka_unit_test(test_regression),
        cmocka_unit_test(test_regression_numbers),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_recall_batch),
        cmocka_unit_test(test_regression_batch),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
