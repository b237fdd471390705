/* SPDX-License-Identifier: MIT */
#include "train/batch.h"

#include "train/cuda/data.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

int64_t source_length(const train_source *from)
{
    switch (from->task) {
    case TRAIN_REGRESSION: return from->regression.length + from->regression.queries;
    case TRAIN_SWAPS: return swaps_length(&from->swaps);
    case TRAIN_TEXT: return from->text.length;
    default: return from->recall.length;
    }
}

int64_t source_answers(const train_source *from)
{
    int64_t most = 0;
    for (int i = 0; i < RECALL_PARTS; i++) {
        const int64_t answers = source_part_answers(from, i);
        if (answers > most) most = answers;
    }
    return most;
}

int64_t source_words(const train_source *from)
{
    switch (from->task) {
    case TRAIN_REGRESSION: return 0;
    case TRAIN_SWAPS: return SWAPS_ITEM + from->swaps.items;
    case TRAIN_TEXT: return from->text.words;
    default: return from->recall.words;
    }
}

int64_t source_examples(const train_source *from, train_split split)
{
    int64_t count = 0;
    for (int i = 0; i < RECALL_PARTS; i++)
        count += from->part[i].examples[split];
    return count;
}

int source_part(const train_source *from, train_split split, int64_t example)
{
    int part = 0;
    if (from->task != TRAIN_RECALL) return part;
    for (; part < RECALL_PARTS - 1 && example >= from->part[part].examples[split]; part++)
        example -= from->part[part].examples[split];
    assert(example < from->part[part].examples[split]);
    return part;
}

int64_t source_part_answers(const train_source *from, int part)
{
    switch (from->task) {
    case TRAIN_REGRESSION: return from->regression.queries;
    case TRAIN_SWAPS: return SWAPS_QUERIES;
    case TRAIN_TEXT: return from->text.length;
    default: return from->part[part].pairs;
    }
}

static int64_t columns_of(const train_source *from)
{
    return from->regression.dim_x + from->regression.dim_y;
}

/* Of one thread, a whole number of doubles. Recall has the most slots where it has the fewest pairs. */
static int64_t scratch_of(const train_source *from)
{
    const regression_shape *regression = &from->regression;
    recall_shape recall = from->recall;
    recall.pairs = 0;
    int64_t bytes;
    switch (from->task) {
    case TRAIN_REGRESSION:
        bytes = regression_scratch(regression) +
                (int64_t)sizeof(double) *
                    (source_length(from) * columns_of(from) + regression->queries * regression->dim_y);
        break;
    case TRAIN_SWAPS: bytes = swaps_scratch(&from->swaps); break;
    case TRAIN_TEXT: bytes = 0; break;
    default: bytes = recall_scratch(&recall) + (int64_t)sizeof(int32_t) * source_answers(from);
    }
    return (bytes + 7) / 8 * 8;
}

/* What a GPU is told. */
static void take_requests(const train_batch *b, batch_arrays *a, memory *room)
{
    a->counts = memory_take(room, b->models, sizeof *a->counts);
    a->requests = memory_take(room, b->models, sizeof *a->requests);
    a->examples = memory_take(room, b->models * b->size, sizeof *a->examples);
}

static void take_arrays(const train_batch *b, batch_arrays *a, memory *room)
{
    const train_source *from = &b->from;
    const int64_t rows = b->size * source_length(from), answers = b->size * source_answers(from);
    const bool words = source_words(from) > 0;
    a->tokens = memory_take(room, words ? b->models * rows : 0, sizeof *a->tokens);
    a->at = memory_take(room, b->models * answers, sizeof *a->at);
    a->targets = memory_take(room, b->models * answers, sizeof *a->targets);
    a->x = memory_matrix(room, b->on->dtype, b->models, words ? 0 : rows, columns_of(from));
    a->y = memory_matrix(room, b->on->dtype, b->models, words ? 0 : answers, from->regression.dim_y);
}

/* A GPU makes the examples that are a function of numbers alone, and is sent all others. */
static bool made_here(const train_batch *b) { return !b->on->gpu || b->from.task == TRAIN_TEXT; }

static void take_all(train_batch *b)
{
    take_requests(b, &b->here, &b->host);
    const size_t requests = b->host.used;
    if (made_here(b)) take_arrays(b, &b->here, &b->host);
    b->sent = made_here(b) ? b->host.used : requests;
    if (b->on->gpu) {
        take_requests(b, &b->there, &b->room);
        take_arrays(b, &b->there, &b->room);
    } else {
        b->there = b->here;
    }
    if (!made_here(b)) return;
    b->scratch_bytes = scratch_of(&b->from);
    if (b->scratch_bytes > 0) b->scratch = memory_take(&b->host, b->on->threads, (size_t)b->scratch_bytes);
}

bool batch_open(train_batch *b, const machine *on, const train_source *from, int64_t models, int64_t size)
{
    static const machine host = { 0 };
    *b = (train_batch){ .on = on, .from = *from, .models = models, .size = size };
    take_all(b);
    if (!memory_open(&b->host, &host)) return false;
    if (on->gpu && !memory_open(&b->room, on)) {
        batch_close(b);
        return false;
    }
    take_all(b);
    return true;
}

void batch_close(train_batch *b)
{
    memory_close(&b->room);
    memory_close(&b->host);
}

/* Example i of the batch: the queries are its last rows. */
static void fill_regression(train_batch *b, int64_t model, int64_t i, const train_source *from, uint64_t seed,
                            train_split split, int64_t example, void *scratch)
{
    regression_shape shape = from->regression;
    const int64_t length = source_length(from), queries = shape.queries;
    double *x = scratch, *y = x + length * columns_of(from);
    const batch_arrays *to = &b->here;
    if (split == TRAIN_SPLIT_TEST) shape.noise = 0;
    regression_example(&shape, seed, split, example, x, y, y + queries * shape.dim_y);
    matrix_set(to->x, model * to->x.model + i * length * to->x.row, x, length * to->x.row);
    matrix_set(to->y, model * to->y.model + i * queries * to->y.row, y, queries * to->y.row);
    for (int64_t n = 0; n < queries; n++)
        to->at[model * to->y.rows + i * queries + n] = (int32_t)(i * length + shape.length + n);
}

static void fill_words(train_batch *b, int64_t model, int64_t i, const train_source *from, uint64_t seed,
                       train_split split, int64_t example, void *scratch)
{
    const int64_t length = source_length(from), answers = source_answers(from);
    int32_t *tokens = b->here.tokens + (model * b->size + i) * length;
    int32_t *at = b->here.at + (model * b->size + i) * answers;
    int32_t *targets = b->here.targets + (model * b->size + i) * answers;
    const int64_t count = source_part_answers(from, source_part(from, split, example));
    if (from->task == TRAIN_SWAPS) {
        swaps_example(&from->swaps, seed, split, example, tokens, at, targets, scratch);
    } else if (from->task == TRAIN_TEXT) {
        text_example(&from->text, seed, split, example, tokens, targets);
        for (int32_t n = 0; n < (int32_t)length; n++)
            at[n] = n;
    } else {
        recall_shape shape = from->recall;
        shape.pairs = count;
        recall_example(&shape, seed, split, example, tokens, at, targets, scratch);
    }
    for (int64_t n = 0; n < answers; n++) {
        at[n] = n < count ? at[n] + (int32_t)(i * length) : -1;
        if (n >= count) targets[n] = -1;
    }
}

static int64_t count_answers(const train_source *from, train_split split, const int32_t *examples,
                             int64_t size)
{
    int64_t count = 0;
    for (int64_t i = 0; i < size; i++)
        count += source_part_answers(from, source_part(from, split, examples[i]));
    return count;
}

static void request(train_batch *b, int64_t model, const train_source *from, uint64_t seed, train_split split,
                    const int32_t *examples)
{
    const regression_shape *shape = &from->regression;
    const int64_t segments = from->task == TRAIN_REGRESSION ? shape->length / shape->segment : 1;
    const double noise = split == TRAIN_SPLIT_TEST ? 0 : shape->noise;
    b->here.requests[model] = (batch_request){ seed, shape->segment, noise, split };
    memcpy(b->here.examples + model * b->size, examples, (size_t)b->size * sizeof *examples);
    if (segments > b->segments) b->segments = segments;
}

void batch_send(train_batch *b)
{
    const batch_size size = { b->models, b->size, source_length(&b->from), source_answers(&b->from),
                              b->segments };
    if (!b->on->gpu) return;
    machine_upload(b->on, b->there.counts, b->here.counts, b->sent);
    if (!made_here(b)) gpu_fill(b->on, &b->from, &size, &b->there);
    b->segments = 0;
}

void batch_fill(train_batch *b, int64_t model, const train_source *from, uint64_t seed, train_split split,
                const int32_t *examples)
{
    const bool words = source_words(from) > 0;
    assert(source_length(from) == source_length(&b->from) &&
           source_answers(from) == source_answers(&b->from));
    b->here.counts[model] = count_answers(from, split, examples, b->size);
    if (!made_here(b)) {
        request(b, model, from, seed, split, examples);
        return;
    }
#pragma omp parallel for num_threads(b->on->threads) schedule(static)
    for (int64_t i = 0; i < b->size; i++) {
        void *scratch = b->scratch + omp_get_thread_num() * b->scratch_bytes;
        if (words)
            fill_words(b, model, i, from, seed, split, examples[i], scratch);
        else
            fill_regression(b, model, i, from, seed, split, examples[i], scratch);
    }
}
