/* SPDX-License-Identifier: MIT
 * Ids and texts of small tokenizers of each kind, as make_golden.py had them from the library. */
#define _XOPEN_SOURCE 700
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct golden {
    const char *name, *text;
    size_t bytes;
    bool special;
    int32_t id[260];
    int64_t count;
    const char *decoded;
} rows[] = {
#include "tests/text/golden.inc"
};
enum { ROWS = sizeof rows / sizeof *rows };

static tokenizer *open_path(const char *path)
{
    tokenizer *t;
    io_error error;
    if (tokenizer_open(&t, path, &error)) fail_msg("%s", error.text);
    return t;
}

static tokenizer *open_named(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.json", TEXT_DATA, name);
    return open_path(path);
}

static tokens encode(const tokenizer *t, const char *text, size_t bytes, bool special)
{
    tokens ids;
    io_error error;
    if (tokenizer_encode(t, text, bytes, special, &ids, &error)) fail_msg("%s", error.text);
    return ids;
}

static void expect_row(const tokenizer *t, const struct golden *row)
{
    tokens ids = encode(t, row->text, row->bytes, row->special);
    if (ids.count != row->count ||
        (ids.count && memcmp(ids.id, row->id, (size_t)ids.count * sizeof *ids.id) != 0))
        fail_msg("%s, row %d: '%s'", row->name, (int)(row - rows), row->text);
    char *text;
    size_t bytes;
    assert_int_equal(tokenizer_decode(t, ids.id, ids.count, true, &text, &bytes, NULL), 0);
    assert_int_equal(bytes, strlen(text) + (memchr(row->text, 0, row->bytes) ? 1 : 0));
    assert_string_equal(text, row->decoded);
    free(text);
    tokens_free(&ids);
}

static void ids_and_texts_are_the_librarys(void **state)
{
    (void)state;
    tokenizer *t = NULL;
    for (int i = 0; i < ROWS; i++) {
        if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0) {
            tokenizer_close(t);
            t = open_named(rows[i].name);
        }
        expect_row(t, &rows[i]);
    }
    tokenizer_close(t);
}

/* GPT-2's own files and a .gguf file hold the tokenizer of bytes.json, the latter with a token before. */
static void other_files_are_the_same(void **state)
{
    (void)state;
    tokenizer *gpt2 = open_path(TEXT_DATA "/gpt2"), *gguf = open_path(TEXT_DATA "/tiny.gguf");
    for (int i = 0; i < ROWS && strcmp(rows[i].name, "bytes") == 0; i++) {
        tokens ids = encode(gguf, rows[i].text, rows[i].bytes, true);
        assert_int_equal(ids.count, rows[i].count + 1);
        assert_int_equal(ids.id[0], tokenizer_id(gguf, "<|end|>"));
        assert_memory_equal(ids.id + 1, rows[i].id, (size_t)rows[i].count * sizeof *ids.id);
        tokens_free(&ids);
        if (strstr(rows[i].text, "<|end|>")) continue; /* to GPT-2's files it is a text as any other */
        expect_row(gpt2, &rows[i]);
    }
    assert_int_equal(tokenizer_size(gpt2), tokenizer_size(gguf));
    tokenizer_close(gpt2);
    tokenizer_close(gguf);
}

static void what_is_written_is_the_same(void **state)
{
    (void)state;
    char directory[] = "text-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    for (int i = 0; i < ROWS; i++) {
        if (i > 0 && strcmp(rows[i].name, rows[i - 1].name) == 0) continue;
        tokenizer *t = open_named(rows[i].name);
        io_error error;
        if (tokenizer_write(t, path, &error)) fail_msg("%s", error.text);
        tokenizer *again = open_path(directory);
        for (int k = i; k < ROWS && strcmp(rows[k].name, rows[i].name) == 0; k++)
            expect_row(again, &rows[k]);
        tokenizer_close(again);
        tokenizer_close(t);
    }
    assert_int_equal(unlink(path) | rmdir(directory), 0);
}

/* Whole characters come out as soon as they are whole, and all bytes in the end. */
static void streams_are_cut_between_characters(void **state)
{
    (void)state;
    static const char *const names[] = { "bytes", "llama", "metaspace", "wordpiece" };
    static const char text[] = "the caf\xc3\xa9 \xf0\x9f\x99\x82\xf0\x9f\x99\x82 dog";
    for (int i = 0; i < 4; i++) {
        tokenizer *t = open_named(names[i]);
        tokens ids = encode(t, text, strlen(text), true);
        char *whole, *part = malloc(token_stream_room(t)), all[256];
        size_t bytes, done = 0;
        assert_int_equal(tokenizer_decode(t, ids.id, ids.count, false, &whole, &bytes, NULL), 0);
        token_stream s = token_stream_of(t);
        for (int64_t n = 0; n < ids.count; n++) {
            const size_t count = token_stream_put(&s, ids.id[n], part);
            if (count) assert_int_not_equal((unsigned char)part[0] & 0xc0, 0x80);
            memcpy(all + done, part, count);
            done += count;
        }
        assert_int_equal(token_stream_end(&s, part), 0);
        assert_int_equal(done, bytes);
        assert_memory_equal(all, whole, bytes);
        free(whole);
        free(part);
        tokens_free(&ids);
        tokenizer_close(t);
    }
}

static void unfinished_streams_end_as_they_are(void **state)
{
    (void)state;
    tokenizer *t = open_named("bytes");
    tokens ids = encode(t, "\xf0\x9f\x99\x82", 4, false);
    char part[64];
    assert_true(ids.count > 1 && token_stream_room(t) <= sizeof part);
    token_stream s = token_stream_of(t);
    for (int64_t n = 0; n + 1 < ids.count; n++)
        assert_int_equal(token_stream_put(&s, ids.id[n], part), 0);
    const size_t count = token_stream_end(&s, part);
    assert_in_range(count, 1, 3);
    assert_memory_equal(part, "\xf0\x9f\x99", count);
    assert_int_equal(token_stream_put(&s, (int32_t)tokenizer_size(t), part), 0);
    tokens_free(&ids);
    tokenizer_close(t);
}

/* Any bytes of valid UTF-8 come back, whatever pieces and rows they make. */
static void texts_come_back(void **state)
{
    (void)state;
    static const char *const some[] = { "the",          " dog", "\n",       "  ",    "\xc3\xa9",
                                        "\xe4\xb8\xad", "1",    "a",        "'s",    "\xf0\x9f\x99\x82",
                                        "\x01",         "\t",   "aaaaaaaa", "return" };
    tokenizer *bytes = open_named("bytes"), *smollm = open_named("cl100k");
    uint32_t seed = 17;
    for (int n = 0; n < 300; n++) {
        char text[2048] = "";
        size_t length = 0;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            const char *piece = some[(seed >> 16) % (sizeof some / sizeof *some)];
            if (length + strlen(piece) >= sizeof text) break;
            strcpy(text + length, piece);
            length += strlen(piece);
        }
        for (int k = 0; k < 2; k++) {
            const tokenizer *t = k ? smollm : bytes;
            tokens ids = encode(t, text, length, false);
            char *again;
            size_t count;
            assert_int_equal(tokenizer_decode(t, ids.id, ids.count, true, &again, &count, NULL), 0);
            assert_int_equal(count, length);
            assert_memory_equal(again, text, length);
            free(again);
            tokens_free(&ids);
        }
    }
    tokenizer_close(bytes);
    tokenizer_close(smollm);
}

/* A megabyte without a place to cut: its rows are no quadratic work. */
static void one_long_piece_is_no_attack(void **state)
{
    (void)state;
    const size_t bytes = 1 << 20;
    char *text = malloc(bytes);
    memset(text, 'e', bytes);
    for (size_t i = 0; i < bytes; i += 3)
        text[i] = 'h', text[i + 1 < bytes ? i + 1 : i] = 't';
    tokenizer *t = open_named("bytes");
    tokens ids = encode(t, text, bytes, false);
    char *again;
    size_t count;
    assert_int_equal(tokenizer_decode(t, ids.id, ids.count, true, &again, &count, NULL), 0);
    assert_int_equal(count, bytes);
    assert_memory_equal(again, text, bytes);
    free(again);
    free(text);
    tokens_free(&ids);
    tokenizer_close(t);
}

/* Marks come in any order, and many: they are put in order of their classes, and not by a quadratic sort. */
static void many_marks_are_no_attack(void **state)
{
    (void)state;
    enum { MARKS = 200000 };
    char *mixed = malloc(1 + 4 * MARKS), *sorted = malloc(1 + 4 * MARKS);
    *mixed = *sorted = 'x';
    for (size_t i = 0; i < MARKS; i++) {
        memcpy(mixed + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4); /* above, below */
        memcpy(sorted + 1 + 2 * i, "\xcc\xa3", 2);
        memcpy(sorted + 1 + 2 * (MARKS + i), "\xcc\x81", 2);
    }
    tokenizer *t = open_named("neox");
    tokens one = encode(t, mixed, 1 + 4 * MARKS, false), other = encode(t, sorted, 1 + 4 * MARKS, false);
    assert_int_equal(one.count, other.count);
    assert_memory_equal(one.id, other.id, (size_t)one.count * sizeof *one.id);
    tokens_free(&one);
    tokens_free(&other);
    free(mixed);
    free(sorted);
    tokenizer_close(t);
}

static tokenizer *open_json(const char *json)
{
    FILE *stream = fopen("made.json", "wb");
    assert_non_null(stream);
    assert_true(fputs(json, stream) >= 0 && fclose(stream) == 0);
    tokenizer *t = open_path("made.json");
    assert_int_equal(unlink("made.json"), 0);
    return t;
}

/* Equal pairs merge from the left, in short rows and in long ones; what is dropped does not part its
 * neighbours, however long the piece. */
static void rows_merge_from_the_left(void **state)
{
    (void)state;
    tokenizer *t = open_json("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                             "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,"
                             "\"b\":2,\"ab\":3},\"merges\":[\"a b\",\"a a\"]}}");
    char text[100];
    memset(text, 'a', sizeof text);
    for (size_t bytes = 1; bytes <= sizeof text; bytes++) {
        tokens ids = encode(t, text, bytes, false);
        assert_int_equal(ids.count, (bytes + 1) / 2);
        for (int64_t i = 0; i < ids.count; i++)
            assert_int_equal(ids.id[i], (size_t)i < bytes / 2);
        tokens_free(&ids);
    }
    text[20] = '-', text[21] = 'b';
    tokens ids = encode(t, text, 22, false);
    assert_int_equal(ids.count, 11);
    assert_int_equal(ids.id[9], 0);
    assert_int_equal(ids.id[10], 3);
    tokens_free(&ids);
    tokenizer_close(t);
}

/* Pieces that begin alike, many of which share a place among those that are kept. */
static void kept_pieces_are_told_apart(void **state)
{
    (void)state;
    static char text[26 * 26 * 11 + 1];
    char json[2048] = "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"model\":{\"type\":\"BPE\","
                      "\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\"],"
                      "\"vocab\":{\"aa\":26,\"aaaa\":27,\"aaaaaaaa\":28";
    for (int i = 0; i < 26; i++)
        snprintf(json + strlen(json), sizeof json - strlen(json), ",\"%c\":%d", 'a' + i, i);
    strcat(json, "}}}");
    for (int i = 0; i < 26 * 26; i++)
        snprintf(text + 11 * i, 12, "aaaaaaaa%c%c ", 'z' - i / 26, 'z' - i % 26);
    tokenizer *t = open_json(json);
    tokens ids = encode(t, text, strlen(text), false);
    for (int i = 0; i < 26 * 26 - 1; i++) { /* the last one is all a */
        assert_int_equal(ids.id[3 * i], 28);
        assert_int_equal(ids.id[3 * i + 1], 25 - i / 26);
        assert_int_equal(ids.id[3 * i + 2], 25 - i % 26);
    }
    tokens_free(&ids);
    tokenizer_close(t);
}

static void matches_belong_where_they_should(void **state)
{
    (void)state;
    static const struct {
        const char *behaviour;
        int32_t count, id[5];
    } cases[] = { { "Removed", 2, { 1, 2 } },
                  { "Isolated", 4, { 1, 3, 3, 2 } },
                  { "MergedWithPrevious", 3, { 4, 3, 2 } },
                  { "MergedWithNext", 3, { 1, 3, 5 } },
                  { "Contiguous", 3, { 1, 6, 2 } } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[1024];
        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\","
                 "\"invert\":false},\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"U\",\"vocab\":{\"U\":0,"
                 "\"a\":1,\"it\":2,\"-\":3,\"a-\":4,\"-it\":5,\"--\":6,\"a--\":7,\"--it\":8}}}",
                 cases[i].behaviour);
        tokenizer *t = open_json(json);
        tokens ids = encode(t, "a--it", 5, false);
        assert_int_equal(ids.count, cases[i].count);
        assert_memory_equal(ids.id, cases[i].id, (size_t)ids.count * sizeof *ids.id);
        tokens_free(&ids);
        tokenizer_close(t);
    }
}

static void ids_are_found_by_text(void **state)
{
    (void)state;
    tokenizer *t = open_named("neox");
    assert_int_equal(tokenizer_id(t, "<|end|>"), 0);
    assert_int_equal(tokenizer_id(t, "special"), tokenizer_size(t) - 2);
    assert_int_equal(tokenizer_id(t, "\xc4\xa0t"), 257); /* a space and t, as the file has them */
    assert_int_equal(tokenizer_id(t, "nosuch"), -1);
    char *text;
    size_t bytes;
    io_error error;
    const int32_t ids[] = { 257, (int32_t)tokenizer_size(t) };
    assert_int_equal(tokenizer_decode(t, ids, 2, true, &text, &bytes, &error), EXIT_INPUT);
    assert_null(text);
    assert_non_null(strstr(error.text, "token 1 is"));
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_are_the_librarys),
        cmocka_unit_test(other_files_are_the_same),
        cmocka_unit_test(what_is_written_is_the_same),
        cmocka_unit_test(streams_are_cut_between_characters),
        cmocka_unit_test(unfinished_streams_end_as_they_are),
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(one_long_piece_is_no_attack),
        cmocka_unit_test(many_marks_are_no_attack),

        cmocka_unit_test(ids_are_found_by_text),
        cmocka_unit_test(rows_merge_from_the_left),
        cmocka_unit_test(kept_pieces_are_told_apart),
        cmocka_unit_test(matches_belong_where_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
