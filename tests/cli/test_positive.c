/* SPDX-License-Identifier: MIT
 * `loam attend linear --feature-map positive` against results that NumPy made (data/make_positive.py). */
#include "io/array.h"
#include "io/error.h"
#include "io/npy.h"
#include "tests/cli/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define X "$DATA/positive.safetensors:"
static const char FIXTURE[] = "positive";
static const char QKV[] = "attend linear --feature-map positive --q " X "q --k " X "k --v " X "v --out o.npy";

static void run_case(const char *name, const char *ending, const char *options, double tolerance,
                     double gradient_tolerance)
{
    static const char *const gradients[] = { "dq", "dk", "dv", "dz", "dlog_alpha" };
    outcome result = run_loam(
        "%s --z " X "z%s --log-alpha " X "log_alpha%s --shift " X "shift%s --balance " X "balance%s "
        "--balance-keys " X "balance_keys%s --grad-out " X "grad_out --grad-dir g --info i.csv %s",
        QKV, ending, ending, ending, ending, ending, options);
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    expect_tensor(FIXTURE, "o.npy", name, "o", tolerance);
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++) {
        char path[32];
        snprintf(path, sizeof path, "g/%s.npy", gradients[i]);
        expect_tensor(FIXTURE, path, name, gradients[i], gradient_tolerance);
    }
    result = run_shell("ls g | wc -l; wc -l <i.csv; rm -r g o.npy i.csv");
    assert_string_equal(result.out, "5\n41\n");
}

static void matches_numpy(void **state)
{
    (void)state;
    run_case("each", "", "--dtype f64 --backend reference", 1e-12, 1e-8);
    run_case("each", "", "", 1e-5, 1e-4);
    run_case("shared", "_shared", "--dtype f64 --backend reference", 1e-12, 1e-8);
    run_case("shared", "_shared", "", 1e-5, 1e-4);
}

/* Channels and tokens alone, of which a part begins with the state of the part before. */
static void states_carry_on(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "z" };
    static const char arguments[] = "attend linear --feature-map positive --z z.npy";
    for (int i = 0; i < 4; i++) {
        array all = fixture(FIXTURE, names[i]), part;
        const int64_t rows = all.shape[all.rank - 2], channels = all.shape[all.rank - 1];
        for (int half = 0; half < 2; half++) {
            const int64_t shape[] = { i == 3 ? rows : half ? rows - 2 : 2, channels };
            char path[16];
            assert_int_equal(array_create(&part, LOAM_F32, 2, shape, "part", NULL), 0);
            for (int64_t e = 0; e < part.count; e++)
                array_set(&part, e, array_get(&all, e + (half && i < 3 ? 2 * channels : 0)));
            snprintf(path, sizeof path, i < 3 ? "%s%d.npy" : "%s.npy", names[i], half);
            assert_int_equal(npy_write(path, &part, NULL), 0);
            array_free(&part);
        }
        array_free(&all);
    }
    outcome result = run_loam("%s --q q0.npy --k k0.npy --v v0.npy --out o.npy --state-out s.npy", arguments);
    expect_status(&result, 0);
    result = run_loam("%s --q q1.npy --k k1.npy --v v1.npy --out rest.npy --state-in s.npy --state-out t.npy",
                      arguments);
    expect_status(&result, 0);
    result = run_loam("attend linear --feature-map positive --q " X "q --k " X "k --v " X "v --z " X
                      "z --out all.npy --state-out u.npy");
    expect_status(&result, 0);
    array all = read_array("all.npy"), rest = read_array("rest.npy"), u = read_array("u.npy"),
          t = read_array("t.npy");
    assert_int_equal(t.rank, 2);
    assert_true(t.shape[0] == 4 && t.shape[1] == 6 && u.rank == 4);
    for (int64_t e = 0; e < rest.count; e++)
        assert_float_equal(array_get(&rest, e), array_get(&all, 4 + e), 1e-5);
    for (int64_t e = 0; e < t.count; e++)
        assert_float_equal(array_get(&t, e), array_get(&u, e), 1e-5);
    array_free(&all);
    array_free(&rest);
    array_free(&u);
    array_free(&t);
}

static const struct {
    int status;
    const char *arguments, *complaint;
} BAD[] = {
    { EXIT_USAGE, "", "--z F is needed for --feature-map positive" },
    { EXIT_USAGE, "--z " X "z --balance " X "balance", "--balance-keys F are given together" },
    { EXIT_INPUT, "--z " X "q", "expected (Hq,M,D), or (Hk,M,D)" },
    { EXIT_INPUT, "--z " X "shift", "expected (Hq,M,D)" },
    { EXIT_INPUT, "--z " X "z --shift " X "shift_shared", "expected (4, 3)" },
    { EXIT_INPUT, "--z " X "z --log-alpha " X "shift", "expected (4, 6)" },
    { EXIT_INPUT, "--z " X "z --balance " X "z --balance-keys " X "z", "expected (4, 3, 3)" },
    { EXIT_INPUT, "--z " X "z --grad-dir g --grad-out " X "v", "the same batch, heads and tokens" },
    { EXIT_INPUT, "--z " X "z --state-in " X "k", "expected (2, 4, 4, 6)" },
};

static void bad_input_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        outcome result = run_loam("%s %s", QKV, BAD[i].arguments);
        expect_status(&result, BAD[i].status);
        if (!strstr(result.err, BAD[i].complaint)) fail_msg("%s: %s", BAD[i].arguments, result.err);
    }
    outcome result = run_loam("attend gla --feature-map positive --q " X "q --k " X "q --v " X "q --z " X
                              "z --out o.npy");
    expect_status(&result, EXIT_USAGE);
    assert_non_null(strstr(result.err, "expected linear"));
    result = run_loam("attend linear --feature-map positive --q " X "q --k " X "k --v " X "q --z " X
                      "z --out o.npy");
    expect_status(&result, EXIT_INPUT);
    assert_non_null(strstr(result.err, "the same batch, heads and tokens"));
    result = run_loam("attend linear --q " X "q --k " X "q --v " X "q --shift " X "shift --out o.npy");
    expect_status(&result, EXIT_USAGE);
    assert_non_null(strstr(result.err, "--shift goes with --feature-map positive"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_numpy),
        cmocka_unit_test(states_carry_on),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
