/* SPDX-License-Identifier: MIT
 * Every allocation of opening, encoding and decoding fails once: each time an error that says so, and nothing
 * half done. What PCRE2, utf8proc and jansson allocate is not seen: jansson calls some of its failures wrong
 * JSON. */
#include "tests/support/alloc_fail.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char text[] =
    "The caf\xc3\xa9 <|end|> text\xff isn't one: return token for all of the attentions!!";

static int use(const char *path, io_error *error)
{
    tokenizer *t;
    tokens ids = { 0 };
    char *again = NULL;
    size_t bytes;
    int status = tokenizer_open(&t, path, error);
    if (status) {
        assert_null(t);
        return status;
    }
    status = tokenizer_encode(t, text, strlen(text), true, &ids, error);
    if (status) assert_null(ids.id);
    if (!status) status = tokenizer_decode(t, ids.id, ids.count, true, &again, &bytes, error);
    if (status) assert_null(again);
    free(again);
    tokens_free(&ids);
    tokenizer_close(t);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const char *const paths[] = { TEXT_DATA "/splits.json", TEXT_DATA "/neox.json",
                                         TEXT_DATA "/llama.json",  TEXT_DATA "/wordpiece.json",
                                         TEXT_DATA "/gpt2",        TEXT_DATA "/tiny.gguf" };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        io_error error = { 0 };
        assert_int_equal(use(paths[i], &error), 0);
        long nth = 1;
        for (bool happened = true; happened; nth += 1 + nth / 40) {
            alloc_fail_at(nth);
            const int status = use(paths[i], &error);
            happened = alloc_fail_happened();
            alloc_fail_at(0);
            if (happened && (status != EXIT_INTERNAL || !strstr(error.text, "out of memory")))
                fail_msg("%s, allocation %ld: %d '%s'", paths[i], nth, status, error.text);
        }
        assert_true(nth > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_may_fail) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
