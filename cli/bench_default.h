/* SPDX-License-Identifier: MIT
 * The lines of bench/shapes/default.txt, put into the program by cli/CMakeLists.txt. */
#ifndef LOAM_CLI_BENCH_DEFAULT_H
#define LOAM_CLI_BENCH_DEFAULT_H

extern const char *const BENCH_DEFAULT[]; /* NULL-terminated */

#endif
