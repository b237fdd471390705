/* SPDX-License-Identifier: MIT
 * Questions of held-out text: the answer is right, the others are wrong, and lm reads them. */
#include "lm/items.h"
#include "tests/cli/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Held out are of corpus d the document d.dictionary#11, entries 704 .. 767; of t 136.html, of r 2.txt. */
enum { ENTRIES = 768, FIRST = 704 };

static char story[1 << 15];

static uint64_t state_of(int i)
{
    uint64_t x = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 31;
}

/* The story: words of random letters, so that no text is there twice, one of them of 256 that are more tokens
 * than one. */
static void write_words(int first)
{
    size_t at = 0;
    for (int i = 0; i < 3000; i++) {
        const uint64_t letters = state_of(first + i);
        at += (size_t)snprintf(story + at, sizeof story - at, "%s%c%c\xe4%c%c%c%s",
                               i % 15 ? " "
                               : i    ? "\n\n"
                                      : "",
                               (char)('a' + letters % 26), (char)('a' + letters / 26 % 26),
                               (char)(0xb8 + letters / 676 % 4), (char)(0x80 + letters / 2704 % 64),
                               (char)('a' + letters / 173056 % 26), i % 15 == 14 ? "." : "");
    }
}

static int make_data(void **state)
{
    if (program_setup(state)) return -1;
    FILE *file = fopen("d.dictionary", "w"), *page = fopen("136.html", "w"), *other = fopen("o.txt", "w");
    for (int i = 0; i < ENTRIES; i++)
        fprintf(file, "w%03d%s, other %03d (%s): what is number %d; more\n", i, i % 4 ? "" : "-long", i,
                i % 2 ? "noun" : "verb", i);
    write_words(0);
    fputs(story, page);
    write_words(5000);
    fputs(story, other);
    write_words(0);
    FILE *again = fopen("2.txt", "w");
    for (int i = 0; i < 100; i++)
        fprintf(again, "In the house he sat and %s, and then went on to the next. ",
                i % 3 ? "slept" : "wrote a line");
    const int closed = fclose(again) | fclose(file) | fclose(page) | fclose(other);
    const outcome told = run_shell(
        "printf '<p>' >p && sed 's/^$/<p>/' 136.html >>p && mv p 136.html && "
        "\"$LOAM\" lm data d=d.dictionary t=136.html o=o.txt r=2.txt --out c --vocabulary 400");
    expect_status(&told, 0);
    return closed;
}

static items read_items(const char *path, char *text, size_t room)
{
    items list;
    io_error error;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, room, file);
    fclose(file);
    assert_true(bytes < room);
    if (items_read(&list, text, bytes, ITEM_ARC, NULL, path, &error)) fail_msg("%s", error.text);
    return list;
}

static void glosses_have_their_word(void **state)
{
    static char text[1 << 16];
    int places[4] = { 0 };
    (void)state;
    const outcome told = run_loam("lm items c --corpus d --kind gloss --out g.jsonl");
    expect_status(&told, 0);
    items list = read_items("g.jsonl", text, sizeof text);
    assert_int_equal(list.count, ENTRIES - FIRST);
    for (int64_t n = 0; n < list.count; n++) {
        const item *q = &list.list[n];
        char want[64];
        const int number = FIRST + (int)n;
        snprintf(want, sizeof want, "Question: what is number %d\nAnswer:", number);
        assert_string_equal(q->context[0], want);
        snprintf(want, sizeof want, " w%03d%s", number, number % 4 ? "" : "-long");
        assert_string_equal(q->rest[q->answer], want);
        places[q->answer]++;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                assert_int_equal(strlen(q->rest[i]), strlen(q->rest[j]));
                assert_int_equal(atoi(q->rest[i] + 2) % 2, number % 2);
                assert_true(i == j || strcmp(q->rest[i], q->rest[j]) != 0);
            }
    }
    for (int i = 0; i < 4; i++)
        assert_true(places[i] > 4);
    items_free(&list);
}

/* `context`, a blank and `rest` are in the story. */
static bool follows(const item *q, int choice)
{
    static const char before[] = "Question: ", after[] = "\nAnswer:";
    char whole[2048];
    const char *const context = q->context[choice] + strlen(before);
    snprintf(whole, sizeof whole, "%.*s%s", (int)(strlen(context) - strlen(after)), context, q->rest[choice]);
    return strstr(story, whole) != NULL;
}

static void continuations_follow(void **state)
{
    static char text[1 << 17];
    (void)state;
    const outcome told = run_loam("lm items c --corpus t --kind continuation --out t.jsonl");
    expect_status(&told, 0);
    items list = read_items("t.jsonl", text, sizeof text);
    assert_true(list.count > 20);
    for (int64_t n = 0; n < list.count; n++)
        for (int i = 0; i < 4; i++) {
            if (follows(&list.list[n], i) != (i == list.list[n].answer))
                fail_msg("'%s', %d of '%s', '%s'", list.list[n].context[i], i, list.list[n].rest[i],
                         list.list[n].rest[list.list[n].answer]);
            assert_true(list.list[n].rest[i][0] == ' ' && list.list[n].rest[i][1] != ' ');
        }
    items_free(&list);
}

/* Of a text that repeats itself. */
static void choices_differ(void **state)
{
    static char text[1 << 17];
    (void)state;
    const outcome told = run_loam("lm items c --corpus r --kind continuation --out r.jsonl");
    expect_status(&told, 0);
    items list = read_items("r.jsonl", text, sizeof text);
    assert_true(list.count > 0);
    for (int64_t n = 0; n < list.count; n++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < i; j++)
                assert_string_not_equal(list.list[n].rest[i], list.list[n].rest[j]);
    items_free(&list);
}

static void seeds_differ(void **state)
{
    (void)state;
    outcome told = run_loam("lm items c --corpus d --kind gloss --out 0.jsonl");
    expect_status(&told, 0);
    told = run_loam("lm items c --corpus d --kind gloss --seed 0 --out 1.jsonl && cmp 0.jsonl 1.jsonl");
    expect_status(&told, 0);
    told = run_loam("lm items c --corpus d --kind gloss --seed 1 --out 2.jsonl && ! cmp -s 0.jsonl 2.jsonl");
    expect_status(&told, 0);
}

static void bad_input_is_refused(void **state)
{
    static const refusal cases[] = {
        { "", EXIT_USAGE, "expected DATA, --corpus, --kind and --out" },
        { "c --corpus d --kind x --out o", EXIT_USAGE, "--kind x is not known; expected continuation" },
        { "c --corpus x --kind gloss --out o", EXIT_INPUT, "no held-out file of x" },
        { "nowhere --corpus x --kind gloss --out o", EXIT_INPUT, "nowhere/manifest.json" },
        { "c --corpus o --kind gloss --out o", EXIT_INPUT, "the 0 held-out tokens of o make no question" },
        { "c --corpus t --kind gloss --out o", EXIT_INPUT, "make no question; expected more" },
        { "odd --corpus t --kind gloss --out o", EXIT_INPUT,
          "odd/held-t.u16 has 1 bytes; expected two a token" },
        { "far --corpus t --kind gloss --out o", EXIT_INPUT, "token 0 is 65535; expected at most" },
    };
    (void)state;
    outcome told = run_shell("cp -r c odd && printf x >odd/held-t.u16 && "
                             "cp -r c far && printf '\\377\\377' >far/held-t.u16");
    expect_status(&told, 0);
    expect_refusals("lm items", cases, sizeof cases / sizeof *cases, "o");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(glosses_have_their_word), cmocka_unit_test(continuations_follow),
        cmocka_unit_test(choices_differ),          cmocka_unit_test(seeds_differ),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, make_data, program_teardown);
}
