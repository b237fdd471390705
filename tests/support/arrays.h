/* SPDX-License-Identifier: MIT
 * The arrays of a case as the library gets them: in their types and
 * layouts, guarded and poisoned; for a row of CUDA in device memory. */
#ifndef TESTS_SUPPORT_ARRAYS_H
#define TESTS_SUPPORT_ARRAYS_H

#include "tests/support/guard.h"
#include "tests/support/layout.h"
#include "tests/support/values.h"

typedef struct arrays {
    const values *values;
    layout layout[SLOT_COUNT];
    guard array[SLOT_COUNT];
    guard saved, work;
    guard cu_q, cu_kv, lens_kv;
    int device; /* the kernel of the case takes device memory */
    loam_args args;
} arrays;

void arrays_make(arrays *m, const values *v);
/* The workspace of a plan, poisoned afresh. */
void arrays_work(arrays *m, const loam_plan *plan);
void arrays_saved(arrays *m, const loam_plan *plan);
/* Waits for a run on a device and brings its results back. NULL, or what CUDA says. */
const char *arrays_settle(arrays *m);
/* Copies the outputs to v, which has the shapes of m->values. */
void arrays_read(const arrays *m, values *v);
/* NULL, or what is wrong: bytes changed that should not be, or an output element that was not written.
 * Poisons the outputs again. */
const char *arrays_misuse(arrays *m, char *text, size_t bytes);
void arrays_free(arrays *m);

#endif
