/* SPDX-License-Identifier: MIT */
#include "train/optimiser.h"

#include <assert.h>
#include <math.h>

enum { ADAMW, MUON, ITERATIONS = 5 };

static bool by_muon(const optimiser *o, const parameter *p) { return o->options.muon && p->muon; }

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

static void take_all(optimiser *o)
{
    const int64_t models = o->list[0].x.models;
    int64_t side = 0, all = 0;
    for (int i = 0; i < o->count; i++) {
        const matrix x = o->list[i].x;
        if (!by_muon(o, &o->list[i])) continue;
        side = most_of(side, least_of(x.rows, x.width));
        all = most_of(all, x.rows * x.width);
    }
    for (int i = 0; i < 2; i++) {
        o->peak[i] = memory_matrix(&o->room, o->on->dtype, models, 1, 1);
        o->rate[i] = memory_matrix(&o->room, o->on->dtype, models, 1, 1);
    }
    o->at = memory_take(&o->room, 1, sizeof *o->at);
    o->squares = memory_matrix(&o->room, o->on->dtype, models, 1, 1);
    o->factor = memory_matrix(&o->room, o->on->dtype, models, 1, 1);
    o->size = memory_matrix(&o->room, o->on->dtype, models, 1, 1);
    o->u = memory_matrix(&o->room, o->on->dtype, models, 1, all);
    o->y = memory_matrix(&o->room, o->on->dtype, models, 1, all);
    o->a = memory_matrix(&o->room, o->on->dtype, models, side, side);
    o->b = memory_matrix(&o->room, o->on->dtype, models, side, side);
}

bool optimiser_open(optimiser *o, const machine *on, parameter *list, int count,
                    const optimiser_options *options, const double *peak, const double *muon_peak)
{
    assert(count <= OPTIMISER_ARRAYS);
    *o = (optimiser){ .on = on, .options = *options, .list = list, .count = count };
    if (!(options->beta_v > 0)) o->options.beta_v = 0.999;
    take_all(o);
    if (!memory_open(&o->room, on)) return false;
    take_all(o);
    machine_set(on, o->peak[ADAMW], 0, peak, o->factor.models);
    if (options->muon) machine_set(on, o->peak[MUON], 0, muon_peak, o->factor.models);
    return true;
}

void optimiser_close(optimiser *o) { memory_close(&o->room); }

void optimiser_resume(optimiser *o, int64_t step)
{
    o->step = step;
    machine_upload(o->on, o->at, &step, sizeof step);
}

void optimiser_hold(optimiser *o, int64_t model)
{
    static const double zero = 0;
    for (int i = 0; i < 2; i++)
        machine_set(o->on, o->peak[i], model, &zero, 1);
}

/* The memory of an array as one of this shape. */
static matrix shaped(matrix a, int64_t rows, int64_t width)
{
    return matrix_dense(a.data, a.dtype, a.models, rows, width);
}

/* x towards U V^T of x = U S V^T: five steps of an iteration that is odd in x, which leave singular values
 * above 0.01 of |x| between 0.68 and 1.14. x x^T x is made from the shorter side: (x x^T) x or x (x^T x). */
static void orthogonalise(const optimiser *o, matrix x)
{
    const machine *on = o->on;
    const ops *op = on->op;
    const bool tall = x.rows > x.width;
    const int64_t side = least_of(x.rows, x.width);
    const matrix a = shaped(o->a, side, side), b = shaped(o->b, side, side),
                 y = shaped(o->y, x.rows, x.width);
    op->squares(on, o->size, &x, 1);
    op->normalise(on, x, o->size);
    for (int i = 0; i < ITERATIONS; i++) {
        op->product(on, a, x, x, PRODUCT_EXACT | (tall ? PRODUCT_A_TRANSPOSED : PRODUCT_B_TRANSPOSED));
        op->product(on, b, a, a, PRODUCT_EXACT);
        op->combine(on, b, -4.7750, a, 2.0315, b);
        op->product(on, y, tall ? x : b, tall ? b : x, PRODUCT_EXACT);
        op->combine(on, x, 3.4445, x, 1, y);
    }
}

/* Of a matrix [in][out]. */
static double scale_of(const optimiser *o, matrix x)
{
    const double in = (double)x.rows, out = (double)x.width;
    return o->options.muon_rms ? 0.2 * sqrt(fmax(in, out)) : sqrt(fmax(1, out / in));
}

static void muon_step(const optimiser *o, const parameter *p)
{
    const matrix u = shaped(o->u, p->x.rows, p->x.width);
    o->on->op->momentum(o->on, u, p->m, p->g, o->factor);
    orthogonalise(o, u);
    o->on->op->descend(o->on, p->x, u, o->rate[MUON], scale_of(o, u), p->decay ? o->options.decay : 0);
}

/* The length of a model's gradient, all arrays together, and with it how much of the gradient is taken. */
static void clip(const optimiser *o)
{
    matrix g[OPTIMISER_ARRAYS];
    int count = 0;
    for (int i = 0; i < o->count; i++)
        if (!o->list[i].frozen) g[count++] = o->list[i].g;
    o->on->op->squares(o->on, o->squares, g, count);
    o->on->op->clip(o->on, o->factor, o->squares, o->options.clip);
}

void optimiser_step(optimiser *o)
{
    const ops *op = o->on->op;
    const parameter *list[OPTIMISER_ARRAYS];
    int count = 0;
    for (int i = ADAMW; i <= (o->options.muon ? MUON : ADAMW); i++)
        op->rate(o->on, o->rate[i], o->peak[i], o->at, o->options.warm, o->options.steps, o->options.least);
    clip(o);
    for (int i = 0; i < o->count; i++) {
        const parameter *p = &o->list[i];
        if (p->frozen) continue;
        if (by_muon(o, p))
            muon_step(o, p);
        else
            list[count++] = p;
    }
    op->adamw(o->on, list, count, o->factor, o->rate[ADAMW], o->at, o->options.beta_v, o->options.decay);
    op->advance(o->on, o->at);
    o->step++;
}
