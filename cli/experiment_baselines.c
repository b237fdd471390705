/* SPDX-License-Identifier: MIT
 * The memory M = sum_j v_j k_j^T is held transposed, row a being channel a of the keys: both its update and
 * its reading then run along rows. */
#include "cli/experiment_baselines.h"

#include <math.h>
#include <string.h>

size_t baseline_scratch(int64_t dim) { return (size_t)(2 * dim * dim + 2 * dim); }

static void memory_write(double *memory, const double *key, const double *value, int64_t d)
{
    for (int64_t a = 0; a < d; a++)
        for (int64_t b = 0; b < d; b++)
            memory[a * d + b] += key[a] * value[b];
}

static void memory_read(const double *memory, const double *query, double *output, int64_t d)
{
    memset(output, 0, (size_t)d * sizeof *output);
    for (int64_t a = 0; a < d; a++)
        for (int64_t b = 0; b < d; b++)
            output[b] += query[a] * memory[a * d + b];
}

void baseline_linear(const baseline_sequence *in, double *outputs, double *scratch)
{
    const int64_t d = in->dim;
    memset(scratch, 0, (size_t)(d * d) * sizeof *scratch);
    for (int64_t i = 0; i < in->length; i++) {
        const double *key = in->keys + i * d, *value = in->values + i * d;
        double *output = outputs + i * d;
        const int64_t seen = in->hidden ? i : i + 1;
        if (!in->hidden) memory_write(scratch, key, value, d);
        memory_read(scratch, key, output, d);
        if (in->hidden) memory_write(scratch, key, value, d);
        for (int64_t a = 0; a < d && seen > 0; a++)
            output[a] /= (double)seen;
    }
}

/* R^T R + x x^T = R'^T R' by Givens rotations: only additions of squares, so no loss however many keys have
 * gone in. R is upper triangular, in rows; x is spent. */
static void factor_add(double *factor, double *x, int64_t d)
{
    for (int64_t k = 0; k < d; k++) {
        double *row = factor + k * d;
        const double root = hypot(row[k], x[k]), c = row[k] / root, s = x[k] / root;
        row[k] = root;
        for (int64_t j = k + 1; j < d; j++) {
            const double r = row[j];
            row[j] = c * r + s * x[j];
            x[j] = c * x[j] - s * r;
        }
    }
}

/* x = (R^T R)^-1 x */
static void factor_solve(const double *factor, double *x, int64_t d)
{
    for (int64_t k = 0; k < d; k++) {
        x[k] /= factor[k * d + k];
        for (int64_t j = k + 1; j < d; j++)
            x[j] -= factor[k * d + j] * x[k];
    }
    for (int64_t k = d - 1; k >= 0; k--) {
        double rest = x[k];
        for (int64_t j = k + 1; j < d; j++)
            rest -= factor[k * d + j] * x[j];
        x[k] = rest / factor[k * d + k];
    }
}

static void mesa_write(double *memory, double *factor, double *spent, const double *key, const double *value,
                       int64_t d)
{
    memory_write(memory, key, value, d);
    memcpy(spent, key, (size_t)d * sizeof *spent);
    factor_add(factor, spent, d);
}

void baseline_mesa(const baseline_sequence *in, double ridge, double *outputs, double *scratch)
{
    const int64_t d = in->dim;
    double *memory = scratch, *factor = memory + d * d, *solved = factor + d * d, *spent = solved + d;
    memset(scratch, 0, (size_t)(2 * d * d) * sizeof *scratch);
    for (int64_t a = 0; a < d; a++)
        factor[a * d + a] = sqrt(ridge);
    for (int64_t i = 0; i < in->length; i++) {
        const double *key = in->keys + i * d, *value = in->values + i * d;
        if (!in->hidden) mesa_write(memory, factor, spent, key, value, d);
        memcpy(solved, key, (size_t)d * sizeof *solved);
        factor_solve(factor, solved, d);
        memory_read(memory, solved, outputs + i * d, d);
        if (in->hidden) mesa_write(memory, factor, spent, key, value, d);
    }
}
