/* SPDX-License-Identifier: MIT
 * The launches of the pass over rows of the backward for blocks of rows that see few keys. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_RESIDENT_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_RESIDENT_CUH

#include "src/local/hopper/backward_pairs.cuh"

/* Queues all that such blocks have in this pass, and lists those whose adjoint systems need row matrices. The
 * maps of the plan are those of the copies in fp16. */
loam_status backward_resident(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                              loam_error *error);

#endif
