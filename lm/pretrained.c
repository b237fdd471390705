/* SPDX-License-Identifier: MIT */
#include "lm/pretrained.h"

#include "lm/arrays.h"

#include <stdlib.h>

/* Rows of a part that is not turned, at a time. */
enum { ROWS_AT_ONCE = 1024 };

/* ---------------------------------------------------------------- blocks */

/* Of MLPs without gate; false: train/ has none such. */
static bool find_activation(const lm_config *c, mlp_activation *out)
{
    switch (c->activation) {
    case LM_GELU_TANH: *out = MLP_GELU_TANH; return true;
    case LM_GELU: *out = MLP_GELU_ERF; return true;
    case LM_RELU: *out = MLP_RELU; return true;
    default: return false;
    }
}

const mixer *lm_pretrained_mixer(const lm_config *c)
{
    return mixer_find(c->mechanism == LOAM_LINEAR ? "features" : "softmax");
}

/* What train/ lacks for it, or NULL. */
static const char *lacking(const lm_config *c, const mixer *row)
{
    const bool gated = c->architecture == LM_LLAMA, student = c->mechanism == LOAM_LINEAR;
    mlp_activation any;
    if (c->architecture == LM_BERT) return "it sees the whole text; expected gpt2, gpt_neox or llama";
    if (student && row->positive && c->scale_by_layer)
        return "its scores are divided by the number of the layer, which training features leaves out";
    if (student && c->window > 0) return "it has a window beside its features; expected none";
    if (student && c->features_untied)
        return "its queries and keys have features of their own; expected the same";
    if (student ? !row->positive : row->positive || c->mechanism != LOAM_SOFTMAX || c->forgets)
        return row->positive ? "it has no features" : "it has attention of its own; expected softmax";
    if (c->layers > MODEL_MAX_LAYERS) return "it has more layers than can be trained here";
    if (gated ? c->activation != LM_SILU : !find_activation(c, &any)) return "its MLP cannot be trained here";
    return NULL;
}

int lm_pretrained_options(trainer_options *o, const lm_config *c, const char *name, io_error *error)
{
    const bool gated = c->architecture == LM_LLAMA;
    mixer_options *how = &o->mixing;
    const char *why = lacking(c, o->row);
    if (why) return io_fail(error, EXIT_INPUT, "%s: %s", name, why);
    if (!gated) find_activation(c, &how->activation);
    how->positions = c->rope_dim > 0 ? POSITIONS_ROPE : POSITIONS_LEARNED;
    how->rope_dim = c->rope_dim, how->rope_base = c->rope_base;
    how->layer_norm = how->biases = !gated;
    how->norm_eps = c->norm_eps;
    how->mlp = true, how->mlp_gate = gated, how->mlp_inner = c->inner;
    how->parallel = c->parallel, how->untied = !c->tied;
    o->shape.layers = c->layers, o->shape.width = c->width;
    how->features_shared = c->features_shared;
    o->shape.features = c->mechanism == LOAM_LINEAR ? c->features : NULL;
    o->shape.heads = c->heads_q, o->shape.heads_kv = c->heads_kv, o->shape.head_dim = c->head_dim;
    return 0;
}

/* ---------------------------------------------------------------- arrays */

typedef struct filler {
    train_model *net;
    const machine *on;
    const lm_files *files;
    io_error *error;
} filler;

static void send(const filler *to, matrix x, int64_t first_row, int64_t rows, const float *from)
{
    for (int64_t m = 0; m < x.models; m++)
        machine_upload(to->on, (float *)x.data + m * x.model + first_row * x.width, from,
                       (size_t)(rows * x.width) * sizeof *from);
}

static int fill_rows(const filler *to, lm_part part, int64_t layer, matrix x)
{
    const int64_t most = x.rows < ROWS_AT_ONCE ? x.rows : ROWS_AT_ONCE;
    float *rows = malloc((size_t)(most * x.width) * sizeof *rows);
    int status = rows ? 0 : io_fail(to->error, EXIT_INTERNAL, "out of memory for weights");
    for (int64_t first = 0; !status && first < x.rows; first += most) {
        const int64_t count = x.rows - first < most ? x.rows - first : most;
        status = lm_files_read(to->files, part, layer, first, count, LOAM_F32, rows, to->error);
        if (!status) send(to, x, first, count, rows);
    }
    free(rows);
    return status;
}

static int fill_turned(const filler *to, lm_part part, int64_t layer, matrix x)
{
    const size_t count = (size_t)(x.rows * x.width);
    float *out = malloc(2 * count * sizeof *out), *in = out ? out + count : NULL;
    int status = out ? 0 : io_fail(to->error, EXIT_INTERNAL, "out of memory for weights");
    if (!status) status = lm_files_read(to->files, part, layer, 0, x.width, LOAM_F32, out, to->error);
    for (int64_t i = 0; !status && i < x.rows; i++)
        for (int64_t j = 0; j < x.width; j++)
            in[i * x.width + j] = out[j * x.rows + i];
    if (!status) send(to, x, 0, x.rows, in);
    free(out);
    return status;
}

/* Scores that are divided by the number of the layer are those of queries that are. */
static void scale_queries(const filler *to, lm_part part, int64_t layer, matrix x)
{
    if (!lm_files_config(to->files)->scale_by_layer || (part != LM_Q && part != LM_Q_BIAS)) return;
    to->on->op->combine(to->on, x, 1 / (double)(layer + 1), x, 0, x);
}

/* Of positions there are those of the model's length. */
static bool fits(lm_part part, matrix x, int64_t rows, int64_t columns, bool turned)
{
    const int64_t in = turned ? columns : rows, out = turned ? rows : columns;
    return x.width == out && (part == LM_POSITIONS ? x.rows <= in : x.rows == in);
}

static int fill_part(const filler *to, lm_part part, int64_t layer)
{
    char name[LM_ARRAY_TEXT], text[64];
    int64_t rows, columns;
    const bool turned = lm_array_of(part).turned;
    lm_part_shape(lm_files_config(to->files), part, layer, &rows, &columns);
    const parameter *p = rows > 0 ? lm_array_find(to->net, lm_array_text(part, layer, name)) : NULL;
    if (rows == 0) return 0;
    if (!p || !fits(part, p->x, rows, columns, turned))
        return io_fail(to->error, EXIT_INPUT, "%s: %lld x %lld; the model to train has no such array",
                       lm_part_text(part, layer, text), (long long)rows, (long long)columns);
    const int status = turned ? fill_turned(to, part, layer, p->x) : fill_rows(to, part, layer, p->x);
    if (!status) scale_queries(to, part, layer, p->x);
    lm_files_forget(to->files, part, layer);
    return status;
}

int lm_pretrained_fill(train_model *net, const machine *on, const lm_files *f, io_error *error)
{
    const filler to = { net, on, f, error };
    const int64_t layers = lm_files_config(f)->layers;
    int status = on->dtype == LOAM_F32
                     ? 0
                     : io_fail(error, EXIT_INTERNAL, "pretrained weights are float32 in training");
    for (int part = 0; !status && part < LM_PARTS; part++)
        for (int64_t layer = 0; !status && layer < (part < LM_NORM_1 ? 1 : layers); layer++)
            status = fill_part(&to, (lm_part)part, layer);
    return status;
}
