/* SPDX-License-Identifier: MIT
 * What the rows of the registry cannot do although pass, mechanism and type are theirs. */
#include "src/local/local.h"

/* The CUDA kernels hold a row of each operand in shared memory. */
enum { CUDA_MAX_DIM = 256 };

loam_status local_sm80_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk <= CUDA_MAX_DIM, error, LOAM_EUNSUPPORTED,
            "dim_qk: %lld, the CUDA kernels take 1 to %d", (long long)p->dim_qk, CUDA_MAX_DIM);
    REQUIRE(p->dim_v <= CUDA_MAX_DIM, error, LOAM_EUNSUPPORTED, "dim_v: %lld, the CUDA kernels take 1 to %d",
            (long long)p->dim_v, CUDA_MAX_DIM);
    return LOAM_OK;
}
