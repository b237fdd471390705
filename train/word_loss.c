/* SPDX-License-Identifier: MIT */
#include "train/word_loss.h"

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Logits of a block are made and judged, and turned into gradients, while they lie in a cache. */
static void judge(const machine *on, matrix each, matrix x, matrix table, numbers targets,
                  const int64_t *count, matrix logits, matrix g)
{
    for (int64_t n = 0; n < x.rows; n += logits.rows) {
        const int64_t rows = least_of(x.rows - n, logits.rows);
        const matrix some = matrix_rows(logits, 0, rows);
        on->op->product(on, some, matrix_rows(x, n, rows), table, PRODUCT_B_TRANSPOSED);
        on->op->cross_entropy(on, matrix_rows(each, n, rows), matrix_rows(g, n, rows), some,
                              (numbers){ targets.data + n, 0 }, count);
    }
}

void word_loss_in_blocks(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                         numbers targets, const int64_t *counts, matrix logits, matrix g)
{
    for (int64_t m = 0; m < x.models; m++)
        for (int64_t first = 0; first < x.rows; first += g.rows) {
            const int64_t rows = least_of(x.rows - first, g.rows);
            const matrix some = matrix_rows(matrix_model(x, m), first, rows), words = matrix_model(table, m);
            const matrix down = matrix_rows(g, 0, rows);
            judge(on, matrix_rows(matrix_model(each, m), first, rows), some, words,
                  (numbers){ targets.data + m * targets.model + first, 0 }, counts + m, logits, down);
            if (dx.data) on->op->product(on, matrix_rows(matrix_model(dx, m), first, rows), down, words, 0);
            if (dtable.data)
                on->op->product(on, matrix_model(dtable, m), down, some,
                                PRODUCT_A_TRANSPOSED | (first > 0 ? PRODUCT_ADD : 0));
        }
}
