/* SPDX-License-Identifier: MIT */
#include "cli/device_set.h"

#include <assert.h>

const char *device_set_scratch(device_set *set, void **pointer, size_t bytes)
{
    assert(set->count < DEVICE_SET_ROOM);
    const char *failed = device_alloc(pointer, bytes);
    if (failed) {
        *pointer = NULL;
        return failed;
    }
    set->at[set->count].host = NULL;
    set->at[set->count].device = *pointer;
    set->at[set->count++].bytes = bytes;
    return NULL;
}

const char *device_set_input(device_set *set, const void **pointer, size_t bytes)
{
    const void *host = *pointer;
    void *device;
    if (!host) return NULL;
    const char *failed = device_set_scratch(set, &device, bytes);
    *pointer = device;
    return failed ? failed : device_upload(device, host, bytes);
}

const char *device_set_output(device_set *set, void **pointer, size_t bytes)
{
    void *const host = *pointer;
    if (!host) return NULL;
    const char *failed = device_set_scratch(set, pointer, bytes);
    if (!failed) set->at[set->count - 1].host = host;
    return failed;
}

const char *device_set_fetch(const device_set *set)
{
    const char *failed = device_wait();
    for (int i = 0; i < set->count && !failed; i++)
        if (set->at[i].host) failed = device_download(set->at[i].host, set->at[i].device, set->at[i].bytes);
    return failed;
}

void device_set_free(device_set *set)
{
    for (int i = 0; i < set->count; i++)
        device_free(set->at[i].device);
    set->count = 0;
}
