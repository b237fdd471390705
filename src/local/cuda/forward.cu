/* SPDX-License-Identifier: MIT
 * The forward rows local_forward_cuda (compute capability 8.0 and newer) and local_forward_hopper (Hopper) of
 * the local family. */
#include "src/local/cuda/forward.h"

#include "src/base/error.h"

static bool nothing(const loam_problem *p) { return p->batch == 0 || p->len_q == 0; }

/* Conjugate gradients are for 64 rows at a time, whose systems share products with the keys; a row alone is
 * sooner done in float64. */
static bool alone(const loam_problem *p, const loam_args *a) { return p->len_q == 1 && !a->weights.data; }

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Of rows that are alone, too. */
static size_t work_of(const loam_problem *p, size_t solved)
{
    return larger(solved, p->len_q == 1 ? local_all64_cuda_work(p) : 0);
}

size_t local_forward_cuda_work(const loam_problem *p)
{
    return p->mechanism == LOAM_LLA && !nothing(p) ? work_of(p, local_solved_cuda_work(p)) : 0;
}

loam_status local_forward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (nothing(p)) return loam_succeed(error);
    if (p->mechanism == LOAM_LLA && alone(p, a)) {
        TRY(local_all64_cuda(p, a, error));
    } else if (p->mechanism == LOAM_LLA) {
        TRY(local_solved_cuda(p, a, error));
        TRY(local_row_double_cuda(p, a, error));
    } else {
        TRY((p->mechanism == LOAM_SOFTMAX && p->len_q == 1 ? local_given_one_cuda : local_given_cuda)(p, a,
                                                                                                      error));
    }
    return loam_succeed(error);
}

size_t local_forward_hopper_work(const loam_problem *p)
{
    return p->mechanism == LOAM_LLA && !nothing(p) ? work_of(p, local_solved_hopper_work(p)) : 0;
}

bool local_forward_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !nothing(p) &&
           (p->mechanism == LOAM_LLA ? local_solved_hopper_reads : local_given_hopper_reads)(p, a);
}

/* Whether bulk copies can read the arrays shows only in the arguments; where they cannot, the
 * kernels of this folder run. */
loam_status local_forward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!local_forward_hopper_reads(p, a)) return local_forward_cuda(p, a, error);
    if (p->mechanism == LOAM_LLA) {
        TRY(local_solved_hopper(p, a, error));
        TRY(local_row_double_cuda(p, a, error));
    } else {
        TRY(local_given_hopper(p, a, error));
    }
    return loam_succeed(error);
}
