/* SPDX-License-Identifier: MIT
 * Sums over rows, and what is added element by element. */
#include "train/cpu/real.h"

#include <math.h>
#include <string.h>

enum { COLUMNS = 16 }; /* that one thread sums at a time */

void REAL(copy)(const machine *on, matrix out, matrix x)
{
    PARALLEL_ROWS(n, out)
    memcpy(ROW(out, out, n), ROW(x, out, n), (size_t)out.width * sizeof(real));
}

void REAL(copies)(const machine *on, const matrix *out, const matrix *x, int count)
{
    for (int i = 0; i < count; i++)
        REAL(copy)(on, out[i], x[i]);
}

void REAL(combine)(const machine *on, matrix out, double alpha, matrix x, double beta, matrix y)
{
    PARALLEL_ROWS(n, out)
    {
        real *to = ROW(out, out, n);
        const real *u = ROW(x, out, n), *v = ROW(y, out, n);
        for (int64_t c = 0; c < out.width; c++)
            to[c] = (real)alpha * u[c] + (real)beta * v[c];
    }
}

void REAL(merge_parts)(const machine *on, matrix out, matrix parts, matrix lse)
{
    const int64_t part = out.width / lse.width;
#pragma omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(parts) > 4096)
    for (int64_t n = 0; n < out.models * out.width; n++) {
        const int64_t m = n / out.width, c = n % out.width, h = c / part;
        real most = -(real)INFINITY, sum = 0, all = 0;
        for (int64_t i = 0; i < parts.rows; i++)
            most = row_of(lse, m, i)[h] > most ? row_of(lse, m, i)[h] : most;
        for (int64_t i = 0; i < parts.rows; i++) {
            const real weight = exp(row_of(lse, m, i)[h] - most);
            sum += weight * row_of(parts, m, i)[c], all += weight;
        }
        row_of(out, m, 0)[c] = sum / all;
    }
}

static void add_row(real *sums, const real *a, const real *b, real r, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        sums[c] += b ? a[c] * b[c] * r : a[c] * r;
}

void REAL(column_sums)(const machine *on, matrix out, matrix a, matrix b, matrix r)
{
    const int64_t parts = (a.width + COLUMNS - 1) / COLUMNS;
    assert(out.width == a.width && out.models == a.models);
#pragma omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(a) > 4096)
    for (int64_t n = 0; n < a.models * parts; n++) {
        const int64_t m = n / parts, first = n % parts * COLUMNS;
        const int64_t count = a.width - first < COLUMNS ? a.width - first : COLUMNS;
        real sums[COLUMNS] = { 0 };
        for (int64_t i = 0; i < a.rows; i++)
            add_row(sums, row_of(a, m, i) + first, b.data ? row_of(b, m, i) + first : NULL,
                    r.data ? *row_of(r, m, i) : 1, count);
        memcpy(row_of(out, m, 0) + first, sums, (size_t)count * sizeof(real));
    }
}
