/* SPDX-License-Identifier: MIT
 * What a mixer asks of the library: problems, their arguments, and the calls.
 *
 * Where the last rows of a sequence are keys for none (mixer_shape.seen), local attention is two calls, of
 * the rows that are seen, causal, and of the others as queries on all of these; both have a part in the
 * gradients of keys. A recurrence is one call still, in which the other rows neither write nor decay. */
#include "train/mixing.h"

bool mixing_in_parts(const mixing *mix)
{
    const bool local = mix->row->block == MIXER_PLAIN && mix->row->mechanism <= LOAM_LLA;
    return local && mix->shape.seen < mix->shape.length;
}

int64_t mixing_calls(const mixing *mix)
{
    const bool own = mix->row->ridge == MIXER_RIDGE_CHANNEL || mix->row->ridge == MIXER_RIDGE_HEAD ||
                     mix->row->positive;
    return own ? mix->shape.models : 1;
}

loam_problem mixing_problem(const mixing *mix, loam_pass pass)
{
    const mixer *row = mix->row;
    const mixer_shape *shape = &mix->shape;
    loam_problem problem = loam_problem_default(row->mechanism, pass);
    problem.dtype = mix->on->operand;
    problem.backend = machine_backend(mix->on);
    problem.batch = shape->models * shape->batch / mixing_calls(mix);
    problem.heads_q = problem.heads_kv = mixing_query_heads(mix);
    if (row->block == MIXER_PLAIN) problem.heads_kv = shape->heads_kv;
    if (row->block == MIXER_MAMBA) problem.heads_v = mixer_value_heads(row, shape);
    problem.len_q = problem.len_kv = mixing_in_parts(mix) ? shape->seen : shape->length;
    problem.dim_qk = mixing_key_channels(mix);
    problem.dim_v = mixing_value_channels(mix);
    problem.scale = row->scale;
    problem.threads = mix->on->threads;
    if (row->unit) problem.feature_map = LOAM_FEATURES_UNIT;
    if (row->positive) {
        problem.feature_map = LOAM_FEATURES_POSITIVE, problem.normalise = 1;
        problem.features = mixer_features(row, &mix->options, shape);
        problem.features_shared = mix->options.features_shared;
    }
    if (row->mechanism == LOAM_SOFTMAX) {
        problem.decay = row->decay != MIXER_NO_DECAY;
        problem.path = row->reflect;
    }
    if (row->ridge == MIXER_RIDGE_TOKEN) {
        problem.ridge_axes = LOAM_RIDGE_TOKEN;
        problem.ridge_unit = mix->options.ridge_unit;
    }
    if (row->ridge == MIXER_RIDGE_HEAD) {
        problem.ridge_axes = LOAM_RIDGE_HEAD;
        problem.ridge_unit = mix->options.ridge_unit;
    }
    if (row->ridge == MIXER_RIDGE_CHANNEL) problem.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
    return problem;
}

/* Scores that depend on the tokens between are for causal calls: then the query rows of a head are heads of
 * one token, which sees all keys, and each head is a call. */
static bool by_head(const mixing *mix) { return mix->row->decay != MIXER_NO_DECAY || mix->row->reflect; }

int64_t mixing_query_calls(const mixing *mix) { return by_head(mix) ? mix->shape.heads : 1; }

loam_problem mixing_query_problem(const mixing *mix, loam_pass pass)
{
    const int64_t queries = mix->shape.length - mix->shape.seen;
    loam_problem problem = mixing_problem(mix, pass);
    if (by_head(mix)) {
        problem.heads_q = queries;
        problem.heads_kv = problem.len_q = 1;
    } else {
        problem.len_q = queries;
        problem.causal = 0;
    }
    return problem;
}

/* Where a call begins. */
typedef struct place {
    int64_t model, query; /* its first query's row; beyond 0 it is of queries that are not seen */
    int64_t head;         /* of calls by head */
} place;

static bool is_query(activation which)
{
    return which == ACTIVE_Q || which == ACTIVE_PROBE || which == ACTIVE_RIDGE || which == ACTIVE_O;
}

static int64_t heads_in(const mixing *mix, activation which)
{
    const bool key = which == ACTIVE_K, grouped = key || which == ACTIVE_V;
    if (mix->row->block == MIXER_PLAIN && grouped) return mix->shape.heads_kv;
    if (key || which == ACTIVE_Q) return mixing_query_heads(mix);
    return mixer_value_heads(mix->row, &mix->shape);
}

/* An array as [batch, heads, token, channels], from a place on. Rows of one token are [heads][channels]; an
 * array of one row is [heads][channels] for all. */
static loam_view heads_of(const mixing *mix, const matrix *list, activation which, const place *at)
{
    const matrix a = list[which];
    const bool single = at->query > 0 && by_head(mix);
    const int64_t heads = heads_in(mix, which);
    const int64_t tokens = a.rows == 1 ? 0 : a.row, part = a.width / heads;
    const int64_t first = at->model * a.model + (is_query(which) ? at->query * tokens : 0);
    if (!a.data) return (loam_view){ 0 };
    loam_view view = { (char *)a.data + first * matrix_bytes_each(a), mix->shape.length * tokens, part,
                       tokens };
    if (!single) return view;
    view.data = (char *)view.data + at->head * part * matrix_bytes_each(a);
    view.head = is_query(which) ? tokens : 0;
    return view;
}

/* mix->beside of the decay: [batch][key][head][query]. */
static loam_view decay_beside(const mixing *mix, const place *at)
{
    const matrix a = mix->beside[ACTIVE_DECAY];
    const int64_t token = mix->shape.heads * a.width;
    if (!a.data) return (loam_view){ 0 };
    char *from = (char *)a.data + at->head * a.width * matrix_bytes_each(a);
    return (loam_view){ from, mix->shape.seen * token, 1, token };
}

static loam_const_view input_of(const mixing *mix, const matrix *list, activation which, const place *at)
{
    const loam_view view = heads_of(mix, list, which, at);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

static loam_args args_of(const mixing *mix, const mixer_layer *layer, const place *at)
{
    const matrix *value = layer->value, *g = mix->gradient, *keys = at->query > 0 ? mix->beside : g;
    return (loam_args){
        .q = input_of(mix, value, ACTIVE_Q, at),
        .k = input_of(mix, value, ACTIVE_K, at),
        .v = input_of(mix, value, ACTIVE_V, at),
        .probe = input_of(mix, value, ACTIVE_PROBE, at),
        .ridge = input_of(mix, value, ACTIVE_RIDGE, at),
        .log_decay = input_of(mix, value, ACTIVE_DECAY, at),
        .beta = input_of(mix, value, ACTIVE_BETA, at),
        .w = input_of(mix, value, ACTIVE_REFLECT, at),
        .o = heads_of(mix, value, ACTIVE_O, at),
        .grad_o = input_of(mix, g, ACTIVE_O, at),
        .grad_q = heads_of(mix, g, ACTIVE_Q, at),
        .grad_k = heads_of(mix, keys, ACTIVE_K, at),
        .grad_v = heads_of(mix, keys, ACTIVE_V, at),
        .grad_probe = heads_of(mix, g, ACTIVE_PROBE, at),
        .grad_ridge = heads_of(mix, g, ACTIVE_RIDGE, at),
        .grad_log_decay = at->query > 0 ? decay_beside(mix, at) : heads_of(mix, g, ACTIVE_DECAY, at),
        .grad_beta = heads_of(mix, keys, ACTIVE_BETA, at),
        .grad_w = heads_of(mix, keys, ACTIVE_REFLECT, at),
        .work = mix->work,
        .stream = machine_stream(mix->on),
    };
}

/* That of a model, with the rows of its heads one after another. */
static loam_view features_of(const mixing *mix, matrix a, int64_t model)
{
    const int64_t heads = mixer_feature_heads(&mix->options, &mix->shape), rows = a.rows / heads;
    if (!a.data) return (loam_view){ 0 };
    return loam_dense_out((char *)a.data + model * a.model * matrix_bytes_each(a), heads, rows, a.width);
}

static loam_const_view feature_input(const mixing *mix, const mixer_layer *layer, role which, int64_t model)
{
    const loam_view view = features_of(mix, array_of(layer, which), model);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

static void add_features(const mixing *mix, const mixer_layer *layer, int64_t model, loam_args *args)
{
    if (!mix->row->positive) return;
    args->z = feature_input(mix, layer, ROLE_Z, model);
    args->log_alpha = feature_input(mix, layer, ROLE_LOG_ALPHA, model);
    args->shift = feature_input(mix, layer, ROLE_SHIFT, model);
    args->balance = feature_input(mix, layer, ROLE_BALANCE, model);
    args->balance_keys = feature_input(mix, layer, ROLE_BALANCE_KEYS, model);
    args->grad_z = features_of(mix, array_gradient(layer, ROLE_Z), model);
    args->grad_log_alpha = features_of(mix, array_gradient(layer, ROLE_LOG_ALPHA), model);
}

/* Of a call, from row `first` of each sequence on. */
static loam_view info_of(const mixing *mix, const mixer_layer *layer, int64_t call, int64_t first)
{
    const int64_t rows = mix->shape.batch * mix->shape.heads * mix->shape.length;
    loam_row_info *info = layer->info ? layer->info + call * rows + first : NULL;
    return loam_dense_out(info, mix->shape.heads, mix->shape.length, 1);
}

static loam_status attend_queries(const mixing *mix, const mixer_layer *layer, loam_pass pass,
                                  loam_error *error)
{
    const size_t bytes = loam_plan_saved_bytes(mix->query_plan[LOAM_FORWARD]);
    loam_status status = LOAM_OK;
    for (int64_t head = 0; head < mixing_query_calls(mix) && !status; head++) {
        loam_args args = args_of(mix, layer, &(place){ .query = mix->shape.seen, .head = head });
        args.saved = (char *)layer->query_saved + (size_t)head * bytes;
        if (pass == LOAM_FORWARD) args.info = info_of(mix, layer, 0, mix->shape.seen);
        loam_args_keep(&args, pass);
        status = loam_run(mix->query_plan[pass], &args, error);
    }
    return status;
}

/* The rows that are seen, each sequence as a model of its own. */
static matrix seen_rows(const mixing *mix, matrix a)
{
    a.models *= mix->shape.batch;
    a.model = mix->shape.length * a.row;
    a.rows = mix->shape.seen;
    return a;
}

/* A log decay has a gradient for each query. */
static void add_decays(const mixing *mix)
{
    const int64_t sequences = mix->shape.models * mix->shape.batch, heads = mix->shape.heads;
    const int64_t rows = mix->shape.seen * heads;
    matrix to = mix->gradient[ACTIVE_DECAY], from = mix->beside[ACTIVE_DECAY], ones = mix->ones;
    to.models = from.models = ones.models = sequences;
    to.rows = from.rows = rows;
    to.width = to.row = 1;
    to.model = mix->shape.length * heads;
    from.model = rows * from.width;
    ones.model = 0;
    mix->on->op->product(mix->on, to, from, ones, PRODUCT_ADD | PRODUCT_EXACT);
}

/* No call writes the other rows of these gradients: they stay 0, as their memory was opened. */
static void add_beside(const mixing *mix)
{
    static const activation of_keys[] = { ACTIVE_K, ACTIVE_V, ACTIVE_REFLECT, ACTIVE_BETA };
    if (mix->gradient[ACTIVE_DECAY].data) add_decays(mix);
    for (int i = 0; i < 4; i++) {
        const matrix g = mix->gradient[of_keys[i]];
        if (!g.data) continue;
        mix->on->op->combine(mix->on, seen_rows(mix, g), 1, seen_rows(mix, g), 1,
                             seen_rows(mix, mix->beside[of_keys[i]]));
    }
}

loam_status mixing_attend(const mixing *mix, const mixer_layer *layer, loam_pass pass, loam_error *error)
{
    const size_t bytes = loam_plan_saved_bytes(mix->plan[LOAM_FORWARD]);
    loam_status status = LOAM_OK;
    for (int64_t call = 0; call < mixing_calls(mix) && !status; call++) {
        loam_args args = args_of(mix, layer, &(place){ .model = call });
        add_features(mix, layer, call, &args);
        args.saved = bytes > 0 ? (char *)layer->saved + (size_t)call * bytes : NULL;
        if (pass == LOAM_FORWARD) args.info = info_of(mix, layer, call, 0);
        loam_args_keep(&args, pass);
        status = loam_run(mix->plan[pass], &args, error);
    }
    if (status || !mixing_in_parts(mix)) return status;
    status = attend_queries(mix, layer, pass, error);
    if (!status && pass == LOAM_BACKWARD) add_beside(mix);
    return status;
}

void mixing_hide(const mixing *mix, const matrix *list)
{
    const mixer_shape *shape = &mix->shape;
    const activation write = list[ACTIVE_BETA].data ? ACTIVE_BETA : ACTIVE_V;
    if (shape->seen == shape->length || mixing_in_parts(mix)) return;
    mix->on->op->clear_rows(mix->on, list[write], shape->length, shape->seen);
    /* The decay of RetNet is one row for all tokens, and goes on. */
    if (list[ACTIVE_DECAY].rows > 1)
        mix->on->op->clear_rows(mix->on, list[ACTIVE_DECAY], shape->length, shape->seen);
}

loam_status mixing_turn(const mixing *mix, const matrix *list, bool back, loam_error *error)
{
    static const activation turned[] = { ACTIVE_Q, ACTIVE_K, ACTIVE_PROBE };
    const mixer_options *options = &mix->options;
    loam_rope rope = loam_rope_default(mix->on->operand);
    rope.backend = machine_backend(mix->on);
    rope.stream = machine_stream(mix->on);
    rope.batch = mix->shape.models * mix->shape.batch;
    rope.tokens = mix->shape.length;
    rope.channels = mixing_key_channels(mix);
    rope.dim = options->rope_dim;
    if (options->rope_base > 0) rope.base = options->rope_base;
    rope.inverse = back;
    rope.threads = mix->on->threads;
    const place begin = { 0 };
    loam_status status = LOAM_OK;
    for (int i = 0; i < 3 && !status; i++) {
        const loam_const_view from = input_of(mix, list, turned[i], &begin);
        const loam_view to = heads_of(mix, list, turned[i], &begin);
        rope.heads = heads_in(mix, turned[i]);
        if (from.data) status = loam_rope_apply(&rope, &from, &to, error);
    }
    return status;
}
