/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CLI_DOF_PICTURES_H
#define LOAM_CLI_DOF_PICTURES_H

#include "cli/dof/study.h"

/* layers.svg, features by layer and mode, and heads-MODE.svg, degrees of freedom by head and layer. */
int dof_pictures_draw(const study *s, const char *directory, io_error *error);

#endif
