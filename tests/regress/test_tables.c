/* SPDX-License-Identifier: MIT
 * What `loam regress` does with tables of every kind: separators, standard input, groups,
 * bandwidths of columns, slopes, bins, places without data, and the summary as JSON. */
#define _POSIX_C_SOURCE 200809L
#include "io/csv.h"
#include "io/error.h"
#include "tests/regress/command.h"
#include "tests/regress/scratch.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char first[1 << 18], second[1 << 18];

static int make_tables(void **state)
{
    if (scratch_enter(state)) return -1;
    write_file("comma.csv", "a,b,g\n1,2,u\n2,4.5,v\n3,3,u\n4,9,u\n5,7,v\n6,4,v\n7,NA,u\n");
    write_file("semicolon.csv", "a;b;g\n1;2;u\n2;4.5;v\n3;3;u\n4;9;u\n5;7;v\n6;4;v\n7;NA;u\n");
    write_file("tab.csv", "a\tb\tg\n1\t2\tu\n2\t4.5\tv\n3\t3\tu\n4\t9\tu\n5\t7\tv\n6\t4\tv\n7\tNA\tu\n");
    write_file("small.csv",
               "x,y,kind\n1,2,\"a, b\"\n2,3,\"a, b\"\n3,5,\"a, b\"\n4,4,lone\n5,5,same\n5,6,same\n");
    write_file("none.csv", "x,y,kind\n1,2,a\n2,3,b\n3,5,c\n");
    return 0;
}

/* The rest of the line after `a` gives what that after `b` does. */
static void expect_same_table(const char *a, const char *b)
{
    char line[400];
    snprintf(line, sizeof line, "%s --out first", a);
    expect_done(line);
    snprintf(line, sizeof line, "%s --out second", b);
    expect_done(line);
    read_file("first", first, sizeof first);
    read_file("second", second, sizeof second);
    assert_true(strlen(first) > 50);
    assert_string_equal(first, second);
    unlink("first");
    unlink("second");
}

static void test_separators(void **state)
{
    (void)state;
    expect_same_table("comma.csv --x a --y b", "semicolon.csv --x a --y b");
    expect_same_table("comma.csv --x a --y b", "tab.csv --x a --y b");
    expect_same_table("tab.csv --x a --y b", "tab.csv --x a --y b --delimiter tab");
    expect_same_table("comma.csv --x a --y b", "semicolon.csv --x a --y b --delimiter ;");
    expect_error("semicolon.csv --x a --y b --delimiter , --out o", EXIT_INPUT, "(separator: ',')");
    expect_error("comma.csv --x a --y b --delimiter x --out o", EXIT_USAGE, "expected ',', ';' or tab");
    expect_error("comma.csv --x a --y b --delimiter", EXIT_USAGE, "needs an argument");
    write_file("de.csv", "a;b\n1,5;2\n2,5;3\n");
    expect_error("de.csv --x a --y b --out o", EXIT_INPUT, "de.csv, line 2, column 1 ('a'): '1,5'");
    write_file("bad.csv", "a;b\n1;2\n2;x\n");
    expect_error("bad.csv --x a --y b --out o", EXIT_INPUT, "bad.csv, line 3, column 2 ('b'): 'x'");
}

/* Runs with the file as standard input. */
static void give_input(const char *path) { assert_non_null(freopen(path, "r", stdin)); }

static void test_standard_input(void **state)
{
    (void)state;
    give_input("comma.csv");
    expect_same_table("comma.csv --x a --y b", "- --x a --y b");
    give_input("comma.csv");
    expect_done("- --x a --y b --grid 2 --out o");
    expect_said("standard input: b by a, 6 rows (1 more had missing values)");
    give_input("comma.csv");
    expect_done("comma.csv --x a --y b --at - --out o");
    expect_in_file("o", "\n7,");
    give_input("bad.csv");
    expect_error("- --x a --y b", EXIT_INPUT, "standard input, line 3, column 2 ('b'): 'x'");
    give_input("/dev/null");
    expect_error("- --x a --y b", EXIT_INPUT, "standard input is empty");
    expect_error("- --x a --y b --at -", EXIT_USAGE, "--at -: standard input is the table already");
    expect_error("comma.csv --x a --y b --plot -", EXIT_USAGE, ".svg or .png");
    unlink("o");
}

static void test_bandwidths(void **state)
{
    (void)state;
    const char *quakes = DATA_DIR "/quakes.csv --x lat,long --y depth --grid 12";
    char a[200], b[200];
    snprintf(a, sizeof a, "%s --bandwidth 1", quakes);
    snprintf(b, sizeof b, "%s --bandwidth lat=1,long=1", quakes);
    expect_same_table(a, b);
    snprintf(a, sizeof a, "%s --bandwidth lat=0.5sd,long=0.5sd", quakes);
    snprintf(b, sizeof b, "%s --bandwidth 0.5sd", quakes);
    expect_same_table(a, b);
    snprintf(b, sizeof b, "%s --bandwidth long=2,lat=0.8 --out o", quakes);
    expect_done(b);
    expect_said("bandwidth of lat ");
    expect_said("                    0.8                    0.8\n");
    expect_said("                      2                      2\n");
    unlink("o");
    static const char *const wrong[][2] = {
        { "lat=1", "column 'long' has none" },
        { "lat=1,long=0", "'0'" },
        { "lat=1,long=x", "'x'" },
        { "lat=1,depth=2", "'depth' is not among the columns" },
        { "lat=1,long=1,lat=2", "'lat' is given twice" },
        { "lat=1,2", "expected COL=H" },
        { "1,2", "'1,2'" },
        { "lat=1,", "expected COL=H" },
        { "1sdx", "'1sdx'" },
        { "sd", "'sd'" },
        { "1e-200", "is not within 1e-100" },
        { "lat=1,long=inf", "'inf'" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(a, sizeof a, "%s --out o --bandwidth %s", quakes, wrong[i][0]);
        expect_error(a, EXIT_USAGE, wrong[i][1]);
    }
}

/* Columns that are each in other units, with bandwidths in those, have one and the same fit. */
static void test_units(void **state)
{
    (void)state;
    csv_table out[2];
    static const char *const columns[] = { "linear_fit", "constant_fit", "linear_slope_a", "linear_slope_c" };
    write_file("metres.csv", "a,c,y\n1,5,2\n2,3,4\n3,9,3\n4,1,9\n5,4,7\n6,6,4\n");
    write_file("mixed.csv", "a,c,y\n1,5000,2\n2,3000,4\n3,9000,3\n4,1000,9\n5,4000,7\n6,6000,4\n");
    expect_done("metres.csv --x a,c --y y --bandwidth a=2,c=4 --grid 4 --slopes --out o0");
    expect_done("mixed.csv --x a,c --y y --bandwidth a=2,c=4000 --grid 4 --slopes --out o1");
    for (int i = 0; i < 2; i++) {
        const csv_request request = { .columns = columns, .column_count = 4, .missing = CSV_DROP_ROW };
        assert_int_equal(csv_read(&out[i], i ? "o1" : "o0", &request, NULL), 0);
        assert_in_range(out[i].rows, 8, 16);
    }
    assert_int_equal(out[0].rows, out[1].rows);
    for (int64_t i = 0; i < 4 * out[0].rows; i++) {
        const double unit = i < 3 * out[0].rows ? 1 : 1000;
        assert_true(fabs(out[0].values[i] - unit * out[1].values[i]) < 1e-9);
    }
    csv_table_free(&out[0]);
    csv_table_free(&out[1]);
    unlink("o0");
    unlink("o1");
}

/* The constant by its definition, with a bandwidth for each column in its units. */
static void test_definition(void **state)
{
    (void)state;
    static const double a[] = { 1, 2, 3, 4, 5, 6 }, c[] = { 5, 3, 9, 1, 4, 6 }, y[] = { 2, 4, 3, 9, 7, 4 };
    static const char *const columns[] = { "a", "c", "constant_fit" };
    const csv_request request = { .columns = columns, .column_count = 3 };
    csv_table out;
    expect_done(
        "metres.csv --x a,c --y y --bandwidth a=2,c=0.7 --at metres.csv --estimator constant --out o");
    assert_int_equal(csv_read(&out, "o", &request, NULL), 0);
    assert_int_equal(out.rows, 6);
    for (int i = 0; i < 6; i++) {
        double sum = 0, total = 0;
        for (int j = 0; j < 6; j++) {
            const double w = exp(-0.5 * (pow((a[j] - a[i]) / 2, 2) + pow((c[j] - c[i]) / 0.7, 2)));
            sum += w * y[j], total += w;
        }
        assert_true(fabs(out.values[12 + i] - sum / total) < 1e-10);
    }
    csv_table_free(&out);
    unlink("o");
}

/* The slopes of a plane are its own, at every point. */
static void test_slopes(void **state)
{
    (void)state;
    write_file("plane.csv", "p,\"q,r\",y\n1,5,-3\n2,3,3\n3,9,-7\n4,1,11\n5,4,7\n6,6,5\n");
    static const char *const columns[] = { "linear_slope_p", "linear_slope_q,r" };
    csv_table out;
    expect_done("plane.csv --x 1,2 --y y --bandwidth 1sd --grid 5 --slopes --no-se --out o");
    expect_in_file("o", "p,\"q,r\",constant_fit,linear_fit,linear_slope_p,\"linear_slope_q,r\",note\n");
    const csv_request request = { .columns = columns, .column_count = 2, .missing = CSV_DROP_ROW };
    assert_int_equal(csv_read(&out, "o", &request, NULL), 0);
    assert_in_range(out.rows, 10, 25);
    for (int64_t i = 0; i < out.rows; i++)
        assert_true(fabs(out.values[i] - 2) < 1e-9 && fabs(out.values[out.rows + i] + 2) < 1e-9);
    csv_table_free(&out);
    expect_done("comma.csv --x a --y b --bandwidth 1e-3 --grid 2 --estimator linear --slopes --out o");
    expect_in_file(
        "o", "a,linear_fit,linear_se,linear_lower,linear_upper,linear_slope_a,note\n1,2,,,,,linear singular");
    expect_error("comma.csv --x a --y b --slopes --estimator constant", EXIT_USAGE,
                 "--estimator constant has none");
    unlink("o");
}

static void test_no_errors(void **state)
{
    (void)state;
    expect_done("comma.csv --x a --y b --bandwidth 1 --grid 2 --no-se --out o");
    expect_in_file("o", "a,constant_fit,linear_fit,note\n1,");
    assert_null(strstr(said, "noise"));
    assert_null(strstr(said, "leave-one-out"));
    expect_done("comma.csv --x a --y b --grid 2 --no-se --out o");
    expect_said("leave-one-out");
    expect_done("comma.csv --x a --y b --grid 2 --no-se --out o --plot p.svg");
    expect_error("comma.csv --x a --y b --no-se --level 0.9 --plot p.svg", EXIT_USAGE,
                 "--level is of the bands");
    unlink("o");
    unlink("p.svg");
}

/* ---- groups */

static void test_groups(void **state)
{
    (void)state;
    expect_done("comma.csv --x a --y b --by g --bandwidth 1 --grid 3 --estimator constant --out o");
    expect_said(
        "comma.csv: b by a, 6 rows (1 more had missing values), one fit for each of 2 g\nu: 3 rows\n");
    expect_said("\nv: 3 rows\n");
    expect_in_file("o", "g,a,constant_fit,constant_se,constant_lower,constant_upper,note\nu,1,");
    expect_in_file("o", "\nu,4,");
    expect_in_file("o", "\nv,6,");
    read_file("o", first, sizeof first);
    write_file("u.csv", "a,b\n1,2\n3,3\n4,9\n");
    expect_done("u.csv --x a --y b --bandwidth 1 --grid 3 --estimator constant --out o");
    read_file("o", second, sizeof second);
    assert_memory_equal(strstr(first, "u,1,") + 2, strstr(second, "1,"), 20); /* the fit of the group alone */
    expect_done("semicolon.csv --x a --y b --by 3 --at u.csv --bandwidth 1 --out o");
    expect_in_file("o", "\nv,3,");
    unlink("o");
}

static void test_small_groups(void **state)
{
    (void)state;
    expect_done("small.csv --x x --y y --by kind --bandwidth 1 --grid 2 --out o --json j --plot p.svg");
    expect_said("\na, b: 3 rows\n");
    expect_said("\nlone: not fitted: a fit needs at least 2 rows, not 1\n");
    expect_said("\nsame: not fitted: column 'x' is constant: every value is 5\n");
    expect_in_file("o", "\n\"a, b\",1,");
    expect_in_file("j", "a fit needs at least 2 rows, not 1");
    expect_error("none.csv --x x --y y --by kind --out u", EXIT_INPUT,
                 "none of the 3 groups of 'kind' can be fitted");
    expect_error("small.csv --x x --y y --by knd", EXIT_INPUT, "did you mean 'kind'?");
    expect_error("small.csv --x x --y y --by x", EXIT_USAGE, "'x' is given twice");
    unlink("o");
    unlink("j");
    unlink("p.svg");
}

static void test_many_groups(void **state)
{
    (void)state;
    FILE *file = fopen("many.csv", "w");
    assert_non_null(file);
    fputs("x,y,g\n", file);
    for (int i = 0; i < 70; i++)
        fprintf(file, "%d,%d,%d\n", i, i * i % 11, i % 7);
    assert_int_equal(fclose(file), 0);
    expect_error("many.csv --x x --y y --by g --plot p.svg --out o", EXIT_USAGE,
                 "'g' has 7 groups, and a picture shows at most 6");
    expect_done("many.csv --x x --y y --by g --out o --grid 2");
    unlink("o");
}

/* ---- bins */

static void write_long_table(void)
{
    FILE *file = fopen("long.csv", "w");
    assert_non_null(file);
    fputs("x,y\n", file);
    for (int i = 0; i < 10500; i++)
        fprintf(file, "%.9g,%.9g\n", sin(i) + 0.001 * i, cos(3 * sin(i)) + 0.3 * sin(1e4 * i));
    assert_int_equal(fclose(file), 0);
}

static void test_bins(void **state)
{
    (void)state;
    static const char *const columns[] = { "constant_fit", "constant_se", "linear_fit", "linear_se",
                                           "linear_slope_x" };
    const csv_request request = { .columns = columns, .column_count = 5 };
    csv_table binned, exact;
    write_long_table();
    expect_done("long.csv --x x --y y --bandwidth 0.1 --grid 20 --slopes --out o");
    expect_said("(fits through bins, 4 per bandwidth; --bins 0 uses the rows themselves)");
    assert_int_equal(csv_read(&binned, "o", &request, NULL), 0);
    expect_done("long.csv --x x --y y --bandwidth 0.1 --grid 20 --slopes --bins 0 --out o");
    assert_null(strstr(said, "bins"));
    assert_int_equal(csv_read(&exact, "o", &request, NULL), 0);
    for (int64_t i = 0; i < 5 * 20; i++)
        assert_true(fabs(binned.values[i] - exact.values[i]) <= 1e-7 * exact.values[20 + i % 20]);
    csv_table_free(&binned);
    csv_table_free(&exact);
    expect_same_table("long.csv --x x --y y --threads 1", "long.csv --x x --y y --threads 3");
    expect_done("comma.csv --x a --y b --bandwidth 1 --bins 2 --out o");
    expect_said("2 per bandwidth");
    expect_error("comma.csv --x a --y b --bins 65", EXIT_USAGE, "from 0 to 64");
    expect_error("small.csv --x x,y --y kind --bins 2", EXIT_USAGE, "--bins 2: expected one x column, not 2");
    unlink("o");
}

/* ---- places without data */

/* Rows stand at two corners; the others have no fit, but for --at, which has what it asks for. */
static void test_gaps(void **state)
{
    (void)state;
    write_file("corners.csv", "a,b,y\n0,0,1\n0,1,2\n1,0,4\n1,1,3\n9,9,5\n9,10,6\n10,9,9\n10,10,7\n");
    write_file("places.csv", "a,b\n0,10\n");
    expect_done("corners.csv --x a,b --y y --bandwidth 1 --grid 2 --slopes --out o --json j --plot p.svg");
    expect_in_file("o", "\n0,10,,,,,,,,,,,constant no data; linear no data\n");
    expect_in_file("o", "\n10,0,,,,,,,,,,,constant no data; linear no data\n10,10,");
    expect_said("  linear: 2 of 4 points have no data around them and are left empty\n");
    expect_in_file("j", "\"no_data\": 2");
    expect_done("corners.csv --x a,b --y y --bandwidth 1 --grid 2 --no-se --out o");
    expect_in_file("o", "\n0,10,,,constant no data; linear no data\n");
    expect_done("corners.csv --x a,b --y y --bandwidth 1 --at places.csv --estimator constant --out o");
    expect_in_file("o", ",constant far\n");
    unlink("o");
    unlink("j");
    unlink("p.svg");
}

/* Two bandwidths from a heap of rows there is a constant, but a line would be less certain than one row. */
static void test_uncertain(void **state)
{
    (void)state;
    FILE *file = fopen("heap.csv", "w");
    assert_non_null(file);
    fputs("a,b,y\n8,8,3\n", file);
    for (int i = 0; i < 20; i++)
        fprintf(file, "%g,%g,%d\n", i % 5 * 0.02, i / 5 * 0.02, i % 3);
    assert_int_equal(fclose(file), 0);
    expect_done("heap.csv --x a,b --y y --bandwidth 1 --grid 5 --no-se --out o");
    read_file("o", first, sizeof first);
    const char *line = strstr(first, "\n0,2,");
    assert_non_null(line);
    assert_true(line[5] != ',');
    assert_memory_equal(strchr(line + 5, ','), ",,linear no data\n", 17);
    unlink("o");
}

/* ---- JSON */

static json_t *load_json(const char *path)
{
    json_error_t wrong;
    json_t *root = json_load_file(path, 0, &wrong);
    if (!root) fail_msg("%s: %s", path, wrong.text);
    return root;
}

static double number_at(json_t *object, const char *name)
{
    json_t *number = json_object_get(object, name);
    if (!json_is_number(number)) fail_msg("'%s' is no number", name);
    return json_number_value(number);
}

static void test_json(void **state)
{
    (void)state;
    expect_done("comma.csv --x a --y b --bandwidth 1.25 --out o --json j");
    expect_said("bandwidth of a");
    json_t *root = load_json("j"), *fit = json_array_get(json_object_get(root, "fits"), 0);
    json_t *line = json_object_get(json_object_get(fit, "estimators"), "linear");
    json_t *bandwidth = json_array_get(json_object_get(line, "bandwidth"), 0);
    assert_true(number_at(root, "rows") == 6 && number_at(root, "rows_left_out_for_missing_values") == 1);
    assert_true(number_at(bandwidth, "value") == 1.25);
    assert_true(fabs(number_at(bandwidth, "standard_deviations") * sqrt(3.5) - 1.25) < 1e-12);
    assert_string_equal(json_string_value(json_object_get(bandwidth, "column")), "a");
    assert_string_equal(json_string_value(json_object_get(line, "bandwidth_from")), "given");
    assert_true(fabs(sqrt(number_at(line, "criterion")) - number_at(line, "leave_one_out_error")) < 1e-12);
    assert_true(number_at(line, "effective_parameters") > 1);
    assert_true(json_is_null(json_object_get(line, "bins")) && json_is_null(json_object_get(fit, "group")));
    json_decref(root);
    unlink("j");

    expect_done("comma.csv --x a --y b --by g --no-se --bandwidth 1 --out o --json -");
    root = json_loads(said, 0, NULL); /* all that was said */
    assert_non_null(root);
    fit = json_array_get(json_object_get(root, "fits"), 1);
    assert_string_equal(json_string_value(json_object_get(fit, "group")), "v");
    line = json_object_get(json_object_get(fit, "estimators"), "constant");
    assert_true(json_is_null(json_object_get(line, "noise")) &&
                json_is_null(json_object_get(line, "criterion")));
    json_decref(root);
    unlink("o");
}

/* Names that are not UTF-8 leave valid JSON. */
static void test_json_names(void **state)
{
    (void)state;
    write_file("latin.csv", "h\xF6he,b\n1,2\n2,3\n3,1\n");
    expect_done("latin.csv --x 1 --y b --bandwidth 1 --out o --json j");
    json_t *root = load_json("j");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "x"), 0)), "h?he");
    json_decref(root);
    unlink("o");
    unlink("j");
}

static void test_files(void **state)
{
    (void)state;
    expect_error("comma.csv --x a --y b --json -", EXIT_USAGE, "give --out F");
    expect_error("comma.csv --x a --y b --json o --out o", EXIT_USAGE,
                 "--json o would be written over --out o");
    expect_error("comma.csv --x a --y b --out ./comma.csv", EXIT_USAGE,
                 "--out ./comma.csv would be written over the table comma.csv");
    expect_error("comma.csv --x a --y b --out o --json comma.csv", EXIT_USAGE,
                 "--json comma.csv would be written over the table comma.csv");
    expect_error("comma.csv --x a --y b --at u.csv --out u.csv", EXIT_USAGE,
                 "--out u.csv would be written over --at u.csv");
    expect_error("comma.csv --x a --y b --out o --json nowhere/j", EXIT_OUTPUT, "nowhere/j");
    expect_error("comma.csv --x a --y b --out o --json /dev/full", EXIT_OUTPUT, "/dev/full");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_separators),   cmocka_unit_test(test_standard_input),
        cmocka_unit_test(test_bandwidths),   cmocka_unit_test(test_units),
        cmocka_unit_test(test_definition),   cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_no_errors),    cmocka_unit_test(test_groups),
        cmocka_unit_test(test_small_groups), cmocka_unit_test(test_many_groups),
        cmocka_unit_test(test_bins),         cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_uncertain),    cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_names),   cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, make_tables, scratch_leave);
}
