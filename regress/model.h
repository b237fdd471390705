/* SPDX-License-Identifier: MIT
 * A model: a table and its bandwidths -> fits at points.
 *
 * In the program it is the fit of one group of rows; without groups there is one model of all rows. */
#ifndef LOAM_REGRESS_MODEL_H
#define LOAM_REGRESS_MODEL_H

#include "regress/bandwidth.h"

#include <math.h>

enum { REGRESS_BINNED_ROWS = 10000 };

typedef struct regress_settings {
    bool wanted[REGRESS_ESTIMATORS];
    bool chosen;                           /* bandwidths come from cross-validation, else: */
    double bandwidth[REGRESS_COLUMNS_MAX]; /* in the column's units, */
    bool deviations[REGRESS_COLUMNS_MAX];  /* or in its standard deviations */
    bool errors, slopes;                   /* standard errors and slopes are wanted */
    double level, reach;                   /* of the bands: 0.95, 1.96 standard errors */
    double ridge;
    int threads;
    int bins; /* per bandwidth, 0: none, -1: as many as the rows ask for */
    uint64_t seed;
    const regress_watch *watch; /* or NULL */
} regress_settings;

typedef struct regress_model {
    const regress_settings *set;
    const char *const *names; /* of the x columns, then of y */
    const char *group;        /* the value that its rows share, or NULL */
    const double *values;     /* [columns + 1, rows] raw: x, then y; copied when the model is made */
    int64_t rows;
    int columns;  /* of x */
    io_error why; /* why there is no fit, where exit_status is not 0 */
    regress_table table;
    regress_sample sample;
    regress_smoother with[REGRESS_ESTIMATORS];
    regress_choice choice[REGRESS_ESTIMATORS]; /* where chosen */
    regress_noise noise[REGRESS_ESTIMATORS];   /* score and variance are -1 where they are not known */
} regress_model;

/* A group that cannot be fitted (constant x, fewer than two rows) is told in model->why and is no failure. */
int regress_model_make(regress_model *model, io_error *error);
void regress_model_free(regress_model *model);
static inline bool regress_is_fitted(const regress_model *model) { return !model->why.exit_status; }

/* The bandwidths, where they are to be chosen, and the noise. */
int regress_model_estimate(regress_model *model, io_error *error);

/* In the units of the column; as given, where it was given. */
double regress_bandwidth_of(const regress_model *model, int estimator, int column);

typedef struct regress_points {
    double *x; /* [columns, count], raw */
    int64_t count;
    bool gaps;                             /* where there are no data there is no fit */
    regress_fit *fits[REGRESS_ESTIMATORS]; /* [count], or NULL where not wanted */
    double *slopes;                        /* [columns, count] in units of y per unit of x, or NULL */
} regress_points;

/* Standard errors that have `level` of a normal distribution within them on both sides. */
double regress_reach(double level);

/* Room for count points of the model's columns; x is left to the caller. On failure *points is all zero. */
int regress_points_make(regress_points *points, const regress_model *model, int64_t count, io_error *error);
void regress_points_free(regress_points *points);

/* per_column values from least to most in each column, in all combinations, the last column fastest; with
 * gaps where there are several columns. */
int regress_points_grid(regress_points *points, const regress_model *model, int64_t per_column,
                        io_error *error);

int regress_predict(const regress_model *model, regress_points *points, const char *label, io_error *error);

/* Whether data support the fit at point i, or there are no gaps: its weights sum to half a row's or more (a
 * row at the point itself has 1), and it is no less certain than one row's y (norm2 at most 1). */
bool regress_has_data(const regress_points *points, int estimator, int64_t i);

typedef struct regress_tally {
    int64_t far, singular, empty; /* points */
} regress_tally;
regress_tally regress_count_points(const regress_points *points, int estimator);

/* -1 where the model has no variance. */
static inline double regress_standard_error(const regress_model *model, regress_estimator e,
                                            const regress_fit *fit)
{
    return model->noise[e].variance < 0 ? -1 : sqrt(model->noise[e].variance * fit->norm2);
}

#endif
