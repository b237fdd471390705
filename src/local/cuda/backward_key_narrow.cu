/* SPDX-License-Identifier: MIT
 * The launches of key_kernel on narrow tiles: a file of their own, since the kernels take long to compile. */
#include "src/local/cuda/backward_key.cuh"

loam_status local_key_gradient_narrow_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                           loam_error *error)
{
    return by_directions(
        p,
        [&](auto dim, auto directions) {
            return launch_key<false, decltype(dim)::value, decltype(directions)::value>(p, a, rows, error);
        });
}
