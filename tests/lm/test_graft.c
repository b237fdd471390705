/* SPDX-License-Identifier: MIT
 * The graft experiment's parts: what is held out of texts, differences that are paired, and verdicts. */
#include "cli/graft/claims.h"
#include "tests/lm/ridge_texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOWS = 4, LENGTH = 8 };

static const lm_config small = { .layers = 2, .heads_q = 3 };

/* ---- results that are made up */

static void open_results(graft_results *r, graft_plan *p, int seeds)
{
    io_error error;
    *p = (graft_plan){ .config = &small, .windows = WINDOWS, .text_count = 1, .windows_of = { WINDOWS } };
    p->choice = (graft_choice){ .context = LENGTH, .steps = 20, .seeds = { { 1, 2 }, seeds } };
    for (int kind = 0; kind < GRAFT_KINDS; kind++)
        p->choice.kinds[kind] = true;
    if (graft_results_open(r, p, &error)) fail_msg("%s", error.text);
}

/* Windows of NLL `mean` a token, but for a part `spread` of it that is the window's own. */
static void set(graft_results *r, int64_t run, double mean, double spread)
{
    const graft_result of = graft_result_of(r, run);
    for (int i = 0; i < WINDOWS; i++)
        of.nll[i] = LENGTH * (mean + spread * (i % 2 ? 1 : -1));
    *of.away = 0;
}

static void set_kind(graft_results *r, int kind, double mean, double spread)
{
    for (int seed = 0; seed < r->plan->choice.seeds.count; seed++)
        set(r, graft_run_of(r->plan, kind, seed), mean, spread);
}

static verdict verdict_of(const graft_results *r, const char *begin)
{
    claim claims[GRAFT_CLAIMS];
    const int count = graft_judge(r, claims);
    for (int i = 0; i < count; i++)
        if (strncmp(claims[i].text, begin, strlen(begin)) == 0) return claims[i].verdict;
    fail_msg("no claim '%s'", begin);
    return VERDICT_UNDECIDED;
}

static void test_differences(void **state)
{
    (void)state;
    graft_plan p;
    graft_results r;
    open_results(&r, &p, 2);
    assert_false(graft_finished(&r, 0));
    set(&r, 0, 3, 0.5);
    assert_true(graft_finished(&r, 0));
    set(&r, graft_run_of(&p, GRAFT_RIDGES, 0), 2.9, 0.5);
    set(&r, graft_run_of(&p, GRAFT_RIDGES, 1), 2.7, 0.5);
    const paired x = graft_difference(&r, GRAFT_RIDGES, GRAFT_NONE, -1);
    assert_true(fabs(x.mean + 0.2) < 1e-12 && x.error < 1e-12);
    assert_int_equal(x.tokens, WINDOWS * LENGTH);
    /* A window alone has an error of 0.5 sqrt(1 / 3). */
    const paired alone = graft_difference(&r, GRAFT_NONE, -1, 0);
    assert_true(fabs(alone.mean - 3) < 1e-12 && fabs(alone.error - 0.5 / sqrt(3)) < 1e-12);
    graft_results_close(&r);
}

static void test_verdicts(void **state)
{
    static const char gains[] = "Learned ridges lower", more[] = "LLA with learned ridges gains more",
                      beside[] = "Beside learned temperatures", lora[] = "It gains beyond LoRA",
                      start[] = "Before the first step";
    (void)state;
    graft_plan p;
    graft_results r;
    open_results(&r, &p, 1);
    set(&r, 0, 3, 0);
    set_kind(&r, GRAFT_RIDGES, 2.9, 0.01), set_kind(&r, GRAFT_TEMPERATURES, 2.8, 0);
    set_kind(&r, GRAFT_BOTH, 2.79, 0.05), set_kind(&r, GRAFT_PARALLAX, 2.7, 0),
        set_kind(&r, GRAFT_LORA, 2.9, 0.01);
    assert_int_equal(verdict_of(&r, gains), VERDICT_HELD);
    assert_int_equal(verdict_of(&r, more), VERDICT_NOT_HELD);
    assert_int_equal(verdict_of(&r, beside), VERDICT_UNDECIDED);
    assert_int_equal(verdict_of(&r, lora), VERDICT_HELD);
    assert_int_equal(verdict_of(&r, start), VERDICT_HELD);
    /* Of a start: how far ridges may be, and LoRA. */
    *graft_result_of(&r, graft_run_of(&p, GRAFT_RIDGES, 0)).away = 4e-3;
    assert_int_equal(verdict_of(&r, start), VERDICT_HELD);
    *graft_result_of(&r, graft_run_of(&p, GRAFT_PARALLAX, 0)).away = 2e-6;
    assert_int_equal(verdict_of(&r, start), VERDICT_NOT_HELD);
    p.narrow = true;
    assert_int_equal(verdict_of(&r, start), VERDICT_HELD);
    *graft_result_of(&r, graft_run_of(&p, GRAFT_LORA, 0)).away = 2e-6;
    assert_int_equal(verdict_of(&r, start), VERDICT_NOT_HELD);
    /* Without the control there is nothing to say. */
    claim claims[GRAFT_CLAIMS];
    const int count = graft_judge(&r, claims);
    p.choice.kinds[GRAFT_LORA] = false;
    assert_int_equal(graft_judge(&r, claims), count - 1);
    p.choice.kinds[GRAFT_TEMPERATURES] = false;
    assert_int_equal(graft_judge(&r, claims), count - 3);
    graft_results_close(&r);
}

/* ---- texts */

static void open_plan(graft_plan *p, const lm_files *f, const tokenizer *t, const char *texts,
                      const char *held, int64_t most)
{
    graft_choice choice = { .context = LENGTH, .steps = 2, .batch = 1, .piece = 1, .held = most };
    io_error error;
    choice.kinds[GRAFT_RIDGES] = true;
    if (graft_plan_open(p, &choice, f, "model", t, texts, held, false, &error)) fail_msg("%s", error.text);
}

static void test_texts(void **state)
{
    (void)state;
    lm_files *f;
    tokenizer *t;
    graft_plan whole, cut, other;
    io_error error;
    make_texts();
    const outcome made = run_shell("for i in 1 2 3 4 5 6 7 8; do cat t.txt; done >long.txt");
    expect_status(&made, 0);
    if (lm_files_open(&f, MODELS "llama", &error)) fail_msg("%s", error.text);
    if (tokenizer_open(&t, TOKENIZER, &error)) fail_msg("%s", error.text);
    /* What is not trained on: all of another file; the last tenth; and of that no more than is asked for. */
    open_plan(&whole, f, t, "long.txt", "u.txt", 1000);
    open_plan(&cut, f, t, "long.txt", NULL, 1000);
    open_plan(&other, f, t, "long.txt,u.txt", NULL, 4 * LENGTH);
    assert_int_equal(cut.count[0] + cut.windows * LENGTH, whole.count[0]);
    assert_true(cut.windows >= 4 && cut.windows * LENGTH <= whole.count[0] / 10);
    assert_memory_equal(cut.tokens[0], whole.tokens[0], (size_t)cut.count[0] * sizeof *cut.tokens[0]);
    assert_memory_equal(cut.tokens[1], whole.tokens[0] + cut.count[0], (size_t)(cut.windows * LENGTH) * 2);
    assert_int_equal(cut.count[1], cut.windows * LENGTH + 1);
    assert_int_equal(other.windows_of[0], 2);
    assert_int_equal(graft_text_of(&other, 1), 0);
    assert_int_equal(graft_text_of(&other, 2), 1);
    assert_string_equal(other.names[1], "u.txt");
    assert_true(cut.sum != whole.sum);
    graft_plan_close(&whole), graft_plan_close(&cut), graft_plan_close(&other);
    tokenizer_close(t);
    lm_files_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
