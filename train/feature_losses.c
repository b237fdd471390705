/* SPDX-License-Identifier: MIT */
#include "train/feature_losses.h"

#include "train/cuda/feature_loss.h"

#include <stdlib.h>

/* Called twice: to add up the memory, and to take it (train/machine.h). */
static void take(feature_losses *l)
{
    memory *const from = &l->room;
    const int64_t rows = l->heads * l->windows * l->tokens, problems = l->heads * l->batch * l->queries;
    l->list = memory_take(from, l->heads, sizeof *l->list);
    l->x = memory_take(from, rows * l->queries, (size_t)l->row * sizeof *l->x);
    l->y = memory_take(from, rows, (size_t)l->row * sizeof *l->y);
    l->exact = memory_take(from, rows * l->queries, sizeof *l->exact);
    if (l->window > 0) {
        l->near = memory_take(from, rows * l->queries, sizeof *l->near);
        l->gains = memory_take(from, l->heads * l->queries, sizeof *l->gains);
    }
    l->largest = memory_take(from, l->heads, sizeof *l->largest);
    l->losses = memory_take(from, l->heads, sizeof *l->losses);
    l->chosen = memory_take(from, l->batch, sizeof *l->chosen);
    l->scratch = memory_take(from, gpu_feature_blocks(l),
                             (size_t)gpu_feature_scratch(l) * sizeof *l->scratch);
    l->parts = memory_take(from, problems, (size_t)(l->most * (l->channels + 1) + 1) * sizeof *l->parts);
}

/* More features first, and among equals as they were given. */
static int compare(const void *a, const void *b)
{
    const feature_head *one = a, *other = b;
    if (one->features != other->features) return one->features > other->features ? -1 : 1;
    return one->place < other->place ? -1 : 1;
}

bool feature_losses_open(feature_losses *l, feature_head *head)
{
    l->row = (l->channels + 3) / 4 * 4;
    for (int64_t i = 0; i < l->heads; i++) {
        head[i].place = i;
        if (head[i].features > l->most) l->most = head[i].features;
    }
    qsort(head, (size_t)l->heads, sizeof *head, compare);
    take(l);
    if (!memory_open(&l->room, l->on)) {
        *l = (feature_losses){ 0 };
        return false;
    }
    take(l);
    machine_upload(l->on, l->list, head, (size_t)l->heads * sizeof *head);
    if (l->window > 0) {
        const int64_t queries = l->heads * l->queries;
        machine_upload(l->on, l->gains, l->gain, (size_t)queries * sizeof *l->gain);
    }
    return true;
}

void feature_losses_close(feature_losses *l)
{
    memory_close(&l->room);
    *l = (feature_losses){ 0 };
}

void feature_losses_rows(const feature_losses *l, int64_t head, int64_t n, const feature_rows *from)
{
    const int64_t each = l->windows * l->tokens * l->row;
    gpu_feature_rows(l, n < 0 ? l->y + head * each : l->x + (head * l->queries + n) * each, from);
}

void feature_losses_prepare(const feature_losses *l) { gpu_feature_exact(l); }

void feature_losses_run(const feature_losses *l, const int32_t *windows)
{
    machine_upload(l->on, l->chosen, windows, (size_t)l->batch * sizeof *windows);
    gpu_feature_losses(l);
}
