/* SPDX-License-Identifier: MIT
 * What the library asks of a family of mechanisms: one struct of functions for each, in family_*.c. */
#ifndef LOAM_CORE_FAMILY_H
#define LOAM_CORE_FAMILY_H

#include "src/base/error.h"

#include <stdbool.h>

/* Which of the arguments a call needs. */
typedef enum args_use { ARGS_RUN, ARGS_PARTIAL, ARGS_FINISH } args_use;

typedef struct family {
    loam_family id;
    bool packed_decode; /* decode takes packed sequences */

    /* Refuses what the family does not have. Enumerators, sizes and lengths are checked before. */
    loam_status (*check_problem)(const loam_problem *problem, loam_error *error);
    /* Sets the defaults of a checked problem: scale, heads. */
    void (*fill)(loam_problem *problem);
    /* What a mechanism reads: members of *info, which are 0 before. */
    void (*describe)(loam_mechanism mechanism, loam_mechanism_info *info);

    /* Checks pointers, strides and values. Arguments that the problem does not use are refused before. */
    loam_status (*check_args)(const loam_problem *problem, const loam_args *args, args_use use,
                              loam_error *error);
    /* Bytes of args.work where the kernel takes `kernel` bytes. */
    size_t (*work_bytes)(const loam_problem *problem, size_t kernel);
    size_t (*saved_bytes)(const loam_problem *problem); /* of args.saved; NULL: 0 */
    /* Computes what kernels read instead of an argument; *ready: the arguments with it. NULL: nothing. */
    loam_status (*prepare)(const loam_problem *problem, const loam_args *args, loam_args *ready,
                           loam_error *error);

    int64_t (*state_rows)(const loam_problem *problem); /* of args.state_in and state_out; NULL: 0 */
    /* Of a partial state of decode; NULL: there is none. */
    size_t (*state_doubles)(const loam_problem *problem);
} family;

extern const family family_local, family_recurrent;

/* NULL for a value that is no mechanism. */
const family *family_of(loam_mechanism mechanism);

#endif
