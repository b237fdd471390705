/* SPDX-License-Identifier: MIT
 * Local regression written from its definition: a dense weighted least-squares problem at each point, solved
 * by LAPACK from the design matrix. Shares nothing with cli/regress/fit.c. */
#ifndef TESTS_REGRESS_BRUTE_H
#define TESTS_REGRESS_BRUTE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct brute_problem {
    const double *x, *y; /* [columns, rows], [rows]; raw */
    int64_t rows;
    int columns;
    const double *bandwidths; /* [columns], in the units of x */
    double ridge;
    bool linear;
} brute_problem;

/* l[j], such that the fit at `point` is sum_j l[j] y[j]; l[left_out] = 0 and that row has no part in it
 * (-1: all have). */
void brute_weights(const brute_problem *problem, const double *point, int64_t left_out, double *l);
double brute_fit(const brute_problem *problem, const double *point, int64_t left_out);

/* Standard deviation of a column (n - 1), by the plain formula. */
double brute_deviation(const double *values, int64_t count);

/* A table of random numbers: columns of N(0, 1) times 1, 10, 100, ..., and y a smooth function plus noise.
 * x: [columns, rows], y: [rows]. */
void brute_table(uint64_t seed, int64_t rows, int columns, double *x, double *y);

/* Fails the test unless |got - want| <= tolerance * max(1, |want|); says the seed where it is not 0. */
void brute_close(double got, double want, double tolerance, const char *what, uint64_t seed);

#endif
