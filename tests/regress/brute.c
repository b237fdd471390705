/* SPDX-License-Identifier: MIT */
#include "tests/regress/brute.h"

#include "random/random.h"

#include <lapacke.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static double scaled_distance(const brute_problem *p, int64_t row, const double *point, int column)
{
    return (p->x[column * p->rows + row] - point[column]) / p->bandwidths[column];
}

/* Weights that sum to 1, without underflow. */
static void normalised_weights(const brute_problem *p, const double *point, int64_t left_out, double *weights)
{
    double most = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < p->rows; j++) {
        weights[j] = 0;
        for (int c = 0; c < p->columns; c++)
            weights[j] -= 0.5 * pow(scaled_distance(p, j, point, c), 2);
        if (j != left_out) most = fmax(most, weights[j]);
    }
    for (int64_t j = 0; j < p->rows; j++)
        sum += weights[j] = j == left_out ? 0 : exp(weights[j] - most);
    for (int64_t j = 0; j < p->rows; j++)
        weights[j] /= sum;
}

/* Rows sqrt(p_j) (1, z_j) with right-hand sides sqrt(p_j) e_j, then sqrt(ridge) on the slopes: the first
 * row of the solution is the intercept as a function of y. */
void brute_weights(const brute_problem *p, const double *point, int64_t left_out, double *l)
{
    const int terms = 1 + (p->linear ? p->columns : 0), equations = (int)p->rows + terms - 1,
              n = (int)p->rows;
    double *a = calloc((size_t)(equations * terms), sizeof *a);
    double *b = calloc((size_t)(equations * n), sizeof *b);
    double *weights = malloc((size_t)n * sizeof *weights);
    assert_true(a && b && weights);
    normalised_weights(p, point, left_out, weights);
    for (int j = 0; j < n; j++) {
        const double root = sqrt(weights[j]);
        a[j * terms] = root;
        for (int c = 1; c < terms; c++)
            a[j * terms + c] = root * scaled_distance(p, j, point, c - 1);
        b[j * n + j] = root;
    }
    for (int c = 1; c < terms; c++)
        a[(n + c - 1) * terms + c] = sqrt(p->ridge);
    assert_int_equal(LAPACKE_dgels(LAPACK_ROW_MAJOR, 'N', equations, terms, n, a, terms, b, n), 0);
    for (int j = 0; j < n; j++)
        l[j] = b[j];
    free(a);
    free(b);
    free(weights);
}

double brute_fit(const brute_problem *p, const double *point, int64_t left_out)
{
    double *l = malloc((size_t)p->rows * sizeof *l), fit = 0;
    assert_non_null(l);
    brute_weights(p, point, left_out, l);
    for (int64_t j = 0; j < p->rows; j++)
        fit += l[j] * p->y[j];
    free(l);
    return fit;
}

double brute_deviation(const double *values, int64_t count)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        mean += values[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += pow(values[i] - mean, 2);
    return sqrt(squares / (double)(count - 1));
}

void brute_table(uint64_t seed, int64_t rows, int columns, double *x, double *y)
{
    random_normals((random_stream){ seed, 0 }, 0, rows * columns, x);
    random_normals((random_stream){ seed, 1 }, 0, rows, y);
    for (int64_t j = 0; j < rows; j++) {
        double scale = 1;
        y[j] = 5 + 0.3 * y[j];
        for (int c = 0; c < columns; c++, scale *= 10) {
            y[j] += sin(2 * x[c * rows + j] + c);
            x[c * rows + j] = scale * (x[c * rows + j] + 3);
        }
    }
}

void brute_close(double got, double want, double tolerance, const char *what, uint64_t seed)
{
    if (fabs(got - want) <= tolerance * fmax(1, fabs(want))) return;
    fail_msg("%s: got %.17g, expected %.17g (seed %llu)", what, got, want, (unsigned long long)seed);
}
