/* SPDX-License-Identifier: MIT
 * Named arrays of float64 from one file; golden/README.md describes it. */
#ifndef TESTS_REFERENCE_GOLDEN_H
#define TESTS_REFERENCE_GOLDEN_H

#include <stdint.h>

typedef struct golden {
    unsigned char *bytes;
    int64_t size;
} golden;

/* 0, or -1 with a message on stderr. */
int golden_open(golden *g, const char *path);
void golden_close(golden *g);
/* A copy of the array called `name`, to be freed; NULL where there is none. */
double *golden_array(const golden *g, const char *name, int64_t *count);

#endif
