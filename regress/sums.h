/* SPDX-License-Identifier: MIT
 * The one pass over the rows that local regression needs: weighted sums around a block of query points.
 *
 * Row j has the weight w = exp(-sum_c z_c (curve z_c + tilt_c)), z = x_j - centre. With curve = 1/(2 h^2)
 * and tilt = 0 that is the Gaussian kernel around the centre. For a query far from all rows every such
 * weight would underflow; then the centre is the row c nearest to the query q and tilt = (c - q)/h^2, which
 * gives the same weights divided by that of row c. */
#ifndef LOAM_REGRESS_SUMS_H
#define LOAM_REGRESS_SUMS_H

#include "regress/bins.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    REGRESS_LANES = 8, /* query points of a block */
    REGRESS_COLUMNS_MAX = 16,
    REGRESS_PAIRS_MAX = REGRESS_COLUMNS_MAX * (REGRESS_COLUMNS_MAX + 1) / 2,
    REGRESS_SUMS_MAX = 3 + 3 * REGRESS_COLUMNS_MAX + 2 * REGRESS_PAIRS_MAX
};

typedef struct regress_rows {
    const double *x; /* [columns, rows] */
    const double *y; /* [rows] */
    int64_t rows;
    int columns;
} regress_rows;

typedef struct regress_block {
    double centre[REGRESS_COLUMNS_MAX][REGRESS_LANES];
    double tilt[REGRESS_COLUMNS_MAX][REGRESS_LANES];
    double curve;
    int64_t left_out[REGRESS_LANES]; /* a row that gets no weight, obeyed without `squares`; or -1 */
} regress_block;

/* Which sums; each kind is compiled by itself. */
typedef struct regress_kind {
    bool linear;  /* those with z; without it only w, wy and ww are */
    bool squares; /* those of w^2; without it they stay 0 */
} regress_kind;

/* Places of the sums in an array [REGRESS_SUMS_MAX]. Pairs (a, b), b <= a, lie at a (a + 1) / 2 + b. */
enum { REGRESS_W, REGRESS_WY, REGRESS_WW, REGRESS_WZ };
static inline int regress_wyz(int columns) { return REGRESS_WZ + columns; }
static inline int regress_wzz(int columns) { return REGRESS_WZ + 2 * columns; }
static inline int regress_wwz(int columns) { return regress_wzz(columns) + columns * (columns + 1) / 2; }
static inline int regress_wwzz(int columns) { return regress_wwz(columns) + columns; }
static inline int regress_sum_count(int columns, bool linear)
{
    return linear ? regress_wwzz(columns) + columns * (columns + 1) / 2 : REGRESS_WZ;
}

/* sums[s][lane], over all rows. A lane's result does not depend on the other lanes. */
typedef void regress_sums_fn(const regress_rows *rows, const regress_block *block, regress_kind kind,
                             double (*sums)[REGRESS_LANES]);

/* The same sums for one point and one column through bins: sums[s], over the bins first .. end - 1. */
typedef void regress_bin_sums_fn(const regress_bins *bins, int64_t first, int64_t end, double point,
                                 regress_kind kind, double *sums);

typedef struct regress_engine {
    regress_sums_fn *sums;
    regress_bin_sums_fn *bin_sums;
} regress_engine;

/* The fastest that this machine runs and LOAM_ISA (portable, avx2, avx512, avx512bf16, amxbf16; of the
 * environment) allows. */
regress_engine regress_engine_choose(void);

#endif
