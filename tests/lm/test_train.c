/* SPDX-License-Identifier: MIT
 * loam lm train as a user runs it: it learns, goes on with the same bytes after it was killed, refuses. */
#include "tests/cli/program.h"
#include "tests/lm/grammar.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY "lm train data --layers 2 --width 32 --heads 2 --context 16 --batch 8 --rate 0.01 --warm 5"
#define SHORT TINY " --steps 12 --every 4 --mechanism lla --micro-batch 4 --checkpoint 0"

/* Column `column` of the last line of a CSV that begins so. */
static double last_value(const char *path, const char *begins, int column)
{
    char line[512] = "", kept[512] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, begins, strlen(begins)) == 0) memcpy(kept, line, sizeof kept);
    fclose(file);
    const char *at = kept;
    for (int i = 0; i < column; i++)
        assert_non_null(at = strchr(at, ',')), at++;
    return strtod(at, NULL);
}

/* Every file but the times. */
static void expect_same_files(const char *a, const char *b)
{
    char command[512];
    snprintf(command, sizeof command, "rm -f %s/.loam-*.tmp; diff -r -q -x times.csv %s %s", b, a, b);
    const outcome told = run_shell("%s", command);
    expect_status(&told, 0);
}

/* Tokens alone have almost ln 24 = 3.18 nats; their grammar ln 2 and 0.09 for the end token. */
static void it_learns(void **state)
{
    (void)state;
    const outcome told = run_loam(TINY " --out run --steps 150");
    expect_status(&told, 0);
    const double nll = last_value("run/held.csv", "one,", 3);
    printf("held out: %.4f\n", nll);
    assert_true(nll > 0.69 && nll < 1.5);
    assert_true(fabs(last_value("run/held.csv", "one,", 4) - nll / (3 * log(2))) < 1e-6);
    assert_non_null(strstr(told.out, "held out"));
    const outcome read = run_loam("lm info run");
    expect_status(&read, 0);
    assert_non_null(strstr(read.out, "gpt2"));
    const outcome written = run_loam("lm generate run --prompt 'the cat' --tokens 5");
    expect_status(&written, 0);
    run_shell("rm -r run");
}

static void killed_runs_continue(void **state)
{
    static const char *const moments[] = { "test -e killed/state.safetensors",
                                           "test -e killed/best.safetensors",
                                           "test $(wc -l 2>/dev/null <killed/loss.csv || echo 0) -ge 3",
                                           "test -e killed/times.csv" };
    (void)state;
    const outcome whole = run_loam(SHORT " --out whole");
    expect_status(&whole, 0);
    assert_true(last_value("whole/times.csv", "12,", 1) > 0);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const bool killed = kill_loam(SHORT " --out killed", moments[i]);
        if (!killed && i < 3) fail_msg("the run ended before: %s", moments[i]);
        const outcome result = run_loam(SHORT " --out killed --threads 1");
        expect_status(&result, 0);
        expect_same_files("whole", "killed");
        run_shell("rm -r killed");
    }
    run_shell("cp whole/times.csv kept.csv");
    const outcome again = run_loam(SHORT " --out whole");
    expect_status(&again, 0);
    assert_true(shell_holds("cmp -s whole/times.csv kept.csv"));
    run_shell("rm -r whole kept.csv");
}

/* In pieces that end by themselves. */
static void pieces_come_to_the_same(void **state)
{
    int pieces = 0;
    (void)state;
    outcome told = run_loam(SHORT " --out whole");
    expect_status(&told, 0);
    do {
        told = run_loam(SHORT " --out pieces --time 0.0007");
        expect_status(&told, 0);
        assert_true(!strstr(told.out, "the same command goes on") == file_exists("pieces/held.csv"));
        assert_true(pieces++ < 200);
    } while (!file_exists("pieces/held.csv"));
    assert_true(pieces > 1);
    expect_same_files("whole", "pieces");
    run_shell("rm -r whole pieces");
}

/* The trained attention is the one that is used, and told. */
static void eval_knows_the_attention(void **state)
{
    (void)state;
    outcome told = run_loam(TINY " --out run --steps 20 --mechanism lla --ridge-least 0.1 --ridge-most 2");
    expect_status(&told, 0);
    run_shell("echo 'the cat, the dog' >t.txt");
    told = run_loam("lm eval run --text t.txt --context 8 --out own.csv");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "attention: lla"));
    told = run_loam("lm info run");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "attention      lla\n"));
    told = run_loam("lm eval run --text t.txt --context 8 --mechanism softmax --out other.csv");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "attention: softmax"));
    assert_false(shell_holds("cmp -s own.csv other.csv"));
    assert_true(shell_holds("grep -q '\"ridge_most\": 2.0' run/config.json"));
    run_shell("rm -r run");
}

static void wrong_runs_are_refused(void **state)
{
    static const refusal cases[] = {
        { "lm train", EXIT_USAGE, "expected DATA and --out" },
        { "lm train data", EXIT_USAGE, "expected DATA and --out" },
        { "lm train nowhere --out run", EXIT_INPUT, "nowhere/manifest.json" },
        { TINY " --out run --mechanism mesa", EXIT_USAGE, "--mechanism mesa: expected softmax, lla" },
        { TINY " --out run --architecture bert", EXIT_USAGE, "--architecture bert: expected gpt2" },
        { TINY " --out run --size big", EXIT_USAGE, "--size big: expected 34m or small" },
        { TINY " --out run --ridge-least 2", EXIT_USAGE, "--ridge-most 1; expected at least the 2" },
        { TINY " --out run --micro-batch 3", EXIT_USAGE, "--batch 8 is no multiple of --micro-batch 3" },
        { TINY " --out run --dtype bf16", EXIT_USAGE, "--dtype bf16: expected f32 on the CPU" },
        { "lm train data --out run --layers 49", EXIT_USAGE, "--layers 49: expected at most 48" },
        { "lm train data --out run --width 30 --heads 4", EXIT_USAGE,
          "--width 30 is not divisible by --heads 4" },
        { "lm train data --out run --context 800", EXIT_INPUT, "more than the 800 of a context" },
        { TINY " --out t.txt", EXIT_OUTPUT, "cannot make the folder t.txt" },
        { TINY " --out other", EXIT_OUTPUT, "other/config.json is there, and no state.safetensors" },
    };
    (void)state;
    run_shell("mkdir other; echo '{}' >other/config.json; echo x >t.txt");
    expect_refusals("", cases, sizeof cases / sizeof *cases, NULL);
    outcome told = run_loam(SHORT " --out run");
    expect_status(&told, 0);
    told = run_loam(SHORT " --out run --seed 2");
    expect_complaint(&told, EXIT_INPUT, "is of another run");
    run_shell("rm -r run other t.txt");
}

static int setup(void **state)
{
    const int status = program_setup(state);
    grammar_write("data");
    return status;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_learns),
        cmocka_unit_test(killed_runs_continue),
        cmocka_unit_test(pieces_come_to_the_same),
        cmocka_unit_test(eval_knows_the_attention),
        cmocka_unit_test(wrong_runs_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, program_teardown);
}
