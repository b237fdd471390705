/* SPDX-License-Identifier: MIT
 * The bar on a terminal that the test holds the other end of, and its silence elsewhere. */
#define _XOPEN_SOURCE 700
#include "cli/progress.h"
#include "tests/experiment/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What 1000 steps of a bar write to standard error when that is `target`; read back from `source`. */
static void record_bar(int target, int source, char *text, size_t size)
{
    const int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(target, STDERR_FILENO) == STDERR_FILENO);
    progress bar;
    progress_begin(&bar, "work", 1000);
    for (int i = 0; i < 1000; i++)
        progress_add(&bar, 1);
    bar.drawn = -1; /* long ago */
    progress_add(&bar, 0);
    bar.done = 250, bar.begun -= 100, bar.drawn = -1;
    progress_add(&bar, 0);
    progress_end(&bar);
    assert_true(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    close(saved);
    const ssize_t got = read(source, text, size - 1);
    text[got > 0 ? got : 0] = '\0';
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
    close(slave);
    close(master);
    assert_non_null(strstr(text, "work ["));
    assert_non_null(strstr(text, "  0 %"));
    assert_non_null(strstr(text, "] 100 %"));
    /* A quarter took 100 seconds and a moment: 300 are left. */
    assert_non_null(strstr(text, "]  25 %"));
    assert_true(strstr(text, "5:00 left") || strstr(text, "5:01 left"));
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
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    record_bar(ends[1], ends[0], text, sizeof text);
    assert_string_equal(text, "");
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
