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

/* Is the mechanism of the recurrent family? Else it is of the local one. */
static inline bool plan_recurrent(const loam_problem *problem)
{
    return recurrent_form_of(problem->mechanism) != NULL;
}

/* Checks a problem and fills its defaults in. */
loam_status problem_check(loam_problem *problem, loam_error *error);

/* Which of the arguments a call needs. */
typedef enum args_use { ARGS_RUN, ARGS_PARTIAL, ARGS_FINISH } args_use;

/* Checks the arguments of a call, values of small arrays in host memory included. */
loam_status args_check(const loam_plan *plan, const loam_args *args, args_use use, loam_error *error);
/* What is the recurrent family's own of that, and the checks that both share. */
loam_status args_check_recurrent(const loam_problem *problem, const loam_args *args, loam_error *error);
loam_status args_need(const void *data, const char *name, const char *why, loam_error *error);
loam_status args_check_output(const loam_view *view, const char *name, int64_t batch, int64_t heads,
                              int64_t tokens, int64_t channels, loam_error *error);
/* Every value of a real array [batch, heads, tokens, channels] is from `least` to `most`; device memory is not looked into. */
loam_status args_check_range(const loam_problem *problem, const loam_const_view *view, const char *name,
                             int64_t batch, int64_t heads, int64_t tokens, int64_t channels, double least,
                             double most, const char *expected, loam_error *error);
loam_status args_check_ascending(const loam_problem *problem, const int64_t *cu, const char *name,
                                 int64_t longest, int64_t total, loam_error *error);

#endif
