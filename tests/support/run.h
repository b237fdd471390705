/* SPDX-License-Identifier: MIT
 * Runs a case through the public functions with every buffer guarded: arrays in the layout of the case,
 * poison in outputs, gaps and workspace, and afterwards checks that inputs are as they were, that every
 * wanted output was written and nothing else. */
#ifndef TESTS_SUPPORT_RUN_H
#define TESTS_SUPPORT_RUN_H

#include "tests/support/arrays.h"

typedef struct outcome {
    loam_status status;
    loam_error error; /* of the call that failed */
    char misuse[160]; /* "" where all guards are intact */
} outcome;

/* One run of the case; for a backward pass a forward of the same problem goes before it. */
outcome run_values(values *v);

/* "loam-check -k KERNEL --case '...'" */
void run_repeat_command(const spec *s, char *text, size_t bytes);

#endif
