/* SPDX-License-Identifier: MIT
 * How much memory a plan asks for: the workspace grows with tokens x channels, never with tokens^2 and never
 * with tokens x channels^2; a failed allocation is reported. */
#include "tests/support/alloc_fail.h"

#include "loam.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct sizes {
    double work, saved;
} sizes;

static sizes sizes_of(loam_problem p)
{
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, &p, &error)) fail_msg("%s", error.text);
    const sizes s = { (double)loam_plan_work_bytes(plan), (double)loam_plan_saved_bytes(plan) };
    loam_plan_destroy(plan);
    return s;
}

static loam_problem row_problem(const loam_kernel_info *row, int mechanism, int64_t len_q, int64_t len_kv,
                                int64_t dim)
{
    const loam_pass pass = strcmp(row->pass, "forward") == 0    ? LOAM_FORWARD
                           : strcmp(row->pass, "backward") == 0 ? LOAM_BACKWARD
                                                                : LOAM_DECODE;
    loam_problem p = loam_problem_default((loam_mechanism)mechanism, pass);
    p.kernel = row->name;
    p.dtype = strstr(row->dtypes, "f32") ? LOAM_F32 : LOAM_BF16;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.len_q = len_q;
    p.len_kv = len_kv;
    p.dim_qk = p.dim_v = dim;
    p.threads = 4;
    p.ridge_unit = mechanism == LOAM_LLA ? LOAM_RIDGE_MAX : LOAM_RIDGE_NORMALISED;
    return p;
}

/* Bytes of work per token at this length: what one more token costs. */
static double slope(const loam_kernel_info *row, int mechanism, int64_t len, int64_t dim, int queries,
                    int keys)
{
    const loam_problem a = row_problem(row, mechanism, queries ? len : 512, keys ? len : 512, dim);
    const loam_problem b = row_problem(row, mechanism, queries ? 2 * len : 512, keys ? 2 * len : 512, dim);
    return (sizes_of(b).work - sizes_of(a).work) / (double)len;
}

static void check_growth(const loam_kernel_info *row, int mechanism, int queries, int keys)
{
    const double rounding = 1.0; /* a cache line here and there, over len tokens */
    const double near = slope(row, mechanism, 1 << 12, 64, queries, keys);
    const double far = slope(row, mechanism, 1 << 18, 64, queries, keys);
    const double wide = slope(row, mechanism, 1 << 18, 256, queries, keys);
    if (far > 1.1 * near + rounding) {
        fail_msg("%s, mechanism %d: a token costs %.0f bytes at 2^12 and %.0f at 2^18", row->name, mechanism,
                 near, far);
    }
    if (wide > 4.4 * far + rounding) {
        fail_msg("%s, mechanism %d: a token costs %.0f bytes at dim 64 and %.0f at 256", row->name, mechanism,
                 far, wide);
    }
}

/* The recurrent family keeps states besides: tests/recurrent. */
static int does_local(const loam_kernel_info *row)
{
    return row->available && strstr(row->mechanisms, " lla");
}

static void workspace_is_linear(void **state)
{
    (void)state;
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        for (int mechanism = LOAM_SOFTMAX; does_local(&row) && mechanism <= LOAM_LLA; mechanism++) {
            check_growth(&row, mechanism, 1, 1);
            check_growth(&row, mechanism, 1, 0);
            check_growth(&row, mechanism, 0, 1);
        }
    }
}

/* Threads each have tiles, the weights of 64 rows and the factors of their matrices: 64 of them at a large
 * size cost less than the arrays themselves. */
static void threads_cost_tiles(void **state)
{
    (void)state;
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        for (int mechanism = LOAM_SOFTMAX; does_local(&row) && mechanism <= LOAM_LLA; mechanism++) {
            loam_problem p = row_problem(&row, mechanism, 4096, 4096, 64);
            const double four = sizes_of(p).work;
            p.threads = 68;
            const double each = (sizes_of(p).work - four) / 64;
            if (each > 5 << 19)
                fail_msg("%s, mechanism %d: a thread costs %.0f bytes", row.name, mechanism, each);
        }
    }
}

/* lse, vbar and, where there is a probe, kbar and rho, or what it adds to o: at most 4 arrays of reals. */
static void saved_is_what_backward_needs(void **state)
{
    (void)state;
    for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
        loam_problem p = loam_problem_default((loam_mechanism)mechanism, LOAM_FORWARD);
        p.heads_q = 4;
        p.len_q = p.len_kv = 1024;
        p.dim_qk = 48;
        p.dim_v = 32;
        const double forward = sizes_of(p).saved, rows = 4 * 1024;
        p.pass = LOAM_BACKWARD;
        assert_true(sizes_of(p).saved == forward && (int64_t)forward % LOAM_ALIGN == 0);
        assert_true(forward >= rows * 4 * (1 + 32) && forward <= rows * 4 * (1 + 32 + 48 + 48) + 1024);
    }
}

static void failed_allocation_is_reported(void **state)
{
    (void)state;
    loam_problem p = loam_problem_default(LOAM_LLA, LOAM_FORWARD);
    p.len_q = p.len_kv = p.dim_qk = p.dim_v = 8;
    int failures = 0;
    for (long nth = 1; nth < 100; nth++) {
        loam_plan *plan;
        loam_error error;
        alloc_fail_at(nth);
        const loam_status status = loam_plan_create(&plan, &p, &error);
        const int happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (!happened) {
            assert_int_equal(status, LOAM_OK);
            loam_plan_destroy(plan);
            break;
        }
        failures++;
        assert_int_equal(status, LOAM_EMEMORY);
        assert_int_equal(error.status, LOAM_EMEMORY);
        assert_true(strlen(error.text) > 0);
        assert_null(plan);
    }
    assert_true(failures >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_linear),
        cmocka_unit_test(threads_cost_tiles),
        cmocka_unit_test(saved_is_what_backward_needs),
        cmocka_unit_test(failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
