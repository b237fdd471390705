/* SPDX-License-Identifier: MIT
 * `loam experiment` as a user runs it: what it writes, killed runs, wrong options, no room. */
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
#include <time.h>

#include <cmocka.h>

/* Half a second of work in eight cells. */
#define CELLS "experiment regression --backend reference --d 4,8 --segment 64,128 --length 256 --seed 5"
#define SMALL CELLS " --sequences 24"

static void expect_same(const char *a, const char *b)
{
    outcome result = run_shell("for f in %s/*; do cmp $f %s/${f##*/} || exit 1; done; ls -A %s; ls -A %s", b,
                               a, a, b);
    expect_status(&result, 0);
    assert_null(strstr(result.out, "state"));
}

/* A killed run leaves results whole or absent; the next one ends as if nothing had been. */
static void killed_runs_continue(void **state)
{
    (void)state;
    static const char *const moments[] = {
        "test -d killed/state",
        "test -e killed/state/d4-S64-visible",
        "test -e killed/state/d8-S64-visible",
        "test -e killed/state/d4-S64-hidden",
        "test -e killed/state/d8-S64-hidden",
        "test -e killed/state/d8-S128-hidden",
        "test -e killed/regression.csv",
        "test -e killed/position-d4-S64-visible.svg",
        "test -e killed/ratio-S64-hidden.svg",
    };
    outcome result = run_loam(SMALL " --out whole");
    expect_status(&result, EXIT_OK);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const bool killed = kill_loam(SMALL " --out killed", moments[i]);
        if (!killed) fail_msg("the run ended before: %s", moments[i]);
        result = run_shell(
            "for f in $(ls killed); do test $f = state || cmp killed/$f whole/$f || exit 1; done");
        expect_status(&result, 0);
        const bool something = shell_holds("ls killed/state/d* >/dev/null 2>&1");
        result = run_loam(SMALL " --out killed %s", something ? "--resume" : "");
        expect_status(&result, EXIT_OK);
        expect_same("whole", "killed");
        expect_status(&(outcome){ .status = system("rm -rf killed") }, 0);
    }
}

/* Killed again and again, each time a bit later. */
static void many_kills(void **state)
{
    (void)state;
    outcome result = run_loam(SMALL " --out once");
    expect_status(&result, EXIT_OK);
    for (int kill = 1; kill <= 15; kill++)
        result = run_shell("timeout -s KILL %.2f \"$LOAM\" " SMALL " --out often", 0.04 * kill);
    result = run_loam(SMALL " --out often");
    expect_status(&result, EXIT_OK);
    result = run_shell("rm -f often/.loam-*");
    expect_same("once", "often");
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        outcome result = run_loam(CELLS " --sequences 5 --threads %d --out threads%d", threads, threads);
        expect_status(&result, EXIT_OK);
    }
    expect_same("threads1", "threads2");
    expect_same("threads1", "threads3");
}

static void table_and_files(void **state)
{
    (void)state;
    outcome result = run_loam(CELLS " --sequences 3 --own hidden --out a/b/c");
    expect_status(&result, EXIT_OK);
    assert_non_null(strstr(result.out, "own pair hidden; 3 sequences of 256"));
    assert_null(strstr(result.out, "visible"));
    assert_string_equal(result.err, "");
    result = run_shell("cd a/b/c && ls -A && wc -l < regression.csv && wc -l < summary.csv");
    assert_string_equal(
        result.out, "position-d4-S128-hidden.svg\nposition-d4-S64-hidden.svg\nposition-d8-S128-hidden.svg\n"
                    "position-d8-S64-hidden.svg\nratio-S128-hidden.svg\nratio-S64-hidden.svg\n"
                    "regression.csv\nsummary.csv\n8193\n33\n");
    result = run_shell(
        "awk -F, 'NR > 1 && ($9 < $6 || $8 > $6 || $8 < 0 || $7 < 0)' a/b/c/regression.csv | wc -l");
    assert_string_equal(result.out, "0\n");
    /* The mean over positions is what the summary says. */
    result = run_shell("awk -F, 'NR == FNR { if (FNR > 1) m[$1 $2 $3 $4] += $6 / 256; next }"
                       " FNR > 1 { x = m[$1 $2 $3 $4] / $6 - 1; if (x * x > 1e-14) print }'"
                       " a/b/c/regression.csv a/b/c/summary.csv");
    assert_string_equal(result.out, "");
    expect_status(&result, 0);
}

typedef struct wrong_option {
    const char *options, *part;
} wrong_option;

static void expect_refused(const wrong_option *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const outcome result = run_loam("experiment %s", cases[i].options);
        expect_complaint(&result, EXIT_USAGE, cases[i].part);
        assert_false(file_exists("out"));
    }
}

static void wrong_options(void **state)
{
    (void)state;
    static const wrong_option cases[] = {
        { "", "no experiment named" },
        { "regresion", "unknown argument regresion" },
        { "regression more", "unknown argument more" },
        { "regression --segmnt 8", "did you mean --segment" },
        { "regression --d 8,8", "ascending" },
        { "regression --d 16,8", "ascending" },
        { "regression --d 0", "from 1 to 512" },
        { "regression --d 513", "from 1 to 512" },
        { "regression --d 8,", "--d 8,:" },
        { "regression --d 8x", "--d 8x" },
        { "regression --segment 100", "segment 100 and length 1024" },
        { "regression --segment 2048", "from 1 to 1024" },
        { "regression --d 4 --segment 8", "at least 7 dimensions" },
        { "regression --sequences 1", "--sequences 1" },
        { "regression --length 0", "--length 0" },
        { "regression --noise -1", "--noise -1" },
        { "regression --ridge nan", "--ridge nan" },
        { "regression --ridge -0.5", "--ridge -0.5" },
        { "regression --bandwidth 0", "--bandwidth 0" },
        { "regression --mesa-ridge 0", "--mesa-ridge 0" },
        { "regression --own maybe", "visible, hidden or both" },
        { "regression --score cosine", "dot or rbf" },
        { "regression --ridge-unit mean", "normalised, max or trace" },
        { "regression --backend gpu", "reference, cpu" },
        { "regression --resume --restart", "contradict" },
        { "regression --out ''", "--out" },
        { "smooth more", "unknown argument more" },
        { "smooth --segment 8", "--segment" },
        { "smooth --d 4,2", "ascending" },
        { "smooth --d 65", "from 1 to 64" },
        { "smooth --length 1", "--length 1" },
        { "smooth --sequences 1", "--sequences 1" },
        { "smooth --noise -1", "--noise -1" },
        { "smooth --scale 0", "--scale 0" },
        { "smooth --scale nan", "--scale nan" },
        { "smooth --backend gpu", "reference, cpu" },
        { "smooth --threads 0", "--threads 0" },
        { "smooth --out ''", "--out" },
    };
    expect_refused(cases, sizeof cases / sizeof *cases);
}

static void wrong_options_of_measurements(void **state)
{
    (void)state;
    static const wrong_option cases[] = {
        { "noise",
          "regression, smooth, rates, memory, context, recall, swaps, probe, ridge, graft or distill" },
        { "rates more", "unknown argument more" },
        { "rates --d 5", "from 1 to 4" },
        { "rates --n 512", "two numbers or more, from 64" },
        { "rates --n 32,64", "two numbers or more, from 64" },
        { "rates --n 64,2000000", "from 1 to 1048576" },
        { "rates --queries 1000", "--queries 1000" },
        { "rates --repetitions 1", "--repetitions 1" },
        { "rates --most 1001", "--most 1001" },
        { "rates --error 0", "--error 0" },
        { "rates --noise -1", "--noise -1" },
        { "rates --ridge nan", "--ridge nan" },
        { "rates --setting disc", "cube, ordered or sphere" },
        { "rates --setting ordered --validate", "--validate: expected --setting cube or sphere" },
        { "rates --backend cuda", "cpu or reference" },
        { "rates --out ''", "--out" },
        { "memory more", "unknown argument more" },
        { "memory --n 64", "two numbers or more, from 64" },
        { "memory --n 32,64", "two numbers or more, from 64" },
        { "memory --d 513", "--d 513" },
        { "memory --compute -1", "--compute -1" },
        { "memory --limit 0", "--limit 0" },
        { "memory --limit 1000000", "the GiB that this machine has free" },
        { "memory --threads 0", "--threads 0" },
        { "memory --backend gpu", "cpu or cuda" },
        { "memory --dtype bf16", "expected f32 on the CPU" },
        { "memory --out ''", "--out" },
    };
    expect_refused(cases, sizeof cases / sizeof *cases);
}

#define SMOOTH "experiment smooth --d 2 --length 128 --sequences 12"

/* A bent function seen through noise: a local line beats a
 * local constant, which beats linear maps of any kind. */
static void a_smooth_map(void **state)
{
    (void)state;
    outcome result = run_loam(SMOOTH " --threads 1 --out smooth1");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "12 sequences of 128"));
    result = run_shell("ls -A smooth1 && wc -l < smooth1/smooth.csv && wc -l < smooth1/summary.csv");
    assert_string_equal(result.out, "smooth-d2.svg\nsmooth.csv\nsummary.csv\n1025\n9\n");
    result = run_shell(
        "sort -t, -g -k 6 smooth1/summary.csv | cut -d, -f 2 | grep -v estimator | head -3 | tr '\\n' ' '");
    assert_string_equal(result.out, "lla softmax mesa ");
    /* By more than three standard errors of the ratio. */
    result = run_shell("awk -F, 'NR > 1 && $2 != \"lla\" && $7 - 3 * $8 < 1' smooth1/summary.csv");
    assert_string_equal(result.out, "");
    result = run_loam(SMOOTH " --threads 3 --out smooth3");
    expect_status(&result, EXIT_OK);
    expect_same("smooth1", "smooth3");
}

/* Without noise and over a long distance the map is its tangent, which one linear map tells. */
static void a_map_without_bends(void **state)
{
    (void)state;
    outcome result = run_loam(SMOOTH " --noise 0 --scale 1000 --backend reference --out tangent");
    expect_status(&result, EXIT_OK);
    result = run_shell("awk -F, '$2 == \"mesa\" && $6 < 1e-6 { print \"told\" }' tangent/summary.csv");
    assert_string_equal(result.out, "told\n");
}

#define RATES "experiment rates --d 1 --n 128,1024 --queries 1024 --repetitions 3 --most 3"

/* The slopes of theory, as far as three repetitions and these n tell; files that agree with each other. */
static void rates_of_errors(void **state)
{
    (void)state;
    outcome result = run_loam(RATES " --validate --threads 1 --out rates1");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "2.1 holds"));
    result = run_shell("cd rates1 && ls -A && wc -l < rates.csv && wc -l < summary.csv");
    assert_string_equal(result.out,
                        "rates-d1-interior.svg\nrates-d1-whole.svg\nrates.csv\nsummary.csv\n21\n11\n");
    result = run_shell("awk -F, 'NR > 1 && $3 == \"best\" && ($6 - $8) ^ 2 > 0.01' rates1/summary.csv");
    assert_string_equal(result.out, "");
    /* What a user chooses is no better than the best, and not far from it. */
    result = run_shell("awk -F, '$4 == \"best\" { e[$2 $3 $5] = $7 } $4 == \"validated\" "
                       "{ x = $7 / e[$2 $3 $5]; if (x < 1 || x > 2) print }' rates1/rates.csv");
    assert_string_equal(result.out, "");
    result = run_loam(RATES " --validate --threads 3 --out rates3");
    expect_status(&result, EXIT_OK);
    expect_same("rates1", "rates3");
}

/* At the edge of what was seen the bias of NW is of first order everywhere. Float64 and float32 agree. */
static void rates_at_the_edge(void **state)
{
    (void)state;
    static const char *const backends[] = { "cpu", "reference" };
    for (int i = 0; i < 2; i++) {
        outcome result = run_loam("experiment rates --setting ordered --d 1 --n 128,320 --repetitions 3 "
                                  "--most 3 --backend %s --out %s",
                                  backends[i], backends[i]);
        expect_status(&result, EXIT_OK);
        assert_null(strstr(result.out, "2.1"));
        result = run_shell("awk -F, 'NR > 1 && $4 == \"whole\" && ($6 - $8) ^ 2 > 0.01' %s/summary.csv",
                           backends[i]);
        assert_string_equal(result.out, "");
    }
    outcome result = run_shell("paste -d, cpu/rates.csv reference/rates.csv | awk -F, 'NR > 1 && "
                               "($7 / $16 - 1) ^ 2 > 1e-8'");
    assert_string_equal(result.out, "");
    result = run_loam("experiment rates --setting ordered --d 4 --n 64,128 --repetitions 2 --out unseen");
    expect_complaint(&result, EXIT_USAGE, "none of 64 queries is in the interior");
    assert_false(file_exists("unseen"));
}

#define MEMORY "experiment memory --d 16 --n 64,128,256,512,1024 --compute 128 --limit 0.03"

/* 0.03 GiB hold 512 x 512 differences of 16 channels, and not 1024 x 1024. */
static void memory_of_methods(void **state)
{
    (void)state;
    outcome result = run_loam(MEMORY " --out memory");
    expect_status(&result, EXIT_OK);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "limit of 0.03 GiB: differences from n = 1024."));
    result = run_shell("cd memory && ls -A && cut -d, -f 1,3,4 memory.csv | grep -c computed; "
                       "grep -c taken memory.csv; grep out, memory.csv | cut -d, -f 1-6");
    assert_string_equal(result.out, "memory.csv\nmemory.svg\n12\n16\n1024,16,differences,out,,\n"
                                    "1024,16,differences+backward,out,,\n");
    /* What was taken is what was asked for; the outputs agree. */
    result = run_shell("awk -F, '$4 == \"taken\" && ($5 - $8) ^ 2 > 1e12 || NR > 1 && $12 > 1e-4' "
                       "memory/memory.csv");
    assert_string_equal(result.out, "");
}

static void nowhere_to_write(void **state)
{
    (void)state;
    outcome result = run_shell(": > plain; \"$LOAM\" " SMALL " --out plain");
    expect_complaint(&result, EXIT_OUTPUT, "plain");
    result = run_shell("PATH=/nowhere \"$LOAM\" " SMALL " --out unseen");
    expect_complaint(&result, EXIT_OUTPUT, "gnuplot");
    assert_false(file_exists("unseen"));
    result = run_loam(SMALL " --out unseen --resume");
    expect_complaint(&result, EXIT_INPUT, "holds no run to continue");
    assert_false(file_exists("unseen"));
    result = run_shell(": > plain; \"$LOAM\" " SMOOTH " --out plain");
    expect_complaint(&result, EXIT_OUTPUT, "plain");
    result = run_shell("PATH=/nowhere \"$LOAM\" " SMOOTH " --out unseen");
    expect_complaint(&result, EXIT_OUTPUT, "gnuplot");
    assert_false(file_exists("unseen"));
    static const char *const others[] = { RATES, MEMORY };
    for (int i = 0; i < 2; i++) {
        result = run_shell(": > plain; \"$LOAM\" %s --out plain", others[i]);
        expect_complaint(&result, EXIT_OUTPUT, "plain");
        result = run_shell("PATH=/nowhere \"$LOAM\" %s --out unseen", others[i]);
        expect_complaint(&result, EXIT_OUTPUT, "gnuplot");
        assert_false(file_exists("unseen"));
    }
    result = run_shell("\"$LOAM\" " CELLS " --sequences 2 --out closed >/dev/full");
    expect_complaint(&result, EXIT_OUTPUT, "standard output");
}

/* A file size limit stands for the full disk: what fits is whole, the rest absent, and no work is lost. */
static void no_room(void **state)
{
    (void)state;
    outcome result = run_shell("(trap '' XFSZ; ulimit -f 200; exec \"$LOAM\" " SMALL " --out room)");
    expect_complaint(&result, EXIT_OUTPUT, "cannot write room/regression.csv");
    assert_false(file_exists("room/regression.csv"));
    assert_true(shell_holds("test -z \"$(ls -A room | grep -v state)\""));
    result = run_loam(SMALL " --out room --resume");
    expect_status(&result, EXIT_OK);
    result = run_loam(SMALL " --out roomy");
    expect_status(&result, EXIT_OK);
    expect_same("roomy", "room");
}

static void other_options_are_refused(void **state)
{
    (void)state;
    assert_true(kill_loam(SMALL " --out killed", "test -e killed/state/d4-S64-visible"));
    outcome result = run_loam(SMALL " --out killed --noise 0.1");
    expect_complaint(&result, EXIT_INPUT, "--restart discards it");
    result = run_loam(SMALL " --out killed --noise 0.1 --restart");
    expect_status(&result, EXIT_OK);
    result = run_shell("ls -A killed | grep -c state; rm -r killed");
    assert_string_equal(result.out, "0\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_runs_continue),
        cmocka_unit_test(many_kills),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(table_and_files),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(wrong_options_of_measurements),
        cmocka_unit_test(a_smooth_map),
        cmocka_unit_test(a_map_without_bends),
        cmocka_unit_test(rates_of_errors),
        cmocka_unit_test(rates_at_the_edge),
        cmocka_unit_test(memory_of_methods),
        cmocka_unit_test(nowhere_to_write),
        cmocka_unit_test(no_room),
        cmocka_unit_test(other_options_are_refused),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
