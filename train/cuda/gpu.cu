/* SPDX-License-Identifier: MIT */
#include "train/cuda/gpu.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static loam_status refuse(loam_error *error, loam_status status, const char *what, const char *text)
{
    if (!error) return status;
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s: %s", what, text);
    return status;
}

static cudaError_t open_streams(machine_gpu *gpu)
{
    cudaError_t code = cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking);
    if (!code) code = cudaStreamCreateWithFlags(&gpu->side, cudaStreamNonBlocking);
    if (!code) code = cudaEventCreateWithFlags(&gpu->forked, cudaEventDisableTiming);
    return code ? code : cudaEventCreateWithFlags(&gpu->joined, cudaEventDisableTiming);
}

static void close_streams(machine_gpu *gpu)
{
    if (gpu->side) (void)cudaStreamSynchronize(gpu->side);
    if (gpu->stream) (void)cudaStreamSynchronize(gpu->stream);
    if (gpu->forked) (void)cudaEventDestroy(gpu->forked);
    if (gpu->joined) (void)cudaEventDestroy(gpu->joined);
    if (gpu->side) (void)cudaStreamDestroy(gpu->side);
    if (gpu->stream) (void)cudaStreamDestroy(gpu->stream);
}

static bool is_hopper(void)
{
    int device = 0, major = 0, minor = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major == 9 && minor == 0;
}

extern "C" loam_status gpu_open(machine_gpu **made, loam_error *error)
{
    int devices = 0;
    *made = NULL;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess || devices == 0) {
        (void)cudaGetLastError();
        return refuse(error, LOAM_EUNSUPPORTED, "no CUDA device",
                      found ? cudaGetErrorString(found) : "the driver shows none");
    }
    machine_gpu *gpu = (machine_gpu *)calloc(1, sizeof *gpu);
    if (!gpu) return refuse(error, LOAM_EMEMORY, "a GPU", "out of memory");
    gpu->hopper = is_hopper();
    gpu->made = products_open(error);
    if (!gpu->made) {
        gpu_close(gpu);
        return LOAM_EUNSUPPORTED;
    }
    const cudaError_t streamed = open_streams(gpu);
    if (streamed != cudaSuccess) {
        gpu_close(gpu);
        return refuse(error, LOAM_ECUDA, "cudaStreamCreate", cudaGetErrorString(streamed));
    }
    if (!gpu_scratch(gpu, 1)) {
        gpu_close(gpu);
        return refuse(error, LOAM_EMEMORY, "a GPU", "out of memory for its scratch");
    }
    *made = gpu;
    return LOAM_OK;
}

extern "C" void gpu_close(machine_gpu *gpu)
{
    close_streams(gpu);
    for (int i = 0; i < gpu->count; i++)
        (void)cudaFree(gpu->older[i]);
    (void)cudaFree(gpu->room);
    products_close(gpu->made);
    free(gpu);
}

extern "C" void *gpu_stream(const machine_gpu *gpu) { return gpu->stream; }

extern "C" void gpu_name(const machine_gpu *gpu, char *text, size_t room)
{
    int device = 0;
    cudaDeviceProp about = {};
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaGetDeviceProperties(&about, device) == cudaSuccess;
    snprintf(text, room, "cuda %s, cuBLASLt %zu", known ? about.name : "of no name",
             products_version(gpu->made));
}

extern "C" void *gpu_take(machine_gpu *gpu, size_t bytes)
{
    void *room = NULL;
    if (cudaMalloc(&room, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    gpu_check(gpu, cudaMemsetAsync(room, 0, bytes, gpu->stream), "cudaMemset");
    return room;
}

extern "C" void gpu_give(machine_gpu *gpu, void *room)
{
    gpu_check(gpu, cudaStreamSynchronize(gpu->stream), "cudaStreamSynchronize");
    gpu_check(gpu, cudaFree(room), "cudaFree");
}

extern "C" void gpu_upload(machine_gpu *gpu, void *to, const void *from, size_t bytes)
{
    gpu_check(gpu, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, gpu->stream), "an upload");
}

/* Of what went wrong since the last time. */
static loam_status status_of(machine_gpu *gpu, loam_error *error)
{
    const loam_status status = gpu->failed.status;
    if (status && error) *error = gpu->failed;
    gpu->failed.status = LOAM_OK;
    return status;
}

extern "C" loam_status gpu_download(machine_gpu *gpu, void *to, const void *from, size_t bytes,
                                    loam_error *error)
{
    gpu_check(gpu, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, gpu->stream), "a download");
    gpu_check(gpu, cudaStreamSynchronize(gpu->stream), "work on the GPU");
    return status_of(gpu, error);
}

extern "C" void gpu_record_begin(machine_gpu *gpu)
{
    gpu_check(gpu, cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeThreadLocal), "a recording");
}

extern "C" loam_status gpu_record_end(machine_gpu *gpu, machine_recording **made, loam_error *error)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    *made = NULL;
    gpu_check(gpu, cudaStreamEndCapture(gpu->stream, &graph), "a recording");
    if (graph) gpu_check(gpu, cudaGraphInstantiate(&ready, graph, 0), "a recording");
    if (graph) gpu_check(gpu, cudaGraphDestroy(graph), "a recording");
    const loam_status status = status_of(gpu, error);
    if (status)
        gpu_forget((machine_recording *)ready);
    else
        *made = (machine_recording *)ready;
    return status;
}

extern "C" void gpu_replay(machine_gpu *gpu, const machine_recording *what)
{
    gpu_check(gpu, cudaGraphLaunch((cudaGraphExec_t)what, gpu->stream), "a replay");
}

extern "C" void gpu_forget(machine_recording *what)
{
    if (what) (void)cudaGraphExecDestroy((cudaGraphExec_t)what);
}
