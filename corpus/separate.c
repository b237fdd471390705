/* SPDX-License-Identifier: MIT
 * Near-duplicates by 13-grams of words, the usual measure of contamination of language models' tests. */
#include "corpus/collection.h"

#include <stdlib.h>

enum { WORDS = 13 };

/* Hashes of what is held out; 0 stands for none. Two runs of words that share 64 bits of hash would cost one
 * paragraph. */
typedef struct grams {
    uint64_t *slot;
    size_t slots; /* a power of two */
} grams;

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x ? x : 1;
}

static size_t place_of(const grams *g, uint64_t hash)
{
    size_t slot = hash & (g->slots - 1);
    while (g->slot[slot] && g->slot[slot] != hash)
        slot = (slot + 1) & (g->slots - 1);
    return slot;
}

/* A letter of ASCII as a small one, a digit, a byte of another character; 0: none of a word. */
static unsigned char word_byte(char c)
{
    if (c >= 'A' && c <= 'Z') return (unsigned char)(c - 'A' + 'a');
    const unsigned char byte = (unsigned char)c;
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || byte >= 0x80 ? byte : 0;
}

/* Goes through the words of a text with the hash of the last 13,
 * h_n = B h_{n-1} + w_n - B^13 w_{n-13} modulo 2^64. */
typedef struct walk {
    const char *at, *end;
    uint64_t word[WORDS], power, hash;
    int64_t count;
} walk;

static walk walk_of(const char *text, size_t bytes)
{
    walk w = { .at = text, .end = text + bytes, .power = 1 };
    for (int i = 0; i < WORDS; i++)
        w.power *= 0x5851f42d4c957f2du;
    return w;
}

/* The next hash of 13 words; 0: the text ends. */
static uint64_t next_gram(walk *w)
{
    while (w->at < w->end) {
        uint64_t word = 0xcbf29ce484222325u; /* FNV-1a */
        bool any = false;
        for (unsigned char byte; w->at < w->end && (byte = word_byte(*w->at)); w->at++, any = true)
            word = (word ^ byte) * 0x100000001b3u;
        w->at += w->at < w->end;
        if (!any) continue;
        uint64_t *oldest = &w->word[w->count++ % WORDS];
        w->hash = w->hash * 0x5851f42d4c957f2du + word - *oldest * w->power;
        *oldest = word;
        if (w->count >= WORDS) return mixed(w->hash);
    }
    return 0;
}

/* Puts the 13-grams that are held out into a set, or without one only counts them. */
static int64_t collect(const collection *c, const grams *into)
{
    int64_t count = 0;
    for (size_t n = 0; n < c->documents; n++) {
        const corpus_document *d = &c->document[n];
        if (d->split != SPLIT_HELD) continue;
        for (size_t i = d->first; i < d->first + d->count; i++) {
            walk w = walk_of(c->text.at + c->paragraph[i].at, c->paragraph[i].bytes);
            for (uint64_t gram; (gram = next_gram(&w)); count++)
                if (into) into->slot[place_of(into, gram)] = gram;
        }
    }
    return count;
}

static bool shares(const collection *c, const corpus_paragraph *p, const grams *held)
{
    walk w = walk_of(c->text.at + p->at, p->bytes);
    for (uint64_t gram; (gram = next_gram(&w));)
        if (held->slot[place_of(held, gram)]) return true;
    return false;
}

int collection_separate(collection *c, io_error *error)
{
    const int64_t count = collect(c, NULL);
    grams held = { .slots = 2 };
    while (held.slots < 2 * (size_t)count)
        held.slots *= 2;
    held.slot = calloc(held.slots, sizeof *held.slot);
    if (!held.slot)
        return io_fail(error, EXIT_INTERNAL, "out of memory for %lld runs of words", (long long)count);
    collect(c, &held);
    for (size_t n = 0; n < c->documents; n++) {
        const corpus_document *d = &c->document[n];
        for (size_t i = d->first; d->split == SPLIT_TRAIN && i < d->first + d->count; i++) {
            corpus_paragraph *p = &c->paragraph[i];
            if (!p->kept || !shares(c, p, &held)) continue;
            p->kept = false;
            c->corpora[d->corpus].paragraphs[PROSE_KEPT]--;
            c->corpora[d->corpus].paragraphs[PROSE_HELD_OUT]++;
        }
    }
    free(held.slot);
    return 0;
}
