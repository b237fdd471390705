/* SPDX-License-Identifier: MIT
 * Rows of what is near, and keys, in float64. A thread of the host has all channels of a row; on a GPU a
 * warp has it, channels c, c + 32, ... in lane c. With p_ij the softmax over the keys near i, inner = do
 * . near and slope the gradient of l (hybrid.h), which is that of lse too:
 *
 *     ds_ij = p_ij (share (do . v_j - inner) + slope)
 *     dq_i = scale (sum_j ds_ij k_j + slope (A^T A q - r)),   dk_j = scale sum_i ds_ij q_i
 *     dv_j = sum_i p_ij share do_i
 *
 * and of the read, its gradients of the same three. */
#ifndef LOAM_CORE_HYBRID_ROWS_H
#define LOAM_CORE_HYBRID_ROWS_H

#include "src/core/hybrid.h"

/* Scores are held here, so that differences are finite. */
#define HYBRID_LARGEST 1e300

/* ------------------------------------------------------------------ vectors */

#ifdef __CUDACC__

#include "src/gpu/block_sum.cuh"

#define HYBRID_INLINE static __device__ __forceinline__
enum { HYBRID_LANES = 32 };
HYBRID_INLINE int hybrid_lane(void) { return (int)threadIdx.x % HYBRID_LANES; }
HYBRID_INLINE double hybrid_total(double x) { return warp_sum(x); }
/* Unrolled, so that vectors are registers. */
#define HYBRID_UNROLL _Pragma("unroll")

#else

#define HYBRID_INLINE static inline
enum { HYBRID_LANES = 1 };
HYBRID_INLINE int hybrid_lane(void) { return 0; }
HYBRID_INLINE double hybrid_total(double x) { return x; }
#define HYBRID_UNROLL

#endif

enum { HYBRID_OWN = LOAM_MAX_DIM / HYBRID_LANES };

/* The channels of this lane. */
typedef struct hybrid_vector {
    double x[HYBRID_OWN];
} hybrid_vector;

/* Channel number e of this lane. */
HYBRID_INLINE int hybrid_channel(int e) { return hybrid_lane() + e * HYBRID_LANES; }

/* A loop over those of n channels that this lane has. */
#define HYBRID_EACH(e, n) HYBRID_UNROLL for (int e = 0; e < HYBRID_OWN && hybrid_channel(e) < (n); e++)

/* With a type that the compiler knows, so that loops have no branch; of four sums it can make vectors. */
HYBRID_INLINE double hybrid_dot_of(const hybrid_vector *x, const void *data, loam_dtype dtype, int64_t at,
                                   int64_t n)
{
    double sum = 0;
#ifndef __CUDACC__
    double sums[4] = { 0 };
    const int64_t whole = n / 4 * 4;
    for (int64_t c = 0; c < whole; c += 4)
        for (int part = 0; part < 4; part++)
            sums[part] += x->x[c + part] * element_load(data, dtype, at + c + part);
    for (int64_t c = whole; c < n; c++)
        sum += x->x[c] * element_load(data, dtype, at + c);
    sum += sums[0] + sums[1] + (sums[2] + sums[3]);
#else
    HYBRID_EACH(e, n) sum += x->x[e] * element_load(data, dtype, at + hybrid_channel(e));
#endif
    return hybrid_total(sum);
}

/* x = keep x + factor row */
HYBRID_INLINE void hybrid_add_of(hybrid_vector *x, double keep, double factor, const void *data,
                                 loam_dtype dtype, int64_t at, int64_t n)
{
    HYBRID_EACH(e, n)
    {
        x->x[e] = keep * x->x[e] + factor * element_load(data, dtype, at + hybrid_channel(e));
    }
}

/* A case for each type. */
#define HYBRID_TYPES(dtype, call) \
    switch (dtype) { \
    case LOAM_F64: call(LOAM_F64); \
    case LOAM_F32: call(LOAM_F32); \
    case LOAM_BF16: call(LOAM_BF16); \
    case LOAM_F16: call(LOAM_F16); \
    }

HYBRID_INLINE double hybrid_dot(const hybrid_vector *x, const void *data, loam_dtype dtype, int64_t at,
                                int64_t n)
{
#define HYBRID_CASE(type) return hybrid_dot_of(x, data, type, at, n)
    HYBRID_TYPES(dtype, HYBRID_CASE)
#undef HYBRID_CASE
    return 0;
}

HYBRID_INLINE void hybrid_add(hybrid_vector *x, double keep, double factor, const void *data,
                              loam_dtype dtype, int64_t at, int64_t n)
{
#define HYBRID_CASE(type) \
    hybrid_add_of(x, keep, factor, data, type, at, n); \
    break
    HYBRID_TYPES(dtype, HYBRID_CASE)
#undef HYBRID_CASE
}

HYBRID_INLINE void hybrid_zero(hybrid_vector *x, int64_t n) { HYBRID_EACH(e, n) x->x[e] = 0; }

HYBRID_INLINE void hybrid_load(hybrid_vector *x, const void *data, loam_dtype dtype, int64_t at, int64_t n)
{
    x->x[0] = 0; /* to a compiler n may be 0 */
    HYBRID_EACH(e, n) x->x[e] = element_load(data, dtype, at + hybrid_channel(e));
}

/* row = factor x */
HYBRID_INLINE void hybrid_store(const hybrid_vector *x, double factor, void *data, loam_dtype dtype,
                                int64_t at, int64_t n)
{
    HYBRID_EACH(e, n) element_store(data, dtype, at + hybrid_channel(e), factor * x->x[e]);
}

HYBRID_INLINE void hybrid_store_one(void *data, loam_dtype dtype, int64_t at, double x)
{
    if (hybrid_lane() == 0) element_store(data, dtype, at, x);
}

/* ------------------------------------------------------------------ keys near a query */

/* Keys 0 .. sinks - 1, then first .. first + window - 1. */
typedef struct hybrid_near {
    int64_t sinks, first, count;
} hybrid_near;

HYBRID_INLINE hybrid_near hybrid_near_of(const hybrid_call *x, int64_t b, int64_t t)
{
    const int64_t place = hybrid_seen(x, b) + t, sinks = x->sinks < place + 1 ? x->sinks : place + 1,
                  begin = place - x->window + 1, first = begin > sinks ? begin : sinks;
    const hybrid_near near = { sinks, first, sinks + (place + 1 - first) };
    return near;
}

HYBRID_INLINE int64_t hybrid_near_key(const hybrid_near *near, int64_t i)
{
    return i < near->sinks ? i : near->first + (i - near->sinks);
}

HYBRID_INLINE double hybrid_hold(double x, double most) { return !(x > -most) ? -most : x < most ? x : most; }

/* Held where it would be no number. */
HYBRID_INLINE double hybrid_score(const hybrid_call *x, const hybrid_vector *q, hybrid_place k)
{
    return hybrid_hold(x->p.scale * hybrid_dot(q, k.data, x->p.dtype, k.at, x->p.dim_qk), HYBRID_LARGEST);
}

/* ------------------------------------------------------------------ forward */

/* l of a row: the weight of what is near beside sums of features. */
HYBRID_INLINE double hybrid_weight(const hybrid_call *x, int64_t h, const hybrid_vector *q, double lse)
{
    const loam_const_view *A = &x->a.balance, *shift = &x->a.shift;
    const int64_t n = hybrid_head_of_z(x, h), d = x->p.dim_qk;
    double norm2 = 0, cross = 0;
    for (int64_t r = 0; A->data && r < d; r++) {
        const double y = hybrid_dot(q, A->data, x->real, n * A->head + r * A->token, d);
        norm2 += y * y;
    }
    if (!A->data) {
        HYBRID_EACH(e, d) norm2 += q->x[e] * q->x[e];
        norm2 = hybrid_total(norm2);
    }
    if (shift->data) cross = hybrid_dot(q, shift->data, x->real, n * shift->head, d);
    const double gain = x->h.gain ? element_load(x->h.gain, x->real, h) : 0;
    return positive_hold(lse - gain - x->p.scale * cross + x->p.scale * norm2 / 2 +
                         log((double)x->p.features));
}

/* The query of the read: q, and l in two parts. */
HYBRID_INLINE void hybrid_make_query(const hybrid_call *x, int64_t h, int64_t row, const hybrid_vector *q,
                                     double lse)
{
    const double weight = hybrid_weight(x, h, q, lse) / sqrt(x->p.scale);
    const double large = x->real == LOAM_F64 ? weight : (double)(float)weight;
    const int64_t at = row * hybrid_width(x), d = x->p.dim_qk;
    hybrid_store(q, 1, x->q, x->real, at, d);
    hybrid_store_one(x->q, x->real, at + d, large);
    hybrid_store_one(x->q, x->real, at + d + 1, weight - large);
}

/* Softmax over the keys near token t, and its query of the read. */
HYBRID_INLINE void hybrid_row_forward(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    const int64_t row = hybrid_row(x, b, h, t), g = h / hybrid_group(x), d = x->p.dim_qk, dv = x->p.dim_v;
    const hybrid_near near = hybrid_near_of(x, b, t);
    double top = -HUGE_VAL, sum = 0;
    hybrid_vector q, mean;
    hybrid_load(&q, x->a.q.data, x->p.dtype, RECURRENT_AT(x->a.q, b, h, t), d);
    hybrid_zero(&mean, dv);
    for (int64_t i = 0; i < near.count; i++) {
        const int64_t j = hybrid_near_key(&near, i);
        const double s = hybrid_score(x, &q, hybrid_token(x, true, b, g, j)), before = top;
        const hybrid_place v = hybrid_token(x, false, b, g, j);
        top = s > top ? s : top;
        const double keep = s > before ? exp(before - top) : 1, weight = exp(s - top);
        hybrid_add(&mean, keep, weight, v.data, x->p.dtype, v.at, dv);
        sum = keep * sum + weight;
    }
    const double lse = top + log(sum);
    hybrid_store(&mean, 1 / sum, x->near, x->real, row * dv, dv);
    hybrid_store_one(x->lse, x->real, row, lse);
    hybrid_make_query(x, h, row, &q, lse);
}

/* ------------------------------------------------------------------ backward */

/* What the read takes for its backward pass: its query as forward had it, and [do, do . near]. */
HYBRID_INLINE void hybrid_row_prepare(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    const int64_t row = hybrid_row(x, b, h, t), d = x->p.dim_qk, dv = x->p.dim_v;
    hybrid_vector q, grad_o;
    hybrid_load(&q, x->a.q.data, x->p.dtype, RECURRENT_AT(x->a.q, b, h, t), d);
    hybrid_make_query(x, h, row, &q, element_load(x->lse, x->real, row));
    hybrid_load(&grad_o, x->a.grad_o.data, x->p.dtype, RECURRENT_AT(x->a.grad_o, b, h, t), dv);
    const double inner = hybrid_dot(&grad_o, x->near, x->real, row * dv, dv);
    hybrid_store(&grad_o, 1, x->o, x->real, row * (dv + 1), dv);
    hybrid_store_one(x->o, x->real, row * (dv + 1) + dv, inner);
    hybrid_store_one(x->inner, LOAM_F64, row, inner);
}

/* Of a row, what its pairs need. */
typedef struct hybrid_record {
    double lse, share, inner, slope;
} hybrid_record;

/* p of a pair, at most 1 whatever rounding does to lse. */
HYBRID_INLINE double hybrid_softmax(double s, double lse) { return s < lse ? exp(s - lse) : 1; }

HYBRID_INLINE hybrid_record hybrid_record_of(const hybrid_call *x, int64_t row, double slope)
{
    const hybrid_record r = { element_load(x->lse, x->real, row), element_load(x->share, x->real, row),
                              x->inner[row], slope };
    return r;
}

/* dq += slope (scale A^T A q - scale r) */
HYBRID_INLINE void hybrid_weight_gradient(const hybrid_call *x, int64_t h, const hybrid_vector *q,
                                          double slope, hybrid_vector *grad)
{
    const loam_const_view *A = &x->a.balance, *shift = &x->a.shift;
    const int64_t n = hybrid_head_of_z(x, h), d = x->p.dim_qk;
    const double factor = slope * x->p.scale;
    for (int64_t r = 0; A->data && r < d; r++) {
        const int64_t at = n * A->head + r * A->token;
        hybrid_add(grad, 1, factor * hybrid_dot(q, A->data, x->real, at, d), A->data, x->real, at, d);
    }
    if (!A->data) HYBRID_EACH(e, d) grad->x[e] += factor * q->x[e];
    if (shift->data) hybrid_add(grad, 1, -factor, shift->data, x->real, n * shift->head, d);
}

/* dq and slope of a row. */
HYBRID_INLINE void hybrid_row_backward(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    const int64_t row = hybrid_row(x, b, h, t), g = h / hybrid_group(x), d = x->p.dim_qk, dv = x->p.dim_v,
                  read = row * hybrid_width(x);
    const hybrid_near near = hybrid_near_of(x, b, t);
    const double slope = hybrid_far_key(x, b, t) < 0
                             ? 0
                             : element_load(x->grad_q, x->real, read + d) / sqrt(x->p.scale);
    const hybrid_record record = hybrid_record_of(x, row, slope);
    hybrid_vector q, grad_o, grad;
    hybrid_store_one(x->slope, LOAM_F64, row, slope);
    if (!x->a.grad_q.data) return;
    hybrid_load(&q, x->a.q.data, x->p.dtype, RECURRENT_AT(x->a.q, b, h, t), d);
    hybrid_load(&grad_o, x->a.grad_o.data, x->p.dtype, RECURRENT_AT(x->a.grad_o, b, h, t), dv);
    hybrid_load(&grad, x->grad_q, x->real, read, d);
    for (int64_t i = 0; i < near.count; i++) {
        const int64_t j = hybrid_near_key(&near, i);
        const hybrid_place k = hybrid_token(x, true, b, g, j), v = hybrid_token(x, false, b, g, j);
        const double p = hybrid_softmax(hybrid_score(x, &q, k), record.lse),
                     miss = hybrid_dot(&grad_o, v.data, x->p.dtype, v.at, dv) - record.inner;
        hybrid_add(&grad, 1, x->p.scale * p * (record.share * miss + slope), k.data, x->p.dtype, k.at, d);
    }
    hybrid_weight_gradient(x, h, &q, slope, &grad);
    hybrid_store(&grad, 1, x->a.grad_q.data, x->p.dtype, RECURRENT_AT(x->a.grad_q, b, h, t), d);
}

/* dk and dv of token j, over the rows part, part + parts, ... of those that have it near. */
HYBRID_INLINE void hybrid_key_backward(const hybrid_call *x, int64_t b, int64_t g, int64_t j, int64_t part,
                                       int64_t parts, hybrid_vector *grad_k, hybrid_vector *grad_v)
{
    const int64_t d = x->p.dim_qk, dv = x->p.dim_v, left = x->p.len_q - j, group = hybrid_group(x),
                  rows = j < x->sinks || left < x->window ? left : x->window;
    hybrid_vector key, value;
    hybrid_load(&key, x->a.k.data, x->p.dtype, RECURRENT_AT(x->a.k, b, g, j), d);
    hybrid_load(&value, x->a.v.data, x->p.dtype, RECURRENT_AT(x->a.v, b, g, j), dv);
    hybrid_zero(grad_k, d);
    hybrid_zero(grad_v, dv);
    for (int64_t i = part; i < group * rows; i += parts) {
        const int64_t h = g * group + i / rows, t = j + i % rows, row = hybrid_row(x, b, h, t);
        const hybrid_record record = hybrid_record_of(x, row, x->slope[row]);
        const hybrid_place q = { x->a.q.data, RECURRENT_AT(x->a.q, b, h, t) };
        const int64_t at = RECURRENT_AT(x->a.grad_o, b, h, t);
        const double p = hybrid_softmax(hybrid_score(x, &key, q), record.lse),
                     miss = hybrid_dot(&value, x->a.grad_o.data, x->p.dtype, at, dv) - record.inner;
        hybrid_add(grad_k, 1, x->p.scale * p * (record.share * miss + record.slope), q.data, x->p.dtype, q.at,
                   d);
        hybrid_add(grad_v, 1, p * record.share, x->a.grad_o.data, x->p.dtype, at, dv);
    }
}

/* Adds what the key has as a far one, and stores. */
HYBRID_INLINE void hybrid_key_store(const hybrid_call *x, int64_t b, int64_t g, int64_t j,
                                    hybrid_vector *grad_k, hybrid_vector *grad_v)
{
    const loam_view *k = &x->a.grad_k, *v = &x->a.grad_v;
    const int64_t d = x->p.dim_qk, dv = x->p.dim_v, left = x->p.len_q - j,
                  row = (b * x->p.heads_kv + g) * x->p.len_q + j + x->window;
    if (j >= x->sinks && left > x->window) {
        hybrid_add(grad_k, 1, 1, x->grad_k, x->real, row * hybrid_width(x), d);
        hybrid_add(grad_v, 1, 1, x->grad_v, x->real, row * hybrid_values(x), dv);
    }
    if (k->data) hybrid_store(grad_k, 1, k->data, x->p.dtype, RECURRENT_AT(*k, b, g, j), d);
    if (v->data) hybrid_store(grad_v, 1, v->data, x->p.dtype, RECURRENT_AT(*v, b, g, j), dv);
}

#endif
