/* SPDX-License-Identifier: MIT */
#include "text/wordpiece.h"

#include "text/utf8.h"

#include <string.h>

static bool is_too_long(const wordpiece *w, const char *word, size_t bytes)
{
    int64_t characters = 0;
    for (size_t i = 0; i < bytes; i++)
        characters += (word[i] & 0xc0) != 0x80;
    return characters > w->longest_word;
}

/* The longest token at `begin`, and its end; or -1. */
static int32_t longest_token(const wordpiece *w, const char *word, size_t begin, size_t bytes, size_t *end)
{
    const size_t prefix = begin > 0 ? strlen(w->prefix) : 0;
    uint64_t hash = hash_begin(false);
    for (size_t i = 0; i < prefix; i++)
        hash = hash_more(hash, w->prefix[i]);
    size_t most = w->vocabulary->longest > prefix ? w->vocabulary->longest - prefix : 0;
    if (most > bytes - begin) most = bytes - begin;
    uint64_t hashes[UTF8_MAX * WORDPIECE_LETTERS + 1];
    for (size_t i = 0; i < most; i++)
        hashes[i] = hash = hash_more(hash, word[begin + i]);
    for (size_t length = most; length > 0; length--) {
        if (begin + length < bytes && (word[begin + length] & 0xc0) == 0x80) continue;
        const int32_t id = vocabulary_find_hashed(w->vocabulary, hashes[length - 1], w->prefix, prefix,
                                                  word + begin, length);
        *end = begin + length;
        if (id >= 0) return id;
    }
    return -1;
}

bool wordpiece_encode(const wordpiece *w, const char *word, size_t bytes, id_list *out)
{
    const size_t before = out->count;
    bool known = !is_too_long(w, word, bytes);
    for (size_t at = 0; known && at < bytes;) {
        const int32_t id = longest_token(w, word, at, bytes, &at);
        known = id >= 0;
        if (known) ids_put(out, &id, 1);
    }
    if (!known) {
        out->count = before;
        ids_put(out, &w->unknown, 1);
    }
    return !out->failed;
}
