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
    snprintf(line, sizeof line, "regress %s --threads 1 --out o.csv --plot p.svg --json j.json", words);
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
        const int files = !access("o.csv", F_OK) + !access("p.svg", F_OK) + !access("j.json", F_OK);
        if (files != (status == EXIT_OK ? 3 : 0))
            fail_msg("allocation %d: status %d, but %d files", nth, status, files);
        if (!happened && status) fail_msg("status %d without a failed allocation", status);
        unlink("o.csv");
        unlink("p.svg");
        unlink("j.json");
    }
    return nth - 1;
}

static void test_each_allocation(void **state)
{
    (void)state;
    static const char *const commands[] = {
        DATA_DIR "/mcycle.csv --x times --y accel",
        DATA_DIR "/mcycle.csv --x times --y accel --bins 4 --slopes --bandwidth 1",
        DATA_DIR "/quakes.csv --x lat,long --y depth --bandwidth lat=2,long=3 --at " DATA_DIR "/quakes.csv",
        "groups.csv --x x --y y --by g --bandwidth 1 --no-se",
    };
    FILE *file = fopen("groups.csv", "w");
    assert_non_null(file);
    assert_true(fputs("x,y,g\n1,2,a\n2,3,a\n1,5,b\n2,6,b\n3,4,b\n1,1,c\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        assert_in_range(fail_each(commands[i]), 20, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_each_allocation) };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
