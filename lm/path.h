/* SPDX-License-Identifier: MIT */
#ifndef LOAM_LM_PATH_H
#define LOAM_LM_PATH_H

#include "io/error.h"

/* FOLDER/NAME, malloc's; NULL on failure. */
int lm_path(char **path, const char *folder, const char *name, io_error *error);

#endif
