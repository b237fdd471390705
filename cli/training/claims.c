/* SPDX-License-Identifier: MIT */
#include "cli/training/claims.h"

#include "cli/training/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const verdict_names[] = { "held", "not held", "not decided" };

/* ---- the words of a verdict */

static void decide(claim *c, bool held) { c->verdict = held ? VERDICT_HELD : VERDICT_NOT_HELD; }

void claim_decide_by_seeds(claim *c, int seeds, bool held)
{
    decide(c, held);
    if (seeds >= CLAIM_SEEDS) return;
    c->verdict = VERDICT_UNDECIDED;
    text_add(c->numbers, CLAIM_TEXT, "%d of the %d seeds that it takes; %s with %s. ", seeds, CLAIM_SEEDS,
             held ? "held" : "not held", seeds == 1 ? "this one" : "these");
}

static const char *name_of(const results *r, int mechanism)
{
    return r->plan->mechanisms[mechanism].row->name;
}

static int64_t size_of(const results *r, int cell) { return plan_size(r->plan, &r->plan->cells[cell], 0); }

static bool split(const results *r, int cell) { return size_of(r, cell) < r->plan->cells[cell].length; }

/* The best of all others; -1: there is none. */
static int rival_of(const results *r, int mechanism, int cell)
{
    int best = -1;
    for (int m = 0; m < r->plan->mechanism_count; m++)
        if (m != mechanism && (best < 0 || results_better(r->plan, results_mean(r, m, cell).mean,
                                                          results_mean(r, best, cell).mean)))
            best = m;
    return best;
}

/* "softmax 0.812 ± 0.004" */
static void say_value(claim *c, const char *name, result_value at)
{
    text_add(c->numbers, CLAIM_TEXT, "%s %.3g ± %.1g", name, at.mean, at.error);
}

/* ---- regression in context */

static void judge_lowest(const results *r, const plan_lines *lines, claim *c)
{
    (void)lines;
    const int lla = results_find(r->plan, "lla");
    int cells = 0, held = 0;
    if (lla < 0 || r->plan->mechanism_count < 2) {
        text_add(c->numbers, CLAIM_TEXT, "LLA and another mechanism were not trained. ");
        return;
    }
    for (int cell = 0; cell < r->plan->cell_count; cell++) {
        if (!split(r, cell)) continue;
        const int other = rival_of(r, lla, cell);
        const result_value mine = results_mean(r, lla, cell), best = results_mean(r, other, cell);
        cells++;
        held += mine.mean + mine.error < best.mean - best.error;
        text_add(c->numbers, CLAIM_TEXT, "L = %" PRId64 ", S = %" PRId64 ": ", r->plan->cells[cell].length,
                 size_of(r, cell));
        say_value(c, "LLA", mine), text_add(c->numbers, CLAIM_TEXT, ", "),
            say_value(c, name_of(r, other), best), text_add(c->numbers, CLAIM_TEXT, ". ");
    }
    if (cells > 0) claim_decide_by_seeds(c, r->plan->seed_count, held == cells);
    text_add(c->numbers, CLAIM_TEXT, "In %d of %d cells with S < L. ", held, cells);
}

/* The other cell of the same length whose segments are the shortest, or the longest that are not the
 * whole. */
static int extreme_cell(const results *r, int cell, bool longest)
{
    int found = cell;
    for (int i = 0; i < r->plan->cell_count; i++)
        if (split(r, i) && r->plan->cells[i].length == r->plan->cells[cell].length &&
            (size_of(r, i) > size_of(r, found)) == longest && size_of(r, i) != size_of(r, found))
            found = i;
    return found;
}

static double lead_of(const results *r, int lla, int cell)
{
    return results_mean(r, rival_of(r, lla, cell), cell).mean / results_mean(r, lla, cell).mean;
}

static void judge_small_segments(const results *r, const plan_lines *lines, claim *c)
{
    (void)lines;
    const int lla = results_find(r->plan, "lla");
    int lengths = 0, held = 0;
    if (lla < 0 || r->plan->mechanism_count < 2) {
        text_add(c->numbers, CLAIM_TEXT, "LLA and another mechanism were not trained. ");
        return;
    }
    for (int cell = 0; cell < r->plan->cell_count; cell++) {
        if (!split(r, cell) || extreme_cell(r, cell, false) != cell) continue;
        const int longest = extreme_cell(r, cell, true);
        if (longest == cell) continue;
        const double small = lead_of(r, lla, cell), large = lead_of(r, lla, longest);
        lengths++, held += small > large;
        text_add(c->numbers, CLAIM_TEXT,
                 "L = %" PRId64 ": the next best error over LLA's is %.3g at S = %" PRId64
                 ", %.3g at S = %" PRId64 ". ",
                 r->plan->cells[cell].length, small, size_of(r, cell), large, size_of(r, longest));
    }
    if (lengths > 0)
        claim_decide_by_seeds(c, r->plan->seed_count, held == lengths);
    else
        text_add(c->numbers, CLAIM_TEXT, "It takes two segment sizes below L. ");
}

static void judge_line(const results *r, const plan_lines *lines, claim *c)
{
    static const char *const names[] = { "lla", "softmax" };
    int values = 0, held = 0;
    for (int cell = 0; cell < r->plan->cell_count; cell++)
        for (int i = 0; i < 2; i++) {
            const int m = results_find(r->plan, names[i]);
            if (m < 0 || !split(r, cell)) continue;
            const regression_lines *at = &lines->regression[cell];
            const double line = i == 0 ? at->lla : at->softmax, mine = results_mean(r, m, cell).mean;
            values++, held += mine <= 1.1 * line;
            text_add(c->numbers, CLAIM_TEXT, "L = %" PRId64 ", S = %" PRId64 ": %s %.3g, its line %.3g. ",
                     r->plan->cells[cell].length, size_of(r, cell), names[i], mine, line);
        }
    if (values == 0) {
        text_add(c->numbers, CLAIM_TEXT, "Neither was trained on S < L. ");
        return;
    }
    if (r->plan->options.mixing.blind)
        decide(c, held == values);
    else
        text_add(c->numbers, CLAIM_TEXT,
                 "With plain queries, which may cost more, %d of %d; it is a claim for --queries blind. ",
                 held, values);
}

static void judge_leak(const results *r, const plan_lines *lines, claim *c)
{
    int values = 0, below = 0;
    double closest = INFINITY;
    for (int cell = 0; cell < r->plan->cell_count; cell++)
        for (int m = 0; m < r->plan->mechanism_count && lines->regression[cell].own > 0.01; m++) {
            const double ratio = results_mean(r, m, cell).mean / lines->regression[cell].own;
            values++, below += ratio < 0.9;
            closest = fmin(closest, ratio);
        }
    if (values == 0) {
        text_add(c->numbers, CLAIM_TEXT, "The bound is above 0.01 in no cell. ");
        return;
    }
    decide(c, below == 0);
    text_add(c->numbers, CLAIM_TEXT, "%d of %d below; the least error is %.3g of the bound. ", below, values,
             closest);
}

/* ---- recall */

/* Over all lengths and numbers of pairs. */
static result_value over_cells(const results *r, int mechanism)
{
    double sum = 0, squares = 0;
    int values = 0;
    for (int cell = 0; cell < r->plan->cell_count; cell++)
        for (int part = 0; part < plan_parts(r->plan, &r->plan->cells[cell]); part++) {
            const result_value at = results_part(r, mechanism, cell, part);
            sum += at.mean, squares += at.error * at.error, values++;
        }
    return (result_value){ sum / values, sqrt(squares) / values };
}

/* Not less, but for the two standard errors. */
static bool keeps_up(result_value a, result_value b) { return a.mean + a.error >= b.mean - b.error; }

static int count_plateaus(const results *r)
{
    int count = 0;
    for (int m = 0; m < r->plan->mechanism_count; m++)
        for (int cell = 0; cell < r->plan->cell_count; cell++)
            for (int part = 0; part < plan_parts(r->plan, &r->plan->cells[cell]); part++)
                count += results_on_plateau(r, m, cell, part);
    return count;
}

static void judge_highest(const results *r, const plan_lines *lines, claim *c)
{
    (void)lines;
    const int lla = results_find(r->plan, "lla"), softmax = results_find(r->plan, "softmax");
    if (lla < 0 || softmax < 0) {
        text_add(c->numbers, CLAIM_TEXT, "LLA and softmax were not both trained. ");
        return;
    }
    const result_value first = over_cells(r, lla), second = over_cells(r, softmax);
    bool held = keeps_up(first, second);
    for (int m = 0; m < r->plan->mechanism_count; m++) {
        const result_value at = over_cells(r, m);
        if (m != lla && m != softmax) held = held && keeps_up(first, at) && keeps_up(second, at);
        say_value(c, name_of(r, m), at),
            text_add(c->numbers, CLAIM_TEXT, m + 1 < r->plan->mechanism_count ? ", " : ". ");
    }
    claim_decide_by_seeds(c, r->plan->seed_count, held);
    if (count_plateaus(r) > 0)
        text_add(c->numbers, CLAIM_TEXT,
                 "%d values are still on the plateau of 1/N: more steps may change the order. ",
                 count_plateaus(r));
}

/* Of the whole rise of a run, the share of its largest gain from one test to the next; negative: it rose
 * by less than 0.1. */
static double jump_of(const results *r, int mechanism, int cell)
{
    double step, before = results_at(r, mechanism, cell, 0, &step), most = 0;
    const double first = before;
    for (int64_t test = 1; test < results_tests(r, mechanism, cell); test++) {
        const double at = results_at(r, mechanism, cell, test, &step);
        most = fmax(most, at - before);
        before = at;
    }
    return before - first >= 0.1 ? most / (before - first) : -1;
}

/* Steps after which half of the last accuracy is there. */
static double half_of(const results *r, int mechanism, int cell)
{
    double step, last = results_at(r, mechanism, cell, r->most, &step);
    for (int64_t test = 0; test < r->most; test++)
        if (results_at(r, mechanism, cell, test, &step) >= last / 2) return step;
    return step;
}

static void judge_jump(const results *r, const plan_lines *lines, claim *c)
{
    static const char *const names[] = { "gated-delta", "softmax", "lla" };
    (void)lines;
    int cells = 0, held = 0;
    for (int cell = 0; cell < r->plan->cell_count; cell++) {
        double jump[3];
        bool known = r->plan->cells[cell].length >= 128;
        for (int i = 0; i < 3 && known; i++) {
            const int m = results_find(r->plan, names[i]);
            jump[i] = m < 0 ? -1 : jump_of(r, m, cell);
            known = jump[i] >= 0;
            if (known)
                text_add(c->numbers, CLAIM_TEXT,
                         "L = %" PRId64
                         ", %s: %.0f %% of its rise between two tests, half height at step %.0f. ",
                         r->plan->cells[cell].length, names[i], 100 * jump[i], half_of(r, m, cell));
        }
        if (!known) continue;
        cells++, held += jump[0] > 0.5 && jump[1] < 0.5 && jump[2] < 0.5;
    }
    if (cells > 0)
        decide(c, held == cells);
    else
        text_add(
            c->numbers, CLAIM_TEXT,
            "It takes Gated DeltaNet, softmax and LLA, all of which rise by 0.1 at least, at a length from "
            "128. ");
}

/* The accuracy at one N of a length; NaN: it has none. */
static double at_size(const results *r, int mechanism, int64_t length, int64_t size)
{
    for (int cell = 0; cell < r->plan->cell_count; cell++)
        for (int part = 0; part < plan_parts(r->plan, &r->plan->cells[cell]); part++)
            if (r->plan->cells[cell].length == length &&
                plan_size(r->plan, &r->plan->cells[cell], part) == size)
                return results_part(r, mechanism, cell, part).mean;
    return NAN;
}

static void judge_capacity(const results *r, const plan_lines *lines, claim *c)
{
    static const char *const names[] = { "gla", "mamba-2", "linear" };
    enum { LENGTH = 512, FEW = 32, MANY = 128 };
    (void)lines;
    int values = 0, held = 0;
    for (int i = 0; i < 3; i++) {
        const int m = results_find(r->plan, names[i]);
        const double few = m < 0 ? NAN : at_size(r, m, LENGTH, FEW),
                     many = m < 0 ? NAN : at_size(r, m, LENGTH, MANY);
        if (isnan(few) || isnan(many)) continue;
        values++, held += few - many >= 0.1;
        text_add(c->numbers, CLAIM_TEXT, "%s: %.3g with %d pairs, %.3g with %d. ", names[i], few, FEW, many,
                 MANY);
    }
    if (values > 0)
        decide(c, held == values);
    else
        text_add(c->numbers, CLAIM_TEXT,
                 "It takes GLA, Mamba-2 or linear attention at L = 512 with 32 and 128 pairs. ");
}

static void judge_known(const results *r, const plan_lines *lines, claim *c)
{
    const int softmax = results_find(r->plan, "softmax");
    const double at = softmax < 0 ? NAN : at_size(r, softmax, 64, 4);
    (void)lines;
    if (isnan(at)) {
        text_add(c->numbers, CLAIM_TEXT, "Softmax was not trained there. ");
        return;
    }
    text_add(c->numbers, CLAIM_TEXT, "%.4f. ", at);
    if (at >= 0.99 || r->plan->preset == PLAN_PAPER)
        decide(c, at >= 0.99);
    else
        text_add(c->numbers, CLAIM_TEXT, "After fewer steps than the paper's. ");
}

/* ---- swaps */

static void judge_par(const results *r, const plan_lines *lines, claim *c)
{
    const int lla = results_find(r->plan, "lla"), softmax = results_find(r->plan, "softmax");
    bool held = true;
    (void)lines;
    if (lla < 0 || softmax < 0) {
        text_add(c->numbers, CLAIM_TEXT, "LLA and softmax were not both trained. ");
        return;
    }
    for (int cell = 0; cell < r->plan->cell_count; cell++) {
        const result_value a = results_mean(r, lla, cell), b = results_mean(r, softmax, cell);
        held = held && fabs(a.mean - b.mean) <= 0.03;
        text_add(c->numbers, CLAIM_TEXT, "N = %" PRId64 ": ", size_of(r, cell));
        say_value(c, "LLA", a), text_add(c->numbers, CLAIM_TEXT, ", "), say_value(c, "softmax", b),
            text_add(c->numbers, CLAIM_TEXT, ". ");
    }
    claim_decide_by_seeds(c, r->plan->seed_count, held);
}

static void judge_hops(const results *r, const plan_lines *lines, claim *c)
{
    static const char *const names[] = { "lla", "softmax" };
    int values = 0, held = 0;
    for (int cell = 0; cell < r->plan->cell_count; cell++)
        for (int i = 0; i < 2; i++) {
            const int m = results_find(r->plan, names[i]);
            if (m < 0) continue;
            const double mine = results_mean(r, m, cell).mean, line = lines->swaps[cell][2];
            values++, held += mine < line;
            text_add(c->numbers, CLAIM_TEXT, "N = %" PRId64 ": %s %.3g, the line %.3g. ", size_of(r, cell),
                     names[i], mine, line);
        }
    if (values > 0)
        decide(c, held == values);
    else
        text_add(c->numbers, CLAIM_TEXT, "Neither was trained. ");
}

/* ---- all of a task */

typedef void judge(const results *r, const plan_lines *lines, claim *c);

static const struct {
    train_task task;
    const char *source, *text;
    judge *run;
} list[] = {
    { TRAIN_REGRESSION, "figure 5a", "LLA has the lowest error in all cells with S < L", judge_lowest },
    { TRAIN_REGRESSION, "figure 5a", "particularly with smaller segments (as a ratio of errors)",
      judge_small_segments },
    { TRAIN_REGRESSION, "ours", "trained LLA and softmax are within 1.1 times what one layer can do",
      judge_line },
    { TRAIN_REGRESSION, "ours", "no error is below 0.9 times that of the best possible prediction",
      judge_leak },
    { TRAIN_RECALL, "figure 5b", "LLA has the highest accuracy over all (L, N), softmax is next or equal",
      judge_highest },
    { TRAIN_RECALL, "figure 8", "Gated DeltaNet jumps from a plateau, LLA and softmax rise smoothly",
      judge_jump },
    { TRAIN_RECALL, "section 4", "recurrences of a fixed state fall with N", judge_capacity },
    { TRAIN_RECALL, "Arora et al. 2023", "softmax comes to 0.99 at (L, N) = (64, 4)", judge_known },
    { TRAIN_SWAPS, "figure 6", "LLA is on par with softmax at every N (within 0.03)", judge_par },
    { TRAIN_SWAPS, "ours", "both stay below following two swaps", judge_hops },
};

int claims_judge(const results *r, const plan_lines *lines, claim *out)
{
    int count = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (list[i].task != r->plan->task) continue;
        out[count] = (claim){ .source = list[i].source, .text = list[i].text, .verdict = VERDICT_UNDECIDED };
        list[i].run(r, lines, &out[count++]);
    }
    return count;
}
