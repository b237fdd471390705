/* SPDX-License-Identifier: MIT
 * Added tokens: texts that are cut out before anything else, leftmost and longest first. */
#ifndef LOAM_TEXT_ADDED_H
#define LOAM_TEXT_ADDED_H

#include "text/buffer.h"

enum { ADDED_BYTES_MAX = 1024 }; /* bounds the search at one place */

typedef struct added_token {
    char *content;
    size_t bytes;
    char *wanted; /* what is searched for: the content, normalised where it is searched for in such a text */
    size_t wanted_bytes;
    int32_t id;
    bool special, normalised;
    bool single_word;             /* only where no letter or digit touches it */
    bool left_strip, right_strip; /* takes white space on this side with it */
} added_token;

/* Tokens searched for in one kind of text, sorted by their bytes. */
typedef struct added_search {
    const added_token **token;
    int32_t count;
    int32_t first[257]; /* those that begin with a byte: first[byte] .. first[byte + 1] - 1 */
} added_search;

/* False without memory. *twice: two with the same text, or NULL. */
bool added_search_make(added_search *s, const added_token *tokens, int32_t count, bool normalised,
                       const added_token **twice);
void added_search_free(added_search *s);

/* The first one at or behind *from; *begin and *end are what it takes of the text, *from where to go on.
 * NULL: none is left. Nothing before `done` is taken. */
const added_token *added_next(const added_search *s, const char *text, size_t bytes, size_t done,
                              size_t *from, size_t *begin, size_t *end);

#endif
