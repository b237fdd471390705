/* SPDX-License-Identifier: MIT
 * The smooth task: the data are what they claim to be, and the settings chosen are the best of the grid. */
#include "cli/experiment/smooth_task.h"
#include "cli/experiment/tune.h"
#include "tests/experiment/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 2, DIM = INPUTS + 1, LENGTH = 64, SIZE = LENGTH * DIM, DRAWS = 200 };

static const smooth_task task = { { DIM, 0, LENGTH, 0.5, 7 }, 2 };

typedef struct sequence {
    double keys[SIZE], truth[SIZE], values[SIZE];
} sequence;

static void draw(const smooth_task *from, int64_t number, sequence *out)
{
    io_error error;
    expect_ok(smooth_generate(from, number, out->keys, out->truth, out->values, &error), &error);
}

/* Keys: 1, then uniform with variance 1. */
static void test_keys(void **state)
{
    (void)state;
    sequence s;
    double mean = 0, square = 0, fourth = 0;
    const double count = (double)DRAWS * LENGTH * INPUTS;
    for (int64_t n = 0; n < DRAWS; n++) {
        draw(&task, n, &s);
        for (int i = 0; i < SIZE; i++) {
            const double x = s.keys[i];
            if (i % DIM == 0) {
                assert_true(x == 1);
                continue;
            }
            assert_true(fabs(x) <= sqrt(3));
            mean += x / count, square += x * x / count, fourth += x * x * x * x / count;
        }
    }
    /* Moments 0, 1 and 9 / 5, to five standard errors. */
    assert_true(fabs(mean) < 5 / sqrt(count));
    assert_true(fabs(square - 1) < 5 * sqrt(0.8 / count));
    assert_true(fabs(fourth - 1.8) < 5 * sqrt((9 - 3.24) / count));
}

static double squared_distance(const double *x, const double *y)
{
    double sum = 0;
    for (int a = 1; a < DIM; a++)
        sum += (x[a] - y[a]) * (x[a] - y[a]);
    return sum;
}

/* Over the draws of the map, the covariance of two places is exp(-distance^2 / (2 scale^2)). */
static void test_truth(void **state)
{
    (void)state;
    sequence s;
    double excess = 0, other = 0;
    const double count = (double)DRAWS * (LENGTH / 2) * DIM;
    for (int64_t n = 0; n < DRAWS; n++) {
        draw(&task, n, &s);
        for (int i = 0; i < LENGTH; i += 2) {
            const double *x = s.keys + i * DIM, *f = s.truth + i * DIM;
            const double expected = exp(-squared_distance(x, x + DIM) / (2 * 2 * 2));
            for (int c = 0; c < DIM; c++) {
                excess += (f[c] * f[DIM + c] - expected) / count;
                other += f[c] * f[DIM + (c + 1) % DIM] / count;
            }
        }
    }
    /* Places of one map hang together: the standard error is
     * that of DRAWS * DIM independent ones, at most sqrt(2). */
    assert_true(fabs(excess) < 5 * sqrt(2.0 / (DRAWS * DIM)));
    assert_true(fabs(other) < 5 / sqrt(DRAWS * DIM));
}

static void test_noise(void **state)
{
    (void)state;
    sequence s;
    double square = 0, product = 0;
    const double count = (double)DRAWS * SIZE;
    for (int64_t n = 0; n < DRAWS; n++) {
        draw(&task, n, &s);
        for (int i = 0; i < SIZE; i++) {
            const double noise = s.values[i] - s.truth[i];
            square += noise * noise / count, product += noise * s.truth[i] / count;
        }
    }
    assert_true(fabs(square - 0.25) < 5 * 0.25 * sqrt(2 / count));
    assert_true(fabs(product) < 5 * 0.5 * 1.1 / sqrt(count));
}

/* Sequences differ, and repeat. */
static void test_sequences(void **state)
{
    (void)state;
    sequence a, b;
    draw(&task, 3, &a);
    draw(&task, 3, &b);
    assert_memory_equal(&a, &b, sizeof a);
    draw(&task, 4, &b);
    assert_memory_not_equal(a.keys + 1, b.keys + 1, INPUTS * sizeof *a.keys);
    assert_memory_not_equal(a.truth, b.truth, sizeof a.truth);
}

static double error_of(const estimate_setup *setup, estimator which, const estimate_batch *batch,
                       const double *truth)
{
    io_error error;
    double outputs[SIZE], sum = 0;
    expect_ok(estimate_outputs(setup, which, batch, outputs, &error), &error);
    for (int i = 0; i < SIZE; i++)
        sum += (outputs[i] - truth[i]) * (outputs[i] - truth[i]);
    return sum;
}

static void test_choice(void **state)
{
    (void)state;
    static const int candidates[ESTIMATORS] = { 50, 10, 5, 1, 8, 32, 32, 1 };
    io_error error;
    sequence s;
    draw(&task, 0, &s);
    const estimate_batch batch = { task.pairs, 0, 1, 1, s.keys, s.values };
    for (int e = 0; e < ESTIMATORS; e++) {
        estimate_setup chosen = fixture_setup(), candidate = chosen;
        chosen.score = candidate.score = LOAM_RBF;
        expect_ok(tune_estimator((estimator)e, &batch, s.truth, &chosen, &error), &error);
        const double least = error_of(&chosen, (estimator)e, &batch, s.truth);
        int count = 0, equal = 0;
        for (; tune_candidate((estimator)e, count, DIM, &candidate); count++) {
            const double other = error_of(&candidate, (estimator)e, &batch, s.truth);
            assert_true(least <= other);
            equal += least == other;
        }
        assert_int_equal(count, candidates[e]);
        assert_int_equal(equal, 1);
    }
}

/* Bandwidths are those of the Gaussian in units of the keys: scale = 1 / h^2. */
static void test_bandwidth(void **state)
{
    (void)state;
    estimate_setup setup = fixture_setup();
    assert_true(tune_candidate(ESTIMATOR_SOFTMAX, 0, 9, &setup));
    assert_true(fabs(tune_bandwidth(&setup, 9) - 0.15) < 1e-12);
    assert_true(fabs(setup.bandwidth * sqrt(9) - 0.15 * 0.15) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_truth),  cmocka_unit_test(test_noise),
        cmocka_unit_test(test_sequences), cmocka_unit_test(test_choice), cmocka_unit_test(test_bandwidth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
