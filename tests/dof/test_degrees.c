/* SPDX-License-Identifier: MIT
 * Degrees of freedom and leverage scores against what the definition gives (make_degrees.py), and what must
 * hold of any sample. */
#include "dof/degrees.h"
#include "dof/rank.h"

#include "io/npy.h"
#include "random/random.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static array read_data(const char *format, const char *a, const char *b)
{
    char path[4096] = DOF_TEST_DATA "/";
    const size_t used = strlen(path);
    array out;
    io_error error;
    snprintf(path + used, sizeof path - used, format, a, b);
    if (npy_read(&out, path, &error)) fail_msg("%s", error.text);
    return out;
}

static dof_room open_room(int64_t most, int64_t dim, bool attention)
{
    dof_room room;
    io_error error;
    if (dof_room_open(&room, most, dim, attention, &error)) fail_msg("%s", error.text);
    return room;
}

/* Relative to J: 16 eps J are added to Lam, and make of a sample of little leverage at most as much more. */
static void expect_near(const char *what, double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance)) fail_msg("%s: %.15g, expected %.15g", what, got, expected);
}

static int mode_of(const char *name)
{
    int mode = 0;
    while (strcmp(dof_mode_name(mode), name) != 0)
        mode++;
    return mode;
}

static void check_sample(const char *name, const char *word, double lambda, dof_value expected)
{
    array x = read_data("%s%s.npy", name, ""), scores = read_data("%s-%s.npy", name, word);
    const int64_t count = x.shape[0], dim = x.shape[1];
    const dof_mode mode = (dof_mode)mode_of(word);
    double *got = calloc((size_t)count, sizeof *got), n, half;
    dof_room room = open_room(count + 3, dim, false);
    assert_non_null(got);
    dof_sample(&room, x.data, count, 1);
    assert_true(dof_kernel(&room, mode, lambda, count, &n, got));
    assert_true(dof_kernel(&room, mode, lambda, count / 2, &half, NULL));
    printf("%-9s %-5s %.12g %.1e %.1e\n", name, word, n, n - expected.whole, half - expected.half);
    expect_near(name, n, expected.whole, 1e-6);
    expect_near("its half", half, expected.half, 1e-6);
    for (int64_t i = 0; i < count; i++)
        expect_near("leverage", got[i], array_get(&scores, i), 1e-7);
    /* `factor` is that of the rows. */
    for (int64_t i = 0; i < count * dim; i++)
        ((float *)x.data)[i] *= 4;
    dof_sample(&room, x.data, count, 0.25);
    assert_true(dof_kernel(&room, mode, lambda, count, &half, NULL));
    expect_near("factor", half, n, 0);
    dof_room_close(&room);
    free(got);
    array_free(&x);
    array_free(&scores);
}

static void check_text(const char *name, double lambda, dof_value expected)
{
    array q = read_data("%s%s.npy", name, "-q"), k = read_data("%s%s.npy", name, "-k");
    const bool causal = strcmp(name, "causal") == 0;
    const dof_text text = { .q = q.data,
                            .k = k.data,
                            .q_row = q.shape[1],
                            .k_row = q.shape[1],
                            .count = q.shape[0],
                            .scale = 1 / sqrt((double)q.shape[1]),
                            .causal = causal };
    dof_room room = open_room(q.shape[0], q.shape[1], true);
    dof_value n;
    assert_true(dof_attention(&room, &text, lambda, &n));
    printf("%-9s attn  %.12g %.1e\n", name, n.whole, n.whole - expected.whole);
    expect_near(name, n.whole, expected.whole, 1e-9);
    if (causal)
        expect_near("its half", n.half, expected.half, 1e-9);
    else
        assert_true(isnan(n.half));
    dof_room_close(&room);
    array_free(&q);
    array_free(&k);
}

static void test_expected(void **state)
{
    char name[32], word[32];
    double lambda;
    dof_value expected;
    int count = 0;
    FILE *file = fopen(DOF_TEST_DATA "/expected.csv", "r");
    (void)state;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]"), 0);
    while (fscanf(file, " %31[^,],%31[^,],%lf,%lf,%lf", name, word, &lambda, &expected.whole,
                  &expected.half) == 5) {
        if (strcmp(word, "attn") == 0)
            check_text(name, lambda, expected);
        else
            check_sample(name, word, lambda, expected);
        count++;
    }
    fclose(file);
    assert_int_equal(count, 14);
}

enum { COUNT = 96, DIM = 16 };

static double degrees(dof_room *room, const float *x, dof_mode mode, double lambda)
{
    double n;
    dof_sample(room, x, COUNT, 1);
    assert_true(dof_kernel(room, mode, lambda, COUNT, &n, NULL));
    return n;
}

/* Between 0 and J, less with a larger lambda, whatever the numbers are; of rows that are equal, where
 * 1 / (16 J) of each leverage is rounding, to a hundredth. */
static void test_any_sample(void **state)
{
    static const double sizes[] = { 1e-30, 1e-3, 1, 30, 1e4, 1e18 };
    float x[COUNT * DIM];
    double normals[COUNT * DIM];
    dof_room room = open_room(COUNT, DIM, false);
    (void)state;
    random_normals((random_stream){ 5, 0 }, 0, COUNT * DIM, normals);
    for (int kind = 0; kind < 3; kind++)
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            /* As they come; all but the same, far from 0; a few rows, each many times. */
            for (int i = 0; i < COUNT * DIM; i++)
                x[i] = (float)(sizes[n] * (kind == 0   ? normals[i]
                                           : kind == 1 ? 1 + 1e-7 * normals[i]
                                                       : normals[i % (3 * DIM)]));
            for (int mode = 0; mode < DOF_MODES; mode++) {
                if (mode == DOF_ATTN) continue;
                double last = COUNT;
                for (double lambda = 1e-9; lambda <= 1; lambda *= 1e3) {
                    const double got = degrees(&room, x, (dof_mode)mode, lambda);
                    assert_true(got >= 0 && got <= last);
                    last = got + (kind == 0 ? 1e-9 : 0.01);
                }
                if (kind == 2) assert_true(degrees(&room, x, (dof_mode)mode, 1e-9) < 3.01);
            }
        }
    x[7] = NAN;
    dof_sample(&room, x, COUNT, 1);
    double got;
    assert_false(dof_kernel(&room, DOF_GAUSS, 0.1, COUNT, &got, NULL));
    dof_room_close(&room);
}

/* In `gauss` rows far apart have 1 / (1 + J lambda) each, equal rows 1 / (1 + lambda) together; turned and
 * moved they have what they had. */
static void test_gauss(void **state)
{
    float x[COUNT * DIM] = { 0 };
    dof_room room = open_room(COUNT, DIM, false);
    (void)state;
    expect_near("equal", degrees(&room, x, DOF_GAUSS, 0.25), 0.8, 1e-12);
    for (int i = 0; i < COUNT; i++)
        x[i * DIM + i % DIM] = (float)(100 * (1 + i));
    expect_near("apart", degrees(&room, x, DOF_GAUSS, 0.25), COUNT / (1 + COUNT * 0.25), 1e-10);
    double normals[COUNT * DIM];
    random_normals((random_stream){ 6, 0 }, 0, COUNT * DIM, normals);
    for (int i = 0; i < COUNT * DIM; i++)
        x[i] = (float)round(64 * normals[i]) / 128;
    const double got = degrees(&room, x, DOF_GAUSS, 0.01);
    for (int i = 0; i < COUNT * DIM; i++)
        x[i] = -(x[i] + 16);
    expect_near("moved", degrees(&room, x, DOF_GAUSS, 0.01), got, 1e-9);
    /* Two halves that are too far apart to know of each other add up. */
    double parts[2];
    for (int half = 0; half < 2; half++) {
        dof_sample(&room, x + half * COUNT / 2 * DIM, COUNT / 2, 1);
        assert_true(dof_kernel(&room, DOF_GAUSS, 0.02, COUNT / 2, &parts[half], NULL));
    }
    for (int i = 0; i < COUNT; i++)
        x[i * DIM] += i < COUNT / 2 ? -16384 : 16384;
    expect_near("far apart", degrees(&room, x, DOF_GAUSS, 0.01), parts[0] + parts[1], 1e-9);
    dof_room_close(&room);
}

/* Attention to oneself alone has 1 / (1 + T lambda) of T, to the first token alone 1 / (1 + lambda). */
static void test_attention(void **state)
{
    enum { TOKENS = 32 };
    float q[TOKENS * TOKENS] = { 0 }, k[TOKENS * TOKENS] = { 0 };
    dof_text text = { q, k, TOKENS, TOKENS, TOKENS, 1, true };
    dof_room room = open_room(TOKENS, TOKENS, true);
    dof_value n;
    (void)state;
    for (int i = 0; i < TOKENS; i++)
        q[i * TOKENS + i] = k[i * TOKENS + i] = 60;
    assert_true(dof_attention(&room, &text, 0.125, &n));
    expect_near("itself", n.whole, TOKENS / (1 + TOKENS * 0.125), 1e-9);
    expect_near("half", n.half, TOKENS / 2 / (1 + TOKENS / 2 * 0.125), 1e-9);
    for (int i = 0; i < TOKENS; i++)
        q[i * TOKENS] = 60;
    assert_true(dof_attention(&room, &text, 0.125, &n));
    assert_true(n.whole < TOKENS / (1 + TOKENS * 0.125));
    for (int i = 0; i < TOKENS * TOKENS; i++)
        q[i] = k[i] = 0;
    for (int i = 0; i < TOKENS; i++)
        q[i * TOKENS] = 900, k[i * TOKENS] = i == 0 ? 900 : 0;
    assert_true(dof_attention(&room, &text, 0.125, &n));
    expect_near("the first", n.whole, 1 / 1.125, 1e-9);
    dof_room_close(&room);
}

static void test_ranks(void **state)
{
    static const double x[] = { 1, 2, 3, 4, 5 }, y[] = { 10, 20, 20, 1e9, 30 }, flat[] = { 1, 1, 1, 1, 1 };
    double rho, sorted[5];
    io_error error;
    (void)state;
    assert_int_equal(dof_rank_correlation(x, y, 5, &rho, &error), 0);
    expect_near("rho", rho, 8.5 / sqrt(10 * 9.5), 1e-12);
    assert_int_equal(dof_rank_correlation(x, flat, 5, &rho, &error), 0);
    assert_true(isnan(rho));
    expect_near("quantile", dof_quantile(y, 5, 0.25, sorted), 20, 0);
    expect_near("quantile", dof_quantile(y, 5, 0.9, sorted), 30 + 0.6 * (1e9 - 30), 1e-3);
    expect_near("the largest", dof_quantile(y, 5, 1, sorted), 1e9, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected),  cmocka_unit_test(test_any_sample), cmocka_unit_test(test_gauss),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
