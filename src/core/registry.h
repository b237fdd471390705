/* SPDX-License-Identifier: MIT
 * The table of kernels and the choice among them. */
#ifndef LOAM_CORE_REGISTRY_H
#define LOAM_CORE_REGISTRY_H

#include "src/base/cpu.h"
#include "src/base/gpu.h"
#include "src/local/local.h"
#include "src/local/path.h"
#include "src/recurrent/recurrent.h"

/* Each family declares its functions under its own name for these types. */
typedef loam_status kernel_run_fn(const loam_problem *problem, const loam_args *args, loam_error *error);
typedef size_t kernel_work_fn(const loam_problem *problem);
typedef bool kernel_reads_fn(const loam_problem *problem, const loam_args *args);

/* Whether the keys of a row may be turned (problem.path). */
typedef enum kernel_keys { KEYS_PLAIN, KEYS_TURNED, KEYS_EITHER } kernel_keys;

typedef struct kernel {
    const char *name;
    unsigned mechanisms; /* bit 1 << loam_mechanism */
    loam_pass pass;
    unsigned dtypes; /* bit 1 << loam_dtype */
    loam_backend backend;
    cpu_isa isa;
    kernel_run_fn *run;
    kernel_work_fn *work;
    local_partial_fn *partial; /* local decode rows of the CPU */
    gpu_level gpu;             /* rows of CUDA */
    local_fits_fn *fits;       /* what else must hold; NULL: nothing */
    kernel_keys keys;
    const char *fallback; /* the row that it leaves arrays to which it does not read; NULL: it reads all */
    kernel_reads_fn *reads;
} kernel;

/* NULL beyond the last row. */
const kernel *registry_at(int index);

/* The kernel for a checked problem. */
loam_status registry_choose(const kernel **out, const loam_problem *problem, loam_error *error);

#endif
