/* SPDX-License-Identifier: MIT */
#include "train/cpu/real.h"

#define OP(name, parameters) .name = REAL(name),
const ops REAL(cpu_ops) = {
#include "train/ops.def"
};
