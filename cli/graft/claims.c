/* SPDX-License-Identifier: MIT */
#include "cli/graft/claims.h"

#include "cli/training/text.h"

#include <math.h>

/* Two standard errors either way. */
static verdict lower(paired x)
{
    if (isnan(x.error) || fabs(x.mean) <= 2 * x.error) return VERDICT_UNDECIDED;
    return x.mean < 0 ? VERDICT_HELD : VERDICT_NOT_HELD;
}

static double furthest(const graft_results *r, int kind)
{
    double most = 0;
    for (int seed = 0; seed < r->plan->choice.seeds.count; seed++)
        most = fmax(most, *graft_result_of(r, graft_run_of(r->plan, kind, seed)).away);
    return most;
}

/* A ridge of 1e4 changes SmolLM2's NLL by 2e-4 on average, and that of single windows by more; Parallax is
 * another kernel than softmax, whose bfloat16 operands are rounded at other places. */
static double most_away(const graft_plan *p, int kind)
{
    return graft_has_ridges(kind) || (kind == GRAFT_PARALLAX && p->narrow) ? 5e-3 : 1e-6;
}

static bool judge_start(const graft_results *r, claim *c)
{
    bool held = true;
    c->text = r->plan->narrow
                  ? "Before the first step the model is the pretrained one: the mean NLL of no window is "
                    "further than 1e-6 away; with ridges, which begin at a finite value, and with Parallax, "
                    "whose kernel rounds otherwise, than 5e-3."
                  : "Before the first step the model is the pretrained one: the mean NLL of no window is "
                    "further than 1e-6 away; with ridges, which begin at a finite value, than 5e-3.";
    for (int kind = 0; kind < GRAFT_KINDS; kind++) {
        if (!r->plan->choice.kinds[kind]) continue;
        const double away = furthest(r, kind);
        text_add(c->numbers, CLAIM_TEXT, "%s %.2g; ", graft_name(kind), away);
        held &= away <= most_away(r->plan, kind);
    }
    c->verdict = held ? VERDICT_HELD : VERDICT_NOT_HELD;
    return true;
}

static bool judge_gain(const graft_results *r, int kind, const char *text, claim *c)
{
    char said[64];
    if (!r->plan->choice.kinds[kind]) return false;
    const paired x = graft_difference(r, kind, GRAFT_NONE, -1);
    c->text = text;
    text_add(c->numbers, CLAIM_TEXT, "minus the model as it is: %s", paired_text(x, said));
    c->verdict = lower(x);
    return true;
}

static bool judge_control(const graft_results *r, int kind, const char *text, claim *c)
{
    char said[64];
    if (!graft_is_controlled(r->plan, kind)) return false;
    const paired x = graft_difference(r, kind, graft_control(kind), -1);
    c->text = text;
    text_add(c->numbers, CLAIM_TEXT, "%s minus %s: %s", graft_name(kind), graft_name(graft_control(kind)),
             paired_text(x, said));
    c->verdict = lower(x);
    return true;
}

int graft_judge(const graft_results *r, claim *claims)
{
    static const struct {
        const char *about, *text;
        int kind;
        bool (*judge)(const graft_results *r, int kind, const char *text, claim *c);
    } rows[] = {
        { "ridges", "Learned ridges lower NLL on held-out text.", GRAFT_RIDGES, judge_gain },
        { "ridges", "LLA with learned ridges gains more than softmax with learned temperatures.",
          GRAFT_RIDGES, judge_control },
        { "ridges", "Beside learned temperatures learned ridges still gain.", GRAFT_BOTH, judge_control },
        { "Parallax", "A learned probe lowers NLL on held-out text.", GRAFT_PARALLAX, judge_gain },
        { "Parallax", "It gains beyond LoRA of the queries with as many parameters.", GRAFT_PARALLAX,
          judge_control },
    };
    int count = 0;
    claims[count] = (claim){ .source = "the start" };
    count += judge_start(r, &claims[count]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        claims[count] = (claim){ .source = rows[i].about };
        count += rows[i].judge(r, rows[i].kind, rows[i].text, &claims[count]);
    }
    return count;
}
