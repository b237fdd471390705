/* SPDX-License-Identifier: MIT
 * cli/bench_count.c against counting one by one. */
#include "cli/bench_count.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* The masks as loam.h defines them. */
static int sees(const loam_problem *p, int64_t i, int64_t j)
{
    const int64_t at = i + p->len_kv - p->len_q;
    return (!p->causal || j <= at) && (p->window == 0 || llabs(at - j) < p->window);
}

static double brute_pairs(const loam_problem *p)
{
    double pairs = 0;
    for (int64_t i = 0; i < p->len_q; i++)
        for (int64_t j = 0; j < p->len_kv; j++)
            pairs += sees(p, i, j);
    return pairs * (double)(p->batch * p->heads_q);
}

static double brute_keys(const loam_problem *p)
{
    double keys = 0;
    for (int64_t j = 0; j < p->len_kv; j++) {
        int seen = 0;
        for (int64_t i = 0; i < p->len_q; i++)
            seen |= sees(p, i, j);
        keys += seen;
    }
    return keys;
}

static loam_problem problem_of(loam_mechanism mechanism, loam_pass pass, int64_t len_q, int64_t len_kv)
{
    loam_problem p = loam_problem_default(mechanism, pass);
    p.batch = 2, p.heads_q = 6, p.heads_kv = 3;
    p.len_q = len_q, p.len_kv = len_kv, p.dim_qk = 10, p.dim_v = 10;
    return p;
}

/* Calls check for every mask of a grid of small lengths. */
static void for_masks(void (*check)(const loam_problem *))
{
    static const int64_t lengths[] = { 1, 2, 5, 8, 13 }, windows[] = { 0, 1, 2, 4, 9, 40 };
    for (int q = 0; q < 5; q++)
        for (int k = 0; k < 5; k++)
            for (int w = 0; w < 6; w++)
                for (int causal = 0; causal < 2; causal++) {
                    loam_problem p = problem_of(LOAM_SOFTMAX, LOAM_FORWARD, lengths[q], lengths[k]);
                    p.window = windows[w], p.causal = causal;
                    check(&p);
                }
}

static void check_pairs(const loam_problem *p)
{
    if (bench_pairs(p) != brute_pairs(p))
        fail_msg("q%d k%d window %d causal %d: %g pairs, expected %g", (int)p->len_q, (int)p->len_kv,
                 (int)p->window, p->causal, bench_pairs(p), brute_pairs(p));
}

static void check_bytes(const loam_problem *p)
{
    const double rows = 2 * 6 * (double)p->len_q, keys = 2 * 3 * brute_keys(p);
    const double expected = 4 * (rows * (10 + 10) + keys * (10 + 10));
    if (bench_bytes(p) != expected)
        fail_msg("q%d k%d window %d causal %d: %g bytes, expected %g", (int)p->len_q, (int)p->len_kv,
                 (int)p->window, p->causal, bench_bytes(p), expected);
}

static void pairs_are_counted(void **state)
{
    (void)state;
    for_masks(check_pairs);
}

static void bytes_are_counted(void **state)
{
    (void)state;
    for_masks(check_bytes);
}

static void bytes_of_backward_and_types(void **state)
{
    (void)state;
    loam_problem p = problem_of(LOAM_PARALLAX, LOAM_BACKWARD, 8, 8);
    p.dtype = LOAM_BF16, p.dim_v = 4;
    const double rows = 2 * 6 * 8, keys = 2 * 3 * 8;
    /* q probe grad_o grad_q grad_probe, k v grad_k grad_v; lse, vbar, lean and tbar */
    assert_true(bench_bytes(&p) == 2 * (rows * (4 * 10 + 4) + keys * 2 * (10 + 4)) + 4 * rows * (3 + 2 * 4));
    p = problem_of(LOAM_LLA, LOAM_BACKWARD, 8, 8);
    p.dtype = LOAM_F64;
    assert_true(bench_bytes(&p) == 8 * (rows * 3 * 10 + keys * 4 * 10 + rows * (1 + 3 * 10)));
    p = problem_of(LOAM_LLA, LOAM_DECODE, 1, 8);
    p.dtype = LOAM_F16;
    assert_true(bench_bytes(&p) == 2 * (12 * 2 * 10 + keys * 2 * 10));
}

static void given_probes_cost_so_many_d(void **state)
{
    (void)state;
    static const struct {
        loam_mechanism mechanism;
        loam_pass pass;
        double d;
    } rows[] = { { LOAM_SOFTMAX, LOAM_FORWARD, 4 },    { LOAM_SOFTMAX, LOAM_BACKWARD, 10 },
                 { LOAM_SOFTMAX, LOAM_DECODE, 4 },     { LOAM_PARALLAX, LOAM_FORWARD, 8 },
                 { LOAM_PARALLAX, LOAM_BACKWARD, 14 }, { LOAM_PARALLAX, LOAM_DECODE, 8 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        loam_problem p = problem_of(rows[i].mechanism, rows[i].pass, 13, 13);
        p.window = 5;
        assert_true(bench_flop(&p, NULL) == rows[i].d * 10 * brute_pairs(&p));
    }
    loam_problem p = problem_of(LOAM_SOFTMAX, LOAM_FORWARD, 8, 8);
    p.dim_v = 3;
    assert_true(bench_flop(&p, NULL) == 2 * (10 + 3) * brute_pairs(&p));
}

/* The solver is counted row by row, with the keys that the row sees. */
static void lla_counts_what_each_row_did(void **state)
{
    (void)state;
    enum { LENGTH = 7, ROWS = 2 * 6 * LENGTH };
    loam_problem p = problem_of(LOAM_LLA, LOAM_FORWARD, LENGTH, LENGTH);
    loam_row_info info[ROWS] = { 0 };
    double expected = 0, iterations = 0;
    for (int row = 0; row < ROWS; row++) {
        const double n = 1 + row % LENGTH, d = 10; /* causal */
        info[row].solver = (int32_t[]){ LOAM_SOLVER_NONE, LOAM_SOLVER_CG, LOAM_SOLVER_DUAL,
                                        LOAM_SOLVER_GRAM }[row % 4];
        info[row].iterations = row % 5;
        iterations += row % 5;
        expected += 10 * d * n + 4 * d * n * (row % 5);
        if (info[row].solver == LOAM_SOLVER_GRAM) expected += d * (d + 1) * n + d * d * d / 3;
        if (info[row].solver == LOAM_SOLVER_DUAL) expected += d * n * (n + 1) + n * n * n / 3;
    }
    assert_true(fabs(bench_flop(&p, info) - expected) < 1e-9 * expected);
    assert_true(fabs(bench_iterations(&p, info) - iterations / ROWS) < 1e-12);
    p.pass = LOAM_BACKWARD;
    assert_true(fabs(bench_flop(&p, info) - expected - 10 * 10 * brute_pairs(&p)) < 1e-9 * expected);
    p.pass = LOAM_DECODE, p.len_q = 1;
    const double decode = 12 * (7 * (10 * 11 + 10 * 10) + 1000 / 3.0 + 2 * 100);
    assert_true(fabs(bench_flop(&p, NULL) - decode) < 1e-9 * decode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(bytes_are_counted),
        cmocka_unit_test(bytes_of_backward_and_types),
        cmocka_unit_test(given_probes_cost_so_many_d),
        cmocka_unit_test(lla_counts_what_each_row_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
