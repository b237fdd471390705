/* SPDX-License-Identifier: MIT
 * Each allocation of the command fails once: a status and a line, results whole or absent. */
#include "cli/command.h"
#include "tests/experiment/fixture.h"
#include "tests/support/alloc_fail.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int run_command(const char *options, const char *directory)
{
    char line[256], *argv[24];
    int argc = 0;
    snprintf(line, sizeof line, "experiment %s --out %s --threads 1", options, directory);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return command_experiment(argc, argv);
}

/* The first `each` allocations one by one, and then those ever farther apart. */
static void fail_each(const char *options, int each)
{
    char directory[64];
    bool happened = true;
    int nth = 0;
    while (happened) {
        fixture_directory(directory);
        nth += nth < each ? 1 : 1 + nth / 4;
        alloc_fail_at(nth);
        const int status = run_command(options, directory);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (happened ? status == EXIT_OK : status != EXIT_OK)
            fail_msg("allocation %d: status %d", nth, status);
        if (access(directory, F_OK) == 0) fixture_remove(directory);
    }
    printf("fewer than %d allocations\n", nth);
    assert_true(nth > 30);
}

static void test_regression(void **state)
{
    (void)state;
    fail_each("regression --d 2 --length 8 --sequences 2 --segment 8 --restart --backend reference", INT_MAX);
}

static void test_smooth(void **state)
{
    (void)state;
    fail_each("smooth --d 2 --length 8 --sequences 2 --backend reference", INT_MAX);
}

/* Every evaluation has allocations of its own, all alike. */
static void test_rates(void **state)
{
    (void)state;
    fail_each("rates --d 1 --n 64,65 --queries 1024 --repetitions 2 --most 2", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_regression), cmocka_unit_test(test_smooth),
                                        cmocka_unit_test(test_rates) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
