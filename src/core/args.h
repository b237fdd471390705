/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CORE_ARGS_H
#define LOAM_CORE_ARGS_H

#include "src/core/plan.h"

/* Checks the arguments of a call, values of small arrays in host memory included. */
loam_status args_check(const loam_plan *plan, const loam_args *args, args_use use, loam_error *error);

#endif
