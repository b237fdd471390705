/* SPDX-License-Identifier: MIT
 * From text to tokens and back, by the files that models come with: tokenizer.json (byte-level BPE, BPE with
 * bytes as fallback, WordPiece), GPT-2's encoder.json and vocab.bpe, the vocabulary in a .gguf file. What a
 * file asks for and is not known here is refused by name. */
#ifndef LOAM_TEXT_TOKENIZER_H
#define LOAM_TEXT_TOKENIZER_H

#include "io/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tokenizer tokenizer;

/* path: a folder with tokenizer.json, or encoder.json and vocab.bpe; a tokenizer.json; or a .gguf file. On
 * failure *made is NULL. A tokenizer is constant once made: threads may share it. */
int tokenizer_open(tokenizer **made, const char *path, io_error *error);
void tokenizer_close(tokenizer *t); /* NULL is allowed */

int64_t tokenizer_size(const tokenizer *t); /* ids are below it */
/* The id of a token by its text ("<|endoftext|>"), or -1. */
int32_t tokenizer_id(const tokenizer *t, const char *text);

typedef struct tokens {
    int32_t *id; /* malloc's; NULL where count is 0 */
    int64_t count;
} tokens;

/* Any bytes, valid UTF-8 or not. special: what the tokenizer puts around every text ([CLS] .. [SEP]) too;
 * added tokens in the text are cut out in any case. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, bool special, tokens *out,
                     io_error *error);
void tokens_free(tokens *list); /* and zeroes it */

/* The bytes of the tokens, malloc's, with a 0 behind them. special: special tokens are written too. */
int tokenizer_decode(const tokenizer *t, const int32_t *id, int64_t count, bool special, char **text,
                     size_t *bytes, io_error *error);

/* A stream of tokens to text, which is cut only between characters: what is not yet whole waits. */
typedef struct token_stream {
    const tokenizer *tokenizer;
    unsigned char waiting[4];
    int count;
    bool begun;
} token_stream;
token_stream token_stream_of(const tokenizer *t);
/* Writes what is whole now to a buffer of at least token_stream_room(t) bytes; returns how many. Special
 * tokens, and ids without a token, write nothing. */
size_t token_stream_room(const tokenizer *t);
size_t token_stream_put(token_stream *s, int32_t id, char *out);
/* What still waits, as it is. */
size_t token_stream_end(token_stream *s, char *out);

/* Writes a tokenizer.json with the same results, whole or not at all. */
int tokenizer_write(const tokenizer *t, const char *path, io_error *error);

#endif
