/* SPDX-License-Identifier: MIT
 *
 * The pass over rows of backward_rows.cu for tiles of 256 channels. Registers hold one sum of 64 rows, and a
 * row has no matrix: plain steps in two parts solve what one part does not. */
#include "src/local/hopper/backward_rows.cuh"

loam_status rows_wide(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    if (p->decay) return launch_pass<2, 256, true>(p, a, plan, false, false, error);
    TRY((launch_pass<2, 256, false>(p, a, plan, false, false, error)));
    TRY((launch_pass<1, 256, false>(p, a, plan, false, true, error)));
    return launch_pass<2, 256, false>(p, a, plan, true, false, error);
}
