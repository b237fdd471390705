/* SPDX-License-Identifier: MIT
 * A tiny model, and what it makes of a few windows of random tokens. */
#ifndef LOAM_TESTS_DISTILL_SCENE_H
#define LOAM_TESTS_DISTILL_SCENE_H

#include "distill/student.h"

enum { SCENE_WINDOWS = 4, SCENE_TOKENS = 24 };

typedef struct scene {
    machine on;
    lm_files *files;
    lm_model *model;
    const lm_config *config;
    int32_t ids[SCENE_WINDOWS][SCENE_TOKENS];
    activations of;
} scene;

/* name: a folder of LM_TEST_DATA. Fails the test where it cannot. */
void scene_open(scene *s, const char *name);
/* From now on its windows are texts of different lengths: 24, 1, 7 and 16 tokens. */
void scene_uneven(scene *s);
void scene_close(scene *s);

/* Any numbers, those of A and B too; 3, 5, 7 .. features. */
student scene_student(const scene *s, bool shared);
/* Any numbers for its keys alone. */
void scene_untie(student *s);

#endif
