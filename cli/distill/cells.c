/* SPDX-License-Identifier: MIT */
#include "cli/distill/cells.h"

#include "cli/distill/arms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- cells */

int cells_open(cells *c, int64_t layers, int64_t windows, int64_t far, io_error *error)
{
    c->layers = layers, c->windows = windows, c->far = far;
    c->list = calloc(CELLS, sizeof *c->list);
    c->places = calloc((size_t)(far * TRIAL_PLACES + 1), sizeof *c->places);
    c->tokens = calloc((size_t)windows, sizeof *c->tokens);
    c->text = calloc((size_t)windows, sizeof *c->text);
    c->rises = calloc((size_t)(layers * STRATEGY_POINTS), sizeof *c->rises);
    if (!c->tokens || !c->text || !c->rises || !c->list || !c->places)
        return io_fail(error, EXIT_INTERNAL, "out of memory for results");
    for (int64_t i = 0; i < layers * STRATEGY_POINTS; i++)
        c->rises[i] = NAN;
    for (int i = 0; i < SPEEDS; i++)
        c->speeds[0][i] = c->speeds[1][i] = NAN;
    return 0;
}

void cells_close(cells *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->list[i].nll);
    free(c->list);
    free(c->tokens);
    free(c->text);
    free(c->rises);
    free(c->places);
    *c = (cells){ 0 };
}

int64_t cell_numbers(const cells *c) { return c->windows + c->layers + 1 + c->far * TRIAL_PLACES; }
bool cell_done(const cell *one) { return !isnan(one->nll[0]); }
bool cell_has_far(const cell *one) { return one->far && !isnan(one->far[0]); }

bool cells_timed(const cells *c) { return c->behind[0] > 0 && !isnan(c->speeds[0][0]); }

const char *cells_measure(const cells *c) { return c->encoder ? "1 - cosine" : "NLL"; }

cell *cells_take(cells *c, int arm, int how, int loss, int64_t seed)
{
    for (int i = 0; i < c->count; i++) {
        cell *const one = &c->list[i];
        if (one->arm == arm && one->strategy == how && one->loss == loss && one->seed == seed) return one;
    }
    const int64_t all = cell_numbers(c), far = c->far * TRIAL_PLACES;
    double *const x = c->count < CELLS ? calloc((size_t)all, sizeof *x) : NULL;
    if (!x) return NULL;
    for (int64_t i = 0; i < all; i++)
        if (i < c->windows || i >= all - far) x[i] = NAN;
    double *const features = x + c->windows, *const seconds = features + c->layers;
    c->list[c->count] = (cell){ arm, how, loss, seed, false, x, features, seconds, far ? seconds + 1 : NULL };
    return &c->list[c->count++];
}

static int choose(cells *c, int arm, int how, int loss, int64_t seed, io_error *error)
{
    cell *const one = cells_take(c, arm, how, loss, seed);
    if (!one) return io_fail(error, EXIT_INTERNAL, "no room for results: there are %d", c->count);
    one->chosen = true;
    return 0;
}

/* Strategies by the softmax loss; fix by others too. */
static int choose_trained(cells *c, const course *of, int arm, int64_t seed, io_error *error)
{
    int status = 0;
    for (int loss = 0; course_loss(loss); loss++)
        for (int how = 0; !status && strategy_name(how); how++)
            if (of->strategies[how] && (how == 0 ? of->losses[loss] : loss == FEATURE_LOSS_SOFTMAX))
                status = choose(c, arm, how, loss, seed, error);
    return status;
}

/* Is a student of this form wanted, by Fix, of this seed? */
static bool is_wanted(const course *of, const distill_arm *arm, int64_t seed)
{
    const bool first = seed == of->seeds.items[0];
    switch (arm->form) {
    case FORM_HYBRID: return of->students[COURSE_HYBRID] && of->budget.mean * (8 - arm->eighths) >= 8;
    case FORM_CASCADE: return of->students[COURSE_CASCADE] && first;
    case FORM_DIRECT: return of->students[COURSE_DIRECT] && first;
    default: return false;
    }
}

/* Arms that draw nothing, or those of a seed. */
static int choose_arms(cells *c, const course *of, int64_t seed, io_error *error)
{
    const distill_arm *arm;
    const bool trains = of->training.steps > 0;
    int status = 0;
    for (int i = 0; !status && (arm = distill_arm_at(i)); i++) {
        if (distill_arm_draws(arm) != (seed > 0) || (c->encoder && arm->form == FORM_WINDOW)) continue;
        if (arm->form < FORM_TRAINED)
            status = choose(c, i, distill_arm_has_features(arm) ? 0 : -1, -1, seed, error);
        else if (arm->form == FORM_TRAINED)
            status = trains && of->students[COURSE_TRAINED] ? choose_trained(c, of, i, seed, error) : 0;
        else if (trains && is_wanted(of, arm, seed))
            status = choose(c, i, 0, FEATURE_LOSS_SOFTMAX, seed, error);
    }
    return status;
}

int cells_choose(cells *c, const course *of, io_error *error)
{
    int status = choose_arms(c, of, 0, error);
    for (int i = 0; !status && i < of->seeds.count; i++)
        status = choose_arms(c, of, of->seeds.items[i], error);
    return status;
}

void cells_end(cells *c)
{
    for (int i = 0; i < c->count; i++)
        c->list[i].chosen = c->list[i].chosen && cell_done(&c->list[i]);
}

int cells_left(const cells *c)
{
    int left = 0;
    for (int i = 0; i < c->count; i++)
        left += c->list[i].chosen && !cell_done(&c->list[i]);
    return left;
}

const char *cell_label(const cell *one, char text[CELL_LABEL])
{
    const char *const name = distill_arm_at(one->arm)->name;
    if (one->loss < 0 || distill_arm_at(one->arm)->form != FORM_TRAINED)
        snprintf(text, CELL_LABEL, "%s", name);
    else
        snprintf(text, CELL_LABEL, "%s: %s, %s", name, strategy_name(one->strategy), course_loss(one->loss));
    return text;
}

/* ---- series */

int cells_series(const cells *c, series out[SERIES])
{
    int count = 0;
    for (int i = 0; i < c->count; i++) {
        const cell *one = &c->list[i];
        int at = 0;
        while (at < count && (out[at].cell[0]->arm != one->arm || out[at].cell[0]->loss != one->loss ||
                              out[at].cell[0]->strategy != one->strategy))
            at++;
        if (!one->chosen || at == SERIES) continue;
        if (at == count) out[count++] = (series){ .seeds = 0 };
        if (out[at].seeds < EXPERIMENT_LIST) out[at].cell[out[at].seeds++] = one;
    }
    return count;
}

const series *series_find(const series *list, int count, const char *arm, const char *how, const char *loss)
{
    for (int i = 0; i < count; i++) {
        const cell *one = list[i].cell[0];
        const char *const by = strategy_name(one->strategy), *const from = course_loss(one->loss);
        if (strcmp(distill_arm_at(one->arm)->name, arm) == 0 && (!how || (by && strcmp(by, how) == 0)) &&
            (!loss || (from && strcmp(from, loss) == 0)))
            return &list[i];
    }
    return NULL;
}

static double mean_nll(const series *s, int64_t window)
{
    double sum = 0;
    for (int i = 0; i < s->seeds; i++)
        sum += s->cell[i]->nll[window];
    return sum / s->seeds;
}

paired series_difference(const cells *c, const series *a, const series *b)
{
    double *const values = calloc((size_t)c->windows, sizeof *values);
    paired out = { NAN, NAN, 0, 0 };
    for (int64_t n = 0; values && n < c->windows; n++)
        values[n] = mean_nll(a, n) - (b ? mean_nll(b, n) : 0);
    if (values) out = paired_of(values, c->tokens, c->windows);
    free(values);
    return out;
}

paired cell_far(const cells *c, const cell *a, const cell *b, int place)
{
    const size_t windows = (size_t)c->far;
    double *const values = calloc(windows, sizeof *values);
    int64_t *const scored = calloc(windows, sizeof *scored);
    paired out = { NAN, NAN, 0, 0 };
    for (int64_t n = 0; values && scored && n < c->far; n++) {
        const int64_t at = n * TRIAL_PLACES + place;
        scored[n] = c->places[at];
        values[n] = scored[n] > 0 ? a->far[at] - (b ? b->far[at] : 0) : NAN;
    }
    if (values && scored) out = paired_of(values, scored, c->far);
    free(values);
    free(scored);
    return out;
}

double series_gap(const cells *c, const series *list, int count, const series *a)
{
    const series *softmax = series_find(list, count, "softmax", NULL, NULL),
                 *normal = series_find(list, count, "normal", NULL, NULL);
    if (!softmax || !normal || !a) return NAN;
    return a->cell[0] == softmax->cell[0]
               ? 0
               : series_difference(c, a, softmax).mean / series_difference(c, normal, softmax).mean;
}
