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
      { " is big.", " is big." },
      7 },
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
        if (items_read(&got, text, strlen(text), want->form, "f", &error)) fail_msg("%s", error.text);
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
            assert_int_equal(items_read(&got, want->line, bytes, want->form, "f", &error), EXIT_INPUT);
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
        assert_int_equal(items_read(&got, lines[n].text, strlen(lines[n].text), lines[n].form, "f", &error),
                         EXIT_INPUT);
        if (!strstr(error.text, lines[n].said)) fail_msg("'%s' lacks '%s'", error.text, lines[n].said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forms), cmocka_unit_test(test_wrong_lines) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
