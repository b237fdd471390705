/* SPDX-License-Identifier: MIT
 * Each rule of the filter on both sides of its bound. */
#include "corpus/prose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect(const char *text, prose_verdict want)
{
    const prose_verdict got = prose_judge(text, strlen(text));
    if (got != want) fail_msg("'%s': %s, not %s", text, prose_verdict_name(got), prose_verdict_name(want));
}

#define EIGHTY "It was a bright day in April when the clocks of the town were striking thirteen"

/* 84 letters and blanks with the blank behind it */
#define TWELVE "aaaaaa bbbbbb cccccc dddddd eeeeee ffffff gggggg hhhhhh iiiiii jjjjjj kkkkkk llllll"

static void rules_have_bounds(void **state)
{
    (void)state;
    expect(EIGHTY ".", PROSE_KEPT);
    /* 60 and 59 characters, 12 words */
    expect("aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll.", PROSE_KEPT);
    expect("aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk lll.", PROSE_SHORT);
    /* 10 and 9 words */
    expect("aaaaaa bbbbbb cccccc dddddd eeeeee ffffff gggggg hhhhhh iiiiii jjjjjj.", PROSE_KEPT);
    expect("aaaaaa bbbbbb cccccc dddddd eeeeee ffffff gggggg hhhhhhh iiiiiiii.", PROSE_FEW_WORDS);
    /* 85 of 100 characters, and 84 */
    expect(TWELVE " a++++++++++++++.", PROSE_KEPT);
    expect(TWELVE " +++++++++++++++.", PROSE_SIGNS);
    /* 10 words of 8 characters in the mean, and one character more */
    expect("aaaaaaaa bbbbbbbb cccccccc dddddddd eeeeeeee ffffffff gggggggg hhhhhhhh iiiiiiii jjjjjjj.",
           PROSE_KEPT);
    expect("aaaaaaaa bbbbbbbb cccccccc dddddddd eeeeeeee ffffffff gggggggg hhhhhhhh iiiiiiii jjjjjjjj.",
           PROSE_LONG_WORDS);
}

static void ends_are_punctuation(void **state)
{
    static const char *const kept[] = {
        ".", "!", "?", ":", ";", ",", "\xe2\x80\xa6", ".)", ".\"", "?'\xe2\x80\x9d", ".]\xc2\xbb"
    };
    static const char *const dropped[] = { "", ")", " x", " 1", "-", "\xe2\x80\x9d" };
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        expect(strcat(strcpy(text, EIGHTY), kept[i]), PROSE_KEPT);
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        expect(strcat(strcpy(text, EIGHTY), dropped[i]), PROSE_NO_END);
}

#define HOUSE "\xd0\xb4\xd0\xbe\xd0\xbc "

/* Letters of other scripts are letters, and a character is not a byte. */
static void characters_are_unicodes(void **state)
{
    (void)state;
    expect(HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE "is it.", PROSE_SHORT);
    expect(HOUSE HOUSE HOUSE HOUSE HOUSE HOUSE "was the word for a house in a letter that I got.",
           PROSE_KEPT);
    expect("\xe2\x91\xa0\xe2\x91\xa1 1234 5678 9012 3456 7890 1234 5678 9012 3456 7890 1234 5678 9012 3456.",
           PROSE_SIGNS);
}

static void broken_text_is_dropped(void **state)
{
    static const char *const broken[] = { "\xff", "\xc2", "\xef\xbf\xbd", "\x01", "\x7f", "\xc2\x85" };
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        strcat(strcat(strcpy(text, EIGHTY), broken[i]), ".");
        expect(text, PROSE_BROKEN);
        assert_int_equal(prose_judge_entry(text, strlen(text)), PROSE_BROKEN);
    }
    assert_int_equal(prose_judge("a\0b.", 4), PROSE_BROKEN);
    assert_int_equal(prose_judge_entry("1", 1), PROSE_KEPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_have_bounds),
        cmocka_unit_test(ends_are_punctuation),
        cmocka_unit_test(characters_are_unicodes),
        cmocka_unit_test(broken_text_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
