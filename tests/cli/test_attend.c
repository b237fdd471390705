/* SPDX-License-Identifier: MIT
 * `loam attend` against results that NumPy made (data/make_fixtures.py). */
#include "io/npy.h"
#include "tests/cli/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char QKV[] = "--q $IN:q --k $IN:k --v $IN:v";

static const char FIXTURE[] = "expected";

typedef struct attend_case {
    const char *name; /* in expected.safetensors */
    const char *arguments;
    const char *gradients; /* beside dq, dk, dv and dscale */
} attend_case;

static const attend_case CASES[] = {
    { "softmax",
      "softmax --slope $IN:slope --key-bias $IN:key_bias --sink $IN:sink --scale 0.75 --soft-cap 2 "
      "--window 3",
      "dslope dkey_bias dsink" },
    { "parallax", "parallax --probe $IN:probe --score rbf --full", "dprobe" },
    { "lla", "lla --ridge 0.1", "dridge" },
    { "lla_head", "lla --ridge $IN:ridge_head --ridge-unit max", "dridge" },
    { "lla_token", "lla --ridge $IN:ridge_token --ridge-unit trace", "dridge" },
    { "lla_channel", "lla --ridge $IN:ridge_channel --score rbf --full", "dridge" },
};

static void run_case(const attend_case *c, const char *options, double tolerance, double gradient_tolerance)
{
    outcome result = run_loam(
        "attend %s %s %s --out o.npy --lse lse.npy --rho rho.npy --weights w.npy --info "
        "info.csv --grad-out $IN:grad_out --grad-dir g",
        c->arguments, QKV, options);
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    expect_tensor(FIXTURE, "o.npy", c->name, "o", tolerance);
    expect_tensor(FIXTURE, "lse.npy", c->name, "lse", tolerance);
    expect_tensor(FIXTURE, "rho.npy", c->name, "rho", tolerance);
    expect_tensor(FIXTURE, "w.npy", c->name, "weights", tolerance);
    expect_gradients(FIXTURE, c->name, c->gradients, gradient_tolerance);
    result = run_shell("wc -l <info.csv; head -1 info.csv; rm -r g *.npy info.csv");
    expect_status(&result, 0);
    assert_string_equal(result.out, "33\nbatch,head,token,code,solver,iterations,residual\n");
}

static void every_option_matches_numpy_in_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        run_case(&CASES[i], "--dtype f64", 1e-12, 1e-8);
}

static void every_option_matches_numpy_in_float(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        run_case(&CASES[i], "", 2e-5, 2e-4);
        run_case(&CASES[i], "--backend reference --threads 1", 1e-6, 1e-5);
    }
}

/* The part [index] of the first axis. */
static array first_slice(const array *a)
{
    array part;
    assert_int_equal(array_create(&part, a->dtype, a->rank - 1, a->shape + 1, "slice", NULL), 0);
    memcpy(part.data, a->data, (size_t)part.count * array_dtype_bytes(a->dtype));
    return part;
}

/* Saves the first `dropped` slices of a tensor as NAME.npy. */
static void save_slice(const char *file, const char *tensor, int dropped, const char *path)
{
    array a = fixture(file, tensor);
    for (; dropped > 0; dropped--) {
        array part = first_slice(&a);
        array_free(&a);
        a = part;
    }
    assert_int_equal(npy_write(path, &a, NULL), 0);
    array_free(&a);
}

static void expect_same_files(const char *a_path, const char *b_path, double tolerance)
{
    array a = read_array(a_path), b = read_array(b_path);
    expect_arrays_near(a_path, &a, &b, tolerance);
    array_free(&a);
    array_free(&b);
}

/* Without batch, and without batch and heads: head 0 reads key-value head 0. */
static void lower_ranks_are_slices(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "ridge_token", "ridge_channel" };
    static const char *const cases[] = { "lla_token", "lla_channel" };
    static const char *const options[] = { "--ridge-unit trace", "--score rbf --full" };
    for (int dropped = 1; dropped <= 2; dropped++) {
        char path[64];
        for (int i = 0; i < 5; i++) {
            snprintf(path, sizeof path, "%s.npy", names[i]);
            save_slice("inputs", names[i], dropped, path);
        }
        for (int i = 0; i < 2; i++) {
            outcome result = run_loam(
                "attend lla --q q.npy --k k.npy --v v.npy --ridge r%s.npy %s --dtype f64 "
                "--out o.npy --lse lse.npy --weights w.npy",
                names[3 + i] + 1, options[i]);
            expect_status(&result, 0);
            static const char *const parts[][2] = { { "o", "o.npy" },
                                                    { "lse", "lse.npy" },
                                                    { "weights", "w.npy" } };
            for (int part = 0; part < 3; part++) {
                char tensor[64];
                snprintf(tensor, sizeof tensor, "%s.%s", cases[i], parts[part][0]);
                save_slice("expected", tensor, dropped, "expected.npy");
                expect_same_files(parts[part][1], "expected.npy", 1e-12);
            }
        }
    }
}

/* (B,H,T,D) to (B,T,H,D). */
static void save_transposed(const char *file, const char *tensor, const char *path)
{
    array a = fixture(file, tensor), b;
    const int64_t *n = a.shape, shape[] = { n[0], n[2], n[1], n[3] };
    assert_int_equal(array_create(&b, a.dtype, 4, shape, "transposed", NULL), 0);
    for (int64_t i = 0; i < a.count; i++) {
        int64_t d = i % n[3], t = i / n[3] % n[2], h = i / n[3] / n[2] % n[1], batch = i / n[3] / n[2] / n[1];
        array_set(&b, ((batch * n[2] + t) * n[1] + h) * n[3] + d, array_get(&a, i));
    }
    assert_int_equal(npy_write(path, &b, NULL), 0);
    array_free(&a);
    array_free(&b);
}

static void tokens_first_is_transposed(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "grad_out" };
    char path[64], tensor[64];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "t_%s.npy", names[i]);
        save_transposed("inputs", names[i], path);
    }
    outcome result = run_loam(
        "attend lla --layout bthd --q t_q.npy --k t_k.npy --v t_v.npy --dtype f64 --ridge "
        "$IN:ridge_head --ridge-unit max --out o.npy --rho rho.npy --lse lse.npy --grad-out "
        "t_grad_out.npy --grad-dir g");
    expect_status(&result, 0);
    static const char *const parts[][2] = { { "o", "o.npy" },
                                            { "rho", "rho.npy" },
                                            { "dq", "g/dq.npy" },
                                            { "dk", "g/dk.npy" },
                                            { "dv", "g/dv.npy" } };
    for (int i = 0; i < 5; i++) {
        snprintf(tensor, sizeof tensor, "lla_head.%s", parts[i][0]);
        save_transposed("expected", tensor, "expected.npy");
        expect_same_files(parts[i][1], "expected.npy", 1e-8);
    }
    expect_tensor(FIXTURE, "lse.npy", "lla_head", "lse", 1e-12);
    run_shell("rm -r g");
}

/* The type of the result follows q; bfloat16 is written as float32. */
static void element_types_follow_q(void **state)
{
    (void)state;
    static const struct {
        const char *inputs, *options, *expected;
        loam_dtype type;
        double tolerance;
    } rows[] = {
        { "_f16", "", "f16", LOAM_F16, 1e-3 },
        { "_bf16", "", "bf16", LOAM_F32, 5e-3 },
        { "_f64", "", "lla", LOAM_F32, 1e-5 },
        { "_f64", "--backend reference", "lla", LOAM_F64, 1e-12 },
        { "", "--dtype f16", "f16", LOAM_F16, 1e-3 },
        { "", "--dtype bf16", "bf16", LOAM_F32, 5e-3 },
        { "", "", "lla", LOAM_F32, 1e-5 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *ending = rows[i].inputs;
        outcome result = run_loam("attend lla --q $IN:q%s --k $IN:k%s --v $IN:v%s %s --out o.npy", ending,
                                  ending, ending, rows[i].options);
        expect_status(&result, 0);
        array got = read_array("o.npy");
        assert_int_equal(got.dtype, rows[i].type);
        array_free(&got);
        expect_tensor(FIXTURE, "o.npy", rows[i].expected, "o", rows[i].tolerance);
    }
}

static void npy_and_safetensors_inputs_agree(void **state)
{
    (void)state;
    outcome result = run_loam("attend softmax --q $DATA/q.npy --k $DATA/k.npy --v $DATA/v.npy --out a.npy");
    expect_status(&result, 0);
    result = run_loam("attend softmax %s --out b.npy", QKV);
    expect_status(&result, 0);
    result = run_shell("cmp a.npy b.npy");
    expect_status(&result, 0);
}

static void standard_output_takes_the_result(void **state)
{
    (void)state;
    outcome result = run_loam("attend lla %s --out o.npy", QKV);
    expect_status(&result, 0);
    result = run_shell("\"$LOAM\" attend lla %s --out - | cmp - o.npy", QKV);
    expect_status(&result, 0);
    result = run_shell("\"$LOAM\" attend lla %s --out /dev/stdout | cmp - o.npy", QKV);
    expect_status(&result, 0);
}

static void verbose_names_the_plan(void **state)
{
    (void)state;
    outcome result = run_loam("attend lla %s --out o.npy --verbose --backend reference", QKV);
    expect_complaint(&result, 0, "lla forward f32");
}

/* No keys and no queries are no error: the result is zero, or empty. */
static void empty_axes_are_allowed(void **state)
{
    (void)state;
    const int64_t q_shape[] = { 3, 2 }, none[] = { 0, 2 };
    array q, empty;
    assert_int_equal(array_create(&q, LOAM_F32, 2, q_shape, "q", NULL), 0);
    assert_int_equal(array_create(&empty, LOAM_F32, 2, none, "k", NULL), 0);
    memset(q.data, 0, 3 * 2 * sizeof(float));
    assert_int_equal(npy_write("q.npy", &q, NULL), 0);
    assert_int_equal(npy_write("none.npy", &empty, NULL), 0);
    array_free(&empty);
    outcome result = run_loam("attend lla --q q.npy --k none.npy --v none.npy --out o.npy --info info.csv");
    expect_status(&result, 0);
    array o = read_array("o.npy");
    expect_arrays_near("o", &o, &q, 0);
    array_free(&o);
    result = run_shell("grep -c empty info.csv");
    assert_string_equal(result.out, "3\n");
    result = run_loam("attend lla --q none.npy --k q.npy --v q.npy --out o.npy");
    expect_status(&result, 0);
    o = read_array("o.npy");
    assert_int_equal(o.count, 0);
    array_free(&o);
    array_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_matches_numpy_in_double),
        cmocka_unit_test(every_option_matches_numpy_in_float),
        cmocka_unit_test(lower_ranks_are_slices),
        cmocka_unit_test(tokens_first_is_transposed),
        cmocka_unit_test(element_types_follow_q),
        cmocka_unit_test(npy_and_safetensors_inputs_agree),
        cmocka_unit_test(standard_output_takes_the_result),
        cmocka_unit_test(verbose_names_the_plan),
        cmocka_unit_test(empty_axes_are_allowed),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
