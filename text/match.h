/* SPDX-License-Identifier: MIT
 * The patterns of tokenizer.json, written for Oniguruma, by PCRE2. */
#ifndef LOAM_TEXT_MATCH_H
#define LOAM_TEXT_MATCH_H

#include "io/error.h"
#include "text/buffer.h"

typedef struct matcher matcher; /* constant once made */

/* literal: the pattern is a text. What the two dialects understand differently, and is not translated here,
 * is refused. `name` is of the file, for messages. On failure *made is NULL. */
int matcher_make(matcher **made, const char *pattern, bool literal, const char *name, io_error *error);
void matcher_free(matcher *m); /* NULL is allowed */

typedef struct span {
    size_t begin, end;
} span;

/* What the matcher needs for one thread. */
typedef struct match_scratch match_scratch;
match_scratch *match_scratch_make(void); /* NULL without memory */
void match_scratch_free(match_scratch *s);

/* The first match at or behind `from`, of valid UTF-8. *found = false where there is none; else not 0 where
 * the pattern takes too many steps, or memory ran out. */
int matcher_next(const matcher *m, match_scratch *s, const char *text, size_t bytes, size_t from, span *match,
                 bool *found, io_error *error);

/* Appends the text with every match replaced. */
int matcher_replace(const matcher *m, match_scratch *s, const char *text, size_t bytes, const char *content,
                    size_t content_bytes, buffer *out, io_error *error);

#endif
