/* SPDX-License-Identifier: MIT
 * Times one row of the registry on one shape. */
#ifndef LOAM_CLI_BENCH_MEASURE_H
#define LOAM_CLI_BENCH_MEASURE_H

#include "cli/bench/result.h"

/* kernel NULL: the row that a plan chooses. Runs once untimed, then as the protocol says. */
int bench_measure(bench_arrays *arrays, const char *kernel, const bench_protocol *protocol,
                  bench_result *result, io_error *error);

#endif
