/* SPDX-License-Identifier: MIT
 * The estimators on a sequence that an independent implementation made and evaluated: golden/README.md. */
#include "tests/experiment/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 16, LENGTH = 1024, SIZE = LENGTH * DIM };

static const char *directory;

static double *read_array(const char *name)
{
    char path[4096];
    double *array = fixture_doubles(SIZE);
    snprintf(path, sizeof path, "%s/%s.f64", directory, name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fread(array, sizeof *array, SIZE, file), SIZE);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return array;
}

static void check(estimator which, double expected_error)
{
    estimate_setup setup = fixture_setup();
    setup.mesa_ridge = 0.1;
    io_error error;
    double *keys = read_array("keys"), *values = read_array("values");
    double *want = read_array(estimator_names[which]), *got = fixture_doubles(SIZE);
    double errors[LENGTH], mean = 0;
    const estimate_batch batch = { { DIM, 256, LENGTH, 0, 0 }, 0, 1, 0, keys, values };
    expect_ok(estimate_outputs(&setup, which, &batch, got, &error), &error);
    for (int64_t i = 0; i < SIZE; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-10 * (1 + fabs(want[i]))))
            fail_msg("%s, element %d: %.17g, expected %.17g", estimator_names[which], (int)i, got[i],
                     want[i]);
    expect_close(estimator_names[which], got, want, SIZE, 1e-11);
    estimate_errors(&batch, got, errors);
    for (int i = 0; i < LENGTH; i++)
        mean += errors[i] / LENGTH;
    expect_close("mean squared error", &mean, &expected_error, 1, 1e-11);
    free(keys), free(values), free(want), free(got);
}

static void test_lla(void **state)
{
    (void)state;
    check(ESTIMATOR_LLA, 45.98867878979456);
}

static void test_softmax(void **state)
{
    (void)state;
    check(ESTIMATOR_SOFTMAX, 142.28688970109118);
}

static void test_mesa(void **state)
{
    (void)state;
    check(ESTIMATOR_MESA, 168.99156127561236);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_experiment_golden DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lla),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_mesa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
