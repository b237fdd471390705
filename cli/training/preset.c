/* SPDX-License-Identifier: MIT */
#include "cli/training/preset.h"

#include <assert.h>
#include <string.h>

enum { LENGTHS = 4, RATES = 4 };

/* What the presets of a task say; 0 ends a list. */
typedef struct preset {
    int64_t lengths[LENGTHS + 1];
    double rates[RATES + 1];
    int64_t seeds, steps, tests;
    double stop;
} preset;

/* By task - TRAIN_REGRESSION; steps are 100, 32 and 64 epochs in the paper. */
static const preset presets[][3] = {
    { { { 32 }, { 3e-3 }, 1, 500, 20, 0 },
      { { 128 }, { 5e-4, 1e-3 }, 1, 4000, 10, 0 },
      { { 64, 128, 256, 512 }, { 5e-5, 1e-4, 5e-4, 1e-3 }, 3, 39000, 0, 0 } },
    { { { 16 }, { 1e-3 }, 1, 1600, 20, 0 },
      { { 64, 256 }, { 5e-4, 1e-3 }, 1, 4000, 10, 0.99 },
      { { 64, 128, 256, 512 }, { 1e-4, 5e-4, 1e-3 }, 3, 14976, 0, 0 } },
    { { { 8 }, { 3e-3 }, 1, 1000, 20, 0 },
      { { 16, 48 }, { 5e-4, 1e-3 }, 1, 3000, 10, 0 },
      { { 16, 24, 48, 96 }, { 1e-4, 5e-4, 1e-3 }, 3, 24960, 0, 0 } },
};

static const char *const names[] = { "context", "recall", "swaps" };

static const preset *preset_of(train_task task, plan_preset which)
{
    return &presets[task - TRAIN_REGRESSION][which];
}

bool preset_train(plan *p, const mixer *row)
{
    if (p->mechanism_count == PLAN_MECHANISMS) return false;
    /* The last to leave its plateau. */
    const bool late = p->preset == PLAN_TINY && p->task == TRAIN_RECALL && row->mechanism == LOAM_SOFTMAX;
    p->mechanisms[p->mechanism_count++] = (plan_mechanism){ row, late
                                                                     ? 2500
                                                                     : preset_of(p->task, p->preset)->steps };
    return true;
}

static void train_named(plan *p, const char *const *list)
{
    for (; *list; list++)
        preset_train(p, mixer_find(*list));
}

void preset_mechanisms(plan *p, bool all)
{
    static const char *const tiny[] = { "softmax", "lla", "gated-delta", NULL };
    static const char *const paper[] = { "softmax", "lla", "mamba-2", "gla", "gated-delta", "hyena", NULL };
    static const char *const more[] = { "linear", "parallax", "mesa", NULL };
    train_named(p, p->preset == PLAN_TINY ? tiny : paper);
    if (all) train_named(p, more);
}

void preset_plan(plan *p, train_task task, plan_preset which)
{
    const preset *from = preset_of(task, which);
    *p = (plan){ .name = names[task - TRAIN_REGRESSION], .task = task, .preset = which };
    p->options = trainer_options_default(NULL);
    p->options.stop = from->stop;
    p->tests = from->tests;
    for (; from->rates[p->rate_count] > 0; p->rate_count++)
        p->rates[p->rate_count] = from->rates[p->rate_count];
    for (; p->seed_count < from->seeds; p->seed_count++)
        p->seeds[p->seed_count] = (uint64_t)p->seed_count + 1;
    if (which != PLAN_TINY) return;
    p->options.warm = 50;
    p->options.shape.width = task == TRAIN_REGRESSION ? 32 : 64;
    p->options.shape.batch = task == TRAIN_REGRESSION ? 32 : 64;
}

int64_t preset_steps(train_task task, plan_preset which) { return preset_of(task, which)->steps; }

const int64_t *preset_lengths(train_task task, plan_preset which, int *count)
{
    const preset *from = preset_of(task, which);
    for (*count = 0; from->lengths[*count] > 0;)
        ++*count;
    return from->lengths;
}

int preset_sizes(train_task task, plan_preset which, int64_t length, int64_t *sizes)
{
    const bool tiny = which == PLAN_TINY;
    int count = 0;
    if (task == TRAIN_SWAPS) {
        sizes[count++] = length;
    } else if (tiny) {
        sizes[count++] = length / 4;
    } else {
        /* L/8 .. L pairs of a segment, or L/16 .. L/4 pairs in all. */
        const bool segments = task == TRAIN_REGRESSION;
        for (int64_t part = segments ? 8 : 16; part >= (segments ? 1 : 4); part /= 2)
            sizes[count++] = length / part;
    }
    return count;
}

/* ---- cells */

/* Of one size. */
static train_source source_of(const plan *p, int64_t length, int64_t size, bool fill)
{
    const bool tiny = p->preset == PLAN_TINY;
    const int64_t channels = tiny ? 4 : 32, tiny_examples = p->task == TRAIN_REGRESSION ? 12800 : 32000;
    train_source from = { .task = p->task };
    if (p->task == TRAIN_REGRESSION)
        from.regression = (regression_shape){ length, size, channels, channels, tiny ? 8 : 16, 0.1 };
    else if (p->task == TRAIN_SWAPS)
        from.swaps = (swaps_shape){ .places = size, .items = tiny ? 64 : 8192 };
    else
        from.recall = (recall_shape){ .length = length, .words = tiny ? 64 : 8192, .fill = fill };
    from.part[0].pairs = p->task == TRAIN_RECALL ? size : 0;
    from.part[0].examples[TRAIN_SPLIT_TRAIN] = tiny ? tiny_examples : 100000;
    from.part[0].examples[TRAIN_SPLIT_TEST] = tiny ? 512 : 1000;
    return from;
}

static void add_cell(plan *p, const train_source *from, int64_t length, double share)
{
    p->cells[p->cell_count++] = (plan_cell){ .from = *from,
                                             .length = p->task == TRAIN_SWAPS ? source_length(from) : length,
                                             .share = share };
}

/* Of recall the n-th number of pairs has n times as many examples as the first. */
static void add_recall(plan *p, int64_t length, const int64_t *sizes, int count, bool fill, bool separate)
{
    const int64_t first = p->preset == PLAN_TINY ? 32000 : 20000, all = count * (count + 1) / 2;
    train_source mixed = source_of(p, length, 0, fill);
    for (int i = 0; i < count; i++) {
        train_source one = source_of(p, length, sizes[i], fill);
        one.part[0].examples[TRAIN_SPLIT_TRAIN] = (i + 1) * first;
        mixed.part[i] = one.part[0];
        if (separate) add_cell(p, &one, length, (double)(i + 1) / (double)all);
    }
    if (!separate) add_cell(p, &mixed, length, 1);
}

bool preset_add(plan *p, int64_t length, const int64_t *sizes, int count, bool fill, bool separate)
{
    if (p->cell_count + count > PLAN_CELLS) return false;
    if (p->task == TRAIN_RECALL) {
        add_recall(p, length, sizes, count, fill, separate);
    } else {
        for (int i = 0; i < count; i++) {
            const train_source from = source_of(p, length, sizes[i], fill);
            add_cell(p, &from, length, 1);
        }
    }
    return true;
}

/* ---- what may be left out */

enum { SHORT_STEPS = 3000 };

static const char *drop_rate(plan *p)
{
    if (p->rate_count < 2) return NULL;
    memmove(p->rates, p->rates + 1, (size_t)--p->rate_count * sizeof *p->rates);
    return "the lowest rate";
}

static const char *drop_length(plan *p)
{
    const int64_t longest = p->cells[p->cell_count - 1].length;
    if (p->cells[0].length == longest) return NULL;
    while (p->cells[p->cell_count - 1].length == longest)
        p->cell_count--;
    return p->task == TRAIN_SWAPS ? "the largest N" : "the largest L";
}

static const char *drop_steps(plan *p)
{
    const char *text = NULL;
    for (int i = 0; i < p->mechanism_count; i++)
        if (p->mechanisms[i].steps > SHORT_STEPS) {
            p->mechanisms[i].steps = SHORT_STEPS;
            text = "steps beyond 3000";
        }
    return text;
}

const char *preset_drop(plan *p)
{
    const char *text = NULL;
    if (p->task != TRAIN_RECALL) text = drop_rate(p);
    if (!text && p->task != TRAIN_REGRESSION) text = drop_length(p);
    return text ? text : drop_steps(p);
}
