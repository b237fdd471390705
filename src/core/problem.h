/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CORE_PROBLEM_H
#define LOAM_CORE_PROBLEM_H

#include "src/base/error.h"

/* Does the problem begin as loam_problem_default of this library's header? */
loam_status problem_check_stamp(const loam_problem *problem, const char *name, loam_error *error);
/* Checks a problem and fills its defaults in. */
loam_status problem_check(loam_problem *problem, loam_error *error);

#endif
