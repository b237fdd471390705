/* SPDX-License-Identifier: MIT
 * cli/bench/error.c: the sample is the same problem as the whole, and a wrong element is seen.
 * The whole is run in float64 by the reference, so that nothing but rounding may differ. */
#include "cli/bench/error.h"
#include "cli/bench/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEED = 7 };
static const bench_protocol PROTOCOL = { .threads = 2, .repeat = 1, .seed = SEED };

static bench_shape shape_of(loam_mechanism mechanism, loam_pass pass, int64_t len_q, int64_t len_kv)
{
    bench_shape s = { .name = "shape", .source = "test", .problem = loam_problem_default(mechanism, pass) };
    s.saved = pass == LOAM_BACKWARD;
    loam_problem *p = &s.problem;
    p->dtype = LOAM_F64;
    p->batch = 2, p->heads_q = 4, p->heads_kv = 2;
    p->len_q = len_q, p->len_kv = len_kv, p->dim_qk = 6, p->dim_v = 5;
    return s;
}

/* Makes arrays and reference, and the results by the row that a plan chooses. */
static bench_result measured(const bench_shape *shape, bench_arrays *arrays, bench_reference *reference)
{
    io_error error;
    bench_result result = { 0 };
    int status = bench_arrays_make(arrays, shape, SEED, 2, &error);
    if (!status) status = bench_reference_make(reference, arrays, &error);
    if (!status) status = bench_measure(arrays, NULL, &PROTOCOL, &result, &error);
    if (status) fail_msg("%s", error.text);
    return result;
}

static void expect_same(const bench_shape *shape, const char *what)
{
    bench_arrays arrays;
    bench_reference reference;
    const bench_result result = measured(shape, &arrays, &reference);
    assert_int_equal(result.runs, 1);
    const double error = bench_error(&reference, &arrays);
    bench_reference_free(&reference);
    bench_arrays_free(&arrays);
    if (!(error < 1e-11)) fail_msg("seed %d, %s: the sample differs by %g", SEED, what, error);
}

/* The first mechanism of a family from *m on. */
static bool next_of(loam_family family, int *m, loam_mechanism_info *info)
{
    for (; loam_mechanism_at(*m, info) == LOAM_OK; ++*m)
        if (info->family == family) return true;
    return false;
}

static void sample_is_the_whole(void **state)
{
    (void)state;
    static const int64_t lengths[][2] = { { 40, 40 }, { 24, 40 }, { 40, 24 }, { 3, 30 }, { 30, 3 } };
    loam_mechanism_info info;
    for (int m = 0; next_of(LOAM_FAMILY_LOCAL, &m, &info); m++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++)
            for (int length = 0; length < 5; length++)
                for (int variant = 0; variant < 5; variant++) {
                    bench_shape s = shape_of((loam_mechanism)m, (loam_pass)pass, lengths[length][0],
                                             lengths[length][1]);
                    s.tokens_first = variant == 1;
                    s.problem.causal = variant != 2;
                    s.problem.window = variant == 3 ? 7 : 0;
                    s.problem.slope = variant == 4;
                    s.problem.sink = variant == 4 && info.sink;
                    char what[80];
                    snprintf(what, sizeof what, "%s %s lengths %d variant %d", info.name,
                             loam_pass_name((loam_pass)pass), length, variant);
                    expect_same(&s, what);
                }
}

/* The sample of a recurrence is one head, whole, with the value heads that read it. */
static void recurrent_sample_is_the_whole(void **state)
{
    (void)state;
    loam_mechanism_info info;
    for (int m = 0; next_of(LOAM_FAMILY_RECURRENT, &m, &info); m++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++)
            for (int variant = 0; variant < 3; variant++) {
                bench_shape s = shape_of((loam_mechanism)m, (loam_pass)pass, 21, 21);
                s.saved = pass == LOAM_BACKWARD && info.ridge_axes;
                s.problem.heads_q = s.problem.heads_kv = 2, s.problem.heads_v = 6;
                s.tokens_first = variant == 1;
                s.problem.feature_map = info.normalise ? LOAM_FEATURES_ELU : LOAM_FEATURES_UNIT;
                s.problem.normalise = variant == 2 && info.normalise;
                char what[80];
                snprintf(what, sizeof what, "%s %s variant %d", info.name, loam_pass_name((loam_pass)pass),
                         variant);
                expect_same(&s, what);
            }
}

static void fox_sample_is_the_whole(void **state)
{
    (void)state;
    loam_mechanism_info info;
    for (int m = 0; next_of(LOAM_FAMILY_LOCAL, &m, &info); m++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            bench_shape s = shape_of((loam_mechanism)m, (loam_pass)pass, 24, 40);
            s.problem.decay = 1;
            expect_same(&s, info.name);
        }
}

/* One element of the last row of an output. */
static void expect_seen(loam_mechanism mechanism, loam_pass pass, enum bench_array which)
{
    bench_shape shape = shape_of(mechanism, pass, 40, 40);
    shape.tokens_first = true;
    bench_arrays arrays;
    bench_reference reference;
    measured(&shape, &arrays, &reference);
    const bool keys = which == BENCH_GRAD_K || which == BENCH_GRAD_V;
    ((double *)arrays.at[which])[bench_row(&arrays, which, 1, keys ? 1 : 3, 39)] += 0.5;
    const double error = bench_error(&reference, &arrays);
    bench_reference_free(&reference);
    bench_arrays_free(&arrays);
    if (!(error > 1e-3)) fail_msg("a wrong element of output %d is not seen: %g", which, error);
}

static void wrong_elements_are_seen(void **state)
{
    (void)state;
    expect_seen(LOAM_SOFTMAX, LOAM_FORWARD, BENCH_O);
    expect_seen(LOAM_LLA, LOAM_DECODE, BENCH_O);
    expect_seen(LOAM_SOFTMAX, LOAM_BACKWARD, BENCH_GRAD_Q);
    expect_seen(LOAM_SOFTMAX, LOAM_BACKWARD, BENCH_GRAD_K);
    expect_seen(LOAM_LLA, LOAM_BACKWARD, BENCH_GRAD_V);
    expect_seen(LOAM_PARALLAX, LOAM_BACKWARD, BENCH_GRAD_PROBE);
}

static void wrong_recurrent_elements_are_seen(void **state)
{
    (void)state;
    static const enum bench_array outputs[] = { BENCH_GRAD_Q, BENCH_GRAD_V, BENCH_GRAD_LOG_DECAY,
                                                BENCH_GRAD_BETA };
    for (int i = 0; i < 4; i++) {
        bench_shape shape = shape_of(LOAM_KDA, LOAM_BACKWARD, 20, 20);
        shape.saved = false;
        shape.problem.heads_kv = shape.problem.heads_v = shape.problem.heads_q;
        shape.problem.feature_map = LOAM_FEATURES_UNIT;
        bench_arrays arrays;
        bench_reference reference;
        measured(&shape, &arrays, &reference);
        ((double *)arrays.at[outputs[i]])[bench_row(&arrays, outputs[i], 1, 3, 0)] += 0.5;
        const double error = bench_error(&reference, &arrays);
        bench_reference_free(&reference);
        bench_arrays_free(&arrays);
        if (!(error > 1e-3)) fail_msg("a wrong element of output %d is not seen: %g", outputs[i], error);
    }
}

/* What is not finite is an infinite error, not a NaN that passes for "not asked". */
static void nan_is_seen(void **state)
{
    (void)state;
    bench_shape shape = shape_of(LOAM_SOFTMAX, LOAM_FORWARD, 20, 20);
    bench_arrays arrays;
    bench_reference reference;
    measured(&shape, &arrays, &reference);
    memset((double *)arrays.at[BENCH_O] + bench_row(&arrays, BENCH_O, 1, 3, 19), 0xff, sizeof(double));
    const double error = bench_error(&reference, &arrays);
    bench_reference_free(&reference);
    bench_arrays_free(&arrays);
    assert_true(error > 1e300);
}

/* The types are read as what they hold: a misread one would differ by far more than its rounding. */
static void types_are_read(void **state)
{
    (void)state;
    static const double bounds[] = { 1e-5, 1e-2, 2e-3 };
    for (int dtype = LOAM_F32; dtype <= LOAM_F16; dtype++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
            bench_shape shape = shape_of(LOAM_PARALLAX, (loam_pass)pass, 24, 24);
            shape.problem.dtype = (loam_dtype)dtype;
            bench_arrays arrays;
            bench_reference reference;
            measured(&shape, &arrays, &reference);
            const double error = bench_error(&reference, &arrays);
            bench_reference_free(&reference);
            bench_arrays_free(&arrays);
            if (!(error < bounds[dtype]) || error == 0)
                fail_msg("seed %d, %s %s: error %g", SEED, loam_pass_name((loam_pass)pass),
                         loam_dtype_name((loam_dtype)dtype), error);
        }
}

/* layout=bthd is (B, T, H, D), for the rows that the program
 * looks up and for the views that the library gets. */
static void layouts_are_as_named(void **state)
{
    (void)state;
    bench_shape shape = shape_of(LOAM_SOFTMAX, LOAM_BACKWARD, 11, 13);
    for (int tokens_first = 0; tokens_first < 2; tokens_first++) {
        bench_arrays a;
        io_error error;
        shape.tokens_first = tokens_first;
        assert_int_equal(bench_arrays_make(&a, &shape, SEED, 1, &error), 0);
        const int64_t head = tokens_first ? 6 : 6 * 11, token = tokens_first ? 6 * 4 : 6;
        assert_true(a.args.q.batch == 4 * 11 * 6 && a.args.q.head == head && a.args.q.token == token);
        assert_int_equal(bench_row(&a, BENCH_GRAD_Q, 1, 2, 3), 4 * 11 * 6 + 2 * head + 3 * token);
        assert_true(a.args.grad_v.token == (tokens_first ? 5 * 2 : 5));
        assert_true(a.args.grad_v.head == (tokens_first ? 5 : 5 * 13));
        bench_arrays_free(&a);
    }
}

/* Inputs depend on the seed, and not on the number of threads. */
static void inputs_follow_the_seed(void **state)
{
    (void)state;
    const bench_shape shape = shape_of(LOAM_SOFTMAX, LOAM_FORWARD, 700, 700);
    static const struct {
        uint64_t seed;
        int threads;
    } runs[] = { { SEED, 1 }, { SEED, 3 }, { SEED + 1, 1 } };
    bench_arrays arrays[3];
    io_error error;
    for (int i = 0; i < 3; i++)
        assert_int_equal(bench_arrays_make(&arrays[i], &shape, runs[i].seed, runs[i].threads, &error), 0);
    const size_t bytes = (size_t)2 * 4 * 700 * 6 * sizeof(double);
    assert_memory_equal(arrays[0].at[BENCH_Q], arrays[1].at[BENCH_Q], bytes);
    assert_memory_not_equal(arrays[0].at[BENCH_Q], arrays[2].at[BENCH_Q], bytes);
    assert_memory_not_equal(arrays[0].at[BENCH_Q], arrays[0].at[BENCH_K], bytes / 2);
    for (int i = 0; i < 3; i++)
        bench_arrays_free(&arrays[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_is_the_whole),
        cmocka_unit_test(recurrent_sample_is_the_whole),
        cmocka_unit_test(fox_sample_is_the_whole),
        cmocka_unit_test(wrong_elements_are_seen),
        cmocka_unit_test(wrong_recurrent_elements_are_seen),
        cmocka_unit_test(nan_is_seen),
        cmocka_unit_test(types_are_read),
        cmocka_unit_test(inputs_follow_the_seed),
        cmocka_unit_test(layouts_are_as_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
