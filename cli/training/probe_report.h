/* SPDX-License-Identifier: MIT
 * What the arms of the probe came to: CSV, a page with verdicts, a table. */
#ifndef LOAM_CLI_TRAINING_PROBE_REPORT_H
#define LOAM_CLI_TRAINING_PROBE_REPORT_H

#include "cli/training/claims.h"
#include "cli/training/probe_arms.h"
#include "cli/training/probe_log.h"

/* All that is known of an arm. */
typedef struct probe_result {
    const probe_arm *arm;
    results results;
    probe_log log;
} probe_result;

/* Means over seeds and layers after the last test, at the rate that is best. */
typedef struct probe_means {
    double correction, rank; /* rank: of W_R; 0 of softmax */
    result_value score;
} probe_means;

probe_means probe_means_of(const probe_result *at);

/* Of probe and optimiser; returns how many. */
int probe_judge(const probe_result *all, int count, claim *out);

/* probe.csv, times.csv and index.html in the folder, and the table on standard output. */
int probe_report(const probe_result *all, int count, const char *description, const char *directory,
                 io_error *error);

#endif
