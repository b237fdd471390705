/* SPDX-License-Identifier: MIT
 * loam lm data as a user runs it: what is in the shards is the text, whatever the number of threads. */
#include "corpus/collection.h"
#include "io/json.h"
#include "io/sha256.h"
#include "tests/cli/program.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of 13 words in a row one is the number. */
#define PROSE "In house %d at the end of the lane nobody lived, but in house %d an old man did so."

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

/* 150 files, of which some are held out, one by one with a text of their own. */
static void make_texts(void)
{
    const outcome made = run_shell("rm -rf t out && mkdir -p t/sub");
    expect_status(&made, 0);
    for (int i = 0; i < 150; i++) {
        char path[32], text[256];
        snprintf(path, sizeof path, "t/%s%d.%s", i % 2 ? "sub/" : "", i, i % 3 ? "html" : "txt");
        snprintf(text, sizeof text, "<p>short</p>\n\n" PROSE "\n", i, i);
        write_file(path, text);
    }
    write_file("t/no.css", "p {}");
    write_file("w.lines", "apple: a fruit [n]\npear: a fruit too\n");
}

typedef struct shard_text {
    uint16_t *id;
    size_t count;
} shard_text;

static shard_text read_shard(const char *path)
{
    shard_text s = { malloc(1 << 20), 0 };
    FILE *file = fopen(path, "rb");
    assert_true(file && s.id);
    for (int low, high; (low = fgetc(file)) != EOF && (high = fgetc(file)) != EOF;)
        s.id[s.count++] = (uint16_t)(low | high << 8);
    fclose(file);
    return s;
}

/* The text of the next document of a shard, and goes behind its end token 0. */
static void expect_document(const tokenizer *t, const shard_text *s, size_t *at, const char *want)
{
    int32_t ids[512];
    int64_t count = 0;
    char *text;
    size_t bytes;
    io_error error;
    for (; *at < s->count && s->id[*at] != 0; ++*at)
        ids[count++] = s->id[*at];
    assert_true(*at < s->count && count > 0);
    ++*at;
    assert_int_equal(tokenizer_decode(t, ids, count, true, &text, &bytes, &error), 0);
    assert_string_equal(text, want);
    free(text);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The documents in the order of their paths are in the shards of their splits, and nothing else. */
static void shards_have_the_text(void **state)
{
    static const char *const files[SPLITS] = { "out/train.u16", "out/valid.u16", "out/held-t.u16" };
    char name[150][32], *order[150], want[256];
    tokenizer *t;
    io_error error;
    shard_text shard[SPLITS];
    size_t at[SPLITS] = { 0 };
    (void)state;
    make_texts();
    const outcome told = run_loam("lm data t=t w:dictionary=w.lines --out out --vocabulary 300 --threads 2");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "out: 300 tokens in the vocabulary\n"));
    assert_string_equal(told.err, "loam lm data: nothing of w is held out; another --seed may do it\n");
    assert_int_equal(tokenizer_open(&t, "out", &error), 0);
    for (int split = 0; split < SPLITS; split++)
        shard[split] = read_shard(files[split]);
    for (int i = 0; i < 150; i++) {
        snprintf(name[i], sizeof *name, "%s%d.%s", i % 2 ? "sub/" : "", i, i % 3 ? "html" : "txt");
        order[i] = name[i];
    }
    qsort(order, 150, sizeof *order, compare_names);
    for (int i = 0; i < 150; i++) {
        const corpus_split split = corpus_split_of(0, "t", order[i]);
        const char *const number = strrchr(order[i], '/') ? strrchr(order[i], '/') + 1 : order[i];
        snprintf(want, sizeof want, PROSE, atoi(number), atoi(number));
        expect_document(t, &shard[split], &at[split], want);
    }
    assert_int_equal(corpus_split_of(0, "w", "w.lines#0"), SPLIT_TRAIN);
    expect_document(t, &shard[SPLIT_TRAIN], &at[SPLIT_TRAIN], "apple: a fruit\npear: a fruit too");
    for (int split = 0; split < SPLITS; split++) {
        assert_int_equal(at[split], shard[split].count);
        assert_true(shard[split].count > 0);
        free(shard[split].id);
    }
    tokenizer_close(t);
}

static json_int_t number(const json_t *root, const char *first, const char *second, const char *third)
{
    const json_t *value = json_object_get(json_object_get(json_object_get(root, first), second), third);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static void manifest_tells_what_is_there(void **state)
{
    json_t *root;
    io_error error;
    (void)state;
    make_texts();
    outcome told = run_loam("lm data t=t w:dictionary=w.lines --out out --vocabulary 300 --seed 3 --packages "
                            "'t=tales 1.2'");
    expect_status(&told, 0);
    assert_int_equal(json_object_in(&root, "out/manifest.json", &error), 0);
    assert_string_equal(word(root, "format"), "loam-corpus");
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 1);
    assert_int_equal(json_integer_value(json_object_get(root, "vocabulary")), 300);
    assert_int_equal(json_integer_value(json_object_get(root, "end_token")), 0);
    assert_int_equal(json_integer_value(json_object_get(root, "seed")), 3);
    const json_t *corpora = json_object_get(root, "corpora"), *t = json_array_get(corpora, 0);
    assert_int_equal(json_array_size(corpora), 2);
    assert_string_equal(word(t, "name"), "t");
    assert_string_equal(word(t, "package"), "tales 1.2");
    assert_string_equal(word(t, "held"), "held-t.u16");
    assert_string_equal(word(json_array_get(corpora, 1), "kind"), "dictionary");
    assert_int_equal(json_integer_value(json_object_get(t, "files")), 150);
    assert_int_equal(json_integer_value(json_object_get(t, "unread")), 1);
    assert_int_equal(number(t, "paragraphs", "dropped", "short"), 150);
    json_int_t documents = 0, bytes = 0;
    for (int split = 0; split < SPLITS; split++) {
        documents += number(t, "splits", corpus_split_name(split), "documents");
        bytes += number(t, "splits", corpus_split_name(split), "bytes");
    }
    assert_int_equal(documents, 150);
    /* Of the numbers, twice in each text, 10 have 1 digit, 90 have 2 and 50 have 3. */
    assert_int_equal(bytes, 150 * (int)(strlen(PROSE) - strlen("%d%d")) + 2 * (10 + 2 * 90 + 3 * 50));
    const char *key;
    json_t *file;
    json_object_foreach(json_object_get(root, "files"), key, file)
    {
        told = run_shell("sha256sum out/%s", key);
        assert_memory_equal(told.out, word(file, "sha256"), 64);
        told = run_shell("stat -c %%s out/%s", key);
        if (strstr(key, ".u16"))
            assert_int_equal(atoi(told.out), 2 * json_integer_value(json_object_get(file, "tokens")));
    }
    assert_int_equal(json_object_size(json_object_get(root, "files")), 5);
    assert_int_equal(number(root, "files", "held-t.u16", "tokens"), number(t, "splits", "held", "tokens"));
    json_decref(root);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam("lm data t=t --out out --vocabulary 300 --threads 1");
    expect_status(&told, 0);
    told = run_loam("lm data t=t --out again --vocabulary 300 --threads 3 && diff -r out again");
    expect_status(&told, 0);
    told = run_loam("lm data t=t --out other --tokenizer out/tokenizer.json && diff -r out other");
    expect_status(&told, 0);
    told = run_shell("rm -r again other");
    expect_status(&told, 0);
}

static void bad_input_leaves_nothing(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected NAME=PATH" },
        { "t=t", EXIT_USAGE, "--out" },
        { "t --out o", EXIT_USAGE, "'t' names no corpus; expected NAME=PATH" },
        { "t= --out o", EXIT_USAGE, "'t=' names no corpus" },
        { "a/b=t --out o", EXIT_USAGE, "'a/b'; expected 1 to 63 letters" },
        { "=t --out o", EXIT_USAGE, "name of a corpus is ''" },
        { "t:rtf=t --out o", EXIT_USAGE, "kind of t is 'rtf'; expected html" },
        { "t=t t=t --out o", EXIT_USAGE, "two corpora are called t" },
        { "t=t --packages u=x --out o", EXIT_USAGE, "--packages: 'u'; expected" },
        { "t=t --packages t --out o", EXIT_USAGE, "--packages: 't'; expected" },
        { "t=t --vocabulary 256 --out o", EXIT_USAGE, "--vocabulary" },
        { "t=t --vocabulary 65537 --out o", EXIT_USAGE, "--vocabulary" },
        { "t=t --end x --out o", EXIT_USAGE, "'x'; expected two characters" },
        { "t=nowhere --out o", EXIT_INPUT, "nowhere" },
        { "t:pod=t --out o", EXIT_INPUT, "t: 0 files read, 151 passed over by their endings" },
        { "t=t --out t", EXIT_OUTPUT, "not empty" },
        { "w:txt=w.lines --out o", EXIT_INPUT, "w.lines: 1 files read, 0 passed over" },
        { "t=t/136.html --out o", EXIT_INPUT, "no text is left to train a tokenizer on" },
        { "t=t --tokenizer nothing.json --out o", EXIT_INPUT, "nothing.json" },
        { "t=t --tokenizer tok --end '<s>' --out o", EXIT_INPUT, "no token '<s>'" },
    };
    (void)state;
    make_texts();
    outcome told = run_loam("lm data t=t --out tok --vocabulary 300");
    expect_status(&told, 0);
    expect_refusals("lm data", cases, sizeof cases / sizeof *cases, "o");
    assert_int_equal(count_files(".loam"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_have_the_text),
        cmocka_unit_test(manifest_tells_what_is_there),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(bad_input_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
