/* SPDX-License-Identifier: MIT
 * Positive features in the place of the softmax attention of a model's layers (docs/distill.md), in float64,
 * and how they start. */
#ifndef LOAM_DISTILL_STUDENT_H
#define LOAM_DISTILL_STUDENT_H

#include "distill/activations.h"

typedef struct student_layer {
    int64_t features;               /* M, of each head */
    int64_t *used;                  /* [heads]: of these, by student_use; the others have no weight */
    double *z, *log_alpha;          /* [heads][M][channels], [heads][M] */
    double *z_keys;                 /* as z: of keys, whose log alpha it is; NULL: z */
    double *shift;                  /* [heads][channels]: subtracted from keys */
    double *balance, *balance_keys; /* [heads][channels][channels]: A of queries, B of keys */
    double *gain;                   /* [heads][queries]: beside a window, by student_gains (gains.h); 0 */
} student_layer;

typedef struct student {
    int64_t layers, channels;
    int64_t heads, queries; /* of a layer; query heads that share one */
    int64_t sinks, window;  /* set by student_beside; window 0: none */
    student_layer *layer;
} student;

/* For such activations; features [layers], each 1 .. LOAM_MAX_DIM. shared: a head for each of the keys, not
 * of the queries. z and the rest are 0, A and B are I. On failure *s is all zero. */
int student_open(student *s, const activations *a, const int64_t *features, bool shared, io_error *error);
void student_close(student *s);

/* Heads have so many features [layers][heads], each 1 .. M of its layer; before student_begin. Log alpha of
 * the others is -1e4, which in a normalised read is a weight of 0. */
void student_use(student *s, const int64_t *used);

/* It is for tokens but the first `sinks` and the last `window`: pairs are drawn from those; before
 * student_begin. */
void student_beside(student *s, int64_t sinks, int64_t window);

/* r and, with `balance`, A and B of all heads from all windows. */
int student_calibrate(student *s, const activations *a, bool balance, int threads, io_error *error);

typedef enum student_start {
    STUDENT_PAIRS,  /* pair-attention sampling (dof/draw.h), of calibrated queries and keys */
    STUDENT_NORMAL, /* the next three: loam_projection_draw, log alpha = 0 */
    STUDENT_ORTHOGONAL,
    STUDENT_DCT,
    STUDENT_UNIFORM, /* all weights are alike: A = B = 0 */
    STUDENT_STARTS
} student_start;
const char *student_start_name(int start); /* NULL beyond the last */

/* z and log alpha of all heads; the same bits for any number of threads. */
int student_begin(student *s, const activations *a, student_start start, uint64_t seed, int threads,
                  io_error *error);

/* From now on keys have a z of their own, which begins as that of queries; once, after student_begin. */
int student_untie(student *s, io_error *error);

/* The arrays of an untied student as lm_features has them, rows of twice the channels: row `row` of a layer's
 * z, shift, A or B into out, float32. */
typedef enum student_array { STUDENT_Z, STUDENT_SHIFT, STUDENT_BALANCE, STUDENT_BALANCE_KEYS } student_array;
void student_wide_row(const student *s, int64_t layer, student_array which, int64_t row, float *out);

/* x = sqrt(scale) A q and y = sqrt(scale) B (k - r) [its tokens][channels] of a window, of a head's n-th
 * query head. y NULL: not wanted. */
void student_rows(const student *s, const activations *a, int64_t layer, int64_t head, int64_t n,
                  int64_t window, double *x, double *y);

#endif
