/* SPDX-License-Identifier: MIT
 * Each estimator against its definition, written out for one position at a time. */
#include "tests/experiment/fixture.h"

#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 12, LENGTH = 64, SEGMENT = 16, COUNT = 3, SIZE = LENGTH * DIM };

static const experiment_task task = { DIM, SEGMENT, LENGTH, 0.1, 5 };

typedef void naive(const double *keys, const double *values, int64_t seen, const double *query,
                   const estimate_setup *setup, double *output);

static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int a = 0; a < DIM; a++)
        sum += x[a] * y[a];
    return sum;
}

static void naive_linear(const double *keys, const double *values, int64_t seen, const double *query,
                         const estimate_setup *setup, double *output)
{
    (void)setup;
    for (int64_t j = 0; j < seen; j++)
        for (int a = 0; a < DIM; a++)
            output[a] += values[j * DIM + a] * dot(keys + j * DIM, query) / (double)seen;
}

static void naive_mesa(const double *keys, const double *values, int64_t seen, const double *query,
                       const estimate_setup *setup, double *output)
{
    double gram[DIM * DIM] = { 0 }, solved[DIM];
    lapack_int pivots[DIM];
    for (int a = 0; a < DIM; a++) {
        gram[a * DIM + a] = setup->mesa_ridge;
        for (int b = 0; b < DIM; b++)
            for (int64_t j = 0; j < seen; j++)
                gram[a * DIM + b] += keys[j * DIM + a] * keys[j * DIM + b];
    }
    memcpy(solved, query, sizeof solved);
    assert_int_equal(LAPACKE_dgesv(LAPACK_ROW_MAJOR, DIM, 1, gram, DIM, pivots, solved, 1), 0);
    for (int64_t j = 0; j < seen; j++)
        for (int a = 0; a < DIM; a++)
            output[a] += values[j * DIM + a] * dot(keys + j * DIM, solved);
}

/* S = S Diag(kept), then what S says of the key moves to the value; at strength 1 it becomes the value. */
static void naive_delta_rule(const double *keys, const double *values, int64_t seen, const double *query,
                             const double kept[DIM], double strength, double *output)
{
    double memory[DIM][DIM] = { { 0 } };
    for (int64_t j = 0; j < seen; j++) {
        const double *key = keys + j * DIM;
        for (int a = 0; a < DIM; a++) {
            for (int b = 0; b < DIM; b++)
                memory[a][b] *= kept[b];
            const double miss = values[j * DIM + a] - dot(memory[a], key);
            for (int b = 0; b < DIM; b++)
                memory[a][b] += strength * miss * key[b] / dot(key, key);
        }
    }
    for (int a = 0; a < DIM; a++)
        output[a] = dot(memory[a], query);
}

static void naive_delta(const double *keys, const double *values, int64_t seen, const double *query,
                        const estimate_setup *setup, double *output)
{
    double kept[DIM];
    for (int a = 0; a < DIM; a++)
        kept[a] = 1;
    naive_delta_rule(keys, values, seen, query, kept, setup->strength, output);
}

static void naive_gated_delta(const double *keys, const double *values, int64_t seen, const double *query,
                              const estimate_setup *setup, double *output)
{
    double kept[DIM];
    for (int a = 0; a < DIM; a++)
        kept[a] = 1 - 0.01 * setup->forget;
    naive_delta_rule(keys, values, seen, query, kept, setup->strength, output);
}

/* 0.9 to 0.999: what is lost falls from 1e-1 to 1e-3. */
static void naive_kda(const double *keys, const double *values, int64_t seen, const double *query,
                      const estimate_setup *setup, double *output)
{
    double kept[DIM];
    for (int a = 0; a < DIM; a++)
        kept[a] = 1 - setup->forget * pow(10, -1 - 2 * (double)a / (DIM - 1));
    naive_delta_rule(keys, values, seen, query, kept, setup->strength, output);
}

static double score_of(const estimate_setup *setup, const double *query, const double *key)
{
    const double scale = 1 / (setup->bandwidth * sqrt(DIM));
    if (setup->score == LOAM_DOT) return scale * dot(query, key);
    double distance = 0;
    for (int a = 0; a < DIM; a++)
        distance += (query[a] - key[a]) * (query[a] - key[a]);
    return -scale / 2 * distance;
}

/* Weights relative to the largest. */
static void naive_weights(const double *keys, int64_t seen, const double *query, const estimate_setup *setup,
                          double weights[LENGTH])
{
    double top = -INFINITY;
    for (int64_t j = 0; j < seen; j++)
        top = fmax(top, score_of(setup, query, keys + j * DIM));
    for (int64_t j = 0; j < seen; j++)
        weights[j] = exp(score_of(setup, query, keys + j * DIM) - top);
}

static void naive_softmax(const double *keys, const double *values, int64_t seen, const double *query,
                          const estimate_setup *setup, double *output)
{
    double weights[LENGTH], total = 0;
    naive_weights(keys, seen, query, setup, weights);
    for (int64_t j = 0; j < seen; j++)
        total += weights[j];
    for (int64_t j = 0; j < seen; j++)
        for (int a = 0; a < DIM; a++)
            output[a] += weights[j] / total * values[j * DIM + a];
}

/* Weighted least squares of values on (1, key - query), with the ridge on the slope; the constant is what it
 * says. Written as rows: sqrt(w) [1, k - q] = sqrt(w) v, and sqrt(ridge) [0, I] = 0. */
static void naive_lla(const double *keys, const double *values, int64_t seen, const double *query,
                      const estimate_setup *setup, double *output)
{
    enum { COLUMNS = DIM + 1, ROWS = LENGTH + DIM };
    double weights[LENGTH], a[ROWS * COLUMNS] = { 0 }, b[ROWS * DIM] = { 0 };
    naive_weights(keys, seen, query, setup, weights);
    for (int64_t j = 0; j < seen; j++) {
        a[j * COLUMNS] = sqrt(weights[j]);
        for (int c = 0; c < DIM; c++) {
            a[j * COLUMNS + 1 + c] = sqrt(weights[j]) * (keys[j * DIM + c] - query[c]);
            b[j * DIM + c] = sqrt(weights[j]) * values[j * DIM + c];
        }
    }
    for (int c = 0; c < DIM; c++)
        a[(seen + c) * COLUMNS + 1 + c] = sqrt(setup->ridge);
    assert_int_equal(
        LAPACKE_dgels(LAPACK_ROW_MAJOR, 'N', (lapack_int)seen + DIM, COLUMNS, DIM, a, COLUMNS, b, DIM), 0);
    memcpy(output, b, DIM * sizeof *output);
}

static void compare(const estimate_setup *setup, estimator which, naive *expected, int hidden)
{
    io_error error;
    char what[64];
    estimate_batch batch = fixture_batch(task, 2, COUNT, hidden);
    double *got = fixture_doubles(COUNT * SIZE), *want = fixture_doubles(COUNT * SIZE);
    for (int64_t i = 0; i < COUNT * SIZE; i++)
        got[i] = NAN;
    for (int64_t s = 0; s < COUNT; s++)
        for (int64_t i = hidden; i < LENGTH; i++) {
            const double *keys = batch.keys + s * SIZE, *values = batch.values + s * SIZE;
            expected(keys, values, hidden ? i : i + 1, keys + i * DIM, setup, want + s * SIZE + i * DIM);
        }
    expect_ok(estimate_outputs(setup, which, &batch, got, &error), &error);
    snprintf(what, sizeof what, "%s, own pair %s", estimator_names[which], hidden ? "hidden" : "visible");
    expect_close(what, got, want, COUNT * SIZE, 1e-10);
    free(got);
    free(want);
    fixture_free(&batch);
}

static void test_definitions(void **state)
{
    (void)state;
    static const struct {
        estimator which;
        naive *expected;
    } cases[] = { { ESTIMATOR_LLA, naive_lla },     { ESTIMATOR_SOFTMAX, naive_softmax },
                  { ESTIMATOR_MESA, naive_mesa },   { ESTIMATOR_LINEAR, naive_linear },
                  { ESTIMATOR_DELTA, naive_delta }, { ESTIMATOR_GATED_DELTA, naive_gated_delta },
                  { ESTIMATOR_KDA, naive_kda } };
    for (int i = 0; i < 7; i++)
        for (int hidden = 0; hidden < 2; hidden++)
            for (int rbf = 0; rbf < 2; rbf++) {
                estimate_setup setup = fixture_setup();
                setup.score = rbf ? LOAM_RBF : LOAM_DOT;
                setup.bandwidth = 1.5;
                setup.strength = rbf ? 0.5 : 1;
                setup.forget = rbf ? 0.1 : 1;
                compare(&setup, cases[i].which, cases[i].expected, hidden);
            }
}

/* A tiny ridge and long sequences: what goes wrong where rounding adds up. */
static void test_mesa_stays_exact(void **state)
{
    (void)state;
    enum { LONG = 2048 };
    const experiment_task long_task = { DIM, LONG, LONG, 0, 3 };
    estimate_setup setup = fixture_setup();
    setup.mesa_ridge = 1e-4;
    estimate_batch batch = fixture_batch(long_task, 0, 1, 0);
    double *got = fixture_doubles(LONG * DIM);
    io_error error;
    expect_ok(estimate_outputs(&setup, ESTIMATOR_MESA, &batch, got, &error), &error);
    for (int64_t i = 0; i < LONG; i += 97) {
        double want[DIM] = { 0 };
        naive_mesa(batch.keys, batch.values, i + 1, batch.keys + i * DIM, &setup, want);
        expect_close("mesa", got + i * DIM, want, DIM, 1e-10);
    }
    free(got);
    fixture_free(&batch);
}

static void test_random_guess(void **state)
{
    (void)state;
    const experiment_task wide = { 16, 512, 1024, 0, 9 };
    const estimate_setup setup = fixture_setup();
    io_error error;
    estimate_batch batch = fixture_batch(wide, 0, 8, 0);
    const int64_t count = 8 * 1024 * 16;
    double *guess = fixture_doubles(count), mean = 0, square = 0, product = 0;
    expect_ok(estimate_outputs(&setup, ESTIMATOR_RANDOM, &batch, guess, &error), &error);
    for (int64_t i = 0; i < count; i++) {
        mean += guess[i] / (double)count;
        square += guess[i] * guess[i] / (double)count;
        product += guess[i] * batch.keys[i] / (double)count;
    }
    const double scale = 5 / sqrt((double)count);
    assert_true(fabs(mean) < scale && fabs(square - 1) < scale * sqrt(2) && fabs(product) < scale);
    free(guess);
    fixture_free(&batch);
}

static void test_errors(void **state)
{
    (void)state;
    double values[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, outputs[8] = { 1, 4, 3, 3, 5, 6, 0, 8 }, errors[4];
    const estimate_batch batch = { { 2, 2, 2, 0, 1 }, 0, 2, 0, values, values };
    estimate_errors(&batch, outputs, errors);
    const double want[4] = { 4, 1, 0, 49 };
    assert_memory_equal(errors, want, sizeof want);
}

/* What the library refuses is told, and with the status of a wrong option. */
static void test_refusal(void **state)
{
    (void)state;
    estimate_setup setup = fixture_setup();
    setup.ridge = NAN;
    io_error error;
    char kernels[256];
    estimate_batch batch = fixture_batch(task, 0, 1, 0);
    double *outputs = fixture_doubles(SIZE);
    assert_int_equal(estimate_kernels(&setup, &batch, kernels, sizeof kernels, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "ridge"));
    assert_int_equal(estimate_outputs(&setup, ESTIMATOR_LLA, &batch, outputs, &error), EXIT_USAGE);
    free(outputs);
    fixture_free(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definitions),  cmocka_unit_test(test_mesa_stays_exact),
        cmocka_unit_test(test_random_guess), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
