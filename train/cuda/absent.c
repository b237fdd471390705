/* SPDX-License-Identifier: MIT
 * In a build without CUDA, or without the header of cuBLASLt: no machine is ever made, and so nothing else
 * here is called. */
#include "train/cuda/data.h"
#include "train/cuda/feature_loss.h"
#include "train/cuda/gpu.h"

#include <stdio.h>

static loam_status refuse(loam_error *error)
{
    if (error) *error = (loam_error){ LOAM_EUNSUPPORTED, "this build has no CUDA, or had no cublasLt.h" };
    return LOAM_EUNSUPPORTED;
}

loam_status gpu_open(machine_gpu **made, loam_error *error)
{
    *made = NULL;
    return refuse(error);
}
void gpu_close(machine_gpu *gpu) { (void)gpu; }
const ops *gpu_ops(void) { return NULL; }
void *gpu_stream(const machine_gpu *gpu)
{
    (void)gpu;
    return NULL;
}
void gpu_name(const machine_gpu *gpu, char *text, size_t room)
{
    (void)gpu;
    snprintf(text, room, "no GPU");
}
void *gpu_take(machine_gpu *gpu, size_t bytes)
{
    (void)gpu, (void)bytes;
    return NULL;
}
void gpu_give(machine_gpu *gpu, void *room) { (void)gpu, (void)room; }
void gpu_upload(machine_gpu *gpu, void *to, const void *from, size_t bytes)
{
    (void)gpu, (void)to, (void)from, (void)bytes;
}
loam_status gpu_download(machine_gpu *gpu, void *to, const void *from, size_t bytes, loam_error *error)
{
    (void)gpu, (void)to, (void)from, (void)bytes;
    return refuse(error);
}
size_t gpu_order_bytes(int64_t models, int64_t rows)
{
    (void)models, (void)rows;
    return 0;
}
void gpu_record_begin(machine_gpu *gpu) { (void)gpu; }
loam_status gpu_record_end(machine_gpu *gpu, machine_recording **made, loam_error *error)
{
    (void)gpu;
    *made = NULL;
    return refuse(error);
}
void gpu_replay(machine_gpu *gpu, const machine_recording *what) { (void)gpu, (void)what; }
void gpu_forget(machine_recording *what) { (void)what; }
void gpu_fill(const machine *on, const train_source *from, const batch_size *size, const batch_arrays *to)
{
    (void)on, (void)from, (void)size, (void)to;
}
void gpu_feature_rows(const feature_losses *l, float *out, const feature_rows *from)
{
    (void)l, (void)out, (void)from;
}
void gpu_feature_exact(const feature_losses *l) { (void)l; }
int64_t gpu_feature_blocks(const feature_losses *l)
{
    (void)l;
    return 0;
}
int64_t gpu_feature_scratch(const feature_losses *l)
{
    (void)l;
    return 0;
}
void gpu_feature_losses(const feature_losses *l) { (void)l; }
