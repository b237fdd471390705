/* SPDX-License-Identifier: MIT
 * loam experiment distill as a user runs it, on tiny models. */
#include "tests/lm/ridge_texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SMALL \
    " --tokenizer " TOKENIZER " --calibration " TEXTS " --text " TEXTS \
    " --context 16 --windows 3 --batch 2 --features 16 "
#define RUN "experiment distill " MODELS "gpt2" SMALL "--steps 60 "
#define FEW RUN "--students trained --strategies fix --losses softmax "

static void expect_rows(const char *file, const char *test, int count)
{
    const outcome rows = run_shell("awk -F, 'NR > 1 && %s' %s | wc -l", test, file);
    assert_int_equal(atoi(rows.out), count);
}

/* All cells of two models, the second in brief; a cell is what loam distill makes. */
static void test_whole(void **state)
{
    (void)state;
    make_texts();
    const outcome told = run_loam("experiment distill " MODELS "gpt2," MODELS "llama" SMALL
                                  "--steps 6 --out w");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "gpt2: 19 cells, of which 11 train 6 steps; 3 windows of 16 tokens"));
    assert_non_null(strstr(told.out, "llama: 11 cells, of which 3 train 6 steps; "));
    expect_rows("w/results.csv", "NF == 10 && $1 == \"gpt2\"", 20);
    expect_rows("w/results.csv", "NF == 10 && $1 == \"llama\"", 12);
    expect_rows("w/results.csv", "$5 == \"trained\" && $4 == 1 && $2 == \"measured\"", 1);
    expect_rows("w/dimensions.csv", "NF == 4", 2 * (4 + 3));
    assert_true(shell_holds(
        "awk -F, 'FNR == 1 { next } { k = $1 $2 $3 $4 $5 } FILENAME ~ /windows/ { n[k] += $8; x[k] += $9; "
        "next } { rows++; d = x[k] / n[k] - $7; if (d * d > 1e-14) exit 1 } END { if (rows != 32) exit 1 }' "
        "w/windows.csv w/results.csv"));
    assert_true(shell_holds("awk -F, 'NR > 1 { sum[$1 $2] += $4 } END { for (k in sum) if (sum[k] != 32) "
                            "exit 1 }' w/dimensions.csv"));
    assert_true(shell_holds("grep -q 'not decided' w/index.html && grep -q '<td>0.69</td>' w/index.html"));
    const outcome one = run_loam("distill " MODELS "gpt2" SMALL "--steps 6 --loss l2row --seed 1 --out o");
    expect_status(&one, 0);
    assert_true(shell_holds("test \"$(awk -F, '$3 == \"l2row\" { print $7 }' w/results.csv)\" = "
                            "\"$(awk -F, '$1 == \"trained\" { print $2 }' o/results.csv)\""));
    assert_true(shell_holds("! ls w | grep -Eq 'safetensors|training|turns'"));
    /* Softmax, the window and what is trained read longer windows; a token's time, of two models. */
    expect_rows("w/positions.csv", "NF == 11 && $1 == \"gpt2\" && $6 == 30", 2 + 11);
    expect_rows("w/positions.csv", "NF == 11 && $1 == \"llama\" && $5 == \"trained\" && $6 == 0", 3);
    expect_rows("w/speed.csv", "NF == 6 && $3 == 4 && $4 > 0", 4);
    expect_rows("w/results.csv", "$5 == \"hybrid 3/4\" && $7 > 0", 1);
}

/* Lines of an encoder: no window, no longer ones, no times; what is trained is nearer than it began. */
static void test_encoder(void **state)
{
    (void)state;
    make_texts();
    const outcome told = run_loam("experiment distill " MODELS "bert" SMALL "--steps 60 --out e");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "lines are compared"));
    assert_non_null(strstr(told.out, "Features trained by the softmax loss keep a line's vector"));
    assert_null(strstr(told.out, "Balanced pairs <"));
    expect_rows("e/results.csv", "NF == 10", 3 + 5 + 3 + 2 + 1);
    expect_rows("e/positions.csv", "1", 0);
    expect_rows("e/speed.csv", "1", 0);
    assert_true(shell_holds("awk -F, '$5 == \"softmax\" { s = $7 } $5 == \"balanced pairs\" { b = $7 } "
                            "$5 == \"trained\" && $2 == \"fix\" && $3 == \"softmax\" { t = $7 } "
                            "END { exit !(s < 1e-6 && t < b / 2 && t > 0) }' e/results.csv"));
    assert_true(shell_holds("grep -q '1 - cosine' e/index.html && ! grep -q \"paper's\" e/index.html"));
}

/* Three processes share the work: each cell is of one of them, and the bytes are those of a single one. */
static void test_shared(void **state)
{
    (void)state;
    make_texts();
    const outcome alone = run_loam(RUN "--out a --threads 1");
    expect_status(&alone, 0);
    const outcome told = run_shell("for i in 1 2 3; do $LOAM " RUN "--out b --threads 1 >b$i & done; wait; "
                                   "for i in 1 2 3; do awk '/^$/ { exit } NR > 2' b$i; done | wc -l");
    expect_status(&told, 0);
    assert_int_equal(atoi(told.out), 20);
    assert_true(
        shell_holds("for f in results windows dimensions positions; do cmp a/$f.csv b/$f.csv || exit 1; "
                    "done"));
    assert_true(shell_holds("! ls b | grep -Eq 'safetensors|training|turns'"));
}

/* Killed and cut again and again, it comes to the same bytes; what is done is not done again. */
static void test_resumed(void **state)
{
    (void)state;
    make_texts();
    const outcome whole = run_loam(RUN "--out r --threads 1");
    expect_status(&whole, 0);
    const outcome cut = run_loam(RUN "--out s --checkpoint 0 --time 0.000001");
    expect_status(&cut, 0);
    assert_non_null(strstr(cut.out, "The time is over; the same command goes on."));
    assert_true(shell_holds("! test -e s/results.csv && grep -c ^cell s/state-1 | grep -q '^1$'"));
    assert_true(kill_loam(RUN "--out s --checkpoint 0", "test -e s/training-1-fix-l2row-1.safetensors"));
    assert_true(shell_holds("! test -e s/results.csv && test $(grep -c ^cell s/state-1) -ge 13"));
    /* What is there is told, and the rest is still to do. */
    const outcome told = run_loam(RUN "--out s --report");
    expect_status(&told, 0);
    assert_true(shell_holds("test $(($(wc -l <s/results.csv) - 1)) = $(grep -c ^cell s/state-1)"));
    assert_true(shell_holds("rm s/results.csv; test $(grep -c ^cell s/state-1) -lt 20"));
    const outcome killed = run_shell(
        "t=40; n=0; while ! test -e s/results.csv; do timeout -s KILL $(printf 0.%%03d $t) $LOAM " RUN
        "--out s --checkpoint 0 >>log 2>&1; t=$((t < 600 ? t + t / 2 : 900)); n=$((n + 1)); "
        "test $n -lt 200 || exit 1; done; echo $n");
    expect_status(&killed, 0);
    assert_true(atoi(killed.out) >= 2);
    const outcome rest = run_loam(RUN "--out s");
    expect_status(&rest, 0);
    assert_null(strstr(rest.out, "of which"));
    assert_true(
        shell_holds("for f in results windows dimensions positions; do cmp r/$f.csv s/$f.csv || exit 1; "
                    "done"));
    assert_true(shell_holds("! ls s | grep -Eq 'safetensors|training'"));
}

/* A training goes on from its checkpoint: where time ends it has one. More seeds go on from fewer. */
static void test_seeds(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(FEW "--out q");
    expect_status(&told, 0);
    expect_rows("q/results.csv", "NF == 10", 4 + 5 + 1);
    const outcome first = run_shell("cat q/results.csv");
    told = run_loam(FEW "--seeds 1,2 --out q");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "gpt2: 6 cells, of which 1 train"));
    expect_rows("q/results.csv", "$4 == 2", 6);
    assert_true(
        shell_holds("awk -F, '$5 == \"normal\" { x[$4] = $7 } END { exit x[1] == x[2] }' q/results.csv"));
    told = run_loam(FEW "--out q");
    expect_status(&told, 0);
    const outcome again = run_shell("cat q/results.csv");
    assert_string_equal(first.out, again.out);
    told = run_loam(FEW "--rate 0.01 --out q");
    expect_status(&told, 3);
    assert_non_null(strstr(told.err, "q/state-1 is of a run with another model"));
    told = run_loam(FEW "--rate 0.01 --out q --restart");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "gpt2: 9 cells"));
}

/* What another machine found is not gone on from; a report tells it, and says where it was found. */
static void test_elsewhere(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(FEW "--out m");
    expect_status(&told, 0);
    assert_true(shell_holds("cp m/results.csv here.csv && sed -i '2s/[^;]*$/ a CPU elsewhere/' m/state-1"));
    told = run_loam(FEW "--out m");
    expect_status(&told, 3);
    assert_non_null(strstr(told.err, "m/state-1 is of a run with another model, text, machine"));
    told = run_loam(FEW "--out m --report");
    expect_status(&told, 0);
    assert_true(shell_holds("cmp m/results.csv here.csv && grep -q 'a CPU elsewhere' m/index.html"));
    told = run_loam(FEW "--rate 0.01 --out m --report");
    expect_status(&told, 3);
}

static void test_refused(void **state)
{
    static const refusal cases[] = {
        { MODELS "gpt2" SMALL "--tiny --reduced", 2, "--tiny and --reduced contradict each other" },
        { MODELS "gpt2" SMALL "--report --restart", 2, "--report and --restart contradict each other" },
        { MODELS "gpt2" SMALL "--losses softmax,l1", 2, "l1" },
        { MODELS "gpt2" SMALL "--strategies best", 2, "best" },
        { MODELS "gpt2" SMALL "--students window", 2, "window" },
        { MODELS "gpt2" SMALL "--strategies ''", 2, "strategies" },
        { MODELS "gpt2" SMALL "--seeds 2,1", 2, "ascending numbers" },
        { MODELS "gpt2" SMALL "--unit 12", 2, "--features 16: expected a multiple of --unit 12" },
        { MODELS "gpt2" SMALL "--out ''", 2, "--out: expected a path" },
        { MODELS "gpt2" SMALL "--time 0", 2, "--time 0" },
        { MODELS "gpt2" SMALL "again", 2, "expected models, --calibration and --text" },
        { MODELS "gpt2 --text t.txt", 2, "expected models, --calibration and --text" },
        { MODELS "gpt2,,x" SMALL, 2, "expected at most 8 paths of models" },
        { MODELS "none" SMALL, 3, "none" },
    };
    (void)state;
    make_texts();
    expect_refusals("experiment distill", cases, sizeof cases / sizeof *cases, "out/distill");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),   cmocka_unit_test(test_encoder), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_resumed), cmocka_unit_test(test_seeds),   cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
