/* SPDX-License-Identifier: MIT
 * Byte-pair encoding: a piece is a row of characters, or of bytes, and the neighbours whose merge comes first
 * in the list are merged until none is in it. */
#ifndef LOAM_TEXT_BPE_H
#define LOAM_TEXT_BPE_H

#include "text/vocabulary.h"

typedef struct merge {
    int32_t left, right; /* -1: an empty slot of the table */
    int32_t rank, made;
} merge;

typedef struct bpe {
    const vocabulary *vocabulary;
    bool by_bytes; /* else by characters */
    bool ignore_merges, fuse_unknown, byte_fallback;
    char *prefix, *suffix;     /* "" or the mark of what does not begin, or ends, a piece */
    int32_t unknown;           /* or -1 */
    int32_t symbol[2][2][256]; /* the token of a byte, or of an ASCII character; with prefix, with suffix */
    int32_t fallback[256];     /* of <0x00> .. */
    int32_t (*pairs)[2];       /* by rank */
    int64_t merges;
    merge *table;
    size_t slots;
    bool may_cut;            /* pieces may be cut where no merge joins the bytes at both sides */
    uint64_t joined[256][4]; /* bit: a merge joins this last byte and this first byte */
} bpe;

/* The rest of *b, from its first six members and the pairs. The number of the first pair that is in the list
 * twice, or whose result is no token, in *bad; else -1. False without memory. */
bool bpe_make(bpe *b, int64_t *bad);
void bpe_free(bpe *b);

/* What one thread needs. */
typedef struct bpe_scratch {
    int32_t *symbol, *next, *before;
    uint64_t *heap;
    size_t room, heap_count;
    id_list symbols;
    buffer text;
} bpe_scratch;
void bpe_scratch_free(bpe_scratch *s);

/* Appends the tokens of a piece; false without memory. */
bool bpe_encode(const bpe *b, bpe_scratch *s, const char *piece, size_t bytes, id_list *out);

/* The end of the part from `at` on that can be encoded alone. */
size_t bpe_part_end(const bpe *b, const char *piece, size_t at, size_t bytes);

#endif
