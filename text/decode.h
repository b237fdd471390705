/* SPDX-License-Identifier: MIT
 * Decoders: from the text of each token to the bytes that it stands for, given whether it is the first. */
#ifndef LOAM_TEXT_DECODE_H
#define LOAM_TEXT_DECODE_H

#include "text/match.h"

typedef enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_WORDPIECE, /* continuing tokens lose their prefix, others get a space */
    DECODE_METASPACE, /* a mark becomes a space, or nothing in the first token */
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK, /* <0x41> is a byte */
    DECODE_STRIP          /* a character at the beginning of every token, or of the first */
} decode_kind;

typedef struct decode_step {
    decode_kind kind;
    char *content;    /* prefix, mark, replacement, character */
    matcher *pattern; /* what is replaced */
    bool cleanup;     /* WordPiece: no space before punctuation */
    bool first_only;  /* Strip */
    bool keep_first;  /* Metaspace: the first token's mark is a space too */
} decode_step;

enum { DECODE_STEPS = 16 };

typedef struct decoder {
    decode_step step[DECODE_STEPS];
    int steps;
    bool spaced;            /* no decoder: a space between tokens */
    bool fused, made_bytes; /* the steps so far leave one text, or bytes that may be no UTF-8 */
} decoder;

void decoder_free(decoder *d);

/* Appends the bytes of one token. plain: its text is no row of printable characters for bytes. */
int decoder_put(const decoder *d, match_scratch *matching, const char *text, size_t bytes, bool plain,
                bool first, buffer *out, io_error *error);

#endif
