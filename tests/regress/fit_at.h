/* SPDX-License-Identifier: MIT
 * Fits of both estimators with all that is known of them, for tests of the estimator. */
#ifndef TESTS_REGRESS_FIT_AT_H
#define TESTS_REGRESS_FIT_AT_H

#include "regress/fit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static inline void fit_at(const regress_table *table, regress_smoother with, const double *points,
                          int64_t count, regress_fit *const fits[REGRESS_ESTIMATORS])
{
    const regress_wish wish = { .fits = { fits[0], fits[1] }, .squares = true };
    assert_int_equal(regress_fit_points(table, with, points, count, &wish, NULL), 0);
}

static inline void fit_others(const regress_table *table, regress_smoother with, const int64_t *rows,
                              int64_t count, regress_fit *const fits[REGRESS_ESTIMATORS])
{
    assert_int_equal(regress_fit_others(table, with, rows, count, fits, NULL), 0);
}

#endif
