/* SPDX-License-Identifier: MIT
 * The launches of reverse_kernel in float. */
#include "src/recurrent/cuda/reverse.cuh"

loam_status recurrent_reverse_cuda(const loam_problem *p, const loam_args *a, const backward_work<float> *w,
                                   loam_error *error)
{
    return reverse_run(reverse_of(p, a, w), error);
}
