/* SPDX-License-Identifier: MIT
 * Losses of rows over a table of words, and their gradients, without the logits in memory: what the kernels
 * for Hopper are given. Rows that have a target follow each other here, `count` of them.
 *
 * Operands are packed as tiles of WORD_TILE rows by WORD_WIDTH channels, as wgmma reads them: columns of 64
 * side by side, in the 128-byte swizzle. A tile of rows that is not full ends with zeros. */
#ifndef LOAM_TRAIN_CUDA_WORD_LOSS_H
#define LOAM_TRAIN_CUDA_WORD_LOSS_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

enum { WORD_TILE = 128, WORD_WIDTH = 128, WORD_ELEMENTS = WORD_TILE * WORD_WIDTH };

/* Of a row over some of the words: with w = 2^(logit log2(e) - top), the sum of w over all words but the
 * target, the largest logit, and that of the target, -inf where it is none of these words. */
typedef struct word_sums {
    float top, rest, most, wanted;
} word_sums;

typedef struct word_job {
    int models, row_tiles, word_tiles; /* row_tiles: as many as there may be */
    int row_parts, word_parts;         /* that the sums over rows and over words are made in */
    const __nv_bfloat16 *rows, *words; /* [models][tiles][WORD_ELEMENTS] */
    const int *count;                  /* [models] */
    const int *targets;                /* [models][row_tiles * WORD_TILE], -1 beyond the count */
    const float *scale;                /* likewise: log2 of the sum of e^logit; +inf beyond the count */
    const int64_t *counts;             /* [models]: losses are divided by it */
    word_sums *sums;                   /* [models][word_parts][row_tiles * WORD_TILE] */
    float *means;                      /* likewise, [WORD_WIDTH]: the sums of w times words */
    float *parts; /* [models][row_parts][word_tiles * WORD_TILE][WORD_WIDTH]: gradients of words */
} word_job;

/* `sums` and `means` from rows, words and targets; `parts` from these and `scale`. */
cudaError_t word_rows_launch(const word_job *job, cudaStream_t stream);
cudaError_t word_words_launch(const word_job *job, cudaStream_t stream);

#endif
