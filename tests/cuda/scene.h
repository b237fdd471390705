/* SPDX-License-Identifier: MIT
 * A case of the CUDA back end, ready to be launched: plan, arrays and workspace on the device. */
#ifndef TESTS_CUDA_SCENE_H
#define TESTS_CUDA_SCENE_H

#include "tests/support/expect.h"

#include <cuda_runtime_api.h>

#define CUDA(call) \
    do { \
        const cudaError_t status_ = (call); \
        if (status_ != cudaSuccess) { \
            fail_msg("%s: %s", #call, cudaGetErrorString(status_)); \
        } \
    } while (0)

typedef struct scene {
    values v; /* its outputs are what scene_finish read */
    arrays m;
    loam_plan *plan;
} scene;

/* Longer than a tile, several heads, most options: bfloat16 but
 * for number 0. Number 2, of softmax: keys that are turned. */
spec scene_spec(loam_mechanism mechanism, loam_pass pass, int number);
/* A backward scene has run its forward. */
void scene_make(scene *x, const spec *s);
void scene_launch(scene *x, cudaStream_t stream);
/* Waits for the device, reads the outputs and checks the guards. */
void scene_finish(scene *x);
void scene_free(scene *x);
/* All outputs have the same bits. */
void scene_expect_same(const char *what, const values *got, const values *want);

/* Calls fn for each mechanism, pass and number of spec that a row of CUDA does. */
void scene_for_all(void (*fn)(const spec *s));

#endif
