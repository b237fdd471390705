/* SPDX-License-Identifier: MIT */
#include "train/data.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { FOR_KEYS, FOR_VALUES, FOR_SLOTS, FOR_WORDS_BETWEEN };

/* Slots of two tokens behind the pairs. */
static int64_t slots_of(const recall_shape *shape) { return (shape->length - 2 * shape->pairs) / 2; }

int64_t recall_scratch(const recall_shape *shape)
{
    return slots_of(shape) * (int64_t)sizeof(int64_t) +
           (shape->words / 2 + shape->pairs) * (int64_t)sizeof(int32_t);
}

/* Weight of slot x = 1, 2, ...: x^(a - 1) with a = 0.01, as an integer, so that no two machines differ. None
 * is near a half. */
static int64_t slot_weight(int64_t x) { return llrint(0x1p20 * pow((double)x, 0.01 - 1.0)); }

/* A slot with the odds of what is left, which then is taken. */
static int64_t draw_slot(uint64_t word, int64_t *left, int64_t slots)
{
    int64_t total = 0, slot = 0, below = left[0];
    for (int64_t i = 0; i < slots; i++)
        total += left[i];
    const int64_t drawn = random_below(word, total);
    while (below <= drawn)
        below += left[++slot];
    left[slot] = 0;
    return slot;
}

void recall_example(const recall_shape *shape, uint64_t seed, train_split split, int64_t example,
                    int32_t *tokens, int32_t *at, int32_t *target, void *scratch)
{
    const int64_t pairs = shape->pairs, slots = slots_of(shape), half = shape->words / 2;
    assert(shape->length % 2 == 0 && 4 * pairs <= shape->length);
    int64_t *left = scratch;
    int32_t *table = (int32_t *)(left + slots), *keys = table + half;
    random_stream from[4];
    for (int purpose = 0; purpose < 4; purpose++)
        from[purpose] = train_stream(seed, TRAIN_RECALL, split, purpose, example);
    random_distinct(from[FOR_KEYS], half - 1, pairs, table, keys);
    random_distinct(from[FOR_VALUES], half, pairs, table, target);
    memset(tokens, 0, (size_t)shape->length * sizeof *tokens);
    for (int64_t t = 0; t < shape->length && shape->fill; t++) {
        uint64_t word;
        random_words(from[FOR_WORDS_BETWEEN], (uint64_t)t, 1, &word);
        tokens[t] = random_below(word, shape->words);
    }
    for (int64_t i = 0; i < slots; i++)
        left[i] = slot_weight(i + 1);
    for (int64_t i = 0; i < pairs; i++) {
        uint64_t word;
        random_words(from[FOR_SLOTS], (uint64_t)i, 1, &word);
        at[i] = (int32_t)(2 * pairs + 2 * draw_slot(word, left, slots));
        target[i] += (int32_t)half;
        tokens[2 * i] = tokens[at[i]] = 1 + keys[i];
        tokens[2 * i + 1] = target[i];
    }
}
