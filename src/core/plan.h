/* SPDX-License-Identifier: MIT
 * A plan: the checked problem, the chosen kernel, the sizes and the name. */
#ifndef LOAM_CORE_PLAN_H
#define LOAM_CORE_PLAN_H

#include "src/core/registry.h"
#include "src/local/local.h"
#include "src/recurrent/recurrent.h"

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

/* Does the problem begin as loam_problem_default of this library's header? */
loam_status problem_check_stamp(const loam_problem *problem, const char *name, loam_error *error);
/* Checks a problem and fills its defaults in. */
loam_status problem_check(loam_problem *problem, loam_error *error);

/* Which of the arguments a call needs. */
typedef enum args_use { ARGS_RUN, ARGS_PARTIAL, ARGS_FINISH } args_use;

/* Checks the arguments of a call, values of small arrays in host memory included. */
loam_status args_check(const loam_plan *plan, const loam_args *args, args_use use, loam_error *error);
/* Refuses what is given and not used. */
loam_status args_check_used(const loam_problem *problem, const loam_args *args, loam_error *error);
/* What is the recurrent family's own of that, and the checks that both share. */
loam_status args_check_recurrent(const loam_problem *problem, const loam_args *args, loam_error *error);
loam_status args_need(const void *data, const char *name, const char *why, loam_error *error);
loam_status args_check_output(const loam_view *view, const char *name, int64_t batch, int64_t heads,
                              int64_t tokens, int64_t channels, loam_error *error);
/* Of [batch, heads, tokens, channels] the rows that are in use: all, or the first lens[b] of each batch entry. */
typedef struct args_extent {
    int64_t batch, heads, tokens, channels;
    const int64_t *lens;
} args_extent;

/* Every value of a real array is from `least` to `most`; device memory is not looked into. */
loam_status args_check_range(const loam_problem *problem, const loam_const_view *view, const char *name,
                             const args_extent *extent, double least, double most, const char *expected,
                             loam_error *error);
/* Every row of an array of the problem's type has length 1, to the rounding of that type, or 0; likewise. */
loam_status args_check_unit(const loam_problem *problem, const loam_const_view *view, const char *name,
                            const args_extent *extent, loam_error *error);
loam_status args_check_ascending(const loam_problem *problem, const int64_t *cu, const char *name,
                                 int64_t longest, int64_t total, loam_error *error);

/* `saved` in host memory begins with a stamp of the problem, and of what else it is of: `more`. */
size_t saved_stamp_bytes(const loam_problem *problem);
uint64_t saved_identity(const loam_problem *problem);
void saved_write(const loam_problem *problem, uint64_t more, void *saved);
loam_status saved_check(const loam_problem *problem, uint64_t more, const void *saved, loam_error *error);

#endif
