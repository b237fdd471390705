/* SPDX-License-Identifier: MIT
 * Positive random features (docs/features.md): what their kernels share. The features of keys and queries,
 * relative to the running maximum c of the logarithms a of the keys, are read by a recurrence:
 *
 *     x = sqrt(scale) A q,  y = sqrt(scale) B (k - shift)
 *     b_m = z_m . x,  a_m = z_m . y - |y|^2 / 2 + log alpha_m
 *     c_t = max(c_{t-1}, ceil a_t);   LOAM_GLA, normalised: k = e^{a_t - c_t}, g = c_{t-1} - c_t,
 *     q = e^{b_t + c_t - max_m (b_t + c_t)}
 *
 * c is a whole number, so that float holds it and a state goes from call to call without rounding. A key adds
 * at least 1/e to s where it raises c, so that every divisor is at least 1/e.
 *
 * A head of z has one query for each token or, where a key-value head shares it, `reads` of them: these are
 * tokens of the recurrence one after the other, of which the first writes and the others, whose keys are 0,
 * only read. Names as in recurrent.h; n head of z, m feature, r read. */
#ifndef LOAM_RECURRENT_POSITIVE_H
#define LOAM_RECURRENT_POSITIVE_H

#include "src/recurrent/recurrent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logarithms of features are held between -POSITIVE_BOUND and POSITIVE_BOUND: there float has every whole
 * number, and nothing that is finite overflows. Those held have no gradient. */
#define POSITIVE_BOUND 0x1p24

typedef struct positive {
    const loam_problem *p;
    const loam_args *a;
    loam_dtype real;               /* that the recurrence computes in */
    int64_t heads, reads, sharing; /* heads of z; queries of one and a token; heads of a key-value head */
    int64_t axis;                  /* tokens of the recurrence of a head, over which arrays go */
    bool staged;                   /* v, o and their gradients have arrays of their own */
    bool states;                   /* states too */
    void *q, *k, *gate;            /* of type real, [batch, heads, axis, features] */
    void *grad_q, *grad_k;
    void *v, *o, *grad_v; /* [batch, heads, axis, dim_v]; backward: o is the gradient of it */
    loam_row_info *info;
    void *in, *out; /* [batch, heads, dim_v + 1, features]: state_in and state_out, or their gradients */
    void *start;    /* backward: state_in */
    int64_t *cu;
} positive;

/* The recurrence that reads the features, and its arguments, but work. */
typedef struct positive_read {
    loam_problem problem;
    loam_args args;
} positive_read;

/* Divides the workspace. Without arguments sizes alone. */
positive positive_make(const loam_problem *p, const loam_args *a, loam_dtype real, arena *pool);
loam_problem positive_problem(const positive *x);
positive_read positive_recurrence(const positive *x);
/* Copies into the arrays that the recurrence reads, and out of those that it writes. Host memory. */
void positive_stage(const positive *x);
void positive_unstage(const positive *x);

LOAM_INLINE int64_t positive_query_head(const positive *x, int64_t n, int64_t r) { return n * x->reads + r; }
LOAM_INLINE int64_t positive_key_head(const positive *x, int64_t n) { return n / x->sharing; }

/* The row of token t of the sequence, read r, in the arrays of the recurrence. */
LOAM_INLINE int64_t positive_row(const positive *x, const recurrent_seq *s, int64_t n, int64_t t, int64_t r)
{
    return (s->b * x->heads + n) * x->axis + (s->first + t) * x->reads + r;
}

/* NaN, of numbers that overflowed, is as far down as anything. */
LOAM_INLINE double positive_hold(double x)
{
    return !(x > -POSITIVE_BOUND) ? -POSITIVE_BOUND : x < POSITIVE_BOUND ? x : POSITIVE_BOUND;
}

/* c of a feature before the first token: what state_in has, where s says that it has anything. */
LOAM_INLINE double positive_start(const positive *x, const recurrent_seq *seq, int64_t n, int64_t m)
{
    const loam_const_view *in = &x->a->state_in;
    const loam_dtype real = dtype_real(x->p->dtype);
    if (!in->data) return -POSITIVE_BOUND;
    const int64_t s = RECURRENT_AT(*in, seq->index, n, x->p->dim_v) + m;
    return element_load(in->data, real, s) > 0 ? positive_hold(element_load(in->data, real, s + in->token))
                                               : -POSITIVE_BOUND;
}

LOAM_INLINE void positive_end(const positive *x, const recurrent_seq *seq, int64_t n, int64_t m, double c)
{
    const loam_view *out = &x->a->state_out;
    if (out->data)
        element_store(out->data, dtype_real(x->p->dtype),
                      RECURRENT_AT(*out, seq->index, n, x->p->dim_v + 1) + m, c);
}

/* ------------------------------------------------------------------ one element of a copy */

/* Element c of row i of an array of values of the recurrence <- that of v, or of the gradient of o. */
LOAM_INLINE void positive_take(const positive *x, const loam_const_view *from, bool keys, void *to, int64_t i,
                               int64_t c)
{
    const int64_t row = i % x->axis, n = i / x->axis % x->heads, b = i / x->axis / x->heads,
                  t = row / x->reads, r = row % x->reads,
                  h = keys ? positive_key_head(x, n) : positive_query_head(x, n, r);
    const double value = keys && r > 0
                             ? 0
                             : element_load(from->data, x->p->dtype, RECURRENT_AT(*from, b, h, t) + c);
    element_store(to, x->real, i * x->p->dim_v + c, value);
}

/* Element c of o, of query head h and token t. */
LOAM_INLINE void positive_give(const positive *x, int64_t b, int64_t h, int64_t t, int64_t c)
{
    const int64_t i = (b * x->heads + h / x->reads) * x->axis + t * x->reads + h % x->reads;
    element_store(x->a->o.data, x->p->dtype, RECURRENT_AT(x->a->o, b, h, t) + c,
                  element_load(x->o, x->real, i * x->p->dim_v + c));
    if (c == 0 && x->a->info.data)
        ((loam_row_info *)x->a->info.data)[RECURRENT_AT(x->a->info, b, h, t)] = x->info[i];
}

/* Element c of the gradient of v, of key-value head g and token t: the sum over the heads of z. */
LOAM_INLINE void positive_give_values(const positive *x, int64_t b, int64_t g, int64_t t, int64_t c)
{
    double sum = 0;
    for (int64_t n = g * x->sharing; n < (g + 1) * x->sharing; n++) {
        const int64_t i = (b * x->heads + n) * x->axis + t * x->reads;
        sum += element_load(x->grad_v, x->real, i * x->p->dim_v + c);
    }
    element_store(x->a->grad_v.data, x->p->dtype, RECURRENT_AT(x->a->grad_v, b, g, t) + c, sum);
}

#ifdef __cplusplus
}
#endif

#endif
