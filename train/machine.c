/* SPDX-License-Identifier: MIT */
#include "train/machine.h"

#include "train/cpu/cpu.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

machine machine_cpu(loam_dtype dtype, int threads)
{
    openblas_set_num_threads(1);
    return (machine){ dtype == LOAM_F64 ? &cpu_ops_f64 : &cpu_ops_f32, dtype,
                      threads > 0 ? threads : loam_max_threads() };
}

const char *machine_name(const machine *on, char text[64])
{
    (void)on;
    snprintf(text, 64, "openblas %s", openblas_get_corename());
    return text;
}

void machine_read(const machine *on, void *to, const void *from, size_t bytes)
{
    (void)on;
    memcpy(to, from, bytes);
}

void machine_write(const machine *on, void *to, const void *from, size_t bytes)
{
    (void)on;
    memcpy(to, from, bytes);
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

matrix memory_matrix(memory *from, const machine *on, int64_t models, int64_t rows, int64_t width)
{
    const matrix shape = matrix_dense(NULL, on->dtype, models, rows, width);
    return matrix_dense(memory_take(from, matrix_elements(shape), (size_t)matrix_bytes_each(shape)),
                        on->dtype, models, rows, width);
}

bool memory_open(memory *m)
{
    if (m->used == SIZE_MAX || !(m->base = aligned_alloc(LOAM_ALIGN, m->used))) return false;
    memset(m->base, 0, m->used);
    m->used = 0;
    return true;
}

void memory_close(memory *m)
{
    free(m->base);
    *m = (memory){ 0 };
}
