/* SPDX-License-Identifier: MIT */
#ifndef LOAM_DOF_RANK_H
#define LOAM_DOF_RANK_H

#include "io/error.h"

#include <stdint.h>

/* Spearman's rank correlation of two series; equal numbers share the mean of their ranks. NaN where one of
 * them is constant. */
int dof_rank_correlation(const double *x, const double *y, int64_t count, double *rho, io_error *error);
/* The quantile `part` of a series, 0 .. 1, between its order statistics. `sorted` [count] is scratch. */
double dof_quantile(const double *x, int64_t count, double part, double *sorted);

#endif
