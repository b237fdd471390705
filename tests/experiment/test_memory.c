/* SPDX-License-Identifier: MIT
 * The experiment on memory: the three ways to compute LLA and its gradients agree, what is measured is what
 * was asked for, and what does not fit under the limit is found out. */
#include "cli/experiment/memory_report.h"
#include "tests/experiment/fixture.h"

#include "cli/experiment/memory_naive.h"
#include "loam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t MEBI = (size_t)1 << 20;

static memory_case case_of(memory_method method, int64_t length, int64_t dim)
{
    return (memory_case){ .method = method, .length = length, .dim = dim, .seed = 5, .threads = 2 };
}

static void run_reference(const memory_case *c, loam_pass pass, const loam_args *all, void **saved)
{
    loam_problem problem = loam_problem_default(LOAM_LLA, pass);
    problem.dtype = LOAM_F64, problem.backend = LOAM_BACKEND_REFERENCE, problem.ridge = 1;
    problem.len_q = problem.len_kv = c->length, problem.dim_qk = problem.dim_v = c->dim;
    loam_plan *plan;
    assert_int_equal(loam_plan_create(&plan, &problem, NULL), LOAM_OK);
    if (!*saved)
        *saved = aligned_alloc(LOAM_ALIGN,
                               (loam_plan_saved_bytes(plan) + LOAM_ALIGN) / LOAM_ALIGN * LOAM_ALIGN);
    loam_args args = *all;
    args.work = aligned_alloc(LOAM_ALIGN,
                              (loam_plan_work_bytes(plan) + LOAM_ALIGN) / LOAM_ALIGN * LOAM_ALIGN);
    args.saved = *saved;
    loam_args_keep(&args, pass);
    loam_error why;
    if (loam_run(plan, &args, &why) != LOAM_OK) fail_msg("%s", why.text);
    loam_plan_destroy(plan);
    free(args.work);
}

/* All arrays by the float64 reference, as memory_draw places them. */
static double *reference(const memory_case *c, const float *arrays)
{
    const int64_t n = c->length, d = c->dim, size = n * d;
    double *at = fixture_doubles(8 * size);
    for (int64_t i = 0; i < 3 * size; i++)
        at[i] = (double)arrays[i];
    const loam_args args = { .q = loam_dense(at, 1, n, d),
                             .k = loam_dense(at + size, 1, n, d),
                             .v = loam_dense(at + 2 * size, 1, n, d),
                             .o = loam_dense_out(at + 3 * size, 1, n, d),
                             .grad_q = loam_dense_out(at + 4 * size, 1, n, d),
                             .grad_k = loam_dense_out(at + 5 * size, 1, n, d),
                             .grad_v = loam_dense_out(at + 6 * size, 1, n, d),
                             .grad_o = loam_dense(at + 7 * size, 1, n, d) };
    void *saved = NULL;
    for (int64_t i = 7 * size; memory_has_backward(c->method) && i < 8 * size; i++)
        at[i] = (double)arrays[i];
    run_reference(c, LOAM_FORWARD, &args, &saved);
    if (memory_has_backward(c->method)) run_reference(c, LOAM_BACKWARD, &args, &saved);
    free(saved);
    return at;
}

static void expect_method(memory_method method, int64_t n, int64_t d)
{
    const memory_case c = case_of(method, n, d);
    memory_sizes sizes;
    io_error error;
    float sample[MEMORY_SAMPLE];
    expect_ok(memory_sizes_of(&c, &sizes, &error), &error);
    const size_t floats = sizes.working / sizeof(float), round = sizes.working % LOAM_ALIGN;
    float *arrays = calloc(1, sizes.arrays);
    float *room = aligned_alloc(LOAM_ALIGN, sizes.working + 2 * LOAM_ALIGN - round);
    assert_true(arrays && room);
    room[floats] = 77;
    memory_draw(&c, arrays);
    expect_ok(memory_compute(&c, arrays, room, sample, &error), &error);
    assert_true(room[floats] == 77.0f);
    double *at = reference(&c, arrays), *got = fixture_doubles(n * d);
    /* float32, sums of n and of d terms, condition at most that of a covariance plus 1; gradients have two
     * solves */
    const int last = memory_has_backward(method) ? 6 : 3;
    for (int which = 3; which <= last; which++) {
        for (int64_t i = 0; i < n * d; i++)
            got[i] = (double)arrays[which * n * d + i];
        expect_close(memory_names[method], got, at + which * n * d, n * d, which == 3 ? 1e-5 : 3e-5);
    }
    const int sampled = memory_has_backward(method) ? 4 + (MEMORY_SAMPLE - 1) % 3 : 3;
    assert_true(sample[MEMORY_SAMPLE - 1] == arrays[sampled * n * d + (n - 1) * d + (MEMORY_SAMPLE - 1) % d]);
    free(arrays), free(room), free(at), free(got);
}

/* Lengths that are no multiple of a block, too. */
static void test_methods_agree(void **state)
{
    (void)state;
    for (memory_method method = 0; method < MEMORY_METHODS; method++) {
        expect_method(method, 64, 8);
        expect_method(method, 150, 24);
    }
}

static void test_singular(void **state)
{
    (void)state;
    enum { N = 3, D = 2 };
    const float zero[N * D] = { 0 };
    float o[N * D];
    const naive_task task = {
        .n = N, .d = D, .scale = 1, .ridge = 0, .q = zero, .k = zero, .v = zero, .o = o
    };
    float *room = calloc((size_t)naive_systems_room(N, D), sizeof *room);
    assert_non_null(room);
    assert_int_equal(naive_systems(&task, room), 1);
    free(room);
    room = calloc((size_t)naive_differences_room(N, D), sizeof *room);
    assert_non_null(room);
    assert_int_equal(naive_differences(&task, room), 1);
    free(room);
}

static void test_sizes(void **state)
{
    (void)state;
    const int64_t n = 1000, d = 32;
    io_error error;
    for (memory_method method = 0; method < MEMORY_METHODS; method++) {
        const memory_case c = case_of(method, n, d);
        memory_sizes sizes;
        expect_ok(memory_sizes_of(&c, &sizes, &error), &error);
        assert_int_equal(sizes.arrays, (memory_has_backward(method) ? 8 : 4) * n * d * 4);
        if (memory_is_naive(method)) {
            assert_true((double)sizes.working >= memory_formula(&c));
            assert_true((double)sizes.working < 1.5 * memory_formula(&c));
        } else
            assert_int_equal(sizes.working, sizes.work + sizes.saved);
        assert_int_equal(sizes.work > 0, !memory_is_naive(method));
        assert_int_equal(sizes.saved > 0, method == MEMORY_BACKWARD);
    }
}

static memory_result measure(memory_method method, int64_t n, int64_t d, size_t limit, bool compute)
{
    const memory_case c = case_of(method, n, d);
    memory_result result;
    io_error error;
    expect_ok(memory_measure(&c, limit, compute, &result, &error), &error);
    return result;
}

/* Within two megabytes of what was asked for, as BLAS and the heap have their own; the process has more. */
static void test_measure(void **state)
{
    (void)state;
    for (memory_method method = 0; method < MEMORY_METHODS; method++) {
        const bool differences = memory_forward_of(method) == MEMORY_DIFFERENCES;
        const int64_t n = differences ? 512 : 1024, d = differences ? 16 : 64;
        if (!memory_is_naive(method)) continue;
        const memory_case c = case_of(method, n, d);
        memory_sizes sizes;
        io_error error;
        expect_ok(memory_sizes_of(&c, &sizes, &error), &error);
        for (int compute = 0; compute < 2; compute++) {
            const memory_result result = measure(method, n, d, 256 * MEBI, compute);
            assert_int_equal(result.end, compute ? MEMORY_COMPUTED : MEMORY_TAKEN);
            if (!(fabs((double)result.working - (double)sizes.working) < 2 * (double)MEBI))
                fail_msg("%s: %zu bytes measured, %zu asked for", memory_names[method], result.working,
                         sizes.working);
            assert_true(result.process > result.working);
        }
    }
}

/* Blocks keep less than they may, and no more. */
static void test_measure_blocks(void **state)
{
    (void)state;
    for (memory_method method = MEMORY_BLOCKS; method < MEMORY_METHODS; method += MEMORY_FORWARDS) {
        const memory_case c = case_of(method, 512, 32);
        memory_sizes sizes;
        io_error error;
        expect_ok(memory_sizes_of(&c, &sizes, &error), &error);
        const memory_result computed = measure(method, 512, 32, 256 * MEBI, true);
        assert_true(computed.working > 0 && computed.working < sizes.working + MEBI);
        const memory_result taken = measure(method, 512, 32, 256 * MEBI, false);
        assert_true(fabs((double)taken.working - (double)sizes.working) < (double)MEBI);
    }
}

/* 16 MiB of systems: not under a limit of 12, and under one of 24. */
static void test_limit(void **state)
{
    (void)state;
    assert_int_equal(measure(MEMORY_SYSTEMS, 1024, 64, 12 * MEBI, true).end, MEMORY_OUT);
    assert_int_equal(measure(MEMORY_SYSTEMS, 1024, 64, 24 * MEBI, false).end, MEMORY_TAKEN);
}

static void test_wrong_case(void **state)
{
    (void)state;
    const memory_case c = case_of(MEMORY_BLOCKS, 512, LOAM_MAX_DIM + 1);
    memory_result result;
    io_error error;
    assert_int_equal(memory_measure(&c, 64 * MEBI, true, &result, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "513"));
}

/* ---- what is concluded */

static void fill_sweep(memory_sweep *s, double blocks_power)
{
    static const double powers[MEMORY_METHODS] = { 2, 1, 0, 2, 1, 1 };
    *s = (memory_sweep){ .count = 5 };
    for (int method = 0; method < MEMORY_METHODS; method++)
        for (int i = 0; i < 5; i++) {
            memory_point *p = &s->points[method][i];
            const double n = 100 << i, power = method == MEMORY_BLOCKS ? blocks_power : powers[method];
            p->what = case_of((memory_method)method, 100 << i, 16);
            p->result.end = method == MEMORY_DIFFERENCES && i == 4 ? MEMORY_OUT : MEMORY_COMPUTED;
            p->result.working = (size_t)(1e6 * pow(n, power) /
                                         (memory_is_naive((memory_method)method) ? 1 : 1e4));
            for (int k = 0; k < MEMORY_SAMPLE; k++)
                p->result.sample[k] = (float)(method == MEMORY_SYSTEMS && k == 3 ? 1.5 : k == 7 ? -4 : 1);
        }
}

static void test_conclusions(void **state)
{
    (void)state;
    memory_sweep *s = calloc(1, sizeof *s);
    assert_non_null(s);
    fill_sweep(s, 1);
    assert_true(fabs(memory_growth(s, MEMORY_DIFFERENCES) - 2) < 1e-4);
    assert_true(fabs(memory_growth(s, MEMORY_SYSTEMS) - 1) < 1e-4);
    assert_int_equal(memory_holds_from(s), 100);
    assert_true(fabs(memory_difference(s, MEMORY_SYSTEMS, 1) - 0.5 / 4) < 1e-6);
    assert_true(isnan(memory_difference(s, MEMORY_DIFFERENCES, 4)));
    s->points[MEMORY_BLOCKS][4].result.end = MEMORY_OUT;
    assert_int_equal(memory_holds_from(s), 0);
    fill_sweep(s, 1.2);
    assert_int_equal(memory_holds_from(s), 0);
    for (memory_method method = MEMORY_SYSTEMS; method <= MEMORY_SYSTEMS_BACKWARD;
         method += MEMORY_FORWARDS) {
        fill_sweep(s, 1);
        s->points[method][2].result.working = 10;
        assert_int_equal(memory_holds_from(s), 800);
    }
    for (int i = 1; i < 5; i++)
        s->points[MEMORY_SYSTEMS][i].result.end = MEMORY_OUT;
    assert_true(isnan(memory_growth(s, MEMORY_SYSTEMS)));
    free(s);
}

int main(void)
{
    /* The measuring tests first: their processes must not be born of one that has threads. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure),     cmocka_unit_test(test_measure_blocks),
        cmocka_unit_test(test_limit),       cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_conclusions), cmocka_unit_test(test_wrong_case),
        cmocka_unit_test(test_singular),    cmocka_unit_test(test_methods_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
