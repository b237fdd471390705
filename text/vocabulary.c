/* SPDX-License-Identifier: MIT */
#include "text/vocabulary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool vocabulary_make(vocabulary *v, int64_t size, int64_t count)
{
    assert(size >= 0 && size <= TOKEN_ID_MAX + 1);
    *v = (vocabulary){ .size = size, .slots = 16 };
    while (v->slots < 2 * (size_t)count)
        v->slots *= 2;
    v->place = calloc((size_t)size + 1, sizeof *v->place);
    v->slot = malloc(v->slots * sizeof *v->slot);
    if (!v->place || !v->slot) return false;
    memset(v->slot, 0xff, v->slots * sizeof *v->slot);
    return true;
}

void vocabulary_free(vocabulary *v)
{
    buffer_free(&v->bytes);
    free(v->place);
    free(v->slot);
    *v = (vocabulary){ 0 };
}

/* Low bits choose the slot; those of the product hang on the last byte's low bits alone. */
static size_t slot_of(const vocabulary *v, uint64_t hash) { return (hash ^ hash >> 32) & (v->slots - 1); }

static uint64_t hash_of(const char *bytes, size_t length, bool plain)
{
    uint64_t hash = hash_begin(plain);
    for (size_t i = 0; i < length; i++)
        hash = hash_more(hash, bytes[i]);
    return hash;
}

void vocabulary_add(vocabulary *v, int32_t id, const char *bytes, size_t length, bool plain)
{
    size_t slot = slot_of(v, hash_of(bytes, length, plain));
    while (v->slot[slot] >= 0)
        slot = (slot + 1) & (v->slots - 1);
    v->slot[slot] = id;
    v->place[id] = (token_place){ (uint32_t)v->bytes.count, (uint32_t)length, plain, true };
    v->count++;
    if (length > v->longest) v->longest = length;
    buffer_put(&v->bytes, bytes, length);
}

bool vocabulary_has(const vocabulary *v, int64_t id) { return id >= 0 && id < v->size && v->place[id].there; }

int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t length, bool plain)
{
    for (size_t slot = slot_of(v, hash_of(bytes, length, plain)); v->slot[slot] >= 0;
         slot = (slot + 1) & (v->slots - 1)) {
        const token_place p = v->place[v->slot[slot]];
        if (p.length == length && p.plain == plain && memcmp(v->bytes.at + p.at, bytes, length) == 0)
            return v->slot[slot];
    }
    return -1;
}

int32_t vocabulary_find_hashed(const vocabulary *v, uint64_t hash, const char *first, size_t first_length,
                               const char *rest, size_t rest_length)
{
    for (size_t slot = slot_of(v, hash); v->slot[slot] >= 0; slot = (slot + 1) & (v->slots - 1)) {
        const token_place p = v->place[v->slot[slot]];
        if (p.length != first_length + rest_length || p.plain) continue;
        const char *bytes = v->bytes.at + p.at;
        if (memcmp(bytes, first, first_length) == 0 && memcmp(bytes + first_length, rest, rest_length) == 0)
            return v->slot[slot];
    }
    return -1;
}

const char *vocabulary_bytes(const vocabulary *v, int32_t id, size_t *length)
{
    *length = v->place[id].length;
    return v->bytes.at + v->place[id].at;
}
