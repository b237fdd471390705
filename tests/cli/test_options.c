/* SPDX-License-Identifier: MIT
 * cli/options.c: values, order, and every message. */
#include "cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct parsed {
    bool flag, help;
    const char *text;
    int64_t whole;
    double real, wide;
    int count;
    char *argv[12];
    int status;
    io_error error;
} parsed;

/* The words of `line`, which is changed, parsed as the arguments of a command. */
static parsed parse(char *line)
{
    parsed p = { .whole = 7, .real = 0.5, .text = "default" };
    const option_row rows[] = { { "first", OPTION_GROUP, NULL, 0, 0, "test --flag", "of a kind" },
                                { "flag", OPTION_FLAG, &p.flag, 0, 0, NULL, "a flag" },
                                { "text", OPTION_TEXT, &p.text, 0, 0, "F", "a text" },
                                { "whole", OPTION_INT, &p.whole, -2, 9, "N", "a whole number" },
                                { "second", OPTION_GROUP, NULL, 0, 0, NULL, NULL },
                                { "real", OPTION_REAL, &p.real, 0, 1e300, "X", "a number" },
                                { "wide", OPTION_REAL, &p.wide, -1e300, 1e300, "X", "a number" },
                                { "low", OPTION_REAL, &p.wide, -1e300, 3, "X", "a number" },
                                { 0 } };
    p.argv[p.count++] = line;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        p.argv[p.count++] = word;
    p.status = options_parse(&p.count, p.argv, rows, "test", "about", &p.help, &p.error);
    return p;
}

#define PARSE(words) parse((char[]){ words })

static void defaults_stay(void **state)
{
    (void)state;
    parsed p = PARSE("");
    assert_int_equal(p.status, 0);
    assert_false(p.flag || p.help);
    assert_string_equal(p.text, "default");
    assert_int_equal(p.whole, 7);
    assert_true(p.real == 0.5);
    assert_int_equal(p.count, 1);
}

static void values_are_taken(void **state)
{
    (void)state;
    parsed p = PARSE("one --flag --text=t two --whole -2 --real 1e-3 three");
    assert_int_equal(p.status, 0);
    assert_true(p.flag);
    assert_string_equal(p.text, "t");
    assert_int_equal(p.whole, -2);
    assert_true(p.real == 1e-3);
    assert_int_equal(p.count, 4);
    assert_string_equal(p.argv[1], "one");
    assert_string_equal(p.argv[2], "two");
    assert_string_equal(p.argv[3], "three");
}

static void two_dashes_end_the_options(void **state)
{
    (void)state;
    parsed p = PARSE("one -- --flag --unknown");
    assert_int_equal(p.status, 0);
    assert_false(p.flag);
    assert_int_equal(p.count, 4);
    assert_string_equal(p.argv[2], "--flag");
}

static void help_is_asked_for(void **state)
{
    (void)state;
    parsed p = PARSE("--help");
    assert_int_equal(p.status, 0);
    assert_true(p.help);
    p = PARSE("-h");
    assert_true(p.help);
}

static void expect_error(parsed p, const char *text)
{
    assert_int_equal(p.status, EXIT_USAGE);
    assert_int_equal(p.error.exit_status, EXIT_USAGE);
    assert_string_equal(p.error.text, text);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    expect_error(PARSE("--flga"), "unknown option --flga; did you mean --flag?");
    expect_error(PARSE("--second"), "unknown option --second; see --help");
    expect_error(PARSE("--flag --whole 3 --flag"), "--flag: given twice");
    expect_error(PARSE("--text a --whole 1 --text=a"), "--text: given twice");
    expect_error(PARSE("--real 1 --re 1"), "--real: given twice");
    expect_error(PARSE("--zzzzzz=3"), "unknown option --zzzzzz; see --help");
    expect_error(PARSE("--w 3"), "option --w fits several options; did you mean --whole?");
    expect_error(PARSE("--flag -z"), "unknown option -z; options are long: see --help");
    expect_error(PARSE("--text"), "--text needs an argument: --text F");
    expect_error(PARSE("--flag=1"), "--flag takes no argument");
    expect_error(PARSE("--whole 10"), "--whole 10: expected a whole number from -2 to 9");
    expect_error(PARSE("--whole 1x"), "--whole 1x: expected a whole number from -2 to 9");
    expect_error(PARSE("--whole 99999999999999999999"),
                 "--whole 99999999999999999999: expected a whole number from -2 to 9");
    expect_error(PARSE("--real -1"), "--real -1: expected a finite number of at least 0");
    expect_error(PARSE("--real inf"), "--real inf: expected a finite number of at least 0");
    expect_error(PARSE("--wide nan"), "--wide nan: expected a finite number");
    expect_error(PARSE("--low 4"), "--low 4: expected a finite number of at most 3");
}

static void choices_and_nearest(void **state)
{
    (void)state;
    static const char *const names[] = { "reference", "cpu", NULL };
    assert_int_equal(options_choice("cpu", names), 1);
    assert_int_equal(options_choice("cp", names), -1);
    assert_string_equal(options_nearest("refrence", names), "reference");
    assert_string_equal(options_nearest("CPU", names), "cpu");
    assert_null(options_nearest("banana", names));
    assert_null(options_nearest("x", names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_stay),
        cmocka_unit_test(values_are_taken),
        cmocka_unit_test(two_dashes_end_the_options),
        cmocka_unit_test(help_is_asked_for),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(choices_and_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
