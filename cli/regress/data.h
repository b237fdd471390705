/* SPDX-License-Identifier: MIT
 * The parts of `loam regress`: a table and its groups -> a model of each -> CSV, picture, summary. */
#ifndef LOAM_CLI_REGRESS_DATA_H
#define LOAM_CLI_REGRESS_DATA_H

#include "io/csv.h"
#include "io/out_file.h"
#include "regress/model.h"

enum { REGRESS_GROUPS_PICTURED = 6 };

typedef struct regress_data {
    csv_table raw;   /* the x columns, then y, and the groups */
    double *grouped; /* the values again, group by group */
    regress_model *models;
    int count;
} regress_data;

/* Reads, and makes the models; it is an error if none can be fitted. */
int regress_data_read(regress_data *data, const char *path, const csv_request *request,
                      const regress_settings *set, io_error *error);
void regress_data_free(regress_data *data);

/* points: of each model. Header and one line a point. What is not known leaves its fields empty. */
void regress_write_csv(const regress_data *data, const regress_points *points, FILE *stream);

/* One x column: rows, fits, bands. More: along each column, the others at their medians. */
int regress_picture(const regress_data *data, const char *path, io_error *error);

void regress_print_summary(const regress_data *data, const regress_points *points, const char *path,
                           FILE *to);
/* The same as JSON. */
int regress_write_json(const regress_data *data, const regress_points *points, const char *path, FILE *to,
                       io_error *error);

#endif
