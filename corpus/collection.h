/* SPDX-License-Identifier: MIT
 * Texts of several corpora as documents of paragraphs, each in one split. */
#ifndef LOAM_CORPUS_COLLECTION_H
#define LOAM_CORPUS_COLLECTION_H

#include "corpus/extract.h"
#include "corpus/prose.h"
#include "text/buffer.h"

#include <stdint.h>

typedef enum corpus_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_HELD, SPLITS } corpus_split;

/* "train", "valid", "held". */
const char *corpus_split_name(int split);

/* Of 100 documents 0 and 1 are held out, 2 is for validation, by SHA-256 of "SEED\nCORPUS\nPATH": its first
 * 8 bytes, big-endian, modulo 100. */
corpus_split corpus_split_of(uint64_t seed, const char *corpus, const char *path);

typedef struct corpus_source {
    const char *name, *path, *package; /* package: or NULL */
    int kind;                          /* a text_kind, or -1: by the ending of each file */
    int64_t files, unread;             /* unread: of no known ending */
    int64_t paragraphs[PROSE_VERDICTS];
} corpus_source;

typedef struct corpus_paragraph {
    size_t at, bytes;
    bool kept;
} corpus_paragraph;

/* A file, or of a dictionary 64 lines. */
typedef struct corpus_document {
    int corpus;
    corpus_split split;
    bool lines;          /* its paragraphs are entries */
    size_t first, count; /* paragraphs */
} corpus_document;

typedef struct collection {
    corpus_source *corpora;
    int count;
    uint64_t seed;
    const char *end; /* the text of the token that ends documents */
    buffer text;     /* of all paragraphs */
    corpus_paragraph *paragraph;
    size_t paragraphs, paragraph_room;
    corpus_document *document;
    size_t documents, document_room;
    size_t *slot; /* hash table of paragraphs' index + 1 */
    size_t slots;
} collection;

/* Reads a file, called `path` below the corpus. */
int collection_add(collection *c, int corpus, text_kind kind, const char *path, const char *text,
                   size_t bytes, io_error *error);
void collection_free(collection *c);

/* Drops the training paragraphs that share 13 words in a row with a held-out document's paragraph. Words are
 * letters and digits, small and large ones alike. */
int collection_separate(collection *c, io_error *error);

/* Appends the kept paragraphs of a document, a blank line between two, of a dictionary one line each; nothing
 * where none is kept. */
void collection_text(const collection *c, const corpus_document *d, buffer *out);

#endif
