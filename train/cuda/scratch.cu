/* SPDX-License-Identifier: MIT */
#include "train/cuda/gpu.cuh"

#include <stdio.h>

static const size_t LEAST_ROOM = (size_t)1 << 25;

void gpu_fail(machine_gpu *gpu, const char *what, const char *text)
{
    if (gpu->failed.status) return;
    gpu->failed.status = LOAM_ECUDA;
    snprintf(gpu->failed.text, sizeof gpu->failed.text, "%s: %s", what, text);
}

/* Rooms double, so that few are kept; a step that was captured into a graph has grown its own before. */
char *gpu_scratch(machine_gpu *gpu, size_t bytes)
{
    if (bytes <= gpu->bytes) return gpu->room;
    size_t grown = gpu->bytes ? 2 * gpu->bytes : LEAST_ROOM;
    while (grown < bytes)
        grown *= 2;
    void *room = NULL;
    if (cudaMalloc(&room, grown) != cudaSuccess) {
        gpu_fail(gpu, "scratch of an operation", cudaGetErrorString(cudaGetLastError()));
        return NULL;
    }
    if (gpu->room) gpu->older[gpu->count++] = gpu->room;
    gpu->room = (char *)room;
    gpu->bytes = grown;
    return gpu->room;
}
