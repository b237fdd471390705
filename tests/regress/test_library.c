/* SPDX-License-Identifier: MIT
 * The program's own estimator is the library's: softmax and Local Linear Attention with the RBF score, of the
 * standardised rows, scale 1 / h^2 and ridge X h^2. */
#define _ISOC11_SOURCE
#include "loam.h"
#include "regress/fit.h"
#include "tests/regress/brute.h"
#include "tests/regress/fit_at.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 150, POINTS = 37, COLUMNS = 3 };

typedef struct fixture {
    double x[COLUMNS * ROWS], y[ROWS], points[COLUMNS * POINTS]; /* points are standardised */
    regress_table table;
} fixture;

static void make_fixture(fixture *f, uint64_t seed)
{
    static const char *const names[] = { "a", "b", "c", "y" };
    brute_table(seed, ROWS, COLUMNS, f->x, f->y);
    assert_int_equal(regress_table_make(&f->table, f->x, f->y, ROWS, COLUMNS, names, NULL), EXIT_OK);
    for (int c = 0; c < COLUMNS; c++)
        for (int i = 0; i < POINTS; i++)
            f->points[c * POINTS + i] = 0.6 * (f->table.x[c * ROWS + i] + f->table.x[c * ROWS + 2 * i + c]);
}

static loam_problem problem_of(loam_mechanism mechanism, regress_smoother with, loam_dtype dtype)
{
    loam_problem problem = loam_problem_default(mechanism, LOAM_FORWARD);
    problem.dtype = dtype;
    problem.len_q = POINTS, problem.len_kv = ROWS, problem.dim_qk = COLUMNS, problem.dim_v = 1;
    problem.score = LOAM_RBF, problem.causal = 0;
    problem.scale = 1 / (with.bandwidth * with.bandwidth);
    problem.ridge = with.ridge * with.bandwidth * with.bandwidth;
    problem.backend = dtype == LOAM_F64 ? LOAM_BACKEND_REFERENCE : LOAM_BACKEND_CPU;
    return problem;
}

static void put(void *to, loam_dtype dtype, int64_t index, double value)
{
    if (dtype == LOAM_F64)
        ((double *)to)[index] = value;
    else
        ((float *)to)[index] = (float)value;
}

static void run_library(const loam_problem *problem, const fixture *f, double *out)
{
    static _Alignas(double) char q[8 * COLUMNS * POINTS], k[8 * COLUMNS * ROWS], v[8 * ROWS], o[8 * POINTS];
    for (int c = 0; c < COLUMNS; c++) {
        for (int i = 0; i < POINTS; i++)
            put(q, problem->dtype, i * COLUMNS + c, f->points[c * POINTS + i]);
        for (int j = 0; j < ROWS; j++)
            put(k, problem->dtype, j * COLUMNS + c, f->table.x[c * ROWS + j]);
    }
    for (int j = 0; j < ROWS; j++)
        put(v, problem->dtype, j, f->y[j]);
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, problem, &error)) fail_msg("%s", error.text);
    const size_t bytes = loam_plan_work_bytes(plan);
    loam_args args = { .q = loam_dense(q, 1, POINTS, COLUMNS),
                       .k = loam_dense(k, 1, ROWS, COLUMNS),
                       .v = loam_dense(v, 1, ROWS, 1),
                       .o = loam_dense_out(o, 1, POINTS, 1),
                       .work = aligned_alloc(LOAM_ALIGN, bytes ? bytes : LOAM_ALIGN) };
    assert_non_null(args.work);
    if (loam_run(plan, &args, &error)) fail_msg("%s", error.text);
    for (int i = 0; i < POINTS; i++)
        out[i] = problem->dtype == LOAM_F64 ? ((double *)(void *)o)[i] : (double)((float *)(void *)o)[i];
    free(args.work);
    loam_plan_destroy(plan);
}

static void compare(loam_dtype dtype, double ridge, double tolerance)
{
    const uint64_t seed = 70;
    fixture f;
    make_fixture(&f, seed);
    for (double bandwidth = 0.4; bandwidth < 4; bandwidth *= 2) {
        const regress_smoother with = { bandwidth, ridge, 1, NULL };
        regress_fit fits[REGRESS_ESTIMATORS][POINTS], *wanted[] = { fits[0], fits[1] };
        fit_at(&f.table, with, f.points, POINTS, wanted);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
            double out[POINTS];
            const loam_problem problem = problem_of(e == REGRESS_LINEAR ? LOAM_LLA : LOAM_SOFTMAX, with,
                                                    dtype);
            run_library(&problem, &f, out);
            for (int i = 0; i < POINTS; i++)
                brute_close(fits[e][i].value, out[i], tolerance, regress_names[e], seed);
        }
    }
    regress_table_free(&f.table);
}

static void test_reference(void **state)
{
    (void)state;
    compare(LOAM_F64, 0, 1e-8);
    compare(LOAM_F64, 0.1, 1e-11);
}

static void test_cpu(void **state)
{
    (void)state;
    compare(LOAM_F32, 0.1, 2e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_reference), cmocka_unit_test(test_cpu) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
