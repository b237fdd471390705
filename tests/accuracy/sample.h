/* SPDX-License-Identifier: MIT
 * Inputs of one head, as float64 that the storage types under test hold exactly. */
#ifndef TESTS_ACCURACY_SAMPLE_H
#define TESTS_ACCURACY_SAMPLE_H

#include "loam.h"

typedef enum sample_kind {
    SAMPLE_NORMAL,    /* q, k ~ N(0, 1), as v, probe and grad_o are but where a kind says so */
    SAMPLE_UNIT,      /* q and k of norm 1 */
    SAMPLE_ANISO,     /* standard deviations of k from 2 to 0.05 along random axes */
    SAMPLE_SHIFT_4,   /* 4 added to every channel of k */
    SAMPLE_SHIFT_100, /* 100 likewise */
    SAMPLE_SELF,      /* q = k */
    SAMPLE_ROPE,      /* k and q: a common vector and noise, rotated by position */
    SAMPLE_EQUAL,     /* all keys are equal */
    SAMPLE_ONE,       /* each query sees one key */
    SAMPLE_DOMINANT,  /* one key takes nearly all weight of every row */
    SAMPLE_STEEP,     /* scores from about -80 to 80 */
    SAMPLE_LAYER_20,  /* q, k and v of layer 20 of a trained model (tests/support/real.h) */
    SAMPLE_LAYER_3,   /* of layer 3 */
    SAMPLE_KINDS
} sample_kind;

const char *sample_kind_name(sample_kind kind);

/* What the inputs are rounded to: float32, or numbers that bfloat16 and float16 both hold. */
typedef enum sample_grid { GRID_F32, GRID_HALVES } sample_grid;

typedef struct sample {
    int64_t len_q, len_kv, dim;
    int causal;
    int64_t window;
    double *q, *k, *v, *probe, *grad_o;
} sample;

/* len_q queries at the end of len_kv tokens; probe_size: the standard deviation of the probe. */
sample sample_make(sample_kind kind, sample_grid grid, int64_t len_q, int64_t len_kv, int64_t dim,
                   double probe_size, uint64_t seed);
/* The keys lo .. hi - 1 that query i sees. */
void sample_visible(const sample *s, int64_t i, int64_t *lo, int64_t *hi);
void sample_free(sample *s);

#endif
