/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward on Hopper, for bfloat16 and at most 128 channels. */
#include "src/local/hopper/backward_key_runs.cuh"

size_t local_keys_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)key_directions_carve(p, &pool);
    return pool.used;
}

loam_status local_keys_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *memory,
                              loam_error *error)
{
    return launch_type<__nv_bfloat16>(p, a, rows, memory, error);
}
