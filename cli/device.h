/* SPDX-License-Identifier: MIT
 * The memory and the clocks of the current CUDA device, for the program and the tests. Every function that
 * can fail returns NULL, or what went wrong; in a build without CUDA all do, and there is no device. */
#ifndef LOAM_CLI_DEVICE_H
#define LOAM_CLI_DEVICE_H

#include <stddef.h>

typedef struct device_info {
    char name[256];
    int major, minor; /* compute capability */
    int multiprocessors;
    size_t memory, free_memory, l2_bytes;
} device_info;

/* Does this build have CUDA? */
int device_built(void);
/* 0 also where there is no driver, or no CUDA in this build. */
int device_count(void);
/* Becomes the current device of this thread. */
const char *device_use(int index);
const char *device_describe(int index, device_info *info);

const char *device_alloc(void **memory, size_t bytes);
void device_free(void *memory); /* NULL is allowed */
const char *device_upload(void *to, const void *from, size_t bytes);
const char *device_download(void *to, const void *from, size_t bytes);
const char *device_copy(void *to, const void *from, size_t bytes); /* both on the device; does not wait */
const char *device_fill(void *to, int byte, size_t bytes);         /* does not wait */
/* Until all that was launched is done; its errors come to light here. */
const char *device_wait(void);
/* The default stream stands still for 2 ms, so that what is launched meanwhile waits there and then runs
 * without the host. */
const char *device_hold(void);

/* Seconds between two points of the default stream, by the device's own clock. */
typedef struct device_timer {
    void *begin, *end;
} device_timer;
const char *device_timer_make(device_timer *timer);
void device_timer_free(device_timer *timer);
const char *device_timer_begin(device_timer *timer);
const char *device_timer_end(device_timer *timer);
const char *device_timer_seconds(const device_timer *timer, double *seconds); /* waits */

#endif
