/* SPDX-License-Identifier: MIT
 * Every allocation of reading texts fails once: each time an error that says so. */
#include "corpus/collection.h"
#include "corpus/paths.h"
#include "tests/support/alloc_fail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char prose[] =
    "<p>It was a bright cold day in April &amp; all the clocks were striking thirteen.";

static int read_texts(io_error *error)
{
    static const char *const names[] = { "19.txt", "35.txt" };
    corpus_source source = { .name = "a", .path = ".", .kind = -1 };
    collection c = { .corpora = &source, .count = 1, .end = "<|end|>" };
    int status = 0;
    for (int i = 0; i < 2 && !status; i++)
        status = collection_add(&c, 0, TEXT_HTML, names[i], prose + i, strlen(prose + i), error);
    if (!status) status = collection_add(&c, 0, TEXT_DICTIONARY, "d", "a\nb\n", 4, error);
    if (!status) status = collection_separate(&c, error);
    collection_free(&c);
    return status;
}

static int find_paths(io_error *error)
{
    paths list;
    const int status = paths_find(&list, CORPUS_TEST_FILES, error);
    if (status) assert_int_equal(list.count, 0);
    paths_free(&list);
    return status;
}

static void fail_each(int (*action)(io_error *error), long least)
{
    long nth = 1;
    for (bool happened = true; happened; nth++) {
        io_error error = { 0 };
        alloc_fail_at(nth);
        const int status = action(&error);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (happened && (status != EXIT_INTERNAL || !strstr(error.text, "out of memory")))
            fail_msg("allocation %ld: %d '%s'", nth, status, error.text);
        if (!happened && status) fail_msg("%s", error.text);
    }
    assert_true(nth > least);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    fail_each(read_texts, 8);
    fail_each(find_paths, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_may_fail) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
