/* SPDX-License-Identifier: MIT
 * `loam regress` as a user meets it: what it writes, and that errors are one line, a status and no file. */
#define _POSIX_C_SOURCE 200809L
#include "io/csv.h"
#include "io/error.h"
#include "tests/regress/brute.h"
#include "tests/regress/command.h"
#include "tests/regress/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int make_tables(void **state)
{
    if (scratch_enter(state)) return -1;
    write_file(
        "t.csv",
        "height,width,depth mm,same\n1,2,3,4\n2,3.5,NA,4\n3,1,7,4\n4,8,1,4\n5,3,3,4\n,1,1,4\n6,2,9,4\n");
    write_file("bad.csv", "a,b\n1,2\n3,x\n");
    write_file("one.csv", "a,b\n1,2\n");
    write_file("bare.csv", "1,10\n2,30\n3,20\n");
    return 0;
}

static void test_options(void **state)
{
    (void)state;
    expect_error("", EXIT_USAGE, "which table?");
    expect_error("t.csv", EXIT_USAGE, "--x is missing");
    expect_error("t.csv --x height", EXIT_USAGE, "--y is missing");
    expect_error("t.csv u.csv --x height --y width", EXIT_USAGE, "'u.csv'");
    expect_error("t.csv --x height --y width --at t.csv --grid 5", EXIT_USAGE, "exclude each other");
    expect_error("t.csv --x height --y width --bandwith 1", EXIT_USAGE, "bandwidth");
    expect_error("t.csv --x height --y width --bandwidth 1x --out o", EXIT_USAGE, "'1x'");
    expect_error("t.csv --x height --y width --bandwidth 0 --out o", EXIT_USAGE, "'0'");
    expect_error("t.csv --x height --y width --bandwidth nan --out o", EXIT_USAGE, "'nan'");
    expect_error("t.csv --x height --y width --bandwidth -1 --out o", EXIT_USAGE, "'-1'");
    expect_error("t.csv --x height --y width --ridge -1 --out o", EXIT_USAGE, "ridge");
    expect_error("t.csv --x height --y width --ridge nan --out o", EXIT_USAGE, "ridge");
    expect_error("t.csv --x height --y width --grid 1 --out o", EXIT_USAGE, "grid");
    expect_error("t.csv --x height --y width --level 1 --out o", EXIT_USAGE, "level");
    expect_error("t.csv --x height --y width --estimator liner --out o", EXIT_USAGE,
                 "did you mean 'linear'?");
    expect_error("t.csv --x height,width --y width --out o", EXIT_USAGE, "'width' is given twice");
    expect_error("t.csv --x height,,width --y width --out o", EXIT_USAGE, "empty column name");
    expect_error("t.csv --x 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 --y 2 --out o", EXIT_USAGE, "more than 16");
    expect_error("t.csv --x height,width --y 3 --grid 5000 --out o", EXIT_USAGE, "more than 10000000 points");
    expect_error("t.csv --x height --y width --plot p.jpg --out o", EXIT_USAGE, ".svg or .png");
}

static void test_input(void **state)
{
    (void)state;
    expect_error("none.csv --x a --y b --out o", EXIT_INPUT, "none.csv");
    expect_error("t.csv --x hieght --y width --out o", EXIT_INPUT, "did you mean 'height'?");
    expect_error("t.csv --x height --y widht --out o", EXIT_INPUT, "did you mean 'width'?");
    expect_error("t.csv --x height,same --y width --out o", EXIT_INPUT, "column 'same' is constant");
    expect_error("bad.csv --x a --y b --out o", EXIT_INPUT, "'x' is not a finite number");
    expect_error("one.csv --x a --y b --out o", EXIT_INPUT, "at least 2 rows");
    expect_error("bare.csv --x 1 --y 2 --at t.csv --out o", EXIT_INPUT, "t.csv");
    expect_error("t.csv --x height --y width --at t.csv --out o", EXIT_INPUT, "missing");
}

static void test_output(void **state)
{
    (void)state;
    expect_error("t.csv --x height --y width --out nowhere/o", EXIT_OUTPUT, "nowhere/o");
    expect_error("t.csv --x height --y width --out /dev/full", EXIT_OUTPUT, "/dev/full");
    expect_error("t.csv --x height --y width --plot nowhere/p.svg --out o", EXIT_OUTPUT, "nowhere/p.svg");
    char path[1024];
    const char *old = getenv("PATH");
    snprintf(path, sizeof path, "%s", old ? old : "");
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    expect_error("t.csv --x height --y width --plot p.svg --out o", EXIT_OUTPUT, "need gnuplot");
    assert_int_equal(setenv("PATH", path, 1), 0);
}

/* Header, one line a point, the x as given, an empty note where there is nothing to say. */
static void test_format(void **state)
{
    (void)state;
    char text[4096];
    expect_done("t.csv --x height --y width --bandwidth 1sd --grid 3 --out o.csv");
    assert_non_null(strstr(said, "width by height, 6 rows (1 more had missing values)"));
    read_file("o.csv", text, sizeof text);
    static const char header[] = "height,constant_fit,constant_se,constant_lower,constant_upper,"
                                 "linear_fit,linear_se,linear_lower,linear_upper,note\n1,";
    assert_memory_equal(text, header, sizeof header - 1);
    int lines = 0, commas = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n', commas += *c == ',';
    assert_int_equal(lines, 4);
    assert_int_equal(commas, 4 * 9);
    assert_non_null(strstr(text, "\n3.5,"));
    assert_non_null(strstr(text, "\n6,"));
    assert_non_null(strstr(text, ",\n"));
    unlink("o.csv");
    expect_done("t.csv --x height --y 3 --estimator linear --bandwidth 1sd --grid 2");
    assert_memory_equal(said, "height,linear_fit,linear_se,linear_lower,linear_upper,note\n1,", 58);
    expect_done("bare.csv --x 1 --y 2 --estimator constant --bandwidth 1sd --grid 2");
    assert_memory_equal(said, "1,constant_fit,", 15);
}

/* The figures of the file are those of the definition, bands of the level asked for. */
static void test_figures(void **state)
{
    (void)state;
    const double x[] = { 1, 2, 3, 4, 5, 6 }, y[] = { 2, 3.5, 1, 8, 3, 2 };
    const double bandwidth = 0.8 * brute_deviation(x, 6), level_reach = 1.2815515655446004;
    expect_done("t.csv --x height --y width --bandwidth 0.8sd --ridge 0.05 --grid 7 --level 0.8 --out o.csv");
    static const char *const names[] = { "height", "linear_fit", "linear_se", "linear_lower",
                                         "linear_upper" };
    csv_table out;
    assert_int_equal(csv_read(&out, "o.csv", &(csv_request){ .columns = names, .column_count = 5 }, NULL), 0);
    assert_int_equal(out.rows, 7);
    const brute_problem brute = { x, y, 6, 1, &bandwidth, 0.05, true };
    double squares = 0, freedom = 0;
    for (int i = 0; i < 6; i++) {
        double l[6], residual = y[i];
        brute_weights(&brute, &x[i], -1, l);
        for (int j = 0; j < 6; j++)
            residual -= l[j] * y[j], freedom += pow((i == j) - l[j], 2);
        squares += residual * residual;
    }
    for (int i = 0; i < 7; i++) {
        const double point = 1 + 5 * i / 6.0;
        double l[6], norm2 = 0;
        brute_weights(&brute, &point, -1, l);
        for (int j = 0; j < 6; j++)
            norm2 += l[j] * l[j];
        const double fit = brute_fit(&brute, &point, -1), error = sqrt(norm2 * squares / freedom);
        brute_close(out.values[i], point, 1e-14, "x", 0);
        brute_close(out.values[7 + i], fit, 1e-10, "fit", 0);
        brute_close(out.values[14 + i], error, 1e-5, "se", 0);
        brute_close(out.values[21 + i], fit - level_reach * error, 1e-10, "lower", 0);
        brute_close(out.values[28 + i], fit + level_reach * error, 1e-10, "upper", 0);
    }
    csv_table_free(&out);
    unlink("o.csv");
}

/* Never a NaN: a standard error that nothing tells is empty, odd points carry a note. */
static void test_notes(void **state)
{
    (void)state;
    write_file("at.csv", "height\n3\n1e9\n");
    expect_done("t.csv --x height --y width --bandwidth 1e-3sd --at at.csv --out o.csv");
    char text[4096];
    read_file("o.csv", text, sizeof text);
    assert_non_null(strstr(text, "\n3,1,,,,1,,,,linear singular\n"));
    assert_non_null(strstr(text, "\n1000000000,2,,,,2,,,,constant far; linear singular; linear far\n"));
    assert_null(strstr(text, "nan"));
    assert_non_null(strstr(said, "unknown"));
    unlink("o.csv");
    unlink("at.csv");
}

static void test_grid(void **state)
{
    (void)state;
    expect_done("t.csv --x height,width --y 4 --estimator constant --bandwidth 1sd --grid 2");
    const char *const points[] = { "\n1,1,4,", "\n1,8,4,", "\n6,1,4,", "\n6,8,4," };
    const char *at = said;
    for (int i = 0; i < 4; i++) {
        at = strstr(at, points[i]);
        if (!at) fail_msg("no point '%s' in its place: %s", points[i] + 1, said);
    }
}

static void test_threads(void **state)
{
    (void)state;
    static char one[1 << 18], more[1 << 18];
    expect_done(DATA_DIR "/quakes.csv --x lat,long --y depth --grid 20 --threads 1 --out one.csv");
    expect_done(DATA_DIR "/quakes.csv --x lat,long --y depth --grid 20 --threads 3 --out more.csv");
    read_file("one.csv", one, sizeof one);
    read_file("more.csv", more, sizeof more);
    assert_true(strlen(one) > 10000);
    assert_string_equal(one, more);
    unlink("one.csv");
    unlink("more.csv");
}

static void expect_picture(const char *path, const char *begin, size_t bytes)
{
    static char picture[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("no %s: %s", path, said);
    const size_t n = fread(picture, 1, sizeof picture, file);
    fclose(file);
    assert_true(n > 5000);
    assert_memory_equal(picture, begin, bytes);
    unlink(path);
}

static void test_pictures(void **state)
{
    (void)state;
    expect_done(DATA_DIR "/mcycle.csv --x times --y accel --out o.csv --plot p.svg");
    expect_picture("p.svg", "<?xml", 5);
    expect_done(DATA_DIR "/mcycle.csv --x times --y accel --estimator linear --out o.csv --plot p.png");
    expect_picture("p.png", "\x89PNG", 4);
    expect_done(DATA_DIR
                "/quakes.csv --x lat,long,mag,stations --y depth --bandwidth 1sd --out o.csv --plot p.svg");
    expect_picture("p.svg", "<?xml", 5);
    write_file("odd.csv", "a_b^{it's},\"x, \"\"y\"\"\"\n1,2\n2,1\n3,4\n4,2\n");
    expect_done("odd.csv --x 1 --y 2 --out o.csv --plot p.svg");
    expect_picture("p.svg", "<?xml", 5);
    unlink("odd.csv");
    unlink("o.csv");
}

static void test_help(void **state)
{
    (void)state;
    expect_done("--help");
    assert_non_null(strstr(said, "--bandwidth H|COL=H,...|auto"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options), cmocka_unit_test(test_input),   cmocka_unit_test(test_output),
        cmocka_unit_test(test_format),  cmocka_unit_test(test_figures), cmocka_unit_test(test_notes),
        cmocka_unit_test(test_grid),    cmocka_unit_test(test_threads), cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, make_tables, scratch_leave);
}
