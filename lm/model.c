/* SPDX-License-Identifier: MIT */
#include "lm/model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static const matrix none = { 0 };

/* Keys that a block of a GPU reads for one query: softmax over more is the mean of such splits. */
enum { SPLIT = 256 };

struct lm_model {
    const machine *on;
    const lm_config *config;
    lm_options options;
    lm_weights weights;
};

/* Attention of one layer, or of all that do not differ. */
typedef struct text_plans {
    loam_plan *step, *chunk; /* one query; `queries` of them */
    int64_t queries;
} text_plans;

/* Where the tokens that are read stand, in the machine's memory: launches for one token differ by nothing
 * else, and can be recorded. */
typedef struct text_place {
    int64_t first, in_use; /* the position of the first; keys, those of these tokens too */
    int32_t row;           /* first, as a number of a row */
} text_place;

struct lm_text {
    const lm_model *of;
    int64_t room, most, length;
    memory memory;
    matrix *keys, *values; /* [layers], each [1][room][heads_kv head_dim] */
    matrix x, y, second, stats, q, o, up, gate, inner, probe; /* second: with parallel attention and mlp */
    matrix key, value;                                        /* of a GPU: of the one token that is read */
    text_place *place;
    int32_t *ids;                           /* of the tokens that are read */
    int64_t splits, *counts, *split_counts; /* keys of each split, in host memory and the machine's */
    matrix parts, lse;                      /* of each split: the mean of its values, its weight */
    text_plans *plans;                      /* [layers] where layers differ, else one */
    void *work;
    size_t work_bytes;
    /* Of a GPU: the launches for one token, where the first of them has made its plans; what they give. */
    machine_recording *step;
    bool stepped;
    matrix hidden;
};

static int failed(const loam_error *from, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "%s", from->text);
}

lm_options lm_options_default(void)
{
    return (lm_options){
        .weights = LOAM_F32, .mechanism = LOAM_SOFTMAX, .ridge = 0.1, .only = -1, .inverse_temperature = 1
    };
}

/* ---- models */

int lm_model_open(lm_model **made, const machine *on, const lm_files *f, const lm_options *options,
                  io_error *error)
{
    *made = NULL;
    const lm_config *config = lm_files_config(f);
    if (options->only >= config->layers)
        return io_fail(error, EXIT_USAGE, "layer %lld: the model has %lld", (long long)options->only,
                       (long long)config->layers);
    lm_model *m = calloc(1, sizeof *m);
    if (!m) return io_fail(error, EXIT_INTERNAL, "out of memory for a model");
    m->on = on, m->config = config, m->options = *options;
    const int status = lm_weights_open(&m->weights, on, f, options->weights, error);
    if (status)
        free(m);
    else
        *made = m;
    return status;
}

void lm_model_close(lm_model *m)
{
    if (!m) return;
    lm_weights_close(&m->weights);
    free(m);
}

const lm_config *lm_model_config(const lm_model *m) { return m->config; }
const machine *lm_model_machine(const lm_model *m) { return m->on; }
int64_t lm_model_bytes(const lm_model *m) { return m->weights.bytes; }

int lm_model_fetch(const lm_model *m, float *to, matrix rows, io_error *error)
{
    loam_error reason;
    assert(rows.dtype == LOAM_F32 && rows.row == rows.width && rows.models == 1);
    return machine_download(m->on, to, rows.data, (size_t)matrix_elements(rows) * sizeof *to, &reason)
               ? failed(&reason, error)
               : 0;
}

/* ---- plans of attention */

static bool layers_differ(const lm_model *m) { return m->config->scale_by_layer || m->options.only >= 0; }

static text_plans *plans_of(const lm_text *t, int64_t layer)
{
    return &t->plans[layers_differ(t->of) ? layer : 0];
}

static bool has_mechanism(const lm_model *m, int64_t layer)
{
    return m->options.only < 0 || m->options.only == layer;
}

/* Are addresses those of any token, and its place a number in memory? */
static bool is_step(const lm_text *t, int64_t rows)
{
    return t->of->on->gpu && rows == 1 && t->of->config->architecture != LM_BERT;
}

static loam_mechanism mechanism_of(const lm_model *m, int64_t layer)
{
    return has_mechanism(m, layer) ? m->options.mechanism : LOAM_SOFTMAX;
}

static bool is_split(const lm_text *t, int64_t layer, int64_t queries)
{
    return is_step(t, queries) && t->splits > 1 && mechanism_of(t->of, layer) == LOAM_SOFTMAX;
}

/* `queries` tokens at the end of those in use. */
static loam_problem problem_of(const lm_text *t, int64_t layer, int64_t queries)
{
    const lm_model *m = t->of;
    const lm_config *c = m->config;
    const bool causal = c->architecture != LM_BERT, step = queries == 1 && causal && !m->on->gpu;
    const loam_mechanism mechanism = mechanism_of(m, layer);
    loam_problem p = loam_problem_default(mechanism, step ? LOAM_DECODE : LOAM_FORWARD);
    p.dtype = m->on->operand;
    p.backend = machine_backend(m->on);
    p.threads = m->on->threads;
    p.heads_q = c->heads_q, p.heads_kv = c->heads_kv;
    p.len_q = queries, p.len_kv = t->room;
    p.dim_qk = p.dim_v = c->head_dim;
    p.causal = causal;
    p.scale = m->options.inverse_temperature / sqrt((double)c->head_dim);
    if (c->scale_by_layer) p.scale /= (double)(layer + 1);
    if (is_split(t, layer, queries)) p.batch = t->splits, p.len_kv = SPLIT, p.causal = 0;
    if (mechanism == LOAM_LLA) p.ridge = m->options.ridge, p.ridge_unit = m->options.ridge_unit;
    return p;
}

static int make_plan(lm_text *t, loam_plan **plan, int64_t layer, int64_t queries, io_error *error)
{
    loam_error reason;
    const loam_problem p = problem_of(t, layer, queries);
    loam_plan_destroy(*plan);
    if (loam_plan_create(plan, &p, &reason)) return failed(&reason, error);
    const size_t bytes = loam_plan_work_bytes(*plan);
    if (bytes <= t->work_bytes) return 0;
    memory room = { .gpu = t->of->on->gpu };
    (void)memory_take(&room, (int64_t)bytes, 1);
    if (!memory_open(&room, t->of->on)) return io_fail(error, EXIT_INTERNAL, "out of memory for attention");
    memory old = { .gpu = room.gpu, .base = t->work };
    memory_close(&old);
    machine_forget(t->step);
    t->step = NULL;
    t->work = room.base, t->work_bytes = bytes;
    return 0;
}

/* The plan for so many tokens; the last number of more than one is kept. */
static int plan_for(lm_text *t, int64_t layer, int64_t queries, const loam_plan **plan, io_error *error)
{
    text_plans *plans = plans_of(t, layer);
    loam_plan **const slot = queries == 1 ? &plans->step : &plans->chunk;
    int status = 0;
    if (!*slot || (queries > 1 && plans->queries != queries))
        status = make_plan(t, slot, layer, queries, error);
    if (!status && queries > 1) plans->queries = queries;
    *plan = *slot;
    return status;
}

/* ---- texts */

static void take_all(lm_text *t)
{
    const lm_config *c = t->of->config;
    const machine *on = t->of->on;
    const int64_t q = c->heads_q * c->head_dim, kv = c->heads_kv * c->head_dim;
    const int64_t room = on->gpu ? t->splits * SPLIT : t->room;
    for (int64_t i = 0; i < c->layers; i++) {
        t->keys[i] = memory_matrix(&t->memory, on->operand, 1, room, kv);
        t->values[i] = memory_matrix(&t->memory, on->operand, 1, room, kv);
    }
    t->x = memory_matrix(&t->memory, on->dtype, 1, t->most, c->width);
    t->y = memory_matrix(&t->memory, on->dtype, 1, t->most, c->width);
    t->second = c->parallel ? memory_matrix(&t->memory, on->dtype, 1, t->most, c->width) : none;
    t->stats = memory_matrix(&t->memory, on->dtype, 1, t->most, 2);
    t->q = memory_matrix(&t->memory, on->operand, 1, t->most, q);
    t->o = memory_matrix(&t->memory, on->operand, 1, t->most, q);
    t->up = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->inner = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->gate = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->probe = t->of->options.mechanism == LOAM_PARALLAX
                   ? memory_matrix(&t->memory, on->operand, 1, t->most, q)
                   : none;
    t->ids = memory_take(&t->memory, t->most, sizeof *t->ids);
    t->place = memory_take(&t->memory, 1, sizeof *t->place);
    if (!on->gpu) return;
    t->key = memory_matrix(&t->memory, on->operand, 1, 1, kv);
    t->value = memory_matrix(&t->memory, on->operand, 1, 1, kv);
    t->parts = memory_matrix(&t->memory, on->operand, 1, t->splits, q);
    t->lse = memory_matrix(&t->memory, LOAM_F32, 1, t->splits, c->heads_q);
    t->split_counts = memory_take(&t->memory, t->splits, sizeof *t->split_counts);
}

int lm_text_open(lm_text **made, const lm_model *m, int64_t room, int64_t chunk, io_error *error)
{
    const lm_config *c = m->config;
    assert(chunk >= 1 && chunk <= room);
    *made = NULL;
    if (c->context > 0 && room > c->context && c->rope_dim == 0)
        return io_fail(error, EXIT_INPUT, "%lld tokens: the model has positions for %lld", (long long)room,
                       (long long)c->context);
    lm_text *t = calloc(1, sizeof *t);
    if (!t) return io_fail(error, EXIT_INTERNAL, "out of memory for a text");
    t->of = m, t->room = room, t->most = chunk, t->splits = (room + SPLIT - 1) / SPLIT;
    t->keys = calloc((size_t)c->layers, sizeof *t->keys),
    t->values = calloc((size_t)c->layers, sizeof *t->keys);
    t->plans = calloc((size_t)c->layers, sizeof *t->plans);
    t->counts = calloc((size_t)t->splits, sizeof *t->counts);
    bool there = t->keys && t->values && t->plans && t->counts;
    if (there) take_all(t), there = memory_open(&t->memory, m->on);
    if (!there) {
        lm_text_close(t);
        return io_fail(error, EXIT_INTERNAL, "out of memory for a text of %lld tokens", (long long)room);
    }
    take_all(t);
    *made = t;
    return 0;
}

void lm_text_close(lm_text *t)
{
    if (!t) return;
    machine_forget(t->step);
    for (int64_t i = 0; t->plans && i < t->of->config->layers; i++) {
        loam_plan_destroy(t->plans[i].step);
        loam_plan_destroy(t->plans[i].chunk);
    }
    memory work = { .gpu = t->of->on->gpu, .base = t->work };
    memory_close(&work);
    memory_close(&t->memory);
    free(t->counts);
    free(t->plans);
    free(t->keys);
    free(t->values);
    free(t);
}

int64_t lm_text_length(const lm_text *t) { return t->length; }

void lm_text_rewind(lm_text *t, int64_t length)
{
    assert(length >= 0 && length <= t->length);
    t->length = length;
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

/* Turns rows of heads in place, whose first token is the next one of the text. */
static int turn(const lm_text *t, matrix a, int64_t heads, io_error *error)
{
    const lm_config *c = t->of->config;
    loam_rope rope = loam_rope_default(a.dtype);
    loam_error reason;
    rope.batch = 1, rope.heads = heads, rope.tokens = a.rows, rope.channels = c->head_dim;
    rope.dim = c->rope_dim, rope.base = c->rope_base, rope.offset = t->length;
    rope.positions = is_step(t, a.rows) ? &t->place->first : NULL;
    rope.threads = t->of->on->threads;
    rope.backend = machine_backend(t->of->on), rope.stream = machine_stream(t->of->on);
    const loam_const_view from = heads_of(a, c->head_dim);
    const loam_view to = heads_view(a, c->head_dim);
    return loam_rope_apply(&rope, &from, &to, &reason) ? failed(&reason, error) : 0;
}

/* Each split is a sequence of its own, which the same query reads. */
static void split_args(const lm_text *t, loam_args *args)
{
    const int64_t heads = t->of->config->heads_q, head_dim = t->of->config->head_dim;
    args->q.batch = 0;
    args->k.batch = SPLIT * args->k.token, args->v.batch = SPLIT * args->v.token;
    args->o = (loam_view){ t->parts.data, t->parts.row, head_dim, t->parts.row };
    args->lse = (loam_view){ t->lse.data, heads, 1, heads };
    args->lens_kv = t->split_counts;
}

/* o of the rows of q, over all keys so far and their own. */
static int attend(lm_text *t, int64_t layer, matrix o, matrix q, io_error *error)
{
    const lm_config *c = t->of->config;
    const machine *on = t->of->on;
    const loam_plan *plan;
    loam_error reason;
    int status = plan_for(t, layer, q.rows, &plan, error);
    if (status) return status;
    const bool parallax = loam_plan_problem(plan)->mechanism == LOAM_PARALLAX,
               split = is_split(t, layer, q.rows);
    loam_args args = { .q = heads_of(q, c->head_dim),
                       .k = heads_of(t->keys[layer], c->head_dim),
                       .v = heads_of(t->values[layer], c->head_dim),
                       .probe = heads_of(parallax ? matrix_rows(t->probe, 0, q.rows) : none, c->head_dim),
                       .lens_kv = &t->place->in_use,
                       .o = heads_view(o, c->head_dim),
                       .work = t->work,
                       .stream = machine_stream(on) };
    if (split) split_args(t, &args);
    if (loam_run(plan, &args, &reason)) return failed(&reason, error);
    if (split) on->op->merge_parts(on, o, t->parts, t->lse);
    return 0;
}

/* out += attention of x, or out = it. */
static int attention(lm_text *t, int64_t layer, matrix out, matrix x, bool add, io_error *error)
{
    const lm_config *c = t->of->config;
    const matrix q = matrix_rows(t->q, 0, x.rows), o = matrix_rows(t->o, 0, x.rows);
    const bool step = is_step(t, x.rows);
    const matrix k = step ? t->key : matrix_rows(t->keys[layer], t->length, x.rows),
                 v = step ? t->value : matrix_rows(t->values[layer], t->length, x.rows);
    linear(t, q, x, layer, LM_Q, false);
    linear(t, k, x, layer, LM_K, false);
    linear(t, v, x, layer, LM_V, false);
    int status = 0;
    if (c->rope_dim > 0) status = turn(t, q, c->heads_q, error);
    if (!status && c->rope_dim > 0) status = turn(t, k, c->heads_kv, error);
    if (step) {
        const numbers at = { &t->place->row, 0 };
        t->of->on->op->put_rows(t->of->on, t->keys[layer], k, at);
        t->of->on->op->put_rows(t->of->on, t->values[layer], v, at);
    }
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
static void enter(const lm_text *t, matrix x, matrix y)
{
    const machine *on = t->of->on;
    const lm_weights *w = &t->of->weights;
    const matrix places = lm_weight(w, 0, LM_POSITIONS), types = lm_weight(w, 0, LM_TYPES);
    on->op->embed(on, x, lm_weight(w, 0, LM_EMBED), (numbers){ t->ids, 0 }, none);
    if (places.data && is_step(t, x.rows)) {
        on->op->embed(on, y, places, (numbers){ &t->place->row, 0 }, none);
        on->op->combine(on, x, 1, x, 1, y);
    } else if (places.data) {
        on->op->add_positions(on, x, matrix_rows(places, t->length, x.rows));
    }
    if (types.data) on->op->add_positions(on, x, matrix_rows(types, 0, 1));
}

static int check_tokens(const lm_text *t, const int32_t *tokens, int64_t count, io_error *error)
{
    const lm_config *c = t->of->config;
    if (count < 1 || count > t->most || count > t->room - t->length)
        return io_fail(error, EXIT_INPUT, "%lld tokens at once: expected 1 to %lld", (long long)count,
                       (long long)(t->most < t->room - t->length ? t->most : t->room - t->length));
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= c->vocabulary)
            return io_fail(error, EXIT_INPUT, "token %d: the model has %lld", tokens[i],
                           (long long)c->vocabulary);
    return 0;
}

/* All layers and the last norm, of the tokens in ids at the place in memory. */
static int run_layers(lm_text *t, int64_t count, matrix *hidden, io_error *error)
{
    const lm_model *m = t->of;
    matrix x = matrix_rows(t->x, 0, count), y = matrix_rows(t->y, 0, count);
    int status = 0;
    enter(t, x, y);
    if (lm_weight(&m->weights, 0, LM_EMBED_NORM).data) {
        norm(t, y, x, 0, LM_EMBED_NORM);
        const matrix kept = x;
        x = y, y = kept;
    }
    for (int64_t layer = 0; !status && layer < m->config->layers; layer++)
        status = run_layer(t, layer, x, y, error);
    if (status) return status;
    if (lm_weight(&m->weights, 0, LM_LAST_NORM).data) {
        norm(t, y, x, 0, LM_LAST_NORM);
        x = y;
    }
    *hidden = x;
    return 0;
}

static int record_step(lm_text *t, io_error *error)
{
    const machine *on = t->of->on;
    loam_error reason;
    machine_record_begin(on);
    int status = run_layers(t, 1, &t->hidden, error);
    if (machine_record_end(on, &t->step, &reason) && !status) status = failed(&reason, error);
    if (status) {
        machine_forget(t->step);
        t->step = NULL;
    }
    return status;
}

/* One token on a GPU: the first as it comes, later ones by a recording. */
static int run_step(lm_text *t, matrix *hidden, io_error *error)
{
    int status = 0;
    if (!t->stepped) {
        status = run_layers(t, 1, hidden, error);
        t->stepped = !status;
        return status;
    }
    if (!t->step) status = record_step(t, error);
    if (status) return status;
    machine_replay(t->of->on, t->step);
    *hidden = t->hidden;
    return 0;
}

/* How many keys of each split are in use. */
static void send_counts(const lm_text *t, int64_t in_use)
{
    for (int64_t i = 0; i < t->splits; i++) {
        const int64_t left = in_use - i * SPLIT;
        t->counts[i] = left < 0 ? 0 : left < SPLIT ? left : SPLIT;
    }
    machine_upload(t->of->on, t->split_counts, t->counts, (size_t)t->splits * sizeof *t->counts);
}

int lm_text_read(lm_text *t, const int32_t *tokens, int64_t count, matrix *hidden, io_error *error)
{
    const machine *on = t->of->on;
    int status = check_tokens(t, tokens, count, error);
    if (status) return status;
    if (t->of->config->architecture == LM_BERT) t->length = 0;
    const text_place place = { t->length, t->length + count, (int32_t)t->length };
    machine_upload(on, t->place, &place, sizeof place);
    machine_upload(on, t->ids, tokens, (size_t)count * sizeof *tokens);
    if (is_step(t, count)) send_counts(t, place.in_use);
    status = is_step(t, count) ? run_step(t, hidden, error) : run_layers(t, count, hidden, error);
    if (!status) t->length += count;
    return status;
}

void lm_text_logits(const lm_text *t, matrix hidden, matrix logits)
{
    const lm_model *m = t->of;
    m->on->op->product(m->on, logits, hidden, lm_weight(&m->weights, 0, m->config->tied ? LM_EMBED : LM_HEAD),
                       PRODUCT_B_TRANSPOSED);
}
