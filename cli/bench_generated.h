/* SPDX-License-Identifier: MIT
 * What cli/CMakeLists.txt puts into the program. */
#ifndef LOAM_CLI_BENCH_GENERATED_H
#define LOAM_CLI_BENCH_GENERATED_H

extern const char *const BENCH_DEFAULT[]; /* the lines of bench/shapes/default.txt, NULL-terminated */
extern const char BENCH_COMMIT[];         /* see bench_machine.h */

#endif
