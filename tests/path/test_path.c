/* SPDX-License-Identifier: MIT
 * PaTH scores: the reference against the matrices written out, central
 * differences and identities; the CPU rows against the reference. */
#include "tests/path/scene.h"

#include "tests/support/kernels.h"
#include "tests/support/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const loam_mechanism mechanisms[] = { LOAM_SOFTMAX, LOAM_PARALLAX, LOAM_LLA };

static loam_problem problem_of(loam_mechanism mechanism, int64_t nq, int64_t nk, int64_t d, int64_t dv)
{
    loam_problem p = loam_problem_default(mechanism, LOAM_FORWARD);
    p.dtype = LOAM_F64, p.backend = LOAM_BACKEND_REFERENCE, p.threads = 1;
    p.batch = 2, p.heads_q = 4, p.heads_kv = 2;
    p.len_q = nq, p.len_kv = nk, p.dim_qk = d, p.dim_v = dv, p.path = 1;
    p.ridge_axes = mechanism == LOAM_LLA ? LOAM_RIDGE_TOKEN : LOAM_RIDGE_NUMBER;
    return p;
}

static void expect_below(double error, double most, const char *what, const scene *s)
{
    if (!(error <= most)) {
        fail_msg("%s, %s %s, %lld queries, %lld keys, dim %lld: %g, expected at most %g", what,
                 loam_mechanism_name(s->p.mechanism), s->p.kernel ? s->p.kernel : "", (long long)s->p.len_q,
                 (long long)s->p.len_kv, (long long)s->p.dim_qk, error, most);
    }
}

/* ------------------------------------------------------------------ the matrices written out */

enum { DIM = 5 };

/* product <- M_t product */
static void reflect_matrix(double (*product)[DIM], const double *w, double beta)
{
    double old[DIM][DIM];
    memcpy(old, product, sizeof old);
    for (int r = 0; r < DIM; r++) {
        for (int c = 0; c < DIM; c++)
            for (int e = 0; e < DIM; e++)
                product[r][c] -= beta * w[r] * w[e] * old[e][c];
    }
}

/* x^T M_i ... M_{j+1} k */
static double turned_product(const scene *s, int64_t kv, int64_t i, int64_t j, const double *x)
{
    const int64_t nk = s->p.len_kv;
    double product[DIM][DIM] = { { 0 } }, sum = 0;
    for (int c = 0; c < DIM; c++)
        product[c][c] = 1;
    for (int64_t t = j + 1; t <= i; t++)
        reflect_matrix(product, s->x[W] + (kv * nk + t) * DIM, s->x[BETA][kv * nk + t]);
    for (int r = 0; r < DIM; r++)
        for (int c = 0; c < DIM; c++)
            sum += x[r] * product[r][c] * s->x[K][(kv * nk + j) * DIM + c];
    return sum;
}

/* o of one row of a given probe. */
static void row_written_out(const scene *s, int64_t head, int64_t i, double *o)
{
    const int64_t nk = s->p.len_kv, nq = s->p.len_q, dv = s->p.dim_v, kv = head / 2, at = i + nk - nq;
    const double *q = s->x[Q] + (head * nq + i) * DIM, *rho = s->x[PROBE] + (head * nq + i) * DIM;
    double *weight = memory_zeroed((size_t)nk, sizeof(double)),
           *u = memory_zeroed((size_t)nk, sizeof(double));
    double omega = 0, ubar = 0, decay = 0;
    for (int64_t j = at; j >= 0; j--) {
        weight[j] = exp(turned_product(s, kv, at, j, q) / sqrt(DIM) + decay);
        u[j] = s->p.mechanism == LOAM_PARALLAX ? turned_product(s, kv, at, j, rho) : 0;
        omega += weight[j];
        ubar += weight[j] * u[j];
        decay += s->p.decay ? s->x[DECAY][head * nk + j] : 0;
    }
    for (int64_t c = 0; c < dv; c++) {
        o[c] = 0;
        for (int64_t j = 0; j <= at; j++)
            o[c] += weight[j] / omega * (1 - u[j] + ubar / omega) * s->x[V][(kv * nk + j) * dv + c];
    }
    free(weight);
    free(u);
}

static void matrices_written_out(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        for (int decay = 0; decay < 2; decay++) {
            loam_problem p = problem_of(mechanisms[which], 6, 9, DIM, 3);
            p.decay = decay;
            scene got = scene_make(&p, 11), want = scene_copy(&got);
            assert_true(scene_run(&got, LOAM_FORWARD));
            for (int64_t row = 0; row < p.batch * p.heads_q * p.len_q; row++)
                row_written_out(&want, row / p.len_q, row % p.len_q, want.x[O] + row * p.dim_v);
            expect_below(scene_error(&got, &want, O), 1e-13, "matrices written out", &got);
            scene_free(&got);
            scene_free(&want);
        }
    }
}

/* ------------------------------------------------------------------ identities of the reference */

static const part gradients[] = { DQ, DK, DV, DPROBE, DRIDGE, DSCALE, DW, DBETA, DDECAY };
enum { GRADIENTS = sizeof gradients / sizeof gradients[0], GRADIENTS_WITHOUT_PATH = 6 };

static void no_reflection_is_plain(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        loam_problem p = problem_of(mechanisms[which], 7, 7, 4, 3);
        scene got = scene_make(&p, 5), want = scene_copy(&got);
        memset(got.x[BETA], 0, (size_t)got.size[BETA] * sizeof(double));
        want.p.path = 0;
        assert_true(scene_run(&got, LOAM_FORWARD) && scene_run(&want, LOAM_FORWARD));
        expect_below(scene_error(&got, &want, O), 1e-14, "beta 0 is plain", &got);
        assert_true(scene_run(&got, LOAM_BACKWARD) && scene_run(&want, LOAM_BACKWARD));
        for (int n = 0; n < GRADIENTS_WITHOUT_PATH; n++)
            expect_below(scene_error(&got, &want, gradients[n]), 1e-13, "beta 0 is plain", &got);
        scene_free(&got);
        scene_free(&want);
    }
}

static double loss_at(scene *s, double *x, double value)
{
    const double was = *x;
    double sum = 0;
    *x = value;
    assert_true(scene_run(s, LOAM_FORWARD));
    *x = was;
    for (int64_t e = 0; e < s->size[O]; e++)
        sum += s->x[GRAD_O][e] * s->x[O][e];
    return sum;
}

static void check_differences(scene *s, part input, part gradient)
{
    scene want = scene_copy(s), walk = scene_copy(s);
    for (int64_t e = 0; e < s->size[input]; e++) {
        double *x = &walk.x[input][e];
        const double at = *x, h = 1e-3;
        want.x[gradient][e] = (8 * (loss_at(&walk, x, at + h) - loss_at(&walk, x, at - h)) -
                               (loss_at(&walk, x, at + 2 * h) - loss_at(&walk, x, at - 2 * h))) /
                              (12 * h);
    }
    expect_below(scene_error(s, &want, gradient), 1e-8, "central differences", s);
    scene_free(&want);
    scene_free(&walk);
}

static void central_differences(void **state)
{
    (void)state;
    static const part pairs[][2] = { { Q, DQ }, { K, DK },       { V, DV },         { PROBE, DPROBE },
                                     { W, DW }, { BETA, DBETA }, { RIDGE, DRIDGE }, { DECAY, DDECAY } };
    for (int number = 0; number < 6; number++) {
        loam_problem p = problem_of(mechanisms[number % 3], number < 3 ? 5 : 4, number < 3 ? 5 : 6, 3, 2);
        p.batch = 1, p.decay = number % 2;
        scene s = scene_make(&p, 40 + (uint64_t)number);
        for (int64_t e = 0; e < s.size[BETA]; e++) /* within 0 .. 2 after a step */
            s.x[BETA][e] = 0.1 + 0.9 * s.x[BETA][e];
        assert_true(scene_run(&s, LOAM_BACKWARD));
        for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
            const int used = (pairs[n][0] != PROBE || p.mechanism == LOAM_PARALLAX) &&
                             (pairs[n][0] != RIDGE || p.mechanism == LOAM_LLA) &&
                             (pairs[n][0] != DECAY || p.decay);
            if (used) check_differences(&s, pairs[n][0], pairs[n][1]);
        }
        scene_free(&s);
    }
}

/* ------------------------------------------------------------------ kernels against the reference */

typedef struct shape {
    int64_t nq, nk, d, dv;
} shape;

static const shape shapes[] = { { 1, 1, 8, 8 },       { 64, 64, 64, 64 },  { 65, 65, 16, 8 },
                                { 130, 130, 33, 70 }, { 70, 200, 64, 64 }, { 200, 150, 24, 9 },
                                { 191, 191, 128, 64 } };

static double bound(loam_dtype dtype, int gradient)
{
    return dtype == LOAM_F32    ? (gradient ? 5e-5 : 1e-5)
           : dtype == LOAM_BF16 ? (gradient ? 1e-2 : 5e-3)
                                : (gradient ? 2e-3 : 1e-3);
}

/* Outputs of a pass are within the bounds of the type. */
static void compare_with_reference(const char *kernel, loam_pass pass, loam_mechanism mechanism,
                                   const shape *x, loam_dtype dtype, int decay, double beta)
{
    loam_problem p = problem_of(mechanism, x->nq, x->nk, x->d, x->dv);
    p.dtype = dtype, p.decay = decay, p.backend = LOAM_BACKEND_AUTO, p.kernel = kernel;
    scene got = scene_make(&p, (uint64_t)(x->nq * 1000 + x->nk)), want = scene_copy(&got);
    want.p.dtype = LOAM_F64, want.p.backend = LOAM_BACKEND_REFERENCE, want.p.kernel = NULL;
    for (int64_t e = 0; beta >= 0 && e < got.size[BETA]; e++)
        got.x[BETA][e] = want.x[BETA][e] = beta;
    assert_true(scene_run(&got, pass) && scene_run(&want, pass));
    if (pass == LOAM_BACKWARD) {
        for (int n = 0; n < GRADIENTS; n++) {
            /* the gradient of the scale is one number, a sum in which much cancels */
            const double much = gradients[n] == DSCALE ? 10 : gradients[n] >= DW ? 2 : 1;
            expect_below(scene_error(&got, &want, gradients[n]), much * bound(dtype, 1), "gradient", &got);
        }
    } else {
        expect_below(scene_error(&got, &want, O), bound(dtype, 0), "o", &got);
    }
    scene_free(&got);
    scene_free(&want);
}

/* The reference takes each key of each row through the reflections between, which sanitizers make slow. */
#ifdef __SANITIZE_ADDRESS__
enum { MOST_KEYS = 130 };
#else
enum { MOST_KEYS = 200 };
#endif

/* kernel: NULL for those of this machine. */
static void check_shapes(const char *kernel, loam_pass pass, loam_mechanism mechanism)
{
    static const loam_dtype types[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        /* The reference solves for each row: large shapes take it long. */
        if (shapes[n].nk > MOST_KEYS || (mechanism == LOAM_LLA && shapes[n].nk * shapes[n].d > 8000))
            continue;
        compare_with_reference(kernel, pass, mechanism, &shapes[n], types[n % 3], n % 2 == 1, -1);
        compare_with_reference(kernel, pass, mechanism, &shapes[n], LOAM_F32, 0, (double)(n % 3));
    }
}

static void check_kernels(loam_pass pass)
{
    loam_kernel_info info;
    for (int index = 0; loam_kernel_at(index, &info) == LOAM_OK; index++) {
        if (strncmp(info.name, "local_path", 10) != 0 || strcmp(info.pass, loam_pass_name(pass)) != 0 ||
            strcmp(info.backend, "cpu") != 0 || !info.available)
            continue;
        for (int which = 0; which < 3; which++)
            if (kernel_lists(info.mechanisms, loam_mechanism_name(mechanisms[which])))
                check_shapes(info.name, pass, mechanisms[which]);
    }
}

static void forward_kernels(void **state) { (void)state, check_kernels(LOAM_FORWARD); }
static void decode_kernels(void **state) { (void)state, check_kernels(LOAM_DECODE); }

/* Forward and backward as this machine chooses them. For LLA they are of two back ends: the reference's
 * backward reads what the CPU's forward saved. */
static void backward_kernels(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++)
        check_shapes(NULL, LOAM_BACKWARD, mechanisms[which]);
}

/* States of two slices of the keys merge into that of all. */
static void slices_merge(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        for (int cpu = 0; cpu < 2; cpu++) {
            loam_problem p = problem_of(mechanisms[which], 3, 150, 8, 5);
            p.dtype = cpu ? LOAM_F32 : LOAM_F64, p.decay = 1;
            p.backend = cpu ? LOAM_BACKEND_AUTO : LOAM_BACKEND_REFERENCE;
            scene got = scene_make(&p, 21), want = scene_copy(&got);
            got.cut = 70;
            assert_true(scene_run(&got, LOAM_DECODE) && scene_run(&want, LOAM_DECODE));
            expect_below(scene_error(&got, &want, O), cpu ? 1e-5 : 1e-11, "slices", &got);
            expect_below(scene_error(&got, &want, LSE), cpu ? 1e-5 : 1e-11, "slices", &got);
            scene_free(&got);
            scene_free(&want);
        }
    }
}

/* The bits do not depend on the threads. */
static void same_bits(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        loam_problem p = problem_of(mechanisms[which], 200, 200, 32, 32);
        p.dtype = LOAM_F32, p.backend = LOAM_BACKEND_AUTO, p.batch = 3;
        scene one = scene_make(&p, 3), many = scene_copy(&one);
        many.p.threads = 7;
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            assert_true(scene_run(&one, (loam_pass)pass) && scene_run(&many, (loam_pass)pass));
            for (int out = SCENE_INPUTS; out < SCENE_PARTS; out++)
                assert_memory_equal(one.x[out], many.x[out], (size_t)one.size[out] * sizeof(double));
        }
        scene_free(&one);
        scene_free(&many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_written_out), cmocka_unit_test(no_reflection_is_plain),
        cmocka_unit_test(central_differences),  cmocka_unit_test(forward_kernels),
        cmocka_unit_test(backward_kernels),     cmocka_unit_test(decode_kernels),
        cmocka_unit_test(slices_merge),         cmocka_unit_test(same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
