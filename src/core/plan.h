/* SPDX-License-Identifier: MIT
 * A plan: the checked problem, the chosen kernel, the sizes and the name. */
#ifndef LOAM_CORE_PLAN_H
#define LOAM_CORE_PLAN_H

#include "src/core/registry.h"

struct loam_plan {
    loam_problem problem;
    const kernel *kernel;
    size_t work_bytes, saved_bytes;
    char name[192];
};

/* Checks a problem and fills its defaults in. */
loam_status problem_check(loam_problem *problem, loam_error *error);

/* Which of the arguments a call needs. */
typedef enum args_use { ARGS_RUN, ARGS_PARTIAL, ARGS_FINISH } args_use;

/* Checks the arguments of a call, values of small arrays in host memory included. */
loam_status args_check(const loam_plan *plan, const loam_args *args, args_use use, loam_error *error);

#endif
