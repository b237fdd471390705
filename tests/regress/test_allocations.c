/* SPDX-License-Identifier: MIT
 * Each allocation of the command fails once: a status, one line and no file. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "io/error.h"
#include "tests/regress/scratch.h"
#include "tests/support/alloc_fail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int run(const char *words)
{
    char line[512], *argv[24], *rest = NULL;
    int argc = 0;
    snprintf(line, sizeof line, "regress " DATA_DIR "/%s --threads 1 --out o.csv --plot p.svg", words);
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    return command_regress(argc, argv);
}

static int fail_each(const char *words)
{
    bool happened = true;
    int nth = 0;
    while (happened) {
        alloc_fail_at(++nth);
        const int status = run(words);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        const bool csv = access("o.csv", F_OK) == 0, picture = access("p.svg", F_OK) == 0;
        if (status == EXIT_OK ? !csv || !picture : csv || picture)
            fail_msg("allocation %d: status %d, but files: %d and %d", nth, status, csv, picture);
        if (!happened && status) fail_msg("status %d without a failed allocation", status);
        unlink("o.csv");
        unlink("p.svg");
    }
    return nth - 1;
}

static void test_each_allocation(void **state)
{
    (void)state;
    assert_in_range(fail_each("mcycle.csv --x times --y accel"), 20, 10000);
    assert_in_range(
        fail_each("quakes.csv --x lat,long --y depth --bandwidth 0.5 --at " DATA_DIR "/quakes.csv"), 20,
        10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_each_allocation) };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
