/* SPDX-License-Identifier: MIT
 * The options of `loam attend`, grouped by family: what they set, which mechanisms have them, and the
 * help. */
#ifndef LOAM_CLI_ATTEND_TABLE_H
#define LOAM_CLI_ATTEND_TABLE_H

#include "cli/attend/attend.h"
#include "cli/names.h"
#include "cli/options.h"

enum { ATTEND_ROWS = 64, ATTEND_TEXT = 4096 };

/* The mechanisms that have an option, and the names of the program's own beside them. */
typedef struct attend_only {
    names_test *is; /* NULL: all of them */
    const char *const *more;
} attend_only;

typedef struct attend_table {
    option_row rows[ATTEND_ROWS];
    attend_only only[ATTEND_ROWS];
    size_t count;
    char about[ATTEND_TEXT], text[ATTEND_ROWS][ATTEND_TEXT / 4];
} attend_table;

extern const char ATTEND_USAGE[];
/* Softmax with the scores of FoX and of PaTH. */
extern const char *const ATTEND_SOFTMAX_NAMES[];

void attend_table_make(attend_table *table, attend_options *options);

/* Every option that was given is one of the mechanism. */
int attend_table_check(const attend_table *table, const attend_options *options, io_error *error);

#endif
