/* SPDX-License-Identifier: MIT
 * Arrays in host memory and their copies on the current CUDA device: pointers of a loam_args are swapped for
 * device pointers, and what was written there comes back. Functions return NULL, or what went wrong. */
#ifndef LOAM_CLI_DEVICE_SET_H
#define LOAM_CLI_DEVICE_SET_H

#include "cli/device.h"

enum { DEVICE_SET_ROOM = 48 };

typedef struct device_set {
    struct {
        void *host, *device; /* host NULL: scratch */
        size_t bytes;
    } at[DEVICE_SET_ROOM];
    int count;
} device_set;

/* *pointer, the host's, becomes the device's copy; a NULL stays. */
const char *device_set_input(device_set *set, const void **pointer, size_t bytes);
/* Likewise without the contents, which device_set_fetch brings back. */
const char *device_set_output(device_set *set, void **pointer, size_t bytes);
/* Memory that stays on the device. */
const char *device_set_scratch(device_set *set, void **pointer, size_t bytes);
/* Waits, and copies all outputs to the host. */
const char *device_set_fetch(const device_set *set);
void device_set_free(device_set *set);

#endif
