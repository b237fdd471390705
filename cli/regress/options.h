/* SPDX-License-Identifier: MIT
 * The options of `loam regress`, checked against each other. */
#ifndef LOAM_CLI_REGRESS_OPTIONS_H
#define LOAM_CLI_REGRESS_OPTIONS_H

#include "cli/regress/data.h"

typedef struct regress_options {
    bool help;
    const char *path, *at, *plot, *out, *json; /* files; NULL where not asked for */
    const char *by, *y;
    char *list;                                   /* of x, with zeros for commas */
    const char *columns[REGRESS_COLUMNS_MAX + 1]; /* x, then y */
    int column_count;                             /* of x */
    char delimiter;                               /* 0: told by the content */
    int64_t grid;                                 /* 0: by default */
    regress_settings set;
} regress_options;

/* --help is printed. Free with regress_options_free, on failure too. */
int regress_options_parse(regress_options *options, int argc, char **argv, io_error *error);
void regress_options_free(regress_options *options);

#endif
