/* SPDX-License-Identifier: MIT
 * Keys on which plain conjugate gradients are slow: variances of the channels that fall over four decades,
 * as in trained models. Every CPU row of the registry against the float64 reference, and what it says about
 * its rows against residuals from the definitions. */
#include "tests/support/compare.h"
#include "tests/support/direct.h"
#include "tests/support/expect.h"
#include "tests/support/kernels.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shares {
    double cg, steps; /* rows by conjugate gradients, as a part of all; their mean iterations */
} shares;

/* A forward of LLA in float32 by a kernel. */
static spec spec_of(const char *kernel, int64_t n, int64_t d)
{
    spec s = spec_default(LOAM_LLA, LOAM_FORWARD, n, d, 8);
    s.backend = LOAM_BACKEND_CPU;
    s.dtype = LOAM_F32;
    s.ridge = 0.01;
    s.omit = spec_omit(SLOT_WEIGHTS);
    s.seed = 5;
    snprintf(s.kernel, sizeof s.kernel, "%s", kernel);
    return s;
}

/* Channel c of keys (times `size`) and queries gets the standard deviation 2^(3 - 9 c / d). */
static void shape_channels(values *v, double size)
{
    for (int which = SLOT_Q; which <= SLOT_K; which++) {
        const int64_t d = v->spec.dim_qk;
        for (int64_t e = 0; e < slot_size(v, (slot)which); e++)
            v->x[which][e] = (float)(v->x[which][e] * size * exp2(3 - 9.0 * (double)(e % d) / (double)d));
    }
}

/* Every key is one of the first `period`. */
static void repeat_keys(values *v, int64_t period)
{
    const int64_t d = v->spec.dim_qk;
    for (int64_t row = 0; row < slot_size(v, SLOT_K) / d; row++)
        memcpy(v->x[SLOT_K] + row * d, v->x[SLOT_K] + row % period * d, (size_t)d * sizeof(double));
}

static values reference_of(const values *v)
{
    spec s = v->spec;
    s.backend = LOAM_BACKEND_REFERENCE;
    s.dtype = LOAM_F64;
    s.kernel[0] = 0;
    values want = values_like(&s, v);
    expect_run(&want);
    return want;
}

/* |(Cov + Lambda) rho - (kbar - q)| / |kbar - q| of a row, from the definitions; *rounding: what float32 adds
 * to it, in rho as it is stored, in kbar and in the weights. */
static double residual_of(const values *v, direct_row *r, int64_t h, int64_t i, double *rounding)
{
    const int64_t d = v->spec.dim_qk;
    const double *rho = slot_at(v, SLOT_RHO, 0, h, i), *q = slot_at(v, SLOT_Q, 0, h, i);
    double *left = memory_zeroed((size_t)d, sizeof *left), error2 = 0, size2 = 0, keys2 = 0;
    direct_weights(r, v, 0, h, i);
    for (int64_t j = 0; j < r->keys; j++) {
        double u = 0;
        for (int64_t c = 0; c < d; c++)
            u += rho[c] * (r->key[j * d + c] - r->kbar[c]);
        for (int64_t c = 0; c < d; c++) {
            left[c] += r->p[j] * u * (r->key[j * d + c] - r->kbar[c]);
            keys2 += r->p[j] * r->key[j * d + c] * r->key[j * d + c];
        }
    }
    for (int64_t c = 0; c < d; c++) {
        const double b = r->kbar[c] - q[c];
        const double e = left[c] + direct_ridge(r, v, 0, h, i, c) * rho[c] - b;
        error2 += e * e;
        size2 += b * b;
    }
    free(left);
    *rounding = 0x1p-21 * (r->trace * compare_norm(rho, d) + sqrt(keys2) * (1 + r->steepness)) / sqrt(size2);
    return sqrt(error2 / size2);
}

/* info tells the truth: a residual of conjugate gradients is that of rho, or from before the last correction,
 * which only lessens it; so is that of a factor. */
static shares expect_true_info(const values *v)
{
    const int64_t heads = v->spec.heads_q, n = v->spec.len_q;
    direct_row r = direct_make(v);
    shares share = { 0, 0 };
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = 0; i < n; i++) {
            const loam_row_info *info = &v->info[h * n + i];
            double rounding;
            const double residual = residual_of(v, &r, h, i, &rounding);
            assert_int_equal(info->code, LOAM_ROW_SOLVED);
            if (residual > 2 * (double)info->residual + rounding) {
                fail_msg("head %d row %d: residual %g, info says %g, rounding %g, solver %d", (int)h, (int)i,
                         residual, (double)info->residual, rounding, (int)info->solver);
            }
            assert_true(info->solver != LOAM_SOLVER_CG || info->iterations > 0);
            share.cg += info->solver == LOAM_SOLVER_CG;
            share.steps += info->solver == LOAM_SOLVER_CG ? info->iterations : 0;
        }
    }
    direct_free(&r);
    share.steps /= fmax(share.cg, 1);
    share.cg /= (double)(heads * n);
    return share;
}

static shares expect_solved(values *v, double tolerance)
{
    values want = reference_of(v);
    expect_run(v);
    expect_near("slow keys", v, SLOT_O, want.x[SLOT_O], tolerance, 0);
    const shares share = expect_true_info(v);
    values_free(&want);
    values_free(v);
    return share;
}

typedef void check_fn(const char *kernel);

static void for_cpu_rows(check_fn *check)
{
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        if (row.available && strcmp(row.backend, "cpu") == 0 &&
            strncmp(row.name, "local_forward_", 14) == 0 && kernel_lists(row.dtypes, "f32"))
            check(row.name);
}

/* Few keys carry the weight of a row (size 2), or all carry much the same (size 0.02 and less). */
static void check_weights(const char *kernel)
{
    static const double sizes[] = { 2, 1, 0.1, 0.02 };
    for (int number = 0; number < 4; number++) {
        spec s = spec_of(kernel, 320, number % 2 ? 33 : 16);
        s.heads_q = 2;
        values v = values_make(&s);
        shape_channels(&v, sizes[number]);
        const shares share = expect_solved(&v, 1e-4);
        assert_true(share.cg > 0.8 && share.steps < (number < 2 ? 5 : 13)); /* plain ones: 30 and 20 */
    }
}

static void few_keys_or_all_carry_the_weight(void **state)
{
    (void)state;
    for_cpu_rows(check_weights);
}

/* Weights that tie: all of them (scale 0), or those of equal keys. Ties must not overflow the heavy keys. */
static void check_ties(const char *kernel)
{
    static const int64_t periods[] = { 300, 100, 40 };
    for (int number = 0; number < 4; number++) {
        spec s = spec_of(kernel, 300, 16);
        s.scale = number == 3 ? 1e-30 : 0;
        values v = values_make(&s);
        shape_channels(&v, 1);
        if (number < 3) repeat_keys(&v, periods[number]);
        expect_solved(&v, 1e-4);
    }
}

static void weights_may_tie(void **state)
{
    (void)state;
    for_cpu_rows(check_ties);
}

/* Lengths around 2 d keys, where preconditioned steps begin; around a group of 16 rows beyond, and around
 * whole tiles of keys and blocks of queries. */
static void check_lengths(const char *kernel)
{
    static const int64_t lengths[] = { 31, 32, 33, 48, 49, 64, 65, 79, 80, 81, 127, 129, 193 };
    for (int number = 0; number < 13; number++) {
        spec s = spec_of(kernel, lengths[number], 16);
        values v = values_make(&s);
        shape_channels(&v, 1);
        expect_solved(&v, 1e-4);
    }
}

static void lengths_around_the_thresholds(void **state)
{
    (void)state;
    for_cpu_rows(check_lengths);
}

/* All that weights may come from, units of the ridge, and rows of different windows in one group. */
static void check_scores(const char *kernel)
{
    for (int number = 0; number < 8; number++) {
        spec s = spec_of(kernel, 260, number % 2 ? 20 : 16);
        s.score = number == 1 ? LOAM_RBF : LOAM_DOT;
        s.soft_cap = number == 2 ? 5 : 0;
        s.slope = number == 3;
        s.window = number == 4 ? 90 : 0;
        s.decay = number == 5;
        s.key_bias = number == 6;
        s.causal = number != 7;
        s.ridge_unit = number % 3;
        s.ridge_axes = number % 4;
        values v = values_make(&s);
        shape_channels(&v, 1);
        expect_solved(&v, 2e-4);
    }
}

static void every_score(void **state)
{
    (void)state;
    for_cpu_rows(check_scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_keys_or_all_carry_the_weight),
        cmocka_unit_test(weights_may_tie),
        cmocka_unit_test(lengths_around_the_thresholds),
        cmocka_unit_test(every_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
