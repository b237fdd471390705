/* SPDX-License-Identifier: MIT
 * A plan: the checked problem, its family, the chosen kernel, the sizes and the name. */
#ifndef LOAM_CORE_PLAN_H
#define LOAM_CORE_PLAN_H

#include "src/core/family.h"
#include "src/core/registry.h"

struct loam_plan {
    loam_problem problem;
    const family *family;
    const kernel *kernel;
    size_t work_bytes, saved_bytes;
    char name[192];
};

#endif
