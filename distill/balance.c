/* SPDX-License-Identifier: MIT */
#include "distill/balance.h"

#include "loam.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Added to second moments, so that they have an inverse. */
static const double least = 1e-6;

int balance_open(balance_sums *m, int64_t channels, io_error *error)
{
    const size_t d = (size_t)channels;
    *m = (balance_sums){ .channels = channels };
    m->first = calloc(d, sizeof *m->first);
    m->second = calloc(d * d, sizeof *m->second);
    if (m->first && m->second) return 0;
    balance_close(m);
    return io_fail(error, EXIT_INTERNAL, "out of memory for moments");
}

void balance_close(balance_sums *m)
{
    free(m->first);
    free(m->second);
    *m = (balance_sums){ 0 };
}

void balance_add(balance_sums *m, const float *x, int64_t row, int64_t count, double factor)
{
    enum { ROOM = 4 * LOAM_MAX_DIM };
    const int64_t d = m->channels, rows = ROOM / d;
    double block[ROOM];
    for (int64_t first = 0; first < count; first += rows) {
        const int64_t these = count - first < rows ? count - first : rows;
        for (int64_t i = 0; i < these; i++)
            for (int64_t c = 0; c < d; c++) {
                block[i * d + c] = factor * (double)x[(first + i) * row + c];
                m->first[c] += block[i * d + c];
            }
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)d, (int)d, (int)these, 1, block, (int)d,
                    block, (int)d, 1, m->second, (int)d);
    }
    m->count += count;
}

void balance_shift(const balance_sums *x, const balance_sums *y, double factor, double *r)
{
    for (int64_t c = 0; c < x->channels; c++)
        r[c] = (x->first[c] / (double)x->count + y->first[c] / (double)y->count) / factor;
}

/* mean (x - s)(x - s)^T + least I, s = factor r. */
static void second_moments(const balance_sums *m, double factor, const double *r, double *out)
{
    const int64_t d = m->channels;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            const double si = r ? factor * r[i] : 0, sj = r ? factor * r[j] : 0, n = (double)m->count;
            out[i * d + j] = m->second[i * d + j] / n - si * m->first[j] / n - m->first[i] / n * sj +
                             si * sj + (i == j ? least : 0);
        }
}

/* out = a b, square. */
static void multiply(int64_t d, const double *a, const double *b, double *out)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)d, (int)d, (int)d, 1, a, (int)d, b, (int)d, 0,
                out, (int)d);
}

/* Of a symmetric matrix the powers `p` and `-p`; vectors [d][d] and values [d] are scratch. Eigenvalues that
 * rounding has made smaller than 2^-52 of the largest count as that. */
static bool powers(int64_t d, const double *s, double p, double *up, double *down, double *vectors,
                   double *values)
{
    memcpy(vectors, s, (size_t)(d * d) * sizeof *s);
    for (int64_t i = 0; i < d * d; i++)
        if (!isfinite(s[i])) return false;
    if (LAPACKE_dsyev(LAPACK_ROW_MAJOR, 'V', 'U', (lapack_int)d, vectors, (lapack_int)d, values))
        return false;
    const double floor = values[d - 1] * 0x1p-52;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            double more = 0, less = 0;
            for (int64_t c = 0; c < d; c++) {
                const double uv = vectors[i * d + c] * vectors[j * d + c],
                             power = pow(fmax(values[c], floor), p);
                more += uv * power, less += uv / power;
            }
            up[i * d + j] = more, down[i * d + j] = less;
        }
    return true;
}

int balance_matrices(const balance_sums *x, const balance_sums *y, double factor, const double *r, double *a,
                     double *b, io_error *error)
{
    const int64_t d = x->channels, square = d * d;
    double *const room = calloc((size_t)(6 * square + d), sizeof *room);
    if (!room) return io_fail(error, EXIT_INTERNAL, "out of memory for second moments");
    double *const s = room, *const root = s + square, *const inverse = root + square,
                  *const inner = inverse + square, *const t = inner + square, *const vectors = t + square,
                  *const values = vectors + square;
    second_moments(x, 1, NULL, s);
    bool found = powers(d, s, 0.5, root, inverse, vectors, values);
    second_moments(y, factor, r, s);
    multiply(d, root, s, t);
    multiply(d, t, root, inner);
    found = found && powers(d, inner, 0.5, s, t, vectors, values);
    multiply(d, inverse, s, t);
    multiply(d, t, inverse, inner);
    found = found && powers(d, inner, 0.5, a, b, vectors, values);
    free(room);
    return found ? 0 : io_fail(error, EXIT_INPUT, "queries and keys whose second moments are no numbers");
}
