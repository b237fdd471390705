/* SPDX-License-Identifier: MIT
 * Columns of numbers from a CSV file, in O(rows) memory, and one column of texts that name groups of rows.
 *
 * Fields are separated by commas, semicolons or tabs (io/csv_delimiter.h tells which); numbers have a point.
 * The first line is a header where any of its fields is neither a number nor missing; without a header
 * the columns are named "1", "2", ... Fields may be quoted as in RFC 4180; blank lines are skipped. A field
 * is missing where it is empty, "NA", "N/A", "null" or "nan" in any case. Infinities are errors. */
#ifndef LOAM_IO_CSV_H
#define LOAM_IO_CSV_H

#include "io/error.h"

#include <stdint.h>
#include <stdio.h>

enum { CSV_LABELS_MOST = 1000 };

typedef struct csv_table {
    int64_t rows;
    int columns;
    char **names;    /* [columns] */
    double *values;  /* column-major: values[c * rows + r] */
    int64_t dropped; /* rows left out for a missing value, with CSV_DROP_ROW */
    char delimiter;  /* that was found */

    /* Where a label column is asked for. */
    char *label_column; /* its name */
    char **labels;      /* [label_count] its different texts, in order of appearance */
    int label_count;    /* at most CSV_LABELS_MOST */
    int32_t *label;     /* [rows] index into labels */
} csv_table;

typedef enum csv_missing {
    CSV_MISSING_ERROR, /* a missing value in a chosen column is an error that names line and column */
    CSV_DROP_ROW       /* such a row is left out and counted in table->dropped */
} csv_missing;

typedef struct csv_request {
    const char *const *columns; /* [column_count] each a name of the header or else a 1-based number */
    int column_count;
    const char *label; /* likewise a column to be kept as text, or NULL */
    csv_missing missing;
    char delimiter; /* ',', ';', '\t'; 0: told by the content */
} csv_request;

/* Reads the chosen columns in the given order; "-" as path is standard input. A table without rows is an
 * error. On failure *table is all zero. */
int csv_read(csv_table *table, const char *path, const csv_request *request, io_error *error);
/* The same from an open stream that messages call `name`. */
int csv_read_stream(csv_table *table, FILE *stream, const char *name, const csv_request *request,
                    io_error *error);

void csv_table_free(csv_table *table); /* and zeroes it; csv_free is a name of libcsv */

#endif
