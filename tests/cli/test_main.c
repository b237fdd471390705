/* SPDX-License-Identifier: MIT
 * The program around its commands: help, versions, lists, and output that does not arrive. */
#include "io/error.h"
#include "loam.h"
#include "tests/cli/program.h"

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
    static const char *const commands[] = { "attend", "regress", "experiment", "bench", "list", "info" };
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
    assert_int_equal(rows, LOAM_MESA + 1);
    expect_output(&result, "S = a S (I - beta k k^T) + beta v k^T");
}

static void info_tells_versions_and_features(void **state)
{
    (void)state;
    outcome result = run_loam("info");
    expect_output(&result, loam_version());
    expect_output(&result, loam_cpu_features());
    expect_output(&result, "threads");
    expect_output(&result, "compiler");
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
        cmocka_unit_test(info_tells_versions_and_features),
        cmocka_unit_test(lost_output_is_an_error),
        cmocka_unit_test(closed_pipe_is_an_error),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
