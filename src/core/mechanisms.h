/* SPDX-License-Identifier: MIT
 * The mechanisms of all families: X(enumerator less LOAM_, name, ...), further columns as in each family. */
#ifndef LOAM_CORE_MECHANISMS_H
#define LOAM_CORE_MECHANISMS_H

#include "src/local/mechanisms.h"
#include "src/recurrent/mechanisms.h"

#define MECHANISMS(X) LOCAL_MECHANISMS(X) RECURRENT_MECHANISMS(X)

#define MECHANISM_ONE(...) +1
enum { MECHANISM_COUNT = 0 MECHANISMS(MECHANISM_ONE) };
#undef MECHANISM_ONE

#endif
