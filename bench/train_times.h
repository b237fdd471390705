/* SPDX-License-Identifier: MIT
 * The operations of a GPU with events around each. */
#ifndef LOAM_BENCH_TRAIN_TIMES_H
#define LOAM_BENCH_TRAIN_TIMES_H

#include "train/machine.h"

/* The operations of `on`, timed. */
const ops *train_times_wrap(const machine *on);
/* Forgets the times until now. */
void train_times_reset(void);
/* Waits, and prints the milliseconds of each kind of operation that took a share of `least` of `whole` or
 * more, and of what lies between them: attention. */
void train_times_print(const machine *on, double whole, double least);

#endif
