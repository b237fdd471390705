/* SPDX-License-Identifier: MIT
 * Features of rows of q and k in float32, padded with zeros to whole vectors. */
#ifndef LOAM_RECURRENT_CPU_FEATURES_H
#define LOAM_RECURRENT_CPU_FEATURES_H

#include "src/recurrent/recurrent.h"
#include "src/simd/convert.h"
#include "src/simd/vec.h"

#include <math.h>

#define RECURRENT_JOIN_(a, b) a##_##b
#define RECURRENT_JOIN(a, b) RECURRENT_JOIN_(a, b)
/* The name of a kernel in this instruction set: ISA(recurrent_forward) is recurrent_forward_avx2. */
#define ISA(name) RECURRENT_JOIN(name, LOAM_ISA_SUFFIX)

enum { CACHE_LINE = 64 }; /* bytes */

/* dim_qk rounded up to whole vectors. */
static inline int64_t features_width(const loam_problem *p) { return (p->dim_qk + VL - 1) / VL * VL; }

/* a . b; width is a multiple of VL. */
static inline float features_dot(const float *a, const float *b, int64_t width)
{
    vec sum = v_set(0);
    float part[VL], all = 0;
    for (int64_t c = 0; c < width; c += VL)
        sum += v_load(a + c) * v_load(b + c);
    v_store(part, sum);
    for (int n = 0; n < (int)VL; n++)
        all += part[n];
    return all;
}

static inline void features_clear_tail(float *row, int64_t from, int64_t to)
{
    for (int64_t c = from; c < to; c++)
        row[c] = 0;
}

static inline void features_map(const loam_problem *p, float *row, int64_t width, float factor)
{
    double norm2 = p->feature_map == LOAM_FEATURES_UNIT ? 0 : 1; /* double: float would overflow */
    if (p->feature_map == LOAM_FEATURES_UNIT) {
#pragma omp simd reduction(+ : norm2)
        for (int64_t c = 0; c < width; c++)
            norm2 += (double)row[c] * (double)row[c];
    }
    factor = norm2 > 0 ? (float)(factor / sqrt(norm2)) : 0;
    for (int64_t c = 0; c < width; c += VL) {
        const vec x = v_load(row + c);
        v_store(row + c,
                (p->feature_map == LOAM_FEATURES_ELU ? v_select(x > 0, x + 1, v_exp(x)) : x) * factor);
    }
}

/* row <- factor * features of token t in the head of `view` that value head h reads. */
static inline void features_load(const loam_problem *p, const loam_const_view *view, const recurrent_seq *s,
                                 int64_t h, int64_t t, float factor, float *row)
{
    const int64_t width = features_width(p);
    load_floats(row, view->data, p->dtype, RECURRENT_AT(*view, s->b, recurrent_key_head(p, h), s->first + t),
                p->dim_qk);
    features_clear_tail(row, p->dim_qk, width);
    features_map(p, row, width, factor);
    features_clear_tail(row, p->dim_qk, width); /* ELU features of the padding are 1 */
}

/* The same for tokens t .. t + count - 1; rows are features_width(p) apart. */
static inline void features_load_rows(const loam_problem *p, const loam_const_view *view,
                                      const recurrent_seq *s, int64_t h, int64_t t, int64_t count,
                                      float factor, float *rows)
{
    const int64_t width = features_width(p);
    if (p->dtype != LOAM_F32 || p->feature_map != LOAM_FEATURES_IDENTITY || width != p->dim_qk) {
        for (int64_t i = 0; i < count; i++)
            features_load(p, view, s, h, t + i, factor, rows + i * width);
        return;
    }
    const float *from = (const float *)view->data +
                        RECURRENT_AT(*view, s->b, recurrent_key_head(p, h), s->first + t);
    for (int64_t i = 0; i < count; i++, from += view->token, rows += width)
        for (int64_t c = 0; c < width; c += VL)
            v_store(rows + c, v_load(from + c) * factor);
}

/* ------------------------------------------------------------------ features in float64
 *
 * Rounding a key that is repeated often would add a direction of its own to H, which a small ridge
 * magnifies. */

/* to [dim_qk] <- factor * features of token t in the head of `view` that value head h reads;
 * `row` [dim_qk]: scratch. */
static inline void features_load64(const loam_problem *p, const loam_const_view *view, const recurrent_seq *s,
                                   int64_t h, int64_t t, double factor, float *row, double *to)
{
    const int64_t d = p->dim_qk;
    load_floats(row, view->data, p->dtype, RECURRENT_AT(*view, s->b, recurrent_key_head(p, h), s->first + t),
                d);
    for (int64_t c = 0; c < d; c++)
        to[c] = factor * (double)row[c];
    if (p->feature_map == LOAM_FEATURES_ELU) {
        for (int64_t c = 0; c < d; c++) {
            const double value = (double)row[c];
            to[c] = factor * (value > 0 ? value + 1 : exp(value));
        }
    } else if (p->feature_map == LOAM_FEATURES_UNIT) {
        double norm2 = 0;
#pragma omp simd reduction(+ : norm2)
        for (int64_t c = 0; c < d; c++)
            norm2 += (double)row[c] * (double)row[c];
        const double norm = sqrt(norm2);
        for (int64_t c = 0; c < d; c++)
            to[c] = norm > 0 ? to[c] / norm : 0;
    }
}

/* Writes the info of a row of o, where it is wanted. */
static inline void store_row_info(const loam_args *a, const recurrent_seq *s, int64_t h, int64_t t,
                                  loam_row_info row)
{
    const loam_view *info = &a->info;
    if (info->data) ((loam_row_info *)info->data)[RECURRENT_AT(*info, s->b, h, s->first + t)] = row;
}

/* The info of a row without a solve; `denominator`: of a normalised read, else 1. */
static inline loam_row_info direct_row_info(float denominator)
{
    return (loam_row_info){ denominator == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
}

/* ------------------------------------------------------------------ Lambda of a value head */

typedef struct ridge_bounds {
    double least, most;
} ridge_bounds;

/* ridge [dim_qk] <- Lambda of value head h. */
static inline ridge_bounds ridge_load(const loam_problem *p, const loam_args *a, int64_t h, double *ridge)
{
    const int64_t each = p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL ? 1 : p->dim_qk;
    ridge_bounds bounds = { HUGE_VAL, 0 };
    for (int64_t c = 0; c < p->dim_qk; c += each) {
        const double value = recurrent_ridge(p, a, h, c);
        for (int64_t e = c; e < c + each; e++)
            ridge[e] = value;
        bounds.least = value < bounds.least ? value : bounds.least;
        bounds.most = value > bounds.most ? value : bounds.most;
    }
    return bounds;
}

#endif
