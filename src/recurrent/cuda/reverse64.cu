/* SPDX-License-Identifier: MIT
 * The launches of reverse_kernel and adjoint_read_kernel in double, for MesaNet. */
#include "src/recurrent/cuda/reverse.cuh"

loam_status recurrent_reverse64_cuda(const loam_problem *p, const loam_args *a,
                                     const backward_work<double> *w, loam_error *error)
{
    return reverse_run(reverse_of(p, a, w), error);
}

loam_status recurrent_adjoint_cuda(const loam_problem *p, const loam_args *a, const backward_work<double> *w,
                                   loam_error *error)
{
    const reverse<double> s = reverse_of(p, a, w);
    switch (recurrent_cuda_width(p)) {
    case 64: return adjoint_launch<double, 4>(s, error);
    case 128: return adjoint_launch<double, 8>(s, error);
    case 256: return adjoint_launch<double, 16>(s, error);
    default: return adjoint_launch<double, 32>(s, error);
    }
}
