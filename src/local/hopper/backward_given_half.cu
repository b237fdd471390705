/* SPDX-License-Identifier: MIT
 * The pass over rows of the backward of softmax and Parallax on Hopper, for float16. */
#include "src/local/hopper/backward_given.cuh"

loam_status local_rows_given_half_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                         loam_error *error)
{
    return launch_type<__half>(p, a, rows, error);
}
