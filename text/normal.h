/* SPDX-License-Identifier: MIT
 * Normalisers: what becomes of a text before it is cut into pieces. */
#ifndef LOAM_TEXT_NORMAL_H
#define LOAM_TEXT_NORMAL_H

#include "text/match.h"

typedef enum normal_kind {
    NORMAL_UNICODE,
    NORMAL_LOWERCASE,
    NORMAL_BERT,
    NORMAL_PREPEND,
    NORMAL_REPLACE
} normal_kind;

typedef struct normal_step {
    normal_kind kind;
    bool compose, compatible; /* Unicode's forms: NFC and NFKC compose, NFKC and NFKD replace variants */
    bool clean, chinese, strip_accents, lowercase; /* BERT's */
    char *content;                                 /* what is prepended, or put in place */
    matcher *pattern;                              /* what is replaced */
} normal_step;

enum { NORMAL_STEPS = 16 };

typedef struct normaliser {
    normal_step step[NORMAL_STEPS];
    int steps;
} normaliser;

void normaliser_free(normaliser *n);

/* What the steps write by turns. */
typedef struct normal_scratch {
    buffer buffers[2];
    int32_t *characters; /* twice the room: to put them in order too */
    size_t room;
} normal_scratch;
void normal_scratch_free(normal_scratch *s);

/* Of valid UTF-8. *out is the text itself where it stays as it is, else in the scratch. */
int normalise(const normaliser *n, normal_scratch *s, match_scratch *matching, const char *text, size_t bytes,
              const char **out, size_t *out_bytes, io_error *error);

#endif
