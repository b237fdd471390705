/* SPDX-License-Identifier: MIT
 * Exact attention to the first tokens and the last ones, positive random features for those between,
 * under one normaliser (docs/mechanisms/hybrid.md): what host and device memory share.
 *
 *     o_i = share_i near_i + (1 - share_i) far_i,   share_i = e^{lse_i} / (e^{lse_i} + e^{gain} sum_far w_ij)
 *
 * near_i and lse_i are softmax over the keys near i, row by row here. The rest is one read of positive
 * features (src/recurrent/positive.h) of the keys `window` tokens back, with one feature more: the state
 * begins with a key that has this feature alone, and a value channel of its own that is 1. A query gives
 * this key the weight e^{l_i}, by two channels more:
 *
 *     l_i = lse_i - gain - scale q.r + |x|^2 / 2 + log M,   x = sqrt(scale) A q
 *
 * which are the terms that a normalised read of features drops. So what is read is [(1 - share) far,
 * share], guarded by the running maximum of the features, and its backward pass has the gradient of l.
 * Where no key that is not a sink has left the window, the key that comes has no weight.
 *
 * Names as in positive.h: n head of z, m feature, g key-value head; t token of the call, j of the
 * sequence. */
#ifndef LOAM_CORE_HYBRID_H
#define LOAM_CORE_HYBRID_H

#include "src/recurrent/positive.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Channels of queries and keys beyond the caller's: l has two, its rounding error the second. */
enum { HYBRID_CHANNELS = 2 };

/* What a key that is not there has in the first of them: as far away as logarithms are held, and more. */
#define HYBRID_AWAY 1e5

/* Dense arrays are of type real but `inner` and `slope`. */
typedef struct hybrid_call {
    loam_problem p; /* as the caller gave it, checked */
    loam_args a;
    loam_hybrid_args h;
    int64_t sinks, window, heads; /* heads of z */
    loam_dtype real;
    /* What the read takes, and what it gives: backward, o is the gradient of its output. */
    void *q, *k, *v, *o, *z, *alpha, *shift, *balance, *balance_keys, *start;
    void *grad_q, *grad_k, *grad_v, *grad_z, *grad_alpha;
    void *near, *lse, *share; /* of rows: saved for backward */
    double *inner, *slope;    /* of rows, backward: grad_o . near, and the gradient of l */
} hybrid_call;

LOAM_INLINE int64_t hybrid_width(const hybrid_call *x) { return x->p.dim_qk + HYBRID_CHANNELS; }
LOAM_INLINE int64_t hybrid_values(const hybrid_call *x) { return x->p.dim_v + 1; }
LOAM_INLINE int64_t hybrid_features(const hybrid_call *x) { return x->p.features + 1; }
LOAM_INLINE int64_t hybrid_state_rows(const hybrid_call *x) { return x->p.dim_v + 3; }
LOAM_INLINE int64_t hybrid_slots(const hybrid_call *x) { return x->sinks + x->window; }
LOAM_INLINE int64_t hybrid_group(const hybrid_call *x) { return x->p.heads_q / x->p.heads_kv; }

LOAM_INLINE int64_t hybrid_head_of_z(const hybrid_call *x, int64_t h)
{
    return x->p.features_shared ? h / hybrid_group(x) : h;
}

/* Of token t of query head h among all rows. */
LOAM_INLINE int64_t hybrid_row(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    return (b * x->p.heads_q + h) * x->p.len_q + t;
}

LOAM_INLINE int64_t hybrid_seen(const hybrid_call *x, int64_t b) { return x->h.seen ? x->h.seen[b] : 0; }

/* The key that leaves the window when token t of the call comes, or -1. */
LOAM_INLINE int64_t hybrid_far_key(const hybrid_call *x, int64_t b, int64_t t)
{
    const int64_t j = hybrid_seen(x, b) + t - x->window;
    return j >= x->sinks ? j : -1;
}

/* The row of the cache that holds token j: the sinks, then the window as a ring. */
LOAM_INLINE int64_t hybrid_slot(const hybrid_call *x, int64_t j)
{
    return j < x->sinks ? j : x->sinks + (j - x->sinks) % x->window;
}

/* An array and an offset in it. */
typedef struct hybrid_place {
    const void *data;
    int64_t at;
} hybrid_place;

/* Token j of keys or values: of this call, or of those before it. */
LOAM_INLINE hybrid_place hybrid_token(const hybrid_call *x, bool key, int64_t b, int64_t g, int64_t j)
{
    const loam_const_view *now = key ? &x->a.k : &x->a.v;
    const loam_view *cache = key ? &x->h.keys : &x->h.values;
    const int64_t seen = hybrid_seen(x, b);
    const hybrid_place of_call = { now->data, RECURRENT_AT(*now, b, g, j - seen) },
                       before = { cache->data, RECURRENT_AT(*cache, b, g, hybrid_slot(x, j)) };
    return j >= seen ? of_call : before;
}

LOAM_INLINE double hybrid_parameter(const hybrid_call *x, const loam_const_view *view, int64_t n, int64_t row,
                                    int64_t c)
{
    return view->data ? element_load(view->data, x->real, n * view->head + row * view->token + c) : 0;
}

/* ------------------------------------------------------------------ elements of what the read takes */

/* Element (r, c) of z, A and B of head n, of log alpha and the shift, and of the state at the beginning, each
 * where it has one. */
LOAM_INLINE void hybrid_make_parameter(const hybrid_call *x, int64_t n, int64_t r, int64_t c)
{
    const int64_t d = x->p.dim_qk, width = hybrid_width(x), features = hybrid_features(x),
                  last = features - 1;
    const loam_args *a = &x->a;
    const bool own = r < d && c < d;
    if (r < features && c < width) {
        const double z = r < last ? c < d ? hybrid_parameter(x, &a->z, n, r, c) : 0 : c >= d ? 1 : 0;
        element_store(x->z, x->real, (n * features + r) * width + c, z);
    }
    if (r < features && c == 0) {
        const double alpha = r < last ? hybrid_parameter(x, &a->log_alpha, n, 0, r) : -4 * POSITIVE_BOUND;
        element_store(x->alpha, x->real, n * features + r, alpha);
    }
    if (a->shift.data && r == 0 && c < width)
        element_store(x->shift, x->real, n * width + c, c < d ? hybrid_parameter(x, &a->shift, n, 0, c) : 0);
    if (a->balance.data && r < width && c < width) {
        const int64_t at = (n * width + r) * width + c;
        const double one = r == c ? 1 : 0;
        element_store(x->balance, x->real, at, own ? hybrid_parameter(x, &a->balance, n, r, c) : one);
        element_store(x->balance_keys, x->real, at,
                      own ? hybrid_parameter(x, &a->balance_keys, n, r, c) : one);
    }
    if (n == 0 && r < hybrid_state_rows(x) && c < features) {
        const bool one = c == last && (r == x->p.dim_v || r == x->p.dim_v + 1);
        element_store(x->start, x->real, r * features + c, one ? 1 : 0);
    }
}

/* Rows and columns that hold each of these. */
LOAM_INLINE int64_t hybrid_parameter_rows(const hybrid_call *x)
{
    const int64_t features = hybrid_features(x), width = hybrid_width(x), rows = hybrid_state_rows(x),
                  most = features > width ? features : width;
    return most > rows ? most : rows;
}

LOAM_INLINE int64_t hybrid_parameter_columns(const hybrid_call *x)
{
    return hybrid_features(x) > hybrid_width(x) ? hybrid_features(x) : hybrid_width(x);
}

/* Row r of the state of a head, in which the key that stands for what is near is there from the beginning:
 * so zeros are the empty state. */
LOAM_INLINE void hybrid_begin_state(const hybrid_call *x, int64_t b, int64_t n, int64_t r)
{
    const loam_view *state = &x->a.state_out;
    const double one = r == x->p.dim_v || r == x->p.dim_v + 1 ? 1 : 0;
    element_store(state->data, x->real, RECURRENT_AT(*state, b, n, r) + x->p.features, one);
}

/* Channel c of the key and the value that token t brings into the features. */
LOAM_INLINE void hybrid_make_key(const hybrid_call *x, int64_t b, int64_t g, int64_t t, int64_t c)
{
    const int64_t j = hybrid_far_key(x, b, t), row = (b * x->p.heads_kv + g) * x->p.len_q + t,
                  width = hybrid_width(x), values = hybrid_values(x), d = x->p.dim_qk;
    if (c < width) {
        double value = j < 0 && c == d ? HYBRID_AWAY / sqrt(x->p.scale) : 0;
        if (j >= 0 && c < d) {
            const hybrid_place k = hybrid_token(x, true, b, g, j);
            value = element_load(k.data, x->p.dtype, k.at + c);
        }
        element_store(x->k, x->real, row * width + c, value);
    }
    if (c < values) {
        double value = 0;
        if (j >= 0 && c < x->p.dim_v) {
            const hybrid_place v = hybrid_token(x, false, b, g, j);
            value = element_load(v.data, x->p.dtype, v.at + c);
        }
        element_store(x->v, x->real, row * values + c, value);
    }
}

/* ------------------------------------------------------------------ elements of what comes of it */

/* Channel c of o. */
LOAM_INLINE void hybrid_join(const hybrid_call *x, int64_t b, int64_t h, int64_t t, int64_t c)
{
    const int64_t row = hybrid_row(x, b, h, t), dv = x->p.dim_v;
    const bool far = hybrid_far_key(x, b, t) >= 0;
    const double share = far ? element_load(x->o, x->real, row * (dv + 1) + dv) : 1,
                 near = element_load(x->near, x->real, row * dv + c),
                 rest = far ? element_load(x->o, x->real, row * (dv + 1) + c) : 0;
    element_store(x->a.o.data, x->p.dtype, RECURRENT_AT(x->a.o, b, h, t) + c, share * near + rest);
    if (c == 0) element_store(x->share, x->real, row, share);
}

/* Channel c of a row of the cache: the latest of the tokens of this call that belongs there. */
LOAM_INLINE void hybrid_keep(const hybrid_call *x, int64_t b, int64_t g, int64_t slot, int64_t c)
{
    const int64_t seen = hybrid_seen(x, b), last = seen + x->p.len_q - 1, ring = slot - x->sinks;
    /* Of a slot that has no token yet this is after the last one, or a sink. */
    const int64_t j = ring < 0 ? slot : last - (last - x->sinks - ring) % x->window;
    if (j < seen || j > last || (ring >= 0 && j < x->sinks)) return;
    const int64_t at = RECURRENT_AT(x->h.keys, b, g, slot) + c,
                  to = RECURRENT_AT(x->h.values, b, g, slot) + c;
    const hybrid_place k = hybrid_token(x, true, b, g, j), v = hybrid_token(x, false, b, g, j);
    if (c < x->p.dim_qk)
        element_store(x->h.keys.data, x->p.dtype, at, element_load(k.data, x->p.dtype, k.at + c));
    if (c < x->p.dim_v)
        element_store(x->h.values.data, x->p.dtype, to, element_load(v.data, x->p.dtype, v.at + c));
}

/* Channel c of the gradients of z and log alpha. */
LOAM_INLINE void hybrid_give_parameter(const hybrid_call *x, int64_t n, int64_t m, int64_t c)
{
    const loam_view *z = &x->a.grad_z, *alpha = &x->a.grad_log_alpha;
    const int64_t row = n * hybrid_features(x) + m;
    if (z->data) {
        element_store(z->data, x->real, n * z->head + m * z->token + c,
                      element_load(x->grad_z, x->real, row * hybrid_width(x) + c));
    }
    if (alpha->data && c == 0)
        element_store(alpha->data, x->real, n * alpha->head + m, element_load(x->grad_alpha, x->real, row));
}

/* All elements of one of the above, on a GPU. */
typedef enum hybrid_task {
    HYBRID_PARAMETERS,
    HYBRID_STATE,
    HYBRID_KEYS,
    HYBRID_JOIN,
    HYBRID_KEEP,
    HYBRID_GIVE
} hybrid_task;

typedef struct hybrid_grid {
    int64_t batch, heads, rows, columns;
} hybrid_grid;

LOAM_INLINE void hybrid_element(const hybrid_call *x, hybrid_task task, int64_t b, int64_t h, int64_t r,
                                int64_t c)
{
    switch (task) {
    case HYBRID_PARAMETERS: hybrid_make_parameter(x, h, r, c); break;
    case HYBRID_STATE: hybrid_begin_state(x, b, h, r); break;
    case HYBRID_KEYS: hybrid_make_key(x, b, h, r, c); break;
    case HYBRID_JOIN: hybrid_join(x, b, h, r, c); break;
    case HYBRID_KEEP: hybrid_keep(x, b, h, r, c); break;
    case HYBRID_GIVE: hybrid_give_parameter(x, h, r, c); break;
    }
}

/* ------------------------------------------------------------------ machines */

/* Elements; rows forward; what backward reads; rows and keys backward, and the gain. */
loam_status hybrid_elements_cuda(const hybrid_call *x, hybrid_task task, hybrid_grid grid, loam_error *error);
loam_status hybrid_rows_cuda(const hybrid_call *x, loam_error *error);
loam_status hybrid_prepare_cuda(const hybrid_call *x, loam_error *error);
loam_status hybrid_backward_cuda(const hybrid_call *x, loam_error *error);

#ifdef __cplusplus
}
#endif

#endif
