/* SPDX-License-Identifier: MIT
 * Which paragraphs are prose: sentences that somebody wrote to be read, not menus, code, tables or lists. */
#ifndef LOAM_CORPUS_PROSE_H
#define LOAM_CORPUS_PROSE_H

#include <stddef.h>
#include <stdint.h>

/* Why a paragraph is dropped: the first of these that holds. */
typedef enum prose_verdict {
    PROSE_KEPT,
    PROSE_BROKEN,     /* not UTF-8, or a control character */
    PROSE_SHORT,      /* fewer than 60 characters */
    PROSE_FEW_WORDS,  /* fewer than 10 */
    PROSE_SIGNS,      /* fewer than 85 % are letters or spaces */
    PROSE_LONG_WORDS, /* of more than 8 characters in the mean */
    PROSE_NO_END,     /* the last character, but for brackets and quotes, does not end a sentence or clause */
    PROSE_END_TOKEN,  /* the text of the token that ends documents is in it */
    PROSE_REPEAT,     /* the same text was there before */
    PROSE_HELD_OUT,   /* of training, and shares 13 words in a row with held-out text */
    PROSE_VERDICTS
} prose_verdict;

/* "broken", ...: as the manifest has them. */
const char *prose_verdict_name(int verdict);

/* By the text alone: PROSE_KEPT .. PROSE_NO_END. White space is single blanks, none at the ends. */
prose_verdict prose_judge(const char *text, size_t bytes);
/* The same of an entry of a dictionary, which only has to be text: PROSE_KEPT or PROSE_BROKEN. */
prose_verdict prose_judge_entry(const char *text, size_t bytes);

#endif
