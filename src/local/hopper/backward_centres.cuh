/* SPDX-License-Identifier: MIT
 * Centres of large products with rho, between the passes of the backward of Local Linear Attention. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_CENTRES_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_CENTRES_CUH

#include "src/local/hopper/backward_pairs.cuh"

/* Queues it, when the records of all rows are written. The maps of the plan are those of the arguments. */
loam_status probe_centres(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                          loam_error *error);

#endif
