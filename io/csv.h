/* SPDX-License-Identifier: MIT
 * Columns of numbers from a CSV file, in O(rows) memory.
 *
 * The first line is a header where any of its fields is neither a number nor missing; without a header
 * the columns are named "1", "2", ... Fields may be quoted as in RFC 4180; blank lines are skipped. A field
 * is missing where it is empty, "NA", "N/A", "null" or "nan" in any case. Infinities are errors. */
#ifndef LOAM_IO_CSV_H
#define LOAM_IO_CSV_H

#include "io/error.h"

#include <stdint.h>
#include <stdio.h>

typedef struct csv_table {
    int64_t rows;
    int columns;
    char **names;    /* [columns] */
    double *values;  /* column-major: values[c * rows + r] */
    int64_t dropped; /* rows left out for a missing value, with CSV_DROP_ROW */
} csv_table;

typedef enum csv_missing {
    CSV_MISSING_ERROR, /* a missing value in a chosen column is an error that names line and column */
    CSV_DROP_ROW       /* such a row is left out and counted in table->dropped */
} csv_missing;

/* Reads the chosen columns in the given order: each a name of the header or else a 1-based number. A table
 * without rows is an error. On failure *table is all zero. */
int csv_read(csv_table *table, const char *path, const char *const *columns, int column_count,
             io_error *error);
int csv_read_with(csv_table *table, const char *path, const char *const *columns, int column_count,
                  csv_missing missing, io_error *error);
/* The same from an open stream that messages call `name`. */
int csv_read_stream(csv_table *table, FILE *stream, const char *name, const char *const *columns,
                    int column_count, csv_missing missing, io_error *error);

/* The names of all columns; free with csv_free_columns. */
int csv_columns(char ***names, int *count, const char *path, io_error *error);
void csv_free_columns(char **names, int count);

void csv_table_free(csv_table *table); /* and zeroes it; csv_free is a name of libcsv */

#endif
