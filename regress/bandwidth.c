/* SPDX-License-Identifier: MIT */
#include "regress/bandwidth.h"

#include <Random123/philox.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRID = 15, SECTIONS = 9, SAMPLE_LEAST = 250, SAMPLE_LEAST_BINNED = 4000 };
static const double pairs_most = 4e8;
static const double grid_first = 0.003, grid_ratio = 1.7;
static const double golden = 0.6180339887498949;

/* ---- the sample */

/* Number `index` of the seed's stream, below `bound` (of far less than 2^64: the bias is nothing). */
static uint64_t draw(uint64_t seed, int64_t index, int64_t bound)
{
    const philox2x64_ctr_t counter = { { (uint64_t)index, 0 } };
    const philox2x64_key_t key = { { seed } };
    return philox2x64(counter, key).v[0] % (uint64_t)bound;
}

/* Each row in turn is taken with the chance (still wanted) / (still to come). */
int regress_sample_make(regress_sample *sample, const regress_table *table, uint64_t seed, io_error *error)
{
    const int64_t rows = table->rows.rows, affordable = (int64_t)(pairs_most / (double)rows);
    const int64_t least = table->bins ? SAMPLE_LEAST_BINNED : SAMPLE_LEAST;
    int64_t wanted = affordable > least ? affordable : least;
    if (wanted > rows) wanted = rows;
    *sample = (regress_sample){ .rows = malloc((size_t)wanted * sizeof *sample->rows) };
    if (!sample->rows) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int64_t row = 0; sample->count < wanted; row++)
        if (draw(seed, row, rows - row) < (uint64_t)(wanted - sample->count))
            sample->rows[sample->count++] = row;
    return EXIT_OK;
}

void regress_sample_free(regress_sample *sample)
{
    free(sample->rows);
    memset(sample, 0, sizeof *sample);
}

/* ---- cross-validation */

typedef struct search {
    const regress_table *table;
    regress_smoother with;
    const regress_sample *sample;
    regress_fit *fits[REGRESS_ESTIMATORS];
    int status; /* of the first failure */
    io_error *error;
} search;

static double mean_square(const search *s, const regress_fit *fits)
{
    const regress_rows *rows = &s->table->rows;
    double sum = 0;
    for (int64_t i = 0; i < s->sample->count; i++) {
        const double residual = rows->y[s->sample->rows[i]] + s->table->y_mean - fits[i].value;
        sum += residual * residual;
    }
    return sum / (double)s->sample->count;
}

/* Scores below rounding are all equal: exactly affine data then get the largest bandwidth. */
static void evaluate(search *s, double bandwidth, const bool wanted[REGRESS_ESTIMATORS],
                     double scores[REGRESS_ESTIMATORS])
{
    regress_fit *fits[REGRESS_ESTIMATORS];
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        fits[e] = wanted[e] ? s->fits[e] : NULL;
    s->with.bandwidth = bandwidth;
    if (!s->status)
        s->status = regress_fit_others(s->table, s->with, s->sample->rows, s->sample->count, fits, s->error);
    const double floor = 1e-20 * s->table->y_deviation * s->table->y_deviation;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (wanted[e]) scores[e] = fmax(mean_square(s, fits[e]), floor);
}

static double grid_bandwidth(double index) { return grid_first * pow(grid_ratio, index); }

typedef struct bracket {
    regress_estimator estimator;
    double best, score; /* the place on the grid, in steps, and its score */
} bracket;

static double score_at(search *s, regress_estimator estimator, double place)
{
    bool wanted[REGRESS_ESTIMATORS] = { false };
    double scores[REGRESS_ESTIMATORS];
    wanted[estimator] = true;
    evaluate(s, grid_bandwidth(place), wanted, scores);
    return scores[estimator];
}

static void keep_better(bracket *b, double place, double score)
{
    if (score < b->score || (score <= b->score && place > b->best)) b->best = place, b->score = score;
}

/* The interval one step left and right of the best grid point shrinks to the better part. */
static void refine(search *s, bracket *b)
{
    double low = fmax(b->best - 1, 0), high = fmin(b->best + 1, GRID - 1);
    double left = high - golden * (high - low), right = low + golden * (high - low);
    double left_score = score_at(s, b->estimator, left), right_score = score_at(s, b->estimator, right);
    for (int i = 2;; i++) {
        keep_better(b, left, left_score);
        keep_better(b, right, right_score);
        if (i >= SECTIONS) return;
        if (left_score < right_score) {
            high = right, right = left, right_score = left_score;
            left = high - golden * (high - low);
            left_score = score_at(s, b->estimator, left);
        } else {
            low = left, left = right, left_score = right_score;
            right = low + golden * (high - low);
            right_score = score_at(s, b->estimator, right);
        }
    }
}

static void scan_grid(search *s, const bool wanted[REGRESS_ESTIMATORS], bracket brackets[REGRESS_ESTIMATORS])
{
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        brackets[e] = (bracket){ .estimator = (regress_estimator)e, .score = HUGE_VAL };
    for (int i = 0; i < GRID; i++) {
        double scores[REGRESS_ESTIMATORS];
        evaluate(s, grid_bandwidth(i), wanted, scores);
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            if (wanted[e]) keep_better(&brackets[e], i, scores[e]);
    }
}

static void run_search(search *s, const bool wanted[REGRESS_ESTIMATORS],
                       regress_choice choices[REGRESS_ESTIMATORS])
{
    bracket brackets[REGRESS_ESTIMATORS];
    int refinements = 0;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        refinements += wanted[e];
    regress_watch_begin(s->with.watch, "bandwidth", (GRID + SECTIONS * refinements) * s->sample->count);
    scan_grid(s, wanted, brackets);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!wanted[e]) continue;
        bracket *b = &brackets[e];
        refine(s, b);
        choices[e] = (regress_choice){ .bandwidth = grid_bandwidth(b->best),
                                       .score = b->score,
                                       .smallest = b->best<0.1, .largest = b->best> GRID - 1.1 };
    }
    regress_watch_end(s->with.watch);
}

int regress_choose_bandwidth(const regress_table *table, regress_smoother with, const regress_sample *sample,
                             const bool wanted[REGRESS_ESTIMATORS],
                             regress_choice choices[REGRESS_ESTIMATORS], io_error *error)
{
    regress_fit *fits = calloc((size_t)sample->count * REGRESS_ESTIMATORS, sizeof *fits);
    if (!fits) return io_fail(error, EXIT_INTERNAL, "out of memory");
    search s = { .table = table, .with = with, .sample = sample, .error = error };
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        s.fits[e] = fits + e * sample->count;
    run_search(&s, wanted, choices);
    free(fits);
    return s.status;
}

/* ---- noise */

static void gather_points(const regress_rows *rows, const regress_sample *sample, double *points)
{
    for (int c = 0; c < rows->columns; c++)
        for (int64_t i = 0; i < sample->count; i++)
            points[c * sample->count + i] = rows->x[c * rows->rows + sample->rows[i]];
}

static regress_noise noise_of(const regress_table *table, const regress_sample *sample,
                              const regress_fit *fits)
{
    double squares = 0, freedom = 0, own = 0;
    for (int64_t i = 0; i < sample->count; i++) {
        const double residual = table->y[sample->rows[i]] + table->y_mean - fits[i].value;
        squares += residual * residual;
        freedom += 1 - 2 * fits[i].own + fits[i].norm2;
        own += fits[i].own;
    }
    const double count = (double)sample->count;
    return (regress_noise){ .variance = freedom > 1e-6 * count ? squares / freedom : -1,
                            .parameters = own * (double)table->rows.rows / count };
}

int regress_estimate_noise(const regress_table *table, regress_smoother with, const regress_sample *sample,
                           regress_estimator estimator, regress_noise *noise, io_error *error)
{
    const size_t count = (size_t)sample->count;
    double *points = malloc(count * sizeof *points * (size_t)table->rows.columns);
    regress_fit *fits = malloc(count * sizeof *fits);
    if (!points || !fits) {
        free(points);
        free(fits);
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    }
    gather_points(&table->rows, sample, points);
    search s = { .table = table, .with = with, .sample = sample };
    regress_wish wish = { .squares = true };
    wish.fits[estimator] = fits;
    regress_watch_begin(with.watch, "noise", 2 * sample->count);
    int status = regress_fit_points(table, with, points, sample->count, &wish, error);
    if (!status) {
        *noise = noise_of(table, sample, fits);
        status = regress_fit_others(table, with, sample->rows, sample->count, wish.fits, error);
    }
    if (!status) noise->score = mean_square(&s, fits);
    regress_watch_end(with.watch);
    free(points);
    free(fits);
    return status;
}
