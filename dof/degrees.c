/* SPDX-License-Identifier: MIT */
#include "dof/degrees.h"

#include "loam.h"

#include <cblas.h>
#include <float.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 32 };

/* Distances below this part of the squares they are the difference of are computed from the coordinates. */
static const double near = 1.0 / 64;
/* exp of more is not needed: such a sample has no leverage that a double can tell from 0. */
static const double most_exponent = 500;

const char *dof_mode_name(int mode)
{
    static const char *const names[] = { "rel", "attn", "gauss", "abs" };
    return mode < DOF_MODES ? names[mode] : NULL;
}

/* ---- room */

static double *take(int64_t rows, int64_t columns)
{
    if (rows > INT32_MAX || columns > INT32_MAX || rows * columns > (int64_t)(PTRDIFF_MAX / sizeof(double)))
        return NULL;
    const size_t bytes = (size_t)(rows * columns) * sizeof(double);
    return aligned_alloc(LOAM_ALIGN, (bytes / LOAM_ALIGN + 1) * LOAM_ALIGN);
}

int dof_room_open(dof_room *r, int64_t most, int64_t dim, bool attention, io_error *error)
{
    /* No power of two, whose multiples share a place in the cache. */
    *r = (dof_room){ .most = most, .dim = dim, .stride = most / 16 * 16 + 24 };
    r->matrix = take(most, r->stride);
    r->second = attention ? take(most, r->stride) : NULL;
    r->rows = take(most, dim), r->more_rows = take(most, dim);
    r->diagonal = take(most, 1), r->squares = take(most, 1);
    r->ridge = take(most, 1), r->leverage = take(most, 1);
    if (r->matrix && (r->second || !attention) && r->rows && r->more_rows && r->diagonal && r->squares &&
        r->ridge && r->leverage)
        return 0;
    dof_room_close(r);
    return io_fail(error, EXIT_INTERNAL, "out of memory for matrices of %lld rows", (long long)most);
}

void dof_room_close(dof_room *r)
{
    free(r->matrix);
    free(r->second);
    free(r->rows);
    free(r->more_rows);
    free(r->diagonal);
    free(r->squares);
    free(r->ridge);
    free(r->leverage);
    *r = (dof_room){ 0 };
}

/* ---- leverage scores */

/* The system below the diagonal: what is above it, and on it the diagonal and the ridge. */
static void set_system(dof_room *r, int64_t n)
{
    const int64_t ld = r->stride;
    double *const a = r->matrix;
    for (int64_t first = 0; first < n; first += TILE)
        for (int64_t from = first; from < n; from += TILE)
            for (int64_t c = first; c < n && c < first + TILE; c++)
                for (int64_t i = from > c ? from : c + 1; i < n && i < from + TILE; i++)
                    a[c * ld + i] = a[i * ld + c];
    for (int64_t i = 0; i < n; i++)
        a[i * ld + i] = r->diagonal[i] + r->ridge[i];
}

/* l_i of the first n rows of `matrix` with r->ridge, into r->leverage; their sum. With L L' = C + Lam the
 * diagonal of the inverse is the squares of the columns of L^-1. 16 eps J, below which the matrix knows
 * nothing of itself, is part of the ridge: rows that are equal share what one has. */
static bool solve(dof_room *r, int64_t n, double *sum)
{
    const double least = 16 * DBL_EPSILON * (double)n;
    const lapack_int size = (lapack_int)n, ld = (lapack_int)r->stride;
    for (int64_t i = 0; i < n; i++)
        r->ridge[i] += least * r->diagonal[i];
    set_system(r, n);
    if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'L', size, r->matrix, ld) != 0 ||
        LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'L', 'N', size, r->matrix, ld) != 0)
        return false;
    *sum = 0;
    for (int64_t c = 0; c < n; c++) {
        double squares = 0;
        for (int64_t i = c; i < n; i++)
            squares += r->matrix[c * r->stride + i] * r->matrix[c * r->stride + i];
        if (!isfinite(squares)) return false;
        r->leverage[c] = fmin(fmax(1 - r->ridge[c] * squares, 0), 1);
        *sum += r->leverage[c];
    }
    return true;
}

/* ---- samples */

/* From their mean, which no distance depends on: few pairs are then nearer to each other than to 0. */
static void center(double *x, int64_t count, int64_t dim)
{
    for (int64_t c = 0; c < dim; c++) {
        double mean = 0;
        for (int64_t i = 0; i < count; i++)
            mean += x[i * dim + c] / (double)count;
        for (int64_t i = 0; i < count; i++)
            x[i * dim + c] -= mean;
    }
}

static double square_distance(const double *x, const double *y, int64_t dim)
{
    double sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += (x[c] - y[c]) * (x[c] - y[c]);
    return sum;
}

void dof_sample(dof_room *r, const float *x, int64_t count, double factor)
{
    const int64_t dim = r->dim, ld = r->stride;
    double *const a = r->matrix;
    for (int64_t i = 0; i < count; i++) {
        r->squares[i] = 0, r->diagonal[i] = 1;
        for (int64_t c = 0; c < dim; c++) {
            const double value = factor * (double)x[i * dim + c];
            r->rows[i * dim + c] = value;
            r->squares[i] += value * value;
        }
    }
    center(r->rows, count, dim);
    cblas_dsyrk(CblasColMajor, CblasUpper, CblasTrans, (int)count, (int)dim, 1, r->rows, (int)dim, 0, a,
                (int)ld);
    /* The diagonal, squares of centred rows, is read and then of no use. */
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < j; i++) {
            const double both = a[i * ld + i] + a[j * ld + j];
            double apart = both - 2 * a[j * ld + i];
            if (apart < near * both) apart = square_distance(r->rows + i * dim, r->rows + j * dim, dim);
            a[j * ld + i] = exp(-apart / 2);
        }
}

/* log of the mean of exp(|x|^2): of tr G. */
static double log_trace(const dof_room *r, int64_t count)
{
    double most = r->squares[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = fmax(most, r->squares[i]);
    for (int64_t i = 0; i < count; i++)
        sum += exp(r->squares[i] - most);
    return most + log(sum / (double)count);
}

bool dof_kernel(dof_room *r, dof_mode mode, double lambda, int64_t count, double *n, double *leverage)
{
    const double base = log((double)count * lambda) + (mode == DOF_REL ? log_trace(r, count) : 0);
    for (int64_t i = 0; i < count; i++)
        r->ridge[i] = exp(fmin(mode == DOF_GAUSS ? base : base - r->squares[i], most_exponent));
    const bool good = solve(r, count, n);
    if (good && leverage) memcpy(leverage, r->leverage, (size_t)count * sizeof *leverage);
    return good;
}

/* ---- attention */

static void widen(double *to, const float *from, int64_t row, int64_t count, int64_t dim)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < dim; c++)
            to[i * dim + c] = (double)from[i * row + c];
}

static void normalise(double *scores, int64_t keys, int64_t count)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++)
        most = fmax(most, scores[j]);
    for (int64_t j = 0; j < keys; j++)
        sum += scores[j] = exp(scores[j] - most);
    for (int64_t j = 0; j < keys; j++)
        scores[j] /= sum;
    for (int64_t j = keys; j < count; j++)
        scores[j] = 0;
}

/* With the ridge lambda |A|^2, of the first n tokens. */
static bool solve_attention(dof_room *r, int64_t n, double lambda, double *sum)
{
    double square = 0;
    for (int64_t i = 0; i < n; i++)
        square += r->diagonal[i];
    for (int64_t i = 0; i < n; i++)
        r->ridge[i] = lambda * square;
    return solve(r, n, sum);
}

/* A causal A has nothing to the right of its first n rows and columns: A A' begins with that of n tokens. */
bool dof_attention(dof_room *r, const dof_text *text, double lambda, dof_value *n)
{
    const int64_t count = text->count, dim = r->dim, ld = r->stride;
    double *const p = r->second;
    widen(r->rows, text->q, text->q_row, count, dim);
    widen(r->more_rows, text->k, text->k_row, count, dim);
    cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, (int)count, (int)count, (int)dim, text->scale,
                r->more_rows, (int)dim, r->rows, (int)dim, 0, p, (int)ld);
    for (int64_t i = 0; i < count; i++)
        normalise(p + i * ld, text->causal ? i + 1 : count, count);
    cblas_dsyrk(CblasColMajor, CblasUpper, CblasTrans, (int)count, (int)count, 1, p, (int)ld, 0, r->matrix,
                (int)ld);
    for (int64_t i = 0; i < count; i++)
        r->diagonal[i] = r->matrix[i * ld + i];
    n->half = NAN;
    bool good = solve_attention(r, count, lambda, &n->whole);
    if (good && text->causal && count > 1) good = solve_attention(r, count / 2, lambda, &n->half);
    return good;
}
