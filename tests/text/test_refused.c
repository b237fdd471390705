/* SPDX-License-Identifier: MIT
 * What is wrong with a file, or not known here, is named in one line. */
#define _POSIX_C_SOURCE 200809L
#include "text/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"[U]\":3}"
#define BPE "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define WORDS "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[U]\"," VOCAB "}"
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
#define MODEL(more) "{\"model\":{\"type\":\"BPE\"," more "}}"
#define ADDED(tokens) "{" BPE ",\"added_tokens\":[" tokens "]}"
#define PATTERN(regex) \
    "{" BPE ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}}"
#define POST(more) "{" BPE ",\"post_processor\":{" more "}}"
#define DEEP "{\"type\":\"Sequence\",\"normalizers\":["

static const char *const rows[][2] = {
    { "", "is not JSON" },
    { "{", "is not JSON" },
    { "{\"model\":1,\"model\":2}", "duplicate object key" },
    { "[]", "the tokenizer is not an object" },
    { "{}", "the model has no type" },
    { "{\"modle\":{}}", "the tokenizer has 'modle', which is not known here" },
    { "{\"version\":\"2.0\"}", "the version is 2.0; expected 1.0" },
    { "{\"model\":{\"type\":\"Unigram\"}}", "the model 'Unigram' is not known here" },
    { "{\"model\":{\"type\":\"BPE\"}}", "the model has no vocab" },
    { MODEL("\"vocab\":{}"), "the model has no merges" },
    { MODEL("\"vocab\":{\"\":0},\"merges\":[]"), "an empty token" },
    { MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), "the token 'a' has no id from 0" },
    { MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), "the token 'a' has no id from 0" },
    { MODEL("\"vocab\":{\"a\":4194304},\"merges\":[]"), "the token 'a' has no id from 0 to 4194303" },
    { MODEL("\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]"), "the token 'b' has the id 1, which is another" },
    { MODEL("\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]"), "duplicate object key" },
    { MODEL(VOCAB ",\"merges\":[\"ab\"]"), "merge 0 is not a pair" },
    { MODEL(VOCAB ",\"merges\":[\"a b b\"]"), "merge 0 is not a pair" },
    { MODEL(VOCAB ",\"merges\":[[\"a\"]]"), "merge 0 is not a pair" },
    { MODEL(VOCAB ",\"merges\":[[\"a\",\"b\",\"b\"]]"), "merge 0 is not a pair" },
    { MODEL(VOCAB ",\"merges\":[\"a c\"]"), "merge 0 has 'c', which is not in the vocab" },
    { MODEL(VOCAB ",\"merges\":[\"a b\",[\"a\",\"b\"]]"), "merge 1 is there twice" },
    { MODEL(VOCAB ",\"merges\":[\"b a\"]"), "what it makes is not in the vocab" },
    { MODEL(VOCAB ",\"merges\":[],\"dropout\":0.1"), "a dropout" },
    { MODEL(VOCAB ",\"merges\":[],\"speed\":1"), "the model has 'speed', which is not known" },
    { MODEL(VOCAB ",\"merges\":[],\"fuse_unk\":1"), "fuse_unk is neither true nor false" },
    { MODEL(VOCAB ",\"merges\":[],\"unk_token\":\"?\""), "unk_token '?' is not in its vocab" },
    { "{" BYTES ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":true," VOCAB ",\"merges\":[]}}",
      "has byte_fallback" },
    { "{" BYTES "," WORDS "}", "the model WordPiece after ByteLevel" },
    { "{\"model\":{\"type\":\"WordPiece\"," VOCAB "}}", "unk_token is not a text" },
    { "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[U]\",\"max_input_chars_per_word\":0," VOCAB "}}",
      "max_input_chars_per_word is not 1 to 1000" },
    { ADDED("3"), "an added token is not an object" },
    { ADDED("{\"id\":9}"), "an added token: content is not a text" },
    { ADDED("{\"content\":\"x\"}"), "the added token 'x' has no id" },
    { ADDED("{\"content\":\"\",\"id\":9}"), "an added token has 0 bytes" },
    { ADDED("{\"content\":\"x\",\"id\":-9}"), "the added token 'x' has the id -9" },
    { ADDED("{\"content\":\"x\",\"id\":4294967296}"), "the added token 'x' has the id 4294967296" },
    { ADDED("{\"content\":\"x\",\"id\":1}"), "the id 1, which is another token's" },
    { ADDED("{\"content\":\"b\",\"id\":9}"), "the id 9, but the model has it as 1" },
    { ADDED("{\"content\":\"x\",\"id\":9},{\"content\":\"y\",\"id\":9}"), "'x' and 'y' have the same id" },
    { ADDED("{\"content\":\"x\",\"id\":9},{\"content\":\"x\",\"id\":8}"), "'x' is there twice" },
    { ADDED("{\"content\":\"x\",\"id\":9,\"colour\":1}"), "an added token has 'colour'" },
    { "{" BPE ",\"normalizer\":{\"type\":\"Nmt\"}}", "the normalizer 'Nmt' is not known here" },
    { "{" BPE ",\"normalizer\":{\"type\":\"NFC\",\"x\":1}}", "the normalizer has 'x'" },
    { "{" BPE ",\"normalizer\":{\"type\":\"Prepend\"}}", "the normalizer: prepend is not a text" },
    { "{" BPE ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{}}}",
      "neither a String nor" },
    { "{" BPE ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"String\":\"\"}}}",
      "is empty" },
    { "{" BPE ",\"normalizer\":{\"type\":\"Sequence\"}}", "a Sequence without normalizers" },
    { "{\"normalizer\":" DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP "]}]}]}]}]}]}]}]}]}," BPE "}",
      "too many Sequences" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "the pre_tokenizer 'UnicodeScripts'" },
    { "{" BPE ",\"pre_tokenizer\":{}}", "the pre_tokenizer has no type" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
      "{\"type\":\"Digits\"}]}}",
      "has 'Digits' after ByteLevel" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}", "is not one character" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"x\"}}",
      "the prepend_scheme 'x' is not known" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\","
      "\"add_prefix_space\":false}}",
      "contradicts" },
    { "{" BPE ",\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}}", "the behavior 'Odd'" },
    { PATTERN("("), "the pattern '(' is wrong" },
    { PATTERN("\\\\p{Han}"), "a property \\p{..} other than a general category" },
    { PATTERN("\\\\h"), "an escape that is not known" },
    { PATTERN("[\\\\S]"), "\\S, \\W or \\D within brackets" },
    { PATTERN("[a[b]]"), "brackets or && within brackets" },
    { PATTERN("[a&&b]"), "brackets or && within brackets" },
    { PATTERN("a{1,3}+"), "{..}+" },
    { PATTERN("(?x:a)"), "a group (? of unknown kind" },
    { PATTERN("(*FAIL)"), "a group (*" },
    { PATTERN("\\\\u12"), "\\u without four digits" },
    { "{" BPE ",\"decoder\":{\"type\":\"CTC\"}}", "the decoder 'CTC' is not known here" },
    { "{" BPE ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}}",
      "Strip is known with" },
    { "{" BPE
      ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}}",
      "has 'ByteFallback' after Fuse" },
    { "{" BPE
      ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\","
      "\"replacement\":\"_\"}]}}",
      "has 'Metaspace' after" },
    { POST("\"type\":\"Other\""), "the post_processor 'Other' is not known here" },
    { POST("\"type\":\"BertProcessing\",\"cls\":[\"a\",1],\"sep\":[\"b\",1]"),
      "'a' has the id 1, but the vocabulary has it as 0" },
    { POST("\"type\":\"BertProcessing\",\"cls\":[\"a\",0]"), "a special token without text or id" },
    { POST("\"type\":\"TemplateProcessing\",\"single\":[]"), "single has no text" },
    { POST("\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]"), "is not one text" },
    { POST("\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]"),
      "'x' is not among its special_tokens" },
};

static void save(const char *path, const char *text, size_t bytes)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
}

static void expect_refused(const char *path, const char *text)
{
    tokenizer *t = NULL;
    io_error error = { 0 };
    assert_int_equal(tokenizer_open(&t, path, &error), EXIT_INPUT);
    assert_null(t);
    if (!strstr(error.text, text) || strchr(error.text, '\n')) fail_msg("'%s' lacks '%s'", error.text, text);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        save("refused.json", rows[i][0], strlen(rows[i][0]));
        expect_refused("refused.json", rows[i][1]);
    }
    assert_int_equal(unlink("refused.json"), 0);
    expect_refused("refused.json", "cannot read refused.json");
    expect_refused(".", "has neither tokenizer.json nor");
}

/* The rows above are wrong in that one place. */
static void what_they_are_made_of_is_right(void **state)
{
    (void)state;
    static const char *const whole[] = { "{" BPE "}", "{" WORDS "}", "{" BYTES "," BPE "}",
                                         PATTERN("[^\\\\s]\\\\S+"), ADDED("{\"content\":\"b\",\"id\":1}") };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        save("right.json", whole[i], strlen(whole[i]));
        tokenizer *t = NULL;
        io_error error;
        if (tokenizer_open(&t, "right.json", &error)) fail_msg("%s", error.text);
        tokens ids;
        assert_int_equal(tokenizer_encode(t, "ab", 2, true, &ids, &error), 0);
        assert_int_equal(ids.id[0], strstr(whole[i], "added") ? 0 : 2);
        tokens_free(&ids);
        tokenizer_close(t);
    }
    assert_int_equal(unlink("right.json"), 0);
}

/* Every part of a file from its beginning, and a .gguf file cut anywhere: refused, never read as another. */
static void cut_files_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = { TEXT_DATA "/metaspace.json", TEXT_DATA "/tiny.gguf" };
    static const char *const copies[] = { "cut.json", "cut.gguf" };
    static char text[1 << 16];
    for (int i = 0; i < 2; i++) {
        FILE *stream = fopen(names[i], "rb");
        assert_non_null(stream);
        const size_t bytes = fread(text, 1, sizeof text, stream);
        fclose(stream);
        assert_true(bytes > 1000 && bytes < sizeof text);
        for (size_t cut = 0; cut + 2 < bytes; cut += 1 + cut / 50) {
            save(copies[i], text, cut);
            expect_refused(copies[i], "cut.");
        }
        assert_int_equal(unlink(copies[i]), 0);
    }
}

static void patterns_that_take_too_long_are_stopped(void **state)
{
    (void)state;
    static const char text[] = PATTERN("(a|a)*[bc]");
    char as[64];
    memset(as, 'a', sizeof as);
    save("slow.json", text, strlen(text));
    tokenizer *t = NULL;
    io_error error;
    tokens ids;
    if (tokenizer_open(&t, "slow.json", &error)) fail_msg("%s", error.text);
    assert_int_equal(tokenizer_encode(t, as, sizeof as, false, &ids, &error), EXIT_INPUT);
    assert_null(ids.id);
    assert_non_null(strstr(error.text, "a pattern of the tokenizer fails on this text"));
    tokenizer_close(t);
    assert_int_equal(unlink("slow.json"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(what_they_are_made_of_is_right),
        cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(patterns_that_take_too_long_are_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
