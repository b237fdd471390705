/* SPDX-License-Identifier: MIT
 * The results of a run as a table for people, as JSON and as CSV. */
#ifndef LOAM_CLI_BENCH_REPORT_H
#define LOAM_CLI_BENCH_REPORT_H

#include "cli/bench/device.h"
#include "cli/bench/machine.h"
#include "cli/bench/result.h"
#include "cli/bench/roof.h"

typedef struct bench_report {
    const bench_machine *machine;
    const bench_roofs *roofs; /* count 0: fractions are not told */
    const bench_protocol *protocol;
    const bench_result *results;
    size_t count;
    const bench_device *device; /* NULL: no row of CUDA */
} bench_report;

int bench_report_table(const bench_report *report, FILE *stream, io_error *error);
int bench_report_json(const bench_report *report, FILE *stream, io_error *error);
int bench_report_csv(const bench_report *report, FILE *stream, io_error *error);

/* What the reports derive; NaN where there is nothing to compare with. */
typedef struct bench_rates {
    double gflops, gbs;
    double of_sgemm,
        of_read;          /* fractions of the roofs; of a row of CUDA only of_read, of the device's copy */
    double of_roof;       /* of read for decode and on a device, else of sgemm */
    double times_softmax; /* median / median of softmax, same row of the registry, same problem */
} bench_rates;

bench_rates bench_rates_of(const bench_report *report, const bench_result *result);

#endif
