/* SPDX-License-Identifier: MIT
 * Each allocation of the command fails once: a status and a line, results whole or absent. */
#include "cli/command.h"
#include "tests/experiment/fixture.h"
#include "tests/support/alloc_fail.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int run_command(const char *options, const char *directory)
{
    char line[256], *argv[24];
    int argc = 0;
    snprintf(line, sizeof line,
             "experiment %s --d 2 --length 8 --out %s --sequences 2 --threads 1 --backend reference", options,
             directory);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return command_experiment(argc, argv);
}

static void fail_each(const char *options)
{
    char directory[64];
    bool happened = true;
    int nth = 0;
    while (happened) {
        fixture_directory(directory);
        alloc_fail_at(++nth);
        const int status = run_command(options, directory);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (happened ? status == EXIT_OK : status != EXIT_OK)
            fail_msg("allocation %d: status %d", nth, status);
        if (access(directory, F_OK) == 0) fixture_remove(directory);
    }
    printf("%d allocations\n", nth - 1);
    assert_true(nth > 30);
}

static void test_regression(void **state)
{
    (void)state;
    fail_each("regression --segment 8 --restart");
}

static void test_smooth(void **state)
{
    (void)state;
    fail_each("smooth");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_regression), cmocka_unit_test(test_smooth) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
