/* SPDX-License-Identifier: MIT
 * What a kernel is: its functions, and how a line of a family's kernels.def declares them.
 *
 * A line is KERNEL(machine, name, ...). A row's name is `name` with a suffix for the machine: _ref, _cuda,
 * _hopper, or the instruction sets, which each have a row. src/core/registry.c reads the rest of the line. */
#ifndef LOAM_BASE_KERNEL_H
#define LOAM_BASE_KERNEL_H

#include "loam.h"

#include <stdbool.h>

/* A kernel gets a checked problem with all defaults filled in, and checked arguments. On GPUs the pointers in
 * args are device memory, and a run only launches on args.stream. */
typedef loam_status kernel_run_fn(const loam_problem *problem, const loam_args *args, loam_error *error);
/* Bytes of args.work. */
typedef size_t kernel_work_fn(const loam_problem *problem);
/* Decode on CPUs: the partial states of keys first .. first + count - 1. */
typedef loam_status kernel_partial_fn(const loam_problem *problem, const loam_args *args, int64_t first,
                                      int64_t count, double *states, loam_error *error);
/* Refuses what a kernel cannot do although mechanism, pass and type are its own. `error` may be NULL. */
typedef loam_status kernel_fits_fn(const loam_problem *problem, loam_error *error);
/* Can the kernel read these arrays? */
typedef bool kernel_reads_fn(const loam_problem *problem, const loam_args *args);

/* The prototypes of a line, one macro for each machine. Rows of one GPU generation have a `reads` function:
 * where it is false, the row that they name as their fallback runs instead. */
#define KERNEL_DECLARE(name) \
    kernel_run_fn name; \
    kernel_work_fn name##_work;
#define KERNEL_DECLARE_REFERENCE(name, ...) KERNEL_DECLARE(name##_ref)
#define KERNEL_DECLARE_CPU(name, ...) \
    KERNEL_DECLARE(name##_portable) \
    KERNEL_DECLARE(name##_avx2) \
    KERNEL_DECLARE(name##_avx512)
#define KERNEL_DECLARE_CPU_BF16(name, ...) \
    KERNEL_DECLARE(name##_avx512bf16) \
    KERNEL_DECLARE(name##_amxbf16)
#define KERNEL_DECLARE_CUDA(name, ...) KERNEL_DECLARE(name##_cuda)
#define KERNEL_DECLARE_CUDA_BF16(name, ...) KERNEL_DECLARE(name##_cuda)
#define KERNEL_DECLARE_TILED(name) \
    KERNEL_DECLARE(name) \
    kernel_reads_fn name##_reads;
#define KERNEL_DECLARE_HOPPER(name, ...) KERNEL_DECLARE_TILED(name##_hopper)
#define KERNEL_DECLARE_HOPPER_BF16(name, ...) KERNEL_DECLARE_TILED(name##_hopper)
#define KERNEL_DECLARE_REFERENCE_PARTIAL(name, partial, ...) \
    KERNEL_DECLARE(name##_ref) \
    kernel_partial_fn partial##_ref;
#define KERNEL_DECLARE_CPU_PARTIAL(name, partial, ...) \
    KERNEL_DECLARE_CPU(name, ) \
    kernel_partial_fn partial##_portable, partial##_avx2, partial##_avx512;

#endif
