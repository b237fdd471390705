/* SPDX-License-Identifier: MIT
 * Questions with four choices, made of held-out text; in the form of ARC, an object a line. */
#ifndef LOAM_CORPUS_QUESTIONS_H
#define LOAM_CORPUS_QUESTIONS_H

#include "text/tokenizer.h"

#include <stdio.h>

typedef struct question_source {
    const tokenizer *tokenizer;
    const unsigned char *shard; /* little-endian 16-bit tokens */
    int64_t count;
    int32_t end; /* behind each document */
    uint64_t seed;
} question_source;

/* Both write to `out`, whose errors the caller checks, and set *made to the number of questions. */
typedef int question_maker(const question_source *s, FILE *out, int64_t *made, io_error *error);

/* 64 tokens, and the 16 that follow them against three times 16 from elsewhere in the document. All choices
 * begin with a word. */
question_maker questions_of_continuation;
/* Entries "word, word (part): gloss; more": the gloss, and the first word against those of three entries of
 * the same part of speech and about the same length, which differ by at most 2. */
question_maker questions_of_glosses;

#endif
