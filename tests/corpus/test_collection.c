/* SPDX-License-Identifier: MIT
 * Documents, repeats, splits, near-duplicates. That of the split is from Python's hashlib. */
#include "corpus/collection.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* In corpus "a" with seed 0: 19.txt has 0 of 100, 111.txt 1, 138.txt 2, 35.txt 3. */
#define HELD "19.txt"
#define VALID "138.txt"
#define TRAIN "35.txt"

#define STORY "the quick brown fox jumps over the lazy dog and runs away"
#define FIRST "One day " STORY " to the woods."
#define SECOND "Nobody knew why he had come here, or what it was that he wanted to find."

static corpus_source sources[2];

static collection make(void)
{
    memset(sources, 0, sizeof sources);
    for (int i = 0; i < 2; i++)
        sources[i] = (corpus_source){ .name = i ? "b" : "a", .path = ".", .kind = -1 };
    return (collection){ .corpora = sources, .count = 2, .end = "<|end|>" };
}

static void add(collection *c, text_kind kind, const char *path, const char *text)
{
    io_error error;
    if (collection_add(c, 0, kind, path, text, strlen(text), &error)) fail_msg("%s", error.text);
}

static void expect_text(const collection *c, size_t document, const char *want)
{
    buffer text = { 0 };
    assert_true(document < c->documents);
    collection_text(c, &c->document[document], &text);
    assert_false(text.failed);
    if (text.count != strlen(want) || (text.count > 0 && memcmp(text.at, want, text.count) != 0))
        fail_msg("'%.*s', not '%s'", (int)text.count, text.at, want);
    buffer_free(&text);
}

static void separate(collection *c)
{
    io_error error;
    if (collection_separate(c, &error)) fail_msg("%s", error.text);
}

static void splits_are_those_of_the_hash(void **state)
{
    static const struct {
        const char *path;
        corpus_split split;
    } cases[] = {
        { "19.txt", SPLIT_HELD },   { "111.txt", SPLIT_HELD }, { "138.txt", SPLIT_VALID },
        { "328.txt", SPLIT_VALID }, { "35.txt", SPLIT_TRAIN }, { "166.txt", SPLIT_TRAIN },
    };
    int count[SPLITS] = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(corpus_split_of(0, "a", cases[i].path), cases[i].split);
    /* With seed 7 they have 43, 60 and 24 of 100. */
    assert_int_equal(corpus_split_of(7, "a", "19.txt"), SPLIT_TRAIN);
    assert_int_equal(corpus_split_of(7, "a", "111.txt"), SPLIT_TRAIN);
    for (int i = 0; i < 10000; i++) {
        char path[16];
        snprintf(path, sizeof path, "%d", i);
        count[corpus_split_of(1, "b", path)]++;
    }
    assert_true(count[SPLIT_HELD] > 150 && count[SPLIT_HELD] < 250);
    assert_true(count[SPLIT_VALID] > 60 && count[SPLIT_VALID] < 140);
}

static void repeats_are_dropped(void **state)
{
    (void)state;
    collection c = make();
    add(&c, TEXT_HTML, TRAIN, "<p>" FIRST "<p>Menu<p>" SECOND "<p>" FIRST);
    add(&c, TEXT_PLAIN, VALID, FIRST "\n\nAnother " SECOND);
    add(&c, TEXT_PLAIN, HELD,
        "A paragraph with <|end|> in it would end a document where there is none at all.");
    assert_int_equal(c.documents, 3);
    expect_text(&c, 0, FIRST "\n\n" SECOND);
    expect_text(&c, 1, "Another " SECOND);
    expect_text(&c, 2, "");
    assert_int_equal(c.document[0].split, SPLIT_TRAIN);
    assert_int_equal(c.document[1].split, SPLIT_VALID);
    assert_int_equal(c.document[2].split, SPLIT_HELD);
    assert_int_equal(sources[0].files, 3);
    assert_int_equal(sources[0].paragraphs[PROSE_KEPT], 3);
    assert_int_equal(sources[0].paragraphs[PROSE_REPEAT], 2);
    assert_int_equal(sources[0].paragraphs[PROSE_SHORT], 1);
    assert_int_equal(sources[0].paragraphs[PROSE_END_TOKEN], 1);
    collection_free(&c);
}

static void near_duplicates_leave_training(void **state)
{
    (void)state;
    collection c = make();
    add(&c, TEXT_PLAIN, HELD, "Once " STORY " with it.\n\n" SECOND);
    /* 13 words in a row, other signs and capitals; then 12; then the same in the other splits. */
    add(&c, TEXT_PLAIN, TRAIN,
        "Later The QUICK brown-fox jumps over the lazy dog -- and runs away with them.\n\n"
        "Later " STORY " from their enemies.");
    add(&c, TEXT_PLAIN, VALID, "Sooner " STORY " with them all.");
    separate(&c);
    expect_text(&c, 0, "Once " STORY " with it.\n\n" SECOND);
    expect_text(&c, 1, "Later " STORY " from their enemies.");
    expect_text(&c, 2, "Sooner " STORY " with them all.");
    assert_int_equal(sources[0].paragraphs[PROSE_HELD_OUT], 1);
    assert_int_equal(sources[0].paragraphs[PROSE_KEPT], 4);
    collection_free(&c);
}

static void nothing_is_held_out_of_nothing(void **state)
{
    (void)state;
    collection c = make();
    separate(&c);
    add(&c, TEXT_PLAIN, TRAIN, FIRST);
    separate(&c);
    expect_text(&c, 0, FIRST);
    collection_free(&c);
}

/* 64 entries are a document. */
static void dictionaries_are_cut(void **state)
{
    char text[4096] = "", *at = text;
    (void)state;
    collection c = make();
    for (int i = 0; i < 130; i++)
        at += snprintf(at, (size_t)(text + sizeof text - at), "word %d\n", i % 128);
    add(&c, TEXT_DICTIONARY, "d.dictionary", text);
    assert_int_equal(c.documents, 3);
    assert_int_equal(c.document[0].count, 64);
    assert_int_equal(c.document[1].count, 64);
    assert_int_equal(c.document[2].count, 0);
    assert_int_equal(sources[0].paragraphs[PROSE_REPEAT], 2);
    buffer out = { 0 };
    collection_text(&c, &c.document[1], &out);
    assert_memory_equal(out.at, "word 64\nword 65\n", 16);
    for (size_t i = 0; i < 3; i++) {
        char path[32];
        snprintf(path, sizeof path, "d.dictionary#%d", (int)i);
        assert_int_equal(c.document[i].split, corpus_split_of(0, "a", path));
    }
    buffer_free(&out);
    collection_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_those_of_the_hash),   cmocka_unit_test(repeats_are_dropped),
        cmocka_unit_test(near_duplicates_leave_training), cmocka_unit_test(nothing_is_held_out_of_nothing),
        cmocka_unit_test(dictionaries_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
