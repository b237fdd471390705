/* SPDX-License-Identifier: MIT
 * A file that appears whole or not at all: written beside its place under a temporary name, then renamed.
 * A killed program leaves at most the temporary file (.loam-PID-N.tmp), never half a result. */
#ifndef LOAM_IO_OUT_FILE_H
#define LOAM_IO_OUT_FILE_H

#include "io/error.h"

#include <stdio.h>

typedef struct out_file out_file;

/* 0, or the exit status; *file is NULL on failure. "-" as path is standard output, which is not atomic, nor
 * is a path that names a device or a pipe. A symbolic link is followed. */
int out_open(out_file **file, const char *path, io_error *error);
FILE *out_stream(out_file *file);
/* Flushes, checks every write and syncs, but leaves the temporary name. Optional before out_commit: finish
 * all files first where several must appear together. The stream is closed; on failure call out_discard. */
int out_finish(out_file *file, io_error *error);
/* Finishes where that has not been done and renames; frees the handle whatever happens. */
int out_commit(out_file *file, io_error *error);
/* Removes the temporary file and frees the handle; NULL is allowed. */
void out_discard(out_file *file);

#endif
