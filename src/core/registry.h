/* SPDX-License-Identifier: MIT
 * The table of kernels and the choice among them. */
#ifndef LOAM_CORE_REGISTRY_H
#define LOAM_CORE_REGISTRY_H

#include "src/base/cpu.h"
#include "src/base/gpu.h"
#include "src/base/kernel.h"

/* Whether the keys of a row may be turned (problem.path). */
typedef enum kernel_keys { KEYS_PLAIN, KEYS_TURNED, KEYS_EITHER } kernel_keys;

typedef struct kernel {
    const char *name;
    unsigned mechanisms; /* bit 1 << loam_mechanism */
    loam_pass pass;
    unsigned dtypes;                          /* bit 1 << loam_dtype */
    const char *mechanism_names, *type_names; /* the same in words */
    loam_backend backend;
    cpu_isa isa;
    kernel_run_fn *run;
    kernel_work_fn *work;
    kernel_partial_fn *partial; /* decode rows of the local family on CPUs */
    gpu_level gpu;              /* rows of CUDA */
    kernel_fits_fn *fits;       /* what else must hold; NULL: nothing */
    kernel_keys keys;
    const char *fallback; /* the row that runs where `reads` is false; NULL: this row reads all arrays */
    kernel_reads_fn *reads;
} kernel;

/* NULL beyond the last row. */
const kernel *registry_at(int index);

/* The kernel for a checked problem. */
loam_status registry_choose(const kernel **out, const loam_problem *problem, loam_error *error);

#endif
