/* SPDX-License-Identifier: MIT
 * What a method takes of a GPU's memory: its total less what is free, before and after a run. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_DEVICE_H
#define LOAM_CLI_EXPERIMENT_MEMORY_DEVICE_H

#include "cli/experiment/memory_child.h"

/* In a process that has done nothing of CUDA. `compute`: of the library's methods only; else all memory is
 * allocated and written to. */
int memory_measure_device(const memory_case *c, size_t limit, bool compute, memory_result *result,
                          io_error *error);

#endif
