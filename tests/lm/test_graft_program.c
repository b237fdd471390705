/* SPDX-License-Identifier: MIT
 * loam experiment graft as a user runs it, killed and continued, on tiny models. */
#include "tests/lm/ridge_texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FEW "--tokenizer " TOKENIZER " --text long.txt --tiny"
#define SAME \
    "for f in nll.csv heads.csv probe.csv curves.csv index.html; do cmp -s %s/$f %s/$f || exit 1; done"

static void make_long_text(void)
{
    make_texts();
    const outcome made = run_shell("for i in 1 2 3 4 5 6 7 8; do cat t.txt u.txt; done >long.txt");
    expect_status(&made, 0);
}

static bool are_same(const char *a, const char *b)
{
    char condition[256];
    snprintf(condition, sizeof condition, SAME, a, b);
    return shell_holds(condition);
}

static void test_program(void **state)
{
    static const char *const files[] = { "nll.csv",    "heads.csv", "probe.csv",
                                         "curves.csv", "times.csv", "index.html" };
    static const char *const names[] = { "gpt2", "gpt2-scaled", "neox", "llama" };
    (void)state;
    make_long_text();
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        const outcome told = run_loam("experiment graft " MODELS "%s " FEW " --out r%zu", names[m], m);
        char path[64];
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, "6 runs\n"));
        assert_non_null(strstr(told.out, "minutes left"));
        assert_non_null(strstr(told.out, "than 5e-3.\n  held"));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "r%zu/%s", m, files[i]);
            assert_true(file_exists(path));
        }
        snprintf(path, sizeof path, "r%zu/state", m);
        assert_int_equal(file_exists(path), !shell_holds("command -v gnuplot >/dev/null"));
    }
    assert_false(shell_holds("ls r*/*.safetensors 2>/dev/null | grep -q ."));
    /* As many parameters as the control, and 8 heads of llama. */
    assert_true(shell_holds("test $(sed -n 2p r3/times.csv | cut -d, -f3) = 8"));
    assert_true(shell_holds(
        "test $(sed -n 5p r3/times.csv | cut -d, -f3) = $(sed -n 6p r3/times.csv | cut -d, -f3)"));
}

/* The model as it is, on windows of a file of its own, is what loam lm eval says of them: but for the first
 * token, which has one before it there. */
static void test_start(void **state)
{
    (void)state;
    make_long_text();
    const outcome told = run_loam("experiment graft " MODELS "llama " FEW
                                  " --held u.txt --train lora --tokens 16 --steps 1 --out s");
    expect_status(&told, 0);
    assert_true(shell_holds("test $(grep -c u.txt s/nll.csv) = 2"));
    assert_true(shell_holds("test $(sed -n 2p s/nll.csv | cut -d, -f3,4) = 1,16"));
    assert_false(file_exists("s/heads.csv"));
    assert_false(file_exists("s/probe.csv"));
    assert_true(shell_holds("grep -q lora s/curves.csv"));
    assert_false(shell_holds("grep -q ridges s/curves.csv"));
}

/* Large enough rates are felt: what was trained is better on the text that it was trained on; ridges have
 * moved from where they began. */
static void test_learns(void **state)
{
    (void)state;
    make_long_text();
    const outcome told = run_loam("experiment graft " MODELS "llama " FEW
                                  " --held long.txt --steps 60 --lora-rate 0.05 --parallax-rate 0.05 "
                                  "--temperature-rate 0.05 --ridge-rate 0.5 --ridge 30 --out l");
    expect_status(&told, 0);
    assert_true(shell_holds(
        "awk -F, '$1 != \"none\" && $1 != \"ridges\" && NR > 1 && !($7 < -0.02) { exit 1 }' l/nll.csv"));
    assert_true(
        shell_holds("awk -F, '$1 == \"ridges\" && ($5 < 20 || $5 > 45) { found = 1 } END { exit !found }' "
                    "l/heads.csv"));
    assert_true(shell_holds("awk -F, 'NR > 1 && !($3 > 0.001) { exit 1 }' l/probe.csv"));
}

/* Cut short again and again, or killed: the same bytes as in one go. */
static void test_resume(void **state)
{
    (void)state;
    make_long_text();
    outcome told = run_loam("experiment graft " MODELS "llama " FEW " --seeds 1,2 --out whole");
    expect_status(&told, 0);
    for (int piece = 0; piece < 3; piece++) {
        told = run_loam("experiment graft " MODELS "llama " FEW
                        " --seeds 1,2 --out cut --time 2e-4 --threads 1");
        expect_status(&told, 0);
    }
    told = run_loam("experiment graft " MODELS "llama " FEW " --seeds 1,2 --out cut");
    expect_status(&told, 0);
    assert_true(are_same("whole", "cut"));
    assert_true(kill_loam("experiment graft " MODELS "llama " FEW " --seeds 1,2 --checkpoint 0 --out killed",
                          "test -f killed/state-parallax-1.safetensors"));
    assert_false(file_exists("killed/index.html"));
    told = run_loam("experiment graft " MODELS "llama " FEW " --seeds 1,2 --out killed");
    expect_status(&told, 0);
    assert_true(are_same("whole", "killed"));
}

static void test_state(void **state)
{
    (void)state;
    make_long_text();
    outcome told = run_loam("experiment graft " MODELS "llama " FEW " --train lora --out other --time 1e-6");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "the same command goes on"));
    told = run_shell("mkdir -p bad && echo nonsense >bad/state");
    told = run_loam("experiment graft " MODELS "llama " FEW " --out bad");
    expect_complaint(&told, EXIT_INPUT, "bad/state is damaged");
    told = run_loam("experiment graft " MODELS "llama " FEW " --train lora --out bad --restart");
    expect_status(&told, 0);
    /* Of other steps: the state is one of another run. */
    assert_true(kill_loam("experiment graft " MODELS "llama " FEW " --checkpoint 0 --out turned",
                          "test -f turned/state"));
    told = run_loam("experiment graft " MODELS "llama " FEW " --steps 7 --out turned");
    expect_complaint(&told, EXIT_INPUT, "turned/state is of a run with another model");
    told = run_loam("experiment graft " MODELS "llama " FEW " --steps 7 --out turned --restart");
    expect_status(&told, 0);
}

/* What another kind of CPU has begun is not gone on with; what is finished only waits for its pictures. */
static void test_machines(void **state)
{
    (void)state;
    make_long_text();
    outcome told = run_loam("experiment graft " MODELS "llama " FEW
                            " --train lora --steps 9999 --out begun --time 1e-3");
    expect_status(&told, 0);
    assert_true(file_exists("begun/state"));
    told = run_shell("OPENBLAS_CORETYPE=Nehalem \"$LOAM\" experiment graft " MODELS "llama " FEW
                     " --train lora --steps 9999 --out begun");
    expect_complaint(&told, EXIT_INPUT, "begun/state is of another machine");
    told = run_shell("PATH=/none \"$LOAM\" experiment graft " MODELS "llama " FEW
                     " --train lora --out plain");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "There is no gnuplot here"));
    assert_true(file_exists("plain/state") && file_exists("plain/nll.csv") &&
                !file_exists("plain/steps.svg"));
    if (!shell_holds("command -v gnuplot >/dev/null")) return;
    told = run_shell("OPENBLAS_CORETYPE=Nehalem \"$LOAM\" experiment graft " MODELS "llama " FEW
                     " --train lora --out plain");
    expect_status(&told, 0);
    assert_true(!file_exists("plain/state") && file_exists("plain/steps.svg"));
}

static void test_refusals(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama --text t.txt --train ridge", EXIT_USAGE, "ridges" },
        { MODELS "llama --text t.txt --batch 3 --micro-batch 2", EXIT_USAGE,
          "no multiple of --micro-batch 2" },
        { MODELS "llama --text t.txt --seeds 2,1", EXIT_USAGE, "--seeds 2,1" },
        { MODELS "llama --text t.txt --dtype bf16", EXIT_USAGE, "--dtype bf16" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt, --out w", EXIT_USAGE, "1 to 64 files" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --context 99 --out w", EXIT_USAGE,
          "at most 32" },
        { MODELS "llama --tokenizer " TOKENIZER " --text none.txt --out w", EXIT_INPUT, "none.txt" },
        { MODELS "llama --tokenizer " TOKENIZER " --text empty.txt --out w", EXIT_INPUT,
          "0 tokens to train on" },
        { MODELS "bert --tokenizer " TOKENIZER " --text t.txt --out w", EXIT_INPUT,
          "it sees the whole text" },
        { MODELS "llama --text t.txt --out w", EXIT_INPUT, "tokenizer.json" },
    };
    (void)state;
    make_long_text();
    run_shell(": >empty.txt");
    expect_refusals("experiment graft", cases, sizeof cases / sizeof *cases, "w");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),  cmocka_unit_test(test_start),  cmocka_unit_test(test_learns),
        cmocka_unit_test(test_machines), cmocka_unit_test(test_resume), cmocka_unit_test(test_state),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
