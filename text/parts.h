/* SPDX-License-Identifier: MIT
 * What a tokenizer consists of, and the readers that put it together. */
#ifndef LOAM_TEXT_PARTS_H
#define LOAM_TEXT_PARTS_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normal.h"
#include "text/pieces.h"
#include "text/tokenizer.h"
#include "text/wordpiece.h"

#include <jansson.h>

enum { DECODED_BYTES_MAX = 1 << 28 };

/* What every id stands for, one after another. */
typedef struct decoded {
    buffer bytes;
    uint32_t *end; /* by id */
    size_t longest;
} decoded;

struct tokenizer {
    vocabulary vocabulary; /* of the model; where that is by bytes, the bytes that the tokens stand for */
    bool is_bpe;           /* else WordPiece */
    bpe bpe;
    wordpiece wordpiece;
    normaliser normaliser;
    splitter splitter;
    decoder decoder;
    added_token *added; /* by id */
    int32_t added_count;
    added_search search[2]; /* in the text as it is, in the normalised one */
    id_list before, after;  /* what stands around every text */
    int64_t size;
    decoded decoded[2]; /* behind other tokens, and as the first one */
    char *json;         /* the whole tokenizer, as it is written */
    size_t json_bytes;
};

/* From which file, for messages. */
typedef struct reader {
    const char *name;
    io_error *error;
} reader;

int reader_fail(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int reader_no_memory(const reader *r);

/* Members of an object. `where` names it in messages: "the normalizer". Members that are not in `keys`
 * (NULL-terminated) are refused; so are values of another type. null is as missing. */
int reader_keys(const reader *r, const json_t *object, const char *where, const char *const *keys);
int reader_flag(const reader *r, const json_t *object, const char *where, const char *key, bool missing,
                bool *out);
/* A text, malloc's; missing NULL: it must be there. */
int reader_text(const reader *r, const json_t *object, const char *where, const char *key,
                const char *missing, char **out);
/* {"String": ..} or {"Regex": ..} */
int reader_pattern(const reader *r, const json_t *object, const char *where, matcher **out);
/* The "type" of an object, or NULL and *status. */
const char *reader_type(const reader *r, const json_t *object, const char *where, int *status);

/* Each reads its part; null or missing is none. */
int read_normaliser(tokenizer *t, const reader *r, const json_t *part);
int read_splitter(tokenizer *t, const reader *r, const json_t *part);
int read_decoder(tokenizer *t, const reader *r, const json_t *part);
int read_post_processor(tokenizer *t, const reader *r, const json_t *part); /* after all tokens */
int read_model(tokenizer *t, const reader *r, const json_t *part);          /* after the splitter */
int read_added(tokenizer *t, const reader *r, const json_t *part);          /* after the model */

/* The texts of all tokens, once everything is read. */
int make_decoded(tokenizer *t, const reader *r);

/* A tokenizer from the contents of a tokenizer.json. */
int tokenizer_from_json(tokenizer **made, const json_t *root, const char *name, io_error *error);

/* All of a file, malloc's. */
int read_whole_file(const char *path, char **text, size_t *bytes, io_error *error);
/* Contents of such a file from others; NULL on failure. */
json_t *json_of_bytes(const char *text, size_t bytes, const char *name, io_error *error);
json_t *json_of_file(const char *path, io_error *error);
/* GPT-2's with one token, to which others are added; NULL without memory. */
json_t *json_of_byte_level(const char *end_of_text);
json_t *json_of_gguf(const char *path, io_error *error);
json_t *json_of_gpt2_files(const char *vocabulary, const char *merges, io_error *error);

/* The token with this text as a tokenizer.json has it, of model or added; or -1. */
int32_t tokenizer_find(const tokenizer *t, const char *text, size_t bytes);
int32_t tokenizer_find_model(const tokenizer *t, const char *text, size_t bytes);

#endif
