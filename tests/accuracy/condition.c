/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/condition.h"

#include "tests/support/memory.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double score_of(const sample *s, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t c = 0; c < s->dim; c++)
        sum += s->q[i * s->dim + c] * s->k[j * s->dim + c];
    return sum / sqrt((double)s->dim);
}

/* p over the keys lo .. hi - 1, and the mean key. */
static void weigh(const sample *s, int64_t i, int64_t lo, int64_t hi, double *p, double *kbar)
{
    const int64_t d = s->dim;
    double m = -HUGE_VAL, omega = 0;
    for (int64_t j = lo; j < hi; j++) {
        p[j] = score_of(s, i, j);
        m = fmax(m, p[j]);
    }
    for (int64_t j = lo; j < hi; j++)
        omega += p[j] = exp(p[j] - m);
    memset(kbar, 0, (size_t)d * sizeof *kbar);
    for (int64_t j = lo; j < hi; j++) {
        p[j] /= omega;
        for (int64_t c = 0; c < d; c++)
            kbar[c] += p[j] * s->k[j * d + c];
    }
}

double condition_steepness(const sample *s)
{
    double most = 0;
    for (int64_t i = 0; i < s->len_q; i++) {
        int64_t lo, hi;
        double least = HUGE_VAL, largest = -HUGE_VAL;
        sample_visible(s, i, &lo, &hi);
        for (int64_t j = lo; j < hi; j++) {
            const double score = score_of(s, i, j);
            least = fmin(least, score);
            largest = fmax(largest, score);
        }
        most = fmax(most, (largest - least) / 2);
    }
    return most;
}

static double condition_of(double *matrix, double *eigen, int64_t d)
{
    if (LAPACKE_dsyev(LAPACK_ROW_MAJOR, 'N', 'L', (lapack_int)d, matrix, (lapack_int)d, eigen)) {
        fprintf(stderr, "loam-accuracy: LAPACK finds no eigenvalues\n");
        exit(EXIT_FAILURE);
    }
    return eigen[0] > 0 ? eigen[d - 1] / eigen[0] : HUGE_VAL;
}

void condition_rows(const sample *s, double ridge, double *out)
{
    const int64_t d = s->dim;
    double *p = memory_zeroed((size_t)s->len_kv, sizeof *p), *kbar = memory_zeroed((size_t)d, sizeof *kbar);
    double *matrix = memory_zeroed((size_t)(d * d), sizeof *matrix);
    double *eigen = memory_zeroed((size_t)d, sizeof *eigen);
    openblas_set_num_threads(1); /* threads that wait for each other cost more than these small systems */
    for (int64_t i = 0; i < s->len_q; i++) {
        int64_t lo, hi;
        sample_visible(s, i, &lo, &hi);
        weigh(s, i, lo, hi, p, kbar);
        memset(matrix, 0, (size_t)(d * d) * sizeof *matrix);
        for (int64_t r = 0; r < d; r++) {
            for (int64_t j = lo; j < hi; j++) {
                const double x = p[j] * (s->k[j * d + r] - kbar[r]);
                for (int64_t c = 0; c <= r; c++)
                    matrix[r * d + c] += x * (s->k[j * d + c] - kbar[c]);
            }
            matrix[r * d + r] += ridge;
        }
        out[i] = condition_of(matrix, eigen, d);
    }
    free(p);
    free(kbar);
    free(matrix);
    free(eigen);
}
