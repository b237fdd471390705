/* SPDX-License-Identifier: MIT
 * The operations on the CPU. Each file of this folder is compiled once for float and once for double. */
#ifndef LOAM_TRAIN_CPU_CPU_H
#define LOAM_TRAIN_CPU_CPU_H

#include "train/machine.h"

extern const ops cpu_ops_f32, cpu_ops_f64;

#endif
