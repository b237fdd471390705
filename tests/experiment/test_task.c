/* SPDX-License-Identifier: MIT */
#include "tests/experiment/fixture.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 6, SEGMENT = 32, LENGTH = 256, SEQUENCES = 200 }; /* 8 segments: cones of 3 channels */

static const experiment_task plain = { DIM, SEGMENT, LENGTH, 0, 11 };

static int sign_expected(int64_t position, int channel)
{
    const int64_t segment = position / SEGMENT + 1;
    return segment >> channel & 1 ? 1 : -1;
}

static void test_cones(void **state)
{
    (void)state;
    estimate_batch batch = fixture_batch(plain, 0, SEQUENCES, 0);
    double mean[DIM] = { 0 }, square[DIM] = { 0 };
    for (int64_t i = 0; i < SEQUENCES * LENGTH; i++)
        for (int a = 0; a < DIM; a++) {
            const double x = batch.keys[i * DIM + a];
            if (a < 3) assert_true(x * sign_expected(i % LENGTH, a) > 0);
            mean[a] += (a < 3 ? fabs(x) : x) / (SEQUENCES * LENGTH);
            square[a] += x * x / (SEQUENCES * LENGTH);
        }
    /* |N(0, 1)| has mean sqrt(2 / pi); five standard errors. */
    for (int a = 0; a < DIM; a++) {
        assert_true(fabs(mean[a] - (a < 3 ? sqrt(2 / acos(-1)) : 0)) < 5 / sqrt(SEQUENCES * LENGTH));
        assert_true(fabs(square[a] - 1) < 5 * sqrt(2.0 / (SEQUENCES * LENGTH)));
    }
    fixture_free(&batch);
}

/* Least squares on a segment: map[b, a], and the norm of what it leaves. */
static double fit_segment(const double *keys, const double *values, double map[DIM * DIM])
{
    double a[SEGMENT * DIM], b[SEGMENT * DIM], rest = 0;
    memcpy(a, keys, sizeof a);
    memcpy(b, values, sizeof b);
    assert_int_equal(LAPACKE_dgels(LAPACK_ROW_MAJOR, 'N', SEGMENT, DIM, DIM, a, DIM, b, DIM), 0);
    memcpy(map, b, sizeof(double) * DIM * DIM);
    for (int i = DIM * DIM; i < SEGMENT * DIM; i++)
        rest += b[i] * b[i];
    return sqrt(rest);
}

/* Each segment has a linear map of its own, with N(0, 1) entries. */
static void test_maps(void **state)
{
    (void)state;
    enum { SEGMENTS = SEQUENCES * LENGTH / SEGMENT, ENTRIES = SEGMENTS * DIM * DIM };
    estimate_batch batch = fixture_batch(plain, 0, SEQUENCES, 0);
    double *maps = fixture_doubles(ENTRIES), mean = 0, square = 0, neighbours = 0;
    for (int s = 0; s < SEGMENTS; s++)
        assert_true(fit_segment(batch.keys + s * SEGMENT * DIM, batch.values + s * SEGMENT * DIM,
                                maps + s * DIM * DIM) < 1e-11);
    for (int i = 0; i < ENTRIES; i++) {
        mean += maps[i] / ENTRIES;
        square += maps[i] * maps[i] / ENTRIES;
        neighbours += maps[i] * maps[(i + DIM * DIM) % ENTRIES] / ENTRIES;
    }
    assert_true(fabs(mean) < 5 / sqrt(ENTRIES));
    assert_true(fabs(square - 1) < 5 * sqrt(2.0 / ENTRIES));
    assert_true(fabs(neighbours) < 5 / sqrt(ENTRIES));
    free(maps);
    fixture_free(&batch);
}

static void test_noise(void **state)
{
    (void)state;
    experiment_task noisy = plain;
    noisy.noise = 0.25;
    estimate_batch clean = fixture_batch(plain, 0, SEQUENCES, 0),
                   other = fixture_batch(noisy, 0, SEQUENCES, 0);
    const int64_t count = (int64_t)SEQUENCES * LENGTH * DIM;
    assert_memory_equal(clean.keys, other.keys, (size_t)count * sizeof(double));
    double mean = 0, square = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = (other.values[i] - clean.values[i]) / noisy.noise;
        mean += x / (double)count;
        square += x * x / (double)count;
    }
    assert_true(fabs(mean) < 5 / sqrt((double)count));
    assert_true(fabs(square - 1) < 5 * sqrt(2 / (double)count));
    fixture_free(&clean);
    fixture_free(&other);
}

/* A sequence is the same alone, in a batch, and for any number of threads. */
static void test_place_and_threads(void **state)
{
    (void)state;
    io_error error;
    estimate_batch batch = fixture_batch(plain, 5, 4, 0);
    const size_t size = LENGTH * DIM * sizeof(double);
    double *keys = fixture_doubles(4 * LENGTH * DIM), *values = fixture_doubles(4 * LENGTH * DIM);
    for (int threads = 1; threads <= 4; threads++) {
        estimate_batch again = { plain, 5, 4, 0, keys, values };
        expect_ok(estimate_generate(&again, threads, &error), &error);
        assert_memory_equal(keys, batch.keys, 4 * size);
        assert_memory_equal(values, batch.values, 4 * size);
    }
    for (int64_t s = 0; s < 4; s++) {
        estimate_batch alone = fixture_batch(plain, 5 + s, 1, 0);
        assert_memory_equal(alone.keys, batch.keys + s * LENGTH * DIM, size);
        assert_memory_equal(alone.values, batch.values + s * LENGTH * DIM, size);
        assert_memory_not_equal(alone.keys, batch.keys + (s + 1) % 4 * LENGTH * DIM, size);
        fixture_free(&alone);
    }
    free(keys);
    free(values);
    fixture_free(&batch);
}

static void test_seed_and_shape_matter(void **state)
{
    (void)state;
    experiment_task tasks[3] = { plain, plain, plain };
    tasks[1].seed = 12;
    tasks[2].segment = 64;
    double first[3];
    for (int i = 0; i < 3; i++) {
        estimate_batch batch = fixture_batch(tasks[i], 0, 1, 0);
        first[i] = batch.keys[DIM - 1];
        fixture_free(&batch);
    }
    assert_true(first[0] != first[1] && first[0] != first[2] && first[1] != first[2]);
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        int64_t dim, segment, length;
        int status;
    } cases[] = { { 8, 8, 1024, EXIT_OK },     { 6, 8, 1024, EXIT_USAGE }, { 1, 7, 7, EXIT_OK },
                  { 2, 7, 28, EXIT_OK },       { 8, 7, 21, EXIT_USAGE },   { 8, 64, 32, EXIT_USAGE },
                  { 8, 100, 1024, EXIT_USAGE } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const experiment_task task = { cases[i].dim, cases[i].segment, cases[i].length, 0, 1 };
        io_error error = { 0 };
        assert_int_equal(task_check(&task, &error), cases[i].status);
        assert_true((strlen(error.text) > 0) == (cases[i].status != EXIT_OK));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cones),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_place_and_threads),
        cmocka_unit_test(test_seed_and_shape_matter),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
