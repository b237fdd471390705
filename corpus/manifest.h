/* SPDX-License-Identifier: MIT
 * Shards while they are written, and their manifest. */
#ifndef LOAM_CORPUS_MANIFEST_H
#define LOAM_CORPUS_MANIFEST_H

#include "corpus/shards.h"
#include "io/out_file.h"
#include "io/sha256.h"

enum { CORPUS_NAME_MAX = 64 };

typedef struct shard {
    char name[CORPUS_NAME_MAX + 16];
    out_file *file;
    sha256 sum;
    char hex[SHA256_HEX]; /* once finished */
    int64_t tokens;
} shard;

typedef struct corpus_sum {
    shard_total total[SPLITS];
    sha256 sum; /* of its documents, a line feed behind each */
    char hex[SHA256_HEX];
} corpus_sum;

struct shards {
    const collection *from;
    const tokenizer *tokenizer;
    const out_folder *folder;
    int32_t end;
    shard *shard; /* train, valid, held of each corpus_source */
    int count;
    corpus_sum *corpus;
};

int manifest_write(const shards *s, io_error *error);

#endif
