/* SPDX-License-Identifier: MIT
 * The launches of the forward pass for blocks of rows that see few keys. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_RESIDENT_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_RESIDENT_CUH

#include "src/local/hopper/heavy_work.cuh"

/* Queues what such blocks write, and lists those that need row matrices. maps: of the copies in fp16. */
loam_status forward_resident(const loam_problem *p, const loam_args *a, const local_saved *saved,
                             const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                             const qkv_maps *maps, loam_error *error);

#endif
