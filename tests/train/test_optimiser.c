/* SPDX-License-Identifier: MIT
 * Optimisers against an independent implementation (make_golden.py), and what follows from what they are. */
#include "tests/support/memory.h"
#include "tests/train/fixture.h"
#include "train/optimiser.h"

#include <lapacke.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/train/golden_optimiser.inc"

enum { SIDE = 16 };
#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

/* No clipping: the longest gradient is far beyond those here. */
static const optimiser_options plain = { .warm = 2, .steps = 8, .decay = 0.1, .clip = 1e9 };

static parameter make_parameter(const machine *on, int64_t models, int64_t rows, int64_t width)
{
    parameter p = { .decay = true, .muon = true };
    matrix *arrays[] = { &p.x, &p.g, &p.m, &p.v };
    for (int i = 0; i < 4; i++)
        *arrays[i] = fixture_matrix(on, models, rows, width);
    fixture_fill(p.x, 1);
    return p;
}

static void free_parameter(parameter *p)
{
    free(p->x.data), free(p->g.data), free(p->m.data), free(p->v.data);
}

static void test_rate(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 1);
    for (size_t i = 0; i < COUNT(golden_rate); i++) {
        double rate, peak = 0.001;
        on.op->rate(&on, matrix_dense(&rate, LOAM_F64, 1, 1, 1), matrix_dense(&peak, LOAM_F64, 1, 1, 1),
                    &golden_rate[i].step, golden_rate[i].warm, golden_rate[i].steps, 0);
        assert_true(fabs(rate - golden_rate[i].rate) < 1e-16);
    }
}

/* A tenth of the highest rate is left in the end, half way between them in the middle of the cosine; the
 * warm-up is as it was. */
static void test_least_rate(void **state)
{
    (void)state;
    static const struct {
        int64_t step;
        double rate;
    } rows[] = { { 4, 0.5 }, { 10, 1 }, { 55, 0.55 }, { 100, 0.1 } };
    const machine on = machine_cpu(LOAM_F64, 1);
    for (size_t i = 0; i < COUNT(rows); i++) {
        double rate, peak = 1;
        on.op->rate(&on, matrix_dense(&rate, LOAM_F64, 1, 1, 1), matrix_dense(&peak, LOAM_F64, 1, 1, 1),
                    &rows[i].step, 10, 100, 0.1);
        assert_true(fabs(rate - rows[i].rate) < 1e-15);
    }
}

/* Gradients 1 and 0 after another: the second moment forgets with beta_v, and so the second step is
 * (0.09 / 0.19) / sqrt(beta_v (1 - beta_v) / (1 - beta_v^2)) long. */
static void test_beta(void **state)
{
    static const double betas[] = { 0.95, 0.5, 0 };
    (void)state;
    for (size_t i = 0; i < COUNT(betas); i++) {
        const machine on = machine_cpu(LOAM_F64, 1);
        const double beta = betas[i] > 0 ? betas[i] : 0.999, rate = 1;
        const optimiser_options options = { .steps = 1 << 20, .clip = 1e9, .beta_v = betas[i] };
        double x = 0, g = 1, m = 0, v = 0;
        parameter p = { .x = matrix_dense(&x, LOAM_F64, 1, 1, 1),
                        .g = matrix_dense(&g, LOAM_F64, 1, 1, 1),
                        .m = matrix_dense(&m, LOAM_F64, 1, 1, 1),
                        .v = matrix_dense(&v, LOAM_F64, 1, 1, 1) };
        optimiser o;
        assert_true(optimiser_open(&o, &on, &p, 1, &options, &rate, NULL));
        optimiser_step(&o);
        const double first = x;
        g = 0;
        optimiser_step(&o);
        const double want = -0.09 / 0.19 / sqrt(beta * (1 - beta) / (1 - beta * beta));
        assert_true(fabs(x - first - want) < 1e-6);
        optimiser_close(&o);
    }
}

/* float32 keeps what three steps leave to 1e-6. */
static void check_adamw(loam_dtype dtype, double tolerance)
{
    const machine on = machine_cpu(dtype, 1);
    parameter p = make_parameter(&on, 1, 2, 3);
    const double peak = 0.05;
    optimiser o;
    assert_true(optimiser_open(&o, &on, &p, 1, &plain, &peak, NULL));
    for (uint64_t step = 0; step < COUNT(golden_adamw); step++) {
        fixture_fill(p.g, 2 + step);
        optimiser_step(&o);
        for (int64_t i = 0; i < 6; i++)
            assert_true(fabs(fixture_get(p.x, i) - golden_adamw[step][i]) < tolerance);
    }
    optimiser_close(&o);
    free_parameter(&p);
}

static void test_adamw(void **state)
{
    (void)state;
    check_adamw(LOAM_F64, 1e-15);
    check_adamw(LOAM_F32, 1e-6);
}

static void check_muon(int64_t rows, int64_t width, loam_dtype dtype, double tolerance)
{
    const int64_t at[] = { 0, width - 1, 7 * width + 3, rows * width - 1 };
    const machine on = machine_cpu(dtype, 2);
    parameter p = make_parameter(&on, 1, rows, width);
    optimiser_options options = plain;
    options.muon = true;
    const double peak = 0, muon_peak = 0.02;
    optimiser o;
    assert_true(optimiser_open(&o, &on, &p, 1, &options, &peak, &muon_peak));
    int seen = 0;
    for (size_t n = 0; n < COUNT(golden_muon); n++) {
        if (golden_muon[n].rows != rows || golden_muon[n].width != width) continue;
        fixture_fill(p.g, 2 + (uint64_t)golden_muon[n].step);
        optimiser_step(&o);
        for (size_t i = 0; i < COUNT(at); i++)
            if (!(fabs(fixture_get(p.x, at[i]) - golden_muon[n].x[i]) < tolerance))
                fail_msg("%d x %d, step %d: %.9g, expected %.9g", (int)rows, (int)width, seen,
                         fixture_get(p.x, at[i]), golden_muon[n].x[i]);
        seen++;
    }
    assert_int_equal(seen, 3);
    optimiser_close(&o);
    free_parameter(&p);
}

static void test_muon(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = { { SIDE, SIDE }, { SIDE, 40 }, { 40, SIDE } };
    for (int i = 0; i < 3; i++) {
        check_muon(sizes[i][0], sizes[i][1], LOAM_F64, 1e-13);
        check_muon(sizes[i][0], sizes[i][1], LOAM_F32, 1e-5);
    }
}

/* Two arrays of other shapes share memory: the step of each is that of it alone. */
static void test_muon_of_two(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 1);
    const optimiser_options options = { .steps = 4, .clip = 1e9, .muon = true, .muon_rms = true };
    const double peak[2] = { 0.1, 0.2 };
    parameter both[2] = { make_parameter(&on, 2, 40, SIDE), make_parameter(&on, 2, SIDE, SIDE) }, one[2];
    optimiser o;
    for (int i = 0; i < 2; i++) {
        one[i] = make_parameter(&on, 2, both[i].x.rows, both[i].x.width);
        fixture_fill(both[i].g, 3), fixture_fill(one[i].g, 3);
        assert_true(optimiser_open(&o, &on, &one[i], 1, &options, peak, peak));
        optimiser_step(&o);
        optimiser_close(&o);
    }
    assert_true(optimiser_open(&o, &on, both, 2, &options, peak, peak));
    optimiser_step(&o);
    optimiser_close(&o);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(both[i].x.data, one[i].x.data,
                            (size_t)matrix_elements(one[i].x) * sizeof(double));
        free_parameter(&both[i]), free_parameter(&one[i]);
    }
}

/* From 0 without decay, with rate 1, a step is minus what the iteration makes of the gradient. */
static void muon_direction(double *x, const double *gradient, bool rms)
{
    const machine on = machine_cpu(LOAM_F64, 1);
    const optimiser_options options = { .steps = 1, .clip = 1e9, .muon = true, .muon_rms = rms };
    const double peak = 1;
    parameter p = make_parameter(&on, 1, SIDE, SIDE);
    optimiser o;
    memset(p.x.data, 0, SIDE * SIDE * sizeof(double));
    memcpy(p.g.data, gradient, SIDE * SIDE * sizeof(double));
    assert_true(optimiser_open(&o, &on, &p, 1, &options, &peak, &peak));
    optimiser_step(&o);
    for (int i = 0; i < SIDE * SIDE; i++)
        x[i] = -((const double *)p.x.data)[i];
    optimiser_close(&o);
    free_parameter(&p);
}

/* Singular values end between 0.68 and 1.14, singular vectors stay: U^T x V is diagonal. */
static void test_singular_values(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 1);
    double g[SIDE * SIDE], u[SIDE * SIDE], s[SIDE], vt[SIDE * SIDE], rest[SIDE], x[SIDE * SIDE];
    matrix drawn = fixture_matrix(&on, 1, SIDE, SIDE);
    fixture_fill(drawn, 5);
    memcpy(g, drawn.data, sizeof g);
    assert_int_equal(
        LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'A', 'A', SIDE, SIDE, drawn.data, SIDE, s, u, SIDE, vt, SIDE, rest),
        0);
    muon_direction(x, g, false);
    for (int a = 0; a < SIDE; a++)
        for (int b = 0; b < SIDE; b++) {
            double sum = 0;
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++)
                    sum += u[i * SIDE + a] * x[i * SIDE + j] * vt[b * SIDE + j];
            if (a == b)
                assert_true(sum > 0.68 && sum < 1.14);
            else
                assert_true(fabs(sum) < 1e-10);
        }
    muon_direction(g, g, true);
    for (int i = 0; i < SIDE * SIDE; i++)
        assert_true(fabs(g[i] - 0.2 * sqrt(SIDE) * x[i]) < 1e-12);
    free(drawn.data);
}

/* Two models, two arrays: each model's gradients get a factor of their own, the same for both arrays, and a
 * frozen array neither moves nor counts. */
static void test_clip(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 1);
    const optimiser_options options = { .steps = 100, .clip = 1 };
    const double peak[2] = { 1e-3, 1e-3 };
    static const double gradients[3][2] = { { 3, 0.03 }, { -4, 0.04 }, { 100, 100 } };
    parameter list[3];
    optimiser o;
    for (int i = 0; i < 3; i++) {
        list[i] = make_parameter(&on, 2, 1, 1);
        matrix_set(list[i].g, 0, gradients[i], 2);
    }
    list[2].frozen = true;
    const double kept = fixture_get(list[2].x, 0);
    assert_true(optimiser_open(&o, &on, list, 3, &options, peak, NULL));
    optimiser_step(&o);
    /* After one step m is a tenth of what was taken: 3 / 5, -4 / 5; what is short is taken whole. */
    assert_true(fabs(fixture_get(list[0].m, 0) - 0.06) < 1e-6);
    assert_true(fabs(fixture_get(list[1].m, 0) + 0.08) < 1e-6);
    assert_true(fabs(fixture_get(list[0].m, 1) - 0.003) < 1e-15);
    assert_true(fabs(fixture_get(list[1].m, 1) - 0.004) < 1e-15);
    assert_true(fixture_get(list[2].x, 0) == kept);
    optimiser_close(&o);
    for (int i = 0; i < 3; i++)
        free_parameter(&list[i]);
}

/* The first step has the length of the rate in every element, whatever the gradient; each model has its
 * own. */
static void test_first_step(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 1);
    const optimiser_options options = { .steps = 100, .clip = 1 };
    const double peak[2] = { 1e-3, 5e-3 };
    parameter p = make_parameter(&on, 2, 2, 4);
    matrix before = fixture_matrix(&on, 2, 2, 4);
    optimiser o;
    on.op->copy(&on, before, p.x);
    fixture_fill(p.g, 7);
    assert_true(optimiser_open(&o, &on, &p, 1, &options, peak, NULL));
    optimiser_step(&o);
    for (int64_t i = 0; i < 16; i++) {
        const double want = fixture_get(p.g, i) > 0 ? -peak[i / 8] : peak[i / 8];
        assert_true(fabs(fixture_get(p.x, i) - fixture_get(before, i) - want) < 1e-5 * peak[i / 8]);
    }
    optimiser_close(&o);
    free_parameter(&p);
    free(before.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_least_rate),  cmocka_unit_test(test_beta),
        cmocka_unit_test(test_muon),        cmocka_unit_test(test_singular_values),
        cmocka_unit_test(test_clip),        cmocka_unit_test(test_first_step),
        cmocka_unit_test(test_muon_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
