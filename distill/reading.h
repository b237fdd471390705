/* SPDX-License-Identifier: MIT
 * A student as a model reads by it: lm_options.features. */
#ifndef LOAM_DISTILL_READING_H
#define LOAM_DISTILL_READING_H

#include "distill/student.h"

typedef struct reading {
    memory room;
    lm_features *layers;
} reading;

/* Of the student as it is now, rounded to float32, in the machine's memory. On failure *r is all zero. */
int reading_open(reading *r, const student *s, const machine *on, io_error *error);
void reading_close(reading *r);

#endif
