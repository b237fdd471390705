/* SPDX-License-Identifier: MIT
 * What the tests of the experiment share. */
#ifndef LOAM_TESTS_EXPERIMENT_FIXTURE_H
#define LOAM_TESTS_EXPERIMENT_FIXTURE_H

#include "cli/experiment/sweep.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The defaults of the command, on the float64 reference and two threads. */
estimate_setup fixture_setup(void);

/* `count` zeroed doubles; the test fails where there is no memory. */
double *fixture_doubles(int64_t count);

/* A generated batch; free keys and values with fixture_free. */
estimate_batch fixture_batch(experiment_task task, int64_t first, int64_t count, int hidden);
void fixture_free(estimate_batch *batch);

/* |got - want| <= tolerance * |want|, Frobenius. */
void expect_close(const char *what, const double *got, const double *want, int64_t count, double tolerance);

void expect_ok(int status, const io_error *error);

/* A new empty directory; its path is in `path`, of 64 bytes. */
void fixture_directory(char *path);
/* Removes the directory and all that is in it. */
void fixture_remove(const char *path);

#endif
