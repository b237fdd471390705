/* SPDX-License-Identifier: MIT
 * WordPiece: the longest token that a word begins with, then the longest continuing one that follows. */
#ifndef LOAM_TEXT_WORDPIECE_H
#define LOAM_TEXT_WORDPIECE_H

#include "text/vocabulary.h"

enum { WORDPIECE_LETTERS = 1000 }; /* a word of more characters is never looked at */

typedef struct wordpiece {
    const vocabulary *vocabulary;
    char *prefix; /* of continuing tokens */
    int32_t unknown;
    int64_t longest_word; /* characters; longer words are unknown */
} wordpiece;

/* Appends the tokens of a word; false without memory. */
bool wordpiece_encode(const wordpiece *w, const char *word, size_t bytes, id_list *out);

#endif
