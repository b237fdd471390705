/* SPDX-License-Identifier: MIT
 * The files of a command: no output is written over an input, or over another output. */
#ifndef LOAM_CLI_FILES_H
#define LOAM_CLI_FILES_H

#include "io/error.h"

/* An option, or what else names a file ("the table"), and the path: "-" is standard input or output, NULL not
 * given. */
typedef struct named_file {
    const char *option, *path;
} named_file;

/* Before anything is read: refuses an output that is an input or another output, by whatever names and links.
 * Inputs may be FILE.safetensors:TENSOR. Both lists end with an option NULL. */
int files_check(const named_file *inputs, const named_file *outputs, io_error *error);

#endif
