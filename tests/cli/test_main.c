/* SPDX-License-Identifier: MIT
 * The program around its commands: help, versions, lists, and output that does not arrive. */
#include "io/error.h"
#include "io/npy.h"
#include "loam.h"
#include "tests/cli/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect_output(const outcome *result, const char *part)
{
    expect_status(result, 0);
    assert_string_equal(result->err, "");
    if (!strstr(result->out, part)) fail_msg("stdout lacks '%s': %s", part, result->out);
}

static void version_is_the_header_s(void **state)
{
    (void)state;
    char expected[64];
    snprintf(expected, sizeof expected, "loam %d.%d.%d\n", LOAM_VERSION_MAJOR, LOAM_VERSION_MINOR,
             LOAM_VERSION_PATCH);
    outcome result = run_loam("--version");
    expect_status(&result, 0);
    assert_string_equal(result.out, expected);
}

static void help_names_every_command(void **state)
{
    (void)state;
    static const char *const commands[] = { "attend", "regress", "experiment", "lm",   "convert",
                                            "dof",    "distill", "bench",      "list", "info" };
    const int count = sizeof commands / sizeof *commands;
    outcome all = run_loam("--help");
    for (int i = 0; i < count; i++) {
        expect_output(&all, commands[i]);
        outcome one = run_loam("%s --help", commands[i]);
        char usage[64];
        snprintf(usage, sizeof usage, "usage: loam %s", commands[i]);
        expect_output(&one, usage);
        expect_output(&one, "--help");
        one = run_loam("%s --nosuchoption", commands[i]);
        expect_complaint(&one, EXIT_USAGE, "--nosuchoption");
    }
    outcome same = run_loam("help");
    assert_string_equal(same.out, all.out);
    same = run_loam("-h");
    assert_string_equal(same.out, all.out);
}

static void unknown_commands_get_a_suggestion(void **state)
{
    (void)state;
    outcome result = run_loam("atend lla");
    expect_complaint(&result, EXIT_USAGE, "unknown command 'atend'; did you mean 'attend'?");
    result = run_loam("zzzzzz");
    expect_complaint(&result, EXIT_USAGE, "unknown command 'zzzzzz'; see loam --help");
    result = run_loam(" ");
    expect_complaint(&result, EXIT_USAGE, "say which command");
    result = run_loam("list extra");
    expect_complaint(&result, EXIT_USAGE, "unexpected argument 'extra'");
    result = run_loam("info extra");
    expect_complaint(&result, EXIT_USAGE, "unexpected argument 'extra'");
}

static void list_shows_the_registry(void **state)
{
    (void)state;
    outcome result = run_loam("list");
    loam_kernel_info row;
    int lines = 0;
    for (const char *c = result.out; *c; c++)
        lines += *c == '\n';
    int rows = 0;
    for (; loam_kernel_at(rows, &row) == LOAM_OK; rows++)
        expect_output(&result, row.name);
    assert_true(rows >= 3);
    assert_int_equal(lines, rows + 1);
    expect_output(&result, "softmax parallax lla");
}

static void list_shows_the_mechanisms(void **state)
{
    (void)state;
    outcome result = run_loam("list --table");
    loam_mechanism_info row;
    int rows = 0;
    for (; loam_mechanism_at(rows, &row) == LOAM_OK; rows++) {
        expect_output(&result, row.name);
        expect_output(&result, row.objective);
        expect_output(&result, row.update);
    }
    assert_true(rows > LOAM_MESA);
    expect_output(&result, "S = a S (I - beta k k^T) + beta v k^T");
}

/* Every line of a table has two blanks before each of its
 * columns, so that these begin where their heading does. */
static void expect_columns(char *text, const char *const *headings, int rows)
{
    size_t at[8];
    int columns = 0;
    for (; headings[columns]; columns++) {
        const char *found = strstr(text, headings[columns]);
        if (!found) fail_msg("no column %s in: %s", headings[columns], text);
        at[columns] = (size_t)(found - text);
    }
    char *line = strtok(text, "\n");
    for (int row = 0; row < rows; row++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        for (int c = 1; c < columns; c++)
            if (strlen(line) <= at[c] || strncmp(line + at[c] - 2, "  ", 2) != 0 || line[at[c]] == ' ')
                fail_msg("column %s is not at %zu: %s", headings[c], at[c], line);
    }
}

static void columns_are_as_wide_as_what_they_hold(void **state)
{
    (void)state;
    static const char *const kernels[] = { "kernel",   "pass", "mechanisms", "types",
                                           "back end", "isa",  "available",  NULL };
    static const char *const mechanisms[] = { "mechanism", "objective", "regulariser", "update",
                                              "output",    "cost",      NULL };
    loam_kernel_info kernel;
    loam_mechanism_info mechanism;
    int rows = 1;
    while (loam_kernel_at(rows - 1, &kernel) == LOAM_OK)
        rows++;
    outcome result = run_loam("list");
    expect_columns(result.out, kernels, rows);
    for (rows = 1; loam_mechanism_at(rows - 1, &mechanism) == LOAM_OK;)
        rows++;
    result = run_loam("list --table");
    expect_columns(result.out, mechanisms, rows);
}

static int64_t lines_with(const char *text, const char *part)
{
    int64_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

static void save_normal(const char *path, int64_t channels)
{
    const int64_t shape[] = { 2, 12, channels };
    array a;
    assert_int_equal(array_create(&a, LOAM_F32, 3, shape, path, NULL), 0);
    for (int64_t i = 0; i < a.count; i++)
        array_set(&a, i, sin((double)(i * i + channels)));
    assert_int_equal(npy_write(path, &a, NULL), 0);
    array_free(&a);
}

/* Each family of `attend --help` has an example, and it runs as it is printed. */
static void examples_of_the_help_run(void **state)
{
    (void)state;
    save_normal("q.npy", 4), save_normal("k.npy", 4), save_normal("v.npy", 3);
    outcome help = run_loam("attend --help");
    static const char *const groups[] = { "\ninputs and results:\n", "\nlocal family:\n", "\nrecurrences:\n",
                                          "\ninterpolation:\n" };
    const int count = sizeof groups / sizeof *groups;
    assert_int_equal(lines_with(help.out, "\n  loam attend "), count);
    for (int i = 0; i < count; i++) {
        const char *group = strstr(help.out, groups[i]);
        if (!group) fail_msg("no '%s' in the help", groups[i]);
        const char *example = strstr(group, "\n  loam ") + strlen("\n  loam ");
        outcome result = run_loam("%.*s", (int)strcspn(example, "\n"), example);
        expect_status(&result, 0);
        assert_true(file_exists("o.npy"));
        result = run_shell("rm o.npy");
    }
}

static void info_tells_versions_and_features(void **state)
{
    (void)state;
    outcome result = run_loam("info");
    expect_output(&result, loam_version());
    expect_output(&result, loam_cpu_features());
    expect_output(&result, "threads");
    expect_output(&result, "compiler");
    result = run_shell("OPENBLAS_CORETYPE=Prescott \"$LOAM\" info");
    expect_output(&result, "OpenBLAS, kernels Prescott\n");
}

static void lost_output_is_an_error(void **state)
{
    (void)state;
    static const char *const commands[] = { "--help", "--version", "list", "info", "attend --help" };
    for (int i = 0; i < 5; i++) {
        outcome result = run_shell("\"$LOAM\" %s >/dev/full", commands[i]);
        expect_complaint(&result, EXIT_OUTPUT, "cannot write standard output: No space left on device");
        result = run_shell("\"$LOAM\" %s >&-", commands[i]);
        expect_complaint(&result, EXIT_OUTPUT, "cannot write standard output: Bad file descriptor");
    }
}

/* The reader of a pipe has gone: no silent death by a signal. */
static void closed_pipe_is_an_error(void **state)
{
    (void)state;
    outcome result = run_shell("mkfifo gone && { { sleep 0.2; \"$LOAM\" list; echo $? >status; } >gone & "
                               "exec 3<gone; exec 3<&-; wait; cat status; }");
    assert_string_equal(result.out, "4\n");
    assert_non_null(strstr(result.err, "cannot write standard output: Broken pipe"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_is_the_header_s),
        cmocka_unit_test(help_names_every_command),
        cmocka_unit_test(unknown_commands_get_a_suggestion),
        cmocka_unit_test(list_shows_the_registry),
        cmocka_unit_test(list_shows_the_mechanisms),
        cmocka_unit_test(columns_are_as_wide_as_what_they_hold),
        cmocka_unit_test(examples_of_the_help_run),
        cmocka_unit_test(info_tells_versions_and_features),
        cmocka_unit_test(lost_output_is_an_error),
        cmocka_unit_test(closed_pipe_is_an_error),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
