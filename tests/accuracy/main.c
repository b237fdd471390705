/* SPDX-License-Identifier: MIT
 * loam-accuracy: how exact the kernels are against float64. */
#include "tests/accuracy/grid.h"
#include "tests/accuracy/hostile.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--hostile")) return hostile_run() != 0;
    return grid_run(argc > 1 && !strcmp(argv[1], "--full")) != 0;
}
