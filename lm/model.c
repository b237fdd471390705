/* SPDX-License-Identifier: MIT */
#include "lm/loaded.h"
#include "lm/manner.h"
#include "lm/text.h"
#include "train/mixer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const matrix none = { 0 };

static int failed(const loam_error *from, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "%s", from->text);
}

/* ---- plans of attention */

static bool layers_differ(const lm_text *t)
{
    return t->of->config->scale_by_layer || t->options.only >= 0 || t->options.heads || t->options.features;
}

static text_plans *plans_of(const lm_text *t, int64_t layer, int64_t head)
{
    return &t->plans[(layers_differ(t) ? layer * t->of->config->heads_q : 0) + head];
}

/* What is attended to at once: `queries` tokens at the end of those in use, of `count` heads. */
typedef struct attended {
    int64_t layer, first, count, queries;
} attended;

/* Are addresses those of any token, and its place a number in memory? */
static bool is_step(const lm_text *t, int64_t rows)
{
    return t->of->on->gpu && rows == 1 && t->of->config->architecture != LM_BERT;
}

/* Each call of a layer on its own: what is no softmax, or forgets, reads all keys in one go. */
static bool is_split(const lm_text *t, const loam_problem *p)
{
    return is_step(t, p->len_q) && t->splits > 1 && p->mechanism == LOAM_SOFTMAX && !p->decay;
}

/* The states of a layer with features, where the text has them. */
static float *state_of(const lm_text *t, int64_t layer)
{
    const lm_options *now = &t->options, *own = &t->of->options;
    const bool same = now->features == own->features && now->window == own->window &&
                      now->sinks == own->sinks;
    return t->batch == 1 && same ? t->states[layer].data : NULL;
}

static loam_problem problem_of(const lm_text *t, attended what)
{
    const lm_model *m = t->of;
    const lm_config *c = m->config;
    const lm_features *features = manner_features(&t->options, what.layer);
    const int64_t group = c->heads_q / c->heads_kv;
    const manner its = manner_of(&t->options, c, what.layer, what.first);
    const bool causal = c->architecture != LM_BERT, elu = manner_is_elu(&t->options, its),
               step = what.queries == 1 && causal && t->batch == 1 && !elu &&
                      (features ? state_of(t, what.layer) != NULL : !m->on->gpu);
    loam_problem p = loam_problem_default(its.mechanism, step ? LOAM_DECODE : LOAM_FORWARD);
    p.dtype = m->on->operand;
    p.backend = machine_backend(m->on);
    p.threads = m->on->threads;
    p.heads_q = what.count, p.heads_kv = what.count < group ? 1 : what.count / group;
    p.len_q = what.queries, p.len_kv = t->room;
    p.dim_qk = p.dim_v = c->head_dim;
    p.causal = causal;
    p.scale = its.inverse_temperature * lm_config_scale(c, what.layer);
    p.decay = t->options.own && c->forgets;
    if (t->batch > 1) p.batch = t->batch, p.len_kv = what.queries;
    if (features) manner_features_problem(features, &p);
    if (elu)
        p.feature_map = LOAM_FEATURES_ELU, p.normalise = 1, p.scale = 0, p.len_kv = p.len_q, p.causal = 1;
    if (is_split(t, &p)) p.batch = t->splits, p.len_kv = TEXT_SPLIT, p.causal = 0;
    if (its.mechanism != LOAM_LLA) return p;
    p.ridge_unit = t->options.own ? c->ridge_unit : t->options.ridge_unit;
    if (t->options.own)
        p.ridge_axes = LOAM_RIDGE_TOKEN;
    else if (manner_ridges_differ(&t->options, c, what.layer, what.first, what.count))
        p.ridge_axes = LOAM_RIDGE_HEAD;
    else
        p.ridge = its.ridge;
    return p;
}

static void forget_step(lm_text *t)
{
    machine_forget(t->step);
    t->step = NULL;
}

static int make_plan(lm_text *t, loam_plan **plan, attended what, io_error *error)
{
    loam_error reason;
    const loam_problem p = problem_of(t, what);
    loam_plan_destroy(*plan);
    if (loam_plan_create(plan, &p, &reason)) return failed(&reason, error);
    const size_t bytes = loam_plan_work_bytes(*plan);
    if (bytes <= t->work_bytes) return 0;
    memory room = { .gpu = t->of->on->gpu };
    (void)memory_take(&room, (int64_t)bytes, 1);
    if (!memory_open(&room, t->of->on)) return io_fail(error, EXIT_INTERNAL, "out of memory for attention");
    memory old = { .gpu = room.gpu, .base = t->work };
    memory_close(&old);
    forget_step(t);
    t->work = room.base, t->work_bytes = bytes;
    return 0;
}

/* The plan for so many tokens; the last number of more than one is kept. */
static int plan_for(lm_text *t, attended what, const loam_plan **plan, io_error *error)
{
    text_plans *plans = plans_of(t, what.layer, what.first);
    loam_plan **const slot = what.queries == 1 ? &plans->step : &plans->chunk;
    int status = 0;
    if (!*slot || (what.queries > 1 && plans->queries != what.queries))
        status = make_plan(t, slot, what, error);
    if (!status && what.queries > 1) plans->queries = what.queries;
    *plan = *slot;
    return status;
}

void text_drop_plans(lm_text *t)
{
    const int64_t slots = t->of->config->layers * t->of->config->heads_q;
    forget_step(t);
    t->stepped = false;
    for (int64_t i = 0; t->plans && i < slots; i++) {
        loam_plan_destroy(t->plans[i].step);
        loam_plan_destroy(t->plans[i].chunk);
        t->plans[i] = (text_plans){ 0 };
    }
}

/* ---- texts */

int64_t lm_text_length(const lm_text *t) { return t->length; }

void lm_text_rewind(lm_text *t, int64_t length)
{
    assert(length >= 0 && length <= t->length && (length == 0 || !t->options.features));
    t->length = length;
}

void lm_text_batch(lm_text *t, int64_t texts)
{
    assert(texts >= 1 && texts <= t->most_batch);
    t->length = 0;
    if (t->batch != texts) text_drop_plans(t);
    t->batch = texts;
}

/* Can a text that was opened as this one is be read by such options? */
static int check_attention(const lm_text *t, const lm_options *o, io_error *error)
{
    const int status = lm_options_check(o, t->of->config, error);
    if (status) return status;
    if ((o->mechanism == LOAM_PARALLAX && !t->probe.data) || (o->own && !t->of->options.own))
        return io_fail(error, EXIT_USAGE, "%s: the model was opened without it",
                       o->own ? "its own attention" : "parallax");
    for (int64_t i = 0; i < t->of->config->layers; i++)
        if (!manner_features(o, i) && t->keys[i].rows < t->room)
            return io_fail(error, EXIT_USAGE,
                           "softmax in layer %lld: the model was opened with features in it", (long long)i);
    return 0;
}

int lm_text_attention(lm_text *t, const lm_options *options, io_error *error)
{
    const lm_config *c = t->of->config;
    const int64_t heads = c->layers * c->heads_q;
    const lm_options o = loaded_options(t->of, options);
    const int status = check_attention(t, &o, error);
    if (status) return status;
    float *ridges = o.heads ? malloc((size_t)heads * sizeof *ridges) : NULL;
    if (o.heads && !ridges) return io_fail(error, EXIT_INTERNAL, "out of memory for ridges");
    text_drop_plans(t);
    if (o.features != t->options.features || (o.features && o.only != t->options.only)) t->length = 0;
    t->options = o;
    for (int64_t i = 0; ridges && i < heads; i++)
        ridges[i] = (float)o.heads[i].ridge;
    if (ridges) machine_upload(t->of->on, t->ridges.data, ridges, (size_t)heads * sizeof *ridges);
    free(ridges);
    return 0;
}

/* ---- a layer */

/* out = a W^T + bias; `add`: to what out holds. add_positions with one row adds it to all. */
static void linear(const lm_text *t, matrix out, matrix a, int64_t layer, lm_part part, bool add)
{
    const machine *on = t->of->on;
    const matrix bias = lm_weight(&t->of->weights, layer, (lm_part)(part + 1));
    on->op->product(on, out, a, lm_weight(&t->of->weights, layer, part),
                    PRODUCT_B_TRANSPOSED | (add ? PRODUCT_ADD : 0));
    if (bias.data) on->op->add_positions(on, out, bias);
}

static void norm(const lm_text *t, matrix y, matrix x, int64_t layer, lm_part part)
{
    const machine *on = t->of->on;
    const lm_weights *w = &t->of->weights;
    const matrix gain = lm_weight(w, layer, part), bias = lm_weight(w, layer, (lm_part)(part + 1));
    const double eps = t->of->config->norm_eps;
    const matrix stats = matrix_rows(t->stats, 0, x.rows);
    if (bias.data)
        on->op->layer_norm(on, y, stats, x, gain, bias, eps);
    else
        on->op->rms_norm(on, y, matrix_columns(stats, 0, 1), x, gain, eps);
}

static loam_view heads_view(matrix a, int64_t head_dim)
{
    return (loam_view){ a.data, a.rows * a.row, head_dim, a.row };
}
static loam_const_view heads_of(matrix a, int64_t head_dim)
{
    return (loam_const_view){ a.data, a.rows * a.row, head_dim, a.row };
}

/* A number for each head and row. */
static loam_const_view numbers_of(matrix a) { return (loam_const_view){ a.data, a.rows * a.row, 1, a.row }; }

/* Turns rows of heads in place, whose first token is the next one of the text. */
static int turn(const lm_text *t, matrix a, int64_t heads, io_error *error)
{
    const lm_config *c = t->of->config;
    loam_rope rope = loam_rope_default(a.dtype);
    loam_error reason;
    rope.batch = t->batch, rope.heads = heads, rope.tokens = a.rows / t->batch, rope.channels = c->head_dim;
    rope.dim = c->rope_dim, rope.base = c->rope_base, rope.offset = t->length;
    rope.positions = is_step(t, a.rows) ? &t->place->first : NULL;
    rope.threads = t->of->on->threads;
    rope.backend = machine_backend(t->of->on), rope.stream = machine_stream(t->of->on);
    loam_const_view from = heads_of(a, c->head_dim);
    loam_view to = heads_view(a, c->head_dim);
    from.batch = to.batch = rope.tokens * a.row;
    return loam_rope_apply(&rope, &from, &to, &reason) ? failed(&reason, error) : 0;
}

/* Each split is a sequence of its own, which the same query reads. */
static void split_args(const lm_text *t, matrix parts, matrix lse, loam_args *args)
{
    args->q.batch = 0;
    args->k.batch = TEXT_SPLIT * args->k.token, args->v.batch = TEXT_SPLIT * args->v.token;
    args->o = (loam_view){ parts.data, parts.row, t->of->config->head_dim, parts.row };
    args->lse = (loam_view){ lse.data, lse.row, 1, lse.row };
    args->lens_kv = t->split_counts;
}

/* Texts follow each other, each with `rows` of all there is. */
static void batch_args(int64_t rows, loam_args *args)
{
    args->q.batch = rows * args->q.token, args->k.batch = rows * args->k.token;
    args->v.batch = rows * args->v.token, args->o.batch = rows * args->o.token;
    args->probe.batch = rows * args->probe.token, args->ridge.batch = rows * args->ridge.token;
    args->log_decay.batch = rows * args->log_decay.token;
    args->lens_kv = NULL;
}

/* What a call reads and writes: columns of rows of all heads. */
static loam_args args_of(const lm_text *t, attended what, const loam_problem *p, matrix o, matrix q)
{
    const lm_config *c = t->of->config;
    const int64_t d = c->head_dim, group = c->heads_q / c->heads_kv;
    const int64_t from = what.first * d, width = what.count * d;
    const matrix k = matrix_columns(t->keys[what.layer], what.first / group * d, width),
                 v = matrix_columns(t->values[what.layer], what.first / group * d, width);
    const bool lla = p->mechanism == LOAM_LLA, own = t->options.own;
    const matrix probe = p->mechanism == LOAM_PARALLAX
                             ? matrix_columns(matrix_rows(t->probe, 0, q.rows), from, width)
                             : none;
    loam_args args = { .q = heads_of(matrix_columns(q, from, width), d),
                       .k = heads_of(k, d),
                       .v = heads_of(v, d),
                       .probe = heads_of(probe, d),
                       .ridge = numbers_of(own && lla ? matrix_rows(t->ridge, 0, q.rows) : none),
                       .log_decay = numbers_of(own && c->forgets ? t->decays[what.layer] : none),
                       .lens_kv = &t->place->in_use,
                       .o = heads_view(o, d),
                       .work = t->work,
                       .stream = machine_stream(t->of->on) };
    if (p->ridge_axes == LOAM_RIDGE_HEAD)
        args.ridge = (loam_const_view){ (const float *)t->ridges.data + what.layer * c->heads_q + what.first,
                                        0, 1, 0 };
    return args;
}

/* A text goes on from its states. Those that a GPU's recording begins with were cleared: its calls are the
 * same for the first token. */
static void features_args(const lm_text *t, const lm_features *f, attended what, loam_args *args)
{
    const lm_config *c = t->of->config;
    float *const state = state_of(t, what.layer);
    manner_features_args(f, c, args);
    if (!state) return;
    const int64_t heads = manner_features_heads(f, c), rows = manner_state_rows(c);
    args->state_out = loam_dense_out(state, heads, rows, f->features);
    if (t->length > 0 || is_step(t, what.queries))
        args->state_in = loam_dense(state, heads, rows, f->features);
}

/* o of the rows of q, over all keys so far and their own, in heads that are alike. */
static int attend_heads(lm_text *t, attended what, matrix o, matrix q, io_error *error)
{
    const int64_t d = t->of->config->head_dim, from = what.first * d, width = what.count * d;
    const machine *on = t->of->on;
    const lm_features *features = manner_features(&t->options, what.layer);
    const bool elu = manner_is_elu(&t->options,
                                   manner_of(&t->options, t->of->config, what.layer, what.first));
    const loam_plan *plan;
    loam_error reason;
    if ((elu || (features && !state_of(t, what.layer))) && t->length > 0)
        return io_fail(error, EXIT_USAGE,
                       "features read a text in one go: %lld of its tokens were read before",
                       (long long)t->length);
    const int status = plan_for(t, what, &plan, error);
    if (status) return status;
    const bool split = t->batch == 1 && loam_plan_problem(plan)->batch > 1;
    const matrix out = matrix_columns(o, from, width),
                 parts = split ? matrix_columns(t->parts, from, width) : none,
                 lse = split ? matrix_columns(t->lse, what.first, what.count) : none;
    loam_args args = args_of(t, what, loam_plan_problem(plan), out, q);
    if (t->batch > 1) batch_args(what.queries, &args);
    if (split) split_args(t, parts, lse, &args);
    if (elu) args.lens_kv = NULL;
    if (features) features_args(t, features, what, &args);
    if (features && features->untied &&
        untied_args(&t->untied, on, t->most, what.queries, d, q, matrix_rows(t->keys[what.layer], 0, q.rows),
                    &args, error))
        return EXIT_INTERNAL;
    if ((elu || features) && t->of->config->architecture == LM_BERT)
        return encoder_attend(&t->encoder, on, plan, &args, error);
    if (loam_run(plan, &args, &reason)) return failed(&reason, error);
    if (split) on->op->merge_parts(on, out, parts, lse);
    return 0;
}

/* A window, and features beside it or none. */
static int attend_near(lm_text *t, int64_t layer, matrix o, matrix q, io_error *error)
{
    const lm_options *how = &t->options;
    const lm_config *c = t->of->config;
    const matrix k = t->keys[layer], v = t->values[layer];
    const bool beside = manner_features(how, layer) != NULL, keeps = beside && state_of(t, layer);
    const hybrid_kept kept = { t->states[layer], t->near_keys[layer], t->near_values[layer], &t->place->first,
                               t->length == 0 && q.rows > 1 };
    const void *const room = t->hybrid.work;
    if (!keeps && (t->length > 0 || (t->batch > 1 && !beside)))
        return io_fail(error, EXIT_USAGE, "a window reads a text in one go, and one alone");
    if (!beside)
        return window_attend(&t->window, t->of->on, how, c->head_dim,
                             how->inverse_temperature * lm_config_scale(c, layer), o, q, k, v, error);
    const int status = hybrid_attend(&t->hybrid, t->of->on, how, c, layer, t->batch, o, q, k, v,
                                     keeps ? &kept : NULL, error);
    if (t->hybrid.work != room) forget_step(t);
    return status;
}

static int attend(lm_text *t, int64_t layer, matrix o, matrix q, io_error *error)
{
    const lm_options *how = &t->options;
    attended what = { layer, 0, 0, q.rows / t->batch };
    int status = 0;
    if (how->window > 0 && (how->only < 0 || how->only == layer)) return attend_near(t, layer, o, q, error);
    for (; !status && what.first < t->of->config->heads_q; what.first += what.count) {
        what.count = manner_count(&t->options, t->of->config, layer, what.first);
        status = attend_heads(t, what, o, q, error);
    }
    return status;
}

/* The row of the one token that is read, among all of the text. */
static numbers place_of(const lm_text *t) { return (numbers){ &t->place->row, 0 }; }

/* Probes, ridges and log decays of the rows x, as they were trained: train/plain.c. */
static int own_gates(const lm_text *t, int64_t layer, matrix x, io_error *error)
{
    const machine *on = t->of->on;
    const lm_config *c = t->of->config;
    const lm_weights *w = &t->of->weights;
    const matrix gates = matrix_rows(t->gates, 0, x.rows);
    if (!t->options.own) return 0;
    if (c->mechanism == LOAM_LLA) {
        on->op->product(on, gates, x, lm_weight(w, layer, LM_RIDGE), PRODUCT_B_TRANSPOSED);
        on->op->sigmoid_gate(on, matrix_rows(t->ridge, 0, x.rows), gates, none, c->ridge_least,
                             c->ridge_most);
    }
    if (c->forgets) {
        on->op->product(on, gates, x, lm_weight(w, layer, LM_FORGET), PRODUCT_B_TRANSPOSED);
        const bool step = is_step(t, x.rows);
        const matrix forget = step ? t->forget : matrix_rows(t->decays[layer], t->length, x.rows);
        on->op->forget_gate(on, forget, gates, none, mixer_find("fox")->decay_shift, 1);
        if (step) on->op->put_rows(on, t->decays[layer], forget, place_of(t));
    }
    if (c->mechanism != LOAM_PARALLAX) return 0;
    const matrix probe = matrix_rows(t->probe, 0, x.rows);
    on->op->product(on, probe, x, lm_weight(w, layer, LM_PROBE), PRODUCT_B_TRANSPOSED);
    return c->rope_dim > 0 ? turn(t, probe, c->heads_q, error) : 0;
}

/* out += attention of x, or out = it. */
static int attention(lm_text *t, int64_t layer, matrix out, matrix x, bool add, io_error *error)
{
    const lm_config *c = t->of->config;
    const matrix q = matrix_rows(t->q, 0, x.rows), o = matrix_rows(t->o, 0, x.rows);
    const bool features = manner_features(&t->options, layer) != NULL, step = is_step(t, x.rows) && !features;
    const int64_t first = features ? 0 : t->length;
    const matrix k = step ? t->key : matrix_rows(t->keys[layer], first, x.rows),
                 v = step ? t->value : matrix_rows(t->values[layer], first, x.rows);
    linear(t, q, x, layer, LM_Q, false);
    linear(t, k, x, layer, LM_K, false);
    linear(t, v, x, layer, LM_V, false);
    int status = 0;
    if (c->rope_dim > 0) status = turn(t, q, c->heads_q, error);
    if (!status && c->rope_dim > 0) status = turn(t, k, c->heads_kv, error);
    if (step) {
        t->of->on->op->put_rows(t->of->on, t->keys[layer], k, place_of(t));
        t->of->on->op->put_rows(t->of->on, t->values[layer], v, place_of(t));
    }
    if (!status) status = own_gates(t, layer, x, error);
    if (!status) status = attend(t, layer, o, q, error);
    if (!status) linear(t, out, o, layer, LM_O, add);
    return status;
}

static void activate(const lm_text *t, matrix y, matrix x)
{
    const machine *on = t->of->on;
    switch (t->of->config->activation) {
    case LM_GELU: on->op->gelu_erf(on, y, x); return;
    case LM_GELU_TANH: on->op->gelu(on, y, x); return;
    case LM_SILU: on->op->silu(on, y, x); return;
    case LM_RELU: on->op->relu(on, y, x); return;
    }
}

static void mlp(const lm_text *t, int64_t layer, matrix out, matrix x, bool add)
{
    const machine *on = t->of->on;
    const matrix gates = lm_weight(&t->of->weights, layer, LM_GATE), up = matrix_rows(t->up, 0, x.rows),
                 gate = matrix_rows(t->gate, 0, x.rows), inner = matrix_rows(t->inner, 0, x.rows);
    linear(t, up, x, layer, LM_UP, false);
    if (gates.data) {
        on->op->product(on, gate, x, gates, PRODUCT_B_TRANSPOSED);
        activate(t, inner, gate);
        on->op->multiply(on, gate, inner, up);
    } else {
        activate(t, gate, up);
    }
    linear(t, out, gate, layer, LM_DOWN, add);
}

/* x becomes what the layer makes of it; y: a room of the same size. */
static int run_layer(lm_text *t, int64_t layer, matrix x, matrix y, io_error *error)
{
    const lm_config *c = t->of->config;
    const machine *on = t->of->on;
    int status;
    if (c->architecture == LM_BERT) {
        if ((status = attention(t, layer, y, x, false, error))) return status;
        on->op->combine(on, y, 1, x, 1, y);
        norm(t, x, y, layer, LM_NORM_1);
        mlp(t, layer, y, x, false);
        on->op->combine(on, y, 1, x, 1, y);
        norm(t, x, y, layer, LM_NORM_2);
        return 0;
    }
    norm(t, y, x, layer, LM_NORM_1);
    if (c->parallel) {
        const matrix second = matrix_rows(t->second, 0, x.rows);
        norm(t, second, x, layer, LM_NORM_2);
        if ((status = attention(t, layer, x, y, true, error))) return status;
        mlp(t, layer, x, second, true);
        return 0;
    }
    if ((status = attention(t, layer, x, y, true, error))) return status;
    norm(t, y, x, layer, LM_NORM_2);
    mlp(t, layer, x, y, true);
    return 0;
}

/* ---- reading */

/* The embedding of tokens at positions from the next one on; y: a room of the same size. */
static void embed(const lm_text *t, matrix x, matrix y)
{
    const machine *on = t->of->on;
    const lm_weights *w = &t->of->weights;
    const matrix places = lm_weight(w, 0, LM_POSITIONS), types = lm_weight(w, 0, LM_TYPES);
    on->op->embed(on, x, lm_weight(w, 0, LM_EMBED), (numbers){ t->ids, 0 }, none);
    if (places.data && is_step(t, x.rows)) {
        on->op->embed(on, y, places, place_of(t), none);
        on->op->combine(on, x, 1, x, 1, y);
    } else if (places.data) {
        on->op->add_positions(on, x, matrix_rows(places, t->length, x.rows / t->batch));
    }
    if (types.data) on->op->add_positions(on, x, matrix_rows(types, 0, 1));
}

/* What enters the layers, of the tokens that were sent. */
static void enter(const lm_text *t, matrix x)
{
    const matrix y = matrix_rows(t->y, 0, x.rows);
    const bool normed = lm_weight(&t->of->weights, 0, LM_EMBED_NORM).data != NULL;
    embed(t, normed ? y : x, normed ? x : y);
    if (normed) norm(t, x, y, 0, LM_EMBED_NORM);
}

static int check_tokens(const lm_text *t, const int32_t *tokens, int64_t count, io_error *error)
{
    const lm_config *c = t->of->config;
    assert(count % t->batch == 0 && (t->batch == 1 || t->length == 0));
    if (count < 1 || count > t->most || count > t->room - t->length)
        return io_fail(error, EXIT_INPUT, "%lld tokens at once: expected 1 to %lld", (long long)count,
                       (long long)(t->most < t->room - t->length ? t->most : t->room - t->length));
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= c->vocabulary)
            return io_fail(error, EXIT_INPUT, "token %d: the model has %lld", tokens[i],
                           (long long)c->vocabulary);
    return 0;
}

/* How many keys of each split are in use. */
static void send_counts(const lm_text *t, int64_t in_use)
{
    for (int64_t i = 0; i < t->splits; i++) {
        const int64_t left = in_use - i * TEXT_SPLIT;
        t->counts[i] = left < 0 ? 0 : left < TEXT_SPLIT ? left : TEXT_SPLIT;
    }
    machine_upload(t->of->on, t->split_counts, t->counts, (size_t)t->splits * sizeof *t->counts);
}

/* The next tokens and their place to the machine's memory. */
static int send(lm_text *t, const int32_t *tokens, int64_t count, io_error *error)
{
    const machine *on = t->of->on;
    if (t->of->config->architecture == LM_BERT) t->length = 0;
    const int status = check_tokens(t, tokens, count, error);
    if (status) return status;
    const text_place place = { t->length, t->length + count, (int32_t)t->length };
    machine_upload(on, t->place, &place, sizeof place);
    machine_upload(on, t->ids, tokens, (size_t)count * sizeof *tokens);
    if (is_step(t, count)) send_counts(t, place.in_use);
    for (int64_t i = 0; t->length == 0 && count == 1 && i < t->of->config->layers; i++)
        if (t->states[i].data) on->op->clear_rows(on, t->states[i], t->states[i].rows, 0);
    return 0;
}

int lm_text_enter(lm_text *t, const int32_t *tokens, int64_t count, matrix x, io_error *error)
{
    const int status = send(t, tokens, count, error);
    if (!status) enter(t, x);
    return status;
}

int lm_text_layers(lm_text *t, int64_t first, int64_t end, matrix x, io_error *error)
{
    const matrix y = matrix_rows(t->y, 0, x.rows);
    int status = 0;
    for (int64_t layer = first; !status && layer < end; layer++)
        status = run_layer(t, layer, x, y, error);
    return status;
}

/* What leaves the layers. */
static matrix leave(const lm_text *t, matrix x)
{
    const matrix y = matrix_rows(t->y, 0, x.rows);
    if (!lm_weight(&t->of->weights, 0, LM_LAST_NORM).data) return x;
    norm(t, y, x, 0, LM_LAST_NORM);
    return y;
}

matrix lm_text_leave(lm_text *t, matrix x)
{
    t->length += x.rows;
    return leave(t, x);
}

lm_heads lm_text_heads(const lm_text *t, int64_t layer, int64_t count)
{
    return (lm_heads){ matrix_rows(t->q, 0, count), matrix_rows(t->keys[layer], 0, count),
                       matrix_rows(t->values[layer], 0, count), matrix_rows(t->o, 0, count) };
}

/* All layers and what is around them, of the tokens that were sent. */
static int run_all(lm_text *t, int64_t count, matrix *hidden, io_error *error)
{
    const matrix x = matrix_rows(t->x, 0, count);
    enter(t, x);
    const int status = lm_text_layers(t, 0, t->of->config->layers, x, error);
    if (!status) *hidden = leave(t, x);
    return status;
}

static int record_step(lm_text *t, io_error *error)
{
    const machine *on = t->of->on;
    loam_error reason;
    machine_record_begin(on);
    int status = run_all(t, 1, &t->hidden, error);
    if (machine_record_end(on, &t->step, &reason) && !status) status = failed(&reason, error);
    if (status) forget_step(t);
    return status;
}

/* One token on a GPU: the first as it comes, later ones by a recording. It has all calls of attention of
 * each layer, and lasts until plans or their workspace change. */
static int run_step(lm_text *t, matrix *hidden, io_error *error)
{
    int status = 0;
    if (!t->stepped) {
        status = run_all(t, 1, hidden, error);
        t->stepped = !status;
        return status;
    }
    if (!t->step) status = record_step(t, error);
    if (status) return status;
    machine_replay(t->of->on, t->step);
    *hidden = t->hidden;
    return 0;
}

int lm_text_read(lm_text *t, const int32_t *tokens, int64_t count, matrix *hidden, io_error *error)
{
    int status = send(t, tokens, count, error);
    if (!status) status = is_step(t, count) ? run_step(t, hidden, error) : run_all(t, count, hidden, error);
    if (!status) t->length += count;
    return status;
}

void lm_text_logits(const lm_text *t, matrix hidden, matrix logits)
{
    const lm_model *m = t->of;
    m->on->op->product(m->on, logits, hidden, lm_weight(&m->weights, 0, m->config->tied ? LM_EMBED : LM_HEAD),
                       PRODUCT_B_TRANSPOSED);
}
