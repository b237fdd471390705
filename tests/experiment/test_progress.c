/* SPDX-License-Identifier: MIT
 * The bar on a terminal that the test holds the other end of, and its silence elsewhere. */
#define _XOPEN_SOURCE 700
#include "cli/progress.h"
#include "tests/experiment/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec time;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &time), 0);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What a bar of 1000 steps writes to standard error when that is `target`, which it closes; read from
 * the other end. */
static void record_bar(int target, int source, char *text, size_t size)
{
    const int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(target, STDERR_FILENO) == STDERR_FILENO);
    close(target);
    progress bar;
    progress_begin(&bar, "work", 1000);
    for (int i = 0; i < 1000; i++)
        progress_add(&bar, 1);
    bar.drawn = -1; /* long ago */
    progress_add(&bar, 0);
    bar.done = 250, bar.begun = seconds() - 100, bar.drawn = -1;
    progress_add(&bar, 0);
    progress_end(&bar);
    assert_true(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    close(saved);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used + 1 < size; used += got > 0 ? (size_t)got : 0)
        got = read(source, text + used, size - 1 - used);
    text[used] = '\0';
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

static void test_terminal(void **state)
{
    (void)state;
    char text[8192];
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    record_bar(slave, master, text, sizeof text);
    close(master);
    assert_non_null(strstr(text, "work ["));
    assert_non_null(strstr(text, "  0 %"));
    assert_non_null(strstr(text, "] 100 %"));
    /* A quarter took 100 seconds and a moment: 300 are left. */
    assert_non_null(strstr(text, "]  25 %"));
    assert_non_null(strstr(text, ", 5:0"));
    /* A thousand steps take no tenth of a second, or few: the bar is not drawn for each. */
    assert_true(count_of(text, "work [") < 100);
    assert_non_null(strstr(text, "\r\033[K"));
}

static void test_pipe(void **state)
{
    (void)state;
    int ends[2];
    char text[64];
    assert_int_equal(pipe(ends), 0);
    record_bar(ends[1], ends[0], text, sizeof text);
    assert_string_equal(text, "");
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
