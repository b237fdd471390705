/* SPDX-License-Identifier: MIT
 * The mechanisms from their definitions, one query at a time, in float64: independent of the library. */
#ifndef TESTS_SUPPORT_DIRECT_H
#define TESTS_SUPPORT_DIRECT_H

#include "tests/support/values.h"

/* One query and the keys of its sequence. */
typedef struct direct_row {
    int64_t keys;  /* of the sequence */
    double *score; /* [keys], -inf where the query does not see the key */
    double *p;     /* [keys] normalised weights; the sink's share is missing from their sum */
    double lse, largest_p;
    int64_t seen;
    double *kbar, *vbar; /* [dim_qk], [dim_v] */
    double *key;         /* [keys][dim_qk], as the query sees them */
    int64_t turned_b, turned_h, turned_to; /* PaTH: of which sequence and head, up to which position; from 1, 0: none */
    double trace;        /* of the covariance of the keys */
    double steepness;    /* largest |score| after centring the keys: what float32 must carry */
} direct_row;

/* Room for any row of the case. */
direct_row direct_make(const values *v);
void direct_free(direct_row *r);
/* Query i of head h of sequence b. */
void direct_weights(direct_row *r, const values *v, int64_t b, int64_t h, int64_t i);
/* Lambda of channel c, in units of the normalised weights. */
double direct_ridge(const direct_row *r, const values *v, int64_t b, int64_t h, int64_t i, int64_t c);
/* o = sum p (1 - probe . (k - kbar)) v; probe NULL: sum p v. */
void direct_output(const direct_row *r, const values *v, int64_t b, int64_t h, const double *probe,
                   double *o);
/* The fitted value at the query, by least squares on the stacked system (LAPACK, no normal equations).
 * 0, or -1 where LAPACK fails. */
int direct_least_squares(const direct_row *r, const values *v, int64_t b, int64_t h, int64_t i, double *o);

#endif
