/* SPDX-License-Identifier: MIT
 * Queries and keys of untied features (lm_features) in the shape of the library's call. */
#ifndef LOAM_LM_UNTIED_H
#define LOAM_LM_UNTIED_H

#include "io/error.h"
#include "train/machine.h"

/* All zero before the first call. */
typedef struct untied_room {
    memory room;
    matrix q, k; /* heads of 2 d channels */
} untied_room;

/* args->q and k become those of q and k, rows of heads of d of texts of `tokens` each, at most `most` rows:
 * queries before d zeros, keys behind them. */
int untied_args(untied_room *r, const machine *on, int64_t most, int64_t tokens, int64_t d, matrix q,
                matrix k, loam_args *args, io_error *error);
void untied_close(untied_room *r);

#endif
