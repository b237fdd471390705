/* SPDX-License-Identifier: MIT */
#include "random/random.h"

#include <Random123/philox.h>
#include <Random123/u01fixedpt.h>
#include <math.h>

static const double two_pi = 6.283185307179586477;

static uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

static void word_pair(random_stream from, uint64_t block, uint64_t pair[2])
{
    const philox4x32_key_t key = { { (uint32_t)from.seed, (uint32_t)(from.seed >> 32) } };
    const philox4x32_ctr_t counter = { { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)from.stream,
                                         (uint32_t)(from.stream >> 32) } };
    const philox4x32_ctr_t bits = philox4x32(counter, key);
    pair[0] = join(bits.v[0], bits.v[1]);
    pair[1] = join(bits.v[2], bits.v[3]);
}

void random_words(random_stream from, uint64_t first, int64_t count, uint64_t *out)
{
    uint64_t pair[2] = { 0 };
    for (int64_t i = 0; i < count; i++) {
        const uint64_t n = first + (uint64_t)i;
        if (i == 0 || n % 2 == 0) word_pair(from, n / 2, pair);
        out[i] = pair[n % 2];
    }
}

void random_uniforms(random_stream from, uint64_t first, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t word;
        random_words(from, first + (uint64_t)i, 1, &word);
        out[i] = u01fixedpt_open_open_64_double(word);
    }
}

static void normal_pair(random_stream from, uint64_t block, double pair[2])
{
    uint64_t words[2];
    word_pair(from, block, words);
    const double radius = sqrt(-2 * log(u01fixedpt_open_open_64_double(words[0])));
    const double angle = two_pi * u01fixedpt_open_open_64_double(words[1]);
    pair[0] = radius * cos(angle);
    pair[1] = radius * sin(angle);
}

void random_normals(random_stream from, uint64_t first, int64_t count, double *out)
{
    double pair[2];
    int64_t done = 0;
    if (count > 0 && first % 2 == 1) {
        normal_pair(from, first / 2, pair);
        out[done++] = pair[1];
    }
    while (done < count) {
        normal_pair(from, (first + (uint64_t)done) / 2, pair);
        out[done++] = pair[0];
        if (done < count) out[done++] = pair[1];
    }
}

int32_t random_below(uint64_t word, int64_t n) { return (int32_t)((word >> 32) * (uint64_t)n >> 32); }

void random_distinct(random_stream from, int64_t n, int64_t count, int32_t *table, int32_t *out)
{
    for (int64_t i = 0; i < n; i++)
        table[i] = (int32_t)i;
    for (int64_t i = 0; i < count; i++) {
        uint64_t word;
        random_words(from, (uint64_t)i, 1, &word);
        const int64_t j = i + random_below(word, n - i);
        out[i] = table[j];
        table[j] = table[i];
    }
}
