/* SPDX-License-Identifier: MIT */
#include "train/data.h"

enum { FOR_ORDER = 15 };

random_stream train_stream(uint64_t seed, train_task task, train_split split, int purpose, int64_t example)
{
    const uint64_t stream = (uint64_t)task << 56 | (uint64_t)split << 52 | (uint64_t)purpose << 48 |
                            (uint64_t)example;
    return (random_stream){ seed, stream };
}

void train_epoch_order(uint64_t seed, train_task task, int64_t epoch, int64_t n, int32_t *order)
{
    const random_stream from = train_stream(seed, task, TRAIN_SPLIT_TRAIN, FOR_ORDER, epoch);
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t word;
        random_words(from, (uint64_t)i, 1, &word);
        const int32_t j = random_below(word, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}
