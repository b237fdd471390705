/* SPDX-License-Identifier: MIT
 * Shape files: the problems that loam bench measures, one a line.
 *
 *     # name mechanism pass dtype B Hq Hkv Lq Lkv Dqk Dv flags...
 *     softmax-d64 softmax forward f32 1 8 8 4096 4096 64 64 causal
 *
 * Of a recurrence Hq are the heads of q and k, Hkv those of v, a multiple of Hq, and Lkv is Lq.
 *
 * Fields are separated by blanks, and # begins a comment. Flags, each at most once:
 *     causal | full            default causal
 *     window=N ridge=X unit=normalised|max|trace score=dot|rbf scale=X soft_cap=X slope sink
 *     layout=bhtd|bthd         (B,H,T,D) arrays, the default, or (B,T,H,D)
 *     data=normal|unit|anisotropic|shifted|rope      queries and keys, see data.h; default normal
 *     data=PREFIX              of the local family: queries, keys and values of PREFIX-q.npy, PREFIX-k.npy
 *                              and PREFIX-v.npy, see files.h
 *     saved                    a forward that also leaves what the backward reads
 *     decay path               FoX and PaTH scores of softmax, parallax and lla
 *     features=identity|elu|unit normalise       of recurrences
 *     features=positive count=N normalise        of linear: N positive random features
 *     kernel=GLOB              every row of the registry with such a name, not just the one a plan chooses */
#ifndef LOAM_CLI_BENCH_SHAPE_H
#define LOAM_CLI_BENCH_SHAPE_H

#include "cli/bench/data.h"
#include "io/error.h"
#include "loam.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { BENCH_NAME_BYTES = 48, BENCH_FLAGS_BYTES = 192 };

typedef struct bench_shape {
    char name[BENCH_NAME_BYTES];
    char flags[BENCH_FLAGS_BYTES]; /* as in the file, blanks between them */
    char kernel[BENCH_NAME_BYTES]; /* a glob, or "" */
    bool tokens_first;             /* layout=bthd */
    bool saved; /* there is args.saved: a backward reads it, a forward writes it where asked */
    bench_data data;
    char files[BENCH_FLAGS_BYTES]; /* BENCH_FILES: what their paths begin with */
    loam_problem problem;
    const char *source; /* of the line, for messages; the caller's string */
    int line;
} bench_shape;

typedef struct bench_shapes {
    bench_shape *at;
    size_t count, room;
} bench_shapes;

/* Appends the shapes of a stream, a file, or those built into the program: the local family's, and with `all`
 * the recurrences' too. Errors name source, line and field; a name may be used once. What was there before
 * stays. */
int bench_shapes_read(bench_shapes *shapes, FILE *stream, const char *source, io_error *error);
int bench_shapes_load(bench_shapes *shapes, const char *path, io_error *error);
int bench_shapes_default(bench_shapes *shapes, bool all, io_error *error);
void bench_shapes_free(bench_shapes *shapes);

/* The line of a shape file that reads back as this shape. */
void bench_shape_print(const bench_shape *shape, FILE *stream);

#endif
