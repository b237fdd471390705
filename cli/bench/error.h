/* SPDX-License-Identifier: MIT
 * How far results are from the float64 reference, on a sample that stays cheap at any length: the last
 * queries of the last sequence, in the query heads of its last key-value head. They are a problem of their
 * own with all the keys, so their outputs and dq are the same there; so are dk and dv of the last keys where
 * the mask is causal, since only the last queries see those. Of a recurrence, whose last tokens depend on all
 * before, the sample is the last head of the last sequence, whole, with all value heads that read it. */
#ifndef LOAM_CLI_BENCH_ERROR_H
#define LOAM_CLI_BENCH_ERROR_H

#include "cli/bench/arrays.h"

enum { BENCH_TAIL = 16 };

typedef struct bench_reference {
    bench_shape shape;   /* of the sample */
    bench_arrays arrays; /* float64 */
    int64_t keys;        /* the last keys whose gradients are whole in the sample */
} bench_reference;

/* Bytes of the arrays of a sample; a double as in bench_arrays_bytes. */
double bench_reference_bytes(const bench_shape *shape);
/* Computes the reference from the inputs as they are in their own type; bench_reference_free frees whatever
 * happened. */
int bench_reference_make(bench_reference *reference, const bench_arrays *arrays, io_error *error);
void bench_reference_free(bench_reference *reference);

/* The largest relative Frobenius error among the outputs in arrays. */
double bench_error(const bench_reference *reference, const bench_arrays *arrays);

#endif
