/* SPDX-License-Identifier: MIT
 * The parts of `loam regress`: a table and its bandwidths -> fits at points -> CSV, picture, summary. */
#ifndef LOAM_CLI_REGRESS_MODEL_H
#define LOAM_CLI_REGRESS_MODEL_H

#include "cli/regress_bandwidth.h"
#include "io/csv.h"
#include "io/out_file.h"

#include <math.h>

typedef struct regress_model {
    csv_table raw; /* the x columns, then y */
    regress_table table;
    int columns; /* of x */
    bool wanted[REGRESS_ESTIMATORS];
    bool chosen; /* bandwidths come from cross-validation */
    regress_sample sample;
    regress_smoother with[REGRESS_ESTIMATORS];
    regress_choice choice[REGRESS_ESTIMATORS]; /* where chosen */
    regress_noise noise[REGRESS_ESTIMATORS];
    double level, reach; /* of the bands: 0.95, 1.96 standard errors */
} regress_model;

typedef struct regress_points {
    double *x; /* [columns, count], raw */
    int64_t count;
    regress_fit *fits[REGRESS_ESTIMATORS]; /* [count], or NULL where not wanted */
} regress_points;

/* Standard errors that have `level` of a normal distribution within them on both sides. */
double regress_reach(double level);

/* Room for count points of the model's columns; x is left to the caller. On failure *points is all zero. */
int regress_points_make(regress_points *points, const regress_model *model, int64_t count, io_error *error);
void regress_points_free(regress_points *points);

/* per_column values from least to most in each column, in all combinations, the last column fastest. */
int regress_points_grid(regress_points *points, const regress_model *model, int64_t per_column,
                        io_error *error);

int regress_predict(const regress_model *model, regress_points *points, const char *label, io_error *error);

/* -1 where the model has no variance. */
static inline double regress_standard_error(const regress_model *model, regress_estimator e,
                                            const regress_fit *fit)
{
    return model->noise[e].variance < 0 ? -1 : sqrt(model->noise[e].variance * fit->norm2);
}

/* Header and one line a point. A standard error that is not known leaves its fields empty. */
void regress_write_csv(const regress_model *model, const regress_points *points, FILE *stream);

/* One x column: rows, fits, bands. More: along each column, the others at their medians. */
int regress_picture(const regress_model *model, const char *path, io_error *error);

void regress_print_summary(const regress_model *model, const regress_points *points, const char *path,
                           FILE *to);

#endif
