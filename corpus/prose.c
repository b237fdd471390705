/* SPDX-License-Identifier: MIT */
#include "corpus/prose.h"

#include "text/utf8.h"

#include <stdbool.h>

enum { CHARACTERS_MIN = 60, WORDS_MIN = 10, LETTERS_PERCENT = 85, WORD_MOST = 8, REPLACEMENT = 0xfffd };

const char *prose_verdict_name(int verdict)
{
    static const char *const names[PROSE_VERDICTS] = {
        [PROSE_KEPT] = "kept",           [PROSE_BROKEN] = "broken",       [PROSE_SHORT] = "short",
        [PROSE_FEW_WORDS] = "few_words", [PROSE_SIGNS] = "signs",         [PROSE_LONG_WORDS] = "long_words",
        [PROSE_NO_END] = "no_end",       [PROSE_END_TOKEN] = "end_token", [PROSE_REPEAT] = "repeat",
        [PROSE_HELD_OUT] = "held_out",
    };
    return names[verdict];
}

static bool is_letter(int32_t c)
{
    if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return is_word(c) && !is_number(c);
}

static bool is_control(int32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == REPLACEMENT; }

/* Whether a sentence or clause ends with c; `closing`: or brackets and quotes that may follow. */
static bool is_one_of(int32_t c, bool closing)
{
    static const int32_t ends[] = { '.', '!', '?', ':', ';', ',', 0x2026 }; /* ... */
    static const int32_t closings[] = { '"', '\'', ')', ']', 0x2019, 0x201d, 0xbb };
    enum { COUNT = sizeof ends / sizeof *ends };
    _Static_assert(sizeof ends == sizeof closings, "both are searched by COUNT");
    for (int i = 0; i < COUNT; i++)
        if (c == (closing ? closings : ends)[i]) return true;
    return false;
}

static bool ends_clause(const char *text, size_t bytes)
{
    size_t length;
    for (size_t end = bytes; end > 0;) {
        end = utf8_before(text, end);
        const int32_t c = utf8_first(text + end, &length);
        if (is_one_of(c, false)) return true;
        if (!is_one_of(c, true)) return false;
    }
    return false;
}

prose_verdict prose_judge_entry(const char *text, size_t bytes)
{
    if (!utf8_is_valid(text, bytes)) return PROSE_BROKEN;
    for (size_t at = 0, length; at < bytes; at += length)
        if (is_control(utf8_first(text + at, &length))) return PROSE_BROKEN;
    return PROSE_KEPT;
}

prose_verdict prose_judge(const char *text, size_t bytes)
{
    int64_t characters = 0, blanks = 0, letters = 0;
    if (prose_judge_entry(text, bytes) == PROSE_BROKEN) return PROSE_BROKEN;
    for (size_t at = 0, length; at < bytes; at += length) {
        const int32_t c = utf8_first(text + at, &length);
        characters++;
        blanks += c == ' ';
        letters += is_letter(c);
    }
    const int64_t words = blanks + 1;
    if (characters < CHARACTERS_MIN) return PROSE_SHORT;
    if (words < WORDS_MIN) return PROSE_FEW_WORDS;
    if (100 * (letters + blanks) < LETTERS_PERCENT * characters) return PROSE_SIGNS;
    if (characters - blanks > WORD_MOST * words) return PROSE_LONG_WORDS;
    return ends_clause(text, bytes) ? PROSE_KEPT : PROSE_NO_END;
}
