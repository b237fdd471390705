/* SPDX-License-Identifier: MIT
 *
 * The pass over rows of backward_half.cuh for tiles of 256 channels. A row has no matrix: steps in two parts
 * solve what one part does not, or float64. */
#include "src/local/hopper/backward_half.cuh"

loam_status half_rows_wide(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                           loam_error *error)
{
    if (p->decay) return launch_pass<2, 256, true>(p, a, plan, false, error);
    TRY((launch_pass<2, 256, false>(p, a, plan, false, error)));
    TRY((launch_pass<1, 256, false>(p, a, plan, false, error)));
    return launch_pass<2, 256, false>(p, a, plan, true, error);
}
