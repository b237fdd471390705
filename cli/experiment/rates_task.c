/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_task.h"

#include "random/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;
static const double interior_from = 0.3, interior_to = 0.7;

/* The angle that a coordinate turns its circle by: no two points meet, and the surface bends. */
static const double turn = 0.25;

const char *rates_setting_name(int index)
{
    static const char *const names[] = { "cube", "ordered", "sphere", NULL };
    return names[index];
}

double rates_function(const double *point, int64_t dim)
{
    double sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += 3 * point[c] + 0.7 * sin(2 * pi * point[c]);
    return sum;
}

int64_t rates_channels(const rates_task *task)
{
    return task->setting == RATES_SPHERE ? RATES_CHANNELS : task->dim;
}

typedef enum purpose { FOR_POINTS, FOR_NOISE, FOR_QUERIES, FOR_FRAME } purpose;

/* The same stream for every number of pairs: fewer pairs are the first ones of more. */
static random_stream stream_of(const rates_task *task, int64_t repetition, purpose use)
{
    return (random_stream){ task->seed,
                            (uint64_t)repetition << 8 | (uint64_t)task->dim << 2 | (uint64_t)use };
}

/* Uniform in [0, 1]^dim, by the distribution function of normal deviates. */
static void draw_points(random_stream from, int64_t count, double *points)
{
    random_normals(from, 0, count, points);
    for (int64_t i = 0; i < count; i++)
        points[i] = 0.5 * erfc(-points[i] / sqrt(2));
}

static int by_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A circle for each coordinate, in planes that a reflection turns away from the axes. */
static void embed(const rates_task *task, const double *mirror, const double *point, double *key)
{
    const double radius = 1 / sqrt((double)task->dim);
    double product = 0;
    memset(key, 0, RATES_CHANNELS * sizeof *key);
    for (int64_t c = 0; c < task->dim; c++) {
        key[2 * c] = radius * cos(turn * point[c]);
        key[2 * c + 1] = radius * sin(turn * point[c]);
    }
    for (int64_t c = 0; c < 2 * task->dim; c++)
        product += mirror[c] * key[c];
    for (int64_t c = 0; c < RATES_CHANNELS; c++)
        key[c] -= 2 * product * mirror[c];
}

static void draw_mirror(const rates_task *task, double mirror[RATES_CHANNELS])
{
    double square = 0;
    random_normals(stream_of(task, 0, FOR_FRAME), 0, RATES_CHANNELS, mirror);
    for (int c = 0; c < RATES_CHANNELS; c++)
        square += mirror[c] * mirror[c];
    for (int c = 0; c < RATES_CHANNELS; c++)
        mirror[c] /= sqrt(square);
}

static void place_keys(const rates_task *task, const double *points, int64_t count, double *keys)
{
    double mirror[RATES_CHANNELS];
    if (task->setting != RATES_SPHERE) {
        memcpy(keys, points, (size_t)(count * task->dim) * sizeof *keys);
        return;
    }
    draw_mirror(task, mirror);
    for (int64_t i = 0; i < count; i++)
        embed(task, mirror, points + i * task->dim, keys + i * RATES_CHANNELS);
}

static void mark_regions(const rates_task *task, const double *points, rates_sample *sample)
{
    for (int64_t i = 0; i < sample->queries; i++) {
        const double *point = points + i * task->dim;
        bool middle = true;
        for (int64_t c = task->setting == RATES_ORDERED; c < task->dim; c++)
            middle &= point[c] >= interior_from && point[c] <= interior_to;
        const bool counts = task->setting != RATES_ORDERED || point[0] >= interior_from;
        sample->inside[RATES_WHOLE][i] = counts;
        sample->inside[RATES_INTERIOR][i] = counts && middle;
    }
}

/* points: scratch for the larger of pairs and queries. */
static void fill_sample(const rates_task *task, int64_t repetition, double *points, rates_sample *sample)
{
    const bool ordered = task->setting == RATES_ORDERED;
    const int64_t d = task->dim;
    draw_points(stream_of(task, repetition, FOR_POINTS), task->pairs * d, points);
    if (ordered) qsort(points, (size_t)task->pairs, (size_t)d * sizeof *points, by_first);
    place_keys(task, points, task->pairs, sample->keys);
    random_normals(stream_of(task, repetition, FOR_NOISE), 0, task->pairs * RATES_DRAWS, sample->values);
    for (int64_t i = 0; i < task->pairs; i++) {
        const double truth = rates_function(points + i * d, d);
        for (int64_t v = i * RATES_DRAWS; v < (i + 1) * RATES_DRAWS; v++)
            sample->values[v] = truth + task->noise * sample->values[v];
    }
    if (!ordered) draw_points(stream_of(task, repetition, FOR_QUERIES), task->queries * d, points);
    place_keys(task, points, task->queries, sample->asked);
    for (int64_t i = 0; i < task->queries; i++)
        sample->truth[i] = rates_function(points + i * d, d);
    mark_regions(task, points, sample);
}

int rates_sample_make(rates_sample *sample, const rates_task *task, int64_t repetition, io_error *error)
{
    const int64_t n = task->pairs, m = task->queries, channels = rates_channels(task);
    const int64_t doubles = (n + m) * channels + n * RATES_DRAWS + m + (n > m ? n : m) * task->dim;
    double *at = malloc((size_t)doubles * sizeof *at + (size_t)(RATES_REGIONS * m) * sizeof(bool));
    *sample = (rates_sample){ .pairs = n, .queries = m, .channels = channels, .block = at };
    if (!at) return io_fail(error, EXIT_INTERNAL, "out of memory");
    sample->unit = task->setting == RATES_SPHERE ? turn / sqrt((double)task->dim) : 1;
    sample->keys = at;
    sample->values = at += n * channels;
    sample->asked = at += n * RATES_DRAWS;
    sample->truth = at += m * channels;
    double *points = at + m;
    bool *marks = (bool *)(points + (n > m ? n : m) * task->dim);
    for (int r = 0; r < RATES_REGIONS; r++)
        sample->inside[r] = marks + r * m;
    fill_sample(task, repetition, points, sample);
    return EXIT_OK;
}

void rates_sample_free(rates_sample *sample)
{
    free(sample->block);
    sample->block = NULL;
}
