/* SPDX-License-Identifier: MIT */
#include "corpus/question.h"

#include "random/random.h"

#include <jansson.h>
#include <stdlib.h>

int32_t question_token(const question_source *s, int64_t n)
{
    return s->shard[2 * n] | s->shard[2 * n + 1] << 8;
}

int question_text(const question_source *s, int64_t first, int64_t count, buffer *text, io_error *error)
{
    int32_t *ids = malloc(((size_t)count + 1) * sizeof *ids);
    char *out;
    size_t bytes;
    text->count = 0;
    if (!ids) return io_fail(error, EXIT_INTERNAL, "out of memory for a question");
    for (int64_t i = 0; i < count; i++)
        ids[i] = question_token(s, first + i);
    int status = tokenizer_decode(s->tokenizer, ids, count, true, &out, &bytes, error);
    free(ids);
    if (status) return status;
    buffer_put(text, out, bytes);
    free(out);
    return text->failed ? io_fail(error, EXIT_INTERNAL, "out of memory for a question") : 0;
}

int64_t question_draw(const question_source *s, int64_t question, int64_t n, int64_t below)
{
    uint64_t word;
    random_words((random_stream){ s->seed, (uint64_t)question }, (uint64_t)n, 1, &word);
    return random_below(word, below);
}

static json_t *text_of(const buffer *b) { return json_stringn(b->at, b->count); }

int question_write(const question_source *s, FILE *out, int64_t question, const buffer *asked,
                   const buffer choice[QUESTION_CHOICES], io_error *error)
{
    static const char *const labels[QUESTION_CHOICES] = { "A", "B", "C", "D" };
    const int place = (int)question_draw(s, question, 0, QUESTION_CHOICES);
    const buffer *order[QUESTION_CHOICES] = { &choice[0], &choice[1], &choice[2], &choice[3] };
    order[0] = &choice[place];
    order[place] = &choice[0];
    json_t *root = json_pack("{s:o, s:{s:[o,o,o,o], s:[s,s,s,s]}, s:s}", "question", text_of(asked),
                             "choices", "text", text_of(order[0]), text_of(order[1]), text_of(order[2]),
                             text_of(order[3]), "label", labels[0], labels[1], labels[2], labels[3],
                             "answerKey", labels[place]);
    const bool whole = root && json_dumpf(root, out, JSON_COMPACT) == 0;
    json_decref(root);
    if (whole) fputc('\n', out);
    if (whole || ferror(out)) return 0;
    return io_fail(error, EXIT_INTERNAL, "out of memory for a question");
}
