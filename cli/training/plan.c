/* SPDX-License-Identifier: MIT */
#include "cli/training/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

int64_t plan_runs(const plan *p)
{
    return (int64_t)p->mechanism_count * p->cell_count * p->rate_count * p->seed_count;
}

plan_run plan_run_at(const plan *p, int64_t number)
{
    plan_run run;
    run.seed = (int)(number % p->seed_count), number /= p->seed_count;
    run.rate = (int)(number % p->rate_count), number /= p->rate_count;
    run.cell = (int)(number % p->cell_count);
    run.mechanism = (int)(number / p->cell_count);
    return run;
}

int64_t plan_run_number(const plan *p, plan_run run)
{
    return (((int64_t)run.mechanism * p->cell_count + run.cell) * p->rate_count + run.rate) * p->seed_count +
           run.seed;
}

int64_t plan_tokens(const plan *p, const plan_cell *cell)
{
    return p->options.shape.batch * source_length(&cell->from);
}

int64_t plan_steps(const plan *p, int mechanism, int cell)
{
    return llround((double)p->mechanisms[mechanism].steps * p->cells[cell].share);
}

int plan_parts(const plan *p, const plan_cell *cell)
{
    int parts = 1;
    while (p->task == TRAIN_RECALL && parts < RECALL_PARTS && cell->from.part[parts].pairs > 0)
        parts++;
    return parts;
}

int64_t plan_size(const plan *p, const plan_cell *cell, int part)
{
    return p->task == TRAIN_REGRESSION ? cell->from.regression.segment
           : p->task == TRAIN_SWAPS    ? cell->from.swaps.places
                                       : cell->from.part[part].pairs;
}

/* ---- stacks */

/* Of one shape, and of as many steps: cells of a regression may differ in the segment. */
static bool same_shape(const plan *p, plan_run a, plan_run b)
{
    const plan_cell *one = &p->cells[a.cell], *other = &p->cells[b.cell];
    return a.mechanism == b.mechanism &&
           (a.cell == b.cell || (p->task == TRAIN_REGRESSION && one->length == other->length));
}

/* About 3e5 tokens in a step of 256 examples: 16 models at a length of 64, 2 at 512. */
static int64_t most_of(const plan *p, const plan_cell *cell)
{
    enum { TOKENS = 1280 };
    int64_t most = PLAN_STACK;
    if (p->stack > 0) return p->stack;
    while (most > 1 && most * source_length(&cell->from) > TOKENS)
        most /= 2;
    return most;
}

plan_stack plan_stack_at(const plan *p, int64_t first)
{
    const plan_run run = plan_run_at(p, first);
    const int64_t most = most_of(p, &p->cells[run.cell]);
    int64_t begin = first, end = first;
    while (begin > 0 && same_shape(p, plan_run_at(p, begin - 1), run))
        begin--;
    while (end < plan_runs(p) && same_shape(p, plan_run_at(p, end), run))
        end++;
    /* As few stacks as will do, of sizes as equal as can be. */
    const int64_t all = end - begin, stacks = all > most ? (all + most - 1) / most : 1;
    int64_t number = 0;
    while ((number + 1) * all / stacks + begin <= first)
        number++;
    assert(number * all / stacks + begin == first);
    return (plan_stack){ first, (number + 1) * all / stacks + begin - first };
}

static int64_t examples_of(const train_source *from)
{
    int64_t sum = 0;
    for (int i = 0; i < RECALL_PARTS; i++)
        sum += from->part[i].examples[TRAIN_SPLIT_TRAIN];
    return sum;
}

trainer_options plan_options(const plan *p, plan_stack stack)
{
    const plan_run run = plan_run_at(p, stack.first);
    trainer_options options = p->options;
    options.row = p->mechanisms[run.mechanism].row;
    options.steps = plan_steps(p, run.mechanism, run.cell);
    options.test_every = p->tests > 0 ? (options.steps + p->tests - 1) / p->tests
                                      : examples_of(&p->cells[run.cell].from) / options.shape.batch;
    return options;
}

void plan_trainees(const plan *p, plan_stack stack, trainee *each)
{
    for (int64_t m = 0; m < stack.count; m++) {
        const plan_run run = plan_run_at(p, stack.first + m);
        each[m] = (trainee){ .seed = p->seeds[run.seed],
                             .from = p->cells[run.cell].from,
                             .rate = p->options.muon ? p->adamw : p->rates[run.rate],
                             .muon_rate = p->rates[run.rate] };
    }
}

void plan_stack_name(const plan *p, plan_stack stack, char name[64])
{
    const plan_run run = plan_run_at(p, stack.first);
    snprintf(name, 64, "%s-L%" PRId64 "-%" PRId64, p->mechanisms[run.mechanism].row->name,
             p->cells[run.cell].length, stack.first);
}
