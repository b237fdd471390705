/* SPDX-License-Identifier: MIT
 * Verdicts on results that are made up: each claim held, not held, not decided. */
#include "cli/training/probe_report.h"
#include "tests/training/options.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TESTS = 4 };

typedef struct made {
    request r;
    results all;
    plan_lines lines;
} made;

/* What a mechanism comes to at a size, in the last test. */
typedef double outcome(const char *mechanism, int64_t length, int64_t size);

static void make(made *m, train_task task, const char *options, outcome *value)
{
    char text[256];
    io_error error;
    *m = (made){ 0 };
    snprintf(text, sizeof text, "%s --tests 4", options);
    read_options(&m->r, task, text);
    const plan *p = &m->r.plan;
    assert_int_equal(results_open(&m->all, p, &error), EXIT_OK);
    for (int64_t number = 0; number < plan_runs(p); number++) {
        const plan_run run = plan_run_at(p, number);
        const plan_cell *cell = &p->cells[run.cell];
        m->all.counts[number] = TESTS;
        for (int test = 0; test < TESTS; test++)
            for (int part = 0; part < plan_parts(p, cell); part++) {
                train_record *at = results_record(&m->all, number, test);
                const double last = value(p->mechanisms[run.mechanism].row->name, cell->length,
                                          plan_size(p, cell, part));
                at->step = 100 * (test + 1);
                /* It rises evenly; seeds differ by less than anything that is judged. */
                at->part[part] = last * (test + 1) / TESTS + 1e-4 * run.seed;
                at->error[part] = 1e-3;
            }
    }
    for (int cell = 0; cell < p->cell_count; cell++) {
        m->lines.regression[cell] = (regression_lines){ 1, 0.8, 0.5, 0.7, 0.05 };
        m->lines.swaps[cell][2] = 0.99;
    }
}

static verdict verdict_of(const made *m, const char *part)
{
    claim list[CLAIMS];
    const int count = claims_judge(&m->all, &m->lines, list);
    for (int i = 0; i < count; i++)
        if (strstr(list[i].text, part)) return list[i].verdict;
    fail_msg("no claim says: %s", part);
    return VERDICT_UNDECIDED;
}

static void expect(train_task task, const char *options, outcome *value, const char *part, verdict want)
{
    static made m;
    make(&m, task, options, value);
    const verdict got = verdict_of(&m, part);
    if (got != want)
        fail_msg("%s: '%s' is %s, expected %s", options, part, verdict_names[got], verdict_names[want]);
    results_close(&m.all);
}

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* ---- regression */

#define THREE "context --length 64 --segment 8,32,64 --paper --steps 400 --rate 1e-3"
#define ONE THREE " --seed 1"

static double lla_leads(const char *name, int64_t length, int64_t size)
{
    return size == length ? 0.3 : (is(name, "lla") ? 0.4 : 0.6) + (double)size / 1000;
}
/* By less than two standard errors of the seeds in one cell. */
static double lla_leads_in_one(const char *name, int64_t length, int64_t size)
{
    return size == 32 && is(name, "softmax") ? lla_leads("lla", length, size) + 5e-5
                                             : lla_leads(name, length, size);
}
static double small_lead(const char *name, int64_t length, int64_t size)
{
    (void)length;
    return is(name, "lla") ? 0.4 : size == 8 ? 0.8 : 0.5;
}
static double large_lead(const char *name, int64_t length, int64_t size)
{
    (void)length;
    return is(name, "lla") ? 0.4 : size == 8 ? 0.5 : 0.8;
}
static double on_the_lines(const char *name, int64_t length, int64_t size)
{
    (void)length, (void)size;
    return is(name, "lla") ? 0.54 : 0.87;
}
static double above_a_line(const char *name, int64_t length, int64_t size)
{
    (void)length;
    return is(name, "lla") ? 0.54 : size == 8 ? 0.89 : 0.87;
}
static double leaks(const char *name, int64_t length, int64_t size)
{
    (void)length;
    return is(name, "gla") && size == 32 ? 0.044 : 0.4;
}

static void regression_claims(void **state)
{
    (void)state;
    static const char lowest[] = "lowest error", small[] = "smaller segments", within[] = "within 1.1",
                      leak[] = "below 0.9";
    const train_task task = TRAIN_REGRESSION;
    expect(task, THREE, lla_leads, lowest, VERDICT_HELD);
    expect(task, THREE, lla_leads_in_one, lowest, VERDICT_NOT_HELD);
    expect(task, ONE, lla_leads, lowest, VERDICT_UNDECIDED);
    expect(task, ONE " --mechanism softmax", lla_leads, lowest, VERDICT_UNDECIDED);
    expect(task, THREE, small_lead, small, VERDICT_HELD);
    expect(task, THREE, large_lead, small, VERDICT_NOT_HELD);
    expect(task, ONE, small_lead, small, VERDICT_UNDECIDED);
    expect(task, ONE " --queries blind", on_the_lines, within, VERDICT_HELD);
    expect(task, ONE " --queries blind", above_a_line, within, VERDICT_NOT_HELD);
    expect(task, ONE, on_the_lines, within, VERDICT_UNDECIDED);
    expect(task, ONE, lla_leads, leak, VERDICT_HELD);
    expect(task, ONE, leaks, leak, VERDICT_NOT_HELD);
}

/* ---- recall */

#define RECALL "recall --paper --steps 400 --rate 1e-3 --all"

static double lla_first(const char *name, int64_t length, int64_t size)
{
    (void)length, (void)size;
    return is(name, "lla") ? 0.99 : is(name, "softmax") ? 0.97 : 0.9;
}
static double softmax_first(const char *name, int64_t length, int64_t size)
{
    return is(name, "softmax") ? 1 : lla_first(name, length, size);
}
static double fixed_state_falls(const char *name, int64_t length, int64_t size)
{
    (void)length;
    return is(name, "gla") || is(name, "mamba-2") || is(name, "linear") ? 16 / (double)size : 1;
}
static double linear_does_not(const char *name, int64_t length, int64_t size)
{
    return is(name, "linear") ? 0.5 : fixed_state_falls(name, length, size);
}
static double softmax_fails(const char *name, int64_t length, int64_t size)
{
    (void)length, (void)size;
    return is(name, "softmax") ? 0.98 : 1;
}

static void recall_claims(void **state)
{
    (void)state;
    static const char highest[] = "highest accuracy", fall[] = "fall with N", known[] = "0.99 at";
    const train_task task = TRAIN_RECALL;
    expect(task, RECALL, lla_first, highest, VERDICT_HELD);
    expect(task, RECALL, softmax_first, highest, VERDICT_NOT_HELD);
    expect(task, RECALL " --seed 1", lla_first, highest, VERDICT_UNDECIDED);
    expect(task, RECALL " --seed 1", fixed_state_falls, fall, VERDICT_HELD);
    expect(task, RECALL " --seed 1", linear_does_not, fall, VERDICT_NOT_HELD);
    expect(task, RECALL " --seed 1 --length 64,128", fixed_state_falls, fall, VERDICT_UNDECIDED);
    expect(task, RECALL " --seed 1", softmax_first, known, VERDICT_HELD);
    expect(task, RECALL " --seed 1", softmax_fails, known, VERDICT_NOT_HELD);
    expect(task, "recall --reduced --seed 1", softmax_fails, known, VERDICT_UNDECIDED);
}

/* Each mechanism rises to 1 in its own way, over the tests of recall at L = 128. */
static verdict judge_rise(const double gated[TESTS], const double others[TESTS], const char *options)
{
    static made m;
    make(&m, TRAIN_RECALL, options, lla_first);
    for (int64_t number = 0; number < plan_runs(m.all.plan); number++) {
        const plan_run run = plan_run_at(m.all.plan, number);
        const bool is_gated = is(m.all.plan->mechanisms[run.mechanism].row->name, "gated-delta");
        for (int test = 0; test < TESTS; test++)
            for (int part = 0; part < RECALL_PARTS; part++)
                results_record(&m.all, number, test)->part[part] = is_gated ? gated[test] : others[test];
    }
    const verdict got = verdict_of(&m, "jumps from a plateau");
    results_close(&m.all);
    return got;
}

static void how_accuracy_rises(void **state)
{
    (void)state;
    static const double jump[TESTS] = { 0.1, 0.1, 0.9, 1 }, smooth[TESTS] = { 0.1, 0.4, 0.7, 1 },
                        flat[TESTS] = { 0.1, 0.1, 0.1, 0.1 };
    static const char at128[] = "recall --paper --steps 400 --length 128 --seed 1";
    static const char at64[] = "recall --paper --steps 400 --length 64 --seed 1";
    assert_int_equal(judge_rise(jump, smooth, at128), VERDICT_HELD);
    assert_int_equal(judge_rise(jump, jump, at128), VERDICT_NOT_HELD);
    assert_int_equal(judge_rise(smooth, smooth, at128), VERDICT_NOT_HELD);
    assert_int_equal(judge_rise(flat, smooth, at128), VERDICT_UNDECIDED);
    assert_int_equal(judge_rise(jump, smooth, at64), VERDICT_UNDECIDED);
}

/* ---- swaps */

#define SWAPS "swaps --paper --steps 400 --rate 1e-3"

static double on_par(const char *name, int64_t length, int64_t size)
{
    (void)length, (void)size;
    return is(name, "lla") ? 0.92 : 0.9;
}
static double apart(const char *name, int64_t length, int64_t size)
{
    return is(name, "lla") && size == 96 ? 0.86 : on_par(name, length, size);
}
static double all_swaps(const char *name, int64_t length, int64_t size)
{
    return is(name, "lla") && size == 16 ? 0.995 : on_par(name, length, size);
}

static void swaps_claims(void **state)
{
    (void)state;
    const train_task task = TRAIN_SWAPS;
    expect(task, SWAPS, on_par, "on par", VERDICT_HELD);
    expect(task, SWAPS, apart, "on par", VERDICT_NOT_HELD);
    expect(task, SWAPS " --seed 1", on_par, "on par", VERDICT_UNDECIDED);
    expect(task, SWAPS " --seed 1", on_par, "two swaps", VERDICT_HELD);
    expect(task, SWAPS " --seed 1", all_swaps, "two swaps", VERDICT_NOT_HELD);
    expect(task, SWAPS " --seed 1 --mechanism gla", on_par, "two swaps", VERDICT_UNDECIDED);
}

/* ---- the probe */

typedef struct probed {
    probe_request request;
    probe_result all[PROBE_ARMS];
} probed;

/* What an arm comes to: its score, and correction and rank of W_R. */
typedef struct ends {
    double score, correction, rank;
} ends;
typedef ends arm_end(probe_start start, bool muon, train_task task);

static void expect_probe(const char *options, arm_end *end, const verdict *want)
{
    static probed p;
    char text[256], *argv[OPTION_WORDS];
    bool help;
    io_error error;
    claim claims[CLAIMS];
    snprintf(text, sizeof text, "%s --tests 1", options);
    const int argc = option_words(text, argv);
    if (probe_request_read(&p.request, argc, argv, &help, &error) != EXIT_OK) fail_msg("%s", error.text);
    for (int i = 0; i < p.request.count; i++) {
        probe_result *at = &p.all[i];
        at->arm = &p.request.arms[i];
        const plan *trained = &at->arm->plan;
        const ends all = end(at->arm->start, trained->options.muon, trained->task);
        assert_int_equal(results_open(&at->results, trained, &error), EXIT_OK);
        assert_int_equal(probe_log_open(&at->log, &at->results, "/nowhere", &error), EXIT_OK);
        for (int64_t run = 0; run < plan_runs(trained); run++) {
            at->results.counts[run] = 1;
            results_record(&at->results, run, 0)->part[0] = all.score;
            for (int64_t layer = 0; layer < 2; layer++) {
                probe_layer *to = probe_log_at(&at->log, run, 0, layer);
                to->rows.correction = all.correction;
                for (int of = 0; of < PROBE_MATRICES; of++)
                    for (int head = 0; head < PROBE_HEADS; head++)
                        to->rank[of][head] = of == 2 ? all.rank : 7;
            }
        }
    }
    assert_int_equal(probe_judge(p.all, p.request.count, claims), 4);
    for (int i = 0; i < 4; i++)
        if (claims[i].verdict != want[i])
            fail_msg("%s: '%s' is %s, expected %s", options, claims[i].text, verdict_names[claims[i].verdict],
                     verdict_names[want[i]]);
    for (int i = 0; i < p.request.count; i++) {
        results_close(&p.all[i].results);
        probe_log_close(&p.all[i].log);
    }
}

/* Muon is what the claims say of it. */
static ends unlocked(probe_start start, bool muon, train_task task)
{
    const double gain = start == PROBE_NONE || start == PROBE_CONTROL ? 0 : muon ? 0.2 : 0.1;
    return (ends){ task == TRAIN_RECALL ? 0.5 + gain : 0.5 - gain, muon ? 2 : 1, muon ? 30 : 20 };
}
static ends locked(probe_start start, bool muon, train_task task)
{
    const double gain = start == PROBE_NONE ? 0 : muon ? 0.1 : start == PROBE_CONTROL ? 0.3 : 0.2;
    return (ends){ task == TRAIN_RECALL ? 0.5 + gain : 0.5 - gain, muon ? 1 : 2, muon ? 29 : 20 };
}

static void probe_claims(void **state)
{
    (void)state;
    static const verdict held[] = { VERDICT_HELD, VERDICT_HELD, VERDICT_HELD, VERDICT_HELD },
                         not_held[] = { VERDICT_NOT_HELD, VERDICT_NOT_HELD, VERDICT_NOT_HELD,
                                        VERDICT_NOT_HELD },
                         one_seed[] = { VERDICT_HELD, VERDICT_HELD, VERDICT_UNDECIDED, VERDICT_UNDECIDED };
    expect_probe("probe --seed 1,2,3", unlocked, held);
    expect_probe("probe --seed 1,2,3 --all", unlocked, held);
    expect_probe("probe --seed 1,2,3", locked, not_held);
    expect_probe("probe --seed 1", unlocked, one_seed);
}

/* ---- what is judged */

static double by_rate(const char *name, int64_t length, int64_t size)
{
    (void)name, (void)length, (void)size;
    return 0.5;
}

/* The rate whose mean over seeds and parts is best; errors over seeds, and of one seed over examples. */
static void best_rates(void **state)
{
    (void)state;
    static made m;
    make(&m, TRAIN_RECALL, "recall --paper --steps 400 --length 64 --mechanism lla --rate 1e-4,1e-3",
         by_rate);
    const double values[2][3] = { { 0.2, 0.9, 0.4 }, { 0.6, 0.5, 0.7 } };
    for (int rate = 0; rate < 2; rate++)
        for (int seed = 0; seed < 3; seed++) {
            const int64_t run = plan_run_number(m.all.plan, (plan_run){ 0, 0, rate, seed });
            for (int part = 0; part < 3; part++)
                results_record(&m.all, run, TESTS - 1)->part[part] = values[rate][seed];
        }
    assert_int_equal(results_rate(&m.all, 0, 0), 1);
    result_value at = results_part(&m.all, 0, 0, 1);
    assert_true(fabs(at.mean - 0.6) < 1e-12);
    assert_true(fabs(at.error - 0.1 / sqrt(3)) < 1e-12);
    results_close(&m.all);
    make(&m, TRAIN_RECALL, "recall --paper --steps 400 --length 64 --mechanism lla --seed 4", by_rate);
    at = results_mean(&m.all, 0, 0);
    assert_true(fabs(at.error - 1e-3 / sqrt(3)) < 1e-12);
    results_close(&m.all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regression_claims),  cmocka_unit_test(recall_claims),
        cmocka_unit_test(how_accuracy_rises), cmocka_unit_test(swaps_claims),
        cmocka_unit_test(probe_claims),       cmocka_unit_test(best_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
