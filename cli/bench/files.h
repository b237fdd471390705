/* SPDX-License-Identifier: MIT
 * The queries, keys and values of a shape with data=PREFIX: PREFIX-q.npy, PREFIX-k.npy and PREFIX-v.npy,
 * each (heads, tokens, channels), query heads a multiple of key heads. A shape takes of them:
 *     batch        every sequence is the same
 *     keys         the first Lkv tokens
 *     queries      the Lq tokens that end where the keys end
 *     key heads    head j: head j of the file, modulo their number
 *     query heads  head h, number r of its group: of the file's group for that key head, number r, modulo the
 *                  file's group
 *     channels     where Dqk (Dv) is m times the file's: heads j m .. j m + m - 1 of the file side by side */
#ifndef LOAM_CLI_BENCH_FILES_H
#define LOAM_CLI_BENCH_FILES_H

#include "cli/bench/shape.h"
#include "io/array.h"

enum { BENCH_FILES_COUNT = 3, BENCH_PATH_BYTES = BENCH_FLAGS_BYTES + 8 };

/* Of q, k and v, in this order, rounded to the shape's type; all zero where its data are drawn. */
typedef struct bench_files {
    array of[BENCH_FILES_COUNT];
} bench_files;

/* Whatever does not fit the shape is an error. bench_files_free frees whatever happened. */
int bench_files_read(bench_files *files, const bench_shape *shape, io_error *error);
void bench_files_free(bench_files *files);
void bench_files_path(const bench_shape *shape, int which, char path[BENCH_PATH_BYTES]);
double bench_files_bytes(const bench_files *files);

/* The channels of one row of q, k or v of the problem, as they lie in its array. */
void bench_files_row(const bench_files *files, const loam_problem *problem, int which, int64_t head,
                     int64_t token, void *to);

#endif
