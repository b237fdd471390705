/* SPDX-License-Identifier: MIT
 * What the options of a trained experiment come to: cells, steps, stacks, and what is left out first. */
#include "cli/training/preset.h"
#include "tests/training/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The plan of the options. */
static plan read_plan(train_task task, const char *options)
{
    static request r;
    read_options(&r, task, options);
    return r.plan;
}

static plan_stack expect_stack(const plan *p, int64_t first, int64_t count)
{
    const plan_stack stack = plan_stack_at(p, first);
    assert_int_equal(stack.first, first);
    assert_int_equal(stack.count, count);
    return stack;
}

/* Of the paper: 192 runs a mechanism, steps of 100 epochs with a test after each. */
static void context_of_the_paper(void **state)
{
    (void)state;
    static const int64_t lengths[] = { 64, 128, 256, 512 }, stacks[] = { 16, 8, 4, 2 };
    const plan p = read_plan(TRAIN_REGRESSION, "context --paper");
    assert_int_equal(p.mechanism_count, 6);
    assert_int_equal(plan_runs(&p), 6 * 192);
    for (int cell = 0; cell < 16; cell++) {
        const regression_shape *shape = &p.cells[cell].from.regression;
        assert_int_equal(shape->length, lengths[cell / 4]);
        assert_int_equal(shape->segment, lengths[cell / 4] >> (3 - cell % 4));
        assert_int_equal(source_length(&p.cells[cell].from), lengths[cell / 4] + 16);
        /* 48 runs of a length: stacks of equal size. */
        expect_stack(&p, plan_run_number(&p, (plan_run){ 1, cell / 4 * 4, 0, 0 }), stacks[cell / 4]);
    }
    const trainer_options options = plan_options(&p, plan_stack_at(&p, 0));
    assert_int_equal(options.steps, 39000);
    assert_int_equal(options.test_every, 390);
    assert_string_equal(options.row->name, "softmax");
}

static void recall_of_the_paper(void **state)
{
    (void)state;
    plan p = read_plan(TRAIN_RECALL, "recall --paper");
    assert_int_equal(plan_runs(&p), 6 * 36);
    const train_source *from = &p.cells[0].from;
    for (int part = 0; part < 3; part++) {
        assert_int_equal(from->part[part].pairs, 4 << part);
        assert_int_equal(from->part[part].examples[TRAIN_SPLIT_TRAIN], 20000 * (part + 1));
        assert_int_equal(from->part[part].examples[TRAIN_SPLIT_TEST], 1000);
        assert_int_equal(plan_size(&p, &p.cells[3], part), 32 << part);
    }
    trainer_options options = plan_options(&p, plan_stack_at(&p, 0));
    assert_int_equal(options.steps, 14976);
    assert_int_equal(options.test_every, 468);
    /* Three times the runs, and as many steps in all. */
    p = read_plan(TRAIN_RECALL, "recall --paper --separate --length 64");
    int64_t steps = 0;
    assert_int_equal(plan_runs(&p), 6 * 27);
    for (int cell = 0; cell < 3; cell++) {
        const plan_stack stack = plan_stack_at(&p, plan_run_number(&p, (plan_run){ 0, cell, 0, 0 }));
        options = plan_options(&p, stack);
        assert_int_equal(stack.count, 9);
        assert_int_equal(plan_parts(&p, &p.cells[cell]), 1);
        assert_int_equal(options.test_every * 32, options.steps);
        steps += options.steps;
    }
    assert_int_equal(steps, 14976);
}

static void swaps_of_the_paper(void **state)
{
    (void)state;
    static const int64_t lengths[] = { 110, 151, 271, 511 };
    const plan p = read_plan(TRAIN_SWAPS, "swaps --paper");
    assert_int_equal(plan_runs(&p), 6 * 36);
    for (int cell = 0; cell < 4; cell++)
        assert_int_equal(p.cells[cell].length, lengths[cell]);
    const trainer_options options = plan_options(&p, plan_stack_at(&p, 0));
    assert_int_equal(options.steps, 24960);
    assert_int_equal(options.test_every, 390);
}

/* Every run is in one stack, with its own rate, seed and data. */
static void stacks_hold_all_runs(void **state)
{
    (void)state;
    static const char *const options[] = {
        "context --paper",
        "context --reduced",
        "context --length 32,64 --segment 16,32 --rate 1e-3,2e-3 --seed 1,5,9",
        "context --paper --stack 5",
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const plan p = read_plan(TRAIN_REGRESSION, options[i]);
        int64_t next = 0;
        while (next < plan_runs(&p)) {
            trainee each[PLAN_STACK];
            const plan_stack stack = plan_stack_at(&p, next);
            assert_int_equal(stack.first, next);
            assert_in_range(stack.count, 1, p.stack > 0 ? p.stack : PLAN_STACK);
            plan_trainees(&p, stack, each);
            for (int64_t m = 0; m < stack.count; m++) {
                const plan_run run = plan_run_at(&p, next + m);
                assert_int_equal(plan_run_number(&p, run), next + m);
                assert_int_equal(run.mechanism, plan_run_at(&p, next).mechanism);
                assert_int_equal(p.cells[run.cell].length, p.cells[plan_run_at(&p, next).cell].length);
                assert_int_equal(each[m].seed, p.seeds[run.seed]);
                assert_true(each[m].rate == p.rates[run.rate]);
                assert_int_equal(each[m].from.regression.segment, p.cells[run.cell].from.regression.segment);
            }
            next += stack.count;
        }
        assert_int_equal(next, plan_runs(&p));
    }
}

static void reduced_and_tiny(void **state)
{
    (void)state;
    plan p = read_plan(TRAIN_REGRESSION, "context --reduced");
    /* L = 128: four S, two rates. */
    assert_int_equal(p.cell_count, 4);
    const trainer_options options = plan_options(&p, expect_stack(&p, 8, 8));
    assert_int_equal(options.steps, 4000);
    assert_int_equal(options.test_every, 400);
    p = read_plan(TRAIN_RECALL, "recall --reduced --all --stop 0.5");
    assert_int_equal(p.mechanism_count, 9);
    assert_true(p.options.stop == 0.5);
    p = read_plan(TRAIN_RECALL, "recall");
    assert_int_equal(plan_runs(&p), 3);
    assert_int_equal(p.mechanisms[0].steps, 2500);
    assert_int_equal(p.mechanisms[1].steps, 1600);
    assert_int_equal(p.cells[0].from.part[0].pairs, 4);
    assert_int_equal(p.options.warm, 50);
    p = read_plan(TRAIN_RECALL,
                  "recall --mechanism lla,hyena --steps 7 --layers 3 --fill 0 --positions none");
    assert_int_equal(p.mechanism_count, 2);
    assert_string_equal(p.mechanisms[1].row->name, "hyena");
    assert_int_equal(plan_options(&p, plan_stack_at(&p, 0)).steps, 7);
    assert_int_equal(p.options.shape.layers, 3);
    assert_false(p.cells[0].from.recall.fill);
    assert_int_equal(p.options.mixing.positions, POSITIONS_NONE);
}

/* In this order, until nothing is left to leave out. */
static void expect_drops(plan p, const char *const *texts)
{
    const char *text;
    for (; (text = preset_drop(&p)) != NULL; texts++) {
        assert_non_null(*texts);
        assert_string_equal(text, *texts);
    }
    assert_null(*texts);
    assert_int_equal(p.mechanisms[0].steps, 3000);
}

static void what_is_left_out(void **state)
{
    (void)state;
    static const char *const context[] = { "the lowest rate", "steps beyond 3000", NULL };
    static const char *const recall[] = { "the largest L", "steps beyond 3000", NULL };
    static const char *const swaps[] = { "the lowest rate", "the largest N", NULL };
    expect_drops(read_plan(TRAIN_REGRESSION, "context --reduced"), context);
    expect_drops(read_plan(TRAIN_RECALL, "recall --reduced"), recall);
    expect_drops(read_plan(TRAIN_SWAPS, "swaps --reduced"), swaps);
    plan p = read_plan(TRAIN_REGRESSION, "context --reduced");
    preset_drop(&p);
    assert_int_equal(p.rate_count, 1);
    assert_true(p.rates[0] == 1e-3);
    p = read_plan(TRAIN_SWAPS, "swaps --reduced");
    preset_drop(&p), preset_drop(&p);
    assert_int_equal(p.cell_count, 1);
    assert_int_equal(p.cells[0].from.swaps.places, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_of_the_paper), cmocka_unit_test(recall_of_the_paper),
        cmocka_unit_test(swaps_of_the_paper),   cmocka_unit_test(stacks_hold_all_runs),
        cmocka_unit_test(reduced_and_tiny),     cmocka_unit_test(what_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
