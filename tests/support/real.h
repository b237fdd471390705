/* SPDX-License-Identifier: MIT
 * Queries, keys and values of a trained model (data/README.md): of a layer one key head and its query
 * heads. */
#ifndef TESTS_SUPPORT_REAL_H
#define TESTS_SUPPORT_REAL_H

#include "io/array.h"
#include "tests/support/spec.h"

typedef struct real_layer {
    array x[3]; /* q, k, v: (heads, tokens, channels) */
} real_layer;

/* Layer 20 or 3, from the folder that the environment variable LOAM_TEST_DATA names, or else the tree's. Ends
 * the program where it is not there. */
real_layer real_read(int number);
void real_free(real_layer *layer);
/* The row of `token`, modulo the layer's tokens, of SLOT_Q, SLOT_K or SLOT_V; channels beyond its own are
 * those of the tokens after it. */
void real_row(const real_layer *layer, slot which, int64_t head, int64_t token, int64_t channels, double *x);

#endif
