/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward of softmax and Parallax on Hopper, for float16 and at most 128
 * channels. */
#include "src/local/hopper/backward_key_runs.cuh"

loam_status local_keys_half_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                   loam_error *error)
{
    return launch_type<__half>(p, a, rows, NULL, error);
}
