/* SPDX-License-Identifier: MIT
 * loam-train [MIXER...]: GPU time of a step of training: recall with 8192 words, 2 layers 128 wide, 256
 * examples of 64 or 512 tokens, alone and in stacks; of mixers that are named also which operations it goes
 * to. The step is a recording, replayed; the shares are of one that is launched while the stream waits, with
 * events around each operation, so that the host has no part in them. */
#include "bench/train_times.h"
#include "cli/device.h"
#include "train/model.h"
#include "train/optimiser.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 256, REPLAYS = 40, MOST_MODELS = 16, HELD_MS = 60 };

typedef struct rig {
    machine on;
    model_shape shape;
    train_model *net;
    train_batch data;
    optimiser o;
} rig;

static int fail(const char *what, const char *text) { return fprintf(stderr, "%s: %s\n", what, text), 1; }

static model_shape shape_of(int64_t models, int64_t length)
{
    return (model_shape){ .from = { .task = TRAIN_RECALL,
                                    .recall = { .length = length, .words = 8192, .fill = true },
                                    .part = { { length / 16, { 20000, 1000 } },
                                              { length / 8, { 40000, 1000 } },
                                              { length / 4, { 60000, 1000 } } } },
                          .models = models,
                          .batch = BATCH,
                          .layers = 2,
                          .width = 128,
                          .heads = 2 };
}

static void fill(rig *r)
{
    int32_t order[120000], examples[BATCH];
    train_epoch_order(1, TRAIN_RECALL, 0, 120000, order);
    memcpy(examples, order, sizeof examples);
    for (int64_t m = 0; m < r->shape.models; m++)
        batch_fill(&r->data, m, &r->data.from, 1, TRAIN_SPLIT_TRAIN, examples);
    batch_send(&r->data);
}

static int rig_open(rig *r, const mixer *row, int64_t models, int64_t length, loam_dtype dtype, bool timed)
{
    static const mixer_options usual = { .ridge_least = 0.01, .ridge_most = 1 };
    const optimiser_options how = { .warm = 100, .steps = 4000, .decay = 0.1, .clip = 1 };
    double peak[MOST_MODELS];
    uint64_t seeds[MOST_MODELS];
    loam_error error;
    int count;
    *r = (rig){ .shape = shape_of(models, length) };
    for (int m = 0; m < MOST_MODELS; m++)
        peak[m] = 1e-3, seeds[m] = 1;
    if (machine_cuda(&r->on, dtype, &error)) return fail("machine", error.text);
    if (timed) r->on.op = train_times_wrap(&r->on);
    if (model_create(&r->net, &r->on, row, &r->shape, &usual, seeds, &error))
        return fail(row->name, error.text);
    parameter *list = model_parameters(r->net, &count);
    if (!batch_open(&r->data, &r->on, &r->shape.from, models, BATCH)) return fail("batch", "out of memory");
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
static int time_steps(rig *r, double *each)
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
    for (int i = 0; i < REPLAYS; i++)
        machine_replay(&r->on, recorded);
    cudaEventRecord(end, stream);
    if (wait_for(r)) return 1;
    cudaEventElapsedTime(&took, begin, end);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    machine_forget(recorded);
    *each = (double)took / REPLAYS;
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
    train_times_print(&r->on, whole, 0.01);
    return wait_for(r);
}

static int measure(const mixer *row, int64_t models, int64_t length, loam_dtype dtype, bool shares)
{
    rig r;
    double each = 0;
    if (rig_open(&r, row, models, length, dtype, false)) return 1;
    int failed = step(&r) || wait_for(&r) || time_steps(&r, &each);
    rig_close(&r);
    if (failed) return 1;
    const double tokens = (double)(models * BATCH * length);
    printf("%-14s %s T %3d, models %2d: %8.3f ms a step, %7.2f M tokens/s, %6.2f ns a token\n", row->name,
           loam_dtype_name(dtype), (int)length, (int)models, each, 1e-3 * tokens / each, 1e6 * each / tokens);
    if (shares) {
        if (rig_open(&r, row, models, length, dtype, true)) return 1;
        failed = show_shares(&r, each);
        rig_close(&r);
    }
    fflush(stdout);
    return failed;
}

int main(int count, char **names)
{
    static const int64_t shapes[][2] = { { 1, 64 }, { 16, 64 }, { 1, 512 }, { 2, 512 } };
    int failed = 0;
    if (!device_count()) return fail("loam-train", "no CUDA device");
    for (const mixer *row = mixers; row->name; row++) {
        bool asked = count == 1;
        for (int i = 1; i < count; i++)
            asked = asked || strcmp(names[i], row->name) == 0;
        for (int i = 0; i < 4 && asked; i++)
            failed |= measure(row, shapes[i][0], shapes[i][1], LOAM_BF16, count > 1);
    }
    return failed;
}
