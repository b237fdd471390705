/* SPDX-License-Identifier: MIT
 * The trainer finds the tokens and merges of the library `tokenizers`, trained on the same texts. */
#include "text/parts.h"
#include "text/train_bpe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bpe_trainer *train_on_text(void)
{
    static char text[1 << 16];
    FILE *stream = fopen(TEXT_DATA "/train.txt", "rb");
    assert_non_null(stream);
    const size_t bytes = fread(text, 1, sizeof text, stream);
    fclose(stream);
    bpe_trainer *b;
    io_error error;
    if (bpe_trainer_make(&b, "<|end|>", &error)) fail_msg("%s", error.text);
    for (size_t at = 0, end; at < bytes; at = end + 1) {
        const char *zero = memchr(text + at, 0, bytes - at);
        end = zero ? (size_t)(zero - text) : bytes;
        if (bpe_trainer_add(b, text + at, end - at, &error)) fail_msg("%s", error.text);
    }
    return b;
}

static void tokens_and_merges_are_the_librarys(void **state)
{
    (void)state;
    bpe_trainer *b = train_on_text();
    tokenizer *t;
    io_error error;
    if (bpe_trainer_finish(b, 400, &t, &error)) fail_msg("%s", error.text);
    json_t *want = json_of_file(TEXT_DATA "/bytes.json", &error);
    json_t *got = json_of_bytes(t->json, t->json_bytes, "trained", &error);
    const json_t *want_model = json_object_get(want, "model"), *got_model = json_object_get(got, "model");
    assert_true(json_array_size(json_object_get(want_model, "merges")) > 100);
    assert_true(json_equal(json_object_get(want_model, "merges"), json_object_get(got_model, "merges")));
    assert_true(json_equal(json_object_get(want_model, "vocab"), json_object_get(got_model, "vocab")));
    assert_true(json_equal(json_object_get(want, "added_tokens"), json_object_get(got, "added_tokens")));
    json_decref(want);
    json_decref(got);
    tokenizer_close(t);
    bpe_trainer_free(b);
}

static void training_ends_where_nothing_is_left(void **state)
{
    (void)state;
    bpe_trainer *b;
    tokenizer *t;
    io_error error;
    assert_int_equal(bpe_trainer_make(&b, "<|end|>", &error), 0);
    assert_int_equal(bpe_trainer_add(b, "abab abab\xff cd", 13, &error), 0);
    assert_int_equal(bpe_trainer_finish(b, 1000, &t, &error), 0);
    assert_int_equal(tokenizer_size(t), 257 + 2); /* ab, abab: nothing else is there twice */
    assert_true(tokenizer_id(t, "abab") == 258);
    tokenizer_close(t);
    assert_int_equal(bpe_trainer_finish(b, 256, &t, &error), EXIT_USAGE);
    assert_null(t);
    bpe_trainer_free(b);
    assert_int_equal(bpe_trainer_make(&b, "x", &error), EXIT_USAGE);
    assert_null(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tokens_and_merges_are_the_librarys),
                                        cmocka_unit_test(training_ends_where_nothing_is_left) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
