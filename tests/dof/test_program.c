/* SPDX-License-Identifier: MIT
 * loam dof as a user runs it, on tiny models. */
#include "tests/lm/ridge_texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RUN "dof " MODELS "%s --tokenizer " TOKENIZER " --text " TEXTS " --samples 24 --context 16 --mode all"

static void test_program(void **state)
{
    static const char *const files[] = { "heads.csv", "layers.csv", "index.html" };
    static const char *const modes[] = { "rel", "attn", "gauss", "abs" };
    const bool drawn = shell_holds("command -v gnuplot >/dev/null");
    (void)state;
    make_texts();
    for (int m = 0; m < 2; m++) {
        const outcome told = run_loam(RUN " --out d%d", m ? "bert" : "llama", m);
        char path[64];
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, "rank correlation of rel and attn over heads"));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "d%d/%s", m, files[i]);
            assert_true(file_exists(path));
        }
        snprintf(path, sizeof path, "d%d/layers.svg", m);
        assert_int_equal(file_exists(path), drawn);
        for (int mode = 0; mode < 4; mode++) {
            snprintf(path, sizeof path, "\n%s: ", modes[mode]);
            assert_non_null(strstr(told.out, path));
            snprintf(path, sizeof path, "d%d/heads-%s.svg", m, modes[mode]);
            assert_int_equal(file_exists(path), drawn);
        }
    }
}

/* Of llama's layers and heads, as config.json tells them; its heads have 8 channels. */
static void test_budget(void **state)
{
    (void)state;
    make_texts();
    const outcome told = run_loam(RUN " --features 12 --unit 2 --lambda 0.01 --seed 5 --out b", "llama");
    expect_status(&told, 0);
    const outcome sums = run_shell(
        "c=" MODELS "llama/config.json\n"
        "l=$(sed -n 's/.*\"num_hidden_layers\": \\([0-9]*\\).*/\\1/p' $c)\n"
        "h=$(sed -n 's/.*\"num_attention_heads\": \\([0-9]*\\).*/\\1/p' $c)\n"
        "for mode in rel attn gauss abs; do\n"
        "    awk -F, -v m=$mode -v l=$l -v h=$h '$1 == m { s += $6; if ($6 %% 2) exit 1; "
        "n++ } END { exit s != 12 * l * h || n != l * h }' b/heads.csv || exit 1\n"
        "    awk -F, -v m=$mode -v l=$l '$1 == m { s += $5; f += $4; n++; c = $6 > $5 || $6 > 8 } "
        "c { exit 1 } END { exit s != 12 * l || f != s || n != l }' b/layers.csv || exit 1\n"
        "done");
    expect_status(&sums, 0);
    /* The need of a layer is that of its largest head; largest remainder is rounding where there are two. */
    const outcome same = run_shell(
        "awk -F, '{ key = $1 \",\" $2 } FNR == 1 { file++; next } file == 1 { if ($4 > most[key]) most[key] ="
        " $4; next } { first = most[$1 \",0\"]; units = int(12 * first / (first + most[$1 \",1\"]) + .5); if "
        "(most[key] != $3 || $5 != 2 * ($2 ? 12 - units : units)) exit 1 }' b/heads.csv b/layers.csv");
    expect_status(&same, 0);
}

/* The same bytes for any number of threads; other samples by another seed. */
static void test_same(void **state)
{
    (void)state;
    make_texts();
    for (int n = 0; n < 3; n++) {
        const outcome told = run_loam(RUN " --threads %d --seed %d --lambda 2^-%d --out s%d", "neox",
                                      n ? 2 : 1, n == 2, 8, n);
        expect_status(&told, 0);
    }
    assert_true(shell_holds("cmp -s s0/heads.csv s1/heads.csv && cmp -s s0/layers.csv s1/layers.csv"));
    assert_false(shell_holds("cmp -s s0/heads.csv s2/heads.csv"));
}

static void test_refusals(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama", EXIT_USAGE, "expected one model and --text" },
        { MODELS "llama --text t.txt --mode rel,att", EXIT_USAGE, "--mode att" },
        { MODELS "llama --text t.txt --mode rel,", EXIT_USAGE, "--mode" },
        { MODELS "llama --text t.txt --lambda 2^", EXIT_USAGE, "--lambda 2^: expected a number" },
        { MODELS "llama --text t.txt --lambda 2^8", EXIT_USAGE, "--lambda 2^8: expected a number" },
        { MODELS "llama --text t.txt --lambda x", EXIT_USAGE, "--lambda x: expected a number" },
        { MODELS "llama --text t.txt --lambda 2^-8z", EXIT_USAGE, "--lambda 2^-8z: expected" },
        { MODELS "llama --text t.txt --samples 1", EXIT_USAGE, "--samples" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --features 20 --out w", EXIT_USAGE,
          "--features 20: expected a multiple of --unit 8" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --samples 4000 --out w", EXIT_USAGE,
          "--samples 4000: the texts have" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --skip 100 --out w", EXIT_USAGE,
          "--skip 100" },
        { MODELS "llama --tokenizer " TOKENIZER " --text t.txt --context 99 --out w", EXIT_USAGE,
          "at most 32" },
        { MODELS "llama --tokenizer " TOKENIZER " --text none.txt --out w", EXIT_INPUT, "none.txt" },
    };
    (void)state;
    make_texts();
    expect_refusals("dof", cases, sizeof cases / sizeof *cases, "w");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
