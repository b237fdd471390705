/* SPDX-License-Identifier: MIT
 * src/base/cholesky.h: the factor gives the matrix back and the solve its right side,
 * both to a multiple of n eps; what is not positive definite is refused at its column. */
#include "src/base/cholesky.h"
#include "tests/simd/suites.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 130 };

typedef struct matrices {
    double a[MOST * MOST], l[MOST * MOST], basis[MOST * MOST], b[MOST], x[MOST];
} matrices;

/* A = B B^T + shift I; the upper triangle, which must not be read, holds no numbers. */
static void prepare(matrices *m, int64_t n, double shift, double size)
{
    uint64_t counter = (uint64_t)n;
    for (int64_t i = 0; i < n * n; i++)
        m->basis[i] = next_number(&counter);
    for (int64_t r = 0; r < n; r++) {
        m->b[r] = next_number(&counter);
        for (int64_t c = 0; c < n; c++) {
            double sum = r == c ? shift : 0;
            for (int64_t t = 0; t < n; t++)
                sum += m->basis[r * n + t] * m->basis[c * n + t];
            m->a[r * n + c] = c <= r ? size * sum : (double)NAN;
        }
    }
    memcpy(m->l, m->a, (size_t)(n * n) * sizeof(double));
    memcpy(m->x, m->b, (size_t)n * sizeof(double));
}

/* L[r][c] with the diagonal turned back from 1 / L_cc. */
static double factor_at(const matrices *m, int64_t n, int64_t r, int64_t c)
{
    return r == c ? 1 / m->l[r * n + c] : m->l[r * n + c];
}

static void check_factor(const matrices *m, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c <= r; c++) {
            double sum = 0;
            for (int64_t t = 0; t <= c; t++)
                sum += factor_at(m, n, r, t) * factor_at(m, n, c, t);
            const double size = sqrt(m->a[r * n + r] * m->a[c * n + c]);
            assert_true(fabs(sum - m->a[r * n + c]) <= 4 * (double)(n + 1) * DBL_EPSILON * size);
        }
        for (int64_t c = r + 1; c < n; c++)
            assert_true(isnan(m->l[r * n + c]));
    }
}

static void check_solution(const matrices *m, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        double left = 0, size = fabs(m->b[r]);
        for (int64_t c = 0; c < n; c++) {
            const double term = m->a[c <= r ? r * n + c : c * n + r] * m->x[c];
            left += term;
            size += fabs(term);
        }
        assert_true(fabs(left - m->b[r]) <= 40 * (double)n * (double)n * DBL_EPSILON * size);
    }
}

static matrices *make_matrices(void)
{
    matrices *m = malloc(sizeof *m);
    assert_non_null(m);
    return m;
}

static void factor_and_solve(void **state)
{
    (void)state;
    static const double shifts[] = { 1, 1e-6 }, sizes[] = { 1, 1e-100, 1e100 };
    matrices *m = make_matrices();
    for (int64_t n = 0; n <= MOST; n += n < 20 ? 1 : 11) {
        for (int which = 0; which < 6; which++) {
            prepare(m, n, shifts[which % 2], sizes[which / 2]);
            assert_int_equal(cholesky_factor(m->l, n, 0), 0);
            check_factor(m, n);
            cholesky_solve(m->l, n, m->x);
            check_solution(m, n);
        }
    }
    free(m);
}

static void refuses_at_the_column(void **state)
{
    (void)state;
    matrices *m = make_matrices();
    for (int64_t column = 0; column < 9; column++) {
        static const double pivots[] = { -1, 0, 0.5, (double)NAN };
        for (int which = 0; which < 4; which++) {
            for (int64_t i = 0; i < 81; i++)
                m->l[i] = i / 9 == i % 9 ? 1 : 0;
            m->l[column * 10] = pivots[which];
            assert_int_equal(cholesky_factor(m->l, 9, 0.5), column + 1);
        }
    }
    free(m);
}

int suite_cholesky(void)
{
    const struct CMUnitTest cholesky_h[] = {
        cmocka_unit_test(factor_and_solve),
        cmocka_unit_test(refuses_at_the_column),
    };
    return cmocka_run_group_tests(cholesky_h, NULL, NULL);
}
