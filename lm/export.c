/* SPDX-License-Identifier: MIT */
#include "lm/export.h"

#include "io/safetensors.h"
#include "lm/arrays.h"
#include "lm/path.h"
#include "lm/write.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- arrays */

static int64_t count_of(matrix x) { return x.rows * x.width; }

static int take_array(const trainer *t, const parameter *p, array *out, io_error *error)
{
    loam_error reason;
    const int64_t shape[2] = { p->x.rows, p->x.width };
    const int status = array_create(out, p->x.dtype, 2, shape, p->name, error);
    if (status) return status;
    const size_t bytes = (size_t)(count_of(p->x) * matrix_bytes_each(p->x));
    return machine_download(t->on, out->data, p->x.data, bytes, &reason)
               ? io_fail(error, EXIT_INTERNAL, "%s", reason.text)
               : 0;
}

int lm_export_arrays(const trainer *t, const char *path, io_error *error)
{
    int count, status = 0;
    const parameter *list = model_parameters(t->net, &count);
    const char *const texts[] = { NULL };
    array *arrays = calloc((size_t)count, sizeof *arrays);
    const char **names = calloc((size_t)count, sizeof *names);
    if (!arrays || !names) status = io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    size_t taken = 0;
    for (int i = 0; i < count && !status; i++) {
        if (list[i].frozen) continue;
        names[taken] = list[i].name;
        status = take_array(t, &list[i], &arrays[taken++], error);
    }
    const safetensors_contents contents = { taken, names, arrays, texts };
    if (!status) status = safetensors_write(path, &contents, error);
    for (size_t i = 0; arrays && i < taken; i++)
        array_free(&arrays[i]);
    free(arrays);
    free(names);
    return status;
}

int lm_export_load(trainer *t, const char *path, io_error *error)
{
    int count;
    const parameter *list = model_parameters(t->net, &count);
    safetensors *file;
    int status = safetensors_open(&file, path, error);
    for (int i = 0; i < count && !status; i++) {
        const matrix x = list[i].x;
        array a = { 0 };
        if (list[i].frozen) continue;
        status = safetensors_tensor(file, &a, list[i].name, error);
        if (!status && (a.dtype != x.dtype || a.count != count_of(x)))
            status = io_fail(error, EXIT_INPUT, "%s: tensor '%s' has %lld numbers; expected %lld", path,
                             list[i].name, (long long)a.count, (long long)count_of(x));
        if (!status) machine_upload(t->on, x.data, a.data, (size_t)(a.count * matrix_bytes_each(x)));
        array_free(&a);
    }
    safetensors_close(file);
    return status;
}

/* ---------------------------------------------------------------- parts */

typedef struct exporting {
    const lm_config *config;
    safetensors *file;
} exporting;

/* Rows first .. of [rows][columns], from an array or its transpose. */
static void put_rows(const array *a, bool turned, int64_t first, int64_t count, int64_t columns, float *out)
{
    const float *from = a->data;
    const int64_t across = turned ? a->shape[1] : 1, along = turned ? 1 : columns;
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < columns; c++)
            out[i * columns + c] = from[(first + i) * along + c * across];
}

static int read_part(const void *context, lm_part part, int64_t layer, int64_t first, int64_t count,
                     loam_dtype dtype, void *out, io_error *error)
{
    const exporting *e = context;
    int64_t rows, columns;
    char text[LM_ARRAY_TEXT];
    array a = { 0 };
    safetensors_place place;
    (void)dtype;
    lm_part_shape(e->config, part, layer, &rows, &columns);
    lm_array_text(part, layer, text);
    /* Linear maps are trained from nothing without biases. */
    if (lm_part_is_vector(part) && !safetensors_find(e->file, text, &place)) {
        memset(out, 0, (size_t)(count * columns) * sizeof(float));
        return 0;
    }
    int status = safetensors_tensor(e->file, &a, text, error);
    if (!status && (a.dtype != LOAM_F32 || a.count != rows * columns))
        status = io_fail(error, EXIT_INTERNAL, "'%s' has %lld numbers; expected %lld", text,
                         (long long)a.count, (long long)(rows * columns));
    if (!status) put_rows(&a, lm_array_of(part).turned, first, count, columns, out);
    array_free(&a);
    return status;
}

int lm_export_model(const lm_config *config, const char *arrays, const char *folder, io_error *error)
{
    exporting e = { .config = config };
    char *path = NULL;
    int status = safetensors_open(&e.file, arrays, error);
    if (!status) status = lm_path(&path, folder, "model.safetensors", error);
    if (!status) status = lm_write(path, config, LOAM_F32, read_part, &e, error);
    free(path);
    path = NULL;
    if (!status) status = lm_path(&path, folder, "config.json", error);
    if (!status) status = lm_config_write(config, path, error);
    free(path);
    safetensors_close(e.file);
    return status;
}
