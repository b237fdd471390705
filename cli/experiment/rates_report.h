/* SPDX-License-Identifier: MIT
 * The results of the experiment on rates: tables, pictures, and what they say of the propositions. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_REPORT_H
#define LOAM_CLI_EXPERIMENT_RATES_REPORT_H

#include "cli/experiment/rates_sweep.h"

/* How far a slope over finite n may be from the rate and still agree with it. */
extern const double rates_allowance;

/* "agrees", "steeper" or "flatter" than theory. */
const char *rates_judgement(double slope, double theory);

/* What the slopes over all of D say of propositions 2.1 and 2.2. */
typedef struct rates_verdict {
    bool global_flat;    /* the global line does not fall */
    bool constant_falls; /* NW at least as its rate */
    bool constant_bound; /* and no faster */
    bool linear_falls;   /* LL at least as its rate */
    bool linear_leads;   /* and faster than NW, by two standard errors */
} rates_verdict;

rates_verdict rates_judge(const rates_sweep *s);

/* rates.csv, summary.csv and pictures into a directory, the table to standard output; one sweep for each
 * dimension. */
int rates_report(const rates_sweep *sweeps, int count, const char *directory, io_error *error);

#endif
