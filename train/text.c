/* SPDX-License-Identifier: MIT */
#include "train/data.h"

#include <assert.h>

enum { FOR_PLACE = 1 };

/* Every window has a token after its last one. */
int64_t text_windows(const text_shape *shape) { return (shape->count[TRAIN_SPLIT_TEST] - 1) / shape->length; }

static int64_t first_token(const text_shape *shape, uint64_t seed, train_split split, int64_t example)
{
    if (split == TRAIN_SPLIT_TEST) return example * shape->length;
    uint64_t word;
    random_words(train_stream(seed, TRAIN_TEXT, split, FOR_PLACE, example), 0, 1, &word);
    return random_below(word, shape->count[split] - shape->length);
}

void text_example(const text_shape *shape, uint64_t seed, train_split split, int64_t example, int32_t *tokens,
                  int32_t *target)
{
    const int64_t first = first_token(shape, seed, split, example);
    assert(first + shape->length < shape->count[split]);
    const uint16_t *from = shape->tokens[split] + first;
    for (int64_t i = 0; i < shape->length; i++)
        tokens[i] = from[i], target[i] = from[i + 1];
}
