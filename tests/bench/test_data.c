/* SPDX-License-Identifier: MIT
 * The kinds of queries and keys that loam bench measures. */
#include "cli/bench/data.h"
#include "random/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 16, TOKENS = 2000 };

static const random_stream noise = { 7, 1 }, shared = { 7, 2 };

/* x[TOKENS][DIM] */
static void make(bench_data data, int is_key, double *x)
{
    double common[DIM];
    random_normals(shared, 0, DIM, common);
    random_normals(noise, 0, (int64_t)TOKENS * DIM, x);
    for (int t = 0; t < TOKENS; t++)
        bench_data_form(data, is_key, x + t * DIM, common, DIM, t);
}

static double moment(const double *x, int c, double about)
{
    double sum = 0;
    for (int t = 0; t < TOKENS; t++)
        sum += (x[t * DIM + c] - about) * (x[t * DIM + c] - about);
    return sum / TOKENS;
}

static void rows_of_unit_data_have_norm_1(void **state)
{
    (void)state;
    static double x[TOKENS * DIM];
    make(BENCH_UNIT, 0, x);
    for (int t = 0; t < TOKENS; t++) {
        double square = 0;
        for (int c = 0; c < DIM; c++)
            square += x[t * DIM + c] * x[t * DIM + c];
        assert_true(fabs(square - 1) < 1e-12);
    }
}

/* 2000 draws know a standard deviation to about 2 %. */
static void keys_alone_are_stretched_and_shifted(void **state)
{
    (void)state;
    static double x[TOKENS * DIM];
    make(BENCH_ANISOTROPIC, 1, x);
    assert_true(fabs(sqrt(moment(x, 0, 0)) / 2 - 1) < 0.1);
    assert_true(fabs(sqrt(moment(x, DIM - 1, 0)) / 0.05 - 1) < 0.1);
    make(BENCH_SHIFTED, 1, x);
    assert_true(fabs(moment(x, 3, 4) - 1) < 0.2);
    make(BENCH_SHIFTED, 0, x);
    assert_true(fabs(moment(x, 3, 0) - 1) < 0.2);
    make(BENCH_ANISOTROPIC, 0, x);
    assert_true(fabs(moment(x, 0, 0) - 1) < 0.2);
}

/* Turned back by its position each row is 1.5 common + 0.7 noise. */
static void rope_turns_by_position(void **state)
{
    (void)state;
    static double x[TOKENS * DIM], plain[TOKENS * DIM];
    double common[DIM];
    random_normals(shared, 0, DIM, common);
    make(BENCH_NORMAL, 1, plain);
    make(BENCH_ROPE, 1, x);
    for (int t = 0; t < TOKENS; t += 97) {
        for (int c = 0; c < DIM; c += 2) {
            const double angle = -t * pow(10000, -(double)c / DIM), a = x[t * DIM + c],
                         b = x[t * DIM + c + 1];
            const double back[2] = { a * cos(angle) - b * sin(angle), a * sin(angle) + b * cos(angle) };
            for (int e = 0; e < 2; e++)
                assert_true(fabs(back[e] - 1.5 * common[c + e] - 0.7 * plain[t * DIM + c + e]) < 1e-9);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_unit_data_have_norm_1),
        cmocka_unit_test(keys_alone_are_stretched_and_shifted),
        cmocka_unit_test(rope_turns_by_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
