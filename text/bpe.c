/* SPDX-License-Identifier: MIT */
#include "text/bpe.h"

#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer rows go by a heap: the search for the first merge is quadratic. */
enum { SHORT_ROW = 64 };

/* ---------------------------------------------------------------- merges */

static size_t slot_of(const bpe *b, int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (hash ^ hash >> 32) & (b->slots - 1);
}

static const merge *find_merge(const bpe *b, int32_t left, int32_t right)
{
    const merge *m = &b->table[slot_of(b, left, right)];
    while (m->left >= 0 && (m->left != left || m->right != right))
        m = m + 1 < b->table + b->slots ? m + 1 : b->table;
    return m->left >= 0 ? m : NULL;
}

/* The token that a pair makes: its texts one after another, without the prefix of the right one; or -1. */
static int32_t product(const bpe *b, const int32_t *pair, buffer *text)
{
    size_t left_bytes, right_bytes, prefix = strlen(b->prefix);
    const char *left = vocabulary_bytes(b->vocabulary, pair[0], &left_bytes);
    const char *right = vocabulary_bytes(b->vocabulary, pair[1], &right_bytes);
    if (right_bytes < prefix) return -1;
    text->count = 0;
    buffer_put(text, left, left_bytes);
    buffer_put(text, right + prefix, right_bytes - prefix);
    if (text->failed) return -1;
    /* Byte-level tokens that are not made of bytes merge by their texts as well. */
    const bool plain = b->vocabulary->place[pair[0]].plain || b->vocabulary->place[pair[1]].plain;
    return vocabulary_find(b->vocabulary, text->at, text->count, plain);
}

static void join(bpe *b, int last, int first) { b->joined[last][first / 64] |= (uint64_t)1 << first % 64; }

static bool add_merge(bpe *b, int32_t rank, buffer *text)
{
    const int32_t *pair = b->pairs[rank], made = product(b, pair, text);
    if (made < 0 || find_merge(b, pair[0], pair[1])) return false;
    size_t slot = slot_of(b, pair[0], pair[1]);
    while (b->table[slot].left >= 0)
        slot = (slot + 1) & (b->slots - 1);
    b->table[slot] = (merge){ pair[0], pair[1], rank, made };
    size_t bytes;
    const char *left = vocabulary_bytes(b->vocabulary, pair[0], &bytes);
    const unsigned char last = (unsigned char)left[bytes - 1];
    const unsigned char first = (unsigned char)*vocabulary_bytes(b->vocabulary, pair[1], &bytes);
    join(b, last, first);
    return true;
}

static bool make_table(bpe *b, int64_t *bad)
{
    b->slots = 16;
    while (b->slots < 2 * (size_t)b->merges)
        b->slots *= 2;
    b->table = malloc(b->slots * sizeof *b->table);
    if (!b->table) return false;
    for (size_t i = 0; i < b->slots; i++)
        b->table[i].left = -1;
    buffer text = { 0 };
    for (int64_t rank = 0; rank < b->merges && *bad < 0; rank++)
        if (!add_merge(b, (int32_t)rank, &text)) *bad = rank;
    const bool failed = text.failed;
    buffer_free(&text);
    return !failed;
}

/* ---------------------------------------------------------------- symbols */

static int32_t find_symbol(const bpe *b, buffer *text, const char *character, size_t length, bool prefix,
                           bool suffix)
{
    text->count = 0;
    if (prefix) buffer_put(text, b->prefix, strlen(b->prefix));
    buffer_put(text, character, length);
    if (suffix) buffer_put(text, b->suffix, strlen(b->suffix));
    return text->failed ? -1 : vocabulary_find(b->vocabulary, text->at, text->count, false);
}

static bool make_symbols(bpe *b)
{
    buffer text = { 0 };
    for (int i = 0; i < 4; i++)
        for (int byte = 0; byte < 256; byte++) {
            const char one = (char)byte;
            const bool there = b->by_bytes || byte < 0x80;
            b->symbol[i / 2][i % 2][byte] = there ? find_symbol(b, &text, &one, 1, i / 2, i % 2) : -1;
        }
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        const int length = snprintf(name, sizeof name, "<0x%02X>", byte);
        b->fallback[byte] = b->byte_fallback ? vocabulary_find(b->vocabulary, name, (size_t)length, false)
                                             : -1;
    }
    const bool failed = text.failed;
    buffer_free(&text);
    return !failed;
}

/* What has no token, and no unknown one stands for it, is dropped: then its neighbours meet. */
static void join_around_dropped(bpe *b)
{
    for (int byte = 0; byte < 256; byte++)
        for (int other = 0; other < 256 && b->symbol[0][0][byte] < 0; other++) {
            join(b, byte, other);
            join(b, other, byte);
        }
}

/* A merge may join two tokens only if it joins the last byte of one and the first of the other. That says
 * where no merge reaches, as long as tokens that merge stand for their own bytes, and what is unknown is not
 * fused. */
static void see_whether_to_cut(bpe *b)
{
    bool complete = b->byte_fallback, names_merge = false;
    for (int byte = 0; byte < 256; byte++)
        complete = complete && b->fallback[byte] >= 0;
    for (int64_t i = 0; i < 2 * b->merges; i++) {
        const int32_t id = b->pairs[i / 2][i % 2];
        size_t length;
        const char *text = vocabulary_bytes(b->vocabulary, id, &length);
        names_merge = names_merge || id == b->unknown ||
                      (b->byte_fallback && length == 6 && memcmp(text, "<0x", 3) == 0);
    }
    b->may_cut = !*b->prefix && !*b->suffix && !b->ignore_merges && !names_merge &&
                 (complete || (b->unknown >= 0 ? !b->fuse_unknown : b->by_bytes));
    if (b->unknown < 0 && b->by_bytes) join_around_dropped(b);
}

bool bpe_make(bpe *b, int64_t *bad)
{
    *bad = -1;
    if (!make_symbols(b) || !make_table(b, bad)) return false;
    see_whether_to_cut(b);
    return true;
}

void bpe_free(bpe *b)
{
    free(b->prefix);
    free(b->suffix);
    free(b->pairs);
    free(b->table);
    b->prefix = b->suffix = NULL;
    b->pairs = NULL;
    b->table = NULL;
}

void bpe_scratch_free(bpe_scratch *s)
{
    free(s->symbol);
    free(s->next);
    free(s->before);
    free(s->heap);
    free(s->symbols.at);
    buffer_free(&s->text);
}

size_t bpe_part_end(const bpe *b, const char *piece, size_t at, size_t bytes)
{
    if (!b->may_cut) return bytes;
    for (size_t end = at + 1; end < bytes; end++) {
        const unsigned char last = (unsigned char)piece[end - 1], first = (unsigned char)piece[end];
        if (!b->by_bytes && (first & 0xc0) == 0x80) continue;
        if (!(b->joined[last][first / 64] >> first % 64 & 1)) return end;
    }
    return bytes;
}

/* ---------------------------------------------------------------- a row of symbols */

/* A character without a token: its bytes' tokens, or the unknown one; nothing where there is none. */
static void put_unknown(const bpe *b, id_list *row, const char *character, size_t length, bool *fuse)
{
    bool all = b->byte_fallback;
    for (size_t i = 0; i < length && all; i++)
        all = b->fallback[(unsigned char)character[i]] >= 0;
    for (size_t i = 0; i < length && all; i++)
        ids_put(row, &b->fallback[(unsigned char)character[i]], 1);
    if (all || b->unknown < 0) return;
    if (!(*fuse && b->fuse_unknown)) ids_put(row, &b->unknown, 1);
    *fuse = true;
}

static void put_symbols(const bpe *b, bpe_scratch *s, const char *piece, size_t bytes)
{
    id_list *row = &s->symbols;
    row->count = 0;
    bool fuse = false;
    for (size_t at = 0, length = 1; at < bytes; at += length) {
        const unsigned char byte = (unsigned char)piece[at];
        if (!b->by_bytes) utf8_first(piece + at, &length);
        const bool prefix = at > 0, suffix = at + length == bytes;
        const int32_t id = b->by_bytes || byte < 0x80
                               ? b->symbol[prefix][suffix][byte]
                               : find_symbol(b, &s->text, piece + at, length, prefix, suffix);
        if (id < 0) {
            put_unknown(b, row, piece + at, length, &fuse);
        } else {
            ids_put(row, &id, 1);
            fuse = false;
        }
    }
}

/* Merges the pair of lowest rank, the leftmost of equal ones, until there is none. */
static size_t merge_short(const bpe *b, int32_t *symbol, size_t count)
{
    const merge *pair[SHORT_ROW];
    for (size_t i = 0; i + 1 < count; i++)
        pair[i] = find_merge(b, symbol[i], symbol[i + 1]);
    for (;;) {
        size_t best = count;
        int32_t rank = INT32_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            if (pair[i] && pair[i]->rank < rank) best = i, rank = pair[i]->rank;
        if (best == count) return count;
        symbol[best] = pair[best]->made;
        count--;
        for (size_t i = best + 1; i < count; i++)
            symbol[i] = symbol[i + 1];
        for (size_t i = best + 1; i + 1 < count; i++)
            pair[i] = pair[i + 1];
        if (best > 0) pair[best - 1] = find_merge(b, symbol[best - 1], symbol[best]);
        if (best + 1 < count) pair[best] = find_merge(b, symbol[best], symbol[best + 1]);
    }
}

/* ---------------------------------------------------------------- long rows */

static bool reserve_row(bpe_scratch *s, size_t count)
{
    if (count <= s->room) return true;
    free(s->symbol), free(s->next), free(s->before), free(s->heap);
    s->room = 0;
    s->symbol = malloc(count * sizeof *s->symbol);
    s->next = malloc(count * sizeof *s->next);
    s->before = malloc(count * sizeof *s->before);
    s->heap = malloc(3 * count * sizeof *s->heap); /* one of each first pair, two of each merge */
    if (!s->symbol || !s->next || !s->before || !s->heap) return false;
    s->room = count;
    return true;
}

/* An entry is rank and place, so that the least is the leftmost of lowest rank. */
static void heap_put(bpe_scratch *s, uint64_t entry)
{
    size_t at = s->heap_count++;
    for (; at > 0 && s->heap[(at - 1) / 4] > entry; at = (at - 1) / 4)
        s->heap[at] = s->heap[(at - 1) / 4];
    s->heap[at] = entry;
}

static uint64_t heap_take(bpe_scratch *s)
{
    const uint64_t least = s->heap[0], last = s->heap[--s->heap_count];
    size_t at = 0;
    for (;;) {
        const size_t first = 4 * at + 1;
        if (first >= s->heap_count) break;
        size_t child = first;
        for (size_t i = first + 1; i < first + 4 && i < s->heap_count; i++)
            if (s->heap[i] < s->heap[child]) child = i;
        if (s->heap[child] >= last) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return least;
}

static void heap_put_pair(const bpe *b, bpe_scratch *s, int32_t place)
{
    const merge *m = find_merge(b, s->symbol[place], s->symbol[s->next[place]]);
    if (m) heap_put(s, (uint64_t)m->rank << 32 | (uint32_t)place);
}

/* Merges a symbol with the next one, where that still is the pair of this rank. */
static void merge_at(const bpe *b, bpe_scratch *s, int32_t place, int32_t rank)
{
    if (s->symbol[place] < 0 || s->next[place] < 0) return;
    const int32_t right = s->next[place];
    const merge *m = find_merge(b, s->symbol[place], s->symbol[right]);
    if (!m || m->rank != rank) return;
    s->symbol[place] = m->made;
    s->symbol[right] = -1;
    s->next[place] = s->next[right];
    if (s->next[place] >= 0) s->before[s->next[place]] = place;
    if (s->before[place] >= 0) heap_put_pair(b, s, s->before[place]);
    if (s->next[place] >= 0) heap_put_pair(b, s, place);
}

static bool merge_long(const bpe *b, bpe_scratch *s, id_list *out)
{
    const size_t count = s->symbols.count;
    if (!reserve_row(s, count)) return false;
    s->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        s->symbol[i] = s->symbols.at[i];
        s->before[i] = (int32_t)i - 1;
        s->next[i] = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++)
        heap_put_pair(b, s, (int32_t)i);
    while (s->heap_count) {
        const uint64_t entry = heap_take(s);
        merge_at(b, s, (int32_t)(uint32_t)entry, (int32_t)(entry >> 32));
    }
    for (int32_t i = 0; i >= 0; i = s->next[i])
        ids_put(out, &s->symbol[i], 1);
    return !out->failed;
}

bool bpe_encode(const bpe *b, bpe_scratch *s, const char *piece, size_t bytes, id_list *out)
{
    if (b->ignore_merges) {
        const int32_t whole = vocabulary_find(b->vocabulary, piece, bytes, false);
        if (whole >= 0) {
            ids_put(out, &whole, 1);
            return !out->failed;
        }
    }
    put_symbols(b, s, piece, bytes);
    if (s->symbols.failed || s->text.failed) return false;
    if (s->symbols.count > SHORT_ROW) return merge_long(b, s, out);
    ids_put(out, s->symbols.at, merge_short(b, s->symbols.at, s->symbols.count));
    return !out->failed;
}
