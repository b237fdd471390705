/* SPDX-License-Identifier: MIT
 * `saved` in host memory begins with a stamp of the problem, and of `more`, which the caller adds. */
#ifndef LOAM_CORE_SAVED_H
#define LOAM_CORE_SAVED_H

#include "src/base/error.h"

/* 0 in device memory, which has no stamp. */
size_t saved_stamp_bytes(const loam_problem *problem);
uint64_t saved_identity(const loam_problem *problem);
void saved_write(const loam_problem *problem, uint64_t more, void *saved);
loam_status saved_check(const loam_problem *problem, uint64_t more, const void *saved, loam_error *error);

#endif
