/* SPDX-License-Identifier: MIT */
#include "lm/weights.h"

#include <stdlib.h>

/* Rows of a part that are converted at a time. */
enum { ROWS_AT_ONCE = 256 };

static matrix *slot_of(lm_weights *w, int64_t layer, lm_part part)
{
    return part < LM_NORM_1 ? &w->of_model[part] : &w->of_layer[layer][part - LM_NORM_1];
}

/* What products read has the type that was asked for; all else is float32. */
static loam_dtype type_of(lm_part part, int64_t rows, loam_dtype dtype)
{
    const bool table = part == LM_POSITIONS || part == LM_TYPES;
    return rows == 1 || table || part >= LM_FEATURE_Z ? LOAM_F32 : dtype;
}

/* Every part of the model: visit(layer, part). */
typedef struct visitor {
    lm_weights *to;
    const machine *on;
    const lm_files *files;
    loam_dtype dtype;
    io_error *error;
} visitor;

static int for_parts(const visitor *v, int (*visit)(const visitor *, int64_t layer, lm_part part))
{
    const int64_t layers = lm_files_config(v->files)->layers;
    int status = 0;
    for (int part = 0; !status && part < LM_PARTS; part++)
        for (int64_t layer = 0; !status && layer < (part < LM_NORM_1 ? 1 : layers); layer++)
            status = visit(v, layer, (lm_part)part);
    return status;
}

/* Memory is taken for what no file maps in its type; a machine with memory of its own maps nothing. */
static int take_part(const visitor *v, int64_t layer, lm_part part)
{
    int64_t rows, columns;
    lm_part_shape(lm_files_config(v->files), part, layer, &rows, &columns);
    matrix *const slot = slot_of(v->to, layer, part);
    *slot = (matrix){ 0 };
    if (rows == 0) return 0;
    const loam_dtype dtype = type_of(part, rows, v->dtype);
    const void *mapped = v->on->gpu ? NULL : lm_files_mapped(v->files, part, layer, dtype);
    if (mapped)
        *slot = matrix_dense((void *)(uintptr_t)mapped, dtype, 1, rows, columns);
    else
        *slot = memory_matrix(&v->to->room, dtype, 1, rows, columns);
    v->to->bytes += matrix_elements(*slot) * matrix_bytes_each(*slot);
    return 0;
}

static bool within(const memory *room, const void *data)
{
    return (const char *)data >= room->base && (const char *)data < room->base + room->used;
}

/* What a part in taken memory holds: sent as it is mapped, or converted a few rows at a time. */
static int fill_part(const visitor *v, int64_t layer, lm_part part)
{
    const matrix to = *slot_of(v->to, layer, part);
    if (!to.data || !within(&v->to->room, to.data)) return 0;
    const void *const mapped = lm_files_mapped(v->files, part, layer, to.dtype);
    if (mapped) {
        machine_upload(v->on, to.data, mapped, (size_t)(matrix_elements(to) * matrix_bytes_each(to)));
        lm_files_forget(v->files, part, layer);
        return 0;
    }
    const size_t row_bytes = (size_t)(to.width * matrix_bytes_each(to));
    void *const piece = v->on->gpu ? malloc(ROWS_AT_ONCE * row_bytes) : NULL;
    int status = 0;
    if (v->on->gpu && !piece) return io_fail(v->error, EXIT_INTERNAL, "out of memory for weights");
    for (int64_t first = 0; !status && first < to.rows; first += ROWS_AT_ONCE) {
        const int64_t count = to.rows - first < ROWS_AT_ONCE ? to.rows - first : ROWS_AT_ONCE;
        char *const at = (char *)to.data + (size_t)first * row_bytes;
        status = lm_files_read(v->files, part, layer, first, count, to.dtype, piece ? piece : at, v->error);
        if (!status && piece) machine_upload(v->on, at, piece, (size_t)count * row_bytes);
        /* Else file and copy would both be in memory. */
        lm_files_forget(v->files, part, layer);
    }
    free(piece);
    return status;
}

int lm_weights_open(lm_weights *made, const machine *on, const lm_files *f, loam_dtype dtype, io_error *error)
{
    const visitor v = { made, on, f, dtype, error };
    *made = (lm_weights){ 0 };
    made->of_layer = calloc((size_t)lm_files_config(f)->layers, sizeof *made->of_layer);
    int status = made->of_layer ? for_parts(&v, take_part)
                                : io_fail(error, EXIT_INTERNAL, "out of memory for weights");
    const int64_t bytes = made->bytes;
    const bool all_mapped = made->room.used == 0;
    if (!status && !all_mapped && !memory_open(&made->room, on))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for %.0f MB of weights", (double)bytes / 1e6);
    if (!status && !all_mapped) {
        status = for_parts(&v, take_part);
        if (!status) status = for_parts(&v, fill_part);
    }
    made->bytes = bytes;
    if (status) lm_weights_close(made);
    return status;
}

void lm_weights_close(lm_weights *w)
{
    free(w->of_layer);
    memory_close(&w->room);
    *w = (lm_weights){ 0 };
}
