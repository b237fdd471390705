/* SPDX-License-Identifier: MIT
 * Rows by their number: words, positions, answers; and the losses. */
#include "train/cpu/real.h"
#include "train/word_loss.h"

#include <string.h>

enum { COLUMNS = 16 }; /* that one thread sums at a time */

static int32_t number_of(numbers list, matrix like, int64_t n)
{
    return list.data[n / like.rows * list.model + n % like.rows];
}

void REAL(embed)(const machine *on, matrix e, matrix table, numbers tokens, matrix positions)
{
    PARALLEL_ROWS(n, e)
    REAL(widen)(ROW(e, e, n), table, n / e.rows, number_of(tokens, e, n), 1);
    if (positions.data) REAL(add_positions)(on, e, positions);
}

/* Rows are taken as they come. */
void REAL(order_tokens)(const machine *on, void *order, numbers tokens, int64_t models, int64_t rows,
                        int64_t words)
{
    (void)on, (void)order, (void)tokens, (void)models, (void)rows, (void)words;
}

/* Threads share the columns, so that each word's sum is in the order of the rows. */
void REAL(embed_back)(const machine *on, matrix dtable, matrix g, numbers tokens, const void *order)
{
    (void)order;
    const int64_t parts = (g.width + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(g) > 4096)
    for (int64_t p = 0; p < parts; p++) {
        const int64_t end = (p + 1) * COLUMNS < g.width ? (p + 1) * COLUMNS : g.width;
        for (int64_t n = 0; n < g.models * g.rows; n++) {
            real *to = row_of(dtable, n / g.rows, number_of(tokens, g, n));
            const real *down = ROW(g, g, n);
            for (int64_t c = p * COLUMNS; c < end; c++)
                to[c] += down[c];
        }
    }
}

void REAL(add_positions)(const machine *on, matrix e, matrix positions)
{
    PARALLEL_ROWS(n, e)
    {
        const real *from = row_of(positions, n / e.rows, n % e.rows % positions.rows);
        real *to = ROW(e, e, n);
        for (int64_t c = 0; c < e.width; c++)
            to[c] += from[c];
    }
}

void REAL(add_positions_back)(const machine *on, matrix dpositions, matrix g)
{
    const int64_t length = dpositions.rows;
    PARALLEL_ROWS(n, dpositions)
    {
        real *to = ROW(dpositions, dpositions, n);
        memset(to, 0, (size_t)g.width * sizeof(real));
        for (int64_t i = n % length; i < g.rows; i += length) {
            const real *down = row_of(g, n / length, i);
            for (int64_t c = 0; c < g.width; c++)
                to[c] += down[c];
        }
    }
}

void REAL(gather)(const machine *on, matrix out, matrix x, numbers at)
{
    PARALLEL_ROWS(n, out)
    {
        const int32_t from = number_of(at, out, n);
        if (from < 0)
            memset(ROW(out, out, n), 0, (size_t)out.width * sizeof(real));
        else
            memcpy(ROW(out, out, n), row_of(x, n / out.rows, from), (size_t)out.width * sizeof(real));
    }
}

void REAL(put_rows)(const machine *on, matrix out, matrix x, numbers at)
{
    PARALLEL_ROWS(n, x)
    {
        const int32_t to = number_of(at, x, n);
        if (to >= 0) memcpy(row_of(out, n / x.rows, to), ROW(x, x, n), (size_t)x.width * sizeof(real));
    }
}

void REAL(scatter)(const machine *on, matrix out, matrix g, numbers at)
{
    PARALLEL_ROWS(n, out)
    memset(ROW(out, out, n), 0, (size_t)out.width * sizeof(real));
    REAL(put_rows)(on, out, g, at);
}

void REAL(scatter_add)(const machine *on, matrix out, matrix operand, matrix g, numbers at)
{
    PARALLEL_ROWS(n, g)
    {
        const int32_t i = number_of(at, g, n);
        if (i < 0) continue;
        const real *from = ROW(g, g, n);
        real *to = row_of(out, n / g.rows, i);
        for (int64_t c = 0; c < g.width; c++)
            to[c] += from[c];
        if (operand.data) memcpy(row_of(operand, n / g.rows, i), to, (size_t)g.width * sizeof(real));
    }
}

void REAL(clear_rows)(const machine *on, matrix x, int64_t length, int64_t first)
{
    PARALLEL_ROWS(n, x)
    if (n % x.rows % length >= first) memset(ROW(x, x, n), 0, (size_t)x.width * sizeof(real));
}

static int64_t largest(const real *x, int64_t count)
{
    int64_t at = 0;
    for (int64_t c = 1; c < count; c++)
        if (x[c] > x[at]) at = c;
    return at;
}

/* With p = softmax(x): the loss is -log p_target, its gradient p - 1 at the target and p elsewhere. */
void REAL(cross_entropy)(const machine *on, matrix each, matrix g, matrix logits, numbers targets,
                         const int64_t *counts)
{
    PARALLEL_ROWS(n, logits)
    {
        const real *x = ROW(logits, logits, n);
        real *d = ROW(g, logits, n), *result = ROW(each, logits, n);
        const int32_t target = number_of(targets, logits, n);
        if (target < 0) {
            memset(d, 0, (size_t)logits.width * sizeof(real));
            result[0] = result[1] = 0;
            continue;
        }
        const int64_t top = largest(x, logits.width);
        const real most = x[top], wanted = x[target] - most;
        double sum = 0; /* of 50,000 words a float32 loses 1e-4 of it, always the same way */
        for (int64_t c = 0; c < logits.width; c++)
            sum += d[c] = exp(x[c] - most);
        result[0] = (real)log(sum) - wanted;
        result[1] = top == target;
        const int64_t count = counts[n / logits.rows];
        const real share = 1 / (real)count;
        for (int64_t c = 0; c < logits.width; c++)
            d[c] *= share / (real)sum;
        d[target] -= share;
    }
}

void REAL(word_loss)(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                     numbers targets, const int64_t *counts, matrix logits, matrix g)
{
    word_loss_in_blocks(on, each, dx, dtable, x, table, targets, counts, logits, g);
}

void REAL(squared_error)(const machine *on, matrix each, matrix y, matrix t)
{
    PARALLEL_ROWS(n, y)
    {
        real *x = ROW(y, y, n), sum = 0;
        const real *wanted = ROW(t, y, n);
        for (int64_t c = 0; c < y.width; c++) {
            const real off = x[c] - wanted[c];
            sum += off * off;
            x[c] = 2 * off / (real)(y.rows * y.width);
        }
        *ROW(each, y, n) = sum / (real)y.width;
    }
}
