/* SPDX-License-Identifier: MIT
 * Measures the memory of a method: in a process of its own, under a limit that it sets itself. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_CHILD_H
#define LOAM_CLI_EXPERIMENT_MEMORY_CHILD_H

#include "cli/experiment/memory_methods.h"

#include <stdbool.h>

typedef enum memory_end {
    MEMORY_COMPUTED, /* the outputs too */
    MEMORY_TAKEN,    /* all memory was allocated and written to, but nothing computed */
    MEMORY_OUT       /* there was not so much under the limit */
} memory_end;

typedef struct memory_result {
    memory_sizes sizes;
    memory_end end;
    size_t working; /* bytes of memory in use at the peak, beyond inputs and outputs */
    size_t process; /* of the whole process, at its peak; or all that is in use on the GPU */
    float sample[MEMORY_SAMPLE];
} memory_result;

/* Bytes that the machine can give now without swapping; 0 where it does not say. */
size_t memory_available(void);

/* `limit` bytes, beyond what a process of this program has before it begins; on a GPU, of arrays and working
 * memory. The calling process must not have run anything in parallel yet, nor anything of CUDA: neither
 * survives a fork. */
int memory_measure(const memory_case *c, size_t limit, bool compute, memory_result *result, io_error *error);

#endif
