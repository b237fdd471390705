/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/device.h"

#include <stdio.h>
#include <time.h>

#ifdef LOAM_HAVE_CUDA
#include <cuda_runtime_api.h>

static const char *text_of(cudaError_t status)
{
    if (status == cudaSuccess) return NULL;
    (void)cudaGetLastError();
    return cudaGetErrorString(status);
}

int device_built(void) { return 1; }

int device_count(void)
{
    int count = 0;
    return text_of(cudaGetDeviceCount(&count)) ? 0 : count;
}

const char *device_use(int index) { return text_of(cudaSetDevice(index)); }

const char *device_describe(int index, device_info *info)
{
    struct cudaDeviceProp p;
    int current;
    const char *failed = text_of(cudaGetDeviceProperties(&p, index));
    if (failed) return failed;
    snprintf(info->name, sizeof info->name, "%s", p.name);
    info->major = p.major;
    info->minor = p.minor;
    info->multiprocessors = p.multiProcessorCount;
    info->l2_bytes = (size_t)p.l2CacheSize;
    info->memory = info->free_memory = p.totalGlobalMem;
    failed = text_of(cudaGetDevice(&current));
    if (failed || current != index) return failed;
    return text_of(cudaMemGetInfo(&info->free_memory, &info->memory));
}

const char *device_alloc(void **memory, size_t bytes)
{
    return text_of(cudaMalloc(memory, bytes ? bytes : 1));
}
void device_free(void *memory) { (void)cudaFree(memory); }

const char *device_upload(void *to, const void *from, size_t bytes)
{
    return text_of(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
const char *device_download(void *to, const void *from, size_t bytes)
{
    return text_of(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
const char *device_copy(void *to, const void *from, size_t bytes)
{
    return text_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, NULL));
}
const char *device_fill(void *to, int byte, size_t bytes)
{
    return text_of(cudaMemsetAsync(to, byte, bytes, NULL));
}
const char *device_wait(void) { return text_of(cudaDeviceSynchronize()); }

/* The driver calls it in the order of the stream. Long beside the launches of a call, some tens of
 * microseconds. */
static void CUDART_CB sleep_here(void *unused)
{
    (void)unused;
    (void)nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
}
const char *device_hold(void) { return text_of(cudaLaunchHostFunc(NULL, sleep_here, NULL)); }

const char *device_timer_make(device_timer *timer)
{
    cudaEvent_t begin = NULL, end = NULL;
    const char *failed = text_of(cudaEventCreate(&begin));
    if (!failed) failed = text_of(cudaEventCreate(&end));
    *timer = (device_timer){ begin, end };
    if (failed) device_timer_free(timer);
    return failed;
}

void device_timer_free(device_timer *timer)
{
    if (timer->begin) (void)cudaEventDestroy(timer->begin);
    if (timer->end) (void)cudaEventDestroy(timer->end);
    *timer = (device_timer){ NULL, NULL };
}

const char *device_timer_begin(device_timer *timer) { return text_of(cudaEventRecord(timer->begin, NULL)); }
const char *device_timer_end(device_timer *timer) { return text_of(cudaEventRecord(timer->end, NULL)); }

const char *device_timer_seconds(const device_timer *timer, double *seconds)
{
    float milliseconds = 0;
    const char *failed = text_of(cudaEventSynchronize(timer->end));
    if (!failed) failed = text_of(cudaEventElapsedTime(&milliseconds, timer->begin, timer->end));
    *seconds = 1e-3 * (double)milliseconds;
    return failed;
}

#else

static const char NONE[] = "this build has no CUDA";

int device_built(void) { return 0; }
int device_count(void) { return 0; }
const char *device_use(int index)
{
    (void)index;
    return NONE;
}
const char *device_describe(int index, device_info *info)
{
    (void)index, (void)info;
    return NONE;
}
const char *device_alloc(void **memory, size_t bytes)
{
    (void)bytes;
    *memory = NULL;
    return NONE;
}
void device_free(void *memory) { (void)memory; }
const char *device_upload(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return NONE;
}
const char *device_download(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return NONE;
}
const char *device_copy(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return NONE;
}
const char *device_fill(void *to, int byte, size_t bytes)
{
    (void)to, (void)byte, (void)bytes;
    return NONE;
}
const char *device_wait(void) { return NONE; }
const char *device_hold(void) { return NONE; }
const char *device_timer_make(device_timer *timer)
{
    *timer = (device_timer){ NULL, NULL };
    return NONE;
}
void device_timer_free(device_timer *timer) { (void)timer; }
const char *device_timer_begin(device_timer *timer)
{
    (void)timer;
    return NONE;
}
const char *device_timer_end(device_timer *timer)
{
    (void)timer;
    return NONE;
}
const char *device_timer_seconds(const device_timer *timer, double *seconds)
{
    (void)timer;
    *seconds = 0;
    return NONE;
}
#endif
