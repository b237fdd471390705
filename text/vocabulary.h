/* SPDX-License-Identifier: MIT
 * The tokens of a model: bytes by id, and ids by bytes. */
#ifndef LOAM_TEXT_VOCABULARY_H
#define LOAM_TEXT_VOCABULARY_H

#include "text/buffer.h"

/* Ids and texts above are refused: tables stay small whatever a file says. */
enum { TOKEN_ID_MAX = (1 << 22) - 1, TOKEN_BYTES_MAX = 4096 };

typedef struct token_place {
    uint32_t at;
    uint32_t length : 30;
    uint32_t plain : 1; /* byte-level: its text is not made of printable characters for bytes */
    uint32_t there : 1;
} token_place;

typedef struct vocabulary {
    buffer bytes;
    token_place *place; /* by id */
    int64_t size;       /* ids are below it; some may be missing */
    int64_t count;
    int32_t *slot; /* hash table of ids, -1: empty */
    size_t slots;  /* a power of two */
    size_t longest;
} vocabulary;

/* For `count` tokens at most, with ids below `size`; false without memory. */
bool vocabulary_make(vocabulary *v, int64_t size, int64_t count);
void vocabulary_free(vocabulary *v);

/* The id must be free, the text new: see vocabulary_has and vocabulary_find. */
void vocabulary_add(vocabulary *v, int32_t id, const char *bytes, size_t length, bool plain);
bool vocabulary_has(const vocabulary *v, int64_t id);
int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t length, bool plain); /* or -1 */
const char *vocabulary_bytes(const vocabulary *v, int32_t id, size_t *length);

/* The hash, byte by byte: of a text, that of its last byte with that of the bytes before it. */
static inline uint64_t hash_begin(bool plain) { return plain ? 0x84222325cbf29ce4u : 0xcbf29ce484222325u; }
static inline uint64_t hash_more(uint64_t hash, char byte)
{
    return (hash ^ (unsigned char)byte) * 0x100000001b3u;
}
/* The token with these bytes in two parts, whose hash is known. */
int32_t vocabulary_find_hashed(const vocabulary *v, uint64_t hash, const char *first, size_t first_length,
                               const char *rest, size_t rest_length);

#endif
