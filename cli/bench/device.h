/* SPDX-License-Identifier: MIT
 * Rows of CUDA: the arrays of a shape on the device, each run timed by the device's own events, with its
 * caches emptied before it. */
#ifndef LOAM_CLI_BENCH_DEVICE_H
#define LOAM_CLI_BENCH_DEVICE_H

#include "cli/bench/result.h"
#include "cli/device.h"

typedef struct bench_device {
    device_info info;
    double copy; /* 1e9 bytes a second from device memory to itself, read and written; 0: not measured */
} bench_device;

/* The current device, and its roof where one is wanted. */
int bench_device_open(bench_device *device, bool roof, io_error *error);

/* As bench_measure, for a plan of CUDA; for backward its forward runs first, on CUDA too. Results go into the
 * arrays. */
int bench_device_measure(const loam_plan *plan, bench_arrays *arrays, const bench_protocol *protocol,
                         bench_result *result, io_error *error);

#endif
