/* SPDX-License-Identifier: MIT
 * Shift and balance: softmax does not change, second moments become equal, what is left is the smallest. */
#include "distill/balance.h"
#include "random/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { D = 6, QUERIES = 700, KEYS = 500, ROW = 2 * D };
static const double factor = 0.5;

/* Rows of a matrix of two heads; the second is the one that is looked at. */
typedef struct scene {
    float q[QUERIES * ROW], k[KEYS * ROW];
    balance_sums x, y;
    double r[D], a[D * D], b[D * D];
} scene;

/* Channels that are correlated and of different sizes, in each its own way, around a point far from 0. */
static void fill(float *rows, int64_t count, uint64_t stream)
{
    double n[2 * D], mix[D * D];
    random_normals((random_stream){ 5, stream }, 0, D * D, mix);
    for (int64_t i = 0; i < count; i++) {
        random_normals((random_stream){ 5, stream + 1 }, (uint64_t)(i * 2 * D), 2 * D, n);
        for (int64_t c = 0; c < D; c++) {
            double value = stream % 3 == 0 ? 2 : -1;
            for (int64_t e = 0; e < D; e++)
                value += mix[c * D + e] * n[e] * (double)(1 + c);
            rows[i * ROW + c] = (float)n[D + c], rows[i * ROW + D + c] = (float)value;
        }
    }
}

static scene *make(bool shift)
{
    scene *s = calloc(1, sizeof *s);
    io_error error;
    assert_non_null(s);
    fill(s->q, QUERIES, 10);
    fill(s->k, KEYS, 30);
    assert_int_equal(balance_open(&s->x, D, &error), 0);
    assert_int_equal(balance_open(&s->y, D, &error), 0);
    balance_add(&s->x, s->q + D, ROW, QUERIES / 2, factor);
    balance_add(&s->x, s->q + D + QUERIES / 2 * ROW, ROW, QUERIES - QUERIES / 2, factor);
    balance_add(&s->y, s->k + D, ROW, KEYS, factor);
    if (shift) balance_shift(&s->x, &s->y, factor, s->r);
    if (balance_matrices(&s->x, &s->y, factor, shift ? s->r : NULL, s->a, s->b, &error))
        fail_msg("%s", error.text);
    return s;
}

static void drop(scene *s)
{
    balance_close(&s->x);
    balance_close(&s->y);
    free(s);
}

static void query(const scene *s, const double *a, int64_t t, double *x)
{
    for (int64_t i = 0; i < D; i++) {
        x[i] = 0;
        for (int64_t c = 0; c < D; c++)
            x[i] += a[i * D + c] * factor * (double)s->q[t * ROW + D + c];
    }
}

static void key(const scene *s, const double *b, int64_t t, double *y)
{
    for (int64_t i = 0; i < D; i++) {
        y[i] = 0;
        for (int64_t c = 0; c < D; c++)
            y[i] += b[i * D + c] * factor * ((double)s->k[t * ROW + D + c] - s->r[c]);
    }
}

static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int64_t c = 0; c < D; c++)
        sum += x[c] * y[c];
    return sum;
}

/* Scores change by a number of the row. */
static void test_scores(void **state)
{
    (void)state;
    for (int shift = 0; shift < 2; shift++) {
        scene *s = make(shift);
        for (int64_t t = 0; t < QUERIES; t += 7) {
            double x[D], y[D], of_row = 0;
            query(s, s->a, t, x);
            for (int64_t j = 0; j < KEYS; j += 11) {
                double before = 0;
                key(s, s->b, j, y);
                for (int64_t c = 0; c < D; c++)
                    before += factor * factor * (double)s->q[t * ROW + D + c] * (double)s->k[j * ROW + D + c];
                if (j == 0) of_row = dot(x, y) - before;
                assert_true(fabs(dot(x, y) - before - of_row) < 1e-9);
                assert_true(shift || fabs(of_row) < 1e-9);
            }
        }
        drop(s);
    }
}

/* S_x and S_y after shift and matrices, from the rows themselves. */
static void measure(const scene *s, const double *a, const double *b, double *sx, double *sy)
{
    double row[D];
    memset(sx, 0, D * D * sizeof *sx);
    memset(sy, 0, D * D * sizeof *sy);
    for (int64_t t = 0; t < QUERIES; t++) {
        query(s, a, t, row);
        for (int e = 0; e < D * D; e++)
            sx[e] += row[e / D] * row[e % D] / QUERIES;
    }
    for (int64_t t = 0; t < KEYS; t++) {
        key(s, b, t, row);
        for (int e = 0; e < D * D; e++)
            sy[e] += row[e / D] * row[e % D] / KEYS;
    }
}

static double trace(const double *s)
{
    double sum = 0;
    for (int c = 0; c < D; c++)
        sum += s[c * D + c];
    return sum;
}

static void test_moments(void **state)
{
    double sx[D * D], sy[D * D], unit[D * D] = { 0 };
    (void)state;
    for (int c = 0; c < D; c++)
        unit[c * D + c] = 1;
    for (int shift = 0; shift < 2; shift++) {
        scene *s = make(shift);
        measure(s, unit, unit, sx, sy);
        const double before = trace(sx) + trace(sy);
        measure(s, s->a, s->b, sx, sy);
        printf("E|x|^2 + E|y|^2: %.3f, balanced %.3f\n", before, trace(sx) + trace(sy));
        for (int e = 0; e < D * D; e++) {
            assert_true(fabs(sx[e] - sy[e]) < 1e-4 * trace(sx));
            assert_true(fabs(s->a[e] - s->a[e % D * D + e / D]) < 1e-12);
        }
        assert_true(trace(sx) + trace(sy) < 0.9 * before);
        drop(s);
    }
}

/* mean x + mean y is 0 after the shift. */
static void test_shift(void **state)
{
    scene *s = make(true);
    double sum[D] = { 0 }, unit[D * D] = { 0 }, row[D];
    (void)state;
    for (int c = 0; c < D; c++)
        unit[c * D + c] = 1;
    for (int64_t t = 0; t < QUERIES; t++) {
        query(s, unit, t, row);
        for (int c = 0; c < D; c++)
            sum[c] += row[c] / QUERIES;
    }
    for (int64_t t = 0; t < KEYS; t++) {
        key(s, unit, t, row);
        for (int c = 0; c < D; c++)
            sum[c] += row[c] / KEYS;
    }
    for (int c = 0; c < D; c++)
        assert_true(fabs(sum[c]) < 1e-12);
    drop(s);
}

/* Queries along one line, keys that are all one: the matrices stay inverses of each other. Infinite queries
 * are refused. */
static void test_degenerate(void **state)
{
    scene *s = make(false);
    io_error error;
    (void)state;
    for (int64_t t = 0; t < QUERIES; t++)
        for (int c = 0; c < D; c++)
            s->q[t * ROW + D + c] = (float)(t % 5) * (float)(c + 1);
    for (int64_t t = 0; t < KEYS; t++)
        for (int c = 0; c < D; c++)
            s->k[t * ROW + D + c] = 3;
    for (int bad = 0; bad < 2; bad++) {
        balance_close(&s->x);
        balance_close(&s->y);
        assert_int_equal(balance_open(&s->x, D, &error), 0);
        assert_int_equal(balance_open(&s->y, D, &error), 0);
        if (bad) s->q[3 * ROW + D] = INFINITY;
        balance_add(&s->x, s->q + D, ROW, QUERIES, factor);
        balance_add(&s->y, s->k + D, ROW, KEYS, factor);
        const int status = balance_matrices(&s->x, &s->y, factor, NULL, s->a, s->b, &error);
        assert_int_equal(status, bad ? EXIT_INPUT : 0);
        if (bad) assert_non_null(strstr(error.text, "no numbers"));
        for (int e = 0; !bad && e < D * D; e++) {
            double sum = 0;
            for (int c = 0; c < D; c++)
                sum += s->a[e / D * D + c] * s->b[c * D + e % D];
            assert_true(fabs(sum - (e / D == e % D)) < 1e-8);
        }
    }
    drop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_shift),
        cmocka_unit_test(test_degenerate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
