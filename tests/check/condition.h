/* SPDX-License-Identifier: MIT
 * How hard a case is: what float32 has to carry, per row and as a whole. Tolerances are made of this. */
#ifndef TESTS_CHECK_CONDITION_H
#define TESTS_CHECK_CONDITION_H

#include "tests/support/values.h"

/* One query of one head. */
typedef struct row_condition {
    double factor; /* >= 1: times this, the error of N(0, 1) data with ridge 0.1 is to be expected */
    double mass;   /* sum_j p_j (1 + |u_j|) |v_j|: what is added up for o */
    double terms;  /* sum_j p_j |rho| |k_j - kbar| |v_j|: what is added up for u, as o sees it */
    double score;  /* largest |score| after centring */
    double root;   /* 1/sqrt of the least ridge; 0 where there is none */
} row_condition;

typedef struct condition {
    row_condition *row; /* [batch, heads_q, tokens] */
    int tied;           /* two keys share the largest weight of a row, nearly */
    double worst;       /* the largest factor */
    double grad_o, key, value, query, probe, slope_of_fit; /* largest norms; keys and values centred */
    double raw_key, raw_value;                             /* not centred: what sums of them are rounded at */
    double distance;                                       /* of a query and a key that it sees */
} condition;

/* rho: the probes of the reference, or NULL. */
condition condition_of(const values *v, const double *rho);
void condition_free(condition *c);

#endif
