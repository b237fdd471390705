/* SPDX-License-Identifier: MIT
 * Command-line options on top of getopt_long: one table per command gives parsing, help and the nearest
 * name for a misspelt one. */
#ifndef LOAM_CLI_OPTIONS_H
#define LOAM_CLI_OPTIONS_H

#include "io/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum option_kind {
    OPTION_FLAG, /* bool *: set to true */
    OPTION_TEXT, /* const char **: points into argv */
    OPTION_INT,  /* int64_t *: min .. max; bounds of 1e18 and more are none */
    OPTION_REAL, /* double *: finite, min .. max; likewise */
    OPTION_GROUP /* no option but a heading of the help: `help` stands under it and `argument`, an example,
                    below that */
} option_kind;

typedef struct option_row {
    const char *name; /* without the dashes; NULL ends the table */
    option_kind kind;
    void *value;          /* keeps its default where the option is absent */
    double min, max;      /* of numbers, inclusive */
    const char *argument; /* "F", "N" for help; NULL for flags */
    const char *help;
} option_row;

/* Parses argv[1..], each option at most once; positional arguments are moved to the front of argv[1..] and
 * counted. `--help` prints the usage line, `about` and the table to stdout and sets *help. Errors name the
 * option, the value and what was expected. */
int options_parse(int *argc, char **argv, const option_row *rows, const char *usage, const char *about,
                  bool *help, io_error *error);

/* io/nearest.h: the entry of `names` (NULL-terminated) nearest to `word`, or NULL where none is near. */
const char *options_nearest(const char *word, const char *const *names);

/* Index of word in names (NULL-terminated), or -1. */
int options_choice(const char *word, const char *const *names);

/* Prints "loam COMMAND: text" to stderr and returns error->exit_status. */
int options_report(const char *command, const io_error *error);

#endif
