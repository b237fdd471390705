/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include "tests/experiment/fixture.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

estimate_setup fixture_setup(void)
{
    return (estimate_setup){ .score = LOAM_DOT,
                             .bandwidth = 1,
                             .ridge = 0.1,
                             .ridge_unit = LOAM_RIDGE_MAX,
                             .mesa_ridge = 0.01,
                             .strength = 1,
                             .forget = 1,
                             .backend = LOAM_BACKEND_REFERENCE,
                             .threads = 2 };
}

double *fixture_doubles(int64_t count)
{
    double *x = calloc((size_t)count, sizeof *x);
    assert_non_null(x);
    return x;
}

estimate_batch fixture_batch(experiment_task task, int64_t first, int64_t count, int hidden)
{
    io_error error;
    const int64_t size = count * task.length * task.dim;
    estimate_batch batch = { task, first, count, hidden, fixture_doubles(size), fixture_doubles(size) };
    expect_ok(estimate_generate(&batch, 2, &error), &error);
    return batch;
}

void fixture_free(estimate_batch *batch)
{
    free(batch->keys);
    free(batch->values);
}

void expect_close(const char *what, const double *got, const double *want, int64_t count, double tolerance)
{
    double miss = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        miss += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    if (!(sqrt(miss) <= tolerance * sqrt(size)))
        fail_msg("%s: relative error %g, at most %g expected", what, sqrt(miss / size), tolerance);
}

void expect_ok(int status, const io_error *error)
{
    if (status != EXIT_OK) fail_msg("status %d: %s", status, error->text);
}

void fixture_directory(char *path)
{
    strcpy(path, "/tmp/loam-experiment-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *place)
{
    (void)info, (void)flag, (void)place;
    return remove(path);
}

void fixture_remove(const char *path)
{
    assert_int_equal(nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}
