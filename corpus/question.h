/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CORPUS_QUESTION_H
#define LOAM_CORPUS_QUESTION_H

#include "corpus/questions.h"
#include "text/buffer.h"

enum { QUESTION_CHOICES = 4 };

/* The text of tokens first .. first + count - 1 of a shard. */
int question_text(const question_source *s, int64_t first, int64_t count, buffer *text, io_error *error);
int32_t question_token(const question_source *s, int64_t n);
/* Draw n of question `question`: a number 0 .. below - 1. */
int64_t question_draw(const question_source *s, int64_t question, int64_t n, int64_t below);

/* choice[0] is the answer; it goes to a place that draw 0 says. Texts are valid UTF-8. */
int question_write(const question_source *s, FILE *out, int64_t question, const buffer *asked,
                   const buffer choice[QUESTION_CHOICES], io_error *error);

#endif
