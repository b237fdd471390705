/* SPDX-License-Identifier: MIT
 * A folder of files that appears whole or not at all: filled beside its place under a temporary name, then
 * renamed. */
#ifndef LOAM_IO_OUT_FOLDER_H
#define LOAM_IO_OUT_FOLDER_H

#include "io/error.h"

typedef struct out_folder {
    char *target, *temporary;
} out_folder;

/* The target may be an empty folder, and nothing else that is there. On failure *f is all zero. */
int out_folder_open(out_folder *f, const char *target, io_error *error);
/* The temporary path of a file in it, malloc's; NULL on failure. */
int out_folder_path(const out_folder *f, const char *name, char **path, io_error *error);
/* Gives it its name where `status` is 0, else or on failure removes it with its files. Returns the status. */
int out_folder_end(out_folder *f, int status, io_error *error);

#endif
