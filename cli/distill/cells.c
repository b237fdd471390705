/* SPDX-License-Identifier: MIT */
#include "cli/distill/cells.h"

#include "cli/distill/arms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- cells */

int cells_open(cells *c, int64_t layers, int64_t windows, io_error *error)
{
    c->layers = layers, c->windows = windows;
    c->tokens = calloc((size_t)windows, sizeof *c->tokens);
    c->text = calloc((size_t)windows, sizeof *c->text);
    c->rises = calloc((size_t)(layers * STRATEGY_POINTS), sizeof *c->rises);
    if (!c->tokens || !c->text || !c->rises)
        return io_fail(error, EXIT_INTERNAL, "out of memory for results");
    for (int64_t i = 0; i < layers * STRATEGY_POINTS; i++)
        c->rises[i] = NAN;
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
    *c = (cells){ 0 };
}

int64_t cell_numbers(const cells *c) { return c->windows + c->layers + 1; }
bool cell_done(const cell *one) { return !isnan(one->nll[0]); }

cell *cells_take(cells *c, int arm, int how, int loss, int64_t seed)
{
    for (int i = 0; i < c->count; i++) {
        cell *const one = &c->list[i];
        if (one->arm == arm && one->strategy == how && one->loss == loss && one->seed == seed) return one;
    }
    cell *const more = realloc(c->list, (size_t)(c->count + 1) * sizeof *more);
    if (!more) return NULL;
    c->list = more;
    double *const x = calloc((size_t)cell_numbers(c), sizeof *x);
    if (!x) return NULL;
    for (int64_t i = 0; i < c->windows; i++)
        x[i] = NAN;
    more[c->count] = (cell){ arm, how, loss, seed, false, x, x + c->windows, x + c->windows + c->layers };
    return &more[c->count++];
}

static int choose(cells *c, int arm, int how, int loss, int64_t seed, io_error *error)
{
    cell *const one = cells_take(c, arm, how, loss, seed);
    if (!one) return io_fail(error, EXIT_INTERNAL, "out of memory for results");
    one->chosen = true;
    return 0;
}

/* Strategies by the softmax loss; fix by others too. */
static int choose_trained(cells *c, const course *of, int arm, int64_t seed, io_error *error)
{
    int status = 0;
    for (int how = 0; strategy_name(how); how++)
        for (int loss = 0; !status && course_loss(loss); loss++)
            if (of->strategies[how] && (how == 0 ? of->losses[loss] : loss == FEATURE_LOSS_SOFTMAX))
                status = choose(c, arm, how, loss, seed, error);
    return status;
}

/* Arms that draw nothing, or those of a seed. */
static int choose_arms(cells *c, const course *of, int64_t seed, io_error *error)
{
    const distill_arm *arm;
    int status = 0;
    for (int i = 0; !status && (arm = distill_arm_at(i)); i++) {
        if (arm->form > FORM_TRAINED || distill_arm_draws(arm) != (seed > 0)) continue;
        if (arm->form == FORM_TRAINED)
            status = of->training.steps > 0 ? choose_trained(c, of, i, seed, error) : 0;
        else
            status = choose(c, i, distill_arm_has_features(arm) ? 0 : -1, -1, seed, error);
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
    if (one->loss < 0)
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

double series_gap(const cells *c, const series *list, int count, const series *a)
{
    const series *softmax = series_find(list, count, "softmax", NULL, NULL),
                 *normal = series_find(list, count, "normal", NULL, NULL);
    if (!softmax || !normal || !a) return NAN;
    return a->cell[0] == softmax->cell[0]
               ? 0
               : series_difference(c, a, softmax).mean / series_difference(c, normal, softmax).mean;
}
