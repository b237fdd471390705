/* SPDX-License-Identifier: MIT
 * What queries and keys of a measured problem look like. The time of Local Linear Attention depends on it: on
 * how many iterations its rows take. */
#ifndef LOAM_CLI_BENCH_DATA_H
#define LOAM_CLI_BENCH_DATA_H

#include <stdint.h>

typedef enum bench_data {
    BENCH_NORMAL,      /* N(0, 1) */
    BENCH_UNIT,        /* of norm 1 */
    BENCH_ANISOTROPIC, /* keys with standard deviations from 2 to 0.05 over the channels */
    BENCH_SHIFTED,     /* keys with 4 added to every channel */
    BENCH_ROPE, /* 1.5 N(0, 1) that a head has in common and 0.7 N(0, 1), rotated by position at base 10000 */
    BENCH_FILES /* queries, keys and values are read, see cli/bench/files.h */
} bench_data;

/* Words of the flag data=, NULL-terminated and in the order of the enumeration; files have none. */
extern const char *const bench_data_names[];

/* x: `dim` numbers of N(0, 1), of a query or key at `position`, become such data (BENCH_FILES: stay as they
 * are). common: `dim` numbers of N(0, 1), those of the head. */
void bench_data_form(bench_data data, int is_key, double *x, const double *common, int64_t dim,
                     int64_t position);

#endif
