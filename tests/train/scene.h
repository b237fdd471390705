/* SPDX-License-Identifier: MIT
 * A model and a batch of small examples for it. */
#ifndef LOAM_TESTS_TRAIN_SCENE_H
#define LOAM_TESTS_TRAIN_SCENE_H

#include "train/model.h"

typedef struct scene {
    machine on;
    model_shape shape;
    train_model *net;
    train_batch data;
} scene;

enum { SCENE_MODELS = 4, SCENE_BATCH = 2800 }; /* most */

/* Two layers of two heads of 8 channels; 12 tokens: recall of up to 3 pairs among 16 words, and regression
 * of 8 pairs with 4 queries. */
model_shape scene_words(int64_t models, int64_t batch);
model_shape scene_regression(int64_t models, int64_t batch);

extern const mixer_options scene_options; /* the usual ones */

/* Model m has seed seeds[m], and the examples first .. of the training data of that seed. */
void scene_open(scene *s, loam_dtype dtype, int threads, const char *mixer, const model_shape *shape,
                const uint64_t *seeds, int32_t first);
void scene_open_with(scene *s, const mixer_options *options, loam_dtype dtype, int threads, const char *mixer,
                     const model_shape *shape, const uint64_t *seeds, int32_t first);
void scene_close(scene *s);
/* The next examples. */
void scene_fill(scene *s, const uint64_t *seeds, int32_t first);
/* The loss of a model in the last pass. */
double scene_loss(const scene *s, int64_t model);
/* Ends the test where a pass failed. */
void scene_pass(scene *s, bool back);
/* What starts small or constant gets normal numbers of deviation 0.3 added, so that nothing is lost beside
 * something else. */
void scene_stir(scene *s);

#endif
