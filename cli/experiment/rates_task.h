/* SPDX-License-Identifier: MIT
 * The data of the experiment on rates: n pairs of a point of [0, 1]^d and a value, f(x) seen through noise,
 * and the points where a fit is asked for. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_TASK_H
#define LOAM_CLI_EXPERIMENT_RATES_TASK_H

#include "io/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { RATES_MAX_DIM = 4, RATES_MAX_PAIRS = 1 << 20, RATES_CHANNELS = 64 };

/* Values with a noise of their own at the same points: channels of the value, which cost little and make
 * errors of a mean smaller. */
enum { RATES_DRAWS = 64 };

typedef enum rates_setting {
    RATES_CUBE,    /* keys are the points, queries are points of their own */
    RATES_ORDERED, /* pairs by ascending first coordinate; each is asked for from those before it */
    RATES_SPHERE   /* as the cube, but keys have RATES_CHANNELS channels and length 1: a surface */
} rates_setting;

/* "cube", "ordered", "sphere", NULL. */
const char *rates_setting_name(int index);

typedef struct rates_task {
    rates_setting setting;
    int64_t dim, pairs, queries; /* RATES_ORDERED: queries = pairs */
    double noise;
    uint64_t seed;
} rates_task;

/* Where errors are measured: everywhere, or where all coordinates are in 0.3 .. 0.7. With RATES_ORDERED the
 * first coordinate, time, is in 0.3 .. 1 in both. */
typedef enum rates_region { RATES_WHOLE, RATES_INTERIOR, RATES_REGIONS } rates_region;

/* One repetition. */
typedef struct rates_sample {
    int64_t pairs, queries, channels;
    double *keys, *values;       /* [pairs, channels], [pairs, RATES_DRAWS] */
    double *asked, *truth;       /* [queries, channels], [queries]: the queries, and f there */
    bool *inside[RATES_REGIONS]; /* [queries] */
    double unit; /* the distance of two keys whose points are 1 apart, in the limit of near ones */
    void *block;
} rates_sample;

double rates_function(const double *point, int64_t dim);

int64_t rates_channels(const rates_task *task);
int rates_sample_make(rates_sample *sample, const rates_task *task, int64_t repetition, io_error *error);
void rates_sample_free(rates_sample *sample);

#endif
