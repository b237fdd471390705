/* SPDX-License-Identifier: MIT
 * Every problem that loam_plan_create refuses: the status,
 * and a text that names the argument and the value. */
#include "loam.h"

#include "tests/support/spec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static loam_problem good(void)
{
    loam_problem p = loam_problem_default(LOAM_LLA, LOAM_FORWARD);
    p.heads_q = 4;
    p.heads_kv = 2;
    p.len_q = 8;
    p.len_kv = 9;
    p.dim_qk = 5;
    p.dim_v = 6;
    return p;
}

/* names: the argument; value and expected: more that the text must hold, "" for nothing. */
static void refuse(const loam_problem *p, loam_status status, const char *name, const char *value,
                   const char *expected)
{
    int mark;
    loam_plan *plan = (loam_plan *)(void *)&mark;
    loam_error error;
    memset(&error, 0x55, sizeof error);
    const loam_status got = loam_plan_create(&plan, p, &error);
    if (got != status || error.status != status || plan != NULL ||
        !memchr(error.text, 0, sizeof error.text) || !strstr(error.text, name) ||
        !strstr(error.text, value) || !strstr(error.text, expected)) {
        fail_msg("%s = %s: status %d (%d in error), plan %p, text '%.255s'", name, value, (int)got,
                 (int)error.status, (void *)plan, error.text);
    }
    assert_int_equal(loam_plan_create(&plan, p, NULL), status);
    assert_null(plan);
}

#define REFUSE(member, bad, status, value, expected) \
    do { \
        loam_problem p_ = good(); \
        p_.member = bad; \
        refuse(&p_, status, #member, value, expected); \
    } while (0)

static void enumerators(void **state)
{
    (void)state;
    int mechanisms = 0;
    while (loam_mechanism_name((loam_mechanism)mechanisms))
        mechanisms++;
    char first_none[16];
    snprintf(first_none, sizeof first_none, "%d", mechanisms);
    REFUSE(mechanism, (loam_mechanism)mechanisms, LOAM_EARG, first_none, "");
    REFUSE(mechanism, (loam_mechanism)-1, LOAM_EARG, "-1", "");
    REFUSE(pass, (loam_pass)3, LOAM_EARG, "3", "");
    REFUSE(dtype, (loam_dtype)4, LOAM_EARG, "4", "");
    REFUSE(score, (loam_score)2, LOAM_EARG, "2", "");
    REFUSE(ridge_axes, (loam_ridge_axes)5, LOAM_EARG, "5", "");
    REFUSE(ridge_unit, (loam_ridge_unit)3, LOAM_EARG, "3", "");
    REFUSE(backend, (loam_backend)4, LOAM_EARG, "4", "");
    REFUSE(causal, 2, LOAM_EARG, "2", "0 or 1");
    REFUSE(slope, -1, LOAM_EARG, "-1", "0 or 1");
    REFUSE(key_bias, 7, LOAM_EARG, "7", "0 or 1");
    REFUSE(sink, 3, LOAM_EARG, "3", "0 or 1");
    REFUSE(decay, 2, LOAM_EARG, "2", "0 or 1");
    REFUSE(path, -1, LOAM_EARG, "-1", "0 or 1");
}

static void shapes(void **state)
{
    (void)state;
    REFUSE(batch, -1, LOAM_ESHAPE, "-1", "expected");
    REFUSE(heads_q, 0, LOAM_ESHAPE, "0", "expected");
    REFUSE(heads_kv, 0, LOAM_ESHAPE, "0", "expected");
    REFUSE(heads_kv, -2, LOAM_ESHAPE, "-2", "expected");
    REFUSE(heads_q, 3, LOAM_ESHAPE, "3", "multiple of heads_kv 2");
    REFUSE(len_q, -5, LOAM_ESHAPE, "-5", "expected");
    REFUSE(len_kv, -1, LOAM_ESHAPE, "-1", "expected");
    REFUSE(len_kv, INT64_MAX, LOAM_ESHAPE, "9223372036854775807", "expected");
    REFUSE(dim_qk, 0, LOAM_ESHAPE, "0", "1 to 512");
    REFUSE(dim_qk, 513, LOAM_ESHAPE, "513", "1 to 512");
    REFUSE(dim_v, 0, LOAM_ESHAPE, "0", "1 to 512");
    REFUSE(dim_v, 513, LOAM_ESHAPE, "513", "1 to 512");
    REFUSE(total_q, 8, LOAM_ESHAPE, "8", "both");
    REFUSE(total_kv, 8, LOAM_ESHAPE, "8", "both");
    REFUSE(total_kv, -2, LOAM_ESHAPE, "-2", "both");
}

#define REFUSE_MAP(name, member, ...) \
    REFUSE(member, -1.5, LOAM_EVALUE, "-1.5", ">= 0"); \
    REFUSE(member, (double)NAN, LOAM_EVALUE, "nan", ">= 0");

static void numbers(void **state)
{
    (void)state;
    REFUSE(scale, (double)NAN, LOAM_EVALUE, "nan", "finite");
    REFUSE(scale, HUGE_VAL, LOAM_EVALUE, "inf", "finite");
    SPEC_MAPS(REFUSE_MAP)
    REFUSE(window, -3, LOAM_EVALUE, "-3", ">= 0");
    REFUSE(threads, -1, LOAM_EVALUE, "-1", "expected");
    REFUSE(threads, 1 << 30, LOAM_EVALUE, "1073741824", "expected");
    REFUSE(ridge, -0.25, LOAM_EVALUE, "-0.25", ">= 0");
    REFUSE(ridge, (double)NAN, LOAM_EVALUE, "nan", ">= 0");
    REFUSE(ridge, HUGE_VAL, LOAM_EVALUE, "inf", "finite");
    loam_problem p = good();
    p.score = LOAM_RBF;
    p.scale = -0.5;
    refuse(&p, LOAM_EVALUE, "scale", "-0.5", "> 0");
}

/* Scores that depend on the tokens between. */
static void between(void **state)
{
    (void)state;
    loam_problem p = good();
    p.decay = 1;
    p.causal = 0;
    refuse(&p, LOAM_EUNSUPPORTED, "decay", "1", "causal");
    p.causal = 1;
    p.score = LOAM_RBF;
    refuse(&p, LOAM_EUNSUPPORTED, "decay", "1", "rbf");
    p.score = LOAM_DOT;
    p.sink = 1;
    p.mechanism = LOAM_SOFTMAX;
    refuse(&p, LOAM_EUNSUPPORTED, "sink", "1", "decay");
}

static void combinations(void **state)
{
    (void)state;
    for (int mechanism = LOAM_PARALLAX; mechanism <= LOAM_LLA; mechanism++) {
        loam_problem p = good();
        p.mechanism = (loam_mechanism)mechanism;
        p.sink = 1;
        refuse(&p, LOAM_EUNSUPPORTED, "sink", "softmax", mechanism == LOAM_LLA ? "lla" : "parallax");
    }
    loam_problem p = good();
    p.pass = LOAM_DECODE;
    p.total_q = p.total_kv = 9;
    refuse(&p, LOAM_EUNSUPPORTED, "total_q", "packed", "decode");
    p = good();
    p.dtype = LOAM_F64;
    p.backend = LOAM_BACKEND_CPU;
    refuse(&p, LOAM_EUNSUPPORTED, "backend", "cpu", "f64");
}

static void kernels(void **state)
{
    (void)state;
    REFUSE(kernel, "local_forward_nowhere", LOAM_EARG, "local_forward_nowhere", "unknown");
    REFUSE(kernel, "", LOAM_EARG, "''", "unknown");
    REFUSE(kernel, "local_backward_ref", LOAM_EUNSUPPORTED, "local_backward_ref", "forward");
    loam_problem p = good();
    p.kernel = "local_forward_ref";
    p.backend = LOAM_BACKEND_CPU;
    refuse(&p, LOAM_EUNSUPPORTED, "kernel", "local_forward_ref", "cpu");
}

/* On a machine with a GPU tests/cuda asks. */
/* A problem that the row takes. */
static loam_problem problem_of_row(const loam_kernel_info *row)
{
    loam_problem p = good();
    int m = LOAM_SOFTMAX;
    while (strncmp(row->mechanisms, loam_mechanism_name((loam_mechanism)m),
                   strlen(loam_mechanism_name((loam_mechanism)m))) != 0)
        m++;
    p.mechanism = (loam_mechanism)m;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++)
        p.pass = strcmp(row->pass, loam_pass_name((loam_pass)pass)) == 0 ? (loam_pass)pass : p.pass;
    p.kernel = row->name;
    p.dtype = LOAM_BF16;
    p.dim_qk = p.dim_v = 64; /* which every row takes */
    p.path = strncmp(row->name, "local_path", 10) == 0;
    if (m >= LOAM_LINEAR) {
        p.heads_kv = p.heads_q;
        p.len_kv = p.len_q;
    }
    if (strncmp(row->name, "positive_", 9) == 0) p.feature_map = LOAM_FEATURES_POSITIVE, p.normalise = 1;
    return p;
}

static void cuda_without_a_device(void **state)
{
    (void)state;
    loam_kernel_info row;
    loam_problem p = good();
    int rows = 0;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        if (strcmp(row.backend, "cuda") == 0) {
            rows++;
            if (row.available) skip();
            p = problem_of_row(&row);
            refuse(&p, LOAM_EUNSUPPORTED, "kernel", row.name, "needs an NVIDIA GPU");
        }
    }
    REFUSE(backend, LOAM_BACKEND_CUDA, LOAM_EUNSUPPORTED, "cuda",
           rows ? "needs an NVIDIA GPU of compute capability 8.0 or newer; " : "not in this build");
    p = good();
    p.backend = LOAM_BACKEND_CUDA;
    p.pass = LOAM_DECODE;
    refuse(&p, LOAM_EUNSUPPORTED, "backend", "cuda", rows ? "no kernel for lla decode" : "not in this build");
}

static void sizes_that_overflow(void **state)
{
    (void)state;
    loam_problem p = good();
    p.batch = INT32_MAX;
    p.len_q = p.len_kv = INT32_MAX / 4;
    p.dim_qk = p.dim_v = 512;
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        p.pass = (loam_pass)pass;
        p.heads_q = p.heads_kv = 1;
        refuse(&p, LOAM_EMEMORY, "", "too large", "");
        p.heads_q = p.heads_kv = 1 << 20;
        refuse(&p, LOAM_EMEMORY, "", "too large", "");
    }
}

static void null_pointers(void **state)
{
    (void)state;
    const loam_problem p = good();
    loam_error error;
    loam_plan *plan = NULL;
    assert_int_equal(loam_plan_create(NULL, &p, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "plan"));
    assert_int_equal(loam_plan_create(&plan, NULL, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "problem"));
    assert_int_equal(loam_plan_create(NULL, NULL, NULL), LOAM_EARG);
    loam_plan_destroy(NULL);
}

/* What is fine and looks as if it might not be. */
static void edges_that_are_allowed(void **state)
{
    (void)state;
    loam_problem edges[8];
    for (int i = 0; i < 8; i++)
        edges[i] = good();
    edges[0].batch = 0;
    edges[1].len_q = edges[1].len_kv = 0;
    edges[2].window = INT64_MAX;
    edges[3].ridge = 0;
    edges[4].scale = -1;
    edges[5].dim_qk = edges[5].dim_v = 512;
    edges[6].total_q = edges[6].total_kv = 0;
    edges[7].mechanism = LOAM_SOFTMAX;
    edges[7].ridge = -1; /* not read */
    for (int i = 0; i < 8; i++) {
        loam_plan *plan;
        loam_error error = { LOAM_EARG, "left over" };
        assert_int_equal(loam_plan_create(&plan, &edges[i], &error), LOAM_OK);
        assert_int_equal(error.status, LOAM_OK);
        assert_string_equal(error.text, "");
        loam_plan_destroy(plan);
        assert_int_equal(loam_plan_create(&plan, &edges[i], NULL), LOAM_OK);
        loam_plan_destroy(plan);
    }
}

/* What did not begin with loam_problem_default of this header. */
static void stamps(void **state)
{
    (void)state;
    loam_problem p = { 0 };
    p.heads_q = p.heads_kv = p.len_q = p.len_kv = p.dim_qk = p.dim_v = 1;
    p.batch = 1, p.total_q = p.total_kv = -1, p.ridge = 0.1;
    refuse(&p, LOAM_EARG, "problem", "without a stamp", "loam_problem_default");
    p = good();
    p.stamp.version = LOAM_VERSION_NUMBER + 1;
    refuse(&p, LOAM_EARG, "problem", "stamp of loam.h 0.1.1", loam_version());
    p = good();
    p.stamp.bytes -= 8;
    refuse(&p, LOAM_EARG, "problem", "expected", "loam_problem_default");
    p = good();
    p.stamp.args_bytes += 16;
    refuse(&p, LOAM_EARG, "problem", "expected", "loam_problem_default");
    memset(&p, 0x55, sizeof p);
    refuse(&p, LOAM_EARG, "problem", "stamp of loam.h", "loam_problem_default");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stamps),
        cmocka_unit_test(enumerators),
        cmocka_unit_test(shapes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(between),
        cmocka_unit_test(combinations),
        cmocka_unit_test(kernels),
        cmocka_unit_test(sizes_that_overflow),
        cmocka_unit_test(cuda_without_a_device),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(edges_that_are_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
