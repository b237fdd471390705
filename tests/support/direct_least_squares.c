/* SPDX-License-Identifier: MIT */
#include "tests/support/direct.h"

#include "tests/support/memory.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>

/* The rows of min 1/2 sum p |v - b - W (k - q)|^2 + 1/2 sum_a lambda_a |W_:a|^2: first the keys, each times
 * sqrt(p), columns [1, k - q]; then the ridge, sqrt(lambda_a) in column 1 + a. */
static void stack(const direct_row *r, const values *v, int64_t b, int64_t h, int64_t i, double *a, double *y)
{
    const spec *s = &v->spec;
    const sequence q = values_sequence(v, b);
    const int64_t d = s->dim_qk, kv = h / (s->heads_q / s->heads_kv);
    const double *query = slot_at(v, SLOT_Q, q.batch, h, q.q0 + i);
    for (int64_t j = 0; j < r->keys; j++) {
        const double *k = r->key + j * d;
        const double *value = slot_at(v, SLOT_V, q.batch, kv, q.k0 + j), root = sqrt(r->p[j]);
        a[j * (d + 1)] = root;
        for (int64_t c = 0; c < d; c++)
            a[j * (d + 1) + 1 + c] = root * (k[c] - query[c]);
        for (int64_t c = 0; c < s->dim_v; c++)
            y[j * s->dim_v + c] = root * value[c];
    }
    for (int64_t c = 0; c < d; c++)
        a[(r->keys + c) * (d + 1) + 1 + c] = sqrt(direct_ridge(r, v, b, h, i, c));
}

int direct_least_squares(const direct_row *r, const values *v, int64_t b, int64_t h, int64_t i, double *o)
{
    const int64_t d = v->spec.dim_qk, dv = v->spec.dim_v, rows = r->keys + d;
    const int64_t room = rows > d + 1 ? rows : d + 1;
    double *a = memory_zeroed((size_t)(room * (d + 1)), sizeof *a);
    double *y = memory_zeroed((size_t)(room * dv), sizeof *y);
    double *singular = memory_zeroed((size_t)(d + 1), sizeof *singular);
    lapack_int rank;
    stack(r, v, b, h, i, a, y);
    const lapack_int failed = LAPACKE_dgelsd(LAPACK_ROW_MAJOR, (lapack_int)rows, (lapack_int)(d + 1),
                                             (lapack_int)dv, a, (lapack_int)(d + 1), y, (lapack_int)dv,
                                             singular, -1, &rank);
    for (int64_t c = 0; c < dv; c++)
        o[c] = y[c];
    free(a);
    free(y);
    free(singular);
    return failed ? -1 : 0;
}
