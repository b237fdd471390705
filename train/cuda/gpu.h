/* SPDX-License-Identifier: MIT
 * A GPU as a machine: its memory, its stream, and the operations there. */
#ifndef LOAM_TRAIN_CUDA_GPU_H
#define LOAM_TRAIN_CUDA_GPU_H

#include "train/machine.h"

typedef struct machine_gpu machine_gpu;

/* The current device; LOAM_EUNSUPPORTED where a part is missing, which the text names. */
loam_status gpu_open(machine_gpu **made, loam_error *error);
void gpu_close(machine_gpu *gpu);
const ops *gpu_ops(void);
void *gpu_stream(const machine_gpu *gpu);
/* "cuda NVIDIA H200, cuBLASLt 130100": the device, and the version of what makes products. */
void gpu_name(const machine_gpu *gpu, char *text, size_t room);

/* Zeroed; NULL: there is no room. */
void *gpu_take(machine_gpu *gpu, size_t bytes);
void gpu_give(machine_gpu *gpu, void *room);
void gpu_upload(machine_gpu *gpu, void *to, const void *from, size_t bytes);
/* Waits; fails with what went wrong since the last time. */
loam_status gpu_download(machine_gpu *gpu, void *to, const void *from, size_t bytes, loam_error *error);

size_t gpu_order_bytes(int64_t models, int64_t rows);

void gpu_record_begin(machine_gpu *gpu);
loam_status gpu_record_end(machine_gpu *gpu, machine_recording **made, loam_error *error);
void gpu_replay(machine_gpu *gpu, const machine_recording *what);
void gpu_forget(machine_recording *what);

#endif
