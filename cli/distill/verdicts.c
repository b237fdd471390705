/* SPDX-License-Identifier: MIT */
#include "cli/distill/verdicts.h"

#include "cli/distill/arms.h"
#include "cli/training/text.h"

#include <inttypes.h>
#include <math.h>

enum { LEAST_TOKENS = 10000, LEAST_LINES = 1000 };

static const double near = 0.08;      /* of a gap to a measured one */
static const double clip_near = 0.05; /* of -log p */
static const double flat = 1.15;      /* the time of a token behind many others to that behind few */

typedef struct judged {
    const cells *c;
    series list[SERIES];
    int count;
} judged;

static const series *find(const judged *j, const char *arm, const char *how, const char *loss)
{
    return series_find(j->list, j->count, arm, how, loss);
}
static const series *trained(const judged *j, const char *how, const char *loss)
{
    return find(j, "trained", how, loss);
}

/* Two standard errors either way. */
static verdict lower(paired x)
{
    if (isnan(x.error) || fabs(x.mean) <= 2 * x.error) return VERDICT_UNDECIDED;
    return x.mean < 0 ? VERDICT_HELD : VERDICT_NOT_HELD;
}

/* All must hold; one that does not is enough. */
static verdict both(verdict a, verdict b)
{
    if (a == VERDICT_NOT_HELD || b == VERDICT_NOT_HELD) return VERDICT_NOT_HELD;
    return a == VERDICT_HELD && b == VERDICT_HELD ? VERDICT_HELD : VERDICT_UNDECIDED;
}

/* Adds a less b to a claim. */
static paired say(const judged *j, claim *c, const series *a, const series *b)
{
    char text[64], one[CELL_LABEL], other[CELL_LABEL];
    const paired x = series_difference(j->c, a, b);
    text_add(c->numbers, CLAIM_TEXT, "%s minus %s: %s. ", cell_label(a->cell[0], one),
             cell_label(b->cell[0], other), paired_text(x, text));
    return x;
}

static double say_gap(const judged *j, claim *c, const series *a)
{
    char label[CELL_LABEL];
    const double gap = series_gap(j->c, j->list, j->count, a);
    text_add(c->numbers, CLAIM_TEXT, "gap of %s: %.3f. ", cell_label(a->cell[0], label), gap);
    return gap;
}

static int64_t least(const judged *j) { return j->c->encoder ? LEAST_LINES : LEAST_TOKENS; }

/* One seed, or little text, may be luck. */
static void decide(const judged *j, claim *c, const series *of, verdict v)
{
    const int64_t predicted = series_difference(j->c, of, NULL).tokens;
    const bool seeds = of->seeds >= CLAIM_SEEDS, text = predicted >= least(j);
    c->verdict = v;
    if (seeds && text) return;
    if (!seeds)
        text_add(c->numbers, CLAIM_TEXT, "%d of the %d seeds that it takes. ", of->seeds, CLAIM_SEEDS);
    if (!text)
        text_add(c->numbers, CLAIM_TEXT, "%" PRId64 " of the %" PRId64 " %s that it takes. ", predicted,
                 least(j), j->c->encoder ? "lines" : "tokens");
    text_add(c->numbers, CLAIM_TEXT, "With these: %s. ", verdict_names[v]);
    c->verdict = VERDICT_UNDECIDED;
}

/* Each below the next; false: one is not there. */
static bool judge_order(const judged *j, claim *c, const series *const *of, int count)
{
    verdict v = VERDICT_HELD;
    for (int i = 0; i < count; i++)
        if (!of[i]) return false;
    for (int i = 0; i + 1 < count; i++)
        v = both(v, lower(say(j, c, of[i], of[i + 1])));
    decide(j, c, of[0], v);
    return true;
}

static bool judge_untrained(const judged *j, claim *c)
{
    const series *const of[] = { find(j, "balanced pairs", NULL, NULL), find(j, "pairs", NULL, NULL),
                                 find(j, "normal", NULL, NULL), find(j, "uniform", NULL, NULL) };
    return judge_order(j, c, of, 4);
}

static bool judge_pilot(const judged *j, claim *c)
{
    const series *balanced = find(j, "balanced pairs", NULL, NULL), *pairs = find(j, "pairs", NULL, NULL);
    if (!balanced || !pairs) return false;
    const double first = say_gap(j, c, balanced), second = say_gap(j, c, pairs);
    const bool held = fabs(first - 0.60) <= near && fabs(second - 0.69) <= near;
    decide(j, c, pairs, held ? VERDICT_HELD : VERDICT_NOT_HELD);
    return true;
}

static bool judge_losses(const judged *j, claim *c)
{
    const series *const of[] = { trained(j, "fix", "softmax"), trained(j, "fix", "l2row"),
                                 trained(j, "fix", "l2"), find(j, "normal", NULL, NULL) };
    return judge_order(j, c, of, 4);
}

static bool judge_fix(const judged *j, claim *c)
{
    const series *fix = trained(j, "fix", "softmax"), *drawn = find(j, "balanced pairs", NULL, NULL);
    if (!fix || !drawn) return false;
    const verdict small = say_gap(j, c, fix) <= 0.45 ? VERDICT_HELD : VERDICT_NOT_HELD;
    decide(j, c, fix, both(small, lower(say(j, c, fix, drawn))));
    return true;
}

const series *verdicts_best(const cells *c, const series *list, int count)
{
    const series *rel = series_find(list, count, "trained", "rel", "softmax"),
                 *attn = series_find(list, count, "trained", "attn", "softmax");
    if (!rel || !attn) return rel ? rel : attn;
    return series_difference(c, rel, attn).mean < 0 ? rel : attn;
}

static bool judge_freedom(const judged *j, claim *c)
{
    const series *fix = trained(j, "fix", "softmax"), *best = verdicts_best(j->c, j->list, j->count);
    if (!fix || !best) return false;
    const verdict small = say_gap(j, c, best) <= 0.25 ? VERDICT_HELD : VERDICT_NOT_HELD;
    verdict v = small;
    const series *const both_modes[] = { trained(j, "rel", "softmax"), trained(j, "attn", "softmax") };
    for (int i = 0; i < 2; i++) {
        if (!both_modes[i]) continue;
        const paired x = say(j, c, both_modes[i], fix);
        if (both_modes[i] == best) v = both(small, lower(x));
    }
    decide(j, c, best, v);
    return true;
}

/* Not above: equal is enough. */
static verdict not_above(paired x)
{
    return x.mean <= 0 ? VERDICT_HELD : x.mean > 2 * x.error ? VERDICT_NOT_HELD : VERDICT_UNDECIDED;
}

static bool judge_measured(const judged *j, claim *c)
{
    const series *measured = trained(j, "measured", "softmax"),
                 *best = verdicts_best(j->c, j->list, j->count);
    if (!measured || !best) return false;
    decide(j, c, measured, not_above(say(j, c, measured, best)));
    return true;
}

static bool judge_clip(const judged *j, claim *c)
{
    const series *clip = trained(j, "clip", "softmax"), *attn = trained(j, "attn", "softmax");
    if (!clip || !attn) return false;
    const paired x = say(j, c, clip, attn);
    decide(j, c, clip, fabs(x.mean) <= clip_near ? VERDICT_HELD : VERDICT_NOT_HELD);
    return true;
}

/* Against Fix of the same seed, from the same draws: windows alone decide. */
static bool judge_other(const judged *j, claim *c, const char *arm)
{
    const series *other = find(j, arm, NULL, NULL), *fix = trained(j, "fix", "softmax");
    if (!other || !fix) return false;
    series start = { .seeds = 0 };
    for (int i = 0; i < fix->seeds; i++)
        if (fix->cell[i]->seed == other->cell[0]->seed) start.cell[start.seeds++] = fix->cell[i];
    if (start.seeds == 0) return false;
    say_gap(j, c, other);
    const paired x = say(j, c, other, &start);
    c->verdict = x.tokens >= LEAST_TOKENS ? not_above(x) : VERDICT_UNDECIDED;
    return true;
}

/* A sentence's vector after training, and before it from the same draws. */
static bool judge_encoder(const judged *j, claim *c)
{
    const series *fix = trained(j, "fix", "softmax"), *drawn = find(j, "balanced pairs", NULL, NULL);
    if (!fix || !drawn) return false;
    const paired x = say(j, c, fix, drawn);
    c->verdict = x.tokens >= least(j) ? lower(x) : VERDICT_UNDECIDED;
    return true;
}

static bool judge_direct(const judged *j, claim *c) { return judge_other(j, c, "direct"); }
static bool judge_cascade(const judged *j, claim *c) { return judge_other(j, c, "cascade"); }

/* The best of the students, or of the hybrids. */
static bool judge_window(const judged *j, claim *c, bool hybrid)
{
    const series *const window = find(j, "window", NULL, NULL), *best = NULL;
    for (int i = 0; i < j->count; i++) {
        const cell *one = j->list[i].cell[0];
        if (one->loss < 0 || (distill_arm_at(one->arm)->form == FORM_HYBRID) != hybrid) continue;
        if (!best || series_difference(j->c, &j->list[i], best).mean < 0) best = &j->list[i];
    }
    if (!window || !best) return false;
    decide(j, c, best, lower(say(j, c, best, window)));
    return true;
}
static bool judge_hybrid(const judged *j, claim *c) { return judge_window(j, c, true); }
static bool judge_student(const judged *j, claim *c) { return judge_window(j, c, false); }

/* From how many tokens on states are faster, at all lengths that were measured. */
static int faster_from(const cells *c, int count)
{
    int from = count;
    while (from > 0 && c->speeds[1][from - 1] < c->speeds[0][from - 1])
        from--;
    return from;
}

static bool judge_speed(const judged *j, claim *c)
{
    const cells *const of = j->c;
    int count = 0;
    while (count < SPEEDS && of->behind[count] > 0)
        count++;
    if (!cells_timed(of)) return false;
    const int from = faster_from(of, count);
    const double growth = of->speeds[1][count - 1] / of->speeds[1][0];
    for (int i = 0; i < count; i++)
        text_add(c->numbers, CLAIM_TEXT, "%" PRId64 ": %.3g and %.3g ms. ", of->behind[i],
                 1e3 * of->speeds[0][i], 1e3 * of->speeds[1][i]);
    if (from < count)
        text_add(c->numbers, CLAIM_TEXT, "Faster from %" PRId64 " tokens on. ", of->behind[from]);
    c->verdict = from < count && growth <= flat ? VERDICT_HELD : VERDICT_NOT_HELD;
    return true;
}

int verdicts_of(const cells *c, claim out[VERDICTS])
{
    static const struct {
        const char *about, *text;
        bool (*judge)(const judged *j, claim *c);
        bool encoders; /* of these, else of models that predict */
    } rows[] = {
        { "untrained", "Balanced pairs < pairs < features of N(0, I) < uniform attention.", judge_untrained,
          false },
        { "untrained", "The gaps are within 0.08 of 0.60 for balanced pairs and 0.69 for pairs.", judge_pilot,
          false },
        { "losses", "Fix: the softmax loss < l2row < l2 < features of N(0, I).", judge_losses, false },
        { "losses", "Fix by the softmax loss: a gap of at most 0.45, and below balanced pairs.", judge_fix,
          false },
        { "strategies",
          "The better of the two degrees of freedom: below Fix at equal cost, and a gap of at most 0.25.",
          judge_freedom, false },
        { "strategies",
          "Numbers of features that were measured are no worse than the better degrees of freedom.",
          judge_measured, false },
        { "strategies", "Clip is within 0.05 of the degrees of freedom that it cuts.", judge_clip, false },
        { "students", "Trained through the model, a student is no worse than as it was.", judge_direct,
          false },
        { "students", "A cascade is no worse than layers side by side.", judge_cascade, false },
        { "memory", "The best hybrid is below sinks and a window of equal memory.", judge_hybrid, false },
        { "memory", "The best student without a window is below sinks and a window of equal memory.",
          judge_student, false },
        { "speed",
          "A token with states takes as long behind many others as behind few, and less than with keys and "
          "values.",
          judge_speed, false },
        { "encoders", "Features trained by the softmax loss keep a line's vector better than balanced pairs.",
          judge_encoder, true },
    };
    judged j = { .c = c };
    int count = 0;
    j.count = cells_series(c, j.list);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        out[count] = (claim){ .source = rows[i].about, .text = rows[i].text };
        if (rows[i].encoders == c->encoder) count += rows[i].judge(&j, &out[count]);
    }
    return count;
}
