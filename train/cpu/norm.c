/* SPDX-License-Identifier: MIT */
#include "train/cpu/real.h"

static real dot(const real *x, const real *y, int64_t count)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < count; c++)
        sum += x[c] * y[c];
    return sum;
}

void REAL(rms_norm)(const machine *on, matrix y, matrix r, matrix x, matrix gain, double eps)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *by = row_of(gain, n / x.rows, 0);
        const real scale = 1 / sqrt(dot(from, from, x.width) / (real)x.width + (real)eps);
        real *to = ROW(y, x, n);
        *ROW(r, x, n) = scale;
        for (int64_t c = 0; c < x.width; c++)
            to[c] = from[c] * scale * by[c];
    }
}

/* With g' = g gain and y = x r: dx = r (g' - y mean(g' y)). */
void REAL(rms_norm_back)(const machine *on, matrix dx, matrix operand, matrix dgain, matrix g, matrix x,
                         matrix r, matrix gain, matrix base)
{
    const matrix out = dx.data ? dx : operand;
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *by = row_of(gain, n / x.rows, 0), *down = ROW(g, x, n);
        const real scale = *ROW(r, x, n), *more = base.data ? ROW(base, x, n) : NULL;
        real *to = ROW(out, x, n), along = 0;
#pragma omp simd reduction(+ : along)
        for (int64_t c = 0; c < x.width; c++)
            along += down[c] * by[c] * from[c];
        along *= scale * scale / (real)x.width;
        for (int64_t c = 0; c < x.width; c++) {
            const real d = scale * (down[c] * by[c] - from[c] * along);
            to[c] = more ? more[c] + d : d;
        }
    }
    REAL(column_sums)(on, dgain, g, x, r);
    if (dx.data && operand.data) REAL(copy)(on, operand, dx);
}

static real mean_of(const real *x, int64_t count)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < count; c++)
        sum += x[c];
    return sum / (real)count;
}

void REAL(layer_norm)(const machine *on, matrix y, matrix stats, matrix x, matrix gain, matrix bias,
                      double eps)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *by = row_of(gain, n / x.rows, 0),
                   *add = row_of(bias, n / x.rows, 0);
        const real mean = mean_of(from, x.width);
        real *to = ROW(y, x, n), *kept = ROW(stats, x, n), square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t c = 0; c < x.width; c++)
            square += (from[c] - mean) * (from[c] - mean);
        kept[0] = 1 / sqrt(square / (real)x.width + (real)eps);
        kept[1] = kept[0] * mean;
        for (int64_t c = 0; c < x.width; c++)
            to[c] = (from[c] * kept[0] - kept[1]) * by[c] + add[c];
    }
}

/* With g' = g gain and y = (x - mean x) r: dx = r (g' - mean(g') - y mean(g' y)), dgain = sum g y,
 * dbias = sum g. */
void REAL(layer_norm_back)(const machine *on, matrix dx, matrix operand, matrix dgain, matrix dbias, matrix g,
                           matrix x, matrix stats, matrix gain, matrix base)
{
    const matrix none = { 0 }, out = dx.data ? dx : operand;
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *by = row_of(gain, n / x.rows, 0), *down = ROW(g, x, n);
        const real *kept = ROW(stats, x, n), *more = base.data ? ROW(base, x, n) : NULL;
        real *to = ROW(out, x, n), along = 0, whole = 0;
#pragma omp simd reduction(+ : along, whole)
        for (int64_t c = 0; c < x.width; c++) {
            whole += down[c] * by[c];
            along += down[c] * by[c] * (from[c] * kept[0] - kept[1]);
        }
        whole /= (real)x.width;
        along /= (real)x.width;
        for (int64_t c = 0; c < x.width; c++)
            to[c] = (more ? more[c] : 0) +
                    kept[0] * (down[c] * by[c] - whole - (from[c] * kept[0] - kept[1]) * along);
    }
    /* sum g x r, less sum g (r mean x). */
    REAL(column_sums)(on, dbias, g, none, matrix_columns(stats, 1, 1));
    REAL(column_sums)(on, dgain, g, x, stats);
    REAL(combine)(on, dgain, 1, dgain, -1, dbias);
    REAL(column_sums)(on, dbias, g, none, none);
    if (dx.data && operand.data) REAL(copy)(on, operand, dx);
}

static real inverse_length(const real *x, int64_t count)
{
    const real square = dot(x, x, count);
    return square > 0 ? 1 / sqrt(square) : 0;
}

void REAL(unit)(const machine *on, matrix y, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), scale = inverse_length(from, x.width);
        real *to = ROW(y, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = from[c] * scale;
    }
}

void REAL(unit_back)(const machine *on, matrix dx, matrix g, matrix x)
{
    PARALLEL_ROWS(n, x)
    {
        const real *from = ROW(x, x, n), *down = ROW(g, x, n), scale = inverse_length(from, x.width);
        const real along = dot(down, from, x.width) * scale * scale;
        real *to = ROW(dx, x, n);
        for (int64_t c = 0; c < x.width; c++)
            to[c] = scale * (down[c] - from[c] * along);
    }
}
