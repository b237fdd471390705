/* SPDX-License-Identifier: MIT
 * Byte-level BPE with GPT-2's split, from texts: the most frequent pair of neighbours becomes a token, again
 * and again. Of equally frequent pairs the one with the lower first id goes first, then the lower second. */
#ifndef LOAM_TEXT_TRAIN_BPE_H
#define LOAM_TEXT_TRAIN_BPE_H

#include "text/tokenizer.h"

typedef struct bpe_trainer bpe_trainer;

/* end_of_text is a special token and gets the id 0; the bytes follow. On failure *made is NULL. */
int bpe_trainer_make(bpe_trainer **made, const char *end_of_text, io_error *error);
void bpe_trainer_free(bpe_trainer *b); /* NULL is allowed */

/* Counts the pieces of a text. Any bytes, as in tokenizer_encode. */
int bpe_trainer_add(bpe_trainer *b, const char *text, size_t bytes, io_error *error);

/* A tokenizer of `size` tokens, of fewer where no pair is left that is there twice. */
int bpe_trainer_finish(const bpe_trainer *b, int64_t size, tokenizer **made, io_error *error);

#endif
