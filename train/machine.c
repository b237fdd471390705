/* SPDX-License-Identifier: MIT */
#include "train/machine.h"

#include "train/cpu/cpu.h"
#include "train/cuda/gpu.h"

#include <assert.h>
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SET_AT_ONCE = 1024 };

machine machine_cpu(loam_dtype dtype, int threads)
{
    openblas_set_num_threads(1);
    return (machine){ .op = dtype == LOAM_F64 ? &cpu_ops_f64 : &cpu_ops_f32,
                      .dtype = dtype,
                      .operand = dtype,
                      .threads = threads > 0 ? threads : loam_max_threads() };
}

const char *machine_name(const machine *on, char text[MACHINE_NAME])
{
    if (on->gpu)
        gpu_name(on->gpu, text, MACHINE_NAME);
    else
        snprintf(text, MACHINE_NAME, "openblas %s", openblas_get_corename());
    return text;
}

loam_status machine_cuda(machine *made, loam_dtype operand, loam_error *error)
{
    assert(operand == LOAM_F32 || operand == LOAM_BF16);
    *made = (machine){
        .op = gpu_ops(), .dtype = LOAM_F32, .operand = operand, .threads = loam_max_threads()
    };
    return gpu_open(&made->gpu, error);
}

void machine_close(machine *on)
{
    if (on->gpu) gpu_close(on->gpu);
    *on = (machine){ 0 };
}

void *machine_stream(const machine *on) { return on->gpu ? gpu_stream(on->gpu) : NULL; }

void machine_upload(const machine *on, void *to, const void *from, size_t bytes)
{
    if (on->gpu)
        gpu_upload(on->gpu, to, from, bytes);
    else if (to != from)
        memcpy(to, from, bytes);
}

loam_status machine_download(const machine *on, void *to, const void *from, size_t bytes, loam_error *error)
{
    if (on->gpu) return gpu_download(on->gpu, to, from, bytes, error);
    if (to != from) memcpy(to, from, bytes);
    return LOAM_OK;
}

void machine_set(const machine *on, matrix a, int64_t first, const double *x, int64_t count)
{
    assert(a.dtype == on->dtype);
    if (!on->gpu) {
        matrix_set(a, first, x, count);
        return;
    }
    for (int64_t done = 0; done < count; done += SET_AT_ONCE) {
        float host[SET_AT_ONCE];
        const int64_t part = count - done < SET_AT_ONCE ? count - done : SET_AT_ONCE;
        for (int64_t i = 0; i < part; i++)
            host[i] = (float)x[done + i];
        gpu_upload(on->gpu, (float *)a.data + first + done, host, (size_t)part * sizeof *host);
    }
}

void machine_record_begin(const machine *on) { gpu_record_begin(on->gpu); }
loam_status machine_record_end(const machine *on, machine_recording **made, loam_error *error)
{
    return gpu_record_end(on->gpu, made, error);
}
void machine_replay(const machine *on, const machine_recording *what) { gpu_replay(on->gpu, what); }
void machine_forget(machine_recording *what) { gpu_forget(what); }

size_t machine_order_bytes(const machine *on, int64_t models, int64_t rows)
{
    return on->gpu ? gpu_order_bytes(models, rows) : 0;
}

void *memory_take(memory *from, int64_t count, size_t bytes)
{
    char *taken = from->base ? from->base + from->used : NULL;
    if (from->used == SIZE_MAX || count < 0 || (uint64_t)count > (SIZE_MAX / 2 - from->used) / bytes)
        return from->used = SIZE_MAX, NULL;
    const size_t end = from->used + (size_t)count * bytes;
    from->used = (end + LOAM_ALIGN - 1) / LOAM_ALIGN * LOAM_ALIGN;
    return taken;
}

matrix memory_matrix(memory *from, loam_dtype dtype, int64_t models, int64_t rows, int64_t width)
{
    const matrix shape = matrix_dense(NULL, dtype, models, rows, width);
    return matrix_dense(memory_take(from, matrix_elements(shape), (size_t)matrix_bytes_each(shape)), dtype,
                        models, rows, width);
}

bool memory_open(memory *m, const machine *on)
{
    if (m->used == SIZE_MAX) return false;
    m->gpu = on->gpu;
    m->base = on->gpu ? gpu_take(on->gpu, m->used) : aligned_alloc(LOAM_ALIGN, m->used);
    if (!m->base) return false;
    if (!on->gpu) memset(m->base, 0, m->used);
    m->used = 0;
    return true;
}

void memory_close(memory *m)
{
    if (m->gpu && m->base)
        gpu_give(m->gpu, m->base);
    else
        free(m->base);
    *m = (memory){ 0 };
}
