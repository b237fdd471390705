/* SPDX-License-Identifier: MIT
 * loam-accuracy: how exact the kernels are against float64, and what the solvers do. */
#include "tests/accuracy/cuda.h"
#include "tests/accuracy/grid.h"
#include "tests/accuracy/hostile.h"
#include "tests/accuracy/solvers.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int usage(void)
{
    fprintf(
        stderr,
        "usage: loam-accuracy [--full | --hostile | --hostile-bf16 | --cuda [ISA] | --survey |\n"
        "                      --solvers [DATA]]\n"
        "  (nothing)  the accuracy table on N(0, 1), a part of it; fails beyond the bounds\n"
        "  --full     the same with more queries of long sequences: a quarter of an hour\n"
        "  --hostile  other data and ridges down to 0; fails beyond the bounds\n"
        "  --hostile-bf16  the same in bfloat16, ridges down to 1e-3\n"
        "  --cuda     CUDA rows (of ISA alone, as hopper), on many kinds of data; fails beyond the bounds\n"
        "  --survey   which solver rows take, iterations, errors, time\n"
        "  --solvers  error and time of a row, against plain solvers; DATA: normal, unit, ..\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const bool solvers = strcmp(what, "--solvers") == 0, cuda = strcmp(what, "--cuda") == 0;
    if (argc > 3 || (argc == 3 && !solvers && !cuda)) return usage();
    if (argc == 1 || strcmp(what, "--full") == 0) return grid_run(argc == 2) != 0;
    if (strcmp(what, "--hostile") == 0) return hostile_run(LOAM_F32) != 0;
    if (strcmp(what, "--hostile-bf16") == 0) return hostile_run(LOAM_BF16) != 0;
    if (cuda) return cuda_run(argc == 3 ? argv[2] : NULL);
    if (strcmp(what, "--survey") == 0) return solvers_survey();
    return solvers ? solvers_compare(argc == 3 ? argv[2] : "all") : usage();
}
