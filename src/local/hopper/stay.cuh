/* SPDX-License-Identifier: MIT
 * Whether thread blocks of the backward stay (src/gpu/blocks.cuh). */
#ifndef LOAM_LOCAL_HOPPER_STAY_CUH
#define LOAM_LOCAL_HOPPER_STAY_CUH

#include "src/gpu/blocks.cuh"
#include "src/local/local.h"

/* Up to so many tokens they stay: where sequences are short, copies of the next block during this one are
 * worth more than a scheduler that shares blocks out. Where there are many, shares are even without it, and
 * softmax stays up to `tokens_of_many`. */
enum { STAY_TOKENS = 1024, STAY_TOKENS_OF_MANY = 2048, STAY_MANY_ROUNDS = 4 };

static inline loam_status blocks_stay(bool *stay, const loam_problem *p, int64_t tokens,
                                      int64_t tokens_of_many, int64_t blocks, loam_error *error)
{
    int multiprocessors = 0;
    TRY(cuda_multiprocessors(&multiprocessors, error));
    const bool many = p->mechanism == LOAM_SOFTMAX && blocks >= STAY_MANY_ROUNDS * multiprocessors;
    *stay = tokens <= STAY_TOKENS || (many && tokens <= tokens_of_many);
    return LOAM_OK;
}

#endif
