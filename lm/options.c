/* SPDX-License-Identifier: MIT */
#include "lm/manner.h"

#include <math.h>

lm_options lm_options_default(void)
{
    return (lm_options){ .weights = LOAM_F32,
                         .mechanism = LOAM_SOFTMAX,
                         .ridge = 0.1,
                         .only = -1,
                         .only_head = -1,
                         .inverse_temperature = 1 };
}

static int check_heads(const lm_config *c, const lm_head *heads, io_error *error)
{
    for (int64_t i = 0; i < c->layers * c->heads_q; i++) {
        const long long layer = (long long)(i / c->heads_q), head = (long long)(i % c->heads_q);
        if (!(heads[i].ridge >= 0))
            return io_fail(error, EXIT_USAGE, "layer %lld, head %lld: ridge %g: expected a number >= 0",
                           layer, head, heads[i].ridge);
        if (!(heads[i].inverse_temperature > 0 && isfinite(heads[i].inverse_temperature)))
            return io_fail(error, EXIT_USAGE,
                           "layer %lld, head %lld: inverse temperature %g: expected a number > 0", layer,
                           head, heads[i].inverse_temperature);
    }
    return 0;
}

static int check_features(const lm_options *o, io_error *error)
{
    if (o->heads || o->only_head >= 0 || o->own)
        return io_fail(error, EXIT_USAGE, "features are those of all heads of a layer");
    return 0;
}

int lm_options_check(const lm_options *o, const lm_config *c, io_error *error)
{
    if (o->only >= c->layers)
        return io_fail(error, EXIT_USAGE, "layer %lld: the model has %lld", (long long)o->only,
                       (long long)c->layers);
    if (o->only_head >= c->heads_q)
        return io_fail(error, EXIT_USAGE, "head %lld: the model's layers have %lld", (long long)o->only_head,
                       (long long)c->heads_q);
    if (o->features && check_features(o, error)) return EXIT_USAGE;
    if (o->window > 0 && (o->heads || o->own || o->mechanism != LOAM_SOFTMAX || o->only_head >= 0))
        return io_fail(error, EXIT_USAGE, "a window is of softmax in all heads of a layer");
    if (o->window > 0 && c->architecture == LM_BERT)
        return io_fail(error, EXIT_USAGE, "a window: the model's tokens see those after them");
    return o->heads ? check_heads(c, o->heads, error) : 0;
}

/* ---- features */

const lm_features *manner_features(const lm_options *o, int64_t layer)
{
    const bool has = o->features && (o->only < 0 || o->only == layer) && o->features[layer].features > 0;
    return has ? &o->features[layer] : NULL;
}

void manner_features_problem(const lm_features *f, loam_problem *p)
{
    p->len_kv = p->len_q, p->causal = 1;
    p->feature_map = LOAM_FEATURES_POSITIVE, p->normalise = 1;
    p->features = f->features, p->features_shared = f->shared;
    if (f->untied) p->dim_qk *= 2;
}

int64_t manner_features_heads(const lm_features *f, const lm_config *c)
{
    return f->shared ? c->heads_kv : c->heads_q;
}

int64_t manner_state_rows(const lm_config *c) { return c->head_dim + 2; }

void manner_features_args(const lm_features *f, const lm_config *c, loam_args *args)
{
    const int64_t heads = manner_features_heads(f, c), d = (f->untied ? 2 : 1) * c->head_dim;
    args->lens_kv = NULL;
    args->z = loam_dense(f->z, heads, f->features, d);
    args->log_alpha = loam_dense(f->log_alpha, heads, f->features, 1);
    args->shift = loam_dense(f->shift, heads, 1, d);
    args->balance = loam_dense(f->balance, heads, d, d);
    args->balance_keys = loam_dense(f->balance_keys, heads, d, d);
}

/* ---- heads */

manner manner_of(const lm_options *o, const lm_config *c, int64_t layer, int64_t head)
{
    if (o->heads) {
        const lm_head *h = &o->heads[layer * c->heads_q + head];
        return (manner){ isinf(h->ridge) ? LOAM_SOFTMAX : LOAM_LLA, h->ridge, h->inverse_temperature };
    }
    if (manner_features(o, layer)) return (manner){ LOAM_LINEAR, 0, o->inverse_temperature };
    const bool has = (o->only < 0 || o->only == layer) && (o->only_head < 0 || o->only_head == head);
    return (manner){ has ? o->mechanism : LOAM_SOFTMAX, o->ridge, o->inverse_temperature };
}

bool manner_is_elu(const lm_options *o, manner its) { return its.mechanism == LOAM_LINEAR && !o->features; }

static bool are_alike(manner a, manner b)
{
    return a.mechanism == b.mechanism && !(a.inverse_temperature < b.inverse_temperature) &&
           !(a.inverse_temperature > b.inverse_temperature);
}

int64_t manner_count(const lm_options *o, const lm_config *c, int64_t layer, int64_t first)
{
    const int64_t group = c->heads_q / c->heads_kv, left = group - first % group;
    const manner its = manner_of(o, c, layer, first);
    if (manner_is_elu(o, its) && group > 1) return 1;
    if (!o->heads && o->only_head < 0) return c->heads_q;
    int64_t count = 1;
    while (first + count < c->heads_q && are_alike(its, manner_of(o, c, layer, first + count)))
        count++;
    if (left < group) return count < left ? count : left;
    return count < group ? count : count - count % group;
}

bool manner_ridges_differ(const lm_options *o, const lm_config *c, int64_t layer, int64_t first,
                          int64_t count)
{
    const double its = manner_of(o, c, layer, first).ridge;
    bool differ = false;
    for (int64_t head = first + 1; head < first + count && o->heads; head++)
        differ |= manner_of(o, c, layer, head).ridge < its || manner_of(o, c, layer, head).ridge > its;
    return differ;
}
