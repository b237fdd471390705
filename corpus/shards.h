/* SPDX-License-Identifier: MIT
 * The files that a collection becomes: tokens as little-endian 16-bit numbers, one document after another and
 * the end token behind each, and a manifest of what they are made of. */
#ifndef LOAM_CORPUS_SHARDS_H
#define LOAM_CORPUS_SHARDS_H

#include "corpus/collection.h"
#include "io/out_folder.h"
#include "text/tokenizer.h"

enum { SHARD_TOKENS = 1 << 16 }; /* ids are below it */

typedef struct shards shards;

/* What became of the documents of a corpus in one split; bytes of the text without end tokens. */
typedef struct shard_total {
    int64_t documents, bytes, tokens;
} shard_total;

/* Opens the files train.u16, valid.u16 and held-CORPUS.u16. On failure *made is NULL. */
int shards_open(shards **made, const collection *c, const tokenizer *t, const out_folder *folder,
                io_error *error);
void shards_close(shards *s); /* removes what is not finished; NULL is allowed */

/* Documents first .. first + count - 1 follow those before. The same bytes for any number of threads. */
int shards_add(shards *s, size_t first, size_t count, int threads, io_error *error);

/* After all documents: finishes the files, then writes manifest.json. tokenizer.json is there already. */
int shards_finish(shards *s, io_error *error);

shard_total shards_total(const shards *s, int corpus, corpus_split split);

#endif
