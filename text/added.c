/* SPDX-License-Identifier: MIT */
#include "text/added.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b)
{
    const added_token *x = *(const added_token *const *)a, *y = *(const added_token *const *)b;
    const size_t common = x->wanted_bytes < y->wanted_bytes ? x->wanted_bytes : y->wanted_bytes;
    const int order = memcmp(x->wanted, y->wanted, common);
    return order ? order : (x->wanted_bytes > y->wanted_bytes) - (x->wanted_bytes < y->wanted_bytes);
}

bool added_search_make(added_search *s, const added_token *tokens, int32_t count, bool normalised,
                       const added_token **twice)
{
    *s = (added_search){ .token = malloc(((size_t)count + 1) * sizeof *s->token) };
    *twice = NULL;
    if (!s->token) return false;
    for (int32_t i = 0; i < count; i++)
        if (tokens[i].normalised == normalised && tokens[i].wanted_bytes > 0)
            s->token[s->count++] = &tokens[i];
    qsort(s->token, (size_t)s->count, sizeof *s->token, by_bytes);
    for (int32_t i = 0; i < s->count; i++) {
        s->first[(unsigned char)*s->token[i]->wanted + 1]++;
        if (i > 0 && by_bytes(&s->token[i - 1], &s->token[i]) == 0) *twice = s->token[i];
    }
    for (int byte = 0; byte < 256; byte++)
        s->first[byte + 1] += s->first[byte];
    return true;
}

void added_search_free(added_search *s)
{
    free(s->token);
    *s = (added_search){ 0 };
}

static int byte_at(const added_token *t, size_t place)
{
    return place < t->wanted_bytes ? (unsigned char)t->wanted[place] : -1;
}

/* The first of low .. high - 1, which begin alike, whose byte at `place` is `byte` or more. */
static int32_t lower_bound(const added_search *s, int32_t low, int32_t high, size_t place, int byte)
{
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (byte_at(s->token[middle], place) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest one that the text begins with. */
static const added_token *longest_at(const added_search *s, const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    const added_token *found = NULL;
    int32_t low = s->first[*p], high = s->first[*p + 1];
    for (size_t place = 1; low < high; place++) {
        if (s->token[low]->wanted_bytes == place) found = s->token[low++];
        if (place == bytes) break;
        low = lower_bound(s, low, high, place, p[place]);
        high = lower_bound(s, low, high, place, p[place] + 1);
    }
    return found;
}

static bool stands_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    size_t length;
    const bool before = begin > 0 && is_word(utf8_first(text + utf8_before(text, begin), &length));
    const bool after = end < bytes && is_word(utf8_first(text + end, &length));
    return !before && !after;
}

static void strip(const added_token *t, const char *text, size_t bytes, size_t done, size_t *begin,
                  size_t *end)
{
    size_t length;
    while (t->left_strip && *begin > done) {
        const size_t before = utf8_before(text, *begin);
        if (before < done || !is_white_space(utf8_first(text + before, &length))) break;
        *begin = before;
    }
    while (t->right_strip && *end < bytes && is_white_space(utf8_first(text + *end, &length)))
        *end += length;
}

const added_token *added_next(const added_search *s, const char *text, size_t bytes, size_t done,
                              size_t *from, size_t *begin, size_t *end)
{
    for (size_t at = *from; at < bytes && s->count; at++) {
        const unsigned char byte = (unsigned char)text[at];
        if (s->first[byte] == s->first[byte + 1]) continue;
        const added_token *t = longest_at(s, text + at, bytes - at);
        if (!t) continue;
        *begin = at, *end = at + t->wanted_bytes;
        if (t->single_word && !stands_alone(text, bytes, *begin, *end)) {
            at = *end - 1;
            continue;
        }
        strip(t, text, bytes, done, begin, end);
        *from = *end;
        return t;
    }
    *from = bytes;
    return NULL;
}
