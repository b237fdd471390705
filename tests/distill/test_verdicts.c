/* SPDX-License-Identifier: MIT
 * The experiment on distillation: which cells there are, differences in pairs, verdicts on made-up results,
 * the file. */
#define _XOPEN_SOURCE 700
#include "cli/distill/arms.h"
#include "cli/distill/kept.h"
#include "cli/distill/verdicts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WINDOWS = 40, LAYERS = 2, TOKENS = 300, FAR = 3 };

static course course_with(int seeds)
{
    course c = { .seeds = { { 1, 2, 3 }, seeds } };
    for (int i = 0; strategy_name(i); i++)
        c.strategies[i] = true;
    for (int i = 0; course_loss(i); i++)
        c.losses[i] = true;
    for (int i = 0; course_student_name(i); i++)
        c.students[i] = true;
    c.training.steps = 1, c.budget.mean = 16;
    return c;
}

static void open_cells(cells *c, int seeds)
{
    const course of = course_with(seeds);
    io_error error;
    *c = (cells){ .model = "made up" };
    assert_int_equal(cells_open(c, LAYERS, WINDOWS, FAR, &error), 0);
    for (int64_t n = 0; n < WINDOWS; n++)
        c->tokens[n] = TOKENS;
    for (int64_t n = 0; n < FAR * TRIAL_PLACES; n++)
        c->places[n] = 10;
    assert_int_equal(cells_choose(c, &of, &error), 0);
}

/* All seeds of a series: a mean by token, what its windows share with others, and what they do not. */
static void set(cells *c, const char *label, double mean, double spread)
{
    char text[CELL_LABEL];
    int there = 0;
    for (int i = 0; i < c->count; i++) {
        if (strcmp(cell_label(&c->list[i], text), label) != 0) continue;
        for (int64_t n = 0; n < WINDOWS; n++)
            c->list[i].nll[n] = TOKENS * (mean + 0.5 * (double)(n % 7) + (n % 2 ? spread : -spread));
        there++;
    }
    assert_true(there > 0);
}

/* Everything holds, each difference by about 3 errors or more: an error is 0.01 / sqrt(39). */
static void set_all(cells *c)
{
    static const struct {
        const char *label;
        double mean;
    } rows[] = { { "softmax", 3 },
                 { "uniform", 8 },
                 { "normal", 7 },
                 { "orthogonal", 6.9 },
                 { "dct", 6.8 },
                 { "pairs", 3 + 4 * 0.69 },
                 { "balanced pairs", 3 + 4 * 0.60 },
                 { "elu + 1", 7.5 },
                 { "window", 3.7 },
                 { "trained: fix, softmax", 4.6 },
                 { "trained: fix, l2row", 4.8 },
                 { "trained: fix, l2", 5 },
                 { "trained: rel, softmax", 3.9 },
                 { "trained: attn, softmax", 3.8 },
                 { "trained: head, softmax", 3.9 },
                 { "trained: clip, softmax", 3.84 },
                 { "trained: measured, softmax", 3.6 },
                 { "cascade", 4.5 },
                 { "hybrid 1/2", 3.65 },
                 { "hybrid 3/4", 3.5 },
                 { "hybrid 7/8", 3.9 },
                 { "direct", 4 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        set(c, rows[i].label, rows[i].mean, i % 2 ? 0.01 : 0);
    for (int i = 0; i < 3; i++)
        c->behind[i] = 128 << i, c->speeds[0][i] = 1e-3 * (i + 1), c->speeds[1][i] = 1.5e-3 + 1e-4 * i;
}

static verdict verdict_of(const cells *c, const char *begin, char said[CLAIM_TEXT])
{
    claim claims[VERDICTS];
    const int count = verdicts_of(c, claims);
    for (int i = 0; i < count; i++)
        if (strncmp(claims[i].text, begin, strlen(begin)) == 0) {
            if (said) memcpy(said, claims[i].numbers, CLAIM_TEXT);
            return claims[i].verdict;
        }
    fail_msg("no verdict on %s", begin);
    return VERDICT_UNDECIDED;
}

#define ORDER "Balanced pairs"
#define PILOT "The gaps"
#define LOSSES "Fix: the softmax loss"
#define FIX "Fix by the softmax"
#define FREEDOM "The better of"
#define MEASURED "Numbers of features"
#define CLIP "Clip is within"
#define DIRECT "Trained through the model"
#define CASCADE "A cascade"
#define HYBRID "The best hybrid"
#define WINDOW "The best student without"
#define SPEED "A token with states"

/* Arms that draw nothing are there once, the others for each seed; other losses train fix alone. */
static void test_cells(void **state)
{
    (void)state;
    cells c;
    series list[SERIES];
    open_cells(&c, 3);
    assert_int_equal(c.count, 4 + 3 * (5 + 3 + 5 + 3) + 2);
    assert_int_equal(cells_left(&c), c.count);
    assert_int_equal(cells_series(&c, list), 4 + 5 + 3 + 5 + 3 + 2);
    set_all(&c);
    assert_int_equal(cells_left(&c), 0);
    const course brief = course_brief(&(course){ .strategies = { true, true, true, true, true, true },
                                                 .students = { true, true, true, true },
                                                 .seeds = { { 4, 5 }, 2 },
                                                 .training.steps = 1,
                                                 .budget.mean = 16 });
    cells few = { .count = 0 };
    io_error error;
    assert_int_equal(cells_open(&few, LAYERS, WINDOWS, 0, &error), 0);
    assert_int_equal(cells_choose(&few, &brief, &error), 0);
    assert_int_equal(few.count, 4 + 5 + 3);
    cells_close(&few);
    cells_close(&c);
}

static void test_differences(void **state)
{
    (void)state;
    cells c;
    series list[SERIES];
    open_cells(&c, 3);
    set_all(&c);
    const int count = cells_series(&c, list);
    const series *const pairs = series_find(list, count, "pairs", NULL, NULL), *const softmax = series_find(
                                                                                   list, count, "softmax",
                                                                                   NULL, NULL);
    assert_int_equal(pairs->seeds, 3);
    assert_null(series_find(list, count, "pairs", "rel", NULL));
    assert_null(series_find(list, count, "trained", "rel", "l2"));
    assert_true(fabs(series_gap(&c, list, count, pairs) - 0.69) < 1e-9);
    const paired more = series_difference(&c, pairs, softmax);
    assert_true(fabs(more.mean - 2.76) < 1e-9 && fabs(more.error - 0.01 / sqrt(WINDOWS - 1)) < 1e-9);
    assert_int_equal(more.tokens, WINDOWS * TOKENS);
    /* What windows share is in no pair, and in the error of a mean alone. */
    assert_true(series_difference(&c, pairs, NULL).error > 10 * more.error);
    cells_close(&c);
}

static void test_held(void **state)
{
    static const char *const all[] = { ORDER, PILOT,  LOSSES, FIX,    FREEDOM, MEASURED,
                                       CLIP,  HYBRID, WINDOW, DIRECT, CASCADE, SPEED };
    const size_t seeded = 9; /* of these, what takes three seeds */
    (void)state;
    char said[CLAIM_TEXT];
    cells c;
    open_cells(&c, 3);
    set_all(&c);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(verdict_of(&c, all[i], NULL), VERDICT_HELD);
    verdict_of(&c, WINDOW, said);
    assert_non_null(strstr(said, "trained: measured, softmax minus window: -0.1 "));
    verdict_of(&c, HYBRID, said);
    assert_non_null(strstr(said, "hybrid 3/4 minus window: -0.2 "));
    verdict_of(&c, DIRECT, said);
    assert_non_null(strstr(said, "direct minus trained: fix, softmax: -0.6 "));
    verdict_of(&c, SPEED, said);
    assert_non_null(strstr(said, "Faster from 256 tokens on."));
    verdict_of(&c, FIX, said);
    assert_non_null(strstr(said, "gap of trained: fix, softmax: 0.400. "));
    cells_close(&c);
    /* One seed, or little text, decides nothing. */
    open_cells(&c, 2);
    set_all(&c);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(verdict_of(&c, all[i], said), i < seeded ? VERDICT_UNDECIDED : VERDICT_HELD);
        if (i < seeded) assert_non_null(strstr(said, "2 of the 3 seeds"));
    }
    cells_close(&c);
}

/* One number of those that all hold is another. */
static void test_broken(void **state)
{
    static const struct {
        const char *label;
        double mean, spread;
        const char *claim;
        verdict verdict;
    } rows[] = {
        { "pairs", 5.3, 0, ORDER, VERDICT_NOT_HELD },
        { "pairs", 5.402, 0.02, ORDER, VERDICT_UNDECIDED },
        { "uniform", 6.9, 0, ORDER, VERDICT_NOT_HELD },
        { "pairs", 3 + 4 * 0.76, 0, PILOT, VERDICT_HELD },
        { "pairs", 3 + 4 * 0.78, 0, PILOT, VERDICT_NOT_HELD },
        { "balanced pairs", 3 + 4 * 0.51, 0, PILOT, VERDICT_NOT_HELD },
        { "trained: fix, l2row", 4.5, 0, LOSSES, VERDICT_NOT_HELD },
        { "trained: fix, l2", 4.802, 0.02, LOSSES, VERDICT_UNDECIDED },
        { "trained: fix, l2", 7.1, 0, LOSSES, VERDICT_NOT_HELD },
        { "trained: fix, softmax", 3 + 4 * 0.44, 0, FIX, VERDICT_HELD },
        { "trained: fix, softmax", 3 + 4 * 0.46, 0, FIX, VERDICT_NOT_HELD },
        { "balanced pairs", 4.5, 0, FIX, VERDICT_NOT_HELD },
        { "trained: attn, softmax", 3.95, 0, FREEDOM, VERDICT_HELD },
        { "trained: fix, softmax", 3.7, 0, FREEDOM, VERDICT_NOT_HELD },
        { "trained: fix, softmax", 3.801, 0.02, FREEDOM, VERDICT_UNDECIDED },
        { "trained: measured, softmax", 3.801, 0.02, MEASURED, VERDICT_UNDECIDED },
        { "trained: measured, softmax", 3.9, 0, MEASURED, VERDICT_NOT_HELD },
        { "window", 3.601, 0.02, WINDOW, VERDICT_UNDECIDED },
        { "window", 3.55, 0, WINDOW, VERDICT_NOT_HELD },
        { "window", 3.4, 0, HYBRID, VERDICT_NOT_HELD },
        { "hybrid 3/4", 3.699, 0.02, HYBRID, VERDICT_HELD }, /* another one is the best */
        { "trained: clip, softmax", 3.86, 0, CLIP, VERDICT_NOT_HELD },
        { "direct", 4.7, 0, DIRECT, VERDICT_NOT_HELD },
        { "direct", 4.599, 0.02, DIRECT, VERDICT_HELD },
        { "direct", 4.601, 0.02, DIRECT, VERDICT_UNDECIDED },
        { "cascade", 4.7, 0, CASCADE, VERDICT_NOT_HELD },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cells c;
        open_cells(&c, 3);
        set_all(&c);
        set(&c, rows[i].label, rows[i].mean, rows[i].spread);
        if (verdict_of(&c, rows[i].claim, NULL) != rows[i].verdict)
            fail_msg("%s at %g: %s", rows[i].label, rows[i].mean, rows[i].claim);
        cells_close(&c);
    }
}

/* Both degrees of freedom above a quarter. */
static void test_gap_of_freedom(void **state)
{
    (void)state;
    cells c;
    open_cells(&c, 3);
    set_all(&c);
    set(&c, "trained: rel, softmax", 4.1, 0), set(&c, "trained: attn, softmax", 4.1, 0);
    assert_int_equal(verdict_of(&c, FREEDOM, NULL), VERDICT_NOT_HELD);
    cells_close(&c);
}

/* States that get slower behind many tokens, or are slower there, or never faster. */
static void test_speed(void **state)
{
    (void)state;
    cells c;
    open_cells(&c, 1);
    set_all(&c);
    assert_int_equal(verdict_of(&c, SPEED, NULL), VERDICT_HELD);
    c.speeds[1][2] = 1.8e-3;
    assert_int_equal(verdict_of(&c, SPEED, NULL), VERDICT_NOT_HELD);
    c.speeds[1][2] = 1.7e-3, c.speeds[0][2] = 1.6e-3;
    assert_int_equal(verdict_of(&c, SPEED, NULL), VERDICT_NOT_HELD);
    cells_close(&c);
}

/* Of longer windows, a place at a time, in pairs; a cell that did not read them has none. */
static void test_far(void **state)
{
    (void)state;
    cells c;
    open_cells(&c, 1);
    cell *const a = &c.list[0], *const b = &c.list[1];
    assert_false(cell_has_far(a));
    for (int64_t i = 0; i < FAR * TRIAL_PLACES; i++)
        a->far[i] = 30 + (double)i, b->far[i] = 10 + (double)i;
    assert_true(cell_has_far(a));
    const paired nll = cell_far(&c, a, NULL, 2), more = cell_far(&c, a, b, 2);
    assert_true(fabs(nll.mean - (32 + TRIAL_PLACES) / 10.0) < 1e-12 && nll.tokens == 30);
    assert_true(fabs(more.mean - 2) < 1e-12 && more.error < 1e-12);
    cells_close(&c);
}

/* A file has the same bits; of another line, cut or changed it is refused and named. */
static void test_kept(void **state)
{
    (void)state;
    char path[] = "/tmp/loam-cells-XXXXXX";
    cells c, again;
    io_error error;
    const int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    open_cells(&c, 2), open_cells(&again, 1);
    set_all(&c);
    c.list[3].nll[0] = NAN;
    c.rises[1] = 1.0 / 3, c.checksum = 0xfedcba9876543210u;
    c.list[1].far[2] = 5;
    again.rises[0] = 7; /* what the file does not know stays */
    snprintf(c.line, sizeof c.line, "a run"), snprintf(again.line, sizeof again.line, "a run");
    assert_int_equal(kept_save(&c, path, &error), 0);
    assert_int_equal(kept_load(&again, path, &error), 0);
    assert_true(again.checksum == c.checksum && again.rises[1] == 1.0 / 3 && again.rises[0] == 7);
    assert_true(again.speeds[1][0] == c.speeds[1][0] && isnan(again.speeds[1][3]));
    assert_int_equal(again.count, c.count);
    assert_int_equal(cells_left(&again), 1);
    assert_true(again.list[1].far[2] == 5 && isnan(again.list[1].far[1]));
    for (int i = 0; i < c.count; i++) {
        const cell *from = &c.list[i];
        const cell *one = cells_take(&again, from->arm, from->strategy, from->loss, from->seed);
        assert_int_equal(one->chosen, from->seed < 2);
        if (i != 3)
            assert_memory_equal(one->nll, from->nll, (size_t)cell_numbers(&c) * sizeof *one->nll);
        else
            assert_false(cell_done(one));
    }
    cells_close(&again);
    open_cells(&again, 1);
    snprintf(again.line, sizeof again.line, "another run");
    assert_int_not_equal(kept_load(&again, path, &error), 0);
    assert_non_null(strstr(error.text, "another model, text, machine"));
    again.bound = 2;
    assert_int_not_equal(kept_load(&again, path, &error), 0);
    again.bound = 1;
    assert_int_equal(kept_load(&again, path, &error), 0);
    assert_string_equal(again.line, "a run");
    again.bound = 0;
    assert_int_equal(truncate(path, 9000), 0);
    assert_int_not_equal(kept_load(&again, path, &error), 0);
    assert_non_null(strstr(error.text, "is damaged; --restart discards it"));
    unlink(path);
    assert_int_equal(kept_load(&again, path, &error), 0);
    cells_close(&again);
    cells_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),          cmocka_unit_test(test_differences),
        cmocka_unit_test(test_held),           cmocka_unit_test(test_broken),
        cmocka_unit_test(test_gap_of_freedom), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_speed),          cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
