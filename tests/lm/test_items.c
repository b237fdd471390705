/* SPDX-License-Identifier: MIT
 * Lines of every form, as the texts that are scored; and lines that are wrong. */
#include "lm/items.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct item_case {
    item_form form;
    const char *line;
    int choices, answer;
    const char *context[2], *rest[2]; /* of the first two choices */
    int characters;                   /* of the first */
} item_case;

static const item_case cases[] = {
    { ITEM_PIQA,
      "{\"goal\":\"Boil\",\"sol1\":\"fire\",\"sol2\":\"ice\",\"label\":1,\"more\":[1]}",
      2,
      1,
      { "Question: Boil\nAnswer:", "Question: Boil\nAnswer:" },
      { " fire", " ice" },
      4 },
    { ITEM_ARC,
      "{\"question\":\"Y?\",\"choices\":{\"text\":[\"a\",\"b\xc3\xa9\",\"c\"],\"label\":[\"1\",\"2\",\"3\"]},"
      "\"answerKey\":\"3\"}",
      3,
      2,
      { "Question: Y?\nAnswer:", "Question: Y?\nAnswer:" },
      { " a", " b\xc3\xa9" },
      1 },
    { ITEM_ARC,
      "{\"question\":{\"stem\":\"Y?\",\"choices\":[{\"text\":\"b\xc3\xa9\",\"label\":\"A\"},{\"text\":\"x\","
      "\"label\":\"B\"}]},\"answerKey\":\"A\"}",
      2,
      0,
      { "Question: Y?\nAnswer:", "Question: Y?\nAnswer:" },
      { " b\xc3\xa9", " x" },
      2 },
    { ITEM_LOGIQA,
      "{\"context\":\"P.\",\"question\":\"Q?\",\"options\":[\"w\",\"x\",\"y\",\"z\"],\"label\":\"c\"}",
      4,
      2,
      { "Passage: P.\nQuestion: Q?\nChoices:\nA. w\nB. x\nC. y\nD. z\nAnswer:",
        "Passage: P.\nQuestion: Q?\nChoices:\nA. w\nB. x\nC. y\nD. z\nAnswer:" },
      { " w", " x" },
      1 },
    { ITEM_WINOGRANDE,
      "{\"sentence\":\"The cat saw _ run.\",\"option1\":\"Ann\",\"option2\":\"Bob\",\"answer\":\"2\"}",
      2,
      1,
      { "The cat saw Ann", "The cat saw Bob" },
      { " run.", " run." },
      3 },
    { ITEM_WSC273,
      "{\"text\":\"\xc3\x89ve said it is big.\",\"pronoun\":\"it\",\"pronoun_loc\":9,\"options\":[\"the "
      "box\",\"the cup\"],\"label\":0}",
      2,
      0,
      { "\xc3\x89ve said the box", "\xc3\x89ve said the cup" },
      { "  is big.", "  is big." },
      7 },
    { ITEM_WSC273,
      "{\"text\":\"Up  there. Her hat  fell.\",\"pronoun\":\"Her\",\"pronoun_loc\":11,\"options\":[\"The "
      "cat\",\"Ann\"],\"label\":1}",
      2,
      1,
      { "Up there. The cat's", "Up there. Ann's" },
      { "  hat fell.", "  hat fell." },
      9 },
    { ITEM_WSC273,
      "{\"text\":\"So it is.\",\"pronoun\":\"it\",\"pronoun_loc\":3,\"options\":[\"The cat\",\"Theo\"],"
      "\"label\":1}",
      2,
      1,
      { "So the cat", "So Theo" },
      { "  is.", "  is." },
      7 },
    { ITEM_WSC,
      "{\"text\":\"\\\" I do n't ( yet ) , \\\" he said .\",\"target\":{\"span1_text\":\"I\","
      "\"span2_index\":9,"
      "\"span2_text\":\"he\"},\"label\":1}",
      2,
      1,
      { "Passage: \"I don't (yet),\"*he* said.\nQuestion: In the passage above, does the pronoun "
        "\"*he*\" refer to \"*I*\"?\nAnswer:",
        "Passage: \"I don't (yet),\"*he* said.\nQuestion: In the passage above, does the pronoun "
        "\"*he*\" refer to \"*I*\"?\nAnswer:" },
      { " no", " yes" },
      2 },
    { ITEM_WINOGRANDE,
      "{\"sentence\":\"So _'s hat fell. \",\"option1\":\"Ann\",\"option2\":\"Bob\",\"answer\":\"1\"}",
      2,
      0,
      { "So Ann", "So Bob" },
      { " 's hat fell.", " 's hat fell." },
      3 },
    { ITEM_WSC,
      "{\"text\":\"Bob says he ran.\",\"target\":{\"span1_index\":0,\"span1_text\":\"Bob\",\"span2_index\":2,"
      "\"span2_text\":\"he\"},\"label\":true}",
      2,
      1,
      { "Passage: Bob says *he* ran.\nQuestion: In the passage above, does the pronoun \"*he*\" refer to "
        "\"*Bob*\"?\nAnswer:",
        "Passage: Bob says *he* ran.\nQuestion: In the passage above, does the pronoun \"*he*\" refer to "
        "\"*Bob*\"?\nAnswer:" },
      { " no", " yes" },
      2 },
    { ITEM_MMLU,
      "{\"question\":\"1+1?\",\"choices\":[\"1\",\"2\",\"3\",\"4\"],\"answer\":1,\"subject\":\"x\"}",
      4,
      1,
      { "The following are multiple choice questions (with answers) about x.\n\n1+1?\nA. 1\nB. 2\nC. 3\nD. "
        "4\nAnswer:",
        "The following are multiple choice questions (with answers) about x.\n\n1+1?\nA. 1\nB. 2\nC. 3\nD. "
        "4\nAnswer:" },
      { " A", " B" },
      1 },
};

static void test_forms(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const item_case *want = &cases[n];
        items got;
        io_error error;
        char text[1024];
        strcpy(text, "\n  \n");
        strcat(text, want->line);
        if (items_read(&got, text, strlen(text), want->form, NULL, "f", &error)) fail_msg("%s", error.text);
        assert_int_equal(got.count, 1);
        assert_int_equal(got.list[0].choices, want->choices);
        assert_int_equal(got.list[0].answer, want->answer);
        assert_int_equal(got.list[0].characters[0], want->characters);
        for (int i = 0; i < 2; i++) {
            assert_string_equal(got.list[0].context[i], want->context[i]);
            assert_string_equal(got.list[0].rest[i], want->rest[i]);
        }
        items_free(&got);
        /* Cut anywhere it is no line of this form. */
        for (size_t bytes = 1; bytes < strlen(want->line); bytes++) {
            assert_int_equal(items_read(&got, want->line, bytes, want->form, NULL, "f", &error), EXIT_INPUT);
            assert_null(got.list);
            assert_non_null(strstr(error.text, "f, line 1: "));
        }
    }
}

static void test_wrong_lines(void **state)
{
    static const struct {
        item_form form;
        const char *text, *said;
    } lines[] = {
        { ITEM_PIQA, "", "no questions" },
        { ITEM_PIQA, "\n\n[1]", "line 3: expected a JSON object" },
        { ITEM_PIQA, "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":2}",
          "label: expected a number 0 to 1" },
        { ITEM_PIQA, "{\"goal\":\"g\",\"sol1\":3,\"sol2\":\"b\",\"label\":1}", "sol1: expected a text" },
        { ITEM_ARC, "{\"question\":7}", "question: expected a text or an object" },
        { ITEM_ARC,
          "{\"question\":\"q\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\",\"B\"]},"
          "\"answerKey\":\"C\"}",
          "'C' is the label of no choice" },
        { ITEM_ARC,
          "{\"question\":\"q\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\"]},\"answerKey\":\"A\"}",
          "choices.label: expected a list of 2" },
        { ITEM_WINOGRANDE, "{\"sentence\":\"a _ b _\",\"option1\":\"x\",\"option2\":\"y\",\"answer\":\"1\"}",
          "expected one _" },
        { ITEM_WINOGRANDE, "{\"sentence\":\"a _\",\"option1\":\"x\",\"option2\":\"y\",\"answer\":\"3\"}",
          "answer: expected" },
        { ITEM_WSC273,
          "{\"text\":\"a it\",\"pronoun\":\"it\",\"pronoun_loc\":99,\"options\":[\"x\",\"y\"],\"label\":0}",
          "there is no 'it' at 99" },
        { ITEM_WSC,
          "{\"text\":\"a it\",\"target\":{\"span1_text\":\"a\",\"span2_text\":\"it\",\"span2_index\":0},"
          "\"label\":0}",
          "word 0 is not 'it'" },
        { ITEM_LOGIQA, "{\"context\":\"c\",\"question\":\"q\",\"options\":[\"a\"],\"label\":\"a\"}",
          "options: expected a list of 4" },
        { ITEM_LOGIQA,
          "{\"context\":\"c\",\"question\":\"q\",\"options\":[\"a\",\"b\",\"c\",\"d\"],\"label\":\"e\"}",
          "label: expected a, b, c or d" },
        { ITEM_MMLU, "{\"question\":\"q\",\"choices\":[\"a\",\"b\",\"c\",4],\"answer\":0}",
          "element 4 is no text" },
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof *lines; n++) {
        items got;
        io_error error;
        assert_int_equal(
            items_read(&got, lines[n].text, strlen(lines[n].text), lines[n].form, NULL, "f", &error),
            EXIT_INPUT);
        if (!strstr(error.text, lines[n].said)) fail_msg("'%s' lacks '%s'", error.text, lines[n].said);
    }
}

static void expect_context(const items *got, int64_t index, int answer, const char *context)
{
    assert_true(index < got->count);
    assert_int_equal(got->list[index].answer, answer);
    assert_int_equal(got->list[index].choices, 4);
    assert_string_equal(got->list[index].context[0], context);
    assert_string_equal(got->list[index].rest[3], " D");
}

#define ABOUT "The following are multiple choice questions (with answers)"

/* Quotes, line ends within a field, blanks of a choice and around a question, a header, a byte order mark. */
static void test_csv(void **state)
{
    static const char text[] = "\xEF\xBB\xBFquestion,A,B,C,D,answer\r\n"
                               "1+1?,1, 2,3,4,B\r\n\r\n"
                               "\"Say \"\"a,\nb\"\" \",\xc3\xa9,,\"\",z,D\n";
    items got;
    io_error error;
    (void)state;
    if (items_read_csv(&got, text, sizeof text - 1, NULL, "a/b_test/high_school_physics_test.csv", &error))
        fail_msg("%s", error.text);
    assert_int_equal(got.count, 2);
    expect_context(&got, 0, 1, ABOUT " about high school physics.\n\n1+1?\nA. 1\nB.  2\nC. 3\nD. 4\nAnswer:");
    expect_context(&got, 1, 3,
                   ABOUT
                   " about high school physics.\n\nSay \"a,\nb\"\nA. \xc3\xa9\nB. \nC. \nD. z\nAnswer:");
    items_free(&got);
    assert_int_equal(items_read_csv(&got, "x,1,2,3,4,A", 11, "my_own", "f.csv", &error), 0);
    expect_context(&got, 0, 0, ABOUT " about my own.\n\nx\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:");
    items_free(&got);
    static const char line[] =
        "{\"question\":\" x\\n\",\"choices\":[\"1\",\"2\",\"3\",\"4\"],\"answer\":2,\"subject\":\"in_it\"}";
    static const struct {
        const char *subject, *context;
    } both[] = {
        { NULL, ABOUT " about in it.\n\nx\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:" },
        { "asked", ABOUT " about asked.\n\nx\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:" },
    };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(items_read(&got, line, sizeof line - 1, ITEM_MMLU, both[i].subject, "f.csv", &error),
                         0);
        expect_context(&got, 0, 2, both[i].context);
        items_free(&got);
    }
}

static void test_wrong_rows(void **state)
{
    static const struct {
        const char *text, *said;
    } rows[] = {
        { "", "f: no questions" },
        { "question,A,B,C,D,answer\n", "f: no questions" },
        { "q,1,2,3,4,A\n\"two\nlines\",1,2,3,4,A\nq,1,2,3,A\n", "f, line 4: 5 fields; expected 6" },
        { "q,1,2,3,4,5,A", "f, line 1: 7 fields; expected 6" },
        { "q,1,2,3,4,E", "f, line 1: the answer is 'E'; expected A, B, C or D" },
        { "q,1,2,3,4,A\nquestion,A,B,C,D,answer", "f, line 2: the answer is 'answer'" },
        { "q,1,2,3,4,A\n\n\"never,1,2\n,3,4,A\n\n", "f, line 3: a quoted field never ends" },
        { "q,1,2\"x,3,4,A", "f, line 1: " },
        { "q,1,2,\xff,4,A", "f, line 1: not UTF-8" },
    };
    static const char zero[] = "q,1,2,3\0x,4,A\n";
    items got;
    io_error error;
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const char *const text = rows[n].text;
        assert_int_equal(items_read_csv(&got, text, strlen(text), NULL, "f", &error), EXIT_INPUT);
        assert_null(got.list);
        if (!strstr(error.text, rows[n].said)) fail_msg("'%s' lacks '%s'", error.text, rows[n].said);
    }
    assert_int_equal(items_read_csv(&got, zero, sizeof zero - 1, NULL, "f", &error), EXIT_INPUT);
    assert_string_equal(error.text, "f, line 1: field 4 has a byte 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_wrong_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
