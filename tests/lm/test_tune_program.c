/* SPDX-License-Identifier: MIT
 * loam lm tune as a user runs it, killed and continued, on tiny models and students. */
#include "tests/lm/featured.h"
#include "tests/lm/ridge_texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FEW "--tokenizer " TOKENIZER " --text long.txt --context 16 "

/* A student of llama with features of any numbers, in layer 0 other ones than in layer 1. */
static void make_student(void)
{
    make_texts();
    const outcome made = run_shell(
        "rm -rf s; mkdir s; for i in 1 2 3 4 5 6 7 8; do cat t.txt u.txt; done >long.txt");
    expect_status(&made, 0);
    write_featured("s", MODELS "llama", 11, false);
}

/* The number behind a word of the line that begins so, the last one of them. */
static double told_of(const outcome *told, const char *line, const char *word)
{
    const char *at = NULL;
    for (const char *next = told->out; (next = strstr(next, line)); next++)
        at = next;
    at = at ? strstr(at, word) : NULL;
    if (!at) fail_msg("no %s, %s in\n%s", line, word, told->out);
    return strtod(at + strlen(word), NULL);
}

static double nll_of(const char *model)
{
    double nll = 0;
    const outcome eval = run_loam("lm eval %s --tokenizer " TOKENIZER " --text long.txt --context 16", model);
    expect_status(&eval, 0);
    const char *const line = strstr(eval.out, "\nlong.txt ");
    assert_true(line && sscanf(line, "\nlong.txt %*d %lf", &nll) == 1);
    return nll;
}

/* Features alone: what is held out is predicted better, and so it is by the model that was written. */
static void test_direct(void **state)
{
    (void)state;
    make_student();
    const outcome told = run_loam("lm tune s " FEW "--steps 40 --batch 4 --rate 0.02 --out d");
    expect_status(&told, 0);
    /* 8 heads of 11 features, and of 24, with 4 channels and a weight each. */
    assert_non_null(strstr(told.out, "numbers move; "));
    assert_true(told_of(&told, "kept  ", "NLL") < told_of(&told, "start  ", "NLL") - 0.02);
    assert_true(nll_of("d") < nll_of("s") - 0.02);
    assert_null(strstr(told.out, "teacher"));
    assert_true(shell_holds("test $(wc -l <d/tune.csv) = 12"));
    assert_false(shell_holds("ls d/state* d/best* 2>/dev/null | grep -q ."));
    /* Whatever is no feature has the bytes that it had. */
    assert_true(shell_holds("cmp -s s/config.json d/config.json"));
    assert_false(shell_holds("cmp -s s/model.safetensors d/model.safetensors"));
}

/* Steps of all weights that lead nowhere: the start is kept, to the bit. */
static void test_start(void **state)
{
    (void)state;
    make_student();
    const outcome told = run_loam("lm tune s " FEW "--what all --steps 10 --rate 300 --out far");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "kept is the state after step 0; a step took "));
    assert_true(fabs(told_of(&told, "kept  ", "NLL") - told_of(&told, "start  ", "NLL")) <= 0);
    assert_true(shell_holds("cmp -s s/model.safetensors far/model.safetensors"));
}

/* The divergence from the teacher falls; and what was written begins where the run ended. */
static void test_heal(void **state)
{
    static const char *const kinds[] = { "lora", "both", "all" };
    (void)state;
    make_student();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const outcome told = run_loam("lm tune s " FEW "--what %s --teacher " MODELS
                                      "llama --kl 20 --steps 40 --batch 4 --rate 0.01 --out h%zu",
                                      kinds[i], i);
        expect_status(&told, 0);
        const double before = told_of(&told, "start  ", "teacher"),
                     after = told_of(&told, "kept  ", "teacher");
        if (!(after < 0.9 * before)) fail_msg("%s: divergence %g, from %g", kinds[i], after, before);
        const outcome again = run_loam(
            "lm tune h%zu " FEW "--teacher " MODELS "llama --steps 1 --rate 0 --out again", i);
        expect_status(&again, 0);
        assert_true(fabs(told_of(&again, "start  ", "NLL") - told_of(&told, "kept  ", "NLL")) < 1.1e-4);
        assert_true(fabs(told_of(&again, "start  ", "teacher") - after) < 1.1e-4);
    }
}

/* A plain model has LoRA and all weights, and the teacher that it is itself is not far. */
static void test_plain(void **state)
{
    (void)state;
    make_student();
    const outcome told = run_loam("lm tune " MODELS "llama " FEW "--what lora --teacher " MODELS
                                  "llama --kl 0 --steps 20 --rate 0.02 --rank 2 --out p");
    expect_status(&told, 0);
    assert_true(fabs(told_of(&told, "start  ", "teacher")) < 1e-4);
    assert_true(told_of(&told, "kept  ", "NLL") < told_of(&told, "start  ", "NLL"));
    assert_true(nll_of("p") < nll_of(MODELS "llama"));
}

/* Cut short again and again, or killed: the same bytes as in one go. */
static void test_resume(void **state)
{
    static const char same[] = "cmp -s whole/model.safetensors %s/model.safetensors && "
                               "cmp -s whole/tune.csv %s/tune.csv";
    char condition[128];
    (void)state;
    make_student();
#define LINE "lm tune s " FEW "--what both --teacher " MODELS "llama --steps 12 --batch 2 --rate 0.01 "
    outcome told = run_loam(LINE "--out whole");
    expect_status(&told, 0);
    for (int piece = 0; piece < 3; piece++) {
        told = run_loam(LINE "--out cut --time 1e-5 --threads 1");
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, "The time is over"));
    }
    assert_true(shell_holds("test -f cut/state.safetensors && test -f cut/best.safetensors"));
    assert_false(shell_holds("test -f cut/model.safetensors"));
    told = run_loam(LINE "--out cut");
    expect_status(&told, 0);
    snprintf(condition, sizeof condition, same, "cut", "cut");
    assert_true(shell_holds(condition));
    assert_true(kill_loam(LINE "--checkpoint 0 --out killed", "test -f killed/state.safetensors"));
    told = run_loam(LINE "--out killed");
    expect_status(&told, 0);
    snprintf(condition, sizeof condition, same, "killed", "killed");
    assert_true(shell_holds(condition));
    /* Of other options: the checkpoint is another run's. */
    told = run_loam(LINE "--out other --time 1e-6");
    expect_status(&told, 0);
    told = run_loam(LINE "--out other --kl 2");
    expect_complaint(&told, EXIT_INPUT, "weight 2");
    told = run_shell("rm other/best.safetensors");
    told = run_loam(LINE "--out other");
    expect_complaint(&told, EXIT_INPUT, "best.safetensors is not there");
    told = run_loam(LINE "--out other --kl 2 --restart");
    expect_status(&told, 0);
}

static void test_refusals(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected one model, --text and --out" },
        { "s --text t.txt", EXIT_USAGE, "expected one model, --text and --out" },
        { "s --text t.txt --out w --what weights", EXIT_USAGE, "--what weights" },
        { "s --text t.txt --out w --kl 1", EXIT_USAGE, "--kl 1: expected with --teacher" },
        { "s --text t.txt --out w --batch 3 --micro-batch 2", EXIT_USAGE, "no multiple of --micro-batch 2" },
        { MODELS "llama " FEW "--out w", EXIT_USAGE, "has no features; expected lora or all" },
        { "s " FEW "--out w --teacher none", EXIT_INPUT, "none" },
        { "s " FEW "--out w --teacher " MODELS "bert", EXIT_INPUT, "it sees the whole text" },
        { "s " FEW "--out w --teacher brief", EXIT_INPUT, "--teacher: 64 tokens, 8 of them at once" },
        { "s --tokenizer " TOKENIZER " --text none.txt --out w", EXIT_INPUT, "none.txt" },
        { "s --tokenizer " TOKENIZER " --text long.txt --context 99 --out w", EXIT_USAGE, "at most 32" },
        { "s --text long.txt --out w", EXIT_INPUT, "tokenizer.json" },
    };
    (void)state;
    make_student();
    const outcome made = run_shell(
        "mkdir brief; cp " MODELS "llama/*.* brief; "
        "sed -i 's/\"max_position_embeddings\": 32/\"max_position_embeddings\": 8/' "
        "brief/config.json");
    expect_status(&made, 0);
    expect_refusals("lm tune", cases, sizeof cases / sizeof *cases, "w");
    const outcome told = run_loam("experiment graft s " FEW "--tiny --out w");
    expect_complaint(&told, EXIT_INPUT, "it has features; expected softmax");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct), cmocka_unit_test(test_start),  cmocka_unit_test(test_heal),
        cmocka_unit_test(test_plain),  cmocka_unit_test(test_resume), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
