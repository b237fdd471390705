/* SPDX-License-Identifier: MIT
 * loam-train [MIXER...]: GPU time of a step of training: recall with 8192 words, 2 layers 128 wide, 256
 * examples of 64 or 512 tokens, alone and in stacks; of mixers that are named also which operations it goes
 * to. loam-train 34m MIXER...: the same of `loam lm train --size 34m`, 128 windows of 1024 tokens. The step
 * is a recording, replayed; the shares are of one that is launched while the stream waits, with events around
 * each operation, so that the host has no part in them. */
#include "bench/train_times.h"
#include "cli/device.h"
#include "train/model.h"
#include "train/optimiser.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 256, EXAMPLES = 120000, MOST_MODELS = 16, HELD_MS = 60 };
enum { TEXT_WORDS = 16384, TEXT_TOKENS = 1 << 20 };

/* What is timed: a model with its options, and how many replays. */
typedef struct work {
    const char *name;
    model_shape shape;
    mixer_options mixing;
    int replays;
} work;

typedef struct rig {
    machine on;
    model_shape shape;
    train_model *net;
    train_batch data;
    optimiser o;
} rig;

static int fail(const char *what, const char *text) { return fprintf(stderr, "%s: %s\n", what, text), 1; }

static work recall_work(int64_t models, int64_t length)
{
    const train_source from = { .task = TRAIN_RECALL,
                                .recall = { .length = length, .words = 8192, .fill = true },
                                .part = { { length / 16, { 20000, 1000 } },
                                          { length / 8, { 40000, 1000 } },
                                          { length / 4, { 60000, 1000 } } } };
    return (work){ .name = "recall",
                   .shape = { from, models, BATCH, .layers = 2, .width = 128, .heads = 2 },
                   .mixing = { .ridge_least = 0.01, .ridge_most = 1 },
                   .replays = 40 };
}

/* What `loam lm train --size 34m` trains, on words of which, as in texts, some are frequent: the cube of a
 * uniform number. */
static work text_work(uint16_t *tokens)
{
    const text_shape text = { 1024, TEXT_WORDS, { tokens, tokens }, { TEXT_TOKENS, TEXT_TOKENS }, 0 };
    const train_source from = { .task = TRAIN_TEXT, .text = text, .part = { { 0, { EXAMPLES, 0 } } } };
    const mixer_options gpt2 = {
        .ridge_least = 0.01, .ridge_most = 1, .layer_norm = true, .mlp = true, .short_filter = true
    };
    uint64_t state = 1;
    for (int i = 0; i < TEXT_TOKENS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const double part = (double)(state >> 11) * 0x1p-53;
        tokens[i] = (uint16_t)(part * part * part * TEXT_WORDS);
    }
    return (work){ .name = "34m",
                   .shape = { from, .models = 1, .batch = 128, .layers = 8, .width = 512, .heads = 8 },
                   .mixing = gpt2,
                   .replays = 10 };
}

static void fill(rig *r)
{
    int32_t order[EXAMPLES], examples[BATCH];
    train_epoch_order(1, r->shape.from.task, 0, EXAMPLES, order);
    memcpy(examples, order, sizeof examples);
    for (int64_t m = 0; m < r->shape.models; m++)
        batch_fill(&r->data, m, &r->data.from, 1, TRAIN_SPLIT_TRAIN, examples);
    batch_send(&r->data);
}

static int rig_open(rig *r, const mixer *row, const work *w, bool timed)
{
    const optimiser_options how = { .warm = 100, .steps = 4000, .decay = 0.1, .clip = 1 };
    double peak[MOST_MODELS];
    uint64_t seeds[MOST_MODELS];
    loam_error error;
    int count;
    *r = (rig){ .shape = w->shape };
    for (int m = 0; m < MOST_MODELS; m++)
        peak[m] = 1e-3, seeds[m] = 1;
    if (machine_cuda(&r->on, LOAM_BF16, &error)) return fail("machine", error.text);
    if (timed) r->on.op = train_times_wrap(&r->on);
    if (model_create(&r->net, &r->on, row, &r->shape, &w->mixing, seeds, &error))
        return fail(row->name, error.text);
    parameter *list = model_parameters(r->net, &count);
    if (!batch_open(&r->data, &r->on, &r->shape.from, r->shape.models, r->shape.batch))
        return fail("batch", "out of memory");
    if (!optimiser_open(&r->o, &r->on, list, count, &how, peak, NULL))
        return fail("optimiser", "out of memory");
    fill(r);
    return 0;
}

static void rig_close(rig *r)
{
    optimiser_close(&r->o);
    batch_close(&r->data);
    model_destroy(r->net);
    machine_close(&r->on);
}

static int step(rig *r)
{
    loam_error error;
    if (model_gradients(r->net, &r->data, &error)) return fail("step", error.text);
    optimiser_step(&r->o);
    return 0;
}

static int wait_for(const rig *r)
{
    loam_error error;
    float loss[2];
    if (machine_download(&r->on, loss, model_results(r->net).data, sizeof loss, &error))
        return fail("GPU", error.text);
    return 0;
}

static double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds of a recorded step. */
static int time_steps(rig *r, int replays, double *each)
{
    cudaEvent_t begin, end;
    cudaStream_t stream = machine_stream(&r->on);
    machine_recording *recorded;
    loam_error error;
    float took = 0;
    machine_record_begin(&r->on);
    if (step(r)) return 1;
    if (machine_record_end(&r->on, &recorded, &error)) return fail("recording", error.text);
    for (int i = 0; i < 3; i++)
        machine_replay(&r->on, recorded);
    cudaEventCreate(&begin), cudaEventCreate(&end);
    cudaEventRecord(begin, stream);
    for (int i = 0; i < replays; i++)
        machine_replay(&r->on, recorded);
    cudaEventRecord(end, stream);
    if (wait_for(r)) return 1;
    cudaEventElapsedTime(&took, begin, end);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    machine_forget(recorded);
    *each = (double)took / replays;
    return 0;
}

static void CUDART_CB sleep_here(void *unused)
{
    (void)unused;
    const double end = now() + 1e-3 * HELD_MS;
    while (now() < end)
        continue;
}

static int show_shares(rig *r, double whole)
{
    if (step(r) || wait_for(r)) return 1;
    train_times_reset();
    cudaLaunchHostFunc(machine_stream(&r->on), sleep_here, NULL);
    if (step(r)) return 1;
    train_times_print(&r->on, whole, 0.002);
    return wait_for(r);
}

static int measure(const mixer *row, const work *w, bool shares)
{
    const int64_t length = source_length(&w->shape.from);
    rig r;
    double each = 0;
    if (rig_open(&r, row, w, false)) return 1;
    int failed = step(&r) || wait_for(&r) || time_steps(&r, w->replays, &each);
    rig_close(&r);
    if (failed) return 1;
    const double tokens = (double)(w->shape.models * w->shape.batch * length);
    printf("%-14s %s T %4d, models %2d: %8.3f ms a step, %7.2f M tokens/s, %6.2f ns a token\n", row->name,
           w->name, (int)length, (int)w->shape.models, each, 1e-3 * tokens / each, 1e6 * each / tokens);
    if (shares) {
        if (rig_open(&r, row, w, true)) return 1;
        failed = show_shares(&r, each);
        rig_close(&r);
    }
    fflush(stdout);
    return failed;
}

static int measure_recall(const mixer *row, bool shares)
{
    static const int64_t shapes[][2] = { { 1, 64 }, { 16, 64 }, { 1, 512 }, { 2, 512 } };
    int failed = 0;
    for (int i = 0; i < 4; i++) {
        const work w = recall_work(shapes[i][0], shapes[i][1]);
        failed |= measure(row, &w, shares);
    }
    return failed;
}

static int measure_text(const mixer *row)
{
    uint16_t *tokens = malloc(TEXT_TOKENS * sizeof *tokens);
    if (!tokens) return fail("tokens", "out of memory");
    const work w = text_work(tokens);
    const int failed = measure(row, &w, true);
    free(tokens);
    return failed;
}

int main(int count, char **names)
{
    const bool text = count > 1 && strcmp(names[1], "34m") == 0;
    int failed = 0;
    if (!device_count()) return fail("loam-train", "no CUDA device");
    for (const mixer *row = mixers; row->name; row++) {
        bool asked = count == 1;
        for (int i = 1 + text; i < count; i++)
            asked = asked || strcmp(names[i], row->name) == 0;
        if (asked) failed |= text ? measure_text(row) : measure_recall(row, count > 1);
    }
    return failed;
}
