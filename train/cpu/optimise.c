/* SPDX-License-Identifier: MIT
 * The arithmetic of the optimisers, element by element; numbers of a model are [1][1]. */
#include "train/cpu/real.h"

static const double beta_m = 0.9, eps = 1e-8; /* of AdamW */
static const double beta_muon = 0.95;

static real number(matrix a, int64_t m) { return *row_of(a, m, 0); }

/* Row by row, and these in order: each row's sum is short. */
void REAL(squares)(const machine *on, matrix sum, const matrix *x, int count)
{
    (void)on;
    for (int64_t m = 0; m < sum.models; m++)
        *row_of(sum, m, 0) = 0;
    for (int i = 0; i < count; i++)
        for (int64_t n = 0; n < x[i].models * x[i].rows; n++) {
            const real *from = ROW(x[i], x[i], n);
            real part = 0;
#pragma omp simd reduction(+ : part)
            for (int64_t c = 0; c < x[i].width; c++)
                part += from[c] * from[c];
            *row_of(sum, n / x[i].rows, 0) += part;
        }
}

void REAL(clip)(const machine *on, matrix factor, matrix squares, double limit)
{
    (void)on;
    for (int64_t m = 0; m < factor.models; m++)
        *row_of(factor, m, 0) = fmin((real)1, (real)limit / (sqrt(number(squares, m)) + (real)1e-6));
}

void REAL(rate)(const machine *on, matrix rate, matrix peak, const int64_t *step, int64_t warm, int64_t steps,
                double least)
{
    (void)on;
    const double pi = 3.14159265358979323846, t = (double)*step, end = (double)steps, begin = (double)warm;
    const double part = t < begin
                            ? (t + 1) / begin
                            : least + (1 - least) * 0.5 * (1 + cos(pi * (t - begin) / fmax(1, end - begin)));
    for (int64_t m = 0; m < rate.models; m++)
        *row_of(rate, m, 0) = (real)((double)number(peak, m) * part);
}

void REAL(advance)(const machine *on, int64_t *step)
{
    (void)on;
    ++*step;
}

static void adamw_array(const machine *on, const parameter *a, matrix factor, matrix rate, double taken,
                        double beta_v, double decay)
{
    const real whole_m = (real)(1 - pow(beta_m, taken)), whole_v = (real)(1 - pow(beta_v, taken));
    PARALLEL_ROWS(n, a->x)
    {
        const real *down = ROW(a->g, a->x, n), by = number(factor, n / a->x.rows),
                   lr = number(rate, n / a->x.rows);
        real *to = ROW(a->x, a->x, n), *mean = ROW(a->m, a->x, n), *square = ROW(a->v, a->x, n);
        for (int64_t c = 0; c < a->x.width; c++) {
            const real d = down[c] * by;
            mean[c] = (real)beta_m * mean[c] + (real)(1 - beta_m) * d;
            square[c] = (real)beta_v * square[c] + (real)(1 - beta_v) * d * d;
            to[c] -= lr * ((real)decay * to[c] + mean[c] / whole_m / (sqrt(square[c] / whole_v) + (real)eps));
        }
    }
}

void REAL(adamw)(const machine *on, const parameter *const *list, int count, matrix factor, matrix rate,
                 const int64_t *step, double beta_v, double decay)
{
    for (int i = 0; i < count; i++)
        adamw_array(on, list[i], factor, rate, (double)*step + 1, beta_v, list[i]->decay ? decay : 0);
}

void REAL(momentum)(const machine *on, matrix u, matrix m, matrix g, matrix factor)
{
    const real keep = (real)beta_muon, take = (real)(1 - beta_muon);
    PARALLEL_ROWS(n, u)
    {
        const real *down = ROW(g, u, n), by = number(factor, n / u.rows);
        real *to = ROW(u, u, n), *mean = ROW(m, u, n);
        for (int64_t c = 0; c < u.width; c++) {
            mean[c] = keep * mean[c] + take * by * down[c];
            to[c] = keep * mean[c] + take * by * down[c];
        }
    }
}

void REAL(normalise)(const machine *on, matrix x, matrix squares)
{
    PARALLEL_ROWS(n, x)
    {
        const real scale = 1 / (sqrt(number(squares, n / x.rows)) + (real)1e-7);
        for (int64_t c = 0; c < x.width; c++)
            ROW(x, x, n)[c] *= scale;
    }
}

void REAL(descend)(const machine *on, matrix p, matrix x, matrix rate, double scale, double decay)
{
    PARALLEL_ROWS(n, p)
    {
        const real *along = ROW(x, p, n), lr = number(rate, n / p.rows);
        real *to = ROW(p, p, n);
        for (int64_t c = 0; c < p.width; c++)
            to[c] -= lr * ((real)decay * to[c] + (real)scale * along[c]);
    }
}
