/* SPDX-License-Identifier: MIT
 * The parts that the kernels are made of, as one instruction set has them, and what they are measured
 * beside. */
#ifndef LOAM_BENCH_PARTS_H
#define LOAM_BENCH_PARTS_H

#include <stdint.h>

enum { PARTS_LANES = 64, PARTS_TILE = 64, PARTS_MOST_DIM = 256 };

/* c [rows][PARTS_LANES] (+)= sum over t of A(r, t) b [t][PARTS_LANES]; A as in src/simd/panel.h. */
typedef struct parts_product {
    int64_t rows, t_count, row_stride, t_stride;
    int add;
} parts_product;

/* What one instruction set, or one library, has; NULL where it lacks a part. */
typedef struct parts {
    const char *by;
    /* `rounds` of multiply-adds that touch registers only; returns the operations done. */
    double (*peak)(float *out, const float *in, int64_t rounds);
    int (*ready)(
        const parts_product *shape); /* where given: called before products of that shape; 0: it cannot */
    void (*product)(const parts_product *shape, float *c, const float *a, const float *b);
    void (*exps)(float *y, const float *x, int64_t count); /* count: a multiple of PARTS_LANES */
    void (*tanhs)(float *y, const float *x, int64_t count);
    void (*load)(float *to, const void *from, int dtype, int64_t count); /* dtype: a loam_dtype */
    void (*store)(void *to, const float *from, int dtype, int64_t count);
    void (*factor)(double *a, int64_t n);
} parts;

extern const parts parts_openblas, parts_libxsmm;

#endif
