/* SPDX-License-Identifier: MIT
 * Linear attention of an encoder, whose queries see all keys. The library's recurrence goes over a text
 * twice: keys and values into a state, then queries from that state, with keys that weigh nothing. */
#ifndef LOAM_LM_ENCODER_H
#define LOAM_LM_ENCODER_H

#include "io/error.h"
#include "train/machine.h"

/* All zero before the first text. */
typedef struct encoder_room {
    memory room;
    float *states;    /* of all heads of all texts */
    float *log_alpha; /* [LOAM_MAX_DIM]: of features that are 0 */
    void *key;        /* [LOAM_MAX_DIM]: whose elu + 1 is 0, as operands */
    int64_t count;    /* of states, numbers */
} encoder_room;

/* A plan of LOAM_LINEAR, positive features or elu + 1, normalised, with these arguments of all but states. */
int encoder_attend(encoder_room *r, const machine *on, const loam_plan *plan, const loam_args *args,
                   io_error *error);
void encoder_close(encoder_room *r);

#endif
