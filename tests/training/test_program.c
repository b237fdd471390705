/* SPDX-License-Identifier: MIT
 * `loam experiment context`, `recall` and `swaps` as a user runs them: what they write, runs that are
 * killed or cut into pieces, wrong options. */
#define _XOPEN_SOURCE 700
#include "tests/cli/program.h"

#include "io/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Half a second of work in two stacks. */
#define CONTEXT \
    "experiment context --mechanism softmax,gla --steps 16 --tests 2 --rate 1e-3,3e-3 --checkpoint 0.05"

/* The same files, and the same bytes but of times.csv. */
static void expect_same(const char *a, const char *b)
{
    outcome result = run_shell(
        "for f in %s/*; do test ${f##*/} = times.csv || cmp $f %s/${f##*/} || exit 1; done; "
        "ls -A %s >.a; ls -A %s >.b; cmp .a .b",
        b, a, a, b);
    expect_status(&result, 0);
    result = run_shell("cut -d, -f 1-7 %s/times.csv >.a; cut -d, -f 1-7 %s/times.csv >.b; cmp .a .b", a, b);
    expect_status(&result, 0);
}

static void files_of_a_run(void **state)
{
    (void)state;
    outcome result = run_loam(CONTEXT " --out whole --threads 1");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "minutes left"));
    assert_non_null(strstr(result.out, "not decided  figure 5a: LLA has the lowest error"));
    result = run_shell(
        "ls -A whole; wc -l < whole/runs.csv; wc -l < whole/best.csv; wc -l < whole/times.csv");
    assert_string_equal(result.out, "best.csv\nindex.html\nruns.csv\nsteps-L32-S8.svg\ntimes.csv\n9\n3\n9\n");
    /* As many fields in all lines; the last error of the best rate is what best.csv says. */
    result = run_shell("awk -F, 'FNR == 1 { n = NF } NF != n' whole/*.csv");
    assert_string_equal(result.out, "");
    result = run_shell("awk -F, 'NR == FNR { if ($7 == 16) e[$2 $5] = $10; next } FNR > 1 && e[$2 $5] != $8'"
                       " whole/runs.csv whole/best.csv");
    assert_string_equal(result.out, "");
    result = run_shell("xmllint --noout --html whole/index.html 2>&1 | grep -v 'Tag' | grep error");
    assert_string_equal(result.out, "");
}

static void page_of_a_run(void **state)
{
    (void)state;
    outcome result = run_shell("cat whole/index.html");
    assert_non_null(strstr(result.out, "<b>not decided</b>"));
    assert_non_null(strstr(result.out, "S &lt; L"));
    assert_non_null(strstr(result.out, "Mamba-1 is left out"));
    assert_non_null(strstr(result.out, "RMSNorm; 2 layers; plain queries"));
    assert_null(strstr(result.out, "Left out to save time"));
    /* All that is shown is there, and closed. */
    result = run_shell(
        "grep -o 'href=\"[^\"]*\"' whole/index.html | cut -d '\"' -f 2 | while read -r f; do test -e "
        "whole/$f || echo $f; done");
    assert_string_equal(result.out, "");
    result = run_shell(
        "for t in table tr td th p a div h2; do o=$(grep -oE \"<$t[ >]\" whole/index.html | wc -l); "
        "c=$(grep -o \"</$t>\" whole/index.html | wc -l); test $o = $c || echo $t; done");
    assert_string_equal(result.out, "");
}

static void threads_and_stacks_do_not_matter(void **state)
{
    (void)state;
    outcome result = run_loam(CONTEXT " --threads 2 --stack 1 --out single");
    expect_status(&result, EXIT_OK);
    expect_same("whole", "single");
}

static void killed_runs_continue(void **state)
{
    (void)state;
    static const char *const moments[] = {
        "test -e killed/state/plan",
        "test -e killed/state/gla-L32-2.safetensors",
        "test -e killed/state/softmax-L32-0.done",
        "test -e killed/runs.csv",
    };
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const bool killed = kill_loam(CONTEXT " --out killed", moments[i]);
        if (!killed) fail_msg("the run ended before: %s", moments[i]);
        const outcome result = run_loam(CONTEXT " --out killed --resume");
        expect_status(&result, EXIT_OK);
        expect_status(&(outcome){ .status = system("rm -f killed/.loam-*") }, 0);
        expect_same("whole", "killed");
        expect_status(&(outcome){ .status = system("rm -rf killed") }, 0);
    }
}

/* In pieces that end by themselves, of a tenth of a second. */
static void pieces_come_to_the_same(void **state)
{
    (void)state;
    int pieces = 0;
    do {
        const outcome result = run_loam(CONTEXT " --time 0.0017 --out pieces");
        expect_status(&result, EXIT_OK);
        assert_true((strstr(result.out, "the same command goes on") != NULL) ==
                    file_exists("pieces/state/plan"));
        assert_true(pieces++ < 100);
    } while (!file_exists("pieces/index.html"));
    assert_true(pieces > 1);
    expect_same("whole", "pieces");
}

/* Without gnuplot all else is there; where it is, pictures are drawn from what was kept. */
static void pictures_may_follow(void **state)
{
    (void)state;
    outcome result = run_shell("PATH=/nowhere $LOAM " CONTEXT " --out plain");
    expect_status(&result, EXIT_OK);
    assert_non_null(strstr(result.out, "no gnuplot here"));
    result = run_shell("ls plain; grep -c svg plain/index.html; for f in runs best; do cmp whole/$f.csv "
                       "plain/$f.csv; done; cp plain/times.csv .times");
    assert_string_equal(result.out, "best.csv\nindex.html\nruns.csv\nstate\ntimes.csv\n0\n");
    result = run_loam(CONTEXT " --out plain");
    expect_status(&result, EXIT_OK);
    assert_null(strstr(result.out, "no gnuplot here"));
    expect_same("whole", "plain");
    result = run_shell("cmp plain/times.csv .times"); /* Nothing is trained again. */
    expect_status(&result, 0);
}

#if LOAM_HAVE_CUDA
/* What a GPU has trained, which is told by a line of options. */
static void pictures_need_no_gpu(void **state)
{
    (void)state;
    outcome result = run_shell("PATH=/nowhere $LOAM " CONTEXT " --out far");
    expect_status(&result, EXIT_OK);
    result = run_shell("sed -i 's/on the CPU, f32/on a GPU, f32/' far/state/plan");
    expect_status(&result, 0);
    result = run_loam(CONTEXT " --backend cuda --dtype f32 --out far");
    expect_status(&result, EXIT_OK);
    result = run_shell("sed -i 's/on a GPU, f32/on the CPU, f32/' far/index.html");
    expect_same("whole", "far");
}
#endif

static void other_runs_are_refused(void **state)
{
    (void)state;
    outcome result = run_loam(CONTEXT " --time 0.001 --out other");
    expect_status(&result, EXIT_OK);
    result = run_loam(CONTEXT " --mlp --out other");
    expect_complaint(&result, EXIT_INPUT, "--restart discards it");
    result = run_shell("echo nonsense > other/state/plan");
    result = run_loam(CONTEXT " --out other");
    expect_complaint(&result, EXIT_INPUT, "--restart discards it");
    result = run_loam(CONTEXT " --restart --out other");
    expect_status(&result, EXIT_OK);
    expect_same("whole", "other");
    result = run_loam(CONTEXT " --resume --out other");
    expect_complaint(&result, EXIT_INPUT, "holds no run to continue");
}

static void damaged_state_is_refused(void **state)
{
    (void)state;
    outcome result = run_loam(CONTEXT " --time 0.001 --out damaged");
    expect_status(&result, EXIT_OK);
    result = run_shell("printf '2\\n0x1p+3 0x1p+0\\n' > damaged/state/softmax-L32-0.done");
    result = run_loam(CONTEXT " --out damaged");
    expect_complaint(&result, EXIT_INPUT, "softmax-L32-0.done is damaged");
}

/* What does not fit is left out, and said. */
static void a_plan_is_made_to_fit(void **state)
{
    (void)state;
    outcome result = run_loam(CONTEXT " --fit 0.001 --out fit");
    expect_status(&result, EXIT_OK);
    assert_non_null(strstr(result.out, "Left out to save time: the lowest rate."));
    result = run_shell(
        "grep -c 'Left out to save time: the lowest rate' fit/index.html; cut -d, -f 5 fit/best.csv | "
        "sort -u | tr '\\n' ' '");
    assert_string_equal(result.out, "1\n0.003 rate ");
}

/* Of LLA the rows are solved somehow; of others nothing is said. */
static void solvers_of_a_run(void **state)
{
    (void)state;
    outcome result = run_loam("experiment context --mechanism lla,softmax --steps 2 --tests 1 --out solvers");
    expect_status(&result, EXIT_OK);
    assert_non_null(strstr(result.out, "of 1 cells with S < L"));
    result = run_shell("awk -F, '$2 == \"lla\" && $13 + $14 + $15 + $16 > 0.999 && $17 > 0 { n++ }"
                       "$2 == \"softmax\" && $13 $14 $15 $16 $17 == \"\" { n++ } END { print n }' "
                       "solvers/runs.csv");
    assert_string_equal(result.out, "2\n");
}

static void words_are_learned_too(void **state)
{
    (void)state;
    outcome result = run_loam("experiment recall --length 16,32 --pairs 2,4 --steps 4 --tests 2 --mechanism "
                              "softmax,gated-delta --out recall");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    result = run_shell("ls -A recall; cut -d, -f 3,4 recall/best.csv | sort -u | tr '\\n' ' '");
    assert_string_equal(result.out, "best.csv\nindex.html\nrecall-L16.svg\nrecall-L32.svg\nruns.csv\n"
                                    "steps-L16.svg\nsteps-L32.svg\ntimes.csv\n16,2 16,4 32,2 32,4 L,N ");
    result = run_loam("experiment swaps --places 8,9 --steps 2 --tests 1 --mechanism softmax --out swaps");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    result = run_shell("ls -A swaps; cut -d, -f 3,4 swaps/best.csv | sort -u | tr '\\n' ' '");
    assert_string_equal(result.out, "best.csv\nindex.html\nruns.csv\nsteps-L69-N8.svg\nsteps-L76-N9.svg\n"
                                    "swaps.svg\ntimes.csv\n69,8 76,9 L,N ");
}

#define PROBE "experiment probe --steps 4 --tests 2 --checkpoint 0.05"

/* Fourteen arms, in one go and in pieces. */
static void probes_are_measured(void **state)
{
    (void)state;
    outcome result = run_loam(PROBE " --threads 1 --out probe");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    result = run_shell("ls -A probe; wc -l < probe/probe.csv; wc -l < probe/times.csv");
    assert_string_equal(result.out, "index.html\nprobe.csv\ntimes.csv\n57\n29\n");
    result = run_shell("awk -F, 'FNR == 1 { n = NF } NF != n' probe/*.csv");
    assert_string_equal(result.out, "");
    /* Where W_R began at 0 it is as nothing after a step or two; softmax has none. */
    result = run_shell(
        "awk -F, '$3 == \"zero\" && $7 == 2 && $11 > 0.1 || $2 == \"softmax\" && $21 != \"\" ||"
        " $3 == \"like W_q\" && $21 < 1' probe/probe.csv");
    assert_string_equal(result.out, "");
    /* What goes on from softmax begins below where that ended, as Parallax and as softmax. */
    result = run_shell(
        "awk -F, '$1 == \"recall\" && $4 == \"adamw\" && $3 == \"none\" && $7 == 4 { end = $8 }"
        " $3 == \"softmax\" && $7 == 2 { first[$2] = $8 } END { print (first[\"parallax\"] < end), "
        "(first[\"softmax\"] < end) }' probe/probe.csv");
    assert_string_equal(result.out, "1 1\n");
    result = run_shell("grep -c 'as Parallax, .* as softmax\\.' probe/index.html");
    assert_string_equal(result.out, "1\n");
    for (int pieces = 0; !file_exists("cut/index.html"); pieces++) {
        assert_true(pieces < 200);
        result = run_loam(PROBE " --time 0.005 --threads 2 --out cut");
        expect_status(&result, EXIT_OK);
    }
    result = run_shell(
        "cmp probe/probe.csv cut/probe.csv && cmp probe/index.html cut/index.html && ls -A cut");
    assert_string_equal(result.out, "index.html\nprobe.csv\ntimes.csv\n");
}

static void wrong_options(void **state)
{
    (void)state;
    static const struct {
        const char *options, *part;
    } cases[] = {
        { "context more", "unknown argument more" },
        { "context --segmnt 8", "did you mean --segment" },
        { "context --pairs 8", "unknown option --pairs" },
        { "context --stop 0.9", "unknown option --stop" },
        { "context --segment 12", "segment 12 and length 32" },
        { "context --length 64 --segment 2", "segment 2 and length 64" },
        { "context --rate 1e-3,1e-4", "ascending" },
        { "context --rate 0", "--rate 0" },
        { "context --rate 2", "at most 1" },
        { "context --rate x", "--rate x" },
        { "context --seed 2,1", "ascending" },
        { "context --mechanism llla", "--mechanism llla: expected softmax" },
        { "context --mechanism lla,softmax,lla", "lla is there twice" },
        { "context --mechanism lla --all", "--all and --mechanism" },
        { "context --tiny --paper", "expected one of them" },
        { "context --queries seen", "plain or blind" },
        { "context --norm none", "rms or layer" },
        { "context --positions sine", "learned, rope or none" },
        { "context --ridge-unit trace", "normalised or max" },
        { "context --backend gpu", "cpu or cuda" },
        { "context --dtype bf16", "expected f32 on the CPU" },
        { "context --dtype f16", "f32 or bf16" },
#if !LOAM_HAVE_CUDA
        { "context --backend cuda", "--backend cuda: this build has no CUDA" },
        { "probe --backend cuda", "--backend cuda: this build has no CUDA" },
#endif
        { "context --layers 49", "from 1 to 48" },
        { "context --steps 0", "--steps 0" },
        { "context --time 0", "--time 0" },
        { "context --resume --restart", "contradict" },
        { "context --out ''", "--out" },
        { "recall --length 15 --pairs 2", "must be even" },
        { "recall --length 16 --pairs 5", "at least four times" },
        { "recall --length 64 --pairs 1,2,3,4", "at most 3 numbers" },
        { "recall --fill 2", "--fill 2" },
        { "recall --stop 1.5", "--stop 1.5" },
        { "swaps --places 7", "expected 8 to" },
        { "swaps --places 65", "expected 8 to 64" },
        { "swaps --separate", "unknown option --separate" },
        { "probe more", "unknown argument more" },
        { "probe --muon-rate 0", "--muon-rate 0" },
        { "probe --muon-scale long", "jordan or rms" },
        { "probe --backend gpu", "cpu or cuda" },
        { "probe --dtype bf16", "expected f32 on the CPU" },
        { "probe --tiny --reduced", "expected one of them" },
        { "probe --resume --restart", "contradict" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const outcome result = run_loam("experiment %s", cases[i].options);
        expect_complaint(&result, EXIT_USAGE, cases[i].part);
        assert_false(file_exists("out"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_a_run),
        cmocka_unit_test(page_of_a_run),
        cmocka_unit_test(threads_and_stacks_do_not_matter),
        cmocka_unit_test(killed_runs_continue),
        cmocka_unit_test(pieces_come_to_the_same),
        cmocka_unit_test(pictures_may_follow),
#if LOAM_HAVE_CUDA
        cmocka_unit_test(pictures_need_no_gpu),
#endif
        cmocka_unit_test(other_runs_are_refused),
        cmocka_unit_test(damaged_state_is_refused),
        cmocka_unit_test(a_plan_is_made_to_fit),
        cmocka_unit_test(solvers_of_a_run),
        cmocka_unit_test(words_are_learned_too),
        cmocka_unit_test(probes_are_measured),
        cmocka_unit_test(wrong_options),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
