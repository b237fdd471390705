/* SPDX-License-Identifier: MIT
 * cli/bench/count.c against counting one by one. */
#include "cli/bench/count.h"

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
    assert_true(bench_exact(&p, info) == 0.5); /* dual and Gram: two of four */
    info[1].solver = LOAM_SOLVER_DUAL;
    assert_true(bench_exact(&p, info) == (double)(ROWS / 2 + 1) / ROWS);
    info[1].solver = LOAM_SOLVER_CG;
    p.pass = LOAM_BACKWARD;
    assert_true(fabs(bench_flop(&p, info) - expected - 10 * 10 * brute_pairs(&p)) < 1e-9 * expected);
    p.pass = LOAM_DECODE, p.len_q = 1;
    const double decode = 12 * (7 * (10 * 11 + 10 * 10) + 1000 / 3.0 + 2 * 100);
    assert_true(fabs(bench_flop(&p, NULL) - decode) < 1e-9 * decode);
}

static loam_problem recurrence(loam_mechanism mechanism, loam_pass pass)
{
    loam_problem p = loam_problem_default(mechanism, pass);
    p.batch = 2, p.heads_q = p.heads_kv = 3, p.heads_v = 6;
    p.len_q = p.len_kv = pass == LOAM_DECODE ? 1 : 7, p.dim_qk = 64, p.dim_v = 32;
    return p;
}

/* d = C = 64, dv = 32: everything is a multiple of 64 * 32. */
static void recurrences_count_by_token(void **state)
{
    (void)state;
    static const struct {
        loam_mechanism mechanism;
        double forward, decode, decays;
        int betas;
    } rows[] = { { LOAM_LINEAR, 10, 4, 0, 0 },
                 { LOAM_RETENTION, 10, 5, 0, 0 },
                 { LOAM_SSD, 10, 5, 1, 1 },
                 { LOAM_GLA, 10, 5, 64, 0 } };
    static const struct {
        loam_mechanism mechanism;
        double decode, decays;
    } deltas[] = { { LOAM_DELTA, 6, 0 }, { LOAM_GATED_DELTA, 7, 1 }, { LOAM_KDA, 7, 64 } };
    const double unit = 64 * 32, heads = 2 * 6, third = 64 * 64 / 3.0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        loam_problem p = recurrence(rows[i].mechanism, LOAM_FORWARD);
        const double tokens = heads * 7, gates = tokens * (rows[i].decays + rows[i].betas);
        assert_true(bench_flop(&p, NULL) == tokens * unit * rows[i].forward && bench_pairs(&p) == 0);
        assert_true(bench_bytes(&p) ==
                    4 * (tokens * (64 + 2 * 32) + gates)); /* half as many heads of q and k */
        p.pass = LOAM_BACKWARD;
        assert_true(bench_flop(&p, NULL) == tokens * unit * (12 + 4 + 10));
        assert_true(bench_bytes(&p) == 4 * (tokens * (2 * 64 + 3 * 32) + 2 * gates));
        p = recurrence(rows[i].mechanism, LOAM_DECODE);
        assert_true(bench_flop(&p, NULL) == heads * unit * rows[i].decode);
        assert_true(bench_bytes(&p) ==
                    4 * heads * (64 + 2 * 32 + rows[i].decays + rows[i].betas + 2 * 64 * 32));
    }
    for (size_t i = 0; i < sizeof deltas / sizeof *deltas; i++) {
        loam_problem p = recurrence(deltas[i].mechanism, LOAM_FORWARD);
        assert_true(fabs(bench_flop(&p, NULL) - heads * 7 * (unit * (12 + 6) + third)) < 1e-3);
        p.pass = LOAM_BACKWARD;
        assert_true(fabs(bench_flop(&p, NULL) - heads * 7 * (unit * (24 + 10 + 16) + third)) < 1e-3);
        p = recurrence(deltas[i].mechanism, LOAM_DECODE);
        assert_true(bench_flop(&p, NULL) == heads * unit * deltas[i].decode);
    }
    loam_problem p = recurrence(LOAM_LINEAR, LOAM_DECODE);
    p.normalise = 1;
    assert_true(bench_flop(&p, NULL) == heads * 4 * 64 * 33);
    assert_true(bench_bytes(&p) == 4 * heads * (64 + 2 * 32 + 2 * 33 * 64));
}

static void mesa_counts_what_each_row_did(void **state)
{
    (void)state;
    loam_problem p = recurrence(LOAM_MESA, LOAM_FORWARD);
    loam_row_info info[2 * 6 * 7] = { 0 };
    double solves = 0;
    for (int row = 0; row < 2 * 6 * 7; row++) {
        info[row].iterations = row % 3;
        solves += row % 3 ? row % 3 * 6.0 * 4096 : 20.0 * 4096;
    }
    const double tokens = 2 * 6 * 7, unit = 64 * 32;
    assert_true(bench_flop(&p, info) == tokens * unit * (10 + 16) + solves);
    assert_true(bench_iterations(&p, info) == 1);
    p.pass = LOAM_BACKWARD;
    assert_true(bench_flop(&p, info) == tokens * unit * (20 + 4 + 10 + 12) + 2 * solves);
    p = recurrence(LOAM_MESA, LOAM_DECODE);
    loam_row_info one[12] = { 0 };
    assert_true(fabs(bench_flop(&p, one) - 12 * (unit * (4 + 4 + 4) + 4096 * 64 / 3.0)) < 1e-6);
    assert_true(bench_bytes(&p) == 4 * 12 * (64 + 2 * 32 + 2 + 2 * 96 * 64));
}

/* The scores of FoX cost no product, those of PaTH two, or
 * six, transitions of 64 tokens for each tile of pairs. */
static void scores_count(void **state)
{
    (void)state;
    loam_problem p = problem_of(LOAM_SOFTMAX, LOAM_FORWARD, 8, 8);
    const double flop = bench_flop(&p, NULL), bytes = bench_bytes(&p);
    p.decay = 1;
    assert_true(bench_flop(&p, NULL) == flop && bench_bytes(&p) == bytes + 4 * 2 * 6 * 8);
    p.decay = 0, p.path = 1;
    assert_true(fabs(bench_flop(&p, NULL) - flop - 2 * 100 / 64.0 * brute_pairs(&p)) < 1e-6);
    assert_true(bench_bytes(&p) == bytes + 4 * 2 * 3 * 8 * 11);
    p.pass = LOAM_BACKWARD;
    assert_true(fabs(bench_flop(&p, NULL) - 2.5 * flop - 6 * 100 / 64.0 * brute_pairs(&p)) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(bytes_are_counted),
        cmocka_unit_test(bytes_of_backward_and_types),
        cmocka_unit_test(given_probes_cost_so_many_d),
        cmocka_unit_test(lla_counts_what_each_row_did),
        cmocka_unit_test(recurrences_count_by_token),
        cmocka_unit_test(mesa_counts_what_each_row_did),
        cmocka_unit_test(scores_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
