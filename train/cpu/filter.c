/* SPDX-License-Identifier: MIT
 * What filters need: sines, and convolutions, as long as the sequence or of a few tokens, by direct sums. */
#include "train/cpu/real.h"

#include <string.h>

void REAL(multiply)(const machine *on, matrix out, matrix a, matrix b)
{
    PARALLEL_ROWS(n, out)
    {
        const real *left = ROW(a, out, n), *right = ROW(b, out, n);
        real *to = ROW(out, out, n);
        for (int64_t c = 0; c < out.width; c++)
            to[c] = left[c] * right[c];
    }
}

void REAL(sine)(const machine *on, matrix y, matrix a, matrix bias, matrix rate)
{
    PARALLEL_ROWS(n, a)
    {
        const real *from = ROW(a, a, n), *add = row_of(bias, n / a.rows, 0),
                   *by = row_of(rate, n / a.rows, 0);
        real *to = ROW(y, a, n);
        for (int64_t c = 0; c < a.width; c++)
            to[c] = sin(by[c] * (from[c] + add[c]));
    }
}

/* There are few rows: those of one sequence. */
void REAL(sine_back)(const machine *on, matrix da, matrix dbias, matrix drate, matrix g, matrix a,
                     matrix bias, matrix rate, bool add)
{
    (void)on;
    for (int64_t m = 0; m < a.models; m++) {
        const real *added = row_of(bias, m, 0), *by = row_of(rate, m, 0);
        real *sum_bias = row_of(dbias, m, 0), *sum_rate = row_of(drate, m, 0);
        memset(sum_bias, 0, (size_t)a.width * sizeof(real));
        if (!add) memset(sum_rate, 0, (size_t)a.width * sizeof(real));
        for (int64_t i = 0; i < a.rows; i++)
            for (int64_t c = 0; c < a.width; c++) {
                const real x = row_of(a, m, i)[c] + added[c], slope = row_of(g, m, i)[c] * cos(by[c] * x);
                row_of(da, m, i)[c] = slope * by[c];
                sum_bias[c] += slope * by[c];
                sum_rate[c] += slope * x;
            }
    }
}

static void add_product(real *sums, const real *a, const real *b, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        sums[c] += a[c] * b[c];
}

void REAL(long_conv)(const machine *on, matrix y, matrix u, matrix h)
{
    PARALLEL_ROWS(n, y)
    {
        const int64_t m = n / y.rows, i = n % y.rows, t = i % h.rows;
        real *to = ROW(y, y, n);
        memset(to, 0, (size_t)y.width * sizeof(real));
        for (int64_t s = 0; s <= t; s++)
            add_product(to, row_of(h, m, t - s), row_of(u, m, i - t + s), y.width);
    }
}

void REAL(long_conv_back)(const machine *on, matrix du, matrix dh, matrix g, matrix u, matrix h)
{
    const int64_t length = h.rows;
    PARALLEL_ROWS(n, du)
    {
        const int64_t m = n / du.rows, i = n % du.rows, s = i % length;
        real *to = ROW(du, du, n);
        memset(to, 0, (size_t)du.width * sizeof(real));
        for (int64_t t = s; t < length; t++)
            add_product(to, row_of(h, m, t - s), row_of(g, m, i - s + t), du.width);
    }
    PARALLEL_ROWS(n, dh)
    {
        const int64_t m = n / length, j = n % length;
        real *to = ROW(dh, dh, n);
        memset(to, 0, (size_t)dh.width * sizeof(real));
        for (int64_t i = 0; i < g.rows; i++)
            if (i % length >= j) add_product(to, row_of(g, m, i), row_of(u, m, i - j), dh.width);
    }
}

/* Whether row t - k of a run is one that row t sees. */
static bool tap_reaches(int64_t t, int64_t k, int64_t seen) { return k == 0 || (k <= t && t - k < seen); }

void REAL(short_conv)(const machine *on, matrix y, matrix x, matrix taps, int64_t length, int64_t seen)
{
    PARALLEL_ROWS(n, y)
    {
        const int64_t m = n / y.rows, i = n % y.rows, t = i % length;
        real *to = ROW(y, y, n);
        memset(to, 0, (size_t)y.width * sizeof(real));
        for (int64_t k = 0; k < taps.rows; k++)
            if (tap_reaches(t, k, seen)) add_product(to, row_of(taps, m, k), row_of(x, m, i - k), y.width);
    }
}

void REAL(short_conv_back)(const machine *on, matrix dx, matrix dtaps, matrix g, matrix x, matrix taps,
                           int64_t length, int64_t seen)
{
    PARALLEL_ROWS(n, dx)
    {
        const int64_t m = n / dx.rows, i = n % dx.rows, t = i % length;
        real *to = ROW(dx, dx, n);
        memset(to, 0, (size_t)dx.width * sizeof(real));
        for (int64_t k = 0; k < taps.rows && t + k < length; k++)
            if (tap_reaches(t + k, k, seen))
                add_product(to, row_of(taps, m, k), row_of(g, m, i + k), dx.width);
    }
    const int64_t sums = dtaps.models * dtaps.rows;
#pragma omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(g) > 4096)
    for (int64_t n = 0; n < sums; n++) {
        const int64_t m = n / dtaps.rows, k = n % dtaps.rows;
        real *to = ROW(dtaps, dtaps, n);
        memset(to, 0, (size_t)dtaps.width * sizeof(real));
        for (int64_t i = 0; i < g.rows; i++)
            if (tap_reaches(i % length, k, seen))
                add_product(to, row_of(g, m, i), row_of(x, m, i - k), dtaps.width);
    }
}
