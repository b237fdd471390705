/* SPDX-License-Identifier: MIT
 * Pictures appear whole or not at all, and say why not in one line. */
#define _POSIX_C_SOURCE 200809L
#include "cli/plot.h"
#include "tests/regress/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static io_error error;

static int draw(const char *path, const char *commands)
{
    plot *p;
    const int status = plot_open(&p, path, 400, 300, &error);
    if (status) return status;
    fputs(commands, plot_script(p));
    return plot_close(p, &error);
}

static long size_of(const char *path)
{
    struct stat status;
    return stat(path, &status) ? -1 : (long)status.st_size;
}

static void test_both_formats(void **state)
{
    (void)state;
    static const char commands[] =
        "$d << EOD\n1 2\n2 3\nEOD\nplot $d with lines lt 2 title 'a', sin(x) lt 1\n";
    assert_int_equal(draw("a.svg", commands), EXIT_OK);
    assert_int_equal(draw("a.png", commands), EXIT_OK);
    assert_true(size_of("a.svg") > 3000 && size_of("a.png") > 3000);
    assert_int_equal(draw("a.svg", "plot cos(x) title 'again'\n"), EXIT_OK);
}

static void test_bad_name(void **state)
{
    (void)state;
    static const char *const names[] = { "a.gif", "svg", ".svg", "x/.png", "a.svg.txt", "" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(draw(names[i], "plot x\n"), EXIT_USAGE);
        assert_non_null(strstr(error.text, ".svg or .png"));
    }
}

/* The old picture stays where the new one fails. */
static void test_bad_script(void **state)
{
    (void)state;
    assert_int_equal(draw("keep.svg", "plot x\n"), EXIT_OK);
    const long before = size_of("keep.svg");
    assert_int_equal(draw("keep.svg", "plot no_such_function(x)\n"), EXIT_INTERNAL);
    assert_non_null(strstr(error.text, "no_such_function"));
    assert_int_equal(size_of("keep.svg"), before);
    assert_int_equal(draw("none.svg", "this is not gnuplot\n"), EXIT_INTERNAL);
    assert_int_equal(size_of("none.svg"), -1);
}

static void test_nothing_drawn(void **state)
{
    (void)state;
    assert_int_equal(draw("empty.svg", ""), EXIT_OUTPUT);
    assert_int_equal(size_of("empty.svg"), -1);
    assert_int_equal(draw("empty.png", "x = 1\n"), EXIT_OUTPUT);
    assert_int_equal(size_of("empty.png"), -1);
}

static void test_no_gnuplot(void **state)
{
    (void)state;
    char path[1024];
    const char *old = getenv("PATH");
    snprintf(path, sizeof path, "%s", old ? old : "");
    plot *p;
    assert_int_equal(plot_open(&p, "late.svg", 400, 300, &error), EXIT_OK);
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    assert_int_equal(plot_close(p, &error), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "gnuplot-nox"));
    assert_int_equal(plot_check("a.svg", &error), EXIT_OUTPUT);
    assert_int_equal(plot_open(&p, "early.svg", 400, 300, &error), EXIT_OUTPUT);
    assert_null(p);
    assert_int_equal(setenv("PATH", path, 1), 0);
    assert_int_equal(size_of("late.svg"), -1);
}

static void test_no_place(void **state)
{
    (void)state;
    assert_int_equal(draw("nowhere/a.svg", "plot x\n"), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "nowhere/a.svg"));
}

static void test_discard(void **state)
{
    (void)state;
    plot *p;
    assert_int_equal(plot_open(&p, "gone.svg", 400, 300, &error), EXIT_OK);
    plot_discard(p);
    plot_discard(NULL);
    assert_int_equal(size_of("gone.svg"), -1);
}

/* Marks of gnuplot's enhanced text, quotes and line ends are only characters. */
static void test_quote(void **state)
{
    (void)state;
    plot *p;
    assert_int_equal(plot_open(&p, "q.svg", 400, 300, &error), EXIT_OK);
    fputs("set title ", plot_script(p));
    plot_quote(p, "it's a_b^{c} \\n @ & ~ `date`\nsystem('touch oops')");
    fputs("\nplot x\n", plot_script(p));
    assert_int_equal(plot_close(p, &error), EXIT_OK);
    assert_int_equal(size_of("oops"), -1);
    char text[1 << 15];
    FILE *file = fopen("q.svg", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_non_null(strstr(text, "a_b^{c} \\n @"));
    assert_non_null(strstr(text, "`date` system("));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_formats), cmocka_unit_test(test_bad_name),
        cmocka_unit_test(test_bad_script),   cmocka_unit_test(test_nothing_drawn),
        cmocka_unit_test(test_no_gnuplot),   cmocka_unit_test(test_no_place),
        cmocka_unit_test(test_discard),      cmocka_unit_test(test_quote),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
