/* SPDX-License-Identifier: MIT
 * Measures all windows of a plan, as far as the time goes. */
#ifndef LOAM_CLI_RIDGE_RUN_H
#define LOAM_CLI_RIDGE_RUN_H

#include "cli/ridge/engine.h"
#include "cli/ridge/results.h"

typedef struct ridge_runner {
    const char *path, *line; /* of the file of results, and all that they depend on */
    double interval;         /* seconds between writes of the file */
    double seconds;          /* after which it ends; INFINITY: none */
} ridge_runner;

/* *whole: all is measured. */
int ridge_run(const ridge_runner *with, engine *e, ridge_results *r, bool *whole, io_error *error);

#endif
