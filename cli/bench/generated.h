/* SPDX-License-Identifier: MIT
 * What cli/CMakeLists.txt puts into the program. */
#ifndef LOAM_CLI_BENCH_GENERATED_H
#define LOAM_CLI_BENCH_GENERATED_H

/* The lines of bench/shapes/default.txt and recurrent.txt, NULL after the last. */
extern const char *const BENCH_DEFAULT[], *const BENCH_RECURRENT[];
extern const char BENCH_COMMIT[]; /* see bench_machine.h */

#endif
