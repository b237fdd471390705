/* SPDX-License-Identifier: MIT
 * What the commands of the experiments share: lists and names as options, the folder of the results. */
#ifndef LOAM_CLI_EXPERIMENT_OPTIONS_H
#define LOAM_CLI_EXPERIMENT_OPTIONS_H

#include "cli/options.h"

#include <stdint.h>

enum { EXPERIMENT_LIST = 32, EXPERIMENT_OUT = 1024, EXPERIMENT_PATH = EXPERIMENT_OUT + 64 };

typedef struct number_list {
    int64_t items[EXPERIMENT_LIST];
    int count;
} number_list;

/* Ascending numbers from 1 to max, as in 8,16,32. */
int experiment_read_list(const char *option, const char *text, int64_t max, number_list *out,
                         io_error *error);

/* options_parse, but for positional arguments, of which there are none. */
int experiment_parse(int argc, char **argv, const option_row *rows, const char *usage, const char *about,
                     bool *help, io_error *error);

/* Of --out: 1 to EXPERIMENT_OUT characters. */
int experiment_check_out(const char *path, io_error *error);
int experiment_make_directories(const char *path, io_error *error);

/* An experiment: its options, argv[0] is its name, and its run. *out is the folder of the results, where it
 * ran. */
typedef int experiment_run(int argc, char **argv, const char **out, io_error *error);
experiment_run experiment_regression, experiment_smooth, experiment_rates, experiment_memory;
experiment_run experiment_context, experiment_recall, experiment_swaps,
    experiment_probe;              /* of cli/training */
experiment_run experiment_ridge;   /* of cli/ridge */
experiment_run experiment_graft;   /* of cli/graft */
experiment_run experiment_distill; /* of cli/distill */

#endif
