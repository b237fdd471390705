/* SPDX-License-Identifier: MIT
 * A student as a model of its own: the teacher's weights, and features in the place of its softmax. */
#ifndef LOAM_DISTILL_MODEL_H
#define LOAM_DISTILL_MODEL_H

#include "distill/student.h"

typedef struct student_model {
    lm_config config;
    const lm_files *teacher;
    const student *s;
} student_model;

/* only: the one layer with features; -1: all. Teacher, which has softmax, and student must live as long. More
 * layers than can have features are refused. */
int student_model_make(student_model *m, const lm_files *teacher, const student *s, int64_t only,
                       io_error *error);

/* An lm_reader (lm/write.h) of such a model; features are rounded to float32. */
int student_model_read(const void *model, lm_part part, int64_t layer, int64_t first, int64_t count,
                       loam_dtype dtype, void *out, io_error *error);

#endif
