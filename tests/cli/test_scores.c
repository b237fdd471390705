/* SPDX-License-Identifier: MIT
 * `loam attend` with FoX, PaTH and RoPE against results that NumPy made (data/make_scores.py). */
#include "io/error.h"
#include "tests/cli/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define X "$DATA/scores.safetensors:"
static const char QKV[] = "--q " X "q --k " X "k --v " X "v --out o.npy";

#define FOX "--log-decay " X "log_decay "
#define PATH "--w " X "w --beta " X "beta "

static const char FIXTURE[] = "scores";

typedef struct score_case {
    const char *name; /* in scores.safetensors */
    const char *arguments;
    const char *gradients; /* beside dq, dk, dv and dscale */
} score_case;

static const score_case CASES[] = {
    { "fox", "fox " FOX, "dlog_decay" },
    { "fox", "softmax " FOX, "dlog_decay" },
    { "path", "path " PATH, "dw dbeta" },
    { "path_fox", "path " PATH FOX, "dw dbeta dlog_decay" },
    { "rope", "softmax --rope 100", "" },
    { "rope_part", "softmax --rope 10000 --rope-layout interleaved --rope-dim 2 --rope-offset 7", "" },
};

static void run_case(const score_case *c, const char *options, double tolerance, double gradient_tolerance)
{
    outcome result = run_loam("attend %s %s %s --grad-out " X "grad_out --grad-dir g", c->arguments, QKV,
                              options);
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    expect_tensor(FIXTURE, "o.npy", c->name, "o", tolerance);
    expect_gradients(FIXTURE, c->name, c->gradients, gradient_tolerance);
    run_shell("rm -r g o.npy");
}

static void scores_match_numpy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        run_case(&CASES[i], "--dtype f64", 1e-12, 1e-8);
        run_case(&CASES[i], "", 1e-5, 1e-4);
    }
}

/* A turn keeps lengths: for a key and a query at one place nothing changes. */
static void recurrences_turn_too(void **state)
{
    (void)state;
    static const char inputs[] = "attend linear --q " X "k --k " X "k --v " X "v --dtype f64 --out";
    outcome result = run_loam("%s plain.npy", inputs);
    expect_status(&result, 0);
    result = run_loam("%s turned.npy --rope 10000", inputs);
    expect_status(&result, 0);
    array plain = read_array("plain.npy"), turned = read_array("turned.npy");
    double first = 0, all = 0;
    for (int64_t i = 0; i < plain.count; i++) {
        const double difference = array_get(&plain, i) - array_get(&turned, i);
        all += difference * difference;
        if (i % (6 * 2) < 2) first += difference * difference; /* token 0 of each head sees itself alone */
    }
    assert_true(first < 1e-24 && all > 1e-3);
    array_free(&plain);
    array_free(&turned);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *arguments, *complaint;
    } bad[] = {
        { EXIT_USAGE, "softmax --rope 1", "--rope: base: 1" },
        { EXIT_USAGE, "softmax --rope 0.5", "--rope 0.5: expected" },
        { EXIT_USAGE, "softmax --rope 100 --rope-layout both",
          "--rope-layout both: expected half or interleaved" },
        { EXIT_USAGE, "softmax --rope 100 --rope-dim 3", "--rope: dim: 3" },
        { EXIT_USAGE, "softmax --rope 100 --rope-dim 6", "--rope: dim: 6" },
        { EXIT_USAGE, "softmax --rope-dim 2", "need --rope BASE" },
        { EXIT_USAGE, "fox --full " FOX, "decay: 1, expected 0 where causal is 0" },
        { EXIT_USAGE, "path --window 3 " PATH, "path: 1, expected 0 with a window" },
        { EXIT_INPUT, "fox --log-decay " X "beta", "expected (1, 4, 6)" },
        { EXIT_INPUT, "path --w " X "w --beta " X "log_decay", "expected (1, 2, 6)" },
        { EXIT_INPUT, "path --beta " X "beta --w " X "q", "expected the same shape" },
        { EXIT_INPUT, "path --w " X "k", "w: length " },
        { EXIT_INPUT, "path --dtype f64 --w " X "k", "w: length " },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        outcome result = run_loam("attend %s %s", QKV, bad[i].arguments);
        expect_complaint(&result, bad[i].status, bad[i].complaint);
        assert_false(file_exists("o.npy"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_match_numpy),
        cmocka_unit_test(recurrences_turn_too),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
