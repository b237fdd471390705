/* SPDX-License-Identifier: MIT */
#include "train/data.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { FOR_POINTS, FOR_MAPS, FOR_NOISE, FOR_ORDER, FOR_SEGMENTS, FOR_QUERIES };

/* One example on its way. */
typedef struct scene {
    const regression_shape *shape;
    uint64_t seed;
    train_split split;
    int64_t example;
    int cone;               /* channels whose signs tell segments apart */
    double *map;            /* [dim_x][dim_y] of the segment at hand */
    int32_t *order, *place; /* [length]: of each row of x the row as drawn; and the way back */
} scene;

static random_stream stream_of(const scene *s, int purpose)
{
    return train_stream(s->seed, TRAIN_REGRESSION, s->split, purpose, s->example);
}

int64_t regression_scratch(const regression_shape *shape)
{
    return shape->dim_x * shape->dim_y * (int64_t)sizeof(double) +
           2 * shape->length * (int64_t)sizeof(int32_t);
}

static int cone_channels(const regression_shape *shape)
{
    int channels = 0;
    while (shape->segment << channels < shape->length)
        channels++;
    assert(shape->segment << channels == shape->length && channels <= shape->dim_x);
    return channels;
}

/* A point of segment c, whose first channels have the signs of the bits of c (1: plus). */
static void draw_point(const scene *s, int purpose, int64_t row, int64_t c, double *point)
{
    const int64_t n = s->shape->dim_x;
    random_normals(stream_of(s, purpose), (uint64_t)(row * n), n, point);
    for (int b = 0; b < s->cone; b++)
        point[b] = c >> b & 1 ? fabs(point[b]) : -fabs(point[b]);
}

/* value += A_c point. */
static void add_image(const scene *s, const double *point, double *value)
{
    const int64_t dim_y = s->shape->dim_y;
    for (int64_t a = 0; a < s->shape->dim_x; a++)
        for (int64_t b = 0; b < dim_y; b++)
            value[b] += point[a] * s->map[a * dim_y + b];
}

/* N(0, 1 / dim_x) entries. */
static void draw_map(const scene *s, int64_t c)
{
    const int64_t dim_x = s->shape->dim_x, size = dim_x * s->shape->dim_y;
    random_normals(stream_of(s, FOR_MAPS), (uint64_t)((c - 1) * size), size, s->map);
    for (int64_t i = 0; i < size; i++)
        s->map[i] /= sqrt((double)dim_x);
}

static void fill_context(const scene *s, int64_t c, double *x)
{
    const int64_t dim_x = s->shape->dim_x, dim_y = s->shape->dim_y, segment = s->shape->segment;
    for (int64_t row = (c - 1) * segment; row < c * segment; row++) {
        double *point = x + s->place[row] * (dim_x + dim_y), *value = point + dim_x;
        draw_point(s, FOR_POINTS, row, c, point);
        random_normals(stream_of(s, FOR_NOISE), (uint64_t)(row * dim_y), dim_y, value);
        for (int64_t b = 0; b < dim_y; b++)
            value[b] *= s->shape->noise;
        add_image(s, point, value);
    }
}

/* Those queries that are of segment c. */
static void fill_queries(const scene *s, int64_t c, double *x, double *y)
{
    const int64_t dim_x = s->shape->dim_x, dim_y = s->shape->dim_y, length = s->shape->length;
    for (int64_t i = 0; i < s->shape->queries; i++) {
        uint64_t word;
        random_words(stream_of(s, FOR_SEGMENTS), (uint64_t)i, 1, &word);
        if (1 + random_below(word, length / s->shape->segment) != c) continue;
        double *point = x + (length + i) * (dim_x + dim_y);
        draw_point(s, FOR_QUERIES, i, c, point);
        memset(point + dim_x, 0, (size_t)dim_y * sizeof *point);
        memset(y + i * dim_y, 0, (size_t)dim_y * sizeof *y);
        add_image(s, point, y + i * dim_y);
    }
}

void regression_example(const regression_shape *shape, uint64_t seed, train_split split, int64_t example,
                        double *x, double *y, void *scratch)
{
    scene s = { shape, seed, split, example, cone_channels(shape), scratch, NULL, NULL };
    s.order = (int32_t *)(s.map + shape->dim_x * shape->dim_y);
    s.place = s.order + shape->length;
    /* `place` is the table that the order is drawn from, before it is the way back. */
    random_distinct(stream_of(&s, FOR_ORDER), shape->length, shape->length, s.place, s.order);
    for (int64_t i = 0; i < shape->length; i++)
        s.place[s.order[i]] = (int32_t)i;
    for (int64_t c = 1; c <= shape->length / shape->segment; c++) {
        draw_map(&s, c);
        fill_context(&s, c, x);
        fill_queries(&s, c, x, y);
    }
}
