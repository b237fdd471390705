/* SPDX-License-Identifier: MIT */
#include "lm/sample.h"

#include "random/random.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float logit;
    int32_t token;
} candidate;

struct sampler {
    sampling how;
    int64_t vocabulary;
    candidate *list;
};

int sampler_open(sampler **made, const sampling *how, int64_t vocabulary, io_error *error)
{
    sampler *s = calloc(1, sizeof *s);
    *made = NULL;
    if (s) s->list = calloc((size_t)vocabulary, sizeof *s->list);
    if (!s || !s->list) {
        sampler_close(s);
        return io_fail(error, EXIT_INTERNAL, "out of memory for sampling");
    }
    s->how = *how, s->vocabulary = vocabulary;
    *made = s;
    return 0;
}

void sampler_close(sampler *s)
{
    if (!s) return;
    free(s->list);
    free(s);
}

static int32_t largest(const float *logits, int64_t count)
{
    int32_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (logits[i] > (best < 0 ? -INFINITY : logits[best])) best = (int32_t)i;
    return best;
}

/* The likeliest first; of equals, the first. */
static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Sums of e^((logit - the largest) / temperature) over the first 1, 2, ... of the list; how many of them are
 * left by top_p. total: their sum. */
static int64_t nucleus(const sampler *s, int64_t count, double *total)
{
    double all = 0;
    for (int64_t i = 0; i < count; i++)
        all += exp(((double)s->list[i].logit - (double)s->list[0].logit) / s->how.temperature);
    double sum = 0;
    int64_t n = 0;
    while (n < count && (n == 0 || sum < s->how.top_p * all)) {
        sum += exp(((double)s->list[n].logit - (double)s->list[0].logit) / s->how.temperature);
        n++;
    }
    *total = sum;
    return n;
}

int32_t sampler_next(sampler *s, const float *logits, int64_t number)
{
    if (!(s->how.temperature > 0)) return largest(logits, s->vocabulary);
    int64_t count = 0;
    for (int64_t i = 0; i < s->vocabulary; i++)
        if (logits[i] > -INFINITY) s->list[count++] = (candidate){ logits[i], (int32_t)i };
    if (count == 0) return -1;
    qsort(s->list, (size_t)count, sizeof *s->list, by_logit);
    if (s->how.top_k > 0 && s->how.top_k < count) count = s->how.top_k;
    double total, drawn;
    count = nucleus(s, count, &total);
    random_uniforms((random_stream){ s->how.seed, 0 }, (uint64_t)number, 1, &drawn);
    double left = drawn * total;
    for (int64_t i = 0; i < count; i++) {
        left -= exp(((double)s->list[i].logit - (double)s->list[0].logit) / s->how.temperature);
        if (left < 0) return s->list[i].token;
    }
    return s->list[count - 1].token;
}
