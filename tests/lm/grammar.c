/* SPDX-License-Identifier: MIT */
#include "tests/lm/grammar.h"

#include "random/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { WORDS = 24, END_EVERY = 64 };

void grammar_put(const char *folder, const char *file, const void *data, unsigned long bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(data, 1, bytes, to), bytes);
    assert_int_equal(fclose(to), 0);
}

/* Tokens of stream `stream`, as little-endian uint16. */
static void put_tokens(const char *folder, const char *file, uint64_t stream, int count)
{
    unsigned char *bytes = malloc(2 * (size_t)count);
    int token = 0;
    assert_non_null(bytes);
    for (int i = 0; i < count; i++) {
        uint64_t word;
        random_words((random_stream){ 7, stream }, (uint64_t)i, 1, &word);
        token = word % END_EVERY == 0 ? 0 : 1 + (5 * token + 7 * (int)(word >> 40 & 1) + 3) % WORDS;
        bytes[2 * i] = (unsigned char)token, bytes[2 * i + 1] = 0;
    }
    grammar_put(folder, file, bytes, 2 * (size_t)count);
    free(bytes);
}

void grammar_write(const char *folder)
{
    char text[2048];
    assert_int_equal(mkdir(folder, 0777), 0);
    put_tokens(folder, "train.u16", 1, GRAMMAR_TRAIN);
    put_tokens(folder, "valid.u16", 2, GRAMMAR_VALID);
    put_tokens(folder, "held-one.u16", 3, GRAMMAR_HELD);
    put_tokens(folder, "held-two.u16", 4, GRAMMAR_SHORT);
    const int bytes = snprintf(
        text, sizeof text,
        "{\"vocabulary\":%d,\"end_token\":0,\"note\":\"a further key\",\"corpora\":["
        "{\"name\":\"one\",\"train\":{\"bytes\":1,\"tokens\":%d},\"valid\":{\"bytes\":1,\"tokens\":%d},"
        "\"held\":{\"bytes\":%d,\"tokens\":%d,\"documents\":3}},"
        "{\"name\":\"two\",\"splits\":{\"train\":{\"bytes\":1,\"tokens\":%d},"
        "\"valid\":{\"bytes\":1,\"tokens\":%d},\"held\":{\"bytes\":%d,\"tokens\":%d}},"
        "\"held\":\"held-two.u16\"},"
        "{\"name\":\"none\",\"splits\":{\"train\":{\"tokens\":0},\"valid\":{\"tokens\":0},"
        "\"held\":{\"bytes\":0,\"tokens\":0}}}]}",
        GRAMMAR_VOCABULARY, GRAMMAR_TRAIN - 5, GRAMMAR_VALID - 6, 3 * GRAMMAR_HELD, GRAMMAR_HELD, 5, 6,
        3 * GRAMMAR_SHORT, GRAMMAR_SHORT);
    grammar_put(folder, "manifest.json", text, (unsigned long)bytes);
    const char *const taken = getenv("LOAM_TEST_DATA"); /* by gpu-bundle.sh */
    snprintf(text, sizeof text, "cp %s%s/tokenizer.json %s", taken ? taken : LM_TEST_DATA, taken ? "/lm" : "",
             folder);
    assert_int_equal(system(text), 0);
}

void grammar_remove(const char *folder)
{
    char text[600];
    snprintf(text, sizeof text, "rm -r %s", folder);
    assert_int_equal(system(text), 0);
}
