/* SPDX-License-Identifier: MIT
 * Models of a few layers, several of one shape side by side:
 *
 *     words:       e = E[token] + P[t]         logits = rms_norm(e; gain) E^T, at the answers alone; with
 *                                              mixer_options.untied an array of its own instead of E
 *     regression:  e = x W_in + P[t]           prediction = e W_out
 *     layers:      e = e + mix(rms_norm(e; gain)) W_o
 *                  e = e + gelu(rms_norm(e; mlp_gain) mlp_1) mlp_2    with mixer_options.mlp
 *                  mlp_gate, parallel: other such layers
 */
#ifndef LOAM_TRAIN_MODEL_H
#define LOAM_TRAIN_MODEL_H

#include "train/batch.h"
#include "train/mixer.h"

/* Of the roles no layer has more than 40. */
enum { MODEL_MAX_LAYERS = 48, MODEL_MAX_PARAMETERS = 5 + MODEL_MAX_LAYERS * 40 };

typedef struct model_shape {
    train_source from;     /* what it is trained on, and so its words and length */
    int64_t models, batch; /* examples of a step */
    int64_t layers, width, heads;
    int64_t heads_kv, head_dim; /* 0: heads; width / heads */
    /* Patterns (fnmatch) of the names of the arrays that move, NULL behind the last; NULL: all do. The others
     * are frozen: 0 until they are given values, and without moments and, matrices, gradients. */
    const char *const *moving;
    /* Of a mixer with positive features those of a head of each layer, 0: the layer has softmax. NULL: as
     * mixer_options says in all. It must live as long. */
    const int16_t *features;
} model_shape;

typedef struct train_model train_model;

/* Weights are drawn from the seeds, one a model. On failure *made is NULL. */
loam_status model_create(train_model **made, const machine *on, const mixer *row, const model_shape *shape,
                         const mixer_options *options, const uint64_t *seeds, loam_error *error);
void model_destroy(train_model *m); /* NULL is allowed */

/* All that is learned, and how much of it there is. */
parameter *model_parameters(train_model *m, int *count);

/* Forward alone, or forward and the gradients of all parameters. The batch has the source and the size of the
 * model's shape. */
loam_status model_test(train_model *m, const train_batch *b, loam_error *error);
loam_status model_gradients(train_model *m, const train_batch *b, loam_error *error);
/* From now on the loss of each answer has `weight` times sum p log(p / q) over words besides, q what m says
 * of the next word and p what the teacher does, which reads the same batches. Both are of text, with an MLP,
 * and alike but for their layers, on one machine; it must live as long, and is run by m alone. */
loam_status model_teach(train_model *m, train_model *teacher, double weight, loam_error *error);
/* That sum for each answer of the last pass, [answers][1]; without data where there is no teacher. */
matrix model_divergence(const train_model *m);

/* Of the last pass, for each answer: [answers][2], its loss and whether it was right, 0 where it is none;
 * regression: [answers][1], its mean squared error. */
matrix model_results(const train_model *m);
/* What its mixers share, and a layer as the last pass left it: what is measured of a trained model. */
const mixing *model_mixing(const train_model *m);
const mixer_layer *model_layer(const train_model *m, int64_t layer);
/* The library's kernel for a pass, with its problem: loam_plan_name; "" without one. */
const char *model_kernel(const train_model *m, loam_pass pass);

#endif
