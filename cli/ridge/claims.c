/* SPDX-License-Identifier: MIT */
#include "cli/ridge/claims.h"

#include "cli/training/text.h"

#include <inttypes.h>
#include <math.h>

static void decide(claim *c, bool held) { c->verdict = held ? VERDICT_HELD : VERDICT_NOT_HELD; }

static void say(claim *c, const ridge_arm *a, paired x)
{
    char name[64], text[64];
    text_add(c->numbers, CLAIM_TEXT, "%s: %s; ", ridge_arm_text(a, name), paired_text(x, text));
}

static int curve_at(const ridge_plan *p, double ridge)
{
    return ridge_find(p, ARM_LLA, ridge, LOAM_RIDGE_NORMALISED, -1, -1);
}

/* ---- at large ridges */

static bool judge_limit(const ridge_results *r, claim *c)
{
    const int index = curve_at(r->plan, 1e5);
    if (index < 0) return false;
    const paired x = ridge_difference(r, index, 0, -1);
    c->text = "At a ridge of 1e5 LLA is softmax to 2e-4.";
    text_add(c->numbers, CLAIM_TEXT, "%s %+.2e", ridge_measure(r->plan), x.mean);
    decide(c, fabs(x.mean) <= 2e-4);
    return true;
}

static void judge_outputs(const ridge_plan *p, double (*law)[LAW_RIDGES], claim *c)
{
    c->text = "At a ridge of 1e4 outputs of attention follow the first order, "
              "o = vbar + X (q - kbar) / ridge, to 1 %.";
    for (int n = 0; n < LAW_RIDGES; n++)
        text_add(c->numbers, CLAIM_TEXT, "at %g the rest is %.2g %%; ", law_ridges[n],
                 100 * law[p->layers][n]);
    decide(c, law[p->layers][0] <= 0.01);
}

/* An encoder's vectors change by the square. */
static bool judge_slope(const ridge_results *r, claim *c)
{
    char text[64];
    const int far = curve_at(r->plan, 1e5), near = curve_at(r->plan, 1e4);
    if (far < 0 || near < 0 || r->plan->encoder) return false;
    const double apart = ridge_law(r, near, far);
    c->text = "The change of NLL times the ridge is a constant where the ridge is large: from 1e5 to 1e4 it "
              "changes by less than 5 %.";
    text_add(c->numbers, CLAIM_TEXT,
             "%.2g %% of it, root mean square over windows; on average ridge x change ", 100 * apart);
    const int ridges[] = { far, near, curve_at(r->plan, 1e3) };
    for (int i = 0; i < 3; i++)
        if (ridges[i] >= 0) {
            const double ridge = r->plan->arms[ridges[i]].ridge;
            const paired x = ridge_difference(r, ridges[i], 0, -1);
            const paired slope = { ridge * x.mean, ridge * x.error, x.windows, x.tokens };
            text_add(c->numbers, CLAIM_TEXT, "%s at %g; ", paired_text(slope, text), ridge);
        }
    decide(c, apart <= 0.05);
    return true;
}

/* ---- the curve */

/* 0.01 nats, with two standard errors on either side. */
static bool judge_plateau(const ridge_results *r, claim *c)
{
    static const double width = 0.01;
    bool all = true, none = false, any = false;
    c->text = "Down to a ridge of 300 there is a plateau: NLL changes by less than 0.01.";
    for (int i = 1; i < r->plan->curve_count; i++) {
        const ridge_arm *a = &r->plan->arms[i];
        if (a->kind != ARM_LLA || a->unit != LOAM_RIDGE_NORMALISED || a->ridge < 300 || a->ridge > 1e3)
            continue;
        const paired x = ridge_difference(r, i, 0, -1);
        say(c, a, x);
        any = true;
        all &= fabs(x.mean) + 2 * x.error < width;
        none |= fabs(x.mean) - 2 * x.error > width;
    }
    c->verdict = none ? VERDICT_NOT_HELD : all ? VERDICT_HELD : VERDICT_UNDECIDED;
    return any && !r->plan->encoder;
}

/* Three standard errors: there are many ridges. */
static bool judge_gain(const ridge_results *r, claim *c)
{
    int lowest = -1, surest = -1;
    double least = INFINITY, share = INFINITY;
    c->text = "No ridge gains on average without training: none by three standard errors.";
    for (int i = 1; i < r->plan->curve_count; i++) {
        const paired x = ridge_difference(r, i, 0, -1);
        if (r->plan->arms[i].kind != ARM_LLA || isnan(x.error)) continue;
        if (x.mean < least) lowest = i, least = x.mean;
        if (x.mean / x.error < share) surest = i, share = x.mean / x.error;
    }
    if (lowest < 0 || surest < 0 || r->plan->encoder) return false;
    text_add(c->numbers, CLAIM_TEXT, "lowest: ");
    say(c, &r->plan->arms[lowest], ridge_difference(r, lowest, 0, -1));
    text_add(c->numbers, CLAIM_TEXT, "lowest in its errors: ");
    say(c, &r->plan->arms[surest], ridge_difference(r, surest, 0, -1));
    decide(c, share > -3);
    return true;
}

static bool judge_control(const ridge_results *r, claim *c)
{
    char text[64];
    const int lla = curve_at(r->plan, 300),
              control = ridge_find(r->plan, ARM_CONTROL, 300, LOAM_RIDGE_NORMALISED, -1, -1);
    if (lla < 0 || r->plan->encoder) return false;
    const paired whole = ridge_difference(r, lla, 0, -1), sharper = ridge_difference(r, control, 0, -1),
                 rest = ridge_difference(r, lla, control, -1);
    c->text =
        "At a ridge of 300 LLA does what softmax does that is sharper by sqrt(d) / ridge: they differ by "
        "less than two standard errors.";
    say(c, &r->plan->arms[lla], whole);
    say(c, &r->plan->arms[control], sharper);
    text_add(c->numbers, CLAIM_TEXT, "difference %s", paired_text(rest, text));
    decide(c, fabs(rest.mean) < 2 * rest.error);
    /* Nothing is told apart where even the whole effect is not. */
    if (isnan(rest.error) || (c->verdict == VERDICT_HELD && fabs(whole.mean) < 2 * whole.error))
        c->verdict = VERDICT_UNDECIDED;
    return true;
}

/* ---- layers of SmolLM2-135M, the model that the claim is about */

static bool judge_layers(const ridge_results *r, claim *c)
{
    static const int loses[] = { 12, 13, 19, 27 }, keeps[] = { 6, 24, 26, 28, 29 };
    char text[64];
    bool lost = true, kept = true;
    if (r->plan->layers != 30 || r->plan->heads != 9) return false;
    c->text =
        "In one layer with a ridge of 30, SmolLM2's layers 12, 13, 19, 27 lose by more than two standard "
        "errors, and 6, 24, 26, 28, 29 change by less.";
    for (int i = 0; i < 9; i++) {
        const int layer = i < 4 ? loses[i] : keeps[i - 4];
        const int index = ridge_find(r->plan, ARM_LAYER, 30, LOAM_RIDGE_NORMALISED, layer, -1);
        if (index < 0) return false;
        const paired x = ridge_difference(r, index, 0, -1);
        text_add(c->numbers, CLAIM_TEXT, "%d: %s; ", layer, paired_text(x, text));
        if (i < 4)
            lost &= x.mean > 2 * x.error;
        else
            kept &= fabs(x.mean) < 2 * x.error;
    }
    decide(c, lost && kept);
    return true;
}

int ridge_judge(const ridge_results *r, double (*law)[LAW_RIDGES], claim *claims)
{
    static const struct {
        const char *about;
        bool (*judge)(const ridge_results *r, claim *c);
    } rows[] = { { "large ridges", judge_limit },  { "first order", judge_slope },
                 { "the curve", judge_plateau },   { "the curve", judge_gain },
                 { "the control", judge_control }, { "layers", judge_layers } };
    int count = 0;
    claims[count] = (claim){ .source = "first order" };
    judge_outputs(r->plan, law, &claims[count++]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        claims[count] = (claim){ .source = rows[i].about };
        count += rows[i].judge(r, &claims[count]);
    }
    return count;
}
