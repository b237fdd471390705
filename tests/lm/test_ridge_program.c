/* SPDX-License-Identifier: MIT
 * loam experiment ridge as a user runs it, killed and continued, on tiny models. */
#include "tests/lm/ridge_texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RUN "experiment ridge " MODELS "%s --tokenizer " TOKENIZER " --text " TEXTS " --tiny"

static void test_program(void **state)
{
    static const char *const files[] = { "curve.csv", "parts.csv", "law.csv", "times.csv", "index.html" };
    (void)state;
    make_texts();
    for (int m = 0; m < 2; m++) {
        const outcome told = run_loam(RUN " --out r%d --trace-ridges 3", m ? "bert" : "llama", m);
        char path[64];
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, m ? "1 - cosine" : "NLL"));
        assert_non_null(strstr(told.out, "to 1 %.\n  held"));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "r%d/%s", m, files[i]);
            assert_true(file_exists(path));
        }
        snprintf(path, sizeof path, "r%d/state", m);
        assert_int_equal(file_exists(path), !shell_holds("command -v gnuplot >/dev/null"));
    }
    /* Softmax is what loam lm eval says of the same windows. */
    const outcome same = run_shell(
        "\"$LOAM\" lm eval " MODELS "llama --tokenizer " TOKENIZER
        " --text t.txt --most 96 --context 32 --out "
        "e.csv && \"$LOAM\" experiment ridge " MODELS "llama --tokenizer " TOKENIZER
        " --text t.txt --tokens 96 --context 32 --ridges 30 --out r2 && "
        "test \"$(sed -n 2p e.csv | cut -d, -f4)\" = \"$(sed -n 2p r2/curve.csv | cut -d, -f10)\"");
    expect_status(&same, 0);
}

/* Cut short again and again, or killed: the same bytes as in one go. */
static void test_resume(void **state)
{
    static const char compare[] = "for f in curve.csv parts.csv law.csv index.html; do cmp -s whole/$f %s/$f "
                                  "|| exit 1; done";
    char condition[256];
    (void)state;
    make_texts();
    outcome told = run_loam(RUN " --out whole", "llama");
    expect_status(&told, 0);
    for (int piece = 0; piece < 2; piece++) {
        told = run_loam(RUN " --out cut --time 1e-6 --threads 1", "llama");
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, "the same command goes on"));
    }
    assert_true(shell_holds("test $(wc -l <cut/state) -eq 5"));
    told = run_loam(RUN " --out cut", "llama");
    expect_status(&told, 0);
    snprintf(condition, sizeof condition, compare, "cut");
    assert_true(shell_holds(condition));
    told = run_loam(RUN " --out other --time 1e-6", "llama");
    expect_status(&told, 0);
    told = run_loam(RUN " --out other --ridges 7", "llama");
    expect_complaint(&told, EXIT_INPUT, "other/state is of a run with another model");
    told = run_loam(RUN " --out other --ridges 7 --restart", "llama");
    expect_status(&told, 0);
    told = run_shell("mkdir bad && echo nonsense >bad/state");
    told = run_loam(RUN " --out bad", "llama");
    expect_complaint(&told, EXIT_INPUT, "bad/state is damaged");
}

static void test_killed(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(RUN " --out once", "llama");
    expect_status(&told, 0);
    assert_true(kill_loam("experiment ridge " MODELS "llama --tokenizer " TOKENIZER " --text " TEXTS
                          " --tiny --checkpoint 0 --out killed",
                          "test -f killed/state && test $(wc -l <killed/state) -gt 20"));
    assert_false(file_exists("killed/index.html"));
    told = run_loam(RUN " --out killed", "llama");
    expect_status(&told, 0);
    assert_true(shell_holds("for f in curve.csv parts.csv law.csv index.html; do cmp -s once/$f killed/$f || "
                            "exit 1; done"));
}

static void test_refusals(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama --text t.txt --ridges 1,,2", EXIT_USAGE, "--ridges 1,,2: expected at most" },
        { MODELS "llama --text t.txt --ridges 3,3", EXIT_USAGE, "different numbers" },
        { MODELS "llama --text t.txt --ridges 0", EXIT_USAGE, "numbers > 0" },
        { MODELS "llama --text t.txt --trace-ridges -1", EXIT_USAGE, "--trace-ridges -1" },
        { MODELS "llama --text t.txt --part-ridges inf", EXIT_USAGE, "--part-ridges inf" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt, --out w", EXIT_USAGE, "1 to 64 files" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --context 99 --out w", EXIT_USAGE,
          "at most 32" },
        { MODELS "llama --tokenizer " TOKENIZER " --text none.txt --out w", EXIT_INPUT, "none.txt" },
        { MODELS "bert --tokenizer " TOKENIZER " --text blank.txt --out w", EXIT_INPUT,
          "blank.txt: no lines" },
        { MODELS "gpt2 --tokenizer " TOKENIZER " --text empty.txt --out w", EXIT_INPUT,
          "too few to predict" },
        { MODELS "llama --text t.txt --out w", EXIT_INPUT, "tokenizer.json" },
    };
    (void)state;
    make_texts();
    run_shell("printf ' \\n\\n' >blank.txt; : >empty.txt");
    expect_refusals("experiment ridge", cases, sizeof cases / sizeof *cases, "w");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
