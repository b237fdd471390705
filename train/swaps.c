/* SPDX-License-Identifier: MIT */
#include "train/data.h"

#include <assert.h>

enum { FOR_ITEMS, FOR_COUNT, FOR_SWAPS, FOR_PLACES_ASKED };

int64_t swaps_length(const swaps_shape *shape)
{
    return 4 * shape->places + 3 * (shape->places / 3) + 4 * SWAPS_QUERIES - 1;
}

int64_t swaps_scratch(const swaps_shape *shape)
{
    return (shape->items + shape->places) * (int64_t)sizeof(int32_t);
}

/* N / 6 rounded up .. N / 3 rounded down. */
static int64_t draw_count(random_stream from, int64_t places)
{
    const int64_t least = (places + 5) / 6, most = places / 3;
    uint64_t word;
    random_words(from, 0, 1, &word);
    return least + random_below(word, most - least + 1);
}

/* The n-th swap, of two different places; writes "i j ," and does it. */
static int32_t *write_swap(random_stream from, int64_t n, int64_t places, int32_t *held, int32_t *line)
{
    uint64_t words[2];
    random_words(from, (uint64_t)(2 * n), 2, words);
    const int32_t i = random_below(words[0], places);
    const int32_t drawn = random_below(words[1], places - 1), j = drawn + (drawn >= i);
    const int32_t kept = held[i];
    held[i] = held[j];
    held[j] = kept;
    *line++ = SWAPS_PLACE + i;
    *line++ = SWAPS_PLACE + j;
    *line++ = SWAPS_COMMA;
    return line;
}

static int32_t *write_holding(int32_t place, int32_t item, int32_t *line)
{
    *line++ = SWAPS_PLACE + place;
    *line++ = SWAPS_EQUALS;
    *line++ = SWAPS_ITEM + item;
    return line;
}

void swaps_example(const swaps_shape *shape, uint64_t seed, train_split split, int64_t example,
                   int32_t *tokens, int32_t *at, int32_t *target, void *scratch)
{
    assert(shape->places >= SWAPS_QUERIES && shape->places <= SWAPS_MOST);
    int32_t *table = scratch, *held = table + shape->items, *line = tokens;
    int32_t asked[SWAPS_QUERIES];
    random_stream from[4];
    for (int purpose = 0; purpose < 4; purpose++)
        from[purpose] = train_stream(seed, TRAIN_SWAPS, split, purpose, example);
    random_distinct(from[FOR_ITEMS], shape->items, shape->places, table, held);
    random_distinct(from[FOR_PLACES_ASKED], shape->places, SWAPS_QUERIES, table, asked);
    for (int32_t p = 0; p < shape->places; p++) {
        line = write_holding(p, held[p], line);
        *line++ = p + 1 < shape->places ? SWAPS_COMMA : SWAPS_HASH;
    }
    const int64_t count = draw_count(from[FOR_COUNT], shape->places);
    for (int64_t n = 0; n < count; n++)
        line = write_swap(from[FOR_SWAPS], n, shape->places, held, line);
    line[-1] = SWAPS_HASH;
    for (int i = 0; i < SWAPS_QUERIES; i++) {
        at[i] = (int32_t)(line - tokens) + 1;
        target[i] = SWAPS_ITEM + held[asked[i]];
        line = write_holding(asked[i], held[asked[i]], line);
        if (i + 1 < SWAPS_QUERIES) *line++ = SWAPS_COMMA;
    }
    for (; line < tokens + swaps_length(shape); line++)
        *line = SWAPS_PAD;
}
