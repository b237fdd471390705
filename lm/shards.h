/* SPDX-License-Identifier: MIT
 * The data of pretraining, a folder: manifest.json, tokenizer.json, and tokens as little-endian uint16, in
 * train.u16, valid.u16 and, for each corpus, held-NAME.u16. Documents end with the end token. */
#ifndef LOAM_LM_SHARDS_H
#define LOAM_LM_SHARDS_H

#include "io/error.h"

#include <stdint.h>

typedef struct lm_shard {
    uint16_t *tokens;
    int64_t count;
} lm_shard;

/* What no model was trained on: an end token, then its tokens, which were `bytes` of text. */
typedef struct lm_held {
    char *name;
    lm_shard shard;
    int64_t bytes;
} lm_held;

typedef struct lm_shards {
    int64_t vocabulary;
    int32_t end_token;
    lm_shard train, valid;
    lm_held *held; /* [corpora] that have such text */
    int64_t corpora;
    uint64_t sum; /* of the tokens of train and valid: tells data apart */
} lm_shards;

/* Everything is read and checked: counts against the sizes of files, tokens against the vocabulary. On
 * failure *s is all zero. */
int lm_shards_open(lm_shards *s, const char *folder, io_error *error);
void lm_shards_close(lm_shards *s);

#endif
