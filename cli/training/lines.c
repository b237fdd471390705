/* SPDX-License-Identifier: MIT */
#include "cli/training/lines.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- regression: ridge regression on weighted pairs, and sums of its errors over the queries of an
 * example */

static const double cone_scales[] = { 0.18, 0.5, 1, 2, 4, 8 }, rest_scales[] = { 0, 0.05, 0.18, 0.35 };
static const double ridges[] = { 0.003, 0.03, 0.3, 1 }, map_ridges[] = { 1e-4, 0.32, 3, 30, 100, 300 };

enum {
    CONES = sizeof cone_scales / sizeof *cone_scales,
    RESTS = sizeof rest_scales / sizeof *rest_scales,
    RIDGES = sizeof ridges / sizeof *ridges,
    MAPS = sizeof map_ridges / sizeof *map_ridges
};

typedef struct sums {
    double targets;                                   /* of y^2 */
    double along[CONES][RESTS], length[CONES][RESTS]; /* softmax says o: of o y, and of o^2 */
    double lla[CONES][RESTS][RIDGES], map[MAPS], own; /* squared errors */
} sums;

/* An example, and room for its fits. */
typedef struct scene {
    const regression_shape *shape;
    int64_t row;             /* elements from one pair to the next */
    int cone;                /* channels whose signs tell segments apart */
    double *x, *y;           /* as regression_example has them */
    double *p;               /* [length] weights */
    double *weighted;        /* [length][dim_x] p k */
    double *matrix, *factor; /* [dim_x][dim_x] */
    double *cross;           /* [dim_x][dim_y] */
    double *kbar, *probe;    /* [dim_x] */
    double *vbar, *o;        /* [dim_y] */
    void *scratch;
} scene;

/* Doubles that a scene takes; with a base it is made there. */
static int64_t scene_make(scene *e, const regression_shape *s, double *base)
{
    const int64_t inputs = s->dim_x, outputs = s->dim_y, queries = s->queries;
    const struct {
        double **at;
        int64_t count;
    } parts[] = { { &e->x, (s->length + queries) * (inputs + outputs) },
                  { &e->y, queries * outputs },
                  { &e->p, s->length },
                  { &e->weighted, s->length * inputs },
                  { &e->matrix, inputs * inputs },
                  { &e->factor, inputs * inputs },
                  { &e->cross, inputs * outputs },
                  { &e->kbar, inputs },
                  { &e->probe, inputs },
                  { &e->vbar, outputs },
                  { &e->o, outputs } };
    int64_t used = 0;
    *e = (scene){ .shape = s, .row = inputs + outputs };
    while (s->segment << e->cone < s->length)
        e->cone++;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; used += parts[i++].count)
        if (base) *parts[i].at = base + used;
    if (base) e->scratch = base + used;
    return used + (regression_scratch(s) + 7) / (int64_t)sizeof(double);
}

static const double *query_of(const scene *e, int64_t n) { return e->x + (e->shape->length + n) * e->row; }

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* |o - y_n|^2 */
static double miss(const scene *e, int64_t n)
{
    const double *y = e->y + n * e->shape->dim_y;
    double sum = 0;
    for (int64_t c = 0; c < e->shape->dim_y; c++)
        sum += (e->o[c] - y[c]) * (e->o[c] - y[c]);
    return sum;
}

/* matrix = sum p k k^T - kbar kbar^T and cross = sum p k v^T - kbar vbar^T. */
static void gather_moments(const scene *e)
{
    const int64_t d = e->shape->dim_x, outputs = e->shape->dim_y, length = e->shape->length;
    for (int64_t a = 0; a < d; a++)
        for (int64_t b = 0; b < d; b++)
            e->matrix[a * d + b] = e->kbar[a] * e->kbar[b];
    for (int64_t a = 0; a < d; a++)
        for (int64_t c = 0; c < outputs; c++)
            e->cross[a * outputs + c] = e->kbar[a] * e->vbar[c];
    for (int64_t j = 0; j < length; j++)
        for (int64_t a = 0; a < d; a++)
            e->weighted[j * d + a] = e->p[j] * e->x[j * e->row + a];
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)d, (int)d, (int)length, 1, e->weighted, (int)d,
                e->x, (int)e->row, -1, e->matrix, (int)d);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)d, (int)outputs, (int)length, 1, e->weighted,
                (int)d, e->x + d, (int)e->row, -1, e->cross, (int)outputs);
}

/* The squared error at query n of o = vbar + cross^T (matrix + ridge I)^-1 (q - kbar). */
static double ridge_error(const scene *e, double ridge, int64_t n)
{
    const int64_t d = e->shape->dim_x, outputs = e->shape->dim_y;
    memcpy(e->factor, e->matrix, (size_t)(d * d) * sizeof *e->factor);
    for (int64_t a = 0; a < d; a++) {
        e->factor[a * d + a] += ridge;
        e->probe[a] = query_of(e, n)[a] - e->kbar[a];
    }
    memcpy(e->o, e->vbar, (size_t)outputs * sizeof *e->o);
    if (LAPACKE_dposv_work(LAPACK_COL_MAJOR, 'U', (lapack_int)d, 1, e->factor, (lapack_int)d, e->probe,
                           (lapack_int)d) != 0)
        return NAN;
    cblas_dgemv(CblasRowMajor, CblasTrans, (int)d, (int)outputs, 1, e->cross, (int)outputs, e->probe, 1, 1,
                e->o, 1);
    return miss(e, n);
}

/* One map for all pairs. */
static void fit_map(const scene *e, sums *s)
{
    for (int64_t j = 0; j < e->shape->length; j++)
        e->p[j] = 1;
    gather_moments(e);
    for (int i = 0; i < MAPS; i++)
        for (int64_t n = 0; n < e->shape->queries; n++)
            s->map[i] += ridge_error(e, map_ridges[i], n);
}

static bool same_segment(const scene *e, const double *a, const double *b)
{
    for (int c = 0; c < e->cone; c++)
        if ((a[c] > 0) != (b[c] > 0)) return false;
    return true;
}

static void fit_own(const scene *e, double noise, sums *s)
{
    for (int64_t n = 0; n < e->shape->queries; n++) {
        for (int64_t j = 0; j < e->shape->length; j++)
            e->p[j] = same_segment(e, e->x + j * e->row, query_of(e, n));
        gather_moments(e);
        s->own += ridge_error(e, noise * noise * (double)e->shape->dim_x, n);
    }
}

/* p_j = exp(a q.k + b q.k), normalised; then kbar, vbar. */
static void weigh(const scene *e, const double *q, double a, double b)
{
    const int64_t length = e->shape->length, d = e->shape->dim_x;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < length; j++) {
        const double *k = e->x + j * e->row;
        e->p[j] = a * dot(q, k, e->cone) + b * dot(q + e->cone, k + e->cone, d - e->cone);
        most = fmax(most, e->p[j]);
    }
    for (int64_t j = 0; j < length; j++)
        sum += e->p[j] = exp(e->p[j] - most);
    cblas_dscal((int)length, 1 / sum, e->p, 1);
    cblas_dgemv(CblasRowMajor, CblasTrans, (int)length, (int)d, 1, e->x, (int)e->row, e->p, 1, 0, e->kbar, 1);
    cblas_dgemv(CblasRowMajor, CblasTrans, (int)length, (int)e->shape->dim_y, 1, e->x + d, (int)e->row, e->p,
                1, 0, e->vbar, 1);
}

/* One segment has no cone, and one scale of it is enough. */
static int cones_of(const scene *e) { return e->cone > 0 ? CONES : 1; }

static void fit_weighted(const scene *e, sums *s)
{
    const int64_t outputs = e->shape->dim_y;
    for (int64_t n = 0; n < e->shape->queries; n++)
        for (int a = 0; a < cones_of(e); a++)
            for (int b = 0; b < RESTS; b++) {
                weigh(e, query_of(e, n), cone_scales[a], rest_scales[b]);
                s->along[a][b] += dot(e->vbar, e->y + n * outputs, outputs);
                s->length[a][b] += dot(e->vbar, e->vbar, outputs);
                gather_moments(e);
                for (int r = 0; r < RIDGES; r++)
                    s->lla[a][b][r] += ridge_error(e, ridges[r], n);
            }
}

static void fit_example(scene *e, const regression_shape *shape, uint64_t seed, int64_t example, sums *s)
{
    const int64_t outputs = shape->queries * shape->dim_y;
    regression_shape exact = *shape;
    exact.noise = 0;
    regression_example(&exact, seed, TRAIN_SPLIT_TEST, example, e->x, e->y, e->scratch);
    *s = (sums){ .targets = dot(e->y, e->y, outputs) };
    memset(e->kbar, 0, (size_t)shape->dim_x * sizeof *e->kbar);
    memset(e->vbar, 0, (size_t)shape->dim_y * sizeof *e->vbar);
    fit_map(e, s);
    fit_own(e, shape->noise, s);
    fit_weighted(e, s);
}

static double least(const double *x, int64_t count)
{
    double found = INFINITY;
    for (int64_t i = 0; i < count; i++)
        found = fmin(found, x[i]);
    return found;
}

/* The best of each grid; softmax with the gain that is best, sum o y / sum o^2. */
static regression_lines lines_of(const sums *s, int cones, double count)
{
    double softmax = INFINITY;
    for (int a = 0; a < cones; a++)
        for (int b = 0; b < RESTS; b++)
            softmax = fmin(softmax, s->targets - s->along[a][b] * s->along[a][b] / s->length[a][b]);
    return (regression_lines){ s->targets / count, softmax / count,
                               least(&s->lla[0][0][0], (int64_t)cones * RESTS * RIDGES) / count,
                               least(s->map, MAPS) / count, s->own / count };
}

int lines_regression(const machine *on, const regression_shape *shape, uint64_t seed, int64_t examples,
                     regression_lines *lines, io_error *error)
{
    scene e;
    const int64_t doubles = scene_make(&e, shape, NULL);
    double *room = calloc((size_t)(on->threads * doubles), sizeof *room);
    sums *each = calloc((size_t)examples, sizeof *each);
    if (!room || !each) {
        free(room), free(each);
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    }
#pragma omp parallel for num_threads(on->threads) schedule(static)
    for (int64_t i = 0; i < examples; i++) {
        scene at;
        scene_make(&at, shape, room + omp_get_thread_num() * doubles);
        fit_example(&at, shape, seed, i, &each[i]);
    }
    /* All of a sums is doubles. */
    double *total = (double *)&each[0];
    for (int64_t i = 1; i < examples; i++)
        cblas_daxpy(sizeof *each / sizeof *total, 1, (const double *)&each[i], 1, total, 1);
    *lines = lines_of(&each[0], cones_of(&e), (double)(examples * shape->queries * shape->dim_y));
    free(room), free(each);
    return EXIT_OK;
}

/* ---- swaps */

/* The item that a place holds at first, once its last `hops` swaps are undone. words: from "i j ,". */
static int32_t follow(const int32_t *tokens, int64_t places, int32_t place, int hops)
{
    const int32_t *first = tokens + 4 * places, *end = first;
    while (end[2] != SWAPS_HASH)
        end += 3;
    for (; end >= first && hops > 0; end -= 3) {
        if (place != end[0] && place != end[1]) continue;
        place = place == end[0] ? end[1] : end[0];
        hops--;
    }
    return tokens[4 * (place - SWAPS_PLACE) + 2];
}

int lines_swaps(const swaps_shape *shape, uint64_t seed, int64_t examples, double right[LINES_HOPS],
                io_error *error)
{
    const int64_t length = swaps_length(shape);
    int32_t at[SWAPS_QUERIES], target[SWAPS_QUERIES], *tokens = malloc((size_t)length * sizeof *tokens);
    void *scratch = malloc((size_t)swaps_scratch(shape));
    if (!tokens || !scratch) {
        free(tokens), free(scratch);
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    }
    for (int hops = 0; hops < LINES_HOPS; hops++)
        right[hops] = 0;
    for (int64_t i = 0; i < examples; i++) {
        swaps_example(shape, seed, TRAIN_SPLIT_TEST, i, tokens, at, target, scratch);
        for (int n = 0; n < SWAPS_QUERIES; n++)
            for (int hops = 0; hops < LINES_HOPS; hops++)
                right[hops] += follow(tokens, shape->places, tokens[at[n] - 1], hops) == target[n];
    }
    for (int hops = 0; hops < LINES_HOPS; hops++)
        right[hops] /= (double)(examples * SWAPS_QUERIES);
    free(tokens), free(scratch);
    return EXIT_OK;
}

/* ---- of a plan */

int lines_of_plan(const machine *on, const plan *p, plan_lines *lines, io_error *error)
{
    enum { SEQUENCES = 32 };
    int status = EXIT_OK;
    *lines = (plan_lines){ 0 };
    for (int i = 0; i < p->cell_count && status == EXIT_OK; i++) {
        const train_source *from = &p->cells[i].from;
        if (p->task == TRAIN_REGRESSION)
            status = lines_regression(on, &from->regression, p->seeds[0], SEQUENCES, &lines->regression[i],
                                      error);
        else if (p->task == TRAIN_SWAPS)
            status = lines_swaps(&from->swaps, p->seeds[0], from->part[0].examples[TRAIN_SPLIT_TEST],
                                 lines->swaps[i], error);
    }
    return status;
}
