/* SPDX-License-Identifier: MIT
 * `loam attend` with the recurrent family against results that NumPy made (data/make_recurrent.py). */
#include "io/error.h"
#include "io/npy.h"
#include "loam.h"
#include "tests/cli/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define X "$DATA/recurrent.safetensors:"
static const char QKV[] = "--q " X "q --k " X "k --v " X "v --out o.npy";

static const char FIXTURE[] = "recurrent";

typedef struct recurrent_case {
    const char *name; /* in recurrent.safetensors */
    const char *arguments;
    const char *state;     /* ending of --state-in and --grad-state-out, NULL for none */
    const char *gradients; /* beside dq, dk, dv and dscale */
} recurrent_case;

static const recurrent_case CASES[] = {
    { "linear", "linear", NULL, "" },
    { "linear_normalised", "linear --feature-map elu --normalise", "_normalised", "dstate" },
    { "retention", "retention", NULL, "dlog_decay" },
    { "retention_given", "retention --log-decay " X "log_decay_head", NULL, "dlog_decay" },
    { "ssd", "ssd --log-decay " X "log_decay --beta " X "beta", "", "dlog_decay dbeta dstate" },
    { "gla", "gla --log-decay " X "log_decay_channel", "", "dlog_decay dstate" },
    { "delta", "delta --feature-map unit --beta " X "beta", NULL, "dbeta" },
    { "gated_delta", "gated_delta --feature-map unit --log-decay " X "log_decay --beta " X "beta", "",
      "dlog_decay dbeta dstate" },
    { "kda", "kda --feature-map unit --log-decay " X "log_decay_channel --beta " X "beta", "",
      "dlog_decay dbeta dstate" },
    { "mesa", "mesa --ridge 0.5", NULL, "dridge dlog_decay dbeta" },
    { "mesa_head", "mesa --ridge " X "ridge_head --log-decay " X "log_decay --beta " X "beta", NULL,
      "dridge dlog_decay dbeta" },
    { "mesa_channel", "mesa --ridge " X "ridge_channel --log-decay " X "log_decay --beta " X "beta", "_mesa",
      "dridge dlog_decay dbeta dstate" },
};

static void run_case(const recurrent_case *c, const char *options, double tolerance,
                     double gradient_tolerance)
{
    char states[160] = "";
    if (c->state)
        snprintf(states, sizeof states, "--state-in " X "state%s --grad-state-out " X "grad_state%s",
                 c->state, c->state);
    outcome result = run_loam("attend %s %s %s %s --state-out s.npy --info info.csv --grad-out " X
                              "grad_out --grad-dir g",
                              c->arguments, QKV, states, options);
    expect_status(&result, 0);
    assert_string_equal(result.err, "");
    expect_tensor(FIXTURE, "o.npy", c->name, "o", tolerance);
    expect_tensor(FIXTURE, "s.npy", c->name, "state", tolerance);
    expect_gradients(FIXTURE, c->name, c->gradients, gradient_tolerance);
    result = run_shell("wc -l <info.csv; rm -r g *.npy info.csv");
    assert_string_equal(result.out, "41\n");
}

static void every_mechanism_matches_numpy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        run_case(&CASES[i], "--dtype f64", 1e-12, 1e-8);
        run_case(&CASES[i], "", 1e-5, 1e-4);
    }
}

/* Tokens first..end-1 of a tensor of $DATA/recurrent.safetensors,
 * of batch 0 and head 0: rank 2, or 1 without channels. */
static void save_part(const char *tensor, int64_t first, int64_t end, const char *path)
{
    array a = fixture("recurrent", tensor), part;
    const int64_t channels = a.rank == 4 ? a.shape[3] : 1, shape[] = { end - first, channels };
    assert_int_equal(array_create(&part, LOAM_F64, a.rank == 4 ? 2 : 1, shape, "part", NULL), 0);
    for (int64_t i = 0; i < part.count; i++)
        array_set(&part, i, array_get(&a, first * channels + i));
    assert_int_equal(npy_write(path, &part, NULL), 0);
    array_free(&a);
    array_free(&part);
}

static void save_parts(int64_t first, int64_t end)
{
    save_part("q", first, end, "q.npy");
    save_part("k", first, end, "k.npy");
    save_part("v", first, end, "v.npy");
    save_part("log_decay", first, end, "g.npy");
    save_part("beta", first, end, "b.npy");
}

static void expect_first_head(const char *path, const char *tensor)
{
    array got = read_array(path), all = fixture("recurrent", tensor);
    for (int64_t i = 0; i < got.count; i++)
        assert_true(fabs(array_get(&got, i) - array_get(&all, i)) < 1e-12);
    array_free(&got);
    array_free(&all);
}

/* Arrays without batch and heads, and a sequence in two parts with the state carried. */
static void states_carry_on(void **state)
{
    (void)state;
    static const char *const arguments =
        "attend gated-delta --feature-map unit --dtype f64 --q q.npy --k k.npy "
        "--v v.npy --log-decay g.npy --beta b.npy --out o.npy";
    array all = fixture("recurrent", "state");
    array_free(&all);
    save_part("state", 0, 2, "s.npy");
    save_parts(0, 3);
    outcome result = run_loam("%s --state-in s.npy --state-out s3.npy", arguments);
    expect_status(&result, 0);
    expect_first_head("o.npy", "gated_delta.o");
    save_parts(3, 5);
    result = run_loam("%s --state-in s3.npy --state-out s5.npy", arguments);
    expect_status(&result, 0);
    expect_first_head("s5.npy", "gated_delta.state");
}

/* A log decay of -inf forgets all: what comes after it is as if the sequence began there. */
static void forgetting_everything_is_allowed(void **state)
{
    (void)state;
    static const char *const arguments =
        "attend ssd --dtype f64 --q q.npy --k k.npy --v v.npy --log-decay g.npy "
        "--beta b.npy --state-out s.npy --out o.npy";
    save_parts(0, 5);
    array g = read_array("g.npy");
    array_set(&g, 3, -INFINITY);
    assert_int_equal(npy_write("g.npy", &g, NULL), 0);
    array_free(&g);
    outcome result = run_loam("%s", arguments);
    expect_status(&result, 0);
    result = run_shell("mv s.npy whole.npy");
    save_parts(3, 5);
    result = run_loam("%s", arguments);
    expect_status(&result, 0);
    array whole = read_array("whole.npy"), part = read_array("s.npy");
    expect_arrays_near("state", &whole, &part, 1e-14);
    array_free(&whole);
    array_free(&part);
}

/* Softmax on what Gated DeltaNet leaves over; its gradients
 * by tests/recurrent, here that they are written. */
static void interpolation_matches_numpy(void **state)
{
    (void)state;
    static const char inputs[] = "--q " X "q --k " X "k --v " X "pair_v --log-decay " X
                                 "pair_log_decay --beta " X "pair_beta --state-in " X
                                 "pair_state --out o.npy";
    outcome result = run_loam("attend interpolation --linear gated_delta %s --dtype f64", inputs);
    expect_status(&result, 0);
    expect_tensor(FIXTURE, "o.npy", "interpolation", "o", 1e-12);
    result = run_loam("attend interpolation --linear gated-delta %s --grad-out " X
                      "pair_v --grad-dir g --state-out s.npy",
                      inputs);
    expect_status(&result, 0);
    expect_tensor(FIXTURE, "o.npy", "interpolation", "o", 1e-5);
    result = run_shell("ls g | tr '\\n' ' '; rm -r g o.npy s.npy");
    assert_string_equal(result.out, "dbeta.npy dk.npy dlog_decay.npy dq.npy dscale.npy dstate.npy dv.npy ");
}

typedef struct bad_case {
    int status;
    const char *arguments, *complaint;
} bad_case;

#define DECAY "--log-decay " X "log_decay "
#define BETA "--beta " X "beta "

static const bad_case BAD[] = {
    { EXIT_USAGE, "gated-dleta", "unknown mechanism 'gated-dleta'; did you mean gated-delta" },
    { EXIT_USAGE, "interpolation", "--linear NAME is needed for interpolation" },
    { EXIT_USAGE, "interpolation --linear softmax", "--linear softmax: expected a recurrence" },
    { EXIT_USAGE, "interpolation --linear lineer", "unknown mechanism 'lineer'; did you mean linear" },
    { EXIT_USAGE, "linear --linear linear", "--linear NAME is for interpolation only" },
    { EXIT_USAGE, "interpolation --linear linear --kernel x", "--kernel and --grad-kernel: interpolation" },
    { EXIT_INPUT, "interpolation --linear linear", "heads_v: 2 of the local problem and 4" },
    { EXIT_USAGE, "interpolation --linear linear --v " X "q --feature-map elu", "feature_map" },
    { EXIT_USAGE, "path " BETA, "--w F is needed for path" },
    { EXIT_USAGE, "softmax " BETA, "--beta needs --w for softmax" },
    { EXIT_USAGE, "delta " DECAY BETA, "fox and path, not for delta" },
    { EXIT_USAGE, "interpolation --linear linear " BETA, "fox and path, not for interpolation" },
    { EXIT_USAGE, "linear --ridge 1", "--ridge is for lla and mesa, not for linear" },
    { EXIT_USAGE, "mesa --ridge-unit max", "--ridge-unit is for lla, not for mesa" },
    { EXIT_USAGE, "mesa --ridge 0", "ridge: 0, expected a finite number > 0" },
    { EXIT_USAGE, "linear --lse l.npy", "--lse is for softmax" },
    { EXIT_USAGE, "linear --weights w.npy", "--weights is for softmax" },
    { EXIT_USAGE, "linear --w " X "k", "--w is for softmax" },
    { EXIT_USAGE, "linear --feature-map relu",
      "--feature-map relu: expected identity, elu, unit or positive" },
    { EXIT_USAGE, "linear --slope " X "ridge_head",
      "--slope is for softmax, parallax, lla, fox and path, not for" },
    { EXIT_USAGE, "linear --window 3", "window: 3, expected 0" },
    { EXIT_USAGE, "linear --full", "causal: 0, expected 1" },
    { EXIT_USAGE, "linear --grad-state-out " X "grad_state", "--grad-state-out needs --grad-out" },
    { EXIT_INPUT, "gla " DECAY,
      ":log_decay has shape (2, 4, 5): with --v of shape (2, 4, 5, 2) expected (2, 4, 5, 3)" },
    { EXIT_INPUT, "ssd --log-decay " X "log_decay_channel " BETA, "expected (2, 4, 5)" },
    { EXIT_INPUT, "retention " DECAY, "expected (4,)" },
    { EXIT_INPUT, "delta --beta " X "ridge_head", ":ridge_head has shape (4,): with --v of shape" },
    { EXIT_INPUT, "linear --state-in " X "state_mesa", "expected (2, 4, 2, 3)" },
    { EXIT_INPUT, "linear --normalise --state-in " X "state", "expected (2, 4, 3, 3)" },
    { EXIT_INPUT, "mesa --state-in " X "state", "expected (2, 4, 5, 3)" },
    { EXIT_INPUT, "mesa --ridge " X "beta", "expected (), (1,), (Hv,) or (Hv,D)" },
    { EXIT_INPUT, "mesa --ridge minus.npy", "minus.npy: the ridge at (3,) is -1: expected a number above 0" },
    { EXIT_INPUT, "retention --log-decay minus.npy",
      "minus.npy: the log decay at (0,) is 1: expected a logarithm from -inf to 0" },
    { EXIT_INPUT, "retention --log-decay nan.npy", "nan.npy: the log decay at (1,) is" },
    { EXIT_INPUT, "delta --beta three.npy",
      "three.npy: the beta at (0, 0, 0) is 3: expected a number from 0 to 2" },
    { EXIT_INPUT, "linear --state-in " X "q", ":q has shape (2, 2, 5, 3)" },
    { EXIT_INPUT, "linear --grad-dir g --grad-out " X "q", "expected the same shape" },
    { EXIT_INPUT, "linear --k " X "log_decay_channel", "expected the same shape" },
    { EXIT_INPUT, "fox --v " X "k " DECAY,
      ":log_decay has shape (2, 4, 5): with --q of shape (2, 2, 5, 3) expected (2, 2, 5)" },
    { EXIT_INPUT, "path --v " X "k --w " X "v " BETA, "expected the same shape" },
    { EXIT_OUTPUT, "linear --state-out nosuch/s.npy", "cannot write nosuch/s.npy" },
};

static void save_filled(const char *path, int rank, const int64_t *shape, const double *values, double other)
{
    array a;
    assert_int_equal(array_create(&a, LOAM_F32, rank, shape, path, NULL), 0);
    for (int64_t i = 0; i < a.count; i++)
        array_set(&a, i, values ? values[i] : other);
    assert_int_equal(npy_write(path, &a, NULL), 0);
    array_free(&a);
}

/* q, k and v, but those that the arguments have. */
static const char *inputs_but(const char *arguments)
{
    static char text[256];
    static const char *const inputs[] = { "--q " X "q ", "--k " X "k ", "--v " X "v " };
    *text = '\0';
    for (int i = 0; i < 3; i++) {
        const char option[] = { ' ', '-', '-', inputs[i][2], ' ', '\0' };
        if (!strstr(arguments, option)) strcat(text, inputs[i]);
    }
    return text;
}

static void every_mistake_is_named(void **state)
{
    (void)state;
    const int64_t four = 4, tokens[] = { 2, 4, 5 };
    save_filled("minus.npy", 1, &four, (const double[]){ 1, 2, 3, -1 }, 0);
    save_filled("nan.npy", 1, &four, (const double[]){ -1, NAN, -3, -1 }, 0);
    save_filled("three.npy", 3, tokens, NULL, 3);
    run_shell("rm -f o.npy");
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        outcome result = run_loam("attend --out o.npy %s %s", inputs_but(BAD[i].arguments), BAD[i].arguments);
        expect_complaint(&result, BAD[i].status, BAD[i].complaint);
        if (file_exists("o.npy") || file_exists("g") || count_files(".loam-"))
            fail_msg("a file was left by: loam attend %s", BAD[i].arguments);
    }
}

typedef int has_fn(const loam_mechanism_info *info);

static int may_decay(const loam_mechanism_info *info)
{
    return info->family == LOAM_FAMILY_LOCAL || info->log_decay != LOAM_DECAY_NONE;
}
static int may_write(const loam_mechanism_info *info)
{
    return info->family == LOAM_FAMILY_LOCAL || info->beta;
}
static int has_state(const loam_mechanism_info *info) { return info->family == LOAM_FAMILY_RECURRENT; }
static int has_mean(const loam_mechanism_info *info) { return info->normalise; }

/* "a, b and c": the mechanisms that have it, and fox and path, which are scores, where those have it too. */
static void list_those(char *text, has_fn *has, int scores)
{
    const char *words[64];
    int count = 0;
    loam_mechanism_info info;
    for (int m = 0; loam_mechanism_at(m, &info) == LOAM_OK; m++)
        if (has(&info)) words[count++] = info.name;
    if (scores) words[count++] = "fox", words[count++] = "path";
    *text = '\0';
    for (int i = 0; i < count; i++) {
        strcat(text, words[i]);
        strcat(text, i + 2 < count ? ", " : i + 2 == count ? " and " : "");
    }
}

static void those_that_have_an_option_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *mechanism, *option, *rest;
        has_fn *has;
        int scores;
    } wrong[] = {
        { "linear", "--log-decay", X "log_decay", may_decay, 1 },
        { "gla", "--beta", X "beta " DECAY, may_write, 1 },
        { "softmax", "--state-in", X "state", has_state, 0 },
        { "lla", "--state-out", "s.npy", has_state, 0 },
        { "softmax", "--feature-map", "elu", has_state, 0 },
        { "lla", "--normalise", "", has_mean, 0 },
        { "delta", "--normalise", BETA, has_mean, 0 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char those[1024], complaint[1200];
        list_those(those, wrong[i].has, wrong[i].scores);
        snprintf(complaint, sizeof complaint, "%s is for %s, not for %s", wrong[i].option, those,
                 wrong[i].mechanism);
        outcome result = run_loam("attend %s %s %s %s", wrong[i].mechanism, QKV, wrong[i].option,
                                  wrong[i].rest);
        expect_complaint(&result, EXIT_USAGE, complaint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mechanism_matches_numpy),
        cmocka_unit_test(states_carry_on),
        cmocka_unit_test(forgetting_everything_is_allowed),
        cmocka_unit_test(interpolation_matches_numpy),
        cmocka_unit_test(every_mistake_is_named),
        cmocka_unit_test(those_that_have_an_option_are_named),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
