/* SPDX-License-Identifier: MIT
 * Models and their gradients against central differences, float64 and each other. */
#ifndef LOAM_TESTS_TRAIN_DIFFERENCES_H
#define LOAM_TESTS_TRAIN_DIFFERENCES_H

#include "tests/train/scene.h"

/* The derivative of the loss along a random direction of an array, by differences of fourth order, against
 * its gradient g: an error of 1e-6 of the array's norm shows, and a gradient that is 0. */
void differences_check_array(scene *s, const char *name, const parameter *p, matrix g, uint64_t direction);
/* Every array of a model that can move in float64, in two directions each. */
void differences_check(const char *mixer, const mixer_options *options, const model_shape *shape,
                       const uint64_t *seeds);
/* float32 against float64: losses to 1e-5, gradients to 1e-3. */
void differences_check_float(const char *mixer, const mixer_options *options, const model_shape *shape,
                             const uint64_t *seeds);
/* Gradients of model m of a and of model n of b, both float32, bit for bit. */
void differences_expect_same(const char *mixer, const scene *a, int64_t m, const scene *b, int64_t n);

#endif
