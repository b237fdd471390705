/* SPDX-License-Identifier: MIT
 * Limits of the recurrent kernels besides pass, mechanism and type. */
#include "src/recurrent/recurrent.h"

/* The tiles of these kernels are 64 channels wide, and states are square. */
loam_status recurrent_hopper_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk == p->dim_v && (p->dim_qk == 64 || p->dim_qk == 128), error, LOAM_EUNSUPPORTED,
            "dim_qk, dim_v: %lld, %lld, this kernel takes 64 or 128, the same for both", (long long)p->dim_qk,
            (long long)p->dim_v);
    REQUIRE(!p->normalise, error, LOAM_EUNSUPPORTED, "normalise: 1, this kernel takes 0");
    return LOAM_OK;
}
