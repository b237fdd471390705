/* SPDX-License-Identifier: MIT */
#include "train/word_loss.h"

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* The rows of one model from `first` on. */
typedef struct block {
    matrix each, x, table, g;
    numbers targets;
    const int64_t *count;
    const word_teaching *by; /* NULL: no teacher */
    int64_t model, first;
} block;

/* With e = (q - target) / count, the gradient of the loss alone, and e' that of the teacher's: the gradient
 * of the divergence is (q - p) / count = e - e', and all of it (1 + weight) e - weight e'. */
static void judge_taught(const machine *on, const block *b, int64_t n, matrix logits)
{
    const word_teaching *by = b->by;
    const int64_t rows = logits.rows;
    const matrix theirs = matrix_rows(by->logits, 0, rows), each = matrix_rows(b->each, n, rows);
    const matrix x = matrix_rows(matrix_model(by->x, b->model), b->first + n, rows);
    const matrix apart = matrix_rows(matrix_model(by->divergence, b->model), b->first + n, rows);
    const numbers targets = { b->targets.data + n, 0 };
    on->op->product(on, theirs, x, matrix_model(by->table, b->model), PRODUCT_B_TRANSPOSED);
    on->op->divergence(on, apart, theirs, logits);
    on->op->cross_entropy(on, each, logits, logits, targets, b->count);
    on->op->cross_entropy(on, matrix_rows(by->each, 0, rows), theirs, theirs, targets, b->count);
    on->op->combine(on, matrix_columns(each, 0, 1), 1, matrix_columns(each, 0, 1), by->weight, apart);
    on->op->combine(on, matrix_rows(b->g, n, rows), 1 + by->weight, logits, -by->weight, theirs);
}

/* Logits of some rows are made and judged, and turned into gradients, while they lie in a cache. */
static void judge(const machine *on, const block *b, matrix logits)
{
    for (int64_t n = 0; n < b->x.rows; n += logits.rows) {
        const int64_t rows = least_of(b->x.rows - n, logits.rows);
        const matrix some = matrix_rows(logits, 0, rows);
        on->op->product(on, some, matrix_rows(b->x, n, rows), b->table, PRODUCT_B_TRANSPOSED);
        if (b->by)
            judge_taught(on, b, n, some);
        else
            on->op->cross_entropy(on, matrix_rows(b->each, n, rows), matrix_rows(b->g, n, rows), some,
                                  (numbers){ b->targets.data + n, 0 }, b->count);
    }
}

static void in_blocks(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                      numbers targets, const int64_t *counts, matrix logits, matrix g,
                      const word_teaching *by)
{
    for (int64_t m = 0; m < x.models; m++)
        for (int64_t first = 0; first < x.rows; first += g.rows) {
            const int64_t rows = least_of(x.rows - first, g.rows);
            const matrix some = matrix_rows(matrix_model(x, m), first, rows), words = matrix_model(table, m);
            const matrix down = matrix_rows(g, 0, rows);
            const block b = { matrix_rows(matrix_model(each, m), first, rows),
                              some,
                              words,
                              down,
                              { targets.data + m * targets.model + first, 0 },
                              counts + m,
                              by,
                              m,
                              first };
            judge(on, &b, logits);
            if (dx.data) on->op->product(on, matrix_rows(matrix_model(dx, m), first, rows), down, words, 0);
            if (dtable.data)
                on->op->product(on, matrix_model(dtable, m), down, some,
                                PRODUCT_A_TRANSPOSED | (first > 0 ? PRODUCT_ADD : 0));
        }
}

void word_loss_in_blocks(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                         numbers targets, const int64_t *counts, matrix logits, matrix g)
{
    in_blocks(on, each, dx, dtable, x, table, targets, counts, logits, g, NULL);
}

void word_loss_taught(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                      numbers targets, const int64_t *counts, matrix logits, matrix g,
                      const word_teaching *by)
{
    in_blocks(on, each, dx, dtable, x, table, targets, counts, logits, g, by);
}
