/* SPDX-License-Identifier: MIT
 * What the library says about a sample, as float64. */
#ifndef TESTS_ACCURACY_ANSWER_H
#define TESTS_ACCURACY_ANSWER_H

#include "tests/accuracy/sample.h"

#include <stdbool.h>

typedef enum part { PART_O, PART_DQ, PART_DK, PART_DV, PART_DPROBE, PART_DRIDGE, PART_DSCALE, PARTS } part;

extern const char *const part_names[PARTS];

typedef struct question {
    loam_mechanism mechanism;
    loam_dtype dtype; /* LOAM_F64: the reference */
    const char *isa;  /* "portable", ..., "cuda", "hopper"; NULL: the fastest for the CPU */
    double ridge;     /* the same for every token, given per token so that its gradient has rows */
    bool gradients;
    int threads;
} question;

typedef struct answer {
    double *x[PARTS]; /* NULL: not asked, or the mechanism has no such gradient */
    loam_row_info *info;
    double seconds; /* processor time of the forward pass */
} answer;

answer answer_make(const sample *s, const question *ask);
void answer_free(answer *a);

/* Rows and their width. */
int64_t part_rows(const sample *s, part which);
int64_t part_width(const sample *s, part which);

/* Instruction sets of this machine, slowest first: name number `index`, or NULL. */
const char *answer_isa(loam_dtype dtype, int index);

#endif
