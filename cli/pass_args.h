/* SPDX-License-Identifier: MIT
 * The arguments of one pass: the library refuses what a pass neither reads nor writes. */
#ifndef LOAM_CLI_PASS_ARGS_H
#define LOAM_CLI_PASS_ARGS_H

#include "loam.h"

/* Of the arguments of all passes those of `pass`: results without gradients, or gradients without results. */
loam_args pass_args(loam_args all, loam_pass pass);

#endif
