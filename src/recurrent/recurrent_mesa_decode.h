/* SPDX-License-Identifier: MIT
 * Decode of MesaNet: token after token, the states held in float64 for as long as a call lasts. Each token's system is solved
 * by Cholesky, and its residual taken. */
#ifndef LOAM_RECURRENT_MESA_DECODE_H
#define LOAM_RECURRENT_MESA_DECODE_H

#include "src/base/cholesky.h"
#include "src/recurrent/recurrent_features.h"
#include "src/simd/factor64.h"

/* A pivot at or below this part of the largest diagonal entry is zero, as in the reference. */
#define MESA_STEP_LEAST_PIVOT 1e-14

typedef struct mesa_step {
    double *state; /* [rows][d] */
    double *system,
        *factor; /* [d][width]: the symmetric part of H, with the ridge; likewise, then its factor */
    double *ridge, *k, *q, *x; /* [d] */
} mesa_step;

static inline mesa_step mesa_step_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, f64 = sizeof(double);
    mesa_step y;
    y.state = arena_take(pool, (size_t)recurrent_state_rows(p) * d, f64);
    y.system = arena_take(pool, d * (size_t)features_width(p), f64);
    y.factor = arena_take(pool, d * (size_t)features_width(p), f64);
    y.ridge = arena_take(pool, d, f64);
    y.k = arena_take(pool, d, f64);
    y.q = arena_take(pool, d, f64);
    y.x = arena_take(pool, d, f64);
    return y;
}

static inline void mesa_step_ridge(const loam_problem *p, const loam_args *a, int64_t h, mesa_step *y)
{
    for (int64_t c = 0; c < p->dim_qk; c++) {
        y->ridge[c] = recurrent_ridge(p, a, h, c);
    }
}

/* Every row of the state: decayed, then u k. u [rows] is beta times the value, then times the key. */
static inline void mesa_step_write(mesa_step *y, int64_t d, int64_t dim_v, double decay, double beta,
                                   const float *v)
{
    for (int64_t r = 0; r < dim_v + d; r++) {
        double *restrict row = y->state + r * d;
        const double u = beta * (r < dim_v ? (double)v[r] : y->k[r - dim_v]);
#pragma omp simd
        for (int64_t c = 0; c < d; c++) {
            row[c] = row[c] * decay + u * y->k[c];
        }
    }
}

/* Returns the largest diagonal entry. */
static inline double mesa_step_system(const mesa_step *y, const double *h, int64_t d, int64_t width)
{
    double largest = 0;
    for (int64_t r = 0; r < d; r++) {
        for (int64_t c = 0; c <= r; c++) {
            const double both = (h[r * d + c] + h[c * d + r]) / 2 + (r == c ? y->ridge[c] : 0);
            y->system[r * width + c] = y->system[c * width + r] = both;
        }
        memset(y->system + r * width + d, 0, (size_t)(width - d) * sizeof *y->system);
        largest = fmax(largest, y->system[r * width + r]);
    }
    memcpy(y->factor, y->system, (size_t)(d * width) * sizeof *y->factor);
    return largest;
}

/* x = (H + Lambda)^-1 q */
static inline loam_row_info mesa_step_solve(const mesa_step *y, int64_t d, int64_t width, int64_t dim_v)
{
    loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_GRAM, 0, 0 };
    const double largest = mesa_step_system(y, y->state + dim_v * d, d, width);
    double wrong = 0;
    if (!factor64(y->factor, width, d, MESA_STEP_LEAST_PIVOT * largest)) {
        info.code = LOAM_ROW_SINGULAR;
        memset(y->x, 0, (size_t)d * sizeof *y->x);
        return info;
    }
    memcpy(y->x, y->q, (size_t)d * sizeof *y->x);
    factor64_solve(y->factor, width, d, y->x);
    for (int64_t r = 0; r < d; r++) {
        const double rest = y->q[r] - cholesky_dot(y->system + r * width, y->x, d);
        wrong += rest * rest;
    }
    const double right = cholesky_dot(y->q, y->q, d);
    info.residual = right > 0 ? (float)sqrt(wrong / right) : 0;
    return info;
}

#endif
