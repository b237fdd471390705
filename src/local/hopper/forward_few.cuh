/* SPDX-License-Identifier: MIT
 * The launch of the forward pass where blocks of rows are few. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_FEW_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_FEW_CUH

#include "src/local/hopper/heavy_work.cuh"

/* Is it faster than that of forward_solved.cu? The bits are the same. */
bool forward_few_pays(const loam_problem *p);

/* Tiles of keys that a block must see to be for it. Where not quite all clusters find room at once, blocks
 * with fewer keys have time enough on multiprocessors that clusters cannot have, each in one thread block. */
int forward_few_tiles(const loam_problem *p);

/* Queues what blocks write that take one part and see so many tiles, and lists those that need row matrices.
 * maps: of the copies in fp16. */
loam_status forward_few(const loam_problem *p, const loam_args *a, const local_saved *saved,
                        const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                        const qkv_maps *maps, loam_error *error);

#endif
