/* SPDX-License-Identifier: MIT
 * Pre-tokenizers: a text is cut into the pieces that the model encodes one by one. */
#ifndef LOAM_TEXT_PIECES_H
#define LOAM_TEXT_PIECES_H

#include "text/match.h"

/* What becomes of the matches of a pattern; what lies between them is a piece each. */
typedef enum piece_behaviour {
    PIECE_REMOVED,
    PIECE_ISOLATED,
    PIECE_MERGED_PREVIOUS, /* belongs to the piece before */
    PIECE_MERGED_NEXT,
    PIECE_CONTIGUOUS /* matches that touch are one piece */
} piece_behaviour;

typedef enum piece_kind {
    PIECE_PATTERN,
    PIECE_CLASS,        /* a match is one character of the class */
    PIECE_PREFIX_SPACE, /* a space before what does not begin with one */
    PIECE_METASPACE     /* `mark` for every space, and before the text */
} piece_kind;

typedef enum metaspace_prepend { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS } metaspace_prepend;

typedef struct piece_step {
    piece_kind kind;
    piece_behaviour behaviour;
    bool invert; /* the pattern says what lies between */
    matcher *pattern;
    bool (*in_class)(int32_t character);
    char mark[8]; /* one character */
    metaspace_prepend prepend;
} piece_step;

enum { PIECE_STEPS = 16 };

typedef struct splitter {
    piece_step step[PIECE_STEPS];
    int steps;
} splitter;

void splitter_free(splitter *s);

/* Takes a piece, which is not empty; other than 0 ends it all. */
typedef int piece_sink(void *context, const char *piece, size_t bytes, io_error *error);

typedef struct piece_scratch {
    buffer texts[PIECE_STEPS];
} piece_scratch;
void piece_scratch_free(piece_scratch *s);

/* Of valid UTF-8; `first`: the text begins with it. */
int splitter_cut(const splitter *s, piece_scratch *scratch, match_scratch *matching, const char *text,
                 size_t bytes, bool first, piece_sink *sink, void *context, io_error *error);

#endif
