/* SPDX-License-Identifier: MIT
 * Compiled without the flags of an instruction set, so that it
 * can say that this CPU lacks it: then it exits with 77. */
#include "loam.h"
#include "tests/simd/suites.h"
#include "tests/support/kernels.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    if (strcmp(LOAM_TESTED_ISA, "portable") != 0 && !kernel_lists(loam_cpu_features(), LOAM_TESTED_ISA)) {
        printf("this machine has no %s: nothing was tested\n", LOAM_TESTED_ISA);
        return 77;
    }
    return suite_vec() + suite_panel() + suite_pairs() + suite_transpose() + suite_convert() +
               suite_cholesky() >
           0;
}
