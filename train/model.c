/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "train/model.h"

#include "train/mixing.h"
#include "train/start.h"
#include "train/word_loss.h"

#include <assert.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows of a model that have logits in memory at a time: on a CPU so few that 8192 words stay in its cache; on
 * a GPU, as of gradients of logits, enough to keep it busy. */
enum { LOGIT_ROWS = 1024, GRADIENT_ROWS = 8192 };
enum { THINNEST = 16 };     /* of what Muon takes */
enum { GPU_WIDEST = 1024 }; /* rows that a norm's backward there has in registers */

static const matrix none = { 0 };

struct train_model {
    machine on;
    model_shape shape;
    int64_t words, tokens, answers; /* 0: regression; rows of a batch, and those with a target */
    mixing mix;                     /* of the first layer, and what all share */
    mixing others[MODEL_MAX_LAYERS];
    int other_count;
    const mixing *of[MODEL_MAX_LAYERS]; /* each layer's own */
    memory room;
    parameter list[MODEL_MAX_PARAMETERS];
    int count;
    parameter *into, *places, *last; /* E or W_in; P, or NULL; the last gain or W_out */
    parameter *last_bias;            /* of layer_norm, or NULL */
    parameter *logits;               /* what makes them of the last e: E, or an array of its own */
    mixer_layer layer[MODEL_MAX_LAYERS];
    matrix e[MODEL_MAX_LAYERS + 1], de;
    matrix de_operand;    /* de, as an operand of products */
    matrix found, dfound; /* the last e, at the answers */
    /* Without an MLP the last layer has rows at the answers alone: e before it, y and their gradients. */
    matrix before, last_y, dlast_y, dfound_operand;
    matrix normed, dnormed, norm;
    matrix out, dout; /* room for logits and their gradients; regression: predictions, then gradients */
    matrix results;
    void *order;          /* of the batch's tokens */
    train_model *teacher; /* NULL: none */
    word_teaching taught;
    memory taught_room;
    /* Every token is an answer, in its own row: the last e is what is found, and de its gradient. */
    bool everywhere;
};

/* ---- what is learned */

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static parameter *add_parameter(train_model *m, const char *owner, int64_t number, const char *name,
                                int64_t rows, int64_t width)
{
    assert(m->count < MODEL_MAX_PARAMETERS);
    parameter *p = &m->list[m->count++];
    if (owner)
        snprintf(p->name, sizeof p->name, "%s%d.%s", owner, (int)number, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
    p->x = matrix_dense(NULL, m->on.dtype, m->shape.models, rows, width);
    p->start = START_NORMAL;
    p->decay = rows > 1;
    return p;
}

/* Standard deviations: where words are told apart all begins small, so that no layer drowns the embedding;
 * regression begins with outputs as large as inputs. */
static double deviation_of(const train_model *m, int64_t rows)
{
    return m->words > 0 ? 0.02 : 1 / sqrt((double)rows);
}

/* W_q, W_k, W_v, W_R, W_z or W_o, which Muon takes but where they are thin. */
static bool is_projection(role which)
{
    return which == ROLE_Q || which == ROLE_K || which == ROLE_V || which == ROLE_PROBE ||
           which == ROLE_GATE || which == ROLE_OUT;
}

static void add_layer(train_model *m, int64_t number)
{
    const model_shape *shape = &m->shape;
    const mixing *mix = m->of[number];
    for (int i = 0; i < ROLES; i++) {
        int64_t rows, width;
        mixer_array(mix->row, &mix->options, &mix->shape, (role)i, &rows, &width);
        if (rows == 0) continue;
        parameter *p = add_parameter(m, "layer", number, mixer_array_name((role)i), rows, width);
        mixer_array_start(mix->row, &mix->options, (role)i, p);
        const bool gate = i == ROLE_RIDGE || i == ROLE_PROBE_GATE;
        const bool features = i == ROLE_Z || i == ROLE_LOG_ALPHA;
        p->deviation = gate ? 0.02 : i == ROLE_SKIP || features ? 1 : deviation_of(m, rows);
        p->decay = p->decay && !features;
        if (i == ROLE_OUT || i == ROLE_MLP_2)
            p->deviation *= m->words > 0 ? 1 / sqrt(2 * (double)shape->layers) : 0.5;
        p->muon = is_projection((role)i) && least_of(rows, width) >= THINNEST;
        m->layer[number].array[i] = p;
    }
}

static void add_parameters(train_model *m)
{
    const model_shape *shape = &m->shape;
    const int64_t d = shape->width;
    const regression_shape *pairs = &shape->from.regression;
    const bool words = m->words > 0;
    m->into = add_parameter(m, NULL, 0, words ? "E" : "W_in", words ? m->words : pairs->dim_x + pairs->dim_y,
                            d);
    m->into->deviation = deviation_of(m, m->into->x.rows);
    if (m->mix.options.positions == POSITIONS_LEARNED) {
        m->places = add_parameter(m, NULL, 0, "P", source_length(&shape->from), d);
        m->places->deviation = 0.02;
    }
    for (int64_t l = 0; l < shape->layers; l++)
        add_layer(m, l);
    m->last = words ? add_parameter(m, NULL, 0, "gain", 1, d)
                    : add_parameter(m, NULL, 0, "W_out", d, pairs->dim_y);
    m->last->deviation = deviation_of(m, d);
    m->logits = m->into;
    if (!words) return;
    if (m->mix.options.untied) {
        m->logits = add_parameter(m, NULL, 0, "W_logits", m->words, d);
        m->logits->deviation = deviation_of(m, d);
    }
    m->last->start = START_CONSTANT, m->last->value = 1;
    if (!m->mix.options.layer_norm) return;
    m->last_bias = add_parameter(m, NULL, 0, "bias", 1, d);
    m->last_bias->start = START_CONSTANT;
}

static bool moves(const train_model *m, const parameter *p)
{
    const char *const *pattern = m->shape.moving;
    if (!pattern) return true;
    while (*pattern && fnmatch(*pattern, p->name, 0) != 0)
        pattern++;
    return *pattern != NULL;
}

parameter *model_parameters(train_model *m, int *count)
{
    *count = m->count;
    return m->list;
}

/* ---- memory */

static matrix take(train_model *m, int64_t rows, int64_t width)
{
    return memory_matrix(&m->room, m->on.dtype, m->shape.models, rows, width);
}

static matrix take_operand(train_model *m, int64_t rows, int64_t width)
{
    return memory_matrix(&m->room, m->on.operand, m->shape.models, rows, width);
}

static void take_last(train_model *m)
{
    const int64_t inner = mixer_inner(m->mix.row, &m->mix.options, &m->mix.shape);
    if (m->mix.options.mlp) return;
    m->before = take(m, m->answers, m->shape.width);
    m->last_y = take_operand(m, m->answers, inner), m->dlast_y = take_operand(m, m->answers, inner);
    m->dfound_operand = m->on.operand != m->on.dtype ? take_operand(m, m->answers, m->shape.width)
                                                     : m->dfound;
}

/* Of what is frozen, vectors and taps have one too: it comes with others, and is small. */
static bool has_gradient(const train_model *m, const parameter *p, int64_t rows)
{
    const mixer *row = m->mix.row;
    return !p->frozen || (!p->fixed && (rows == 1 || rows <= row->taps || row->block != MIXER_PLAIN));
}

static int64_t most_work(const train_model *m)
{
    int64_t most = mixing_work(&m->mix);
    for (int i = 0; i < m->other_count; i++) {
        const int64_t work = mixing_work(&m->others[i]);
        if (work > most) most = work;
    }
    return most;
}

static void take_all(train_model *m)
{
    const model_shape *shape = &m->shape;
    const int64_t d = shape->width, answers = m->answers;
    const bool words = m->words > 0;
    const int64_t logits = least_of(answers, m->on.gpu ? GRADIENT_ROWS : LOGIT_ROWS);
    for (int i = 0; i < m->count; i++) {
        parameter *p = &m->list[i];
        const int64_t rows = p->x.rows, width = p->x.width;
        p->x = take(m, rows, width);
        p->g = has_gradient(m, p, rows) ? take(m, rows, width) : none;
        p->m = p->frozen ? none : take(m, rows, width);
        p->v = p->frozen ? none : take(m, rows, width);
        p->w = none;
    }
    mixing_take(&m->mix, most_work(m), &m->room);
    for (int i = 0; i < m->other_count; i++)
        mixing_share(&m->others[i], &m->mix);
    for (int64_t l = 0; l < shape->layers; l++)
        mixer_layer_take(m->of[l], &m->layer[l], &m->room);
    for (int i = 0; i < m->count; i++) {
        parameter *p = &m->list[i];
        const bool rounded = p->x.rows > 1 && m->on.operand != m->on.dtype;
        if (p->w.models == 0) p->w = rounded ? take_operand(m, p->x.rows, p->x.width) : p->x;
    }
    for (int64_t l = 0; l < shape->layers + m->mix.options.mlp; l++)
        m->e[l] = take(m, m->tokens, d);
    m->de = take(m, m->tokens, d);
    m->de_operand = m->on.operand != m->on.dtype ? take_operand(m, m->tokens, d) : m->de;
    m->found = m->everywhere ? m->e[shape->layers] : take(m, answers, d);
    m->dfound = m->everywhere ? m->de : take(m, answers, d);
    take_last(m);
    m->normed = take_operand(m, answers, d), m->dnormed = take(m, answers, d),
    m->norm = take(m, answers, m->mix.options.layer_norm ? 2 : 1);
    m->out = words ? memory_matrix(&m->room, m->on.dtype, 1, logits, m->words)
                   : take(m, answers, shape->from.regression.dim_y);
    m->dout = memory_matrix(&m->room, m->on.operand, 1, words ? least_of(answers, GRADIENT_ROWS) : 0,
                            m->words);
    m->results = take(m, answers, words ? 2 : 1);
    m->order = memory_take(&m->room,
                           words ? (int64_t)machine_order_bytes(&m->on, shape->models, m->tokens) : 0, 1);
}

static loam_status too_wide(int64_t width, loam_error *error)
{
    if (!error) return LOAM_EUNSUPPORTED;
    error->status = LOAM_EUNSUPPORTED;
    snprintf(error->text, sizeof error->text, "width is %lld; expected at most %d on a GPU", (long long)width,
             GPU_WIDEST);
    return LOAM_EUNSUPPORTED;
}

/* Layers with as many features are alike. */
static loam_status open_mixing(train_model *m, int64_t layer, const mixer *row, const mixer_shape *inner,
                               const mixer_options *options, loam_error *error)
{
    const int16_t *features = m->shape.features;
    mixer_options own = *options;
    for (int64_t l = 0; l < layer; l++)
        if (!features || features[l] == features[layer]) {
            m->of[layer] = m->of[l];
            return LOAM_OK;
        }
    mixing *mix = layer == 0 ? &m->mix : &m->others[m->other_count];
    if (features) own.features = features[layer];
    const bool softmax = features && features[layer] == 0;
    const loam_status status = mixing_open(mix, &m->on, softmax ? mixer_find("softmax") : row, inner, &own,
                                           error);
    m->of[layer] = mix;
    /* Opened or not, it is closed with the model. */
    if (layer > 0) m->other_count++;
    return status;
}

static loam_status open_all(train_model *m, const mixer *row, const mixer_options *options,
                            const uint64_t *seeds, loam_error *error)
{
    const model_shape *shape = &m->shape;
    const int64_t length = source_length(&shape->from);
    const int64_t seen = options->blind ? shape->from.regression.length : length;
    const int64_t heads_kv = shape->heads_kv > 0 ? shape->heads_kv : shape->heads;
    const int64_t head_dim = shape->head_dim > 0 ? shape->head_dim : shape->width / shape->heads;
    const mixer_shape inner = { shape->models, shape->batch, length,   shape->width,
                                shape->heads,  seen,         heads_kv, head_dim };
    if (options->blind && m->words > 0) {
        if (error)
            *error = (loam_error){ LOAM_EUNSUPPORTED, "blind queries: only regression has query rows" };
        return LOAM_EUNSUPPORTED;
    }
    if (m->on.gpu && shape->width > GPU_WIDEST) return too_wide(shape->width, error);
    loam_status status = LOAM_OK;
    for (int64_t l = 0; l < shape->layers && !status; l++)
        status = open_mixing(m, l, row, &inner, options, error);
    if (status) return status;
    add_parameters(m);
    for (int i = 0; i < m->count; i++)
        m->list[i].frozen = m->list[i].fixed || !moves(m, &m->list[i]);
    take_all(m);
    if (!memory_open(&m->room, &m->on)) {
        if (error) *error = (loam_error){ LOAM_EMEMORY, "out of memory for a model" };
        return LOAM_EMEMORY;
    }
    take_all(m);
    for (int i = 0; i < m->count; i++)
        if (!m->list[i].frozen || m->list[i].fixed) start_parameter(&m->on, &m->list[i], i, seeds);
    return LOAM_OK;
}

loam_status model_create(train_model **made, const machine *on, const mixer *row, const model_shape *shape,
                         const mixer_options *options, const uint64_t *seeds, loam_error *error)
{
    assert(shape->layers >= 1 && shape->layers <= MODEL_MAX_LAYERS);
    assert(shape->head_dim > 0 || shape->width % shape->heads == 0);
    assert(!shape->features || row->positive);
    *made = NULL;
    train_model *m = calloc(1, sizeof *m);
    if (!m) {
        if (error) *error = (loam_error){ LOAM_EMEMORY, "out of memory for a model" };
        return LOAM_EMEMORY;
    }
    m->on = *on;
    m->shape = *shape;
    m->words = source_words(&shape->from);
    m->tokens = shape->batch * source_length(&shape->from);
    m->answers = shape->batch * source_answers(&shape->from);
    m->everywhere = options->mlp && shape->from.task == TRAIN_TEXT;
    const loam_status status = open_all(m, row, options, seeds, error);
    if (status)
        model_destroy(m);
    else
        *made = m;
    return status;
}

void model_destroy(train_model *m)
{
    if (!m) return;
    mixing_close(&m->mix);
    for (int i = 0; i < m->other_count; i++)
        mixing_close(&m->others[i]);
    memory_close(&m->taught_room);
    memory_close(&m->room);
    free(m);
}

static void take_taught(train_model *m)
{
    memory *const room = &m->taught_room;
    m->taught.divergence = memory_matrix(room, m->on.dtype, m->shape.models, m->answers, 1);
    m->taught.each = memory_matrix(room, m->on.dtype, 1, m->out.rows, 2);
}

/* The teacher's own rooms take its rows and its logits. */
loam_status model_teach(train_model *m, train_model *teacher, double weight, loam_error *error)
{
    const bool alike = m->everywhere && teacher->everywhere && m->words == teacher->words &&
                       m->tokens == teacher->tokens && m->shape.models == teacher->shape.models;
    if (!alike) {
        if (error) *error = (loam_error){ LOAM_ESHAPE, "a teacher of other words, batches or models" };
        return LOAM_ESHAPE;
    }
    m->taught = (word_teaching){
        .x = teacher->normed, .table = teacher->logits->w, .weight = weight, .logits = teacher->out
    };
    memory_close(&m->taught_room);
    take_taught(m);
    if (!memory_open(&m->taught_room, &m->on)) {
        if (error) *error = (loam_error){ LOAM_EMEMORY, "out of memory for a teacher" };
        return LOAM_EMEMORY;
    }
    take_taught(m);
    m->teacher = teacher;
    return LOAM_OK;
}

matrix model_divergence(const train_model *m) { return m->teacher ? m->taught.divergence : none; }

matrix model_results(const train_model *m) { return m->results; }

const char *model_kernel(const train_model *m, loam_pass pass)
{
    return m->mix.plan[pass] ? loam_plan_name(m->mix.plan[pass]) : "";
}

const mixing *model_mixing(const train_model *m) { return &m->mix; }

const mixer_layer *model_layer(const train_model *m, int64_t layer) { return &m->layer[layer]; }

/* ---- the passes */

static numbers tokens_of(const train_model *m, const train_batch *b)
{
    return (numbers){ b->there.tokens, m->tokens };
}
static numbers at_of(const train_model *m, const train_batch *b)
{
    return (numbers){ b->there.at, m->answers };
}

static double eps_of(const train_model *m)
{
    return m->mix.options.norm_eps > 0 ? m->mix.options.norm_eps : NORM_EPS;
}

/* y = norm(x) gain, and bias where there is one. */
static void norm(const train_model *m, matrix y, matrix stats, matrix x, const parameter *gain,
                 const parameter *bias)
{
    if (bias)
        m->on.op->layer_norm(&m->on, y, stats, x, gain->x, bias->x, eps_of(m));
    else
        m->on.op->rms_norm(&m->on, y, stats, x, gain->x, eps_of(m));
}

static void norm_back(const train_model *m, matrix dx, matrix operand, matrix g, matrix x, matrix stats,
                      const parameter *gain, const parameter *bias, matrix base)
{
    if (bias)
        m->on.op->layer_norm_back(&m->on, dx, operand, gain->g, bias->g, g, x, stats, gain->x, base);
    else
        m->on.op->rms_norm_back(&m->on, dx, operand, gain->g, g, x, stats, gain->x, base);
}

static void enter(train_model *m, const train_batch *b)
{
    const ops *op = m->on.op;
    if (m->words > 0)
        op->embed(&m->on, m->e[0], m->into->x, tokens_of(m, b), m->places ? m->places->x : none);
    else
        op->product(&m->on, m->e[0], b->there.x, m->into->w, 0);
    if (m->words == 0 && m->places) op->add_positions(&m->on, m->e[0], m->places->x);
}

/* E has the gradient of the logits already, where it makes them. */
static void enter_back(train_model *m, const train_batch *b)
{
    const ops *op = m->on.op;
    if (m->places && m->places->g.data) op->add_positions_back(&m->on, m->places->g, m->de_operand);
    if (!m->into->g.data) return;
    if (m->words > 0 && m->logits != m->into) op->clear_rows(&m->on, m->into->g, m->words, 0);
    if (m->words > 0)
        op->embed_back(&m->on, m->into->g, m->de_operand, tokens_of(m, b), m->order);
    else
        op->product(&m->on, m->into->g, b->there.x, m->de_operand, PRODUCT_A_TRANSPOSED);
}

/* to = e + y W. */
static void add_branch(const train_model *m, matrix to, matrix e, matrix y, const parameter *w)
{
    m->on.op->product_onto(&m->on, to, e, y, w->w);
}

/* The gradients of W, and of y from that of e. */
static void add_branch_back(const train_model *m, matrix dy, matrix y, matrix de, const parameter *w)
{
    mixing_weight_gradient(&m->on, w, y, de);
    m->on.op->product(&m->on, dy, de, w->w, PRODUCT_B_TRANSPOSED);
}

/* Where `de_operand` has memory of its own. */
static matrix operand_of_de(const train_model *m)
{
    return m->de_operand.data != m->de.data ? m->de_operand : none;
}

/* The layer whose output is wanted at the answers alone. */
static bool is_last(const train_model *m, int64_t l)
{
    return l == m->shape.layers - 1 && !m->mix.options.mlp;
}

/* Where layer l leaves the gradient of what it reads. Of the first layer it is read as an operand alone. */
static matrix de_before(const train_model *m, int64_t l)
{
    return l == 0 && !is_last(m, l) && operand_of_de(m).data ? none : m->de;
}

/* What the norm before an MLP reads. */
static matrix mlp_reads(const train_model *m, int64_t l)
{
    return m->mix.options.parallel ? m->e[l] : m->layer[l].value[ACTIVE_BETWEEN];
}

static void activate(const train_model *m, matrix y, matrix x)
{
    const ops *op = m->on.op;
    switch (m->mix.options.activation) {
    case MLP_GELU_TANH: op->gelu(&m->on, y, x); return;
    case MLP_GELU_ERF: op->gelu_erf(&m->on, y, x); return;
    case MLP_RELU: op->relu(&m->on, y, x); return;
    }
}

static void activate_back(const train_model *m, matrix dx, matrix g, matrix x)
{
    const ops *op = m->on.op;
    switch (m->mix.options.activation) {
    case MLP_GELU_TANH: op->gelu_back(&m->on, dx, g, x); return;
    case MLP_GELU_ERF: op->gelu_erf_back(&m->on, dx, g, x); return;
    case MLP_RELU: op->relu_back(&m->on, dx, g, x); return;
    }
}

static void mlp_forward(const train_model *m, int64_t l, matrix to)
{
    const mixer_layer *layer = &m->layer[l];
    const machine *on = &m->on;
    const matrix *value = layer->value, x = value[ACTIVE_MLP_X];
    parameter *const *array = layer->array;
    norm(m, x, value[ACTIVE_MLP_NORM], mlp_reads(m, l), array[ROLE_MLP_GAIN], array[ROLE_MLP_BIAS]);
    on->op->product(on, value[ACTIVE_MLP_RAW], x, array[ROLE_MLP_1]->w, 0);
    mixing_add_bias(&m->mix, layer, ROLE_MLP_1_BIAS, value[ACTIVE_MLP_RAW]);
    if (array[ROLE_MLP_GATE]) {
        on->op->product(on, value[ACTIVE_MLP_GATE], x, array[ROLE_MLP_GATE]->w, 0);
        on->op->output_gate(on, value[ACTIVE_MLP], value[ACTIVE_MLP_RAW], value[ACTIVE_MLP_GATE]);
    } else {
        activate(m, value[ACTIVE_MLP], value[ACTIVE_MLP_RAW]);
    }
    add_branch(m, to, value[ACTIVE_BETWEEN], value[ACTIVE_MLP], array[ROLE_MLP_2]);
    mixing_add_bias(&m->mix, layer, ROLE_MLP_2_BIAS, to);
}

/* The gradients of its matrices, and of what its norm made. */
static void mlp_backward(const train_model *m, const mixer_layer *layer)
{
    const machine *on = &m->on;
    const matrix *value = layer->value, *g = m->mix.gradient, x = value[ACTIVE_MLP_X];
    parameter *const *array = layer->array;
    mixing_bias_back(&m->mix, layer, ROLE_MLP_2_BIAS, m->de);
    add_branch_back(m, g[ACTIVE_MLP], value[ACTIVE_MLP], m->de_operand, array[ROLE_MLP_2]);
    if (array[ROLE_MLP_GATE])
        on->op->output_gate_back(on, g[ACTIVE_MLP_RAW], g[ACTIVE_MLP_GATE], g[ACTIVE_MLP],
                                 value[ACTIVE_MLP_RAW], value[ACTIVE_MLP_GATE]);
    else
        activate_back(m, g[ACTIVE_MLP_RAW], g[ACTIVE_MLP], value[ACTIVE_MLP_RAW]);
    mixing_bias_back(&m->mix, layer, ROLE_MLP_1_BIAS, g[ACTIVE_MLP_RAW]);
    mixing_weight_gradient(on, array[ROLE_MLP_1], x, g[ACTIVE_MLP_RAW]);
    on->op->product(on, g[ACTIVE_MLP_X], g[ACTIVE_MLP_RAW], array[ROLE_MLP_1]->w, PRODUCT_B_TRANSPOSED);
    if (!array[ROLE_MLP_GATE]) return;
    mixing_weight_gradient(on, array[ROLE_MLP_GATE], x, g[ACTIVE_MLP_GATE]);
    on->op->product(on, g[ACTIVE_MLP_X], g[ACTIVE_MLP_GATE], array[ROLE_MLP_GATE]->w,
                    PRODUCT_B_TRANSPOSED | PRODUCT_ADD);
}

static void mlp_norm_back(const train_model *m, int64_t l)
{
    const mixer_layer *layer = &m->layer[l];
    norm_back(m, m->de, operand_of_de(m), m->mix.gradient[ACTIVE_MLP_X], mlp_reads(m, l),
              layer->value[ACTIVE_MLP_NORM], layer->array[ROLE_MLP_GAIN], layer->array[ROLE_MLP_BIAS], m->de);
}

static void last_forward(train_model *m, const train_batch *b, int64_t l)
{
    const mixer_layer *layer = &m->layer[l];
    m->on.op->gather(&m->on, m->before, m->e[l], at_of(m, b));
    m->on.op->gather(&m->on, m->last_y, layer->value[ACTIVE_Y], at_of(m, b));
    add_branch(m, m->found, m->before, m->last_y, layer->array[ROLE_OUT]);
}

static void last_backward(train_model *m, const train_batch *b, int64_t l)
{
    const machine *on = &m->on;
    if (m->dfound_operand.data != m->dfound.data) on->op->copy(on, m->dfound_operand, m->dfound);
    add_branch_back(m, m->dlast_y, m->last_y, m->dfound_operand, m->layer[l].array[ROLE_OUT]);
    on->op->scatter(on, m->mix.gradient[ACTIVE_Y], m->dlast_y, at_of(m, b));
}

/* e + y W_o, with what is beside W_o. */
static void mixer_branch(const train_model *m, int64_t l)
{
    const mixer_layer *layer = &m->layer[l];
    const matrix y = layer->value[ACTIVE_Y];
    const matrix to = m->mix.options.mlp ? layer->value[ACTIVE_BETWEEN] : m->e[l + 1];
    add_branch(m, to, m->e[l], y, layer->array[ROLE_OUT]);
    mixing_add_low(&m->mix, layer, LOW_OUT, to, y, false);
    mixing_add_bias(&m->mix, layer, ROLE_OUT_BIAS, to);
}

static void mixer_branch_back(const train_model *m, int64_t l)
{
    const mixer_layer *layer = &m->layer[l];
    const matrix y = layer->value[ACTIVE_Y], dy = m->mix.gradient[ACTIVE_Y];
    mixing_bias_back(&m->mix, layer, ROLE_OUT_BIAS, m->de);
    add_branch_back(m, dy, y, m->de_operand, layer->array[ROLE_OUT]);
    mixing_low_back(&m->mix, layer, LOW_OUT, m->de_operand, y, dy);
}

static loam_status layer_forward(train_model *m, const train_batch *b, int64_t l, loam_error *error)
{
    const mixer_layer *layer = &m->layer[l];
    const bool mlp = m->mix.options.mlp;
    norm(m, layer->value[ACTIVE_X], layer->value[ACTIVE_X_NORM], m->e[l], layer->array[ROLE_GAIN],
         layer->array[ROLE_NORM_BIAS]);
    const loam_status status = mixer_forward(m->of[l], layer, error);
    if (status) return status;
    if (is_last(m, l))
        last_forward(m, b, l);
    else
        mixer_branch(m, l);
    if (mlp) mlp_forward(m, l, m->e[l + 1]);
    return LOAM_OK;
}

static loam_status layer_backward(train_model *m, const train_batch *b, int64_t l, loam_error *error)
{
    const mixer_layer *layer = &m->layer[l];
    const matrix *g = m->mix.gradient;
    const bool last = is_last(m, l);
    const bool mlp = m->mix.options.mlp, parallel = m->mix.options.parallel;
    if (mlp) mlp_backward(m, layer);
    if (mlp && !parallel) mlp_norm_back(m, l);
    if (last)
        last_backward(m, b, l);
    else
        mixer_branch_back(m, l);
    const loam_status status = mixer_backward(m->of[l], layer, error);
    if (status) return status;
    if (mlp && parallel) mlp_norm_back(m, l);
    norm_back(m, de_before(m, l), operand_of_de(m), g[ACTIVE_X], m->e[l], layer->value[ACTIVE_X_NORM],
              layer->array[ROLE_GAIN], layer->array[ROLE_NORM_BIAS], last ? none : m->de);
    if (last) m->on.op->scatter_add(&m->on, m->de, operand_of_de(m), m->dfound, at_of(m, b));
    return LOAM_OK;
}

static void judge_words(train_model *m, const train_batch *b, bool back)
{
    const parameter *table = m->logits;
    const numbers targets = { b->there.targets, m->answers };
    const matrix dx = back ? m->dnormed : none, dtable = back ? table->g : none;
    norm(m, m->normed, m->norm, m->found, m->last, m->last_bias);
    if (m->teacher)
        word_loss_taught(&m->on, m->results, dx, dtable, m->normed, table->w, targets, b->there.counts,
                         m->out, m->dout, &m->taught);
    else
        m->on.op->word_loss(&m->on, m->results, dx, dtable, m->normed, table->w, targets, b->there.counts,
                            m->out, m->dout);
    if (back)
        norm_back(m, m->dfound, m->everywhere ? operand_of_de(m) : none, m->dnormed, m->found, m->norm,
                  m->last, m->last_bias, none);
}

static void judge_regression(train_model *m, const train_batch *b, bool back)
{
    const machine *on = &m->on;
    on->op->product(on, m->out, m->found, m->last->w, 0);
    on->op->squared_error(on, m->results, m->out, b->there.y);
    if (!back) return;
    mixing_weight_gradient(on, m->last, m->found, m->out);
    on->op->product(on, m->dfound, m->out, m->last->w, PRODUCT_B_TRANSPOSED);
}

/* Matrices as operands of products. */
static void round_weights(train_model *m)
{
    matrix x[MODEL_MAX_PARAMETERS], w[MODEL_MAX_PARAMETERS];
    int count = 0;
    for (int i = 0; i < m->count; i++)
        if (m->list[i].w.data != m->list[i].x.data) x[count] = m->list[i].x, w[count++] = m->list[i].w;
    if (count > 0) m->on.op->copies(&m->on, w, x, count);
}

/* Tokens through all layers. */
static loam_status read_batch(train_model *m, const train_batch *b, loam_error *error)
{
    loam_status status = LOAM_OK;
    round_weights(m);
    enter(m, b);
    for (int64_t l = 0; l < m->shape.layers && !status; l++)
        status = layer_forward(m, b, l, error);
    return status;
}

static loam_status read_teacher(train_model *m, const train_batch *b, loam_error *error)
{
    const loam_status status = read_batch(m, b, error);
    if (!status) norm(m, m->normed, m->norm, m->found, m->last, m->last_bias);
    return status;
}

static loam_status forward(train_model *m, const train_batch *b, bool back, loam_error *error)
{
    loam_status status = m->teacher ? read_teacher(m->teacher, b, error) : LOAM_OK;
    if (!status) status = read_batch(m, b, error);
    if (status) return status;
    if (m->mix.options.mlp && !m->everywhere)
        m->on.op->gather(&m->on, m->found, m->e[m->shape.layers], at_of(m, b));
    if (m->words > 0)
        judge_words(m, b, back);
    else
        judge_regression(m, b, back);
    return LOAM_OK;
}

loam_status model_test(train_model *m, const train_batch *b, loam_error *error)
{
    return forward(m, b, false, error);
}

loam_status model_gradients(train_model *m, const train_batch *b, loam_error *error)
{
    if (m->words > 0 && m->into->g.data)
        m->on.op->order_tokens(&m->on, m->order, tokens_of(m, b), m->shape.models, m->tokens, m->words);
    loam_status status = forward(m, b, true, error);
    if (status) return status;
    if (m->mix.options.mlp && !m->everywhere) {
        m->on.op->scatter(&m->on, m->de, m->dfound, at_of(m, b));
        if (operand_of_de(m).data) m->on.op->copy(&m->on, m->de_operand, m->de);
    }
    for (int64_t l = m->shape.layers - 1; l >= 0 && !status; l--)
        status = layer_backward(m, b, l, error);
    if (!status) enter_back(m, b);
    return status;
}
