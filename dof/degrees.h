/* SPDX-License-Identifier: MIT
 * Degrees of freedom of an attention head: how many features its kernel needs (docs/dof.md).
 *
 * N = tr G (G + lambda)^-1 with G = K / J, K_ij = exp(x_i.x_j) over a sample of J queries and keys, each
 * times the root of the scale of scores. K = E C E with E = diag(exp(|x_i|^2 / 2)) and
 * C_ij = exp(-|x_i - x_j|^2 / 2), so that
 *     N = tr C (C + Lam)^-1 = sum_i l_i,  l_i = 1 - Lam_i ((C + Lam)^-1)_ii,  Lam_i = J lambda exp(-|x_i|^2),
 * in which nothing overflows. l_i is the leverage score of sample i. */
#ifndef LOAM_DOF_DEGREES_H
#define LOAM_DOF_DEGREES_H

#include "io/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum dof_mode {
    DOF_REL,   /* lambda tr G in the place of lambda */
    DOF_ATTN,  /* of A A' / |A|^2, where A is the attention of a text */
    DOF_GAUSS, /* of C: the kernel with a diagonal of ones */
    DOF_ABS,   /* lambda as it is */
    DOF_MODES
} dof_mode;

const char *dof_mode_name(int mode); /* NULL beyond the last */

/* Of a whole sample or text, and of its first half. */
typedef struct dof_value {
    double whole, half;
} dof_value;

/* Room for samples and texts of at most so many. */
typedef struct dof_room {
    int64_t most, dim, stride; /* stride: of columns of the matrices */
    double *matrix;            /* C, or A A': above the diagonal; below it the system that is solved */
    double *second;            /* the attention */
    double *diagonal;          /* of `matrix` */
    double *rows, *more_rows;  /* [most][dim]: in float64 */
    double *squares, *ridge, *leverage;
} dof_room;

/* attention: with room for dof_attention. On failure *r is all zero. */
int dof_room_open(dof_room *r, int64_t most, int64_t dim, bool attention, io_error *error);
void dof_room_close(dof_room *r);

/* The kernel matrix of rows x [count][dim] times `factor`, for the calls below. */
void dof_sample(dof_room *r, const float *x, int64_t count, double factor);
/* Degrees of freedom of the first `count` rows of the sample, in any mode but DOF_ATTN. leverage, unless
 * NULL: [count]. Where the matrix is no number, or rounding has made it indefinite, false; else the lower
 * triangle of r->matrix is L^-1, columns r->stride apart, where L L' = C + Lam. */
bool dof_kernel(dof_room *r, dof_mode mode, double lambda, int64_t count, double *n, double *leverage);

/* sum_i s_i^2 / (s_i^2 + lambda sum s^2) over the singular values of softmax(scale q k'). q, k: rows with
 * these strides. The half is that of the first count / 2 tokens; NaN where the attention is not causal, for
 * then they see the others. False as above. */
typedef struct dof_text {
    const float *q, *k;
    int64_t q_row, k_row, count;
    double scale;
    bool causal;
} dof_text;
bool dof_attention(dof_room *r, const dof_text *text, double lambda, dof_value *n);

#endif
