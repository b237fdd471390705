/* SPDX-License-Identifier: MIT
 * The pass over rows of the backward of softmax and Parallax on Hopper, for bfloat16. */
#include "src/local/hopper/backward_given.cuh"

loam_status local_rows_given_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                    loam_error *error)
{
    return launch_type<__nv_bfloat16>(p, a, rows, error);
}
